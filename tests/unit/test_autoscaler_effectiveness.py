"""Growth that brought nothing: found out, blocked, each time for longer, and forgotten where it says nothing now."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from autoscaler.controller import Controller, Memory
from autoscaler.decider import Decider
from autoscaler.decision import Decision, LayerDecision
from autoscaler.signals import Signals
from tests.unit.autoscaling import decider, layer, policy, seen

GUARDS = {"warmup_s": 0, "min_gain": 0.1, "block_s": 100}


def only(decision: Decision, name: str = "matcher") -> LayerDecision:
    return next(one for one in decision.layers if one.layer == name)


def stages(decision: Decision, name: str = "matcher") -> dict[str, tuple[float, str | None]]:
    """By name of the stage: what it left, and the word if it held something back."""
    return {stage.name: (stage.after, stage.blocked) for stage in only(decision, name).stages}


def test_growth_that_brought_nothing_is_blocked() -> None:
    made = decider(policy(guards={"warmup_s": 0, "min_gain": 0.1, "block_s": 100}))

    def at(size: int, busy: float) -> Signals:
        return seen({"matcher": size}, busy={"matcher": busy}, publications_per_s=100.0)

    assert made.decide(0, at(2, 0.9)).targets == {"matcher": 4}
    early = made.decide(1, at(4, 0.9))  # as busy as before, at the same rate
    assert early.targets == {}
    assert only(early).why_not_more == "effectiveness: what 2 -> 4 has gained is not known yet"
    decision = made.decide(2, at(4, 0.9))
    assert decision.targets == {}
    assert decision.notes == (
        "matcher 2 -> 4 gained 0% of what was predicted (min_gain 10%): no growth for load for 100 s",
    )
    assert stages(decision)["effectiveness"] == (4, "ineffective")
    assert made.decide(101, at(4, 0.9)).targets == {}
    assert made.decide(102, at(4, 0.9)).targets == {"matcher": 8}


def test_growth_that_brought_what_was_promised_is_not_blocked() -> None:
    made = decider(policy(guards={"warmup_s": 0, "min_gain": 0.5, "block_s": 100}))
    made.decide(0, seen({"matcher": 2}, busy={"matcher": 1.0}, publications_per_s=100.0))
    more = seen({"matcher": 4}, busy={"matcher": 1.0}, publications_per_s=180.0)
    made.decide(1, more)
    decision = made.decide(2, more)
    assert (decision.notes, decision.targets) == ((), {"matcher": 8})


def test_growth_of_a_layer_that_is_still_too_small_is_not_judged() -> None:
    """Busy all the time before and after, while more and more waits: that says nothing of what was gained."""
    made = decider(policy(guards={"warmup_s": 0, "min_gain": 0.1, "block_s": 100}))

    def at(size: int, waiting: int) -> Signals:
        return seen({"matcher": size}, busy={"matcher": 1.0}, backlog={"matcher": waiting}, publications_per_s=1000.0)

    assert made.decide(0, at(2, 1000)).targets["matcher"] > 2
    made.decide(1, at(4, 5000))
    made.decide(2, at(4, 9000))
    assert made.decide(3, at(4, 9000)).targets["matcher"] > 4
    assert made.effectiveness.blocks == {}


class InVain:
    """A cluster whose busiest matcher is as busy at any size. growths: (second, size before)."""

    def __init__(self, *, rate: float = 100.0, held: int | None = None, **parts: Any) -> None:
        self.made = decider(policy(guards=GUARDS, layers={"matcher": layer(max_replicas=99, **parts)}))
        self.now, self.size, self.rate, self.held = 0, 1, rate, held
        self.growths: list[tuple[int, int]] = []
        self.notes: list[str] = []

    def signals(self) -> Signals:
        held = {} if self.held is None else {"held": {"matcher": self.held // self.size}}
        return seen({"matcher": self.size}, busy={"matcher": 0.6}, publications_per_s=self.rate, **held)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            decision = self.made.decide(float(self.now), self.signals())
            self.notes += decision.notes
            if "matcher" in decision.targets:
                self.growths.append((self.now, self.size))
                self.size = decision.targets["matcher"]
            self.now += 1

    @property
    def pauses(self) -> list[int]:
        """Seconds between a growth and the next."""
        return [after - before for (before, _), (after, _) in zip(self.growths, self.growths[1:], strict=False)]

    @property
    def times(self) -> int:
        return self.made.effectiveness.blocks["matcher"].times


def test_each_further_growth_in_vain_is_waited_for_twice_as_long_up_to_a_limit() -> None:
    world = InVain()
    world.run(9_000)
    # Two seconds pass until a growth is judged: its own interval, and the one after it.
    assert world.pauses == [102, 202, 402, 802, 1602, 1602, 1602, 1602]
    assert world.notes[2] == (
        "matcher 3 -> 4 gained 0% of what was predicted (min_gain 10%), 3 times in a row: no growth for load for 400 s"
    )


def test_explain_tells_that_it_is_a_row() -> None:
    world = InVain()
    world.run(110)
    decision = world.made.decide(float(world.now), world.signals())
    assert only(decision).why_not_more == (
        "effectiveness: growth for load was ineffective, 2 times in a row; blocked for 194 s more"
    )


def test_a_growth_that_gains_ends_the_row() -> None:
    world = InVain()
    world.run(110)
    assert world.times == 2
    world.run(195)
    assert world.size == 4, "a third one has begun"
    gained = seen({"matcher": 4}, busy={"matcher": 0.41}, publications_per_s=100.0)
    for _ in range(3):
        world.made.decide(float(world.now), gained)
        world.now += 1
    assert world.made.effectiveness.blocks == {}


@pytest.mark.parametrize(("rate", "said"), [(250.0, "250"), (40.0, "40")])
def test_a_row_ends_where_the_load_is_another(rate: float, said: str) -> None:
    """Then the first block alone counts, and the next growth in vain is a first one."""
    world = InVain()
    world.run(150)
    assert world.times == 2
    world.rate = rate
    world.run(60)  # 210 s; without the change it would be blocked until 304
    assert [at for at, _ in world.growths] == [0, 102, 204]
    expected = f"matcher: 2 growths in vain are forgotten, as {said} publications/s come, and 100 came then"
    assert world.notes[2] == expected
    assert world.times == 1


def test_a_load_that_changes_little_ends_nothing() -> None:
    world = InVain()
    for rate in range(100, 195, 5):
        world.rate = float(rate)
        world.run(16)
    assert [at for at, _ in world.growths] == [0, 102]


def test_a_row_ends_with_other_subscriptions() -> None:
    world = InVain(held=12_000)
    world.run(150)
    world.held = 30_000
    world.run(60)
    assert [at for at, _ in world.growths] == [0, 102, 204]
    assert "30,000 subscriptions are held, and 12,000 were then" in world.notes[2]


@pytest.mark.parametrize(("size", "said"), [(2, "it has shrunk from 3 to 2"), (6, "there are 6, and 3 were then")])
def test_a_row_ends_where_the_size_is_another(size: int, said: str) -> None:
    """An operator's, say."""
    world = InVain()
    world.run(150)
    assert (world.size, world.times) == (3, 2)
    world.size = size
    world.run(60)
    assert [at for at, _ in world.growths] == [0, 102, 204]
    assert said in world.notes[2]


def test_what_was_learned_elsewhere_does_not_shorten_the_first_block() -> None:
    world = InVain()
    world.run(10)
    world.rate = 1000.0
    world.run(91)
    assert [at for at, _ in world.growths] == [0]
    world.run(3)
    assert [at for at, _ in world.growths] == [0, 102]


def overloaded(size: int, done: float, waiting: int) -> Signals:
    """Matchers that are busy all the time and get so many publications a second done."""
    rows = seen({"matcher": size}, busy={"matcher": 1.0}, backlog={"matcher": waiting}, publications_per_s=5000.0)
    slices = tuple(
        msgspec.structs.replace(one, publications_per_s=done) if one.layer == "matcher" else one for one in rows.slices
    )
    return msgspec.structs.replace(rows, slices=slices)


def grown_while_overloaded(made: Decider, after: float) -> list[str]:
    assert made.decide(0, overloaded(2, 1000.0, 2000)).targets == {"matcher": 4}
    made.decide(1, overloaded(4, after, 9000))
    return list(made.decide(2, overloaded(4, after, 12000)).notes)


def test_an_overloaded_layer_is_judged_by_what_it_gets_done() -> None:
    """Four that share two full cores do no more than two of them."""
    made = decider(policy(guards=GUARDS))
    assert grown_while_overloaded(made, 1040.0) == [
        "matcher 2 -> 4 gained 4% of what was predicted (min_gain 10%): no growth for load for 100 s"
    ]
    assert made.effectiveness.blocks["matcher"].overloaded
    assert made.decide(50, overloaded(4, 1040.0, 50000)).targets == {}, "it was learned overloaded, and holds so"
    assert grown_while_overloaded(decider(policy(guards=GUARDS)), 1900.0) == []


def test_growth_that_can_never_be_judged_is_not_waited_for() -> None:
    """It was not overloaded, and is: that says nothing of the gain, and it has no time to lose."""
    made = decider(policy(guards=GUARDS, look_back_period_s=30))
    calm = seen({"matcher": 2}, busy={"matcher": 0.8}, publications_per_s=1000.0)
    assert made.decide(0, calm).targets == {"matcher": 4}
    assert made.decide(1, overloaded(4, 1000.0, 9000)).targets == {"matcher": 8}
    unproven = decider(policy(guards=GUARDS, look_back_period_s=30))
    assert unproven.decide(0, overloaded(2, 1000.0, 2000)).targets == {"matcher": 4}
    assert unproven.decide(1, overloaded(4, 1000.0, 9000)).targets == {}, "what it gets done will show what it gained"


def test_a_row_ends_when_a_layer_becomes_overloaded() -> None:
    world = InVain()
    world.run(150)
    assert world.times == 2
    full = msgspec.structs.replace(overloaded(3, 100.0, 5000), publications_per_s=100.0)
    found = [world.made.decide(float(at), full) for at in range(150, 210)]
    assert next(decision.at_s for decision in found if decision.targets) == 204
    assert any("it is overloaded and was not" in note for decision in found for note in decision.notes)


def test_a_row_outlives_the_coordinators_process() -> None:
    made = policy(guards=GUARDS, layers={"matcher": layer(max_replicas=99)})
    world = InVain()
    world.run(110)
    memory = Controller(world.made).memory()
    again = Controller(decider(made), msgspec.json.decode(msgspec.json.encode(memory), type=Memory))
    assert again.memory().blocks == memory.blocks
    assert again.tick(303.0, world.signals()) == []
    assert again.tick(304.0, world.signals()), "until then the second in a row blocks"


def test_a_policy_that_does_not_judge_is_not_held_by_what_another_one_has_learned() -> None:
    world = InVain()
    world.run(110)
    free = policy(guards=GUARDS | {"min_gain": 0}, layers={"matcher": layer(max_replicas=99)})
    assert Controller(decider(free), Controller(world.made).memory()).tick(120.0, world.signals())
