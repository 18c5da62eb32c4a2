"""Runs one machine on an asyncio loop: sockets and the clock in, bytes out. It decides nothing.

Everything that arrives in one turn of the loop is handed to the machine at once; then comes Drained, and what the
machine asked to send goes out, one write a peer. So batches are as large as the load makes them and no timer is needed.
A turn ends after TURN_NS, though there be more to take from lanes: that waits for the next turns, so that Ticks are
told in time and the coordinator hears of a slice that it lives.

A machine that raises is finished: the shell reports it and calls `failed`; nothing of it is used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import sys
import time
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any, Protocol

from actors.acceptor import Acceptor
from actors.node import busy_cores
from actors.transport import Identity, LaneProtocol, Reading
from cluster.channel import Lane
from cluster.codec import decode_message, encode_message
from cluster.measures import Backlog, Measures
from cluster.messages import (
    OPERATOR,
    AdoptOutput,
    Again,
    AppendOutput,
    Broadcast,
    ClientBytes,
    ClientClosed,
    ClientConnected,
    ClientFree,
    ClientFull,
    CloseClient,
    Connect,
    Disconnect,
    Drained,
    Event,
    Flush,
    Flushed,
    Instruction,
    Kill,
    LaneDown,
    LaneUp,
    Member,
    NameOutputClients,
    PauseClient,
    Peer,
    Persist,
    ReadOutput,
    Received,
    RestAccepting,
    ResumeClient,
    SealOutput,
    Send,
    SendClient,
    ServeClients,
    Spawn,
    Stop,
    Store,
    Stored,
    Tick,
)

TICK_S = 0.05
TURN_NS = 50_000_000
"""What is taken from lanes in one turn ends after this time, with the message under way. Else all that lies in a socket
is taken at once, up to 2 MB: the removal of 100,000 subscriptions, 0.7 s of one core, seconds where others want it."""
REDIAL_S = 0.1
CLIENT_BUFFER_BYTES = 8 << 20
"""What may wait in a client's socket. Notifications are bounded by credit long before; a client that asks on and on and
never reads the answers is cut off here."""
LINGER_S = 5.0
"""How long a closed client may take to read what was written before the socket is cut."""
READ_BYTES = 64 << 10
"""What is taken from a client's socket at once: three thousand of the smallest frames, which take 2 ms to cut."""
UNREAD_BYTES = 256 << 10
"""What may wait in a client's socket buffer of ours, beyond the kernel's, before the machine is told."""

DRAINED = Drained()
RESTING = Drained(rested=False)

log = logging.getLogger("kittiwake")


class Handler(Protocol):
    """A machine, or a role around it."""

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what to do about it."""
        ...


class Supervisor(Protocol):
    """Who starts and ends processes for the coordinator, and keeps its memory."""

    def spawn(self, peer: Peer, incarnation: int, client_address: str) -> None:
        """Begin to start a process; say SpawnFailed to the shell if that comes to nothing, and Died once it has."""
        ...

    def stop(self, peer: Peer, incarnation: int) -> None:
        """Begin to end a process; nothing if there is none."""
        ...

    def kill(self, peer: Peer, incarnation: int, host: str, pid: int) -> None:
        """End a process at once, dead or alive."""
        ...

    def persist(self, memory: bytes, entry: tuple[int, bytes] | None) -> None:
        """Have it on disk on return. What it raises ends the shell."""
        ...


class SessionWriter(Protocol):
    """Who writes a connection point's durable sessions."""

    def write(self, portion: Store) -> None:
        """Begin to write it, after all that was given before; say `Shell.stored` when it is on disk."""
        ...

    def close(self) -> None:
        """Write what was given, and let go of the file."""
        ...


class Closing(Protocol):
    """Something that ends with the shell."""

    def close(self) -> None:
        """End it."""
        ...


class OutputSink(Protocol):
    """Who writes an exit point's matched output."""

    def perform(self, instruction: Instruction) -> None:
        """Do what the machine asks for, some of it not before `flush`. What either raises ends the shell."""
        ...

    def flush(self) -> None:
        """Do the rest, before others are told of it."""
        ...

    def close(self) -> None:
        """Seal what there is, and let go of the files."""
        ...


class Link:
    """The lane to one incarnation of a peer, and the connection that carries it now.

    member: where to dial, and whom: its incarnation 0 is any that answers there. None where the peer dials us.
    """

    def __init__(self, identity: Identity, member: Member | None) -> None:
        self.identity = identity
        self.peer = identity.peer
        self.member = member
        self.lane = Lane()
        self.protocol: LaneProtocol | None = None
        self.dialling: asyncio.Task[None] | None = None


class Shell:
    """Drives `handler` as `own`. failed: called once with the exception of a machine that raised.

    handler:    None until a role knows the ports that it is to announce; what happens before it is set is not told.
    supervisor: the coordinator's; roles ask for nothing that takes one.
    session_writer: a connection point's; it says `stored`.
    measures:   told how long everything took; None for nobody.
    turn_ns:    the time that lanes have in one turn of the loop; None for all that has come, the coordinator's: what
                has come is to be heard before a Tick says how long nothing was.
    output: an exit point's; it says `tell`.
    """

    def __init__(
        self,
        own: Identity,
        secret: bytes,
        handler: Handler | None = None,
        *,
        failed: Callable[[BaseException], None],
        client_address: tuple[str, int] | None = None,
        supervisor: Supervisor | None = None,
        session_writer: SessionWriter | None = None,
        measures: Measures | None = None,
        turn_ns: int | None = TURN_NS,
    ) -> None:
        self._own = own
        self._secret = secret
        self.handler = handler
        self._failed = failed
        self._client_address = client_address
        self.supervisor = supervisor
        self.session_writer = session_writer
        self.measures = measures
        self.companions: list[Closing] = []
        """What is to be closed with the shell, last of all."""
        self.output: OutputSink | None = None
        self._loop = asyncio.get_running_loop()
        self._links: dict[Peer, Link] = {}
        self._owners: dict[LaneProtocol, Link] = {}
        self._dirty: dict[Peer, Link] = {}
        self._gone: dict[Peer, int] = {}  # the newest incarnation that we were told to let go of
        self._flushing = False
        self._clients: dict[int, ClientProtocol] = {}
        self.client_buffer = memoryview(bytearray(READ_BYTES))
        self._client_out: dict[int, list[bytes]] = {}
        self._next_client = 1
        self._tasks: set[asyncio.Task[Any]] = set()
        self._drain_due = False
        self._drain_began_ns = 0
        self._turn_ns = turn_ns
        self._turn_ends_ns: int | None = None  # None until something is taken from a lane
        self._waiting: dict[LaneProtocol, list[bytes]] = {}  # what was read and not taken, the next first
        self._resting = False
        self._stopped = False
        self._server: asyncio.Server | None = None
        self._acceptor: Acceptor | None = None
        self._ticker: asyncio.TimerHandle | None = None

    # Life --------------------------------------------------------------------------------------------------------

    async def listen(self, host: str, port: int = 0) -> int:
        """Open the lane port on `host`, any free one without a number; return its number."""
        self._server = await self._loop.create_server(lambda: self._lane_protocol(None), host, port)
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def bind_clients(self) -> tuple[str, int]:
        """Take the client port, so that its number is known; clients are accepted from ServeClients on."""
        assert self._client_address is not None, "this role has no client port"
        self._acceptor = Acceptor(lambda: ClientProtocol(self))
        return await self._acceptor.bind(*self._client_address)

    def tell(self, event: Event) -> None:
        """Hand an event to the machine in a turn of its own; may be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.dispatch, event)

    def stored(self, upto: int) -> None:
        """Up to this portion the sessions are on disk; may be called from any thread."""
        self.tell(Stored(upto))

    def store_failed(self, error: BaseException) -> None:
        """They cannot be written: nothing can be promised any more. May be called from any thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._fail, error)

    def perform(self, instructions: Iterable[Instruction]) -> None:
        """Do what a machine asked for outside of an event, or what a launcher wants done."""
        self._execute(instructions)
        self._flush()

    def act(self, work: Callable[[], Iterable[Instruction]]) -> None:
        """Do what comes of a call to the machine that is no event; if it raises, the machine is finished."""
        try:
            self.perform(work())
        except Exception as error:
            self._fail(error)

    async def stop(self) -> None:
        """Flush what is written, close everything."""
        self._flush()
        self._stopped = True
        if self._ticker is not None:
            self._ticker.cancel()
        if self._acceptor is not None:
            self._acceptor.close()
        if self._server is not None:
            self._server.close()
        for link in self._links.values():
            if link.dialling is not None:
                link.dialling.cancel()
            if link.protocol is not None:
                link.protocol.close()
        for client in list(self._clients.values()):
            client.close()
        if self.session_writer is not None:
            self.session_writer.close()
        if self.output is not None:
            self.output.close()
        for companion in self.companions:
            companion.close()
        await asyncio.sleep(0)

    # The machine -------------------------------------------------------------------------------------------------

    def dispatch(self, event: Event, decoding_ns: int = 0) -> None:
        """Hand one event to the machine, do what it asks, and see to it that Drained follows.

        decoding_ns: what it took to make the event of bytes.
        """
        if self._stopped or self.handler is None:
            return
        began_ns = perf_counter_ns()
        try:
            instructions = self.handler.handle(event)
            if instructions:
                self._execute(instructions)
        except Exception as error:
            self._fail(error)
            return
        if self.measures is not None:
            self.measures.took(event, time.time_ns() // 1000, perf_counter_ns() - began_ns, decoding_ns)
        self._drain_soon()

    def _drain_soon(self) -> None:
        if not self._drain_due:
            self._drain_due = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._drain_due = False
        if self._stopped or self.handler is None:
            return
        began_ns = self._drain_began_ns = perf_counter_ns()
        try:
            self._execute(self.handler.handle(RESTING if self._resting else DRAINED))
        except Exception as error:
            self._fail(error)
            return
        self._flush()
        if self.measures is not None:
            self.measures.worked(perf_counter_ns() - began_ns)

    def _rest(self) -> None:
        """Drain when as long has passed as this turn has taken."""
        self._resting = True
        self._loop.call_later((perf_counter_ns() - self._drain_began_ns) / 1e9, self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._drain_soon()

    def _backlogs(self) -> list[Backlog]:
        """Return what the peers have yet to handle, the least since the last call."""
        return [(*peer, *link.lane.take_backlog()) for peer, link in self._links.items() if peer.layer != OPERATOR]

    def _fail(self, error: BaseException) -> None:
        log.error("%s has failed", self._own.peer, exc_info=error)
        self._stopped = True
        self._failed(error)

    def _execute(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            # Nearly all of them are one of three: a pattern takes five times as long.
            if isinstance(instruction, Send):
                self._send(instruction.peer, encode_message(instruction.message))
            elif isinstance(instruction, SendClient):
                self._client_out.setdefault(instruction.connection, []).append(instruction.data)
            elif isinstance(instruction, Broadcast):
                body = encode_message(instruction.message)
                for peer in instruction.peers:
                    self._send(peer, body)
            else:
                self._execute_other(instruction)

    def _execute_other(self, instruction: Instruction) -> None:
        match instruction:
            case CloseClient(connection):
                self._flush_client(connection, self._client_out.pop(connection, []))
                client = self._clients.get(connection)
                if client is not None:
                    client.close()
            case PauseClient(connection):
                if connection in self._clients:
                    self._clients[connection].pause()
            case ResumeClient(connection):
                if connection in self._clients:
                    self._clients[connection].resume()
            case Again(rest):
                if rest:
                    self._rest()
                else:
                    self._drain_soon()
            case Connect(member):
                self._connect(member)
            case Disconnect(member):
                self._disconnect(member)
            case Flush():
                self._flushing = True
                self._loop.call_soon(self._see_flushed)
            case ServeClients():
                assert self._acceptor is not None, "no client port is bound"
                self._acceptor.open()
            case RestAccepting(milliseconds):
                assert self._acceptor is not None, "no client port is bound"
                self._acceptor.rest(milliseconds / 1000)
            case Store():
                assert self.session_writer is not None, "only connection points store sessions"
                self.session_writer.write(instruction)
            case AppendOutput() | NameOutputClients() | ReadOutput() | SealOutput() | AdoptOutput():
                assert self.output is not None, "only exit points write an output"
                self.output.perform(instruction)
            case Persist(memory, entry):
                assert self.supervisor is not None, "only the coordinator has a memory"
                self.supervisor.persist(memory, entry)
            case Spawn(peer, incarnation, client_address):
                assert self.supervisor is not None, "only the coordinator starts processes"
                self.supervisor.spawn(peer, incarnation, client_address)
            case Kill(peer, incarnation, host, pid):
                assert self.supervisor is not None, "only the coordinator ends processes"
                self.supervisor.kill(peer, incarnation, host, pid)
            case Stop(peer, incarnation):
                assert self.supervisor is not None, "only the coordinator ends processes"
                self.supervisor.stop(peer, incarnation)

    def _run(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = self._loop.create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)
        return task

    def _tick(self) -> None:
        now_ms = time.monotonic_ns() // 1_000_000
        if self.measures is not None and self.measures.due(now_ms):
            self.measures.saw(self._backlogs(), resident_bytes(), time.process_time_ns() // 1000, busy_cores())
        self.dispatch(Tick(now_ms))
        for peer, link in self._links.items():
            link.lane.tick(now_ms)
            self._dirty[peer] = link
        self._flush()
        self._see_flushed()
        if not self._stopped:
            self._ticker = self._loop.call_later(TICK_S, self._tick)

    # Lanes -------------------------------------------------------------------------------------------------------

    def _send(self, peer: Peer, body: bytes) -> None:
        link = self._links.get(peer)
        if link is None:
            # An operator may have left before its question was answered.
            assert peer in self._gone or peer.layer == OPERATOR, f"{self._own.peer} has no lane to {peer}"
            log.debug("%s: %d bytes to %s, which is gone", self._own.peer, len(body), peer)
            return
        link.lane.send(body)
        self._dirty[peer] = link

    def held_bytes(self) -> int:
        """Return the bytes that were sent to peers which are connected and that they have not taken yet."""
        return sum(link.lane.held_bytes for link in self._links.values() if link.protocol is not None)

    def _see_flushed(self) -> None:
        if self._flushing and not any(link.lane.held_bytes for link in self._links.values()):
            self._flushing = False
            self.dispatch(Flushed())

    def _flush(self) -> None:
        if self.output is not None:
            try:
                self.output.flush()
            except Exception as error:
                self._fail(error)
                return
        # Clients first: writing takes its time, and as a rule what goes to peers now confirms what goes to clients.
        if self._client_out:
            out, self._client_out = self._client_out, {}
            for connection, data in out.items():
                self._flush_client(connection, data)
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for link in dirty.values():
                pieces = link.lane.poll()
                if pieces and link.protocol is not None:
                    link.protocol.write(pieces)

    def _connect(self, member: Member) -> None:
        identity = Identity(member.layer, member.slot, member.incarnation)
        link = self._links.get(member.peer)
        if link is not None and link.identity == identity:
            return
        if link is not None:
            self._drop(link, "replaced by another incarnation")
        link = self._links[member.peer] = Link(identity, member)
        link.dialling = self._run(self._dial(link))

    def _disconnect(self, member: Member) -> None:
        self._gone[member.peer] = max(member.incarnation, self._gone.get(member.peer, 0))
        link = self._links.get(member.peer)
        if link is not None and link.identity.incarnation <= member.incarnation:
            self._drop(link, "it is gone")
            self.dispatch(LaneDown(member.peer))

    def _drop(self, link: Link, reason: str) -> None:
        self._links.pop(link.peer, None)
        self._dirty.pop(link.peer, None)
        if link.dialling is not None:
            link.dialling.cancel()
        if link.protocol is not None:
            self._owners.pop(link.protocol, None)
            link.protocol.abort(reason)

    async def _dial(self, link: Link) -> None:
        """Open a connection for the link; on failure try again until the link is dropped."""
        assert link.member is not None, "only known addresses are dialled"
        target = Identity(*link.peer, link.member.incarnation)
        while not self._stopped and self._links.get(link.peer) is link and link.protocol is None:
            try:
                await self._loop.create_connection(
                    lambda: self._lane_protocol(target), link.member.host, link.member.port
                )
                return
            except OSError:
                await asyncio.sleep(REDIAL_S)

    def _lane_protocol(self, target: Identity | None) -> LaneProtocol:
        return LaneProtocol(
            self._own,
            self._secret,
            target=target,
            received=self._lane_received,
            up=self._lane_up,
            frames=self._lane_frames,
            down=self._lane_down,
        )

    def _lane_received(self, other: Identity) -> int | None:
        if other.incarnation <= self._gone.get(other.peer, 0):
            return None
        link = self._links.get(other.peer)
        if link is None or link.identity.incarnation < other.incarnation:
            return 0
        return link.lane.received if link.identity == other else None  # else it is an older incarnation

    def _lane_up(self, protocol: LaneProtocol, other: Identity, peer_received: int) -> None:
        link = self._links.get(other.peer)
        member = None
        if link is not None and link.identity != other:
            if link.member is not None and not link.member.incarnation:
                member = link.member
            self._drop(link, "replaced by another incarnation")
            link = None
        if link is None:
            link = self._links[other.peer] = Link(other, member)
        if link.protocol is not None:
            self._owners.pop(link.protocol, None)
            link.protocol.abort("replaced by a newer connection")
            link.lane.disconnect()
        link.protocol = protocol
        self._owners[protocol] = link
        link.lane.connect(peer_received)
        self._dirty[other.peer] = link
        self.dispatch(LaneUp(other.peer))

    def _lane_frames(self, protocol: LaneProtocol, bodies: list[bytes]) -> None:
        link = self._owners.get(protocol)
        if link is None:
            return  # replaced
        peer = link.peer
        self._dirty[peer] = link
        for place, body in enumerate(bodies):
            began_ns = perf_counter_ns()
            if self._turn_ns is not None:
                if self._turn_ends_ns is None:
                    self._turn_ends_ns = began_ns + self._turn_ns
                    self._loop.call_soon(self._end_turn)
                elif began_ns > self._turn_ends_ns:
                    self._wait(protocol, bodies[place:])
                    return
            message = link.lane.receive(body)
            if message is not None:
                event = Received(peer, decode_message(message))
                self.dispatch(event, perf_counter_ns() - began_ns)
                if self._owners.get(protocol) is not link:
                    return  # that was its last word
        self._see_flushed()

    def _wait(self, protocol: LaneProtocol, bodies: list[bytes]) -> None:
        """Take these, and then what the lane's peer has sent after them, in turns to come: behind those who wait."""
        assert protocol not in self._waiting, "read while it waits"
        protocol.pause()
        self._waiting[protocol] = bodies

    def _end_turn(self) -> None:
        """Begin another turn with the lanes that wait, if any do; those that have nothing left are read again."""
        self._turn_ends_ns = None
        while self._waiting:
            protocol = next(iter(self._waiting))
            self._lane_frames(protocol, self._waiting.pop(protocol))
            if protocol in self._waiting:
                return  # this turn is over as well
            protocol.resume()

    def _lane_down(self, protocol: LaneProtocol, reason: str) -> None:
        self._waiting.pop(protocol, None)  # not acknowledged: it comes again
        link = self._owners.pop(protocol, None)
        if link is None:
            if not self._stopped:
                self._redial_unborn(reason)
            return
        link.protocol = None
        link.lane.disconnect()
        log.info("%s: lane to %s is down: %s", self._own.peer, link.peer, reason)
        if link.identity.layer == OPERATOR:
            self._links.pop(link.peer, None)
            return
        self.dispatch(LaneDown(link.peer))
        if link.member is not None and not self._stopped:
            link.dialling = self._run(self._dial_later(link))

    def _redial_unborn(self, reason: str) -> None:
        """A connection ended before it was up; the links that we dial and that have none try again."""
        for link in self._links.values():
            if link.member is not None and link.protocol is None and (link.dialling is None or link.dialling.done()):
                log.info("%s: no lane to %s yet: %s", self._own.peer, link.peer, reason)
                link.dialling = self._run(self._dial_later(link))

    async def _dial_later(self, link: Link) -> None:
        await asyncio.sleep(REDIAL_S)
        await self._dial(link)

    # Clients -----------------------------------------------------------------------------------------------------

    def client_connected(self, client: ClientProtocol) -> None:
        """A socket was accepted."""
        client.number = self._next_client
        self._next_client += 1
        self._clients[client.number] = client
        self.dispatch(ClientConnected(client.number))

    def client_bytes(self, client: ClientProtocol, data: bytes) -> None:
        """Bytes came from a client."""
        self.dispatch(ClientBytes(client.number, data, time.time_ns() // 1000))

    def client_full(self, client: ClientProtocol, full: bool) -> None:
        """Too much waits to be written to the client, or no longer does."""
        # Not from within a write: the machine's other instructions come first.
        self._loop.call_soon(self.dispatch, ClientFull(client.number) if full else ClientFree(client.number))

    def client_closed(self, client: ClientProtocol) -> None:
        """A client's socket is gone."""
        self._clients.pop(client.number, None)
        self._client_out.pop(client.number, None)
        self.dispatch(ClientClosed(client.number))

    def _flush_client(self, connection: int, data: list[bytes]) -> None:
        client = self._clients.get(connection)
        if client is not None and data:
            client.write(data)


def resident_bytes() -> int:
    """Return the memory of this process."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        # Not Linux: the most it ever had is what there is to know.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class ClientProtocol(Reading, asyncio.BufferedProtocol):
    """One client's socket. All share one buffer, as each read is handed on before the next."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._transport: asyncio.Transport | None = None
        self._linger: asyncio.TimerHandle | None = None
        self.number = 0

    def connection_made(self, transport: Any) -> None:
        """The socket stands."""
        self._transport = transport
        transport.set_write_buffer_limits(high=UNREAD_BYTES)
        self._shell.client_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to put what comes."""
        del sizehint
        return self._shell.client_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        if self._linger is None:
            self._shell.client_bytes(self, bytes(self._shell.client_buffer[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        if self._linger is not None:
            self._linger.cancel()
        self._shell.client_closed(self)

    def pause_writing(self) -> None:
        """The client does not read what is written."""
        self._shell.client_full(self, True)

    def resume_writing(self) -> None:
        """It does again."""
        self._shell.client_full(self, False)

    def write(self, data: list[bytes]) -> None:
        """Write the pieces in order."""
        if self._transport is not None and not self._transport.is_closing():
            # Not writelines: asyncio's, in Python 3.12 and 3.13, forgets to say that too much waits.
            self._transport.write(b"".join(data))
            if self._transport.get_write_buffer_size() > CLIENT_BUFFER_BYTES:
                self._transport.abort()

    def close(self) -> None:
        """Close once what was written has gone out, at the latest after LINGER_S."""
        if self._transport is None or self._linger is not None:
            return
        self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)
        self._transport.close()
