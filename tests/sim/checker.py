"""The judge: what each session had to get, could get, and must not get.

The oracle is the filter language's evaluator. A publication meets a subscription at some moment between its first
transmission and its acknowledgement; in that stretch the subscription was in one or more states (not opened, a filter,
another filter, closed; a state is possible from the moment its request was sent until the next request's Done).

    required    every possible state's filter matches, and the subscription was not closed before the end
    allowed     some possible state's filter matches
    forbidden   none does

Where publication and subscription went over one connection and by one access point, and the publication was sent
only once, their order is fixed, and so is the state.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cluster import Filter, parse
from tests.sim.client import LOSSY, NEVER, Client, Publication, Received, Session, State, require

CLOCK_MS = 100
"""What a connection point's clock may be behind; two ticks."""


@lru_cache(maxsize=1024)
def _filter(text: str) -> Filter:
    return parse(text)


def _holds(state: State, publication: Publication) -> bool:
    if state.filter is None or publication.attributes is None:
        return False
    known = publication.truth.get(state.filter)
    if known is None:
        known = publication.truth[state.filter] = _filter(state.filter).matches(publication.attributes)
    return known


def possible_states(session: Session, number: int, publication: Publication, now: int) -> list[State]:
    """Return the states in which the subscription may have been when the publication was matched, as known now."""
    history = session.histories[number]
    if publication.session is session and not session.rebound:
        return [[state for state in history if state.sent < publication.sent][-1]]
    end = publication.acknowledged if publication.acknowledged != NEVER else now
    states = []
    for place, state in enumerate(history):
        replaced = history[place + 1].done if place + 1 < len(history) else NEVER
        if state.sent <= end and (replaced == NEVER or replaced >= publication.sent):
            states.append(state)
    return states


def allowed(session: Session, number: int, publication: Publication, now: int) -> bool:
    """Tell whether a notification of the subscription is right."""
    return any(_holds(state, publication) for state in possible_states(session, number, publication, now))


def required(session: Session, number: int, publication: Publication, now: int) -> bool:
    """Tell whether the subscription was certain to match, if nothing closed it later."""
    if publication.acknowledged == NEVER:
        return False
    states = possible_states(session, number, publication, now)
    return all(_holds(state, publication) for state in states)


def _closed_before(session: Session, number: int, stamp: int) -> bool:
    return any(state.filter is None and NEVER < state.sent < stamp for state in session.histories[number])


def required_numbers(session: Session, publication: Publication, now: int) -> list[int]:
    """Return the session's subscriptions that had to see the publication by now."""
    return [
        number
        for number in session.histories
        if required(session, number, publication, now) and not _closed_before(session, number, now)
    ]


def check_allowed(session: Session, now: int) -> None:
    """Check that what a session got was right, whatever it did not get."""
    for received in session.received.values():
        for number in received.numbers:
            require(
                allowed(session, number, received.publication, now),
                f"{session.name()}: #{received.publication.number} {received.publication.attributes} came for {number}",
            )


def check_served(session: Session, publications: list[Publication], *, dated: bool) -> None:
    """Check what subscriptions were given of what is valid. Raises Violation.

    dated: the time left to a publication did not travel, so that it was over when it had to be.
    """
    for number, served in session.served.items():
        name = f"{session.name()}: subscription {number}"
        opened = served.opened
        for one in served.got.values():
            label = f"#{one.number} {one.attributes}"
            require(one.valid_for_ms > 0, f"{name} was given {label}, which is not valid for any time")
            require(_holds(opened, one), f"{name} was given {label}, its filter was {opened.filter}")
            withdrawn = one.withdrawn != NEVER and one.withdrawn < opened.sent
            require(not withdrawn, f"{name} was given {label}, which was unpublished")
            over = one.acknowledged != NEVER and one.transmissions == 1
            over = over and one.acknowledged_ms + one.valid_for_ms + CLOCK_MS < served.sent_ms
            require(not (dated and over), f"{name} was given {label}, valid for {one.valid_for_ms} ms, too late")
        if served.over == NEVER:
            closed = any(state.filter is None and state.sent > opened.sent for state in session.histories[number])
            ended = session.ended != NEVER
            require(ended or closed or opened.done == NEVER, f"{name} was never given all that is valid")
            continue
        for one in publications:
            certain = (
                one.valid_for_ms > 0
                and NEVER < one.acknowledged < opened.sent
                and (one.withdrawal == NEVER or one.withdrawal > served.over)
                and one.sent_ms + one.valid_for_ms - CLOCK_MS > served.over_ms
                and _holds(opened, one)
            )
            live = session.received.get(one.number)
            got = one.number in served.got or (live is not None and number in live.numbers)
            require(
                got or not certain,
                f"{name} was not given #{one.number} {one.attributes}, valid for {one.valid_for_ms} ms",
            )


def _given(session: Session, number: int, publication: Publication) -> bool:
    served = session.served.get(number)
    return served is not None and publication.number in served.got


def check_session(session: Session, publications: list[Publication], now: int) -> None:
    """Check everything that one session got and did not get. Raises Violation."""
    name = session.name()
    last: dict[Client, tuple[int, int]] = {}  # publisher -> sequence and stamp of the last notification
    for received in session.received.values():
        publication = received.publication
        last[publication.publisher] = publication.sequence, received.stamp
        for number in received.numbers:
            require(
                allowed(session, number, publication, now),
                f"{name}: #{publication.number} {publication.attributes} came for {number}, whose filter was "
                f"{[state.filter for state in possible_states(session, number, publication, now)]}",
            )
    missing_required = missing_allowed = 0
    lost: list[tuple[int, Publication]] = []
    by_number: dict[int, list[int]] = {number: [0, 0] for number in session.histories}
    for publication in publications:
        got = session.received.get(publication.number)
        if got is not None:
            for number in required_numbers(session, publication, got.stamp):
                require(
                    number in got.numbers or _given(session, number, publication),
                    f"{name}: #{publication.number} came for {got.numbers}, {number} was missing",
                )
            continue
        if publication.sent == NEVER:
            continue
        # In an ended session only what came before a later one of the same publisher was certain to arrive.
        horizon = now
        if session.ended != NEVER:
            later, horizon = last.get(publication.publisher, (0, 0))
            if later < publication.sequence:
                horizon = 0
        certain = required_numbers(session, publication, horizon) if horizon else []
        certain = [number for number in certain if not _given(session, number, publication)]
        for number in certain:
            require(
                session.policies[number].startswith(LOSSY),
                f"{name}: #{publication.number} {publication.attributes} never came for {number}",
            )
            by_number[number][0] += 1
            lost.append((number, publication))
        missing_required += bool(certain)
        hoped = [number for number in session.histories if allowed(session, number, publication, now)]
        for number in hoped:
            by_number[number][1] += 1
        missing_allowed += bool(hoped)
    require(
        session.dropped <= missing_allowed,
        f"{name}: {session.dropped} dropped, no more than {missing_allowed} are missing",
    )
    if session.ended != NEVER:
        return
    require(
        missing_required <= session.dropped, f"{name}: {missing_required} are missing, {session.dropped} were dropped"
    )
    for number, (least, most) in by_number.items():
        told = sum(count for (one, _), count in session.drops.items() if one == number)
        require(least <= told <= most, f"{name}: {told} of {number} dropped, {least} to {most} are missing")
    check_latest(session, lost)


def check_latest(session: Session, lost: list[tuple[int, Publication]]) -> None:
    """Check that something newer came for what a subscription with latest_per_key has lost, if not to the limit.

    lost: (number, publication) of what was certain to match and never came. What outdates it came to the connection
    point after it, and so to the client after it was sent, and no earlier than the same publisher's own. It may be one
    that the client had of an earlier session and that its publisher has sent again.
    """
    by_value: dict[tuple[int, Any], list[Received]] = {}
    for received in (*session.received.values(), *session.again):
        for number in received.numbers:
            attribute = _attribute(session.policies[number])
            if attribute is not None:
                by_value.setdefault((number, _value(received.publication, attribute)), []).append(received)
    for number, publication in lost:
        attribute = _attribute(session.policies[number])
        if attribute is None or (number, "drop_oldest") in session.drops or (number, "drop_newest") in session.drops:
            continue
        value = _value(publication, attribute)
        require(
            any(
                newer.stamp > publication.sent
                and (
                    newer.publication.publisher is not publication.publisher
                    or newer.publication.sequence > publication.sequence
                )
                for newer in by_value.get((number, value), ())
            ),
            f"{session.name()}: #{publication.number} was lost for {number}, nothing newer with {attribute} = {value}",
        )


def _attribute(policy: str) -> str | None:
    return policy.removeprefix("latest_per_key(").removesuffix(")") if policy.startswith("latest_per_key") else None


def _value(publication: Publication, attribute: str) -> Any:
    """The values of the simulator's attributes are strings, and numbers that are equal where they are the same."""
    assert publication.attributes is not None, "it matched"
    return publication.attributes.get(attribute, ())


def check_acknowledged(publication: Publication, sessions: list[Session], handed: set[tuple[int, int, int]]) -> None:
    """Check, at the moment of an acknowledgement, that whoever had to get the publication was handed it.

    handed: (connection point, session, publication) of every Deliver that a connection point has taken.
    """
    for session in sessions:
        if session.ended == NEVER and required_numbers(session, publication, publication.acknowledged):
            require(
                (session.connection_point, session.number, publication.number) in handed,
                f"#{publication.number} is acknowledged, {session.name()} has not been handed it",
            )
