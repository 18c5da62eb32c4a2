"""Every message between roles, and every event and instruction of a machine. The first file to read.

The way of a publication, and what each hop adds:

    client   --Publish frame-->   connection point   its session, the time, the publisher's name
             --Publications-->    access point       epoch, the matchers that must answer, exit point, sequences
             --Batch-->           every matcher      which subscriptions of its share match
             --Result-->          exit point         joined over the matchers, in order, once
             --Deliver-->         connection points of the subscribers
             --Notify frame-->    subscriber

and back: Delivered (connection point -> exit point, a run is in the subscribers' queues), Acknowledge (exit point ->
the publisher's connection point), Acknowledged frame. A subscription goes ChangeSubscription -> ApplyChange -> Applied
-> Changed, along the same lanes, so that it keeps its place among the publications of its client.

A *run* is some consecutive publications of one publisher that came in one frame. Work in Python is done per run
and per batch; what belongs to single publications sits in columns: little-endian arrays inside `bytes`
(`columns.py`). A publication's own bytes pass through untouched; only matchers read them.

Ids: a client is `connection point slot << 32 | session`; a subscription is `client << 20 | the client's number of it`.
A client fits 43 bits (slots below 2048), a subscription 63.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NewType

import msgspec

from cluster.frames import SUBSCRIPTION_BITS

ClientKey = NewType("ClientKey", int)
SubscriptionId = NewType("SubscriptionId", int)
Epoch = NewType("Epoch", int)

SESSION_BITS = 32

CONNECTION_POINT = "connection_point"
ACCESS_POINT = "access_point"
MATCHER = "matcher"
EXIT_POINT = "exit_point"
COORDINATOR = "coordinator"
DATA_LAYERS = (CONNECTION_POINT, ACCESS_POINT, MATCHER, EXIT_POINT)


class Peer(NamedTuple):
    """A slice: the slot `slot` of a layer. Which incarnation plays it is the lane's business."""

    layer: str
    slot: int

    def __str__(self) -> str:
        return f"{self.layer} {self.slot}"


COORDINATOR_PEER = Peer(COORDINATOR, 0)


def client_key(slot: int, session: int) -> ClientKey:
    """Return the id of a client from its connection point's slot and its session there."""
    return ClientKey(slot << SESSION_BITS | session)


def slot_of(client: int) -> int:
    """Return the slot of the connection point that holds the client."""
    return client >> SESSION_BITS


def subscription_id(client: ClientKey, number: int) -> SubscriptionId:
    """Return the cluster's id of the client's subscription `number`."""
    return SubscriptionId(client << SUBSCRIPTION_BITS | number)


class Message(msgspec.Struct, frozen=True, array_like=True, tag_field="message", gc=False):
    """The base of all messages between roles; a message travels alone in one lane frame."""


# Publications ---------------------------------------------------------------------------------------------


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive publications of one publisher.

    instance: tells apart the lives of a publisher; (publisher, instance, sequence) names a publication for good.
    client:   who published, for the acknowledgement.
    time_us:  when the connection point took them in, microseconds since 1970.
    """

    publisher: str
    instance: int
    client: int
    first_sequence: int
    count: int
    time_us: int


class Publications(Message, frozen=True, array_like=True, tag=1, gc=False):
    """CP -> AP. `lengths`: uint32 per publication of all runs in order, its bytes in `payload`."""

    runs: list[Run]
    lengths: bytes
    payload: bytes


class Batch(Message, frozen=True, array_like=True, tag=2, gc=False):
    """AP -> every matcher in `expect`, one encoding for all. Never cut or merged on its way.

    sequence:        of the first publication, dense per access point and incarnation.
    exit_points:     per run, the slot that joins the answers.
    exit_sequences:  per run, the sequence of its first publication, dense per (access point incarnation, exit point).
    """

    epoch: int
    expect: list[int]
    sequence: int
    runs: list[Run]
    exit_points: list[int]
    exit_sequences: list[int]
    lengths: bytes
    payload: bytes


class Result(Message, frozen=True, array_like=True, tag=3, gc=False):
    """Matcher -> EP: what one matcher found in the runs of one batch that this exit point joins.

    Without a hit it is sent all the same: it moves the matcher's watermark for the access point.

    sequence:      the exit sequence of the first publication; the runs are dense from there.
    rejected:      (publication, reason) of those that are not well-formed; the same at every matcher.
    matched:       uint32, which publications (counted through the runs) have hits, ascending.
    notifications: uint32 per matched publication, how many clients it is for.
    clients:       uint64 per notification, ascending within a publication.
    matches:       uint32 per notification, how many of `numbers` are its own.
    numbers:       uint32 per hit, the client's number of a subscription that matches.
    lengths, payload: of the matched publications.
    """

    epoch: int
    expect: list[int]
    access_point: int
    sequence: int
    runs: list[Run]
    rejected: list[tuple[int, str]]
    matched: bytes
    notifications: bytes
    clients: bytes
    matches: bytes
    numbers: bytes
    lengths: bytes
    payload: bytes


class Deliver(Message, frozen=True, array_like=True, tag=4, gc=False):
    """EP -> CP: notifications for clients of this connection point, sorted by client, then in delivery order.

    runs:        (publisher, time_us, token); the token comes back in Delivered.
    run, sequence, lengths, payload: per publication in this message: index into runs (uint32), the publisher's
                 number (uint64), bytes (uint32).
    sessions:    uint32 per client that gets something; notifications: uint32 per client, how many.
    publication: uint32 per notification, an index into the publications.
    matches:     uint32 per notification, how many of `numbers` are its own.
    numbers:     uint32 per hit, the client's number of a subscription that matches.
    """

    runs: list[tuple[str, int, int]]
    run: bytes
    sequence: bytes
    lengths: bytes
    payload: bytes
    sessions: bytes
    notifications: bytes
    publication: bytes
    matches: bytes
    numbers: bytes


class Delivered(Message, frozen=True, array_like=True, tag=5, gc=False):
    """CP -> EP: all notifications of these runs are within their subscribers' queues, or counted as dropped."""

    tokens: list[int]


class Acknowledge(Message, frozen=True, array_like=True, tag=6, gc=False):
    """EP -> CP of a publisher: (client, upto, rejected [(sequence, reason)]), cumulative per client."""

    acknowledgements: list[tuple[int, int, list[tuple[int, str]]]]


# Subscriptions --------------------------------------------------------------------------------------------


class SubscriptionChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Set the filter of a subscription, or remove it.

    change:      the connection point's number of this change, echoed in the answer.
    normal_form: encoded; None removes.
    """

    change: int
    subscription: int
    normal_form: bytes | None


class ChangeSubscriptions(Message, frozen=True, array_like=True, tag=7, gc=False):
    """CP -> AP."""

    changes: list[SubscriptionChange]


class ApplyChanges(Message, frozen=True, array_like=True, tag=8, gc=False):
    """AP -> the matcher that owns the subscriptions' key groups. `connection_point`: whom the answer is for."""

    epoch: int
    connection_point: int
    changes: list[SubscriptionChange]


class Applied(Message, frozen=True, array_like=True, tag=9, gc=False):
    """Matcher -> AP: the changes hold for every batch handled after this."""

    connection_point: int
    changes: list[int]


class Changed(Message, frozen=True, array_like=True, tag=10, gc=False):
    """AP -> CP: the changes hold at every owner."""

    changes: list[int]


# Control --------------------------------------------------------------------------------------------------


class Join(Message, frozen=True, array_like=True, tag=20, gc=False):
    """Any role -> C, first message on the lane: here I am. `address`: host and port that peers dial.

    client_address: where clients connect, "" but for connection points. pid: for the operator.
    """

    incarnation: int
    host: str
    port: int
    client_address: str
    pid: int


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A slice of the view and where the incarnation that plays it listens."""

    layer: str
    slot: int
    incarnation: int
    host: str
    port: int

    @property
    def peer(self) -> Peer:
        """Whose place this is."""
        return Peer(self.layer, self.slot)


class Install(Message, frozen=True, array_like=True, tag=21, gc=False):
    """C -> every role: the view to serve. `owners`: uint16 per key group, the matcher slot that owns it."""

    epoch: int
    members: list[Member]
    owners: bytes


class Installed(Message, frozen=True, array_like=True, tag=22, gc=False):
    """Any role -> C: the lanes of this epoch are up, the role serves."""

    epoch: int


class Serve(Message, frozen=True, array_like=True, tag=23, gc=False):
    """C -> CP: every role serves the epoch; let clients in."""

    epoch: int


class Heartbeat(Message, frozen=True, array_like=True, tag=24, gc=False):
    """Any role -> C, every 250 ms: alive, with the role's counters since its start."""

    counters: dict[str, int]


class SessionOpened(Message, frozen=True, array_like=True, tag=25, gc=False):
    """CP -> C: this client id has logged in here; an older session elsewhere is to be told."""

    client_id: str
    client: int
    instance: int


class SessionClosed(Message, frozen=True, array_like=True, tag=26, gc=False):
    """CP -> C."""

    client_id: str
    client: int


class SessionTaken(Message, frozen=True, array_like=True, tag=27, gc=False):
    """C -> CP of the older session: end it with `taken_over`, or with `moved` if the same instance is elsewhere."""

    client: int
    same_instance: bool


class StatusRequest(Message, frozen=True, array_like=True, tag=28, gc=False):
    """Operator -> C."""


class Status(Message, frozen=True, array_like=True, tag=29, gc=False):
    """C -> operator: a JSON document, for people and scripts."""

    document: bytes


class Drain(Message, frozen=True, array_like=True, tag=30, gc=False):
    """C -> CP: the cluster stops; say Bye to the clients."""


AnyMessage = (
    Publications
    | Batch
    | Result
    | Deliver
    | Delivered
    | Acknowledge
    | ChangeSubscriptions
    | ApplyChanges
    | Applied
    | Changed
    | Join
    | Install
    | Installed
    | Serve
    | Heartbeat
    | SessionOpened
    | SessionClosed
    | SessionTaken
    | StatusRequest
    | Status
    | Drain
)


# Events: what a machine is told ---------------------------------------------------------------------------


class Received(NamedTuple):
    """A message came on the lane from `peer`."""

    peer: Peer
    message: Any


class LaneUp(NamedTuple):
    """The lane to `peer` is connected; messages sent before were kept."""

    peer: Peer


class LaneDown(NamedTuple):
    """The lane to `peer` has no connection at the moment; what is sent is kept until it has."""

    peer: Peer


class ClientConnected(NamedTuple):
    """A socket was accepted. `connection` is the shell's number for it, never reused."""

    connection: int


class ClientBytes(NamedTuple):
    """Bytes from a client's socket, as they came. `now_us`: microseconds since 1970, a label only."""

    connection: int
    data: bytes
    now_us: int


class ClientClosed(NamedTuple):
    """The socket is gone, whoever closed it."""

    connection: int


class ClientFull(NamedTuple):
    """What was written to the client piles up: it does not read. Until ClientFree more only makes it worse."""

    connection: int


class ClientFree(NamedTuple):
    """The client has read on, and little is left of what had piled up."""

    connection: int


class Tick(NamedTuple):
    """Time passes: milliseconds on a monotonic clock, about every 50 ms."""

    now_ms: int


class Drained(NamedTuple):
    """Everything that had arrived has been handed over: send what was gathered. This is where batches end."""


Event = (
    Received
    | LaneUp
    | LaneDown
    | ClientConnected
    | ClientBytes
    | ClientClosed
    | ClientFull
    | ClientFree
    | Tick
    | Drained
)


# Instructions: what a machine asks for --------------------------------------------------------------------


class Send(NamedTuple):
    """Put the message on the lane to `peer`."""

    peer: Peer
    message: Message


class Broadcast(NamedTuple):
    """Put the message on the lane to each peer; it is encoded once."""

    peers: tuple[Peer, ...]
    message: Message


class Connect(NamedTuple):
    """Keep a lane to this member; an older incarnation's lane ends."""

    member: Member


class SendClient(NamedTuple):
    """Write the bytes to the client's socket."""

    connection: int
    data: bytes


class CloseClient(NamedTuple):
    """Close the socket after what was written has gone out."""

    connection: int


class PauseClient(NamedTuple):
    """Read no more from the client's socket until ResumeClient; what was read already may still come."""

    connection: int


class ResumeClient(NamedTuple):
    """Read from the client's socket again."""

    connection: int


class ServeClients(NamedTuple):
    """Open the client port."""


class Again(NamedTuple):
    """There is more to do: let others have their turn, then say Drained again, whether or not anything came."""


Instruction = Send | Broadcast | Connect | SendClient | CloseClient | PauseClient | ResumeClient | ServeClients | Again
