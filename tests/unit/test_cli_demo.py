"""The demo's judgement, on a broker that can be made to misbehave: nothing wrong passes, and all that is right does."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest

from actors.demo import CITY, MADRID, Interest, Pace, _first, play
from actors.demo_oracle import Oracle, Source, Task, expected_bits
from actors.demo_tally import Tally
from cluster.errors import KittiwakeError
from cluster.language import parse
from cluster.readings import CityGenerator, ReadingsError
from tests.unit.cli_broker import FakeBroker

COUNT = 3_000
INTERESTS = (
    Interest("high", "a threshold", "no2 > 30"),
    Interest("squares", "a prefix", 'station starts_with "Plaza"'),
    Interest("never", "a threshold", "no2 > 1e6"),
)
PACE = Pace(live_s=0, poll_s=0, quiet_s=0, settle_s=0, watch_s=0)


async def nothing_lost() -> list[str]:
    return []


def run_demo(
    broker: FakeBroker, *, lost: Any = nothing_lost, source: Source | None = None
) -> tuple[bool, list[str], list[str]]:
    """Play the demo on the broker; return the verdict, what was shown, and the live counts."""
    shown: list[str] = []
    live: list[str] = []
    source = source or Source(None, COUNT)

    async def expected() -> bytes:
        return expected_bits(Task(source, [interest.filter for interest in INTERESTS]))

    async def demo() -> bool:
        return await play(
            ["kittiwake://a:1", "kittiwake://b:2"],
            CityGenerator(COUNT),
            None,
            INTERESTS,
            connect=broker.connect,
            expected=expected,
            lost=lost,
            show=shown.append,
            live=live.append,
            pace=PACE,
        )

    return asyncio.run(demo()), shown, live


def test_all_is_well() -> None:
    broker = FakeBroker()
    equal, shown, live = run_demo(broker)
    assert equal
    assert shown[-1].startswith("Each subscriber got exactly")
    assert "read 3,000 values in 3,000 rows, 3,000 valid, 3,000 taken; 0 rows could not be used" in shown
    high = sum(attributes.get("no2", 0) > 30 for _, _, attributes in broker.published)
    rows = {line.split()[0]: line.split() for line in shown if line}
    assert rows["high"][-7:] == ["3,000", f"{high:,}", f"{high:,}", "0", "0", "0", "0"]
    assert rows["never"][-6:] == ["0"] * 6
    assert any("published in" in line and "publications/s" in line for line in shown)
    assert any("p50" in line and "p99" in line for line in shown)
    assert any("published" in line for line in live)
    assert live[-1] == ""
    assert broker.urls == ["kittiwake://a:1", "kittiwake://b:2", "kittiwake://a:1", "kittiwake://a:1"]


def _lose(client_id: str, sequence: int, one: Any) -> list[Any]:
    return [] if client_id == "demo-high" and sequence % 500 == 3 else [one]


def _double(client_id: str, sequence: int, one: Any) -> list[Any]:
    return [one, one] if client_id == "demo-squares" and sequence < 100 else [one]


def _alter(client_id: str, sequence: int, one: Any) -> list[Any]:
    one = copy.copy(one)
    one.attributes = one.attributes | {"lat": 0.0}
    return [one]


def _forge(client_id: str, sequence: int, one: Any) -> list[Any]:
    forged = copy.copy(one)
    forged.publisher = "stranger"
    return [one, forged]


def _shift(client_id: str, sequence: int, one: Any) -> list[Any]:
    """As many as expected, but not the right ones: only the sets tell."""
    one = copy.copy(one)
    one.sequence = max(1, sequence - 1)
    return [one]


class _Swap:
    """Delivers pairs in the wrong order."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}

    def __call__(self, client_id: str, sequence: int, one: Any) -> list[Any]:
        if client_id in self.held:
            return [one, self.held.pop(client_id)]
        if sequence < COUNT // 2:
            self.held[client_id] = one
            return []
        return [one]


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (_lose, "did not arrive"),
        (_double, "squares: .* arrived twice"),
        (_alter, "arrived with other attributes"),
        (_forge, "are none of ours"),
        (_shift, "arrived and do not match"),
        (_Swap(), "arrived out of order"),
    ],
)
def test_what_is_wrong_is_found(fault: Callable[[str, int, Any], list[Any]], complaint: str) -> None:
    equal, shown, _ = run_demo(FakeBroker(fault=fault))
    assert not equal
    with pytest.raises(AssertionError, match=complaint):
        raise AssertionError("\n".join(line for line in shown if line.startswith("WRONG")))
    assert not any(line.startswith("Each subscriber got exactly") for line in shown)


def test_refusals_are_wrong() -> None:
    broker = FakeBroker(reject=lambda attributes: "odd" if attributes["station"] == "Gull Rock" else None)
    equal, shown, _ = run_demo(broker)
    assert not equal
    assert any("were refused" in line for line in shown)


def test_an_oracle_that_read_something_else_is_wrong() -> None:
    equal, shown, _ = run_demo(FakeBroker(), source=Source(None, COUNT - 1))
    assert not equal
    assert "WRONG: 3,000 were published, the oracle read 2,999" in shown


def test_a_lost_process_ends_it() -> None:
    async def lost() -> list[str]:
        return ["matcher 0"]

    with pytest.raises(KittiwakeError, match="the cluster has lost matcher 0"):
        run_demo(FakeBroker(), lost=lost)


def test_the_innermost_exception_is_told() -> None:
    inner = KeyError("a")
    assert _first(BaseExceptionGroup("g", [ExceptionGroup("h", [inner]), ValueError()])) is inner


def test_oracle_processes_agree_with_the_evaluator() -> None:
    source = Source(None, 1_000)
    filters = [interest.filter for interest in CITY]
    with Oracle(source, filters, 3) as oracle:
        bits = oracle.result()
    publications = list(CityGenerator(1_000))
    assert len(bits) == 1_000
    for place, text in enumerate(filters):
        held = [bool(byte >> place & 1) for byte in bits]
        assert held == [parse(text).matches(publication) for publication in publications]
    assert any(bits)


def test_an_oracle_that_fails_says_why() -> None:
    with Oracle(Source(None, 10), ["no2 >"], 1) as oracle, pytest.raises(RuntimeError, match="expected a value"):
        oracle.result()
    with Oracle(Source(None, 10**9), ["no2 > 1"], 2):
        pass  # leaving ends processes that are still at work


def test_the_limit_of_a_source() -> None:
    assert sum(1 for _ in Source(None, 10, 3).open()) == 3
    assert len(expected_bits(Task(Source(None, 10, 7), ["no2 > 1"], 1, 2))) == 3
    with pytest.raises(ReadingsError):
        Source("/absent").open()


@pytest.mark.parametrize("interests", [CITY, MADRID])
def test_filters_of_the_demo_match_some_and_not_all(interests: tuple[Interest, ...]) -> None:
    assert len({interest.name for interest in interests}) == 6
    for interest in interests:
        assert parse(parse(interest.filter).text) == parse(interest.filter)
    if interests is CITY:
        bits = expected_bits(Task(Source(None, 20_000), [interest.filter for interest in interests]))
        for place in range(6):
            assert 0 < sum(byte >> place & 1 for byte in bits) < 10_000


def test_delays_and_order_of_a_tally() -> None:
    tally = Tally("p", 1)
    assert tally.delay_s(0.5) is None
    for number in range(3):
        tally.sent({"n": number})
    assert tally.arrived(0, "p", 1), "the first is kept whole"
    assert not tally.arrived(0, "p", 3)
    assert not tally.arrived(0, "p", 2)
    assert not tally.arrived(0, "p", 4)
    one = tally.received[0]
    assert (one.delivered, one.out_of_order, one.foreign) == (3, 1, 1)
    assert tally.delay_s(0.99) is not None
    assert tally.arrivals == 4
