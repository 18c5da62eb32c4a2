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

from typing import TYPE_CHECKING, Any, NamedTuple, NewType

import msgspec

from cluster.frames import SUBSCRIPTION_BITS

if TYPE_CHECKING:
    from cluster.matched import Matched

ClientKey = NewType("ClientKey", int)
SubscriptionId = NewType("SubscriptionId", int)
Epoch = NewType("Epoch", int)

SESSION_BITS = 32
NUMBER_BITS = 40
"""A role's incarnation stands above them in the numbers that it gives, of changes and tokens: a later one's are higher,
and none of an earlier one comes back."""

CONNECTION_POINT = "connection_point"
ACCESS_POINT = "access_point"
MATCHER = "matcher"
EXIT_POINT = "exit_point"
COORDINATOR = "coordinator"
OPERATOR = "operator"
"""Those who call the coordinator to ask; they have no place in a view."""
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
    stored:   the acknowledgement waits until what matches is in the matched output, and that on disk.
    published_us: when they were published, by the publisher's clock; 0 if it did not say.
    """

    publisher: str
    instance: int
    client: int
    first_sequence: int
    count: int
    time_us: int
    stored: bool = False
    published_us: int = 0

    @property
    def last_sequence(self) -> int:
        """The last publication's."""
        return self.first_sequence + self.count - 1


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

    runs:        (publisher, instance, time_us, token); the token comes back in Delivered.
    run, sequence, lengths, payload: per publication in this message: index into runs (uint32), the publisher's
                 number (uint64), bytes (uint32).
    sessions:    uint32 per client that gets something; notifications: uint32 per client, how many.
    publication: uint32 per notification, an index into the publications.
    matches:     uint32 per notification, how many of `numbers` are its own.
    numbers:     uint32 per hit, the client's number of a subscription that matches.
    """

    runs: list[tuple[str, int, int, int]]
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
    """EP -> CP of a publisher: (client, upto, rejected [(sequence, reason)]), cumulative per client.

    outcomes: for each of these, how many of the publications that it is about were matched, not well-formed, and
              doubles, whatever else these are.
    """

    acknowledgements: list[tuple[int, int, list[tuple[int, str]]]]
    outcomes: list[tuple[int, int, int]]


class NameClients(Message, frozen=True, array_like=True, tag=11, gc=False):
    """CP -> EPs: the client ids of these clients, which have subscriptions; for the matched output.

    ended: these are no more; what matched them may still be on its way.
    """

    names: list[tuple[int, str]]
    ended: list[int]


# Subscriptions --------------------------------------------------------------------------------------------


class SubscriptionChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Set the filter of a subscription, or remove it.

    change:      the connection point's number of this change, ascending, echoed in the answer; of two changes of one
                 subscription the higher number is the newer, whichever way they came.
    normal_form: encoded; None removes.
    """

    change: int
    subscription: int
    normal_form: bytes | None


class ChangeSubscriptions(Message, frozen=True, array_like=True, tag=7, gc=False):
    """CP -> AP."""

    changes: list[SubscriptionChange]


class ApplyChanges(Message, frozen=True, array_like=True, tag=8, gc=False):
    """AP -> the owners of the subscriptions' key groups. `connection_point`: whom the answer is for."""

    epoch: int
    connection_point: int
    changes: list[SubscriptionChange]


class Applied(Message, frozen=True, array_like=True, tag=9, gc=False):
    """Matcher -> AP: the changes hold for every batch handled after this, as far as the matcher owns their groups."""

    connection_point: int
    changes: list[int]


class Changed(Message, frozen=True, array_like=True, tag=10, gc=False):
    """AP -> CP: the changes hold at every owner.

    since: the epoch of the last Recover that the access point has heard, or of the view that it began with. After a
           later one this is void: a matcher that has said so may be dead, and the change is sent again.
    """

    changes: list[int]
    since: int


# Control --------------------------------------------------------------------------------------------------


class Join(Message, frozen=True, array_like=True, tag=20, gc=False):
    """Any role -> C, first message on the lane: here I am. `address`: host and port that peers dial.

    client_address: where clients connect, "" but for connection points. pid: for the operator.
    metrics_address: where its metrics are to be had, `host:port`; "" for nowhere.
    """

    incarnation: int
    host: str
    port: int
    client_address: str
    pid: int
    metrics_address: str = ""


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


class Report(Message, frozen=True, array_like=True, tag=92, gc=False):
    """Any role -> C, every `metrics.interval_ms`: what it has measured, for the autoscaler and for people.

    at_ms:      on the role's own monotonic clock.
    counters:   totals since the role's start, and what it holds at the moment; keys as in `metrics.py`.
    histograms: counts since then, and behind them the sum in microseconds.
    lanes:      (layer, slot, messages, bytes) for each peer: the least that it had yet to confirm in this interval.
    match_ns:   the least and the most that a publication took to match in this interval; None if none was.
    busiest:    of a matcher, the subscriptions that most hits are of, and how many of a million; see `busiest.py`.
    """

    at_ms: int
    counters: dict[str, int]
    histograms: dict[str, list[int]]
    lanes: list[tuple[str, int, int, int]]
    match_ns: tuple[int, int] | None
    busiest: list[tuple[int, int]] = []


class SessionOpened(Message, frozen=True, array_like=True, tag=25, gc=False):
    """CP -> C: this client id has logged in here; an older session elsewhere is to be told."""

    client_id: str
    client: int
    instance: int


class SessionClosed(Message, frozen=True, array_like=True, tag=26, gc=False):
    """CP -> C."""

    client_id: str
    client: int


class DurableHomes(Message, frozen=True, array_like=True, tag=80, gc=False):
    """CP -> C, first of all when its lane comes up: the clients whose durable sessions live here, all of them.

    asked: about these it has asked, and may be about to begin a session.
    """

    client_ids: list[str]
    asked: list[str]


class FindHome(Message, frozen=True, array_like=True, tag=81, gc=False):
    """CP -> C: where does this client's durable session live? If nowhere, it is to live here."""

    client_id: str
    connection: int


class HomeFound(Message, frozen=True, array_like=True, tag=82, gc=False):
    """C -> CP: the answer to FindHome.

    home: a connection point's slot, -1 while it cannot be said; address: where clients reach it, "" while it is away.
    """

    client_id: str
    connection: int
    home: int
    address: str


class DurableEnded(Message, frozen=True, array_like=True, tag=83, gc=False):
    """CP -> C: this client's durable session, which lived here, is no more."""

    client_id: str


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


# A view change ----------------------------------------------------------------------------------------------
#
#     C -> all       Prepare      the next view; everyone makes its lanes to it          -> Prepared
#     C -> AP, EP    Begin        AP: Mark to all matchers, from here changes go to both owners
#                                 M:  the first Mark starts the copy of what moves away, the last one ends it -> Ready
#                                 EP: copies what it knows of publishers that move away  -> Ready
#     (C's disk)                  the decision; before it anything that fails leads to Abort
#     C -> all       Commit       CP: if access points change, Switch to them, and traffic goes the new way  -> Ended
#                                 AP: Switch to all matchers, what follows is of the next epoch              -> Ended
#                                 M:  at Switch, StreamEnd to the exit points                                -> Ended
#                                 EP: at StreamEnd, hands over publishers that moved                         -> Ended
#     C -> all       Retire       the former view is forgotten, leavers leave            -> Settled
#     C -> all       Abort        the next view is forgotten                             -> Settled


class Prepare(Message, frozen=True, array_like=True, tag=40, gc=False):
    """C -> every role of the present or the next view: this is the next one. A newcomer has had Install before."""

    epoch: int
    members: list[Member]
    owners: bytes


class Prepared(Message, frozen=True, array_like=True, tag=41, gc=False):
    """Any role -> C: the lanes of the next view are up."""

    epoch: int


class Begin(Message, frozen=True, array_like=True, tag=42, gc=False):
    """C -> APs and EPs, when all are prepared: let what moves be copied.

    park: the aligned protocol of the E-SilboPS paper, for comparison: access points keep changes back from here, and
          publications from Switch, until Retire.
    """

    epoch: int
    park: bool


class Mark(Message, frozen=True, array_like=True, tag=43, gc=False):
    """AP -> every matcher of either view, in band: changes behind it go to the owners of both views."""

    epoch: int


class GroupCopy(Message, frozen=True, array_like=True, tag=44, gc=False):
    """Matcher -> matcher: subscriptions of groups that move there, or changes of them that came before their Mark.

    entries: in force (or removed, without a normal form) since the change that they name.
    """

    epoch: int
    entries: list[SubscriptionChange]


class GroupsTaken(Message, frozen=True, array_like=True, tag=45, gc=False):
    """Matcher -> the matcher that copies: so many more entries are in the index; it moves the copier's window."""

    epoch: int
    entries: int


class GroupsEnd(Message, frozen=True, array_like=True, tag=46, gc=False):
    """Matcher -> matcher: that was all. Per group (uint16): entries sent (uint32), xor of their digests (uint64)."""

    epoch: int
    groups: bytes
    counts: bytes
    digests: bytes


class Ready(Message, frozen=True, array_like=True, tag=47, gc=False):
    """Matcher or EP -> C: all that moves here has come, all that moves away is sent. entries, bytes: copied to here."""

    epoch: int
    entries: int
    bytes: int


class Failed(Message, frozen=True, array_like=True, tag=48, gc=False):
    """Any role -> C: it cannot be done, and why."""

    epoch: int
    reason: str


class Commit(Message, frozen=True, array_like=True, tag=49, gc=False):
    """C -> every role of either view: it is decided. Whoever is through with it says Ended (again)."""

    epoch: int


class Switch(Message, frozen=True, array_like=True, tag=50, gc=False):
    """CP -> APs of either view, AP -> matchers of either view, in band: what follows on this lane is of the next epoch.

    ends: from an AP, per exit point of the former view: the sequence behind its last publication of that epoch.
    """

    epoch: int
    ends: list[tuple[int, int]]


class StreamEnd(Message, frozen=True, array_like=True, tag=51, gc=False):
    """Matcher -> EP: its results of this access point in this epoch end before `sequence`."""

    epoch: int
    access_point: int
    sequence: int


class EpochEnd(Message, frozen=True, array_like=True, tag=52, gc=False):
    """EP -> CPs: what comes after this is of `epoch`; answered with EpochEnded once all before it was taken."""

    epoch: int


class EpochEnded(Message, frozen=True, array_like=True, tag=53, gc=False):
    """CP -> EP."""

    epoch: int


class PublisherState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an exit point knows of a publisher. pending: released runs that are not acknowledged."""

    publisher: str
    instance: int
    released: int
    pending: int


class PublisherStates(Message, frozen=True, array_like=True, tag=54, gc=False):
    """EP -> the EP that follows it for these publishers. last: nothing of the former epoch comes after this."""

    epoch: int
    states: list[PublisherState]
    last: bool


class PublisherSettled(Message, frozen=True, array_like=True, tag=55, gc=False):
    """EP -> the EP that follows it: the next `runs` pending ones of this publisher are done; see Acknowledge."""

    epoch: int
    publisher: str
    instance: int
    runs: int
    client: int
    upto: int
    rejected: list[tuple[int, str]]
    outcome: tuple[int, int, int] = (0, 0, 0)


class Ended(Message, frozen=True, array_like=True, tag=56, gc=False):
    """Any role -> C: nothing of the epoch before this one is left here, nor on its way to here."""

    epoch: int


class Retire(Message, frozen=True, array_like=True, tag=57, gc=False):
    """C -> every role of either view: only the epoch that was the next one is left."""

    epoch: int


class Abort(Message, frozen=True, array_like=True, tag=58, gc=False):
    """C -> every role of either view: the next view will not be."""

    epoch: int


class Settled(Message, frozen=True, array_like=True, tag=59, gc=False):
    """Any role -> C: the view change is over here; nothing is kept of what was given up."""

    epoch: int


class Left(Message, frozen=True, array_like=True, tag=60, gc=False):
    """A role that is in the view no more -> C: all it owed is delivered; it can be stopped."""


class Gone(Message, frozen=True, array_like=True, tag=61, gc=False):
    """C -> every role: this incarnation is no more; its lane can be let go of."""

    member: Member


class MoveClients(Message, frozen=True, array_like=True, tag=62, gc=False):
    """C -> a CP that is to leave: let no one in; ask the clients to move to one of these addresses.

    number: of this asking, echoed in the answers: it may be taken back by Serve, clients come in, and it is asked anew.
    """

    addresses: list[str]
    number: int


class Emptied(Message, frozen=True, array_like=True, tag=63, gc=False):
    """CP -> C: after MoveClients, no client is left."""

    number: int


class ClientsMoved(Message, frozen=True, array_like=True, tag=66, gc=False):
    """CP -> C: after MoveClients, some client holds all it needs elsewhere and waits for what is underway here."""

    number: int


# Recovery ---------------------------------------------------------------------------------------------------
#
# A role has died, and another incarnation of its slot has joined. What was underway anywhere is given up and sent again
# by those who hold it for good: connection points hold their publishers' unacknowledged runs, their sessions'
# subscriptions, and what they have delivered last of each publisher, so that what comes twice is known.
#
#     C -> all       Gone         of each that has died: let go of its lane
#     C -> all       Recover      the view with the new incarnations; what belongs to earlier epochs is
#                                 forgotten, lanes are made                                              -> Installed
#     C -> CPs       Rebuild      the subscriptions that new matchers must hold are sent again           -> Rebuilt
#       and EPs, if they write    nothing is written any more: what each publisher has in the output is looked up
#     C -> CPs       Resume       unacknowledged publications are sent again; everything goes on


class Recover(Message, frozen=True, array_like=True, tag=70, gc=False):
    """C -> every role: serve this view; nothing of an earlier epoch is finished any more.

    replaced: (layer, slot) of those that have died since every role last served one view.
    """

    epoch: int
    members: list[Member]
    owners: bytes
    replaced: list[tuple[str, int]]


class Rebuild(Message, frozen=True, array_like=True, tag=71, gc=False):
    """C -> CP, and EPs with an output, once all serve the epoch. replaced: as in Recover."""

    epoch: int
    replaced: list[tuple[str, int]]


class Rebuilt(Message, frozen=True, array_like=True, tag=72, gc=False):
    """CP -> C: the matchers hold every subscription of the sessions here. EP -> C: it knows what is written."""

    epoch: int


class Renew(Message, frozen=True, array_like=True, tag=73, gc=False):
    """CP -> AP, in band: after Recover, what was sent before this on this lane is void and will be sent again."""

    epoch: int


class Resume(Message, frozen=True, array_like=True, tag=74, gc=False):
    """C -> CP: the recovery is over; send again what is not acknowledged, and go on."""

    epoch: int


# Valid publications --------------------------------------------------------------------------------------------
#
# Connection points have no lanes to each other: what they ask and answer goes by an access point, which does not look
# into it. Every question is asked again until it is answered, and may be answered twice.


class ValidPublication(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A publication that is valid for `left_ms` more; None for until it is unpublished.

    until_us: the same as a time, microseconds since 1970, for those who put it on disk.
    settled: it is acknowledged, and with it all before it of this publisher: no notification of them is underway.
    """

    publisher: str
    instance: int
    sequence: int
    time_us: int
    until_us: int | None
    left_ms: int | None
    settled: bool
    payload: bytes


class FindValid(msgspec.Struct, frozen=True, array_like=True, tag_field="content", tag=1, gc=False):
    """Which valid ones match, of those behind `after` (publisher, instance, sequence)? query: echoed."""

    query: int
    after: tuple[str, int, int] | None
    normal_form: bytes


class FoundValid(msgspec.Struct, frozen=True, array_like=True, tag_field="content", tag=2, gc=False):
    """Those that match from the question's `after` up to `upto`, in this order. ended: there is nothing behind it."""

    query: int
    publications: list[ValidPublication]
    upto: tuple[str, int, int] | None
    ended: bool


class WithdrawValid(msgspec.Struct, frozen=True, array_like=True, tag_field="content", tag=3, gc=False):
    """These publications are valid no more. instances: of the publisher's lives; None for all there are."""

    query: int
    publisher: str
    instances: list[int] | None
    sequence: int


class WithdrawnValid(msgspec.Struct, frozen=True, array_like=True, tag_field="content", tag=4, gc=False):
    """They are not valid at the sender, and won't be again. instances: as asked, or those that there were."""

    query: int
    instances: list[int]


class TakeValid(msgspec.Struct, frozen=True, array_like=True, tag_field="content", tag=5, gc=False):
    """The sender is to leave: keep these for it."""

    query: int
    publications: list[ValidPublication]


class TakenValid(msgspec.Struct, frozen=True, array_like=True, tag_field="content", tag=6, gc=False):
    """taken: they are valid at the sender now; if not, it is to leave itself."""

    query: int
    taken: bool


AboutValid = FindValid | FoundValid | WithdrawValid | WithdrawnValid | TakeValid | TakenValid


class Relay(Message, frozen=True, array_like=True, tag=100, gc=False):
    """CP -> AP -> the CPs of these slots, as far as they are known there. sender: the slot that it comes from."""

    sender: int
    receivers: list[int]
    content: AboutValid


class Request(Message, frozen=True, array_like=True, tag=64, gc=False):
    """Operator -> C: scale, plan, transitions, abort or why; the arguments are a JSON document."""

    command: str
    arguments: bytes


class Answer(Message, frozen=True, array_like=True, tag=65, gc=False):
    """C -> operator: a JSON document, or why not."""

    document: bytes
    error: str


class Explain(Message, frozen=True, array_like=True, tag=90, gc=False):
    """C -> CP: what do you know of this subscription, of this publisher, and of what became of its publication?

    question:          the coordinator's number of it, echoed.
    client, number:    whose subscription, and the client's own number of it.
    publisher:         a client id, "" if no publication is asked about; sequence: its number of the publication.
    """

    question: int
    client: int
    number: int
    publisher: str
    sequence: int


class Explained(Message, frozen=True, array_like=True, tag=91, gc=False):
    """CP -> C: a JSON document, see `why.py`."""

    question: int
    document: bytes


AnyMessage = (
    Publications
    | Batch
    | Result
    | Deliver
    | Delivered
    | Acknowledge
    | NameClients
    | ChangeSubscriptions
    | ApplyChanges
    | Applied
    | Changed
    | Join
    | Install
    | Installed
    | Serve
    | Heartbeat
    | Report
    | SessionOpened
    | SessionClosed
    | DurableHomes
    | FindHome
    | HomeFound
    | DurableEnded
    | SessionTaken
    | StatusRequest
    | Status
    | Drain
    | Prepare
    | Prepared
    | Begin
    | Mark
    | GroupCopy
    | GroupsTaken
    | GroupsEnd
    | Ready
    | Failed
    | Commit
    | Switch
    | StreamEnd
    | EpochEnd
    | EpochEnded
    | PublisherStates
    | PublisherSettled
    | Ended
    | Retire
    | Abort
    | Settled
    | Left
    | Gone
    | MoveClients
    | Emptied
    | ClientsMoved
    | Recover
    | Rebuild
    | Rebuilt
    | Renew
    | Resume
    | Relay
    | Request
    | Answer
    | Explain
    | Explained
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


class Flushed(NamedTuple):
    """The answer to Flush: every peer has handled what was sent to it before."""


class Died(NamedTuple):
    """The process of a slice is no more, as those who run it know for certain, and why."""

    peer: Peer
    incarnation: int
    reason: str


class Restored(NamedTuple):
    """To a connection point, first of all: what an earlier incarnation of its slot has had stored. See journal.py.

    now_us: the present time, microseconds since 1970.
    """

    memory: Any
    now_us: int


class Stored(NamedTuple):
    """Everything that Store (or AppendOutput) has asked for, up to this number, is on disk. They come in order."""

    upto: int


class NotStored(NamedTuple):
    """AppendOutput of this number, of so many rows, has come to nothing, and why: there is no room.

    What is asked for next may have some.
    """

    number: int
    rows: int
    reason: str


class OutputMarks(NamedTuple):
    """To an exit point, first of all, and in answer to ReadOutput: what is written in the logs of all slots.

    marks: (publisher, instance) -> the last sequence that an exit point has released and written what matched of.
    """

    marks: dict[tuple[str, int], int]


class OutputState(NamedTuple):
    """How the output of this incarnation stands: rows, segments and their bytes that are committed, tries that failed
    for want of room, whether there is none at the moment, and rows that wait to be committed."""

    rows: int
    segments: int
    bytes: int
    errors: int
    full: bool
    pending: int


class OutputSealed(NamedTuple):
    """The answer to SealOutput: every row is in a committed segment."""


class SpawnFailed(NamedTuple):
    """A slice could not be started, and why."""

    peer: Peer
    incarnation: int
    reason: str


Event = (
    Received
    | LaneUp
    | LaneDown
    | Flushed
    | Died
    | Restored
    | Stored
    | NotStored
    | OutputMarks
    | OutputSealed
    | OutputState
    | SpawnFailed
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


class Disconnect(NamedTuple):
    """Let go of the lane to this member and of what is on it, and say LaneDown; not if another incarnation has it."""

    member: Member


class Flush(NamedTuple):
    """Say Flushed when every peer has handled all that was sent to it so far."""


class Spawn(NamedTuple):
    """Start a process for this slice; it will Join.

    client_address: where the clients of its former incarnation know it, `host:port`; "" for no matter where.
    """

    peer: Peer
    incarnation: int
    client_address: str = ""


class Stop(NamedTuple):
    """End the process of this slice, if there is one."""

    peer: Peer
    incarnation: int


class Kill(NamedTuple):
    """End the process of this slice at once; it may be dead, or stopped. host, pid: its own."""

    peer: Peer
    incarnation: int
    host: str
    pid: int


class Persist(NamedTuple):
    """Let this be on disk before any later instruction is followed.

    memory: replaces the one of before. entry: (number, document) of the history, None for no change there.
    """

    memory: bytes
    entry: tuple[int, bytes] | None


class Store(NamedTuple):
    """Write this to the slot's own file, as a whole or not at all, in the order of the numbers; then say Stored.

    writes: see `journal.py`.
    """

    number: int
    writes: tuple[Any, ...]


class AppendOutput(NamedTuple):
    """Write these rows to the slot's log of matched output before any later instruction is followed, so that they
    survive the process; then, if `sync`, have them on disk soon and say Stored.

    Numbers rise by one. Where there is no room nothing of it is written, and NotStored is said.
    """

    number: int
    matched: Matched
    sync: bool


class NameOutputClients(NamedTuple):
    """Write down these clients' ids for the rows that name them; see NameClients."""

    names: list[tuple[int, str]]
    ended: list[int]


class ReadOutput(NamedTuple):
    """Have this slot's log on disk, then say OutputMarks with what all slots' logs hold now."""


class SealOutput(NamedTuple):
    """Have all rows of this slot in committed segments, and say OutputSealed: nothing will be written any more."""


class AdoptOutput(NamedTuple):
    """Seal what slots other than these have left behind, if nobody plays them."""

    slots: tuple[int, ...]


Instruction = (
    Send
    | Broadcast
    | Connect
    | SendClient
    | CloseClient
    | PauseClient
    | ResumeClient
    | ServeClients
    | Again
    | Disconnect
    | Flush
    | Spawn
    | Stop
    | Kill
    | Persist
    | Store
    | AppendOutput
    | NameOutputClients
    | ReadOutput
    | SealOutput
    | AdoptOutput
)
