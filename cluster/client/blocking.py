"""The client for programs without an event loop: the same names, each call waits.

The asynchronous client runs in a thread of its own, so heartbeats are answered and publications acknowledged while
the program does something else. Everything here may be called from any thread; a stream is for one reader at a time.

Crossing from thread to thread costs some 50 µs, so nothing crosses alone that can cross in company: a stream takes
what is queued at once and hands it out piece by piece, and `publish_many` packs in the caller's thread and passes on
whatever has gathered while the last batch was taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from cluster.client.address import DEFAULT_URL, Connector
from cluster.client.attributes import AttributePacker, Limits
from cluster.client.client import Acknowledge, Client, connect
from cluster.client.notification import Notification
from cluster.client.publishing import CHUNK_BYTES_MAX, CHUNK_COUNT_MAX
from cluster.client.streams import Initial, Policy, Stream, Subscription, SubscriptionGroup
from cluster.errors import ConnectionLostError

if TYPE_CHECKING:
    from typing import Self

    from cluster.client.filters import FilterLike

T = TypeVar("T")
StreamT = TypeVar("StreamT", bound=Stream)

TAKE_MAX = 256
"""Notifications that a stream takes over at once; they count as consumed from then on."""
GATHERED_MAX = 4 * CHUNK_COUNT_MAX
GATHERED_BYTES_MAX = 4 * CHUNK_BYTES_MAX


def connect_sync(
    url: str = DEFAULT_URL,
    *,
    client_id: str | None = None,
    receive_window: int = 4096,
    reconnect: bool = True,
    connect_timeout_s: float = 10.0,
    backoff_s: tuple[float, float] = (0.05, 5.0),
    durable: bool = False,
    expires: int | None = None,
    max_deliver: int | None = None,
    manual_ack: bool = False,
    connector: Connector | None = None,
    rng: random.Random | None = None,
    instance: int | None = None,
    first_sequence: int = 1,
) -> BlockingClient:
    """Connect to a cluster and return the client; also for `with connect_sync(...) as client:`.

    Arguments and errors as `connect`; the connector runs in the client's thread.
    """
    client = connect(
        url,
        client_id=client_id,
        receive_window=receive_window,
        reconnect=reconnect,
        connect_timeout_s=connect_timeout_s,
        backoff_s=backoff_s,
        durable=durable,
        expires=expires,
        max_deliver=max_deliver,
        manual_ack=manual_ack,
        connector=connector,
        rng=rng,
        instance=instance,
        first_sequence=first_sequence,
    )
    thread = _LoopThread()
    try:

        async def start() -> Client:
            return await client

        return BlockingClient(thread.run(start()), thread)
    except BaseException:
        thread.stop()
        raise


class _LoopThread:
    """An event loop in a daemon thread, until `stop`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._stopping = False
        """Nothing is handed to the loop any more, for nobody would run it."""
        self._thread = threading.Thread(target=self._main, name="kittiwake client", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    @property
    def stopped(self) -> bool:
        """The loop is at its end, or beyond."""
        return self._stopping

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start it in the loop. Raises: ConnectionLostError when the loop has been stopped."""
        assert threading.current_thread() is not self._thread, "a blocking call inside the client's own thread"
        with self._lock:
            if self._stopping:
                coroutine.close()
                raise _closed()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it in the loop and return its result; an interrupt of the caller cancels it."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except CancelledError:
            raise _closed() from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop and its thread, and wait for it."""
        with self._lock:
            if not self._stopping:
                self._stopping = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _closed() -> ConnectionLostError:
    return ConnectionLostError("the client is closed", reason_code="closed")


class BlockingClient:
    """The twin of `Client`; made by `connect_sync`. What a method promises and raises is said there."""

    def __init__(self, client: Client, thread: _LoopThread) -> None:
        self._client = client
        self._thread = thread

    @property
    def client_id(self) -> str:
        """The name that subscribers see as the publisher."""
        return self._client.client_id

    @property
    def url(self) -> str:
        """Where to connect the next time; see `Client.url`."""
        return self._client.url

    @property
    def instance(self) -> int:
        """What tells this publisher's life from others of the same client_id."""
        return self._client.instance

    @property
    def acknowledged(self) -> int:
        """The number up to which every publication has its answer."""
        return self._client.acknowledged

    @property
    def connected(self) -> bool:
        """There is a connection at this moment."""
        return self._client.connected

    @property
    def closed(self) -> bool:
        """The client has ended, on purpose or not."""
        return self._client.closed

    @property
    def reconnections(self) -> int:
        """How many times the connection was renewed."""
        return self._client.reconnections

    @property
    def durable(self) -> bool:
        """The session outlives the connection."""
        return self._client.durable

    @property
    def sessions_lost(self) -> int:
        """Durable sessions that had ended when this client came again; see `Client.sessions_lost`."""
        return self._client.sessions_lost

    @property
    def resumed(self) -> bool:
        """The durable session was there before the present connection began."""
        return self._client.resumed

    @property
    def held(self) -> Mapping[int, str]:
        """Subscriptions that an earlier program has left behind: id -> filter; see `Client.held`."""
        return self._client.held

    def take_up(self, id: int) -> BlockingSubscription:
        """Return one of the subscriptions in `held`; see `Client.take_up`."""
        return BlockingSubscription(self._thread, self._thread.run(self._client.take_up(id)))

    def ack(self, notification: Notification, *, upto: bool = False) -> None:
        """Acknowledge a notification of a durable session; see `Notification.ack`."""
        self._thread.run(notification.ack(upto=upto))

    def refuse(self, notification: Notification) -> None:
        """Ask for a notification of a durable session again; see `Notification.refuse`."""
        self._thread.run(notification.refuse())

    @property
    def limits(self) -> Limits:
        """What a publication may be."""
        return self._client.limits

    @property
    def unacknowledged(self) -> int:
        """Publications that have a number and no answer yet."""
        return self._client.unacknowledged

    @property
    def rejected(self) -> int:
        """Publications that the cluster refused."""
        return self._client.rejected

    @property
    def dropped(self) -> Mapping[str, int]:
        """Distinct notifications that the broker dropped as this client did not keep up, by reason."""
        return self._client.dropped

    @property
    def disconnections(self) -> Mapping[str, int]:
        """How often the broker ended the connection on purpose, by code; see `Client.disconnections`."""
        return self._client.disconnections

    @property
    def not_kept(self) -> int:
        """Publications with `valid_for` for which the cluster had no room; see `Client.not_kept`."""
        return self._client.not_kept

    def publish(self, attributes: Mapping[str, Any], *, ack: Acknowledge = "matched", valid_for: float = 0) -> int:
        """Publish one reading and return its sequence; see `Client.publish`."""
        return self._thread.run(self._client.publish(attributes, ack=ack, valid_for=valid_for))

    def unpublish(self, sequence: int, *, instance: int | Literal["any"] | None = None) -> None:
        """End the validity of a publication; see `Client.unpublish`."""
        self._thread.run(self._client.unpublish(sequence, instance=instance))

    def publish_many(
        self, publications: Iterable[Mapping[str, Any]], *, ack: Acknowledge = "matched", valid_for: float = 0
    ) -> int:
        """Publish readings one after the other; see `Client.publish_many`.

        The iterable is read in the calling thread, and may block there: what it has given is sent meanwhile.
        """
        packer = AttributePacker(self._client.limits)
        crossing = _Crossing()
        future = self._thread.submit(self._client._publish_packed(crossing.batches(), ack, valid_for))
        future.add_done_callback(lambda _: crossing.abandon())
        try:
            for attributes in publications:
                if not crossing.put(packer.pack(attributes)):
                    break  # the other end has failed; its error is the result
        except Exception:
            crossing.end()
            # What came before is published all the same; that it could not be is the smaller trouble of the two.
            with contextlib.suppress(CancelledError):
                future.exception()
            raise
        except BaseException:
            future.cancel()
            raise
        crossing.end()
        try:
            return future.result()
        except CancelledError:
            raise _closed() from None
        except BaseException:
            future.cancel()
            raise

    def subscribe(
        self, filter: FilterLike, *, policy: Policy = "block", initial: Initial = "none"
    ) -> BlockingSubscription:
        """Open a subscription; see `Client.subscribe`."""
        opened = self._thread.run(self._client.subscribe(filter, policy=policy, initial=initial))
        return BlockingSubscription(self._thread, opened)

    def subscribe_many(
        self, filters: Iterable[FilterLike], *, policy: Policy = "block", initial: Initial = "none"
    ) -> BlockingSubscriptionGroup:
        """Open many subscriptions with one stream; see `Client.subscribe_many`."""
        group = self._thread.run(self._client.subscribe_many(list(filters), policy=policy, initial=initial))
        return BlockingSubscriptionGroup(self._thread, group)

    def notifications(self) -> BlockingStream[Stream]:
        """Open the stream of everything that this client receives; see `Client.notifications`."""

        async def open_stream() -> Stream:
            return self._client.notifications()

        return BlockingStream(self._thread, self._thread.run(open_stream()))

    def close(self, timeout_s: float = 5.0, *, end_session: bool = False) -> None:
        """Leave; see `Client.close`. Ends the client's thread. Closing again does nothing."""
        try:
            self._thread.run(self._client.close(timeout_s, end_session=end_session))
        except ConnectionLostError:
            return
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Blocking{self._client!r}"


class BlockingStream(Generic[StreamT]):
    """An iterator over notifications; each step waits for one. One reader at a time.

    Ends after `close`, of it or of the client; raises as `Stream` does.
    """

    def __init__(self, thread: _LoopThread, stream: StreamT) -> None:
        self._thread = thread
        self._stream = stream
        self._taken: deque[Notification] = deque()

    @property
    def dropped(self) -> Mapping[str, int]:
        """Notifications that the broker dropped because they were not read in time, by reason; see `Stream.dropped`."""
        return self._stream.dropped

    @property
    def closed(self) -> bool:
        """The stream gets nothing more; something may still be queued."""
        return self._stream.closed

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Notification:
        notification = self.get()
        if notification is None:
            raise StopIteration
        return notification

    def get(self, timeout_s: float | None = None) -> Notification | None:
        """Return the next notification; None at the end of the stream.

        Raises: TimeoutError when nothing comes within timeout_s; nothing is lost by it.
        """
        if not self._taken:
            try:
                self._taken.extend(self._thread.run(self._take(timeout_s)))
            except ConnectionLostError:
                if not self._thread.stopped:
                    raise
                # The loop is gone; what it had queued is read without it.
                self._thread.stop()
                self._taken.extend(self._stream._rest())
        return self._taken.popleft() if self._taken else None

    def close(self) -> None:
        """End the stream and throw away what is queued."""
        self._taken.clear()
        try:
            self._thread.run(self._stream.close())
        except ConnectionLostError:
            return  # the client is closed, and the stream with it

    async def _take(self, timeout_s: float | None) -> list[Notification]:
        async with asyncio.timeout(timeout_s):
            return await self._stream.take(TAKE_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Blocking{self._stream!r}"


class BlockingSubscription(BlockingStream[Subscription]):
    """The twin of `Subscription`."""

    @property
    def id(self) -> int:
        """The client's own number of the subscription."""
        return self._stream.id

    @property
    def filter(self) -> str:
        """The filter in force, as text."""
        return self._stream.filter

    @property
    def policy(self) -> Policy:
        """What the broker does when this stream is not read in time."""
        return self._stream.policy

    def update(self, filter: FilterLike) -> None:
        """Replace the filter in one step; see `Subscription.update`."""
        self._thread.run(self._stream.update(filter))


class BlockingSubscriptionGroup(BlockingStream[SubscriptionGroup]):
    """The twin of `SubscriptionGroup`."""

    @property
    def ids(self) -> tuple[int, ...]:
        """The client's own numbers of the subscriptions, in the order of the filters given."""
        return self._stream.ids

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters as text, in the order given."""
        return self._stream.filters

    @property
    def policy(self) -> Policy:
        """What the broker does when this stream is not read in time."""
        return self._stream.policy


class _Crossing:
    """Packed publications on their way from the caller's thread into the loop; bounded in number and bytes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._gathered: list[bytes] = []
        self._size = 0
        self._ended = False
        self._abandoned = False
        self._waiter: asyncio.Future[None] | None = None
        """The loop's side waits for something; set and taken under the lock, resolved in the loop."""

    def put(self, packed: bytes) -> bool:
        """Hand one over, waiting while too much lies here; False when nobody takes it any more."""
        with self._changed:
            while len(self._gathered) >= GATHERED_MAX or self._size >= GATHERED_BYTES_MAX:
                if self._abandoned:
                    return False
                self._changed.wait()
            if self._abandoned:
                return False
            self._gathered.append(packed)
            self._size += len(packed)
            self._wake()
            return True

    def end(self) -> None:
        """Nothing more comes."""
        with self._changed:
            self._ended = True
            if not self._abandoned:
                self._wake()

    def abandon(self) -> None:
        """Nobody takes it any more."""
        with self._changed:
            self._abandoned = True
            self._waiter = None
            self._changed.notify_all()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.get_loop().call_soon_threadsafe(_resolve, waiter)

    async def batches(self) -> AsyncIterator[list[bytes]]:
        """Give what has gathered, at most a frame's worth at a time, until the end."""
        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                batch = self._gathered[:CHUNK_COUNT_MAX]
                del self._gathered[:CHUNK_COUNT_MAX]
                self._size -= sum(map(len, batch))
                if not batch and self._ended:
                    return
                waiter = loop.create_future()
                if batch:
                    self._changed.notify_all()
                else:
                    self._waiter = waiter
            if batch:
                yield batch
            else:
                await waiter


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
