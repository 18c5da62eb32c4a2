"""The connection point: clients' sessions at the edge of the cluster.

It reads the frames of its clients, checks their limits, and forwards publications as runs without looking into them;
it turns filters into normal forms; it writes notifications to subscribers as their credit allows. Here its parts
(`serving/`, each with its own story) are put together, and what concerns several of them is said to each in order:
rounds, the end of a connection, view changes, recoveries.

Order: publications and subscription changes of a client go to one access point, in the order they came; they are
gathered (`gathering.py`).

A view change touches clients only if access points come or go: then what a client sends goes to its new one from
Commit on, behind a Switch on every lane there, by which the later hops keep the order.

Recovery: when a role of another layer has died, all that was underway there is void. What this connection point has
taken from its clients is held here until it is acknowledged, and is sent again: first the subscriptions that a new
matcher lacks and the changes that are not answered, then the publications. What it delivers twice by that is left out.
"""

from __future__ import annotations

from cluster.config import Config
from cluster.durable import DurableSession
from cluster.frames import Bye
from cluster.homes import Homes
from cluster.messages import (
    ACCESS_POINT,
    CONNECTION_POINT,
    COORDINATOR_PEER,
    MATCHER,
    Abort,
    AboutHandover,
    AboutSession,
    AboutValid,
    Acknowledge,
    Again,
    BringSession,
    Changed,
    ClientBytes,
    ClientClosed,
    ClientConnected,
    ClientFree,
    ClientFull,
    Commit,
    Deliver,
    Drain,
    Drained,
    Ended,
    EpochEnd,
    EpochEnded,
    Event,
    Explain,
    Explained,
    Flush,
    HandSession,
    HomeFound,
    Install,
    Instruction,
    KeepSession,
    LaneDown,
    LaneUp,
    Message,
    MoveClients,
    Peer,
    Prepare,
    Rebuild,
    Received,
    Recover,
    Relay,
    Restored,
    Resume,
    Retire,
    Send,
    Serve,
    ServeClients,
    SessionClosed,
    SessionTaken,
    Settled,
    Stored,
    Switch,
    Tick,
    slot_of,
)
from cluster.serving.attaching import Attaching
from cluster.serving.changes import Changes
from cluster.serving.connections import Connections
from cluster.serving.delivering import Delivering
from cluster.serving.gathering import Gathering
from cluster.serving.giving import Giving
from cluster.serving.handing import Handing
from cluster.serving.leaving import Leaving
from cluster.serving.login import Login
from cluster.serving.notifying import Notifying
from cluster.serving.publishing import Publishing
from cluster.serving.records import Connection, Session
from cluster.serving.requests import Requests
from cluster.serving.sessions import Sessions
from cluster.serving.shared import SESSION_MASK, Shared
from cluster.serving.subscribing import Subscribing
from cluster.serving.taking import Taking
from cluster.serving.turns import Turns
from cluster.validity import Validity
from cluster.view import View, view_of
from cluster.why import explained

FORGET_MS = 1000


class ConnectionPoint:
    """The machine. `slot` and `incarnation` are its own; `config` gives the limits."""

    def __init__(self, slot: int, incarnation: int, config: Config) -> None:
        shared = self._shared = Shared(slot, config)
        homes = self._homes = Homes(config)
        journal = self._journal = homes.journal
        validity = self._validity = Validity(slot, incarnation, config, shared.relay, journal)
        gathering = self._gathering = Gathering(shared)
        publishing = self._publishing = Publishing(shared, journal, validity, gathering)
        changes = self._changes = Changes(shared, incarnation, gathering)
        leaving = self._leaving = Leaving(shared, changes, validity)
        connections = self._connections = Connections(shared, publishing.tell, self._gone)
        self._sessions = Sessions(shared, incarnation, publishing)
        attaching = self._attaching = Attaching(shared, homes, self._sessions, publishing, changes, leaving, validity)
        self._handing = Handing(shared, incarnation, homes, connections, self._moved)
        leaving.with_sessions(self._handing)
        self._taking = Taking(shared, homes, self._sessions, changes, attaching, leaving, validity)
        login = self._login = Login(shared, config, connections, self._sessions, homes, attaching, leaving)
        subscribing = self._subscribing = Subscribing(shared, config, changes, journal, attaching, leaving, validity)
        requests = Requests(shared, connections, login, attaching, publishing, subscribing, changes, leaving, validity)
        self._turns = Turns(shared, connections, requests, changes, validity)
        self._giving = Giving(shared, journal, validity)
        self._delivering = Delivering(shared, journal)
        self._notifying = Notifying(shared, connections, self._delivering, self._giving)
        self._recovered = 0  # the epoch of the last Recover
        self.counters = shared.counters
        self.answered = shared.answered

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what to do about it, in order."""
        match event:
            case ClientBytes():
                self._turns.take(event)
            case Received(peer, message):
                self._received(peer, message)
            case Drained():
                self._end_round()
            case Tick(now_ms):
                self._tick(now_ms)
            case ClientConnected(connection):
                self._connections.connected(connection)
            case ClientClosed(connection):
                self._turns.closed(connection)
            case ClientFull(number):
                self._connections.full(number, True)
            case ClientFree(number):
                self._connections.full(number, False)
            case LaneUp(peer) if peer == COORDINATOR_PEER:
                self._login.report()
            case LaneUp(peer):
                self._shared.naming.lane_up(peer, self._shared.out)
            case LaneDown(peer):
                self._shared.naming.lane_down(peer)
            case Stored(upto):
                for one in self._journal.stored(upto):
                    assert isinstance(one, DurableSession), "a journal of others"
                    if one.number in self._shared.sessions:
                        self._shared.touched[one.number] = self._shared.sessions[one.number]
                self._leaving.see_emptied()
            case Restored(memory, now_us):
                self._attaching.restore(memory)
                self._handing.restore()
                self._taking.restore()
                self._validity.restore(memory, now_us)
            case _:
                pass
        self._gathering.send_changes()
        out, self._shared.out = self._shared.out, []
        return out

    def gauges(self) -> dict[str, int]:
        """Return the counters, and what is held at the moment."""
        sessions = self._shared.sessions.values()
        return self.counters | {
            "queued": sum(session.outbox.queued for session in sessions),
            "durable_sessions": len(self._homes),
            "durable_queued": self._homes.queued,
            "durable_arriving": len(self._homes.arriving),
            "durable_bytes": self._homes.room.bytes,
            "unstored_portions": self._journal.underway,
            "in_flight": self._publishing.books.in_flight,
            "unacknowledged_bytes": self._publishing.pool_bytes,
            "subscriptions": sum(len(session.subscriptions) for session in sessions),
            "held_runs": len(self._delivering.held),
            "changes_underway": len(self._changes.underway),
            **self._validity.gauges(),
        }

    # Rounds ------------------------------------------------------------------------------------------------------

    def _end_round(self) -> None:
        if self._changes.rebuilding is not None:
            self._changes.send_again()
        self._changes.remove_left()
        self._turns.next_round()
        self._gathering.send_all()
        self._taking.step()
        self._giving.find()
        self._notifying.flush()
        portion = self._journal.take()
        if portion is not None:
            self._shared.out.append(portion)
        self._delivering.tell()
        self._shared.naming.tell(self._shared.out)
        if self._validity.busy:
            self._shared.out.append(Again())

    def _tick(self, now_ms: int) -> None:
        former_ms = self._shared.now_ms
        if not former_ms:
            self._connections.begin(now_ms)
        if now_ms // FORGET_MS != former_ms // FORGET_MS:
            self._giving.forget_given()
            if not self._shared.recovering:
                self._homes.forget_marks(now_ms)
        self._shared.now_ms = now_ms
        self._validity.tick(now_ms)
        self._publishing.tell_all()
        self._connections.check(former_ms)
        self._attaching.expire()
        self._leaving.tick()
        self._handing.tick(now_ms)
        self._taking.tick(now_ms)
        self._notifying.tick()

    def _moved(self, session: Session) -> None:
        """A durable session lives elsewhere now."""
        assert session.durable is not None, "not durable"
        self._attaching.end(session, session.durable)

    def _gone(self, connection: Connection) -> None:
        """A connection is no more; neither is its session."""
        self._turns.forget(connection.number)
        session, connection.session = connection.session, None
        if session is None:
            return
        shared, number = self._shared, session.key & SESSION_MASK
        if session.durable is None:
            shared.sessions.pop(number, None)
            shared.naming.end(session.key)
        shared.touched.pop(number, None)
        if shared.by_client_id.get(session.client_id) is session:
            del shared.by_client_id[session.client_id]
        self._sessions.count()
        self._publishing.forget(session)
        self._delivering.release(session, everything=True)
        if session.durable is not None:
            self._attaching.detach(session, session.durable)
        else:
            self._giving.forget(session, number)
            self._changes.close_all(session)
        shared.out.append(Send(COORDINATOR_PEER, SessionClosed(session.client_id, session.key)))
        self._leaving.see_emptied()

    # The view ----------------------------------------------------------------------------------------------------

    def _look_about(self) -> None:
        """The view, or the next one, has changed."""
        self._giving.look_about()
        self._leaving.see_emptied()

    def _commit(self, epoch: int) -> None:
        """Serve the next view; where access points differ, clients' traffic goes its new way from here."""
        shared = self._shared
        assert shared.view is not None, "a second view before a first"
        former = view = shared.view
        if shared.next is not None and shared.next.epoch == epoch:
            view = shared.next
            shared.view, shared.next = view, None
        if former.access_points != view.access_points:
            self._gathering.send_all()
            for slot in sorted({*former.access_points, *view.access_points}):
                shared.out.append(Send(Peer(ACCESS_POINT, slot), Switch(epoch, [])))
            shared.rebind(view)
        shared.out.append(Send(COORDINATOR_PEER, Ended(epoch)))

    # Recovery ----------------------------------------------------------------------------------------------------

    def _recover(self, view: View) -> None:
        """What was sent to other layers and not answered is void."""
        self._shared.view, self._shared.next = view, None
        self._recovered = view.epoch
        self._shared.recovering = True
        self._homes.count_anew()
        self._gathering.void()
        self._changes.void()
        self._leaving.void()
        self._publishing.void()
        self._delivering.void()
        self._validity.silence()
        self._look_about()
        self._shared.rebind(view)
        if self._shared.slot not in view.connection_points:
            self._shared.out.append(Flush())

    def _rebuild(self, message: Rebuild) -> None:
        view = self._shared.view
        if view is None or view.epoch != message.epoch:
            return
        everything = (CONNECTION_POINT, self._shared.slot) in message.replaced
        if everything:
            self._attaching.told()
        matchers = {slot for layer, slot in message.replaced if layer == MATCHER}
        self._changes.rebuild(view, matchers, everything=everything)

    def _go_on(self, epoch: int) -> None:
        """Send again what is not acknowledged; from here everything goes its way."""
        shared = self._shared
        if shared.view is None or shared.view.epoch != epoch or not shared.recovering:
            return
        shared.recovering = False
        self._subscribing.changed(self._changes.outdated())
        self._changes.send_unsent()
        self._publishing.send_again()
        self._validity.go_on()
        self._subscribing.ask_for_valid()
        self._leaving.see_emptied()

    # What others say ---------------------------------------------------------------------------------------------

    def _received(self, peer: Peer, message: Message) -> None:
        shared = self._shared
        if shared.recovering and shared.view is not None and isinstance(message, Prepare | Commit | Abort):
            # The coordinator goes on: its Resume was lost with an earlier life of it.
            self._go_on(shared.view.epoch)
        match message:
            case Deliver():
                self._delivering.deliver(peer.slot, message)
            case Acknowledge():
                if message.since >= self._recovered:
                    self._publishing.acknowledge(message)
            case Changed(numbers, since):
                if since >= self._recovered:
                    self._subscribing.changed(numbers)
            case Relay(sender, _, content):
                self._relayed(sender, content)
            case Install():
                shared.view = view_of(message)
                self._look_about()
                shared.rebind(shared.view)
            case HomeFound(_, -1):
                self._taking.home_known(message)
            case HomeFound():
                connection = self._login.home_found(message)
                if connection is not None and connection.bodies:
                    self._turns.work(connection)
            case Prepare():
                shared.next = view_of(message)
                self._look_about()
                self._leaving.view_change()
            case Commit(epoch):
                self._commit(epoch)
                self._look_about()
            case Recover():
                self._recover(view_of(message))
            case Rebuild():
                self._rebuild(message)
            case Resume(epoch):
                self._go_on(epoch)
            case Abort(epoch):
                shared.next = None
                self._look_about()
                shared.out.append(Send(COORDINATOR_PEER, Settled(epoch)))
            case Retire(epoch):
                shared.out.append(Send(COORDINATOR_PEER, Settled(epoch)))
                if shared.view is not None and shared.slot not in shared.view.connection_points:
                    self._end_round()  # what was gathered is owed as well
                    shared.out.append(Flush())
            case EpochEnd(epoch):
                self._leaving.epoch_end(peer.slot, epoch)
                shared.out.append(Send(peer, EpochEnded(epoch)))
            case MoveClients(addresses, number):
                self._leaving.move_clients(addresses, number)
            case Serve():
                self._leaving.stay()
                self._attaching.register()
                self._validity.stay()
                shared.out.append(ServeClients())
            case SessionTaken(client, same_instance):
                session = shared.sessions.get(client & SESSION_MASK)
                # A client that was asked to move has two sessions for a while and closes this one itself.
                moves = self._leaving.moving is not None and same_instance
                if session is not None and slot_of(client) == shared.slot and session.key == client and not moves:
                    self._login.take_over(session, same_instance=same_instance)
            case Explain():
                shared.out.append(Send(peer, self._explained(message)))
            case Drain():
                for connection in list(shared.connections.values()):
                    self._connections.refuse(connection, Bye("shutdown", "the cluster stops"))
            case _:
                raise AssertionError(f"{Peer(CONNECTION_POINT, shared.slot)} got {type(message).__name__} from {peer}")

    def _relayed(self, sender: int, content: AboutValid | AboutSession) -> None:
        match content:
            case AboutHandover():
                self._handing.received(sender, content)
            case BringSession() | HandSession() | KeepSession():
                self._taking.received(sender, content)
            case _:
                self._validity.received(sender, content, leaving=self._leaving.moving is not None)
        self._leaving.see_emptied()

    def _explained(self, question: Explain) -> Explained:
        shared = self._shared
        session = shared.sessions.get(question.client & SESSION_MASK)
        if session is not None and session.key != question.client:
            session = None
        number = None if session is None else session.connection
        connection = None if number is None else shared.connections.get(number)
        publisher = shared.by_client_id.get(question.publisher)
        underway = self._changes.underway.__contains__
        return explained(question, shared.recent, session, connection, publisher, underway)
