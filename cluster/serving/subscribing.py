"""From Subscribe to Done: filters become normal forms, and the matchers' answer the client's."""

from __future__ import annotations

from functools import partial

import msgspec

from cluster import columns, frames
from cluster.config import Config
from cluster.durable import Held
from cluster.errors import FilterError, PolicyError
from cluster.frames import INITIAL_NONE, INITIAL_VALID, SUBSCRIPTION_BITS
from cluster.initial import Initial
from cluster.journal import Journal
from cluster.language import Filter, FilterLimits, encode_normal, parse
from cluster.messages import subscription_id
from cluster.policy import policy_of
from cluster.serving.attaching import Attaching
from cluster.serving.changes import Changes
from cluster.serving.leaving import Leaving
from cluster.serving.records import Refusal, Session
from cluster.serving.shared import SESSION_MASK, SUBSCRIPTION_MASK, Shared
from cluster.validity import Validity

DURABLE_POLICIES = ("block", "drop_oldest")
"""Of durable sessions; see durable/."""
CHANGE_US = 20
"""And one more for every two bytes of a filter, and for every ten bytes of its normal form."""
OVER_LIMIT_US = 10_000
"""A filter that is refused for a limit: finding out may take as long as for the costliest that is not."""


class Subscribing:
    """Checks what clients want to hear of, and tells them when it is so."""

    def __init__(
        self,
        shared: Shared,
        config: Config,
        changes: Changes,
        journal: Journal,
        attaching: Attaching,
        leaving: Leaving,
        validity: Validity,
    ) -> None:
        self._shared = shared
        self._changes = changes
        self._journal = journal
        self._attaching = attaching
        self._leaving = leaving
        self._validity = validity
        self._filters = FilterLimits(
            **msgspec.structs.asdict(config.filters), name_bytes=config.client_limits.name_bytes
        )

    def subscribe(self, session: Session, frame: frames.Subscribe) -> int:
        """Check the request and pass it on; return what it cost, in microseconds."""
        cost = CHANGE_US + len(frame.filter) // 2
        if not 0 <= frame.number < 1 << SUBSCRIPTION_BITS:
            raise Refusal("malformed", f"subscription number {frame.number}, allowed is below {1 << SUBSCRIPTION_BITS}")
        new = frame.number not in session.subscriptions
        if new and len(session.subscriptions) >= self._shared.limits.subscriptions:
            limit = self._shared.limits.subscriptions
            self._shared.write(
                session, frames.Refused(frame.request, "too_many", f"{limit} subscriptions are open", None, limit)
            )
            return cost
        valid = frame.initial == INITIAL_VALID
        if valid and not new and session.durable is not None:
            valid = False  # asked again, as the answer was lost with a connection: it has been given that, or will be
        if frame.initial not in (INITIAL_NONE, INITIAL_VALID) or (valid and not new):
            reason = f"initial {frame.initial[:32]!r}, known are {INITIAL_NONE}, {INITIAL_VALID}"
            if valid:
                reason = f"subscription {frame.number} is open, a new one alone has initial {INITIAL_VALID}"
            self._shared.write(session, frames.Refused(frame.request, "initial", reason, None, None))
            return cost
        try:
            policy = policy_of(frame.policy, self._filters)
            normal_form = encode_normal(_parse(frame.filter, self._filters).normal_form)
        except PolicyError as error:
            self._shared.write(
                session, frames.Refused(frame.request, error.code, error.reason, error.position, error.limit)
            )
            return cost
        except FilterError as error:
            self._shared.write(
                session, frames.Refused(frame.request, error.code, error.reason, error.position, error.limit)
            )
            return cost if error.limit is None else OVER_LIMIT_US
        if session.durable is not None:
            if frame.policy not in DURABLE_POLICIES:
                reason = f"policy {frame.policy[:32]!r}, a durable session knows {', '.join(DURABLE_POLICIES)}"
                self._shared.write(session, frames.Refused(frame.request, "policy", reason, None, None))
                return cost
            session.durable.hold(frame.number, Held(frame.filter, frame.policy, normal_form))
        assert session.connection is not None, "nobody asks"
        session.asked[frame.number] = (frame.policy, self._shared.connections[session.connection].now_us)
        session.live = columns.mask_with(session.live, frame.number)
        session.live[frame.number] = True
        session.outbox.set_policy(frame.number, policy)
        if valid and session.durable is not None:
            session.durable.serve(frame.number, Initial(frame.number, normal_form))
        elif valid:
            session.serving[frame.number] = session.initials[frame.number] = Initial(frame.number, normal_form)
        self._send_change(session, frame.request, frame.number, normal_form)
        return cost + len(normal_form) // 10

    def unsubscribe(self, session: Session, frame: frames.Unsubscribe) -> None:
        """Pass a request on; one for what is not open is answered at once."""
        if frame.number not in session.subscriptions:
            self._shared.write(session, frames.Done(frame.request))
            return
        del session.subscriptions[frame.number]
        session.asked.pop(frame.number, None)
        initial = session.serving.get(frame.number)
        if initial is not None:
            self._validity.forget(session.key & SESSION_MASK, initial)
            self._shared.touched[session.key & SESSION_MASK] = session
        if session.durable is not None:
            session.durable.close(frame.number)
        elif initial is not None:
            del session.serving[frame.number]
        self._send_change(session, frame.request, frame.number, None)

    def _send_change(self, session: Session, request: int, number: int, normal_form: bytes | None) -> None:
        closed = number if normal_form is None else None
        subscription = subscription_id(session.key, number)
        change = self._changes.note(session.key & SESSION_MASK, request, closed, subscription, normal_form)
        if normal_form is not None:
            self._shared.naming.name(session.key, session.client_id)
            session.subscriptions[number] = change
        asked = self._changes.underway[change.change]
        assert session.connection is not None, "nobody asks"
        asked.asked_us = self._shared.connections[session.connection].now_us
        if session.durable is not None:
            asked.connection, asked.portion = session.connection, self._journal.present
        self._changes.send(session.access_point, [change])

    def changed(self, numbers: list[int]) -> None:
        """The matchers have taken changes: tell the clients."""
        for change in self._changes.answered(numbers):
            session = self._shared.sessions.get(change.session)
            if session is not None and session.durable is not None:
                session.unanswered -= 1
                self._attaching.greet(session)
            if session is None or change.request is None:
                continue
            self._shared.answered.append(change.asked_us)
            closed = change.closed
            if closed is not None and closed not in session.subscriptions:
                session.live[closed] = False
                session.initials.pop(closed, None)  # not before: until here what was given may still come live
                session.closed_any = session.closed_now = True
                self._shared.touched[change.session] = session
            if session.durable is None:
                self._shared.tell_drops(session)  # under the policy that it had
                self._shared.write(session, frames.Done(change.request))
            elif change.connection == session.connection:
                self._journal.when(change.portion, partial(self._done, session, change.connection, change.request))
            initial = session.serving.get(change.message.subscription & SUBSCRIPTION_MASK)
            if initial is not None and not initial.asking:
                self._validity.ask(change.session, initial)
        self._changes.see_rebuilt()
        self._leaving.see_emptied()

    def ask_for_valid(self) -> None:
        """A recovery is over: what an earlier incarnation was giving is asked for, as the matchers hold it again."""
        for number, session in self._shared.sessions.items():
            for initial in session.serving.values():
                held = session.subscriptions.get(initial.number)
                if not initial.asking and held is not None and held.change not in self._changes.underway:
                    self._validity.ask(number, initial)

    def _done(self, session: Session, connection: int | None, request: int) -> None:
        if connection == session.connection:
            self._shared.write(session, frames.Done(request))


def _parse(spelling: str, limits: FilterLimits) -> Filter:
    """Return the filter, in text form or, behind a brace, in JSON form. Raises FilterError."""
    if not spelling.startswith("{"):
        return parse(spelling, limits)
    size = len(spelling.encode())
    if size > limits.text_bytes:
        raise FilterError(f"a filter of {size} bytes, the limit is {limits.text_bytes}", limit=limits.text_bytes)
    try:
        document = msgspec.json.decode(spelling)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FilterError(f"not JSON: {error}") from error
    return Filter.from_json(document, limits)
