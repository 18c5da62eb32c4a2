"""What a client and its connection point say to each other.

On the wire a frame is a little-endian uint32 length and that many bytes of msgpack: an array whose first element is
the frame's tag. `codec.py` turns one into the other; nothing is ever decoded without a type.

Conversation:

    client                                connection point
    Hello                            ->
                                     <-   Welcome                   (or Bye, and the connection closes)
    Publish(first_sequence, ...)     ->
                                     <-   Acknowledged(upto, window, ...)   cumulative; also the publisher's credit
    Subscribe / Unsubscribe          ->
                                     <-   Done(request) or Refused(request, ...)
                                     <-   Notify(...)               many notifications in columns
    Consumed(count)                  ->                             cumulative; the subscriber's credit
    Settle(...)                      ->                             of a durable session: single notifications
                                     <-   Ping                       at the server's pace; it ends a silent connection
    Pong                             ->
                                     <-   NotifyValid(...)          what was valid when a subscription was opened
    Unpublish                        ->
                                     <-   Done(request)
    Goodbye                          ->                             a clean end

Bulk travels as columns: little-endian arrays inside `bytes`, so that neither side pays for an object per
publication. A publication is one msgpack map, attribute name -> bool, int64 or uint64, finite float64, str or nil;
its bytes are never touched between the publisher and the matchers.
"""

from __future__ import annotations

import msgspec

VERSION = 1

ACKNOWLEDGE_NONE = 0
ACKNOWLEDGE_MATCHED = 1
ACKNOWLEDGE_STORED = 2

OVERLOADED = "overloaded: "
"""Begins the reason where a publication was delivered as any other, and could not be stored, as it had asked."""

UNTIL_UNPUBLISHED = (1 << 63) - 1
"""A publication's `valid_for_ms` for: until it is unpublished."""

INITIAL_NONE = "none"
INITIAL_VALID = "valid"

REDELIVERED, GIVEN = 1, 2
"""Bits of `Notify.redelivered`."""

SUBSCRIPTION_BITS = 20
"""A client's own number of a subscription fits in this many bits; the cluster's id has the session above them."""


class Frame(msgspec.Struct, frozen=True, array_like=True, tag_field="frame", gc=False):
    """The base of all frames."""


# From the client ------------------------------------------------------------------------------------------


class Hello(Frame, frozen=True, array_like=True, tag=1, gc=False):
    """The first frame, at most 4 kB.

    client_id:      1 to 128 printable bytes; the publisher's name that subscribers see. The newest connection wins.
    instance:       drawn at random by the client when it is created and kept over its reconnects, so that
                    (client_id, instance, sequence) names a publication for good and a resend is recognised.
    receive_window: notifications that the client takes beyond what it has reported as consumed; it may be
                    sent fewer.
    durable:        the session outlives the connection: what it holds and is owed is on disk. It lives at one
                    connection point, its home; others answer Bye `redirect`.
    expires_s:      a durable session ends when it has been without a connection for so long.
    max_deliver:    a notification that was delivered so often and not acknowledged goes to the dead letters.
    Zero in these two stands for what the session has had so far, or the broker's own choice for a new one.
    session:        the durable session that this client knows, by its Welcome; 0 for none. One that it does not know is
                    told to it in full.
    """

    version: int
    client_id: str
    instance: int
    receive_window: int
    durable: bool = False
    expires_s: int = 0
    max_deliver: int = 0
    session: int = 0


class Publish(Frame, frozen=True, array_like=True, tag=2, gc=False):
    """Consecutive publications.

    first_sequence: the first one's number; numbers rise by one, without holes, over the life of an instance.
    acknowledge:    0 none, 1 matched, 2 stored: how much the publisher wants to hear; all are acknowledged on the wire,
                    since the acknowledgement is also the publisher's credit; that of 0 alone comes up to a tick (50 ms)
                    later, while there is credit enough not to wait for it. 2 waits until what matches is in the matched
                    output and that on disk; only where Welcome says that there is one.
    lengths:        uint32 per publication, its bytes in `payload`.
    valid_for_ms:   how long they are given to new subscriptions that ask for what is valid, from when they are taken
                    in; 0 for not at all, UNTIL_UNPUBLISHED without an end. Sent again, they keep the time they had
                    at the same connection point, and begin anew at another one.
    time_us:        when they were published, by the publisher's clock, microseconds since 1970; 0 for not said.
    """

    first_sequence: int
    acknowledge: int
    lengths: bytes
    payload: bytes
    valid_for_ms: int = 0
    time_us: int = 0


class Subscribe(Frame, frozen=True, array_like=True, tag=3, gc=False):
    """Open the subscription `number`, or replace its filter in one step if it is open.

    number: the client's own, 0 <= number < 2**20; kept over reconnects. A new subscription wants a number that was
            not used before: what the closed one matched may still be on its way and would be taken for the new one's.
    filter: in text form, or in JSON form if it starts with a brace.
    policy: what happens when the client does not keep up: "block", "drop_oldest", "drop_newest", "disconnect", or
            "latest_per_key(attribute)", the name in backticks if it is no identifier. (`policy.py`, `outbox.py`)
            A replaced policy holds for what is matched afterwards.
    initial: "valid" for a new subscription that wants the valid publications that match it, before all others and as
             NotifyValid; "none" for one that does not, and for an open one, whose initial ones go on as they were. A
             durable session's must be "none".
    """

    request: int
    number: int
    filter: str
    policy: str
    initial: str = INITIAL_NONE


class Unsubscribe(Frame, frozen=True, array_like=True, tag=4, gc=False):
    """Close the subscription `number`; after Done nothing of it arrives."""

    request: int
    number: int


class Consumed(Frame, frozen=True, array_like=True, tag=5, gc=False):
    """Notifications that the application has taken since the connection began; cumulative.

    Of a durable session: the position up to which it wants no notification again.
    """

    count: int


class Pong(Frame, frozen=True, array_like=True, tag=6, gc=False):
    """The answer to Ping."""


class Goodbye(Frame, frozen=True, array_like=True, tag=7, gc=False):
    """The client leaves on purpose; what it has published is still delivered.

    end_session: a durable session ends here and now; otherwise it waits for the client to come again.
    """

    end_session: bool = False


class Moved(Frame, frozen=True, array_like=True, tag=8, gc=False):
    """After Move: every subscription of this session holds at another connection point as well.

    What is on its way here is still delivered; then this session is told Bye `moved`.
    """


class Settle(Frame, frozen=True, array_like=True, tag=9, gc=False):
    """Of a durable session: single notifications that the application is done with, or wants again.

    acknowledged: uint64, positions that it wants no more, in any order; refused: uint64, positions that come again,
    flagged as redelivered, until they have come `max_deliver` times. Positions that are settled already are passed
    over.
    """

    acknowledged: bytes
    refused: bytes


class Unpublish(Frame, frozen=True, array_like=True, tag=10, gc=False):
    """A publication of this client id is valid no more; after Done no new subscription is given it.

    instance: of the life of the publisher that sent it; None for any. A publication that nobody knows is no error, and
              one that is sent again after this is matched, but is not valid.
    """

    request: int
    instance: int | None
    sequence: int


# From the connection point --------------------------------------------------------------------------------


class Welcome(Frame, frozen=True, array_like=True, tag=65, gc=False):
    """The login succeeded.

    heartbeat_ms:        a Ping comes at least this often; a client that hears nothing for three of them reconnects.
    publish_window:      publications that may be unacknowledged at once; publish_window_bytes: their payload bytes.
    frame_bytes, attributes, string_bytes, subscriptions: the limits in force; beyond them a request is refused.
    session: of a durable session, the same over all its connections.
    resumed: this is a durable session that was there before; held: uint32, the numbers of the subscriptions that it
             holds; listed: so many of them are named by Held frames, which follow at once, before anything else:
             all, unless the client has said that it knows the session, and then none.
    stores:  publications may ask for the acknowledgement `stored`.
    """

    version: int
    session: int
    heartbeat_ms: int
    publish_window: int
    publish_window_bytes: int
    frame_bytes: int
    attributes: int
    string_bytes: int
    subscriptions: int
    resumed: bool = False
    held: bytes = b""
    listed: int = 0
    stores: bool = False


class Acknowledged(Frame, frozen=True, array_like=True, tag=66, gc=False):
    """Every publication up to and including `upto` is matched and handed over, or is listed as rejected.

    window, window_bytes: the credit from now on, as in Welcome.
    rejected: (sequence, reason) of publications that were refused and that nobody receives; or, with a reason that
              begins with "overloaded: ", that were delivered as any other, and asked to be stored, for which there was
              no room.
    not_kept: (sequence, reason) of publications that were matched as any other, but for which there was no room among
              the valid ones.
    """

    upto: int
    window: int
    window_bytes: int
    rejected: list[tuple[int, str]]
    not_kept: list[tuple[int, str]] = []


class Done(Frame, frozen=True, array_like=True, tag=67, gc=False):
    """The request holds: a subscription matches everything published after this; or is gone for good."""

    request: int


class Refused(Frame, frozen=True, array_like=True, tag=68, gc=False):
    """The request has failed and changed nothing. position and limit as in FilterError; with code `policy` the
    position is one in the policy."""

    request: int
    code: str
    reason: str
    position: int | None
    limit: int | None


class Notify(Frame, frozen=True, array_like=True, tag=69, gc=False):
    """Notifications in delivery order, one per publication, as columns.

    runs:      (publisher, instance, time_us) shared by neighbours; instance: as in the publisher's Hello, it tells its
               lives apart; time_us: microseconds since 1970 when a connection point took it in.
    run:       uint32 per notification, an index into runs.
    sequence:  uint64 per notification, the publisher's number.
    lengths:   uint32 per notification, its bytes in payload.
    matches:   uint32 per notification, how many of `numbers` are its own.
    numbers:   uint32, the client's own numbers of the subscriptions that match.
    positions:   of a durable session: uint64 per notification, its place among all of the session, from 1 on; it names
                 the notification for good. They rise, but for what the client has refused.
    redelivered: of a durable session: a byte per notification. Bit 0: it may have been delivered before; bit 1: it
                 was valid when its subscription was opened, and comes before what that one matches live.
    """

    runs: list[tuple[str, int, int]]
    run: bytes
    sequence: bytes
    lengths: bytes
    matches: bytes
    numbers: bytes
    payload: bytes
    positions: bytes = b""
    redelivered: bytes = b""


class Dropped(Frame, frozen=True, array_like=True, tag=70, gc=False):
    """Notifications dropped since the last such frame, because the client did not keep up; ten times a second
    at the most, but for what is told before a Notify, a Done or a Bye.

    reason: what was done. "drop_oldest": the queue was full, and of what waited the oldest gave way, be it for the
            limit of a subscription with latest_per_key. "drop_newest": it came when the queue was full.
            "latest_per_key": a newer one with the same value waits. One frame for each reason.
            Of a durable session also "quota" (more was owed to it than it may be), "max_deliver" (delivered so often
            and never acknowledged: in the dead letters) and "closed" (no loss: for `positions`).
    counts: (number of the subscription, notifications of it that were dropped).
    notifications: distinct ones; at most the sum of the counts, as one may match several subscriptions.
    positions: uint64, those of them that this client had been sent and has not settled: they do not come again.
    """

    reason: str
    notifications: int
    counts: list[tuple[int, int]]
    positions: bytes = b""


class Ping(Frame, frozen=True, array_like=True, tag=71, gc=False):
    """Answer with Pong."""


class Bye(Frame, frozen=True, array_like=True, tag=72, gc=False):
    """The connection closes after this frame.

    code: malformed, version, client_id, timeout, too_large, too_many, over_credit, taken_over, moved, slow, shutdown,
          redirect, unavailable, durable. `moved` is taken_over by another connection of the same instance; `redirect`:
          the durable session lives at `address` (host:port); `unavailable`: where it lives is away or not known yet;
          `durable`: it cannot be what was asked for.
    A client reconnects after shutdown, timeout, slow, moved, too_many, redirect and unavailable only.
    """

    code: str
    reason: str
    address: str = ""


class Move(Frame, frozen=True, array_like=True, tag=73, gc=False):
    """This connection point is about to leave: open a session at one of these addresses, then say Moved here.

    addresses: `host:port`. Until then everything goes on here as before; who stays is told Bye `shutdown` in the end.
    """

    addresses: list[str]


class Held(Frame, frozen=True, array_like=True, tag=74, gc=False):
    """Some subscriptions that a resumed session holds: (number, filter as it was asked for, policy)."""

    subscriptions: list[tuple[int, str, str]]


class NotifyValid(Frame, frozen=True, array_like=True, tag=75, gc=False):
    """Publications that were valid when the subscription `number` was opened and that match it, as columns.

    They come after its Done and before any Notify, those of each publisher's life in their order; several
    subscriptions are served one beside the other. Each counts as a notification for Consumed.

    last: that was all; a frame without publications may say so.
    runs, run, sequence, lengths, payload: as in Notify.
    """

    number: int
    last: bool
    runs: list[tuple[str, int, int]]
    run: bytes
    sequence: bytes
    lengths: bytes
    payload: bytes


ClientFrame = Hello | Publish | Subscribe | Unsubscribe | Consumed | Pong | Goodbye | Moved | Settle | Unpublish
ServerFrame = Welcome | Acknowledged | Done | Refused | Notify | NotifyValid | Dropped | Ping | Bye | Move | Held

RECONNECT_CODES = frozenset({"shutdown", "timeout", "slow", "moved", "too_many", "redirect", "unavailable"})
"""After `moved` too: of a client that changes its connection point the cluster may hear of the older session last, and
end the newer one. After `too_many`: it was one of very many that came at once, and there is room again in a moment."""
