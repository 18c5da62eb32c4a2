"""Plays a transcript: commands to a cluster, and behind each the conversation that follows, line by line.

A transcript is a text file of blocks, an empty line between them. A block is comment lines (#), one command, and the
lines that it leads to: messages between machines as they are handed over (one at a time, the oldest lane first, until
nothing moves), and frames that clients read (`name <-`).

    cluster KEY=VALUE ...                     the first command: layers (2cp 1ap 3m 1ep), and flow settings
    connect NAME [ID] [at SLOT] [window=N]    a client called NAME here logs in under the client id ID (or NAME)
    publish NAME FIRST ATTRIBUTES ...         one Publish frame; ATTRIBUTES as JSON without spaces
    subscribe NAME NUMBER POLICY FILTER
    unsubscribe NAME NUMBER
    consume NAME COUNT
    goodbye NAME | cut NAME
    pass MS                                   time passes, with a Tick to every machine
    scale WHAT=COUNT ... | abort              an operator's wish, like matchers=2 strategy=all_at_once | gives it up
    crash ROLE                                the process of a role (m0) dies, and the coordinator is told
    hold FROM TO | release FROM TO            what is on the lane between two machines (ap1 m0) waits | goes on

`python -m tests.transcripts.runner --rewrite` writes the files anew with what happens now; look at the diff and
understand it before you commit.
"""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from cluster import frames
from cluster.assembly import Assembly
from cluster.codec import FrameReader, decode_message, decode_server_frame, encode_frame, encode_message
from cluster.config import Config, Flow, Layers
from cluster.journal import (
    Append,
    DeadLetter,
    Discard,
    RemoveSubscription,
    SaveSubscription,
    Took,
    Write,
)
from cluster.messages import (
    COORDINATOR_PEER,
    NUMBER_BITS,
    Abort,
    Acknowledge,
    Answer,
    Applied,
    ApplyChanges,
    Batch,
    Begin,
    Changed,
    ChangeSubscriptions,
    ClientBytes,
    ClientClosed,
    ClientConnected,
    Commit,
    Deliver,
    Delivered,
    Died,
    DurableEnded,
    DurableHomes,
    Emptied,
    Ended,
    EpochEnd,
    EpochEnded,
    FindHome,
    Gone,
    GroupCopy,
    GroupsEnd,
    GroupsTaken,
    Heartbeat,
    HomeFound,
    Install,
    Installed,
    Join,
    Left,
    Mark,
    Message,
    MoveClients,
    Peer,
    Prepare,
    Prepared,
    Publications,
    PublisherSettled,
    PublisherStates,
    Ready,
    Rebuild,
    Rebuilt,
    Received,
    Recover,
    Renew,
    Request,
    Result,
    Resume,
    Retire,
    Run,
    Serve,
    SessionClosed,
    SessionOpened,
    SessionTaken,
    Settled,
    StreamEnd,
    SubscriptionChange,
    Switch,
    Tick,
)

FOLDER = Path(__file__).parent
LAYERS = {"cp": "connection_points", "ap": "access_points", "m": "matchers", "ep": "exit_points"}
SHORT = {"connection_point": "cp", "access_point": "ap", "matcher": "m", "exit_point": "ep", "coordinator": "c"}
START_MS = 1_000_000


def unpack(kind: str, data: bytes) -> list[int]:
    """Return a column's numbers."""
    return list(struct.unpack(f"<{len(data) // (8 if kind == 'Q' else 4)}{kind}", data))


def cut(payload: bytes, lengths: bytes) -> list[str]:
    """Return the publications, as JSON without spaces."""
    out, at = [], 0
    for length in unpack("I", lengths):
        piece = payload[at : at + length]
        at += length
        try:
            out.append(json.dumps(msgpack.unpackb(piece), separators=(",", ":"), ensure_ascii=False))
        except ValueError:
            out.append(f"0x{piece.hex()}")
    return out


@dataclass
class Client:
    """A client's end."""

    peer: Peer
    connection: int
    reader: FrameReader
    request: int = 0


class Player:
    """A cluster and its clients; `play` takes one command and returns the lines that it leads to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.clients: dict[str, Client] = {}
        self.now_ms = START_MS
        self._names: dict[int, str] = {}
        self._connections = 0
        self._held: set[tuple[str, str]] = set()

    def play(self, command: str) -> list[str]:
        """Do what the command says; return everything that was said then."""
        self.lines = []
        word, *words = command.split()
        getattr(self, f"_do_{word}")(words, command)
        if word != "pass":
            self._settle()
        return self.lines

    # Commands ----------------------------------------------------------------------------------------------------

    def _do_cluster(self, words: list[str], command: str) -> None:
        counts = {}
        flow: dict[str, Any] = {}
        for word in words:
            if "=" in word:
                key, _, value = word.partition("=")
                flow[key] = int(value)
            else:
                kind = word.lstrip("0123456789")
                counts[LAYERS[kind]] = int(word.removesuffix(kind))
        self.assembly = Assembly(Config(layers=Layers(**counts), flow=Flow(**flow)), self._client_output)
        self._tick()

    def _do_connect(self, words: list[str], command: str) -> None:
        name = words[0]
        options = dict(word.split("=") for word in words[1:] if "=" in word)
        plain = [word for word in words[1:] if "=" not in word]
        slot = 0
        if "at" in plain:
            slot = int(plain[plain.index("at") + 1])
            plain = plain[: plain.index("at")]
        self._connections += 1
        peer = self.assembly.connection_points()[slot]
        client = self.clients[name] = Client(peer, self._connections, FrameReader(1 << 20))
        self._names[client.connection] = name
        self.assembly.feed(peer, ClientConnected(client.connection))
        window = int(options.get("window", "100"))
        instance = int(options.get("instance", "1"))
        durable = "durable" in options
        self._say(name, frames.Hello(frames.VERSION, plain[0] if plain else name, instance, window, durable))

    def _do_publish(self, words: list[str], command: str) -> None:
        name, first, *ones = words
        pieces = [bytes.fromhex(one[2:]) if one.startswith("0x") else msgpack.packb(json.loads(one)) for one in ones]
        lengths = struct.pack(f"<{len(pieces)}I", *map(len, pieces))
        self._say(name, frames.Publish(int(first), frames.ACKNOWLEDGE_MATCHED, lengths, b"".join(pieces)))

    def _do_subscribe(self, words: list[str], command: str) -> None:
        name, number, policy = words[:3]
        text = command.split(maxsplit=4)[4]
        self._say(name, frames.Subscribe(self._request(name), int(number), text, policy))

    def _do_unsubscribe(self, words: list[str], command: str) -> None:
        self._say(words[0], frames.Unsubscribe(self._request(words[0]), int(words[1])))

    def _do_consume(self, words: list[str], command: str) -> None:
        self._say(words[0], frames.Consumed(int(words[1])))

    def _do_settle(self, words: list[str], command: str) -> None:
        acknowledged = [int(word) for word in words[1:] if word.isdigit()]
        refused = [int(word[1:]) for word in words[1:] if word.startswith("!")]
        columns = [struct.pack(f"<{len(some)}Q", *some) for some in (acknowledged, refused)]
        self._say(words[0], frames.Settle(*columns))

    def _do_goodbye(self, words: list[str], command: str) -> None:
        self._say(words[0], frames.Goodbye())

    def _do_cut(self, words: list[str], command: str) -> None:
        client = self.clients.pop(words[0])
        self.assembly.feed(client.peer, ClientClosed(client.connection))

    def _do_pass(self, words: list[str], command: str) -> None:
        left = int(words[0])
        while left > 0:
            step = min(left, 50)
            left -= step
            self.now_ms += step
            self._tick()
            self._settle()

    def _do_scale(self, words: list[str], command: str) -> None:
        arguments: dict[str, Any] = {}
        for word in words:
            key, _, value = word.partition("=")
            arguments[key] = int(value) if value.isdigit() else value
        self._operate("scale", arguments)

    def _do_abort(self, words: list[str], command: str) -> None:
        self._operate("abort", {})

    def _do_crash(self, words: list[str], command: str) -> None:
        (peer,) = [peer for peer in self.assembly.roles if short(peer) == words[0]]
        incarnation = self.assembly.incarnations[peer]
        self._held = {lane for lane in self._held if words[0] not in lane}
        self.assembly.crash(peer)
        self.assembly.feed(COORDINATOR_PEER, Died(peer, incarnation, "killed"))

    def _operate(self, command: str, arguments: dict[str, Any]) -> None:
        answer = self.assembly.request(Request(command, json.dumps(arguments).encode()))
        assert isinstance(answer, Answer), "the coordinator does not answer"
        assert not answer.error, answer.error

    def _do_hold(self, words: list[str], command: str) -> None:
        self._held.add((words[0], words[1]))

    def _do_release(self, words: list[str], command: str) -> None:
        self._held.remove((words[0], words[1]))

    def _request(self, name: str) -> int:
        self.clients[name].request += 1
        return self.clients[name].request

    def _say(self, name: str, frame: frames.Frame) -> None:
        client = self.clients[name]
        self.assembly.feed(client.peer, ClientBytes(client.connection, encode_frame(frame), self.now_ms * 1000))

    def _tick(self) -> None:
        for peer in (COORDINATOR_PEER, *self.assembly.roles):
            self.assembly.feed(peer, Tick(self.now_ms))

    # What happens ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        assembly = self.assembly
        while True:
            while (lane := self._oldest()) is not None:
                sender, receiver = lane
                message = decode_message(encode_message(assembly.take(sender, receiver)))
                if not isinstance(message, Heartbeat) and message != DurableHomes([], []):
                    self.lines.append(f"{short(sender)} -> {short(receiver)}  {self._show(message)}")
                assembly.feed(receiver, Received(sender, message))
                assembly.see_flushed(sender)
            if not assembly.touched:
                unsynced = assembly.unsynced()
                if not unsynced:
                    return
                for peer in unsynced:
                    writes = assembly.session_disks[peer].asked()
                    self.lines.append(f"{short(peer)} disk  {'; '.join(map(show_write, writes))}")
                    assembly.sync(peer)
            for peer in sorted(assembly.touched):
                assembly.drain(peer)

    def _oldest(self) -> tuple[Peer, Peer] | None:
        held = self._held
        return next((lane for lane in self.assembly.lanes if (short(lane[0]), short(lane[1])) not in held), None)

    def _client_output(self, peer: Peer, connection: int, data: bytes | None) -> None:
        name = self._names[connection]
        if data is None:
            self.lines.append(f"{name} closed")
            return
        client = self.clients.get(name)
        if client is not None and client.connection == connection:
            for body in client.reader.feed(data):
                self.lines.append(f"{name} <- {show_frame(decode_server_frame(body))}")

    def _client(self, key: int) -> str:
        return f"cp{key >> 32}#{key & 0xFFFFF}"

    def _run(self, run: Run) -> str:
        last = run.first_sequence + run.count - 1
        return f"{run.publisher}/{run.instance} {run.first_sequence}..{last} of {self._client(run.client)}"

    def _changes(self, changes: list[SubscriptionChange]) -> str:
        return ", ".join(
            f"{short_number(one.change)}: {self._client(one.subscription >> 20)}.{one.subscription & 0xFFFFF} "
            f"{'removed' if one.normal_form is None else 'set'}"
            for one in changes
        )

    def _hits(self, message: Result) -> list[str]:
        rows = []
        clients, matches = iter(unpack("Q", message.clients)), iter(unpack("I", message.matches))
        numbers = unpack("I", message.numbers)
        at = 0
        for publication, count in zip(unpack("I", message.matched), unpack("I", message.notifications), strict=True):
            for _ in range(count):
                client, match = next(clients), next(matches)
                rows.append(f"[{publication}] for {self._client(client)} {numbers[at : at + match]}")
                at += match
        return rows

    def _delivery(self, message: Deliver) -> list[str]:
        rows = []
        runs, sequences = unpack("I", message.run), unpack("Q", message.sequence)
        publications, matches = iter(unpack("I", message.publication)), iter(unpack("I", message.matches))
        numbers = unpack("I", message.numbers)
        at = 0
        for session, count in zip(unpack("I", message.sessions), unpack("I", message.notifications), strict=True):
            for _ in range(count):
                publication, match = next(publications), next(matches)
                publisher, _, _, token = message.runs[runs[publication]]
                rows.append(
                    f"{publisher} {sequences[publication]} (token {short_number(token)}) for #{session & 0xFFFFF} "
                    f"{numbers[at : at + match]}"
                )
                at += match
        return rows

    def _moving(self, message: Message) -> list[str]:
        match message:
            case GroupCopy(_, entries):
                return [self._changes(entries)]
            case GroupsTaken(_, entries):
                return [f"{entries} entries"]
            case GroupsEnd(_, groups, counts, _):
                shown = zip(struct.unpack(f"<{len(groups) // 2}H", groups), unpack("I", counts), strict=True)
                return [f"group {group}: {count} entries" for group, count in shown]
            case Ready(_, entries, size):
                return [f"{entries} entries, {size} bytes have come"]
            case Switch(_, ends):
                return [f"ep{slot} ends before {sequence}" for slot, sequence in ends]
            case StreamEnd(_, access_point, sequence):
                return [f"of ap{access_point} ends before {sequence}"]
            case PublisherStates(_, states, last):
                shown_states = [f"{one.publisher}/{one.instance} {one.released}, {one.pending} runs" for one in states]
                return [*shown_states, *(["that was all"] if last else [])]
            case _:
                return []

    def _show(self, message: Message) -> str:
        name = type(message).__name__
        rows: list[str]
        match message:
            case Publications():
                rows = [*map(self._run, message.runs), *cut(message.payload, message.lengths)]
            case Batch():
                stamp = f"epoch {message.epoch}, sequence {message.sequence}, expect {message.expect}"
                ways = zip(message.runs, message.exit_points, message.exit_sequences, strict=True)
                rows = [stamp, *(f"{self._run(run)} -> ep{slot} {sequence}" for run, slot, sequence in ways)]
            case Result():
                rows = [f"ap{message.access_point} {message.sequence}", *map(self._run, message.runs)]
                rows += self._hits(message) or ["no hits"]
                rows += [f"[{place}] rejected: {reason}" for place, reason in message.rejected]
            case Deliver():
                rows = self._delivery(message)
            case Delivered():
                rows = [f"tokens {list(map(short_number, message.tokens))}"]
            case Acknowledge():
                rows = [
                    f"{self._client(client)} up to {upto}" + "".join(f", {one[0]} rejected" for one in rejected)
                    for client, upto, rejected in message.acknowledgements
                ]
            case ChangeSubscriptions(changes) | ApplyChanges(_, _, changes):
                rows = [self._changes(changes)]
            case Applied(_, changes) | Changed(changes, _):
                rows = [str(list(map(short_number, changes)))]
            case SessionOpened(client_id, client, _) | SessionClosed(client_id, client):
                rows = [f"{client_id} = {self._client(client)}"]
            case SessionTaken(client, _):
                rows = [self._client(client)]
            case Join() | Left() | Emptied():
                rows = []
            case GroupCopy() | GroupsTaken() | GroupsEnd() | Ready() | Switch() | StreamEnd() | PublisherStates():
                rows = [f"epoch {message.epoch}", *self._moving(message)]
            case PublisherSettled():
                rows = [f"{message.publisher}/{message.instance} {message.runs} runs, up to {message.upto}"]
            case Gone(member):
                rows = [short(member.peer)]
            case Recover(epoch, _, _, replaced) | Rebuild(epoch, replaced):
                rows = [f"epoch {epoch}", *(f"another {SHORT[layer]}{slot}" for layer, slot in replaced)]
            case MoveClients(addresses, _):
                rows = [f"to {addresses}"]
            case (
                Install()
                | Installed()
                | Serve()
                | Prepare()
                | Prepared()
                | Begin()
                | Mark()
                | Commit()
                | EpochEnd()
                | EpochEnded()
                | Ended()
                | Retire()
                | Abort()
                | Settled()
                | Rebuilt()
                | Renew()
                | Resume()
            ):
                rows = [f"epoch {message.epoch}"]
            case DurableHomes(client_ids):
                rows = [", ".join(client_ids)]
            case FindHome() | DurableEnded():
                rows = [message.client_id]
            case HomeFound():
                rows = [f"{message.client_id} at cp{message.home}", message.address or "away"]
            case _:
                raise AssertionError(f"no way to show {name}")
        return f"{name}  {'; '.join(rows)}".rstrip()


def show_frame(frame: frames.ServerFrame) -> str:
    """Return a frame to a client in one line."""
    match frame:
        case frames.Welcome():
            held = f", resumed with {unpack('I', frame.held)}" if frame.resumed else ""
            return f"Welcome  window {frame.publish_window}, {frame.publish_window_bytes} bytes{held}"
        case frames.Acknowledged(upto, window, window_bytes, rejected):
            reasons = "".join(f"; {sequence} rejected: {reason}" for sequence, reason in rejected)
            return f"Acknowledged  up to {upto}, window {window}, {window_bytes} bytes{reasons}"
        case frames.Done(request):
            return f"Done  request {request}"
        case frames.Refused(request, code, reason, position, limit):
            return f"Refused  request {request}: {code}, {reason!r}, position {position}, limit {limit}"
        case frames.Notify():
            rows = []
            numbers, at = unpack("I", frame.numbers), 0
            attributes = cut(frame.payload, frame.lengths)
            for run, sequence, matches, one in zip(
                unpack("I", frame.run), unpack("Q", frame.sequence), unpack("I", frame.matches), attributes, strict=True
            ):
                rows.append(f"{frame.runs[run][0]} {sequence} {one} for {numbers[at : at + matches]}")
                at += matches
            for place, (position, again) in enumerate(
                zip(unpack("Q", frame.positions), frame.redelivered, strict=True)
            ):
                rows[place] += f" at {position}{' again' * again}"
            return f"Notify  {'; '.join(rows)}"
        case frames.Held(subscriptions):
            return f"Held  {'; '.join(f'{number} {policy} {text}' for number, text, policy in subscriptions)}"
        case frames.Dropped(reason, notifications, counts):
            return f"Dropped  {notifications} by {reason}: {counts}"
        case frames.Bye(code, reason):
            return f"Bye  {code}: {reason}"
        case _:
            return type(frame).__name__


def show_write(write: Write) -> str:
    """Return what is to be on disk in a few words."""
    name = type(write).__name__
    match write:
        case DeadLetter():
            return name
        case Took(publisher, instance, sequence):
            return f"{name} {publisher}/{instance} up to {sequence}"
        case Append(_, first, last):
            rest = f" {first}..{last}"
        case Discard(_, upto):
            rest = f" up to {upto}"
        case SaveSubscription(_, number) | RemoveSubscription(_, number):
            rest = f".{number}"
        case _:
            rest = ""
    return f"{name} #{write.session & 0xFFFFF}{rest}"


def short_number(number: int) -> int:
    """Return the number of a change or a token without the incarnation that stands above it."""
    return number & (1 << NUMBER_BITS) - 1


def short(peer: Peer) -> str:
    """Return a machine's short name."""
    return SHORT[peer.layer] + ("" if peer == COORDINATOR_PEER else str(peer.slot))


def replay(text: str) -> str:
    """Return the transcript with what happens now in place of what stands there."""
    player = Player()
    blocks = []
    for block in text.strip().split("\n\n"):
        lines = block.splitlines()
        comments = [line for line in lines if line.startswith("#")]
        commands = [line for line in lines if line.startswith("> ")]
        if not commands:
            blocks.append("\n".join(comments))
            continue
        assert len(commands) == 1, f"a block has one command: {block}"
        said = player.play(commands[0][2:])
        blocks.append("\n".join([*comments, *commands, *(f"  {line}" for line in said)]))
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] != ["--rewrite"]:
        sys.exit("usage: python -m tests.transcripts.runner --rewrite")
    for transcript in sorted(FOLDER.glob("*.txt")):
        transcript.write_text(replay(transcript.read_text(encoding="utf-8")), encoding="utf-8")
