"""A broker of a few lines in this process, with the client's interface, for the tests of the command line.

It can be told to misbehave. Filters are evaluated plainly.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from cluster.errors import RejectedError
from cluster.language import Filter, parse
from cluster.policy import policy_of


@dataclass
class FakeBroker:
    """Delivers at once.

    fault:    (client id, sequence, notification) -> the notifications to deliver in its place.
    reject:   attributes -> the cluster's reason to refuse, None to accept.
    refuse:   the same for the client, before it has a sequence.
    starve:   called when a stream is read and nothing is queued; the read then waits.
    """

    fault: Callable[[str, int, Any], list[Any]] | None = None
    reject: Callable[[dict[str, Any]], str | None] = lambda attributes: None
    refuse: Callable[[dict[str, Any]], str | None] = lambda attributes: None
    starve: Callable[[], None] = lambda: None
    streams: list[FakeStream] = field(default_factory=list)
    published: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    validities: list[float] = field(default_factory=list)
    initials: list[str] = field(default_factory=list)

    def connect(self, url: str, *, client_id: str | None = None) -> contextlib.AbstractAsyncContextManager[FakeClient]:
        self.urls.append(url)
        return self._connected(client_id or "drawn")

    @contextlib.asynccontextmanager
    async def _connected(self, client_id: str) -> AsyncIterator[FakeClient]:
        yield FakeClient(self, client_id)

    def route(self, publisher: str, sequence: int, attributes: dict[str, Any]) -> None:
        self.published.append((publisher, sequence, attributes))
        for stream in self.streams:
            numbers = [number for number, filter in enumerate(stream.filters) if filter.matches(attributes)]
            if numbers:
                one = SimpleNamespace(
                    publisher=publisher,
                    sequence=sequence,
                    attributes=dict(attributes),
                    time=1.5,
                    subscription_ids=tuple(numbers),
                )
                stream.put([one] if self.fault is None else self.fault(stream.client_id, sequence, one))


class FakeStream:
    def __init__(self, broker: FakeBroker, client_id: str, filters: Iterable[str]) -> None:
        self.broker = broker
        self.client_id = client_id
        self.filters: list[Filter] = [parse(text) for text in filters]
        self.ids = tuple(range(len(self.filters)))
        self.queue: deque[Any] = deque()
        self.filled = asyncio.Event()

    def put(self, notifications: list[Any]) -> None:
        self.queue.extend(notifications)
        self.filled.set()

    def __aiter__(self) -> FakeStream:
        return self

    async def __anext__(self) -> Any:
        return (await self.take(1))[0]

    async def take(self, limit: int) -> list[Any]:
        while not self.queue:
            self.filled.clear()
            self.broker.starve()
            await self.filled.wait()
        return [self.queue.popleft() for _ in range(min(limit, len(self.queue)))]


class FakeClient:
    def __init__(self, broker: FakeBroker, client_id: str) -> None:
        self.broker = broker
        self.client_id = client_id
        self.rejected = 0
        self.dropped: Counter[str] = Counter()
        self.sequence = 0

    async def publish_many(self, publications: Any, *, ack: str, valid_for: float) -> int:
        assert ack in ("none", "matched")
        self.broker.validities.append(valid_for)
        count = 0
        first: tuple[int, str] | None = None
        async for attributes in _each(publications):
            reason = self.broker.refuse(attributes)
            if reason is not None:
                raise RejectedError(reason)
            self.sequence += 1
            reason = self.broker.reject(attributes)
            if reason is None:
                self.broker.route(self.client_id, self.sequence, attributes)
                count += 1
            else:
                self.rejected += 1
                first = first or (self.sequence, reason)
        if first is not None:
            raise RejectedError(first[1], sequence=first[0])
        return count

    async def subscribe(self, filter: str) -> FakeStream:
        return await self.subscribe_many([filter])

    async def subscribe_many(
        self, filters: Iterable[str], *, policy: str = "block", initial: str = "none"
    ) -> FakeStream:
        policy_of(policy)
        self.broker.initials.append(initial)
        stream = FakeStream(self.broker, self.client_id, filters)
        self.broker.streams.append(stream)
        return stream


async def _each(publications: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(publications, AsyncIterable):
        async for one in publications:
            yield one
    else:
        for place, one in enumerate(publications):
            if place % 16 == 0:
                await asyncio.sleep(0)
            yield one
