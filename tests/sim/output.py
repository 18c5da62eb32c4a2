"""What must hold of the matched output, whatever has died.

each row is a publication that a client has sent, well-formed and unchanged, and of each there is one row at most
a row names only subscriptions that may have matched, and at least one unless everything is written
what came to a subscriber live, or was certain to match, has a row that names somebody
if everything is written, each publication that is acknowledged and not refused has a row
in a slot, the rows of each publisher are in its order
what is acknowledged as stored has its row on disk by then, if it has one
"""

from __future__ import annotations

from cluster.frames import SUBSCRIPTION_BITS
from cluster.matched_disk import MatchedDisk
from cluster.messages import client_key
from tests.sim import checker
from tests.sim.client import Client, Publication, Session, require

Name = tuple[str, int, int]


def name_of(publication: Publication) -> Name:
    """Return what names a publication for good."""
    return publication.publisher.client_id, publication.publisher.instance, publication.sequence


def check_stored(disk: MatchedDisk, publication: Publication) -> None:
    """Check a publication at the moment of its acknowledgement."""
    if not publication.stored:
        return
    name = name_of(publication)
    for slot, log in disk.slots.items():
        for row in log.rows[log.durable :]:
            found = row.run.publisher, row.run.instance, row.sequence
            require(found != name, f"#{publication.number} is acknowledged as stored, its row in slot {slot} is not")


def check_output(
    disk: MatchedDisk, clients: list[Client], publications: list[Publication], now: int, *, everything: bool
) -> None:
    """Check all rows, when everything is at rest. Raises Violation."""
    known = {name_of(one): one for one in publications}
    sessions: dict[int, Session] = {
        client_key(one.connection_point, one.number): one for client in clients for one in client.sessions
    }
    written: dict[Name, tuple[int, int]] = {}
    matched: set[Name] = set()
    last: dict[tuple[int, str, int], int] = {}
    for slot, offset, row in disk.all_rows():
        name = row.run.publisher, row.run.instance, row.sequence
        publication = known.get(name)
        require(publication is not None and row.payload == publication.packed, f"row {slot}/{offset}: {name}, unknown")
        assert publication is not None, "for the type checker"
        label = f"#{publication.number}"
        require(publication.attributes is not None, f"row {slot}/{offset}: {label}, which is refused")
        require(name not in written, f"{label} is written twice: {written.get(name)} and {(slot, offset)}")
        written[name] = slot, offset
        before = last.get((slot, *name[:2]), 0)
        require(before < row.sequence, f"row {slot}/{offset}: {label}, {row.sequence} of its publisher after {before}")
        last[slot, row.run.publisher, row.run.instance] = row.sequence
        if row.subscriptions():
            matched.add(name)
        require(everything or name in matched, f"row {slot}/{offset}: {label}, which matches nothing")
        for subscription in row.subscriptions():
            session = sessions.get(subscription >> SUBSCRIPTION_BITS)
            number = subscription & ((1 << SUBSCRIPTION_BITS) - 1)
            if session is not None:
                right = checker.allowed(session, number, publication, now)
                require(right, f"row {slot}/{offset}: {label} matches {number} of {session.name()}, and does not")
    for client in clients:
        for session in client.sessions:
            for received in session.received.values():
                one = received.publication
                require(
                    name_of(one) in matched, f"#{one.number} came to {session.name()} and is not written as matched"
                )
            if session.ended != checker.NEVER:
                continue
            for one in publications:
                certain = checker.required_numbers(session, one, now)
                require(not certain or name_of(one) in matched, f"#{one.number} is not written, {certain} match")
    if everything:
        for one in publications:
            accepted = one.acknowledged != checker.NEVER and not one.rejected
            require(not accepted or name_of(one) in written, f"#{one.number} is acknowledged and not written")
