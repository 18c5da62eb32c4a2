"""The asyncio shell of a client: transports, tasks, timers and futures; what they mean is decided in `protocol.py`.

One task, the supervisor, keeps a connection: it tries the hosts in turn, with a delay that doubles from one failure
to the next and is drawn at random from its upper half, so that many clients do not come back at once.
Everything else happens in callbacks of the transport and in the callers' own tasks. What is to be written is
gathered until the loop's next turn, so concurrent calls of `publish` share a frame.

Cancelling any call is safe. A publication that has no number yet is not sent, one that has a number is sent; either
way no number is left out. A subscription that nobody holds is closed at the broker again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import secrets
import time
from collections.abc import AsyncIterable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from cluster.client.address import (
    DEFAULT_URL,
    SCHEME,
    Connector,
    address_connector,
    join_url,
    parse_address,
    parse_url,
    tcp_connector,
)
from cluster.client.attributes import AttributePacker, Limits
from cluster.client.delivery import Inbox
from cluster.client.filters import filter_text
from cluster.client.link import Link
from cluster.client.protocol import (
    Arrived,
    ClientProtocol,
    Durable,
    Ended,
    Moving,
    Opened,
    Outcome,
    Restored,
    publication_limits,
)
from cluster.client.publishing import CHUNK_BYTES_MAX, CHUNK_COUNT_MAX, Offer
from cluster.client.requests import Request
from cluster.client.streams import Initial, Notifications, Policy, Stream, Subscription, SubscriptionGroup, again
from cluster.errors import (
    ConfigError,
    ConnectionLostError,
    KittiwakeError,
    OverloadedError,
    RefusedError,
    RejectedError,
)
from cluster.frames import ACKNOWLEDGE_MATCHED, ACKNOWLEDGE_NONE, ACKNOWLEDGE_STORED, OVERLOADED, UNTIL_UNPUBLISHED

if TYPE_CHECKING:
    from cluster.client.filters import FilterLike

Acknowledge = Literal["none", "matched", "stored"]
_LEVELS: dict[str, int] = {"none": ACKNOWLEDGE_NONE, "matched": ACKNOWLEDGE_MATCHED, "stored": ACKNOWLEDGE_STORED}

ATTEMPT_TIMEOUT_S = 5.0
"""From opening the transport to Welcome; longer, and the next host is tried."""
NAMED_KEPT = 8
"""Addresses that the broker has named before, and not again since."""
STEADY_S = 10.0
"""A connection that lived this long was a good one: the next delay starts small again."""
FLUSH_TIMEOUT_S = 0.25
"""What `close` has written gets at least this long to leave the machine."""
FORMER_S = 60.0
"""How long what is underway at a former connection point is waited for; longer than that lets clients move."""
REDIRECTS_MAX = 3
"""How often in a row a client follows to where its durable session lives; more, and it waits as after a failure."""
REPORT_S = 0.1
"""What an application has taken is reported within this time, though it be little: the broker tells a slow reader
from one that has stopped."""


def connect(
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
) -> Client:
    """Return a client of the cluster at `url`, for `async with connect(...) as client:` or `await connect(...)`.

    url:       kittiwake://host:port[,host:port...]; the hosts are tried in turn.
    connector: opens the transport in place of TCP to the url's hosts.
    The other arguments are those of `Client`.
    Raises:    ConfigError at once for a bad argument; from the `await` what `Client` says.
    """
    connectors = [tcp_connector(host, port) for host, port in parse_url(url)]
    return Client(
        connectors if connector is None else [connector],
        url=url,
        client_id=client_id,
        receive_window=receive_window,
        reconnect=reconnect,
        connect_timeout_s=connect_timeout_s,
        backoff_s=backoff_s,
        durable=durable,
        expires=expires,
        max_deliver=max_deliver,
        manual_ack=manual_ack,
        rng=rng,
        resolve=address_connector if connector is None else lambda _: connector,
        instance=instance,
        first_sequence=first_sequence,
    )


class Client:
    """One publisher and subscriber. `await` or `async with` connects it; for use in the event loop where that was.

    connectors:        tried in turn, from one attempt to the next.
    client_id:         1 to 128 printable bytes, the publisher's name that subscribers see; drawn at random if None. The
                       newest connection of an id wins, the older client ends with the code `taken_over`.
    receive_window:    notifications that may lie in this client unread.
    reconnect:         renew a connection that was lost. When False, losing it ends the client.
    connect_timeout_s: how long to keep trying for the first connection.
    backoff_s:         (first, largest) delay between attempts.
    durable:           the session outlives the connection, the program, and a crash of the broker: its subscriptions
                       and what they match are kept for this client_id, which must be given. `held` says what is left
                       of an earlier program; `subscribe` with the same filter and policy takes it up.
    expires:           a durable session ends when nobody has been connected to it for so many seconds; None is the
                       broker's choice for a new session (3600), and no change for one that is there.
    max_deliver:       a notification that was delivered so often and never acknowledged goes to the broker's dead
                       letters; None as for `expires` (20).
    manual_ack:        notifications are acknowledged by `Notification.ack` alone, and not by going on to the next.
    rng:               the source of the jitter.
    url:               what messages call the other side.
    resolve:           opens the transport to an address (`host:port`) that the broker names when the client is to move.
    instance, first_sequence: for a publisher that goes on with the work of a process that has died. The cluster takes
                       each (client_id, instance, sequence) once. So who keeps these three (`instance` and
                       `acknowledged` tell them) and publishes again, in the same order, everything from
                       `first_sequence` on, the first that may not be acknowledged, doubles nothing and loses nothing.
                       Without them a new instance is drawn, and what the former life sent may come once more.
                       One process at a time: two of one instance take the connection from each other, again and again.
    Raises: ConfigError for a bad argument; from the `await` ConnectionLostError when there is no connection
            in time (code `unreachable`), or the broker refuses this client (with its code).
    """

    def __init__(
        self,
        connectors: Sequence[Connector],
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
        rng: random.Random | None = None,
        url: str = "the cluster",
        resolve: Callable[[str], Connector] = address_connector,
        instance: int | None = None,
        first_sequence: int = 1,
    ) -> None:
        for name, value in (("expires", expires), ("max_deliver", max_deliver)):
            if value is not None and not 1 <= value < 2**31:
                raise ConfigError(f"{name} is {value}, it must be from 1 to 2**31 - 1")
        if durable and client_id is None:
            raise ConfigError("a durable session needs a client_id, by which it is found again")
        if not durable and (expires is not None or max_deliver is not None or manual_ack):
            raise ConfigError("expires, max_deliver and manual_ack are for durable sessions; durable is False")
        if client_id is None:
            client_id = f"client-{secrets.token_hex(8)}"
        if not client_id.isprintable() or not 1 <= len(client_id.encode(errors="replace")) <= 128:
            raise ConfigError(f"client_id is {client_id!r}, it must be 1 to 128 printable bytes")
        if not 1 <= receive_window < 2**31:
            raise ConfigError(f"receive_window is {receive_window}, it must be from 1 to 2**31 - 1")
        if not 0 <= backoff_s[0] <= backoff_s[1]:
            raise ConfigError(f"backoff_s is {backoff_s}, it must be a smaller and a larger delay")
        if instance is not None and not 0 <= instance < 1 << 64:
            raise ConfigError(f"instance is {instance}, it must be from 0 to 2**64 - 1")
        if not 1 <= first_sequence < 1 << 62:
            raise ConfigError(f"first_sequence is {first_sequence}, it must be from 1 to 2**62 - 1")
        if not connectors:
            raise ConfigError("connectors is empty, there is no way to the cluster")
        self._url = url
        self._given = self._connectors = connectors
        self._reconnect = reconnect
        self._connect_timeout_s = connect_timeout_s
        self._backoff_s = backoff_s
        self._rng = rng if rng is not None else random.Random()
        if instance is None:
            instance = secrets.randbits(63)
        session = Durable(expires or 0, max_deliver or 0, manual_ack) if durable else None
        self._protocol = ClientProtocol(client_id, instance, receive_window, first_sequence, session)
        self._protocol.positions_changed = self._acknowledged
        self._publishing = self._protocol.publishing
        self._packer = AttributePacker()
        self._streams: dict[Inbox, Stream] = {}
        self._link: Link | None = None
        """The newest attempt to connect; None before the first and after the last."""
        self._connections = 0
        self._first: asyncio.Future[None] | None = None
        """Done when the first connection is open, or will never be."""
        self._supervisor: asyncio.Task[None] | None = None
        self._failure: ConnectionLostError | None = None
        """Why the client has ended."""
        self._last_trouble: str = "no attempt was made"
        self._leaving = False
        self._drained: asyncio.Future[None] | None = None
        self._flush_handle: asyncio.Handle | None = None
        self._report_handle: asyncio.TimerHandle | None = None
        self._acknowledging: asyncio.Handle | None = None
        self._resolve = resolve
        self._addresses: list[str] = []
        """Where the broker has asked this client to move."""
        self._named: list[str] = []
        """What it has named last: where to move, or where the durable session lives."""
        self._former_named: list[str] = []
        """What it has named before, the latest first."""
        self._former: Link | None = None
        """The connection that it moves away from, while something may be underway there."""
        self._former_handle: asyncio.TimerHandle | None = None
        self._redirected = ""
        """Where the broker has said that the durable session lives, and where nobody was asked since."""

    # What it is --------------------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """The name that subscribers see as the publisher."""
        return self._protocol.client_id

    @property
    def url(self) -> str:
        """Where to connect the next time, in another program too: what the broker has named last, when this client had
        to move or its durable session had moved, then what `connect` was given, then what was named before. As it was
        given, as long as the broker has named nothing."""
        if not self._named:
            return self._url
        given = parse_url(self._url) if self._url.startswith(SCHEME) else []  # else the connector knows the way
        former = map(parse_address, self._former_named)
        return join_url([*map(parse_address, self._named), *given, *former])

    @property
    def instance(self) -> int:
        """What tells this publisher's life from others of the same client_id."""
        return self._protocol.instance

    @property
    def acknowledged(self) -> int:
        """The number up to which every publication has its answer; the first one has number `first_sequence`.

        Of what was published with "none" the broker says so up to 50 ms later.
        """
        return self._publishing.acknowledged

    @property
    def connected(self) -> bool:
        """There is a connection at this moment."""
        return self._protocol.state == "open"

    @property
    def closed(self) -> bool:
        """The client has ended, on purpose or not."""
        return self._failure is not None

    @property
    def reconnections(self) -> int:
        """How many times the connection was renewed."""
        return max(0, self._connections - 1)

    @property
    def durable(self) -> bool:
        """The session outlives the connection."""
        return self._protocol.durable is not None

    @property
    def sessions_lost(self) -> int:
        """Durable sessions that were there, had ended when this client came again, and were begun anew: their
        subscriptions were restored, and what had been owed was lost. Away for longer than `expires`, as a rule."""
        return max(0, self._protocol.sessions - 1)

    @property
    def resumed(self) -> bool:
        """The present durable session, or the last one, was there before the present connection began."""
        welcome = self._protocol.welcome
        return welcome is not None and welcome.resumed

    @property
    def held(self) -> Mapping[int, str]:
        """Subscriptions of the durable session that an earlier program has opened and this one has not taken up: id ->
        filter. What they match waits within the receive window: take them up, or take them up and close them."""
        return {number: filter for number, (filter, _) in self._protocol.left_behind.items()}

    @property
    def limits(self) -> Limits:
        """What a publication may be, as the present connection's broker said, or the last one's."""
        return self._packer.limits

    @property
    def unacknowledged(self) -> int:
        """Publications that have a number and no answer yet, of whatever level."""
        return self._publishing.unacknowledged

    @property
    def rejected(self) -> int:
        """Publications that the cluster refused; those with `ack="none"` are counted here alone."""
        return self._publishing.rejected_count

    @property
    def not_kept(self) -> int:
        """Publications with `valid_for` that the cluster delivered and for which it had no room to keep them."""
        return self._publishing.not_kept_count

    @property
    def dropped(self) -> Mapping[str, int]:
        """Distinct notifications that the broker dropped as this client did not keep up, by reason. A live view."""
        return MappingProxyType(self._protocol.delivery.dropped)

    @property
    def disconnections(self) -> Mapping[str, int]:
        """How often the broker ended the connection on purpose, by the code of its Bye. A live view.

        "slow" is for a client that did not keep up: a subscription with policy "disconnect" whose queue was full, one
        with "block" that took nothing for long, or a socket that was not read.
        """
        return MappingProxyType(self._protocol.byes)

    def __repr__(self) -> str:
        state = "closed" if self.closed else self._protocol.state
        return f"Client({self._url!r}, client_id={self.client_id!r}, {state})"

    # Publishing --------------------------------------------------------------------------------------------------

    async def publish(
        self, attributes: Mapping[str, Any], *, ack: Acknowledge = "matched", valid_for: float = 0
    ) -> int:
        """Publish one reading; return its sequence, by which `unpublish` knows it.

        Shape:   name -> bool, int, float, str or None; nested mappings are flattened with dots.
        Returns: with "matched", when it is matched and handed to every connection point with a subscriber for it; with
                 "stored", when besides what matched (or all, as configured) is in the cluster's matched output, on
                 disk; with "none", when there was room in the window and it has its place in what is written next.
        valid_for: seconds for which it is also given to new subscriptions with initial="valid"; math.inf for until it
                 is unpublished, 0 for not at all. Rounded to milliseconds.
        Waits:   while the window is used up or the connection is renewed.
        Raises:  RejectedError, from here for what can't be published, nothing being sent; or from the cluster, also
                 when it was delivered to those who listen and there was no room to keep it as valid. For "none" the
                 latter is only counted (`rejected`, `not_kept`). ValueError for a bad argument.
                 With "stored": OverloadedError where the disk has no room: it was delivered, and is not stored;
                 RefusedError where the cluster has no matched output.
                 ConnectionLostError when the client has ended: the publication may have been delivered or not.
        """
        level = self._check_level(ack)
        valid_for_ms = _valid_for_ms(valid_for)
        packed = self._packer.pack(attributes)
        if self._failure is not None or self._leaving:
            raise self._lost()
        offer = Offer((packed,), level, None, valid_for_ms, time.time_ns() // 1000)
        admitted = self._publishing.offer(offer)
        if admitted:
            self._flush_publications()
            if level == ACKNOWLEDGE_NONE:
                return offer.first_sequence
        future = asyncio.get_running_loop().create_future()

        def changed(offer: Offer) -> None:
            if (offer.settled or offer.lost) and not future.done():
                future.set_result(None)

        offer.changed = changed
        try:
            await future
        except asyncio.CancelledError:
            self._withdraw(offer)
            raise
        if offer.lost:
            raise self._lost()
        if offer.rejected:
            raise _rejected(*offer.rejected[0])
        return offer.first_sequence

    def _check_level(self, ack: str) -> int:
        level = _level(ack)
        welcome = self._protocol.welcome
        if level == ACKNOWLEDGE_STORED and welcome is not None and not welcome.stores:
            raise RefusedError("ack is 'stored', and this cluster has no matched output (output.path)", code="stored")
        return level

    async def unpublish(self, sequence: int, *, instance: int | Literal["any"] | None = None) -> None:
        """End the validity of a publication of this client id; nothing happens to one that is not valid.

        sequence: as `publish` returned it. instance: of the client that published it (`Notification.instance`), "any"
                  for whichever; None for this one.
        Returns:  when no connection point has it any more: a subscription opened after this is not given it.
        Raises:   ConnectionLostError when the client has ended. Cancelling this does not take it back.
        """
        self._check_open()
        if not 0 < sequence < 1 << 62:
            raise ValueError(f"sequence is {sequence}, it must be one that publish has returned")
        future = asyncio.get_running_loop().create_future()

        def settled(request: Request) -> None:
            if not future.done():
                future.set_result(None)

        own = self._protocol.instance if instance is None else instance
        request = self._protocol.requests.unpublish(None if own == "any" else own, sequence, settled)
        self._flush_soon()
        await future
        self._raise_unless_done(request)

    async def publish_many(
        self,
        publications: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
        *,
        ack: Acknowledge = "matched",
        valid_for: float = 0,
    ) -> int:
        """Publish readings one after the other without waiting for each; return how many.

        valid_for: of each, as in `publish`.
        An ordinary iterable is read in batches, as fast as the window allows; an asynchronous one is read one by one,
        and what it has given is sent whenever it waits.
        Returns: as `publish`, when that is so for all of them.
        Raises:  RejectedError: from here at the first that can't be published, which ends the reading; from
                 the cluster at the end, for the first one refused, saying how many were. What the iterable raises
                 passes through. In all these cases everything before is published.
                 ConnectionLostError when the client has ended.
        """
        progress = _Progress(self, self._check_level(ack), _valid_for_ms(valid_for))
        try:
            if isinstance(publications, AsyncIterable):
                async for attributes in publications:
                    await progress.add([self._packer.pack(attributes)])
            else:
                iterator = iter(publications)
                more = True
                while more:
                    batch, more, trouble = self._pack_batch(iterator)
                    if batch:
                        await progress.add(batch)
                    if trouble is not None:
                        raise trouble
                    # A window that never fills would keep the answers from being read.
                    await asyncio.sleep(0)
        except Exception:
            await progress.settle()
            raise
        await progress.settle()
        progress.raise_rejected()
        return progress.count

    def _pack_batch(self, publications: Iterator[Mapping[str, Any]]) -> tuple[list[bytes], bool, Exception | None]:
        """Return one frame's worth, whether there may be more, and what went wrong after it."""
        publishing = self._publishing
        room = min(CHUNK_COUNT_MAX, max(1, publishing.window // 4))
        room_bytes = min(CHUNK_BYTES_MAX, max(1, publishing.window_bytes // 4))
        pack = self._packer.pack
        batch: list[bytes] = []
        try:
            for attributes in publications:
                packed = pack(attributes)
                batch.append(packed)
                room_bytes -= len(packed)
                if len(batch) >= room or room_bytes <= 0:
                    return batch, True, None
        except Exception as error:
            return batch, False, error
        return batch, False, None

    async def _publish_packed(self, batches: AsyncIterable[list[bytes]], ack: Acknowledge, valid_for: float = 0) -> int:
        """As publish_many, for publications that were packed elsewhere."""
        progress = _Progress(self, self._check_level(ack), _valid_for_ms(valid_for))
        async for batch in batches:
            await progress.add(batch)
        await progress.settle()
        progress.raise_rejected()
        return progress.count

    def _withdraw(self, offer: Offer) -> None:
        self._progressed(self._publishing.withdraw(offer))
        self._flush_soon()

    # Subscribing -------------------------------------------------------------------------------------------------

    async def subscribe(
        self, filter: FilterLike, *, policy: Policy = "block", initial: Initial = "none"
    ) -> Subscription:
        """Open a subscription; everything published after this returns is matched.

        filter: text, JSON form, or Python expression.
        initial: "valid" to be given first what was published with `valid_for` and is valid now, each publication once,
                each publisher's in its order; then what comes live. `Notification.initial` tells the one from the
                other. After a lost connection it is given what is valid then, without what it has had.
        policy: what the broker does when this client does not keep up. It holds a queue for each client, of
                `flow.queue_messages` and `flow.queue_bytes`, for what has no place in the receive window.
                "block"                      slows the publishers down
                "drop_oldest"                when the queue is full, gives up what has waited longest
                "drop_newest"                when the queue is full, gives up what comes
                "latest_per_key(attribute)"  keeps only the newest that waits for each value of the attribute, and if
                                             the queue is full all the same, gives up what has waited longest
                "disconnect"                 when the queue is full, ends the connection; the client reconnects and
                                             has missed what came in between: see `disconnections`
                What is given up is counted in `dropped`. Where several subscriptions match, the strictest policy
                decides; they are, ascending, latest_per_key, drop_oldest, drop_newest, block, disconnect.
        Of a durable session, a subscription in `held` with this filter and policy is taken up in place of a new one; it
        knows "block" and "drop_oldest" only.
        Raises: FilterError, PolicyError, RefusedError, ConnectionLostError. Cancelled, it leaves no subscription
                behind.
        """
        text = filter_text(filter)
        subscription = Subscription(self, policy)
        await self._open(subscription, [text], policy, initial)
        return subscription

    async def take_up(self, id: int) -> Subscription:
        """Return the subscription of a durable session that an earlier program has opened; see `held`.

        Raises: RefusedError where none of this id is held; ConnectionLostError.
        """
        self._check_open()
        held = self._protocol.left_behind.get(id)
        if held is None:
            raise RefusedError(f"subscription {id} is not among those that were left behind", code="not_held")
        filter, policy = held
        subscription = Subscription(self, policy)
        subscription._filters = [filter]
        subscription._numbers = (id,)
        self._streams[subscription._inbox] = subscription
        self._protocol.take_up((id,), subscription._inbox)
        return subscription

    async def subscribe_many(
        self, filters: Iterable[FilterLike], *, policy: Policy = "block", initial: Initial = "none"
    ) -> SubscriptionGroup:
        """Open many subscriptions with one stream, all or none; the requests are pipelined.

        initial: as in `subscribe`, for each of them: what several match is given for each.
        Raises: as `subscribe`; the refusal of the first filter that was refused, whose place the reason tells.
        """
        texts = [filter_text(filter) for filter in filters]
        group = SubscriptionGroup(self, policy)
        await self._open(group, texts, policy, initial)
        return group

    def notifications(self) -> Notifications:
        """Open the stream of everything that this client receives.

        While it is open, notifications go to it and not to the subscriptions' own streams.
        Raises: RuntimeError when one is open already; ConnectionLostError.
        """
        self._check_open()
        if self._protocol.delivery.wide is not None:
            raise RuntimeError("the client-wide stream is open already")
        stream = Notifications(self)
        self._protocol.delivery.open_wide(stream._inbox)
        self._streams[stream._inbox] = stream
        return stream

    async def _open(
        self, stream: Subscription | SubscriptionGroup, filters: list[str], policy: Policy, initial: Initial
    ) -> None:
        self._check_open()
        if initial not in ("none", "valid"):
            raise ValueError(f"initial is {initial!r}, it must be 'none' or 'valid'")
        valid = initial == "valid"
        protocol = self._protocol
        future = asyncio.get_running_loop().create_future()
        unanswered = len(filters)

        def settled(request: Request) -> None:
            nonlocal unanswered
            unanswered -= 1
            if unanswered == 0 and not future.done():
                future.set_result(None)

        stream._filters = filters
        self._streams[stream._inbox] = stream
        opened: list[Request] = []
        numbers: list[int] = []
        left_behind = {(filter, kept): number for number, (filter, kept) in protocol.left_behind.items()}
        taken_up: list[int] = []
        try:
            for text in filters:
                known = left_behind.pop((text, policy), None) if left_behind and not valid else None
                if known is not None:
                    unanswered -= 1
                    taken_up.append(known)
                    numbers.append(known)
                    continue
                request = protocol.requests.open(text, policy, settled, valid=valid)
                protocol.delivery.open(request.number, stream._inbox, valid=valid)
                opened.append(request)
                numbers.append(request.number)
            stream._numbers = tuple(numbers)
            if taken_up:
                protocol.take_up(taken_up, stream._inbox)
            self._flush_soon()
            if opened:
                await future
            for request in opened:
                if len(filters) == 1 or request.error is None:
                    self._raise_unless_done(request)
                else:
                    raise _at_place(request.error, numbers.index(request.number))
        except BaseException:
            stream._numbers = tuple(numbers)
            stream._let_go()
            raise

    def _raise_unless_done(self, request: Request) -> None:
        if request.lost:
            raise self._lost()
        if request.error is not None:
            raise request.error

    def _discard(self, inbox: Inbox) -> None:
        """Send nothing more to the inbox and release its credit."""
        self._protocol.delivery.close(inbox)
        self._streams.pop(inbox, None)
        self._flush_soon()

    # The end -----------------------------------------------------------------------------------------------------

    async def close(self, timeout_s: float = 5.0, *, end_session: bool = False) -> None:
        """Leave: send what was published, wait for the acknowledgements asked for, say goodbye.

        end_session: a durable session ends, with its subscriptions and all it is owed. Without a connection at this
                     moment it stays until it expires. A session that is not durable always ends.
        timeout_s: how long to wait for these; what is not acknowledged then ends with ConnectionLostError.
        Streams end after what they have queued. Closing again waits for the same end. Cancelled, it leaves at once.
        """
        if self._supervisor is None:
            self._fail(ConnectionLostError("the client is closed", reason_code="closed"))
            return
        self._leaving = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        link = self._link
        try:
            self._flush()
            if not self.closed and not self._publishing.drained:
                if self._drained is None:
                    self._drained = loop.create_future()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await asyncio.shield(self._drained)
        finally:
            link = self._link if self._link is not None else link
            self._finish(
                ConnectionLostError("the client is closed", reason_code="closed"), goodbye=True, end_session=end_session
            )
        if link is not None:
            try:
                async with asyncio.timeout_at(max(deadline, loop.time() + FLUSH_TIMEOUT_S)):
                    await asyncio.shield(link.gone)
            except TimeoutError:
                link.abort()
        await asyncio.wait([self._supervisor])

    def __await__(self) -> Generator[Any, Any, Client]:
        return self._start().__await__()

    async def __aenter__(self) -> Client:
        return await self._start()

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._failure is not None or self._leaving:
            raise self._lost()

    def _lost(self) -> KittiwakeError:
        if self._failure is None:
            return ConnectionLostError("the client is closing", reason_code="closed")
        return again(self._failure)

    def _fail(self, error: ConnectionLostError) -> None:
        """End the client for good: every call that waits and every stream learns why."""
        if self._failure is not None:
            return
        self._failure = error
        offers, requests = self._protocol.abandon()
        for handle in (self._flush_handle, self._report_handle, self._former_handle, self._acknowledging):
            if handle is not None:
                handle.cancel()
        for offer in offers:
            if offer.changed is not None:
                offer.changed(offer)
        for request in requests:
            if request.settled is not None:
                request.settled(request)
        former, self._former = self._former, None
        if former is not None:
            former.end(error.reason, flush=True)
        streams = list(self._streams.values())
        self._streams.clear()
        for stream in streams:
            stream._finish("closed" if error.code == "closed" else error)
        for future in (self._drained, self._first):
            if future is not None and not future.done():
                future.set_result(None)

    def _finish(self, error: ConnectionLostError, *, goodbye: bool = False, end_session: bool = False) -> None:
        """As `_fail`, and end the connection and the supervisor too."""
        link, self._link = self._link, None
        if goodbye and self._failure is None and link is not None:
            self._protocol.leave(end_session=end_session)
            frames = self._protocol.take_output()
            if frames:
                link.write(frames)
        former = self._former
        if former is not None and self._protocol.former is not None:
            self._protocol.former.leave()
            self._write_former()
        self._fail(error)
        if link is not None:
            link.end(error.reason, flush=True)
        if self._supervisor is not None and self._supervisor is not asyncio.current_task():
            self._supervisor.cancel()

    # Connections -------------------------------------------------------------------------------------------------

    async def _start(self) -> Client:
        """Connect, once."""
        if self._supervisor is None and not self.closed:
            loop = asyncio.get_running_loop()
            self._first = loop.create_future()
            self._supervisor = loop.create_task(self._supervise(), name=f"kittiwake client {self.client_id}")
            self._supervisor.add_done_callback(self._supervisor_done)
            timeout_s = self._connect_timeout_s
            try:
                async with asyncio.timeout(timeout_s):
                    await asyncio.shield(self._first)
            except TimeoutError:
                reason = f"no connection to {self._url} within {timeout_s:g} s: {self._last_trouble}"
                self._finish(ConnectionLostError(reason, reason_code="unreachable"))
            except BaseException:
                self._finish(ConnectionLostError("the client is closed", reason_code="closed"))
                raise
            if self._failure is not None:
                await asyncio.wait([self._supervisor])
        elif self._first is not None:
            await asyncio.shield(self._first)
        if self._failure is not None:
            raise self._lost()
        return self

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        failures = attempts = 0
        while True:
            connector = self._connectors[attempts % len(self._connectors)]
            attempts += 1
            began = loop.time()
            opened, self._last_trouble = await self._connection(connector)
            for _ in range(REDIRECTS_MAX):
                if not self._redirected or self.closed:
                    break
                # The session's home is the first to be asked from now on, and again at once.
                named, self._redirected = self._redirected, ""
                self._learn([named])
                attempts = 1
                opened, self._last_trouble = await self._connection(self._connectors[0])
            self._redirected = ""
            while self._addresses:
                # Asked to move: there first, and at once.
                opened, self._last_trouble = await self._move()
            if self.closed:
                return
            if opened and not self._reconnect:
                self._fail(ConnectionLostError(self._last_trouble))
                return
            if opened and loop.time() - began >= STEADY_S:
                failures = 0
            if opened and self.durable:
                attempts -= 1  # where it lives is where to look first
            first, largest = self._backoff_s
            delay = min(largest, first * 2.0 ** min(failures, 30))
            failures += 1
            await asyncio.sleep(delay * (0.5 + self._rng.random() / 2))

    async def _move(self) -> tuple[bool, str]:
        """Hold a connection to one of the addresses that the broker has named; return as `_connection`."""
        addresses, self._addresses = self._addresses, []
        opened, trouble = False, self._last_trouble
        for address in addresses:
            opened, trouble = await self._connection(self._resolve(address))
            if opened or self.closed:
                break
        return opened, trouble

    async def _connection(self, connector: Connector) -> tuple[bool, str]:
        """Hold one connection for as long as it lasts; return whether the login succeeded, and why it ended."""
        self._link = link = Link(self)
        try:
            try:
                async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                    await connector(lambda: link)
                    opened = await link.opened
            except TimeoutError:
                return False, f"no answer within {ATTEMPT_TIMEOUT_S:g} s"
            except Exception as error:
                # OSError as a rule; whatever else a stranger's connector raises is trouble of this attempt, too.
                return False, str(error) or repr(error)
            reason = await link.ended
            return opened, reason
        finally:
            # On every way out, cancellation by close() alone left to flush its goodbye.
            if self._failure is None and not link.parted:
                link.end("the attempt was given up")

    def _broken(self, error: BaseException) -> None:
        """A broken invariant: the machine is finished, whoever waits is told, and the loop's handler logs it."""
        failure = ConnectionLostError(f"a mistake in the client: {error!r}", reason_code="internal")
        failure.__cause__ = error
        self._finish(failure)

    def _supervisor_done(self, supervisor: asyncio.Task[None]) -> None:
        if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
            self._broken(error)

    def _link_made(self, link: Link) -> None:
        assert link is self._link, "an attempt began before the last one was over"
        self._protocol.connection_made()
        self._flush()

    def _link_ended(self, link: Link) -> None:
        if link is self._former:
            self._former_over()
        elif link is self._link and self._failure is None:
            self._protocol.connection_lost()

    def _link_received(self, link: Link, data: bytes) -> None:
        if link is self._former:
            self._former_received(link, data)
            return
        if link is not self._link:
            return
        try:
            for outcome in self._protocol.receive(data):
                self._perform(link, outcome)
            self._flush()
        except Exception as error:
            self._broken(error)
            raise

    def _perform(self, link: Link, outcome: Outcome) -> None:
        if isinstance(outcome, Arrived):
            self._arrived(outcome.inboxes)
        elif isinstance(outcome, Moving):
            if self._former is None and not self._leaving and self._reconnect:
                self._part(link, outcome.addresses)
        elif isinstance(outcome, Restored):
            if self._protocol.former is not None:
                self._protocol.former.confirm()
                self._write_former()
        elif isinstance(outcome, Offer):
            self._progressed((outcome,))
        elif isinstance(outcome, Request):
            if outcome.settled is not None:
                outcome.settled(outcome)
            if outcome.kind == "restore" and outcome.error is not None:
                self._not_restored(outcome.number, outcome.error)
        elif isinstance(outcome, Opened):
            self._packer.limits = publication_limits(outcome.welcome)
            self._connections += 1
            link.start_heartbeat(outcome.welcome.heartbeat_ms / 1000)
            if not link.opened.done():
                link.opened.set_result(True)
            if self._first is not None and not self._first.done():
                self._first.set_result(None)
        else:
            self._ended(link, outcome)

    def _learn(self, addresses: list[str]) -> None:
        """From now on these are ways to the cluster as well; the ones that the application knows may end here."""
        former = dict.fromkeys(one for one in (*self._named, *self._former_named) if one not in addresses)
        self._named, self._former_named = addresses, list(former)[:NAMED_KEPT]
        self._connectors = [
            *map(self._resolve, self._named),
            *self._given,
            *map(self._resolve, self._former_named),
        ]

    # Moving ------------------------------------------------------------------------------------------------------

    def _part(self, link: Link, addresses: list[str]) -> None:
        """Leave the connection to what is underway there, and go on at one of the addresses."""
        self._addresses = addresses
        self._learn(addresses)
        self._former = link
        self._protocol.part()
        self._link = None
        link.part()
        loop = asyncio.get_running_loop()
        self._former_handle = loop.call_later(FORMER_S, link.end, "what was underway took too long")

    def _former_received(self, link: Link, data: bytes) -> None:
        former = self._protocol.former
        assert former is not None, "a former connection without its session"
        self._arrived(former.receive(data))
        self._write_former()
        if former.over:
            link.end("the move is over")

    def _write_former(self) -> None:
        former = self._protocol.former
        if former is not None and self._former is not None:
            frames = former.take_output()
            if frames:
                self._former.write(frames)

    def _former_over(self) -> None:
        """Nothing more comes from there: deliver what the new connection has brought meanwhile."""
        self._former = None
        if self._former_handle is not None:
            self._former_handle.cancel()
        if self._protocol.former is None or self._failure is not None:
            return
        self._arrived(self._protocol.settle())
        self._flush_soon()
        asked, link = self._protocol.asked, self._link
        if asked and link is not None and self._protocol.state == "open":
            self._part(link, asked)

    def _arrived(self, inboxes: Iterable[Inbox]) -> None:
        for inbox in inboxes:
            stream = self._streams.get(inbox)
            if stream is not None:
                stream._wake()
        self._report_later()

    def _progressed(self, offers: Iterable[Offer]) -> None:
        for offer in offers:
            if offer.changed is not None:
                offer.changed(offer)

    def _not_restored(self, number: int, error: KittiwakeError) -> None:
        """End the stream of a subscription that the broker would not take up again."""
        inbox = self._protocol.delivery.inbox_of(number)
        stream = self._streams.pop(inbox, None) if inbox is not None else None
        if isinstance(stream, Subscription | SubscriptionGroup):
            stream._lose(error)

    def _ended(self, link: Link, outcome: Ended) -> None:
        if not outcome.reconnect:
            self._fail(ConnectionLostError(outcome.reason, reason_code=outcome.code))
        self._redirected = outcome.address
        link.end(f"{outcome.code}: {outcome.reason}")

    # Output ------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        if self._link is not None:
            frames = self._protocol.take_output()
            if frames:
                self._link.write(frames)
        if self._drained is not None and not self._drained.done() and self._publishing.drained:
            self._drained.set_result(None)

    def _flush_soon(self) -> None:
        """Write at the loop's next turn, together with whatever else comes up until then."""
        if self._flush_handle is None and self._failure is None:
            self._flush_handle = asyncio.get_running_loop().call_soon(self._flush)

    def _flush_publications(self) -> None:
        if self._publishing.waiting_bytes >= CHUNK_BYTES_MAX:
            self._flush()
        else:
            self._flush_soon()

    def _acknowledged(self) -> None:
        """The application has acknowledged or refused something: say so at the loop's next turn."""
        if self._acknowledging is None and self._failure is None:
            self._acknowledging = asyncio.get_running_loop().call_soon(self._report_now)

    def _report_now(self) -> None:
        self._acknowledging = None
        self._protocol.report_consumed()
        self._flush()

    def _report_later(self) -> None:
        """While there is something to read, report now and then what was read."""
        if self._report_handle is None and self._failure is None:
            self._report_handle = asyncio.get_running_loop().call_later(REPORT_S, self._report)

    def _report(self) -> None:
        self._report_handle = None
        self._protocol.report_consumed()
        self._flush()
        if not self._protocol.delivery.at_rest:
            self._report_later()


class _Progress:
    """One call of publish_many: what it has offered and has not heard of."""

    def __init__(self, client: Client, level: int, valid_for_ms: int) -> None:
        self._client = client
        self._level = level
        self._valid_for_ms = valid_for_ms
        self._unsettled = 0
        self._lost = False
        self._waiter: asyncio.Future[None] | None = None
        self._waits_for: Callable[[], bool] = lambda: True
        self._rejected: list[tuple[int, str]] = []
        self.count = 0

    async def add(self, packed: list[bytes]) -> None:
        """Offer a batch; return when it has its numbers."""
        client = self._client
        client._check_open()
        offer = Offer(packed, self._level, self._changed, self._valid_for_ms, time.time_ns() // 1000)
        self.count += len(packed)
        if client._publishing.offer(offer):
            if not offer.settled:
                self._unsettled += 1
            client._flush_publications()
            return
        self._unsettled += 1
        try:
            await self._wait(lambda: offer.first_sequence > 0)
        except BaseException:
            self._unsettled -= 1
            client._withdraw(offer)
            raise

    async def settle(self) -> None:
        """Wait until everything offered is settled."""
        await self._wait(lambda: self._unsettled == 0)

    def raise_rejected(self) -> None:
        """Raise for the first refused by the cluster, if any was."""
        if self._rejected:
            sequence, reason = self._rejected[0]
            if len(self._rejected) > 1:
                reason = f"{len(self._rejected)} of {self.count} publications, the first: {reason}"
            raise _rejected(sequence, reason, overloaded=self._rejected[0][1].startswith(OVERLOADED))

    async def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._lost:
                raise self._client._lost()
            self._waits_for = condition
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _changed(self, offer: Offer) -> None:
        if offer.settled:
            self._unsettled -= 1
            self._rejected += offer.rejected
        self._lost = self._lost or offer.lost
        waiter = self._waiter
        if waiter is not None and not waiter.done() and (self._lost or self._waits_for()):
            waiter.set_result(None)


def _rejected(sequence: int, reason: str, *, overloaded: bool = False) -> RejectedError:
    kind = OverloadedError if overloaded or reason.startswith(OVERLOADED) else RejectedError
    return kind(reason, sequence=sequence)


def _level(ack: str) -> int:
    level = _LEVELS.get(ack)
    if level is None:
        raise ValueError(f"ack is {ack!r}, it must be one of {', '.join(map(repr, _LEVELS))}")
    return level


def _valid_for_ms(seconds: float) -> int:
    if seconds == math.inf:
        return UNTIL_UNPUBLISHED
    if not 0 <= seconds < 1 << 40:
        raise ValueError(f"valid_for is {seconds!r}, it must be a number of seconds, or math.inf for until unpublished")
    return max(round(seconds * 1000), 1) if seconds else 0


def _at_place(error: KittiwakeError, place: int) -> KittiwakeError:
    """Return the refusal of one filter of many, saying which."""
    fresh = again(error)
    fresh.args = (f"filter {place} of the group: {error}",)
    return fresh
