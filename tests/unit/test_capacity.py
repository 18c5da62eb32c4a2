"""The capacity model: fitted to what slices report, and held against the findings of the E-SilboPS paper."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from autoscaler.capacity import CapacityModel, Observation, exit_point_floor, observation
from autoscaler.costs import NAMES, Coefficients, Interest, Load, prior, read_interest, row, wakes
from autoscaler.decision import Capacity
from autoscaler.fitted import FittedCapacity
from autoscaler.least_squares import LeastSquares
from autoscaler.signals import LAYERS, Signals, SliceSignals
from autoscaler.speedup import Speedups, karp_flatt, predicted
from cluster.errors import ConfigError
from cluster.messages import ACCESS_POINT, CONNECTION_POINT, EXIT_POINT, MATCHER

TRUTH: Coefficients = {
    CONNECTION_POINT: {"f": 2e-6, "g": 1e-6, "w": 1e-4},
    ACCESS_POINT: {"f": 5e-6, "d": 2e-6, "w": 1e-4},
    MATCHER: {"a": 2e-5, "b": 2e-9, "w": 1e-4},
    EXIT_POINT: {"a": 0.0, "f": 2e-5, "c": 5e-6, "g": 2e-6, "w": 1e-4},
}


def sizes(matchers: int, exit_points: int = 1, access_points: int = 1, connection_points: int = 1) -> dict[str, int]:
    return {
        CONNECTION_POINT: connection_points,
        ACCESS_POINT: access_points,
        MATCHER: matchers,
        EXIT_POINT: exit_points,
    }


def share(truth: Coefficients, layer: str, size: dict[str, int], load: Load) -> float:
    terms = row(layer, size, load).terms
    work = sum(term * truth[layer][name] for term, name in zip(terms, NAMES[layer], strict=False))
    return work * load.publications_per_s + truth[layer]["w"] * wakes(load.publications_per_s)


def observed(
    truth: Coefficients,
    size: dict[str, int],
    load: Load,
    source: random.Random | None = None,
    noise: float = 0.0,
    skew: float = 1.0,
) -> Observation:
    mean = {}
    for layer in LAYERS:
        exact = share(truth, layer, size, load)
        mean[layer] = exact if source is None else max(0.0, exact * source.gauss(1, noise) + source.gauss(0, 0.005))
    busiest = {layer: mean[layer] * (skew if size[layer] > 1 else 1) for layer in LAYERS}
    return Observation(size, load, mean, busiest)


def exact(truth: Coefficients, cores: float | None = None) -> CapacityModel:
    """Return a model that knows the truth: it is its prior."""
    return CapacityModel({layer: {k: max(v, 1e-15) for k, v in truth[layer].items()} for layer in LAYERS}, cores=cores)


def test_least_squares_finds_what_it_was_given() -> None:
    source = random.Random(1)
    fit = LeastSquares([1e-6, 1e-9], [3.0, 3.0])
    for _ in range(300):
        x = source.uniform(1, 1000)
        fit.add(int(x) // 500, [1.0, x], 4e-6 + 3e-9 * x + source.gauss(0, 1e-8), 1e-8)
    fixed, slope = fit.solve()
    assert fixed == pytest.approx(4e-6, rel=0.02)
    assert slope == pytest.approx(3e-9, rel=0.02)
    assert fit.deviation([1.0, 500.0]) < 1e-8


def test_least_squares_keeps_to_the_prior_what_no_row_has_touched() -> None:
    fit = LeastSquares([2.0, 5.0], [3.0, 3.0])
    assert fit.solve() == pytest.approx([2.0, 5.0])
    for _ in range(100):
        fit.add("one", [1.0, 0.0], 3.0, 0.1)
    assert fit.solve() == pytest.approx([3.0, 5.0], rel=0.01)
    assert fit.deviation([0.0, 1.0]) == pytest.approx(15.0), "three times the prior: nothing is known of it"


@pytest.mark.parametrize("seed", range(20))
def test_no_coefficient_is_below_zero_and_the_minimum_is_the_best_of_many(seed: int) -> None:
    source = random.Random(seed)
    fit = LeastSquares([1.0, 1.0, 1.0], [3.0, 3.0, 3.0])
    rows = [([source.gauss(0, 1) for _ in range(3)], source.gauss(0, 3)) for _ in range(30)]
    for entries, target in rows:
        fit.add("one", entries, target, 1.0)
    found = fit.solve()
    assert min(found) >= 0

    def cost(values: list[float]) -> float:
        misses = sum((sum(e * v for e, v in zip(entries, values, strict=True)) - t) ** 2 for entries, t in rows)
        return misses + sum((v - 1) ** 2 / 9 for v in values)

    for _ in range(300):
        other = [max(0.0, value + source.gauss(0, 0.3)) for value in found]
        assert cost(found) <= cost(other) + 1e-9


def test_a_slower_machine_is_believed_and_other_sizes_are_not_forgotten() -> None:
    fit = LeastSquares([1.0, 1.0], [3.0, 3.0])
    for _ in range(400):
        fit.add(2, [1.0, 0.5], 2.0, 0.1)
    for _ in range(400):
        fit.add(1, [1.0, 1.0], 3.0, 0.1)
    assert fit.solve() == pytest.approx([1.0, 2.0], abs=0.05)
    for _ in range(1000):
        fit.add(1, [1.0, 1.0], 4.0, 0.1)
    fixed, slope = fit.solve()
    assert fixed + slope == pytest.approx(4.0, abs=0.05)
    assert fixed + slope / 2 == pytest.approx(2.0, abs=0.2), "what was learned at two still counts"


@pytest.mark.parametrize("seed", range(5))
def test_sizes_that_were_never_tried_are_predicted(seed: int) -> None:
    """Learned at one to three matchers and changing rates; asked about six."""
    source = random.Random(seed)
    model = CapacityModel()
    for step in range(900):
        size = sizes(1 + step // 300)
        load = Load(source.uniform(500, 4000), 50_000 + 100 * step, source.uniform(1, 3))
        model.observe(observed(TRUTH, size, load, source, 0.05))
    asked, load = sizes(6, 2), Load(6000, 300_000, 2)
    for layer in LAYERS:
        true = share(TRUTH, layer, asked, load) - TRUTH[layer]["w"] * wakes(6000)
        assert model.seconds(layer, asked, load) * 6000 == pytest.approx(true, rel=0.25), layer
    confidence = model.confidence(MATCHER, asked, load)
    assert confidence.observations == 900
    assert confidence.sizes == 3
    assert confidence.error < 0.3
    assert "900 observations at 3 sizes, not at this one" in confidence.words


def test_confidence_says_when_nothing_was_measured() -> None:
    confidence = CapacityModel().confidence(MATCHER, sizes(1), Load(1000, 10_000))
    assert confidence.observations == 0
    assert confidence.error > 1
    assert "nothing was measured" in confidence.words


def test_need_is_the_smallest_that_keeps_to_the_target() -> None:
    model = exact(TRUTH)
    for rate in (500, 2000, 9000, 20_000):
        for layer in LAYERS:
            load, size = Load(rate, 400_000, 2), sizes(3)
            need = model.need(layer, size, load, 0.6)
            assert need.count is not None, need.reason
            assert model.utilisation(layer, {**size, layer: need.count}, load) <= 0.6 + 1e-9
            if need.count > 1:
                assert model.utilisation(layer, {**size, layer: need.count - 1}, load) > 0.6


def test_it_says_when_more_matchers_cannot_help() -> None:
    """L * a >= r: 40,000 publications a second at 20 us each are 80 % before any subscription is looked at."""
    need = exact(TRUTH).need(MATCHER, sizes(2), Load(40_000, 1000), 0.6)
    assert need.count is None
    assert "no number of matchers keeps to 60%" in need.reason
    assert "20.0 us" in need.reason
    assert "80%" in need.reason
    assert exact(TRUTH).need(MATCHER, sizes(2), Load(40_000, 1000), 0.85).count is not None


def test_need_names_the_limit_that_it_passes() -> None:
    need = exact(TRUTH).need(MATCHER, sizes(1), Load(10_000, 1_000_000), 0.6, 8)
    assert need.count is None
    assert need.reason == "it would take 50 matchers, 8 are allowed"


def test_a_busier_slice_makes_the_layer_larger() -> None:
    load = Load(4000, 400_000)
    even, uneven = CapacityModel(), CapacityModel()
    for _ in range(500):
        even.observe(observed(TRUTH, sizes(3), load))
        uneven.observe(observed(TRUTH, sizes(3), load, skew=1.5))
    assert uneven.skew(MATCHER, 3) == pytest.approx(1.5, rel=0.01)
    assert uneven.skew(MATCHER, 1) == 1.0
    small, large = even.need(MATCHER, sizes(3), load, 0.6).count, uneven.need(MATCHER, sizes(3), load, 0.6).count
    assert small is not None
    assert large is not None
    assert large > small
    assert even.capacity(MATCHER, sizes(3), load) == pytest.approx(
        1.5 * uneven.capacity(MATCHER, sizes(3), load), rel=0.01
    )


def test_wake_ups_are_seen_but_sizes_are_not_reckoned_with_them() -> None:
    """At 1,000/s a matcher is a third busy, nearly all of it wake-ups: it carries far more than three times that."""
    truth = {layer: {**TRUTH[layer], "w": 6e-4} for layer in LAYERS}
    truth[MATCHER].update(a=1.5e-6, b=1e-10)
    model, source = CapacityModel(), random.Random(3)
    for _ in range(600):
        load = Load(source.choice([500, 1000, 2000, 8000]), 10_000, 1)
        model.observe(observed(truth, sizes(1), load, source, 0.05))
    load = Load(1000, 10_000, 1)
    assert model.busy(MATCHER, sizes(1), load) == pytest.approx(0.3025, rel=0.1)
    assert model.capacity(MATCHER, sizes(1), load) > 50_000
    assert model.need(MATCHER, sizes(1), Load(8000, 10_000, 1), 0.6).count == 1


def test_work_that_is_lost_among_wake_ups_is_not_taken_for_none() -> None:
    """A quiet cluster: what is seen says next to nothing of what a hundred times the load would be."""
    model, source = FittedCapacity(), random.Random(4)
    for now in range(60):
        model.observe(now, reported(sizes(1), Load(source.uniform(120, 160), 20, 1), scale=source.gauss(1, 0.1)))
    quiet = model.predict(ACCESS_POINT, 1, 140, 20, sizes(1))
    assert quiet is not None, "of the load that it has it knows"
    assert quiet.capacity_per_s < 20e6
    assert model.predict(MATCHER, 1, 20_000, 20, sizes(1)) is None
    assert model.best_size(MATCHER, 20_000, 20, sizes(1), 0.6, 8) is None
    assert model.can_help(MATCHER, 20_000, 20, sizes(1), 2) is None


# What the E-SilboPS paper found, section 6. Its machine has four cores, which all slices share. Units: a matcher's time
# for a thousand subscriptions is 1 ms; "processing time started to be dominated by matching as of 20 k subscriptions",
# so what does not depend on them is as much as 20 thousand are.
PAPER: Coefficients = {
    CONNECTION_POINT: {"f": 0.0, "g": 0.0, "w": 0.0},
    ACCESS_POINT: {"f": 5e-3, "d": 5e-3, "w": 0.0},
    MATCHER: {"a": 20e-3, "b": 1e-6, "w": 0.0},
    EXIT_POINT: {"a": 0.0, "f": 5e-3, "c": 9e-3, "g": 0.0, "w": 0.0},
}


def best(subscriptions: float, exit_points: int = 2) -> int:
    count = exact(PAPER, cores=4).best_matchers(sizes(1, exit_points), Load(1, subscriptions), 12).count
    assert count is not None
    return count


def test_the_papers_curve_of_100_000_subscriptions_peaks_at_three_matchers() -> None:
    assert best(100_000) == 3


def test_the_peak_moves_right_with_more_subscriptions() -> None:
    peaks = [best(count) for count in (1_000, 10_000, 50_000, 100_000, 300_000, 1_000_000)]
    assert peaks == sorted(peaks)
    assert peaks[0] <= 2
    assert peaks[-1] > 3


def test_six_matchers_and_a_million_subscriptions_gain_what_the_paper_measured() -> None:
    """3.4 times; Karp-Flatt e "sinks to the 10-20 % region" there, and is larger with fewer subscriptions."""
    model = exact(PAPER, cores=4)
    large = predicted(model, sizes(6, 2), Load(1, 1_000_000))
    small = predicted(model, sizes(6, 2), Load(1, 100_000))
    assert large.speedup == pytest.approx(3.4, abs=0.2)
    assert large.karp_flatt is not None
    assert small.karp_flatt is not None
    assert 0.1 <= large.karp_flatt <= 0.2
    assert small.karp_flatt > large.karp_flatt, "the smallest load yields the larger overhead"
    rising = [predicted(model, sizes(count, 2), Load(1, 100_000)).karp_flatt for count in (3, 4, 5, 6)]
    assert all(one is not None and two is not None and one < two for one, two in itertools.pairwise(rising))


def test_a_second_exit_point_never_carries_less_and_helps_most_with_many_matchers() -> None:
    """Without the shared cores, as exit points are what is asked about."""
    model = exact(PAPER)
    gains = []
    for count in range(2, 7):
        load = Load(1, 100_000)
        gains.append(model.whole(sizes(count, 2), load)[0] / model.whole(sizes(count, 1), load)[0])
    assert min(gains) >= 1
    assert gains == sorted(gains)
    assert gains[-1] > gains[0]


def test_the_shortest_way_has_about_sqrt_of_bs_over_c_plus_d_matchers() -> None:
    model = exact(PAPER)
    for subscriptions in (100_000, 1_000_000):
        load = Load(1, subscriptions)
        best = min(range(1, 60), key=lambda m: sum(model.seconds(layer, sizes(m), load) for layer in LAYERS))
        assert abs(best - model.quickest_matchers(sizes(1), load)) <= 1


def test_one_exit_point_for_four_matchers_is_a_floor() -> None:
    assert [exit_point_floor(count) for count in (1, 4, 5, 8, 9, 16)] == [1, 1, 2, 2, 3, 4]
    load = Load(10, 10_000)
    for matchers in (1, 4, 5, 12):
        need = exact(TRUTH).need(EXIT_POINT, sizes(matchers), load, 0.6)
        assert need.count == exit_point_floor(matchers)
    assert "one for every 4 of 12 matchers" in need.reason
    assert CapacityModel().plan(Load(100, 1_000), 0.6)[EXIT_POINT].count == 1
    plan = exact(TRUTH).plan(Load(10_000, 1_000_000), 0.6)
    assert plan[MATCHER].count == 50
    assert (plan[EXIT_POINT].count or 0) >= 13


def test_the_paper_and_karp_flatt_agree() -> None:
    assert karp_flatt(3.4, 8) == pytest.approx(0.193, abs=0.0005)
    assert karp_flatt(1.0, 1) is None
    assert karp_flatt(4.0, 4) == pytest.approx(0.0)


def test_speedups_are_measured_where_they_can_be_and_named_where_not() -> None:
    model, speedups, source = CapacityModel(), Speedups(), random.Random(5)
    for matchers in (1, 2, 4):
        for _ in range(200):
            seen = observed(TRUTH, sizes(matchers), Load(source.uniform(500, 1500), 200_000, 1), source, 0.05)
            model.observe(seen)
            speedups.observe(seen, model)
    for _ in range(50):
        speedups.observe(observed(TRUTH, sizes(2, 2), Load(1000, 200_000, 1), source, 0.05), model)
    by_size = {(one.sizes[MATCHER], one.sizes[EXIT_POINT]): one for one in speedups.figures(model)}
    assert set(by_size) == {(1, 1), (2, 1), (4, 1), (2, 2)}
    assert by_size[1, 1].speedup == pytest.approx(1.0)
    assert by_size[1, 1].karp_flatt is None
    assert by_size[2, 1].base == "measured"
    assert by_size[2, 2].base == "predicted"
    true = (20e-6 + 400e-6) / (20e-6 + 200e-6)
    assert by_size[2, 1].speedup == pytest.approx(true, rel=0.1)
    assert by_size[2, 1].efficiency == pytest.approx(true / 2, rel=0.1)
    assert by_size[4, 1].speedup > by_size[2, 1].speedup


def signals(**changes: object) -> Signals:
    one = dict.fromkeys(LAYERS, 1)
    slices = [
        SliceSignals(layer=layer, slot=1, useful_share=0.2, subscriptions=5_000 if layer == MATCHER else None)
        for layer in LAYERS
    ]
    values = {
        "interval_s": 1.0,
        "epoch": 1,
        "sizes": one,
        "publications_per_s": 100.0,
        "notifications_per_s": 250.0,
        "slices": tuple(slices),
    }
    return Signals(**{**values, **changes})  # type: ignore[arg-type]


def test_what_an_interval_teaches() -> None:
    seen = observation(signals())
    assert seen is not None
    assert seen.load == Load(100.0, 5_000, 2.5)
    assert seen.mean == dict.fromkeys(LAYERS, 0.2)
    assert observation(signals(transition=True)) is None
    assert observation(signals(publications_per_s=None)) is None
    assert observation(signals(publications_per_s=0.0)) is None
    silent = tuple(
        SliceSignals(layer=one.layer, slot=one.slot) if one.layer == EXIT_POINT else one for one in signals().slices
    )
    seen = observation(signals(slices=silent))
    assert seen is not None
    assert set(seen.mean) == set(LAYERS) - {EXIT_POINT}
    silent = tuple(SliceSignals(layer=one.layer, slot=one.slot) for one in signals().slices)
    assert observation(signals(slices=silent)) is None, "how many subscriptions there are is not known"


def test_interest_is_a_prior() -> None:
    document = {
        "publications_per_second": 800.0,
        "matches_per_publication": 930,
        "subscriptions": 10_000,
        "bytes_per_publication": 400.0,
        "hot_attributes": ["no2"],
    }
    for given in (document, json.dumps(document).encode()):
        interest = read_interest(given)
        assert interest.load == Load(800.0, 10_000, 930)
        first = prior(interest)
        assert first[MATCHER]["b"] * 10_000 == pytest.approx(37.7e-6, rel=0.01), "the 40 us that the README measured"
        assert first[MATCHER]["a"] > prior()[MATCHER]["a"]
    plan = CapacityModel(first).plan(interest.load, 0.6)
    assert plan[MATCHER].count == 1
    assert (plan[EXIT_POINT].count or 0) >= 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"subscriptions": None}, "subscriptions"),
        ({"subscriptions": -1}, "subscriptions is -1"),
        ({"bytes_per_publication": "many"}, "bytes_per_publication"),
        ({"matches_per_publication": float("nan")}, "matches_per_publication is nan"),
    ],
)
def test_a_bad_summary_names_the_field(change: dict[str, object], said: str) -> None:
    document = {
        "publications_per_second": 800.0,
        "matches_per_publication": 930,
        "subscriptions": 10_000,
        "bytes_per_publication": 400.0,
        **change,
    }
    with pytest.raises(ConfigError, match=said):
        read_interest(document)
    with pytest.raises(ConfigError, match="interest summary"):
        read_interest(b"not json")


def reported(
    size: dict[str, int], load: Load, scale: float = 1.0, truth: Coefficients | None = None, **changes: object
) -> Signals:
    slices = []
    for layer in LAYERS:
        for slot in range(size[layer]):
            slices.append(
                SliceSignals(
                    layer=layer,
                    slot=slot,
                    useful_share=min(1.0, share(truth or TRUTH, layer, size, load) * scale),
                    subscriptions=int(load.subscriptions) // size[layer] if layer == MATCHER else None,
                )
            )
    return signals(
        sizes=size,
        publications_per_s=load.publications_per_s,
        notifications_per_s=load.publications_per_s * load.notifications_per_publication,
        slices=tuple(slices),
        **changes,
    )


def test_the_deciders_view_says_nothing_before_it_has_seen_something() -> None:
    model: Capacity = FittedCapacity()
    for now in range(4):
        model.observe(now, reported(sizes(2), Load(1000, 100_000, 2)))
    model.observe(5, reported(sizes(2), Load(1000, 100_000, 2), transition=True))
    assert model.predict(MATCHER, 3, 1000, 100_000, sizes(2)) is None
    assert model.best_size(MATCHER, 1000, 100_000, sizes(2), 0.6, 8) is None
    assert model.can_help(MATCHER, 1000, 100_000, sizes(2), 3) is None
    model.observe(6, reported(sizes(2), Load(1000, 100_000, 2)))
    assert model.predict(MATCHER, 3, 1000, 100_000, sizes(2)) is not None


def test_the_deciders_view_of_a_fitted_layer() -> None:
    model, source = FittedCapacity(), random.Random(9)
    for now in range(600):
        model.observe(now, reported(sizes(1 + now // 300), Load(source.uniform(200, 2000), 200_000, 2)))
    now = model.predict(MATCHER, 2, 2000, 200_000, sizes(2))
    assert now is not None
    assert now.utilization == pytest.approx(share(TRUTH, MATCHER, sizes(2), Load(2000, 200_000, 2)), rel=0.05)
    assert now.speedup == pytest.approx(420 / 220, rel=0.05)
    assert now.efficiency == pytest.approx(now.speedup / 2)
    sizing = model.best_size(MATCHER, 4000, 200_000, sizes(2), 0.6, 16)
    assert sizing is not None
    assert sizing.size == sizing.best == 4
    hopeless = model.best_size(MATCHER, 60_000, 200_000, sizes(2), 0.6, 16)
    assert hopeless is not None
    assert hopeless.size is None
    assert hopeless.best == 16
    assert "more of them cannot help" in hopeless.reason
    assert model.can_help(MATCHER, 4000, 200_000, sizes(2), 3) is True
    assert model.can_help(MATCHER, 4000, 10, sizes(2), 3) is False
    assert [one.sizes[MATCHER] for one in model.figures()] == [1, 2]
    assert model.wake_share(MATCHER, 1000) == pytest.approx(0.05, rel=0.3)
    assert model.confidence(MATCHER, 1000, 200_000, sizes(2)).sizes == 2


def test_a_prior_decides_what_measurements_leave_open() -> None:
    """At one size nobody can tell what each matcher pays from what they share; what is told of interest can."""
    interest = Interest(
        publications_per_second=2000, matches_per_publication=900, subscriptions=5000, bytes_per_publication=100
    )
    load, size = Load(2000, 5000, 900), sizes(1)
    truth = {**TRUTH, MATCHER: {"a": 2e-6, "b": 40e-6 / 5000, "w": 2e-4}}
    gains = []
    for given in (None, interest):
        model = FittedCapacity(given)
        for now in range(30):
            model.observe(now, reported(size, load, truth=truth))
        now_, then = (model.model.capacity(MATCHER, {**size, MATCHER: count}, load) for count in (1, 4))
        gains.append(then / now_)
    assert gains[0] < 1.5, "without: subscriptions are taken for next to nothing"
    assert 3 < gains[1] < 4, "the truth is 3.4"


def test_what_the_deciders_view_rests_on_is_said() -> None:
    interest = Interest(
        publications_per_second=2000, matches_per_publication=900, subscriptions=5000, bytes_per_publication=100
    )
    load, told = Load(1000, 100_000, 2), FittedCapacity(interest)
    assert told.rests_on(MATCHER, 1000, 100_000, sizes(2)) == (
        "nothing was measured yet: these are the figures of another machine, "
        "with what a summary of interest leads to expect of matching (the prior)"
    )
    assert "interest" not in FittedCapacity().rests_on(MATCHER, 1000, 100_000, sizes(2))
    told.observe(0, reported(sizes(2), load))
    early = told.rests_on(MATCHER, 1000, 100_000, sizes(2))
    assert early.startswith("1 observation at 1 size, this one among them; off by about ")
    assert early.endswith("; too unsure to size by")
    source = random.Random(9)
    for now in range(1, 200):
        told.observe(now, reported(sizes(2), load._replace(publications_per_s=source.uniform(200, 2000))))
    assert told.rests_on(MATCHER, 1000, 100_000, sizes(2)).startswith("200 observations at 1 size")
    assert "too unsure" not in told.rests_on(MATCHER, 1000, 100_000, sizes(2))
