"""What the application reads: the stream of one subscription, of a group of them, or of the whole client.

A stream is an asynchronous iterator. While something is queued, `async for` runs without suspending and without
touching the event loop, so it costs what a callback would. A stream that is not read holds its queue, at most the
client's receive window, and with it the client's credit: read every stream, or close it.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from cluster.client.delivery import Inbox
from cluster.client.notification import Notification
from cluster.client.requests import Request
from cluster.errors import KittiwakeError, RefusedError

if TYPE_CHECKING:
    from typing import Self

    from cluster.client.client import Client
    from cluster.client.filters import FilterLike

Initial = Literal["none", "valid"]
"""Which publications of before a subscription is given: none, or those that are valid when it is opened."""
Policy = str
"""What the broker does when a stream is not read in time: "block", "drop_oldest", "drop_newest", "disconnect", or
"latest_per_key(attribute)", which `latest_per_key("attribute")` spells for any name. The broker judges it."""


class Stream(abc.ABC):
    """An asynchronous iterator over notifications, in the broker's order.

    Several tasks may read one stream; each notification goes to one of them. Usable in `async with`: it is closed then.

    Of a durable session a notification is acknowledged when the stream is asked for the next one, so that what a
    program was at work on when it died comes again. With several tasks at one stream, `manual_ack` is for you.

    Ends:    with StopAsyncIteration after `close`, of it or of the client.
    Raises:  ConnectionLostError when the client ended otherwise, or what refused the subscription when it could not
             be restored; after everything queued has been handed out.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._inbox = Inbox()
        self._queue = self._inbox.queue
        self._delivery = client._protocol.delivery
        self._waiters: list[asyncio.Future[None]] = []
        self._end: KittiwakeError | Literal["closed"] | None = None
        self._handed: list[Notification] = []
        """Of a durable session: what the application was handed last, and has not come back from."""

    @property
    def dropped(self) -> Mapping[str, int]:
        """Notifications that the broker dropped because they were not read in time, by reason. A live view.

        Reasons: "drop_oldest" and "drop_newest" as the policies are called; "latest_per_key" where a newer one with
        the same value took its place. What latest_per_key loses because the queue is full is under "drop_oldest".
        """
        return MappingProxyType(self._inbox.dropped)

    @property
    def closed(self) -> bool:
        """The stream gets nothing more; something may still be queued."""
        return self._end is not None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Notification:
        if self._handed:
            self._came_back()
        queue = self._queue
        while not queue:
            await self._arrival()
        notification = queue.popleft()
        if notification.position:
            self._hand(notification)
            return notification
        # Delivery.took, inlined: a fifth of the whole path.
        notification._holders -= 1
        if notification._holders == 0:
            delivery = self._delivery
            delivery.taken += 1
            if delivery.taken >= delivery.report_at:
                self._client._flush_soon()
        return notification

    async def take(self, limit: int = 1024) -> list[Notification]:
        """Return what is queued, at most `limit`; wait until there is something.

        Returns: an empty list at the end of the stream, where the iterator raises StopAsyncIteration.
        """
        if limit < 1:
            raise ValueError(f"limit is {limit}, at least 1 is needed")
        if self._handed:
            self._came_back()
        queue = self._queue
        try:
            while not queue:
                await self._arrival()
        except StopAsyncIteration:
            return []
        delivery = self._delivery
        taken = [queue.popleft() for _ in range(min(limit, len(queue)))]
        for notification in taken:
            if notification.position:
                self._hand(notification)
            else:
                delivery.took(notification)
        if delivery.taken >= delivery.report_at:
            self._client._flush_soon()
        return taken

    def _hand(self, notification: Notification) -> None:
        """The application is handed a notification of a durable session."""
        positions = notification._positions
        if positions is not None and positions.manual:
            self._delivery.took(notification)
        else:
            self._handed.append(notification)

    def _came_back(self) -> None:
        """The application asks for more: it is done with what it was handed."""
        handed, self._handed = self._handed, []
        delivery = self._delivery
        for notification in handed:
            delivery.took(notification)
        if delivery.taken >= delivery.report_at:
            self._client._flush_soon()

    @abc.abstractmethod
    async def close(self) -> None:
        """End the stream and throw away what is queued. Closing again does nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _arrival(self) -> None:
        """Wait until the queue may have something; raise at the end of the stream."""
        if self._end is not None:
            if isinstance(self._end, KittiwakeError):
                raise again(self._end)
            raise StopAsyncIteration
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _rest(self) -> list[Notification]:
        """Take what is queued in a stream that has ended; raise what ended it when that is nothing."""
        assert self._end is not None, "the stream goes on"
        rest = list(self._queue)
        self._queue.clear()
        if not rest and isinstance(self._end, KittiwakeError):
            raise again(self._end)
        return rest

    def _wake(self) -> None:
        waiters = self._waiters
        if waiters:
            self._waiters = []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _finish(self, end: KittiwakeError | Literal["closed"]) -> None:
        """Let the stream end once its queue is empty."""
        if self._end is None:
            self._end = end
        self._wake()


class _Subscribed(Stream):
    """The stream of one or more subscriptions."""

    def __init__(self, client: Client, policy: Policy) -> None:
        super().__init__(client)
        self._policy = policy
        self._numbers: tuple[int, ...] = ()
        self._filters: list[str] = []
        self._unanswered = 0
        """Close requests on their way."""
        self._gone: asyncio.Future[None] | None = None
        """Done when the broker has closed everything; None until `close`."""

    @property
    def policy(self) -> Policy:
        """What the broker does when this stream is not read in time."""
        return self._policy

    async def close(self) -> None:
        """End the stream; returns when nothing of it arrives any more. What is queued is thrown away.

        Cancelling this does not take it back: the subscription is closed all the same.
        """
        if self._gone is None:
            self._let_go()
        assert self._gone is not None
        await asyncio.shield(self._gone)

    def _let_go(self) -> None:
        """Close everything at the broker, without waiting for it."""
        if self._gone is not None:
            return
        self._gone = asyncio.get_running_loop().create_future()
        self._finish("closed")
        self._came_back()
        self._client._discard(self._inbox)
        requests = self._client._protocol.requests
        for number in self._numbers:
            if requests.closable(number):
                self._unanswered += 1
                requests.close(number, self._closed_one)
        if self._unanswered == 0:
            self._gone.set_result(None)
        else:
            self._client._flush_soon()

    def _lose(self, error: KittiwakeError) -> None:
        """End the stream with this error once its queue is empty, and close what is left of it at the broker."""
        self._finish(error)
        self._client._protocol.delivery.detach(self._inbox)
        requests = self._client._protocol.requests
        for number in self._numbers:
            if requests.closable(number):
                requests.close(number)

    def _closed_one(self, request: Request) -> None:
        self._unanswered -= 1
        assert self._gone is not None
        if self._unanswered == 0 and not self._gone.done():
            self._gone.set_result(None)


class Subscription(_Subscribed):
    """A standing request and the stream of what matches it."""

    @property
    def id(self) -> int:
        """The client's own number of the subscription; kept over reconnects and updates."""
        return self._numbers[0]

    @property
    def filter(self) -> str:
        """The filter in force, as text, as the broker last confirmed it."""
        return self._filters[0]

    async def update(self, filter: FilterLike) -> None:
        """Replace the filter in one step: no publication is lost or doubled across the change.

        Returns when every publication after this is matched with the new filter. Cancelling this leaves open
        whether the update happens; `filter` says it once the broker has answered.
        Raises: FilterError or RefusedError when it was refused, and the old filter stays; ConnectionLostError.
        """
        from cluster.client.filters import filter_text

        text = filter_text(filter)
        self._client._check_open()
        requests = self._client._protocol.requests
        if self._end is not None or not requests.closable(self.id):
            raise RefusedError(f"subscription {self.id} is closed", code="closed")
        future = asyncio.get_running_loop().create_future()

        def settled(request: Request) -> None:
            if request.error is None and not request.lost:
                self._filters[0] = request.filter
            if not future.done():
                future.set_result(None)

        request = requests.update(self.id, text, settled)
        self._client._flush_soon()
        await future
        self._client._raise_unless_done(request)

    def __repr__(self) -> str:
        return f"Subscription(id={self.id}, filter={self.filter!r}, policy={self._policy!r})"


class SubscriptionGroup(_Subscribed):
    """Many subscriptions with one stream: a publication arrives once, listing the ids of those that match."""

    @property
    def ids(self) -> tuple[int, ...]:
        """The client's own numbers of the subscriptions, in the order of the filters given."""
        return self._numbers

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters as text, in the order given."""
        return tuple(self._filters)

    def __repr__(self) -> str:
        return f"SubscriptionGroup({len(self._numbers)} subscriptions, policy={self._policy!r})"


class Notifications(Stream):
    """The stream of everything that this client receives, while it is open in place of the subscriptions' own."""

    async def close(self) -> None:
        """End the stream; what comes afterwards goes to the subscriptions' own streams again.

        Of a durable session, what is queued comes again with the next connection; else it is thrown away.
        """
        self._finish("closed")
        self._came_back()
        self._client._discard(self._inbox)


def again(error: KittiwakeError) -> KittiwakeError:
    """Return a copy to raise: one exception raised in several tasks would collect all their tracebacks."""
    fresh = error.__class__.__new__(error.__class__, *error.args)
    fresh.__dict__.update(error.__dict__)
    fresh.__cause__ = error.__cause__
    return fresh
