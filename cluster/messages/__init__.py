"""Every message between roles, and every event and instruction of a machine. The first thing to read.

    ids                  layers, slots, and how clients and subscriptions are numbered
    publications         from a publisher's connection point to the subscribers', and the acknowledgement back
    subscriptions        a change of one, to the matchers that own it, and back
    relay, valid         what connection points say to each other, about publications that stay valid
    handover             and about durable sessions that change their home
    membership, reports  roles join, say how they are, and leave
    transition           one view follows another
    recovery             others take the place of roles that have died
    sessions             who is logged in where
    operators            questions and wishes from outside
    events, instructions what a machine is told, and what it asks for

All are had from here; the parts are for reading. A new message goes into the union at the end of its part.

The way of a publication, and what each hop adds:

    client   --Publish frame-->   connection point   its session, the time, the publisher's name
             --Publications-->    access point       epoch, the matchers that must answer, exit point, sequences
             --Batch-->           every matcher      which subscriptions of its share match
             --Result-->          exit point         joined over the matchers, in order, once
             --Deliver-->         connection points of the subscribers
             --Notify frame-->    subscriber

and back: Delivered (connection point -> exit point, a run is in the subscribers' queues), Acknowledge (exit point ->
the publisher's connection point), Acknowledged frame. A subscription goes ChangeSubscriptions -> ApplyChanges ->
Applied -> Changed, along the same lanes, so that it keeps its place among the publications of its client.
"""

from __future__ import annotations

from cluster.messages.base import Message
from cluster.messages.events import (
    ClientBytes,
    ClientClosed,
    ClientConnected,
    ClientFree,
    ClientFull,
    Died,
    Drained,
    Event,
    Flushed,
    LaneDown,
    LaneUp,
    NotStored,
    OutputMarks,
    OutputSealed,
    OutputState,
    Received,
    Restored,
    SpawnFailed,
    Stored,
    Tick,
)
from cluster.messages.handover import AboutHandover, AboutSession, BringSession, HandSession, KeepSession
from cluster.messages.ids import (
    ACCESS_POINT,
    CONNECTION_POINT,
    COORDINATOR,
    COORDINATOR_PEER,
    DATA_LAYERS,
    EXIT_POINT,
    MATCHER,
    NUMBER_BITS,
    OPERATOR,
    SESSION_BITS,
    ClientKey,
    Epoch,
    Peer,
    SubscriptionId,
    client_key,
    slot_of,
    subscription_id,
)
from cluster.messages.instructions import (
    AdoptOutput,
    Again,
    AppendOutput,
    Broadcast,
    CloseClient,
    Connect,
    Disconnect,
    Flush,
    Instruction,
    Kill,
    NameOutputClients,
    PauseClient,
    Persist,
    ReadOutput,
    RestAccepting,
    ResumeClient,
    SealOutput,
    Send,
    SendClient,
    ServeClients,
    Spawn,
    Stop,
    Store,
)
from cluster.messages.membership import (
    ClientsMoved,
    Drain,
    Emptied,
    Gone,
    Install,
    Installed,
    Join,
    Left,
    Member,
    MembershipMessage,
    MoveClients,
    Serve,
)
from cluster.messages.operators import Answer, Explain, Explained, OperatorMessage, Request, Status, StatusRequest
from cluster.messages.publications import (
    Acknowledge,
    Batch,
    Deliver,
    Delivered,
    NameClients,
    PublicationMessage,
    Publications,
    Result,
    Run,
)
from cluster.messages.recovery import Rebuild, Rebuilt, Recover, RecoveryMessage, Renew, Resume
from cluster.messages.relay import Relay
from cluster.messages.reports import Heartbeat, Report, ReportMessage
from cluster.messages.sessions import (
    DurableEnded,
    DurableHomes,
    DurableMoved,
    FindHome,
    HomeFound,
    SessionClosed,
    SessionMessage,
    SessionOpened,
    SessionTaken,
)
from cluster.messages.subscriptions import (
    Applied,
    ApplyChanges,
    Changed,
    ChangeSubscriptions,
    SubscriptionChange,
    SubscriptionMessage,
)
from cluster.messages.transition import (
    Abort,
    Begin,
    Commit,
    Ended,
    EpochEnd,
    EpochEnded,
    Failed,
    GroupCopy,
    GroupsEnd,
    GroupsTaken,
    Mark,
    Prepare,
    Prepared,
    PublisherSettled,
    PublisherState,
    PublisherStates,
    Ready,
    Retire,
    Settled,
    StreamEnd,
    Switch,
    TransitionMessage,
)
from cluster.messages.valid import (
    AboutValid,
    FindValid,
    FoundValid,
    TakenValid,
    TakeValid,
    ValidPublication,
    WithdrawnValid,
    WithdrawValid,
)

AnyMessage = (
    PublicationMessage
    | SubscriptionMessage
    | MembershipMessage
    | ReportMessage
    | SessionMessage
    | OperatorMessage
    | TransitionMessage
    | RecoveryMessage
    | Relay
)

__all__ = [
    "ACCESS_POINT",
    "CONNECTION_POINT",
    "COORDINATOR",
    "COORDINATOR_PEER",
    "DATA_LAYERS",
    "EXIT_POINT",
    "MATCHER",
    "NUMBER_BITS",
    "OPERATOR",
    "SESSION_BITS",
    "Abort",
    "AboutHandover",
    "AboutSession",
    "AboutValid",
    "Acknowledge",
    "AdoptOutput",
    "Again",
    "Answer",
    "AnyMessage",
    "AppendOutput",
    "Applied",
    "ApplyChanges",
    "Batch",
    "Begin",
    "BringSession",
    "Broadcast",
    "ChangeSubscriptions",
    "Changed",
    "ClientBytes",
    "ClientClosed",
    "ClientConnected",
    "ClientFree",
    "ClientFull",
    "ClientKey",
    "ClientsMoved",
    "CloseClient",
    "Commit",
    "Connect",
    "Deliver",
    "Delivered",
    "Died",
    "Disconnect",
    "Drain",
    "Drained",
    "DurableEnded",
    "DurableHomes",
    "DurableMoved",
    "Emptied",
    "Ended",
    "Epoch",
    "EpochEnd",
    "EpochEnded",
    "Event",
    "Explain",
    "Explained",
    "Failed",
    "FindHome",
    "FindValid",
    "Flush",
    "Flushed",
    "FoundValid",
    "Gone",
    "GroupCopy",
    "GroupsEnd",
    "GroupsTaken",
    "HandSession",
    "Heartbeat",
    "HomeFound",
    "Install",
    "Installed",
    "Instruction",
    "Join",
    "KeepSession",
    "Kill",
    "LaneDown",
    "LaneUp",
    "Left",
    "Mark",
    "Member",
    "Message",
    "MoveClients",
    "NameClients",
    "NameOutputClients",
    "NotStored",
    "OutputMarks",
    "OutputSealed",
    "OutputState",
    "PauseClient",
    "Peer",
    "Persist",
    "Prepare",
    "Prepared",
    "Publications",
    "PublisherSettled",
    "PublisherState",
    "PublisherStates",
    "ReadOutput",
    "Ready",
    "Rebuild",
    "Rebuilt",
    "Received",
    "Recover",
    "Relay",
    "Renew",
    "Report",
    "Request",
    "RestAccepting",
    "Restored",
    "Result",
    "Resume",
    "ResumeClient",
    "Retire",
    "Run",
    "SealOutput",
    "Send",
    "SendClient",
    "Serve",
    "ServeClients",
    "SessionClosed",
    "SessionOpened",
    "SessionTaken",
    "Settled",
    "Spawn",
    "SpawnFailed",
    "Status",
    "StatusRequest",
    "Stop",
    "Store",
    "Stored",
    "StreamEnd",
    "SubscriptionChange",
    "SubscriptionId",
    "Switch",
    "TakeValid",
    "TakenValid",
    "Tick",
    "ValidPublication",
    "WithdrawValid",
    "WithdrawnValid",
    "client_key",
    "slot_of",
    "subscription_id",
]
