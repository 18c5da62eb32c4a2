"""From what was seen of a run with faults to its figures.

acknowledged:      publications that were. unacknowledged: those that were not until the end of the drain.
lost:              notifications that the oracle requires of acknowledged publications, and that did not come.
doubled:           notifications that came to a subscriber's application again; flagged: marked `redelivered`.
out_of_order:      first deliveries that came after a later one of the same publisher, by subscriber.
oracle_differences: notifications that list wrong subscriptions, or of publications or subscriptions that never were.
takeover_s:        per fault the later of serving_s and acknowledged_s; null where there was none.
serving_s:         from the fault until the status was seen to show the slot serving with a new incarnation.
acknowledged_s:    from the fault to the first acknowledgement of a publication that was due after it, for the
                   publisher that waited longest.
ack_delay_max_s:   the longest that an acknowledgement took, from when the publication was due, of all that were due
                   in the WINDOW_S around a fault. Publications that do not need what is gone are acknowledged
                   meanwhile, which `acknowledged_s` may see; this figure sees those that need it.
acks_during_fault_min: acknowledgements within WINDOW_S of a fault; the fewest of all faults.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.load import Log
from bench.recovery_faults import Fault
from bench.scaling_oracle import (
    EXAMPLES,
    Arrived,
    Expected,
    Verdict,
    arrived,
    judge,
    misordered,
    missing_of,
    strangers,
    times_of,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

WINDOW_S = 5.0


@dataclass
class Seen:
    """What a run has left. due, acknowledged: of each publication; acknowledged is infinite when it never was."""

    due: Floats
    acknowledged: Floats
    publishers: int
    logs: list[Log]
    expected: Expected
    faults: list[Fault]
    trouble: list[str]


@dataclass
class Counts:
    """What was wrong with what was delivered."""

    lost: int = 0
    doubled_flagged: int = 0
    doubled_unflagged: int = 0
    out_of_order: int = 0
    oracle_differences: int = 0
    notifications: int = 0


def count(seen: Seen) -> tuple[Counts, list[str]]:
    """Compare all that was delivered with what had to be; return the counts, and examples in words."""
    counts = Counts()
    examples: list[str] = []
    total = len(seen.due)
    known_ids = np.unique(seen.expected.ids)
    was_acknowledged = np.isfinite(seen.acknowledged)
    for client, log in enumerate(seen.logs):
        rows = arrived(log, seen.publishers)
        counts.notifications += len(rows.number)
        counts.oracle_differences += strangers(rows, total, known_ids)
        verdict = judge(rows, client, seen.expected, 0, total)
        counts.oracle_differences += verdict.differences
        missing = missing_of(times_of(rows.number, 0, total), client, seen.expected, 0)
        lost = missing[was_acknowledged[missing]]
        counts.lost += len(lost)
        again, first = repeated(rows)
        flagged = np.isin(again, np.frombuffer(log.redelivered, np.uint32))
        counts.doubled_flagged += int(flagged.sum())
        counts.doubled_unflagged += int((~flagged).sum())
        counts.out_of_order += misordered(_rows(rows, first))
        examples += _told(verdict, rows, client, lost, again[~flagged], seen)
    return counts, examples[:EXAMPLES]


def repeated(rows: Arrived) -> tuple[Integers, Integers]:
    """Return the rows that bring a publication again, and those that bring one for the first time; both ascending."""
    new = np.zeros(len(rows.number), np.bool_)
    new[np.unique(rows.number, return_index=True)[1]] = True
    return np.flatnonzero(~new), np.flatnonzero(new)


def _rows(rows: Arrived, chosen: Integers) -> Arrived:
    """Return these rows, without their ids."""
    return Arrived(
        rows.number[chosen], rows.publisher[chosen], rows.time[chosen], rows.counts[chosen], np.zeros(0, np.int64)
    )


def _told(verdict: Verdict, rows: Arrived, client: int, lost: Integers, again: Integers, seen: Seen) -> list[str]:
    told = [example for example in verdict.examples if "expected" in example]
    for number in lost[:EXAMPLES].tolist():
        told.append(
            f"client {client} did not get publication {number}, due {_since(seen, seen.due[number])}, "
            f"acknowledged {_since(seen, seen.acknowledged[number])}"
        )
    for row in again[:EXAMPLES].tolist():
        told.append(f"client {client} got publication {rows.number[row]} again, {_since(seen, rows.time[row])}")
    return told


def _since(seen: Seen, time: float) -> str:
    """Tell a time by the last fault before it."""
    before = [fault for fault in seen.faults if fault.at <= time]
    if not before:
        return f"{time - seen.due[0]:.3f} s after the beginning"
    return f"{time - before[-1].at:.3f} s after fault {len(before) - 1} ({before[-1].name})"


def acknowledged_s(due: Floats, acknowledged: Floats, publishers: int, at: float) -> float:
    """Return the seconds from `at` to the first acknowledgement of a publication due after it, for the worst publisher.

    Infinite when a publisher had none.
    """
    worst = 0.0
    for place in range(publishers):
        own = acknowledged[place::publishers][due[place::publishers] > at]
        worst = max(worst, float(own.min()) - at if len(own) else math.inf)
    return worst


def figures_of_fault(fault: Fault, seen: Seen) -> dict[str, Any]:
    """Return what one fault did."""
    serving = math.inf if fault.serving is None else fault.serving - fault.at
    answered = acknowledged_s(seen.due, seen.acknowledged, seen.publishers, fault.at)
    until = fault.at + (fault.stop_s or 0.0) + WINDOW_S
    around = (seen.due >= fault.at - WINDOW_S) & (seen.due < until)
    delays = (seen.acknowledged - seen.due)[around]
    during = (seen.acknowledged >= fault.at) & (seen.acknowledged < fault.at + WINDOW_S)
    return {
        "at_s": round(fault.at - float(seen.due[0]), 3) if len(seen.due) else None,
        "role": fault.role,
        "slot": fault.slot,
        "pid": fault.pid,
        "stop_s": fault.stop_s,
        "incarnation": fault.incarnation,
        "incarnation_after": fault.after,
        "happened": fault.happened,
        "replaced": fault.after is not None and fault.after > fault.incarnation,
        "zombie_ended": fault.zombie,
        "serving_s": finite(serving),
        "acknowledged_s": finite(answered),
        "takeover_s": finite(max(serving, answered)),
        "ack_delay_max_s": finite(float(delays.max())) if len(delays) else None,
        "acks": int(during.sum()),
    }


def finite(value: float) -> float | None:
    """Return the value for JSON, which knows no infinity."""
    return round(value, 3) if math.isfinite(value) else None


def quantiles(values: Sequence[float | None]) -> dict[str, float | None]:
    """Return p50, p95 and the maximum; None stands for infinite, also in what is given."""
    if not values:
        return {"p50": None, "p95": None, "max": None}
    ascending = sorted(math.inf if value is None else value for value in values)
    # The smallest that so large a share does not exceed: between a number and infinity there is nothing to draw.
    ranks = {name: max(math.ceil(share * len(ascending)), 1) - 1 for name, share in (("p50", 0.5), ("p95", 0.95))}
    return {name: finite(ascending[rank]) for name, rank in ranks.items()} | {"max": finite(ascending[-1])}


def figures_of(seen: Seen) -> dict[str, Any]:
    """Return the figures of a run."""
    counts, examples = count(seen)
    faults = [figures_of_fault(fault, seen) for fault in seen.faults]

    def over(key: str) -> dict[str, float | None]:
        return quantiles([row[key] for row in faults])

    return {
        "kills": len(faults),
        "acknowledged": int(np.isfinite(seen.acknowledged).sum()),
        "lost": counts.lost,
        "doubled": counts.doubled_flagged + counts.doubled_unflagged,
        "out_of_order": counts.out_of_order,
        "takeover_s": over("takeover_s"),
        "acks_during_fault_min": min((row["acks"] for row in faults), default=None),
        "doubled_flagged": counts.doubled_flagged,
        "doubled_unflagged": counts.doubled_unflagged,
        "oracle_differences": counts.oracle_differences,
        "published": len(seen.due),
        "unacknowledged": int((~np.isfinite(seen.acknowledged)).sum()),
        "notifications": counts.notifications,
        "serving_s": over("serving_s"),
        "acknowledged_s": over("acknowledged_s"),
        "ack_delay_max_s": over("ack_delay_max_s"),
        "not_happened": sum(not row["happened"] for row in faults),
        "not_taken_over": sum(row["takeover_s"] is None for row in faults),
        "replaced": sum(row["replaced"] for row in faults),
        "zombies_left": sum(row["zombie_ended"] is False for row in faults),
        "faults": faults,
        "examples": examples,
        "trouble": seen.trouble,
    }


WRONG = (
    "lost",
    "doubled_unflagged",
    "out_of_order",
    "oracle_differences",
    "unacknowledged",
    "not_happened",
    "not_taken_over",
    "trouble",
)
"""Of these there must be none."""


def failed(figures: dict[str, Any], wanted: int) -> bool:
    """Tell whether anything was wrong, or fewer faults were made than wanted."""
    return figures["kills"] < wanted or any(figures[name] for name in WRONG)
