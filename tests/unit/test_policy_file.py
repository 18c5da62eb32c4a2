"""Scaling policies from YAML: what is wrong is told with file, line, key and what is allowed."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
import yaml

from autoscaler.costs import Interest
from autoscaler.policy import ScalingPolicy, SplitMerge, Utilization
from autoscaler.policy_file import PolicyFileError, json_schema, load_policy, policy_of
from autoscaler.yaml_lines import FILE_BYTES, NODES
from cluster.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
READY = ("autoscaler.yaml", "latency-first.yaml", "cost-first.yaml", "cupus.yaml")

GOOD = """\
apiVersion: kittiwake/v1
kind: ScalingPolicy
metadata: {name: city-air}
look_back_period_s: 30s
slo:
  - name: delay
    target: 100
    burn_rate: {fast: {window_s: 1m, factor: 10}, slow: {window_s: 15m, factor: 2}}
layers:
  matcher:
    min_replicas: 1
    max_replicas: 16
    triggers:
      - {type: utilization, target: 0.6, min: 0.4, max: 0.8}
      - {type: slo, name: delay}
      - type: split_merge
        split_above_ms: 4.0
        merge_below_ms: 1.0
  exit_point:
    max_replicas: 4
    triggers: [{type: ratio, of: matcher, one_per: 4}]
forecast: {method: linear, horizon: 90s}
"""


def problems(text: str) -> list[tuple[int, str, str]]:
    """What is found, as (line, key, text)."""
    with pytest.raises(PolicyFileError) as caught:
        policy_of(text.encode(), "p.yaml")
    return [tuple(one) for one in caught.value.problems]  # type: ignore[misc]


def changed(before: str, after: str) -> str:
    assert GOOD.count(before) == 1, before
    return GOOD.replace(before, after)


def test_a_policy_is_read() -> None:
    policy = policy_of(GOOD.encode())
    assert policy.look_back_period_s == 30
    assert policy.slo[0].target == 100
    assert policy.slo[0].burn_rate.slow.window_s == 900
    assert policy.slo[0].allowed_share == pytest.approx(0.01)
    assert policy.forecast.horizon == 90
    matcher = policy.layers.of("matcher")
    assert matcher is not None
    assert matcher.triggers[0] == Utilization(target=0.6, min=0.4, max=0.8)
    assert matcher.triggers[2] == SplitMerge(split_above_ms=4, merge_below_ms=1)
    assert policy.layers.of("access_point") is None


def test_the_example_in_the_readme_holds() -> None:
    readme = (CONFIGS.parent / "README.md").read_text()
    example = readme[readme.index("apiVersion: kittiwake/v1\n") :].partition("```")[0]
    matcher = policy_of(example.encode()).layers.of("matcher")
    assert matcher is not None
    assert len(matcher.triggers) == 4


def test_all_that_is_missing_or_unknown_is_told_at_once_line_by_line() -> None:
    with pytest.raises(PolicyFileError) as caught:
        policy_of(b"layers:\n  matcher:\n    triggers: [{type: split_merge}]\n    most: 1\n", "p.yaml")
    told = [line.partition(";")[0] for line in str(caught.value).splitlines()]
    assert told == [
        "p.yaml:1: apiVersion is missing",
        "p.yaml:1: kind is missing",
        "p.yaml:1: metadata is missing",
        "p.yaml:3: layers.matcher.triggers[0]: merge_below_ms is missing",
        "p.yaml:3: layers.matcher.triggers[0]: split_above_ms is missing",
        "p.yaml:4: layers.matcher.most: no such key",
    ]


@pytest.mark.parametrize("name", READY)
def test_the_ready_policies_hold(name: str) -> None:
    policy = load_policy(CONFIGS / name)
    assert policy.mode == "auto"
    document = yaml.safe_load((CONFIGS / name).read_text())
    jsonschema.Draft202012Validator(json_schema()).validate(document)


def test_the_balanced_policy_scales_every_layer() -> None:
    policy = load_policy(CONFIGS / "autoscaler.yaml")
    assert all(policy.layers.of(layer) for layer in ("connection_point", "access_point", "matcher", "exit_point"))


@pytest.mark.parametrize(
    ("before", "after", "line", "key", "text"),
    [
        (
            "    max_replicas: 16\n",
            "    max_replica: 16\n",
            12,
            "layers.matcher.max_replica",
            "no such key (did you mean max_replicas?); allowed are behavior, downscale_delay_s, ",
        ),
        (
            "  exit_point:\n",
            "  ep:\n",
            19,
            "layers.ep",
            "no such key: see exit_point; allowed are access_point, connection_point, exit_point, matcher",
        ),
        (
            "{type: slo, name: delay}",
            "{type: sla, name: delay}",
            15,
            "layers.matcher.triggers[1].type",
            "'sla'; allowed are connections, memory, queue, ratio, slo, split_merge, utilization",
        ),
        ("{type: slo, name: delay}", "{name: delay}", 15, "layers.matcher.triggers[1].type", "missing; allowed are"),
        ("        merge_below_ms: 1.0\n", "", 16, "layers.matcher.triggers[2]", "merge_below_ms is missing"),
        (
            "method: linear",
            "method: cubic",
            22,
            "forecast.method",
            "Invalid enum value 'cubic'; allowed are holt_winters, linear, none, schedule",
        ),
        ("target: 0.6,", "target: 6,", 14, "layers.matcher.triggers[0].target", "Expected `float` <= 1.0"),
        ("target: 100\n", "target: fast\n", 7, "slo[0].target", "Expected `float`, got `str`"),
        ("kittiwake/v1", "elastic.broker/v1", 1, "apiVersion", "'elastic.broker/v1'; allowed are kittiwake/v1"),
        ("    min_replicas: 1\n", "    min_replicas: 17\n", 11, "layers.matcher.min_replicas", "17 is above max_"),
        (
            "merge_below_ms: 1.0",
            "merge_below_ms: 2.0",
            18,
            "layers.matcher.triggers[2].merge_below_ms",
            "2; it must be below split_above_ms / 2 (2), or two halves of a split would merge at once",
        ),
        ("min: 0.4", "min: 0.7", 14, "layers.matcher.triggers[0].min", "0.7 is above target (0.6)"),
        ("max: 0.8", "max: 0.5", 14, "layers.matcher.triggers[0].max", "0.5 is below target (0.6)"),
        (
            "{type: slo, name: delay}",
            "{type: slo, name: late}",
            15,
            "layers.matcher.triggers[1].name",
            "late is no objective of slo; allowed are delay",
        ),
        ("factor: 10", "factor: 101", 8, "slo[0].burn_rate.fast.factor", "can never be reached: with a budget of 0.01"),
        ("window_s: 1m", "window_s: 20m", 8, "slo[0].burn_rate.fast.window_s", "not below that of slow (900 s)"),
        ("of: matcher", "of: exit_point", 21, "layers.exit_point.triggers[0].of", "exit_point is the layer itself"),
        (
            "{type: ratio, of: matcher, one_per: 4}",
            "{type: connections, target_per_replica: 4}",
            21,
            "layers.exit_point.triggers[0].type",
            "connections are of connection_point alone",
        ),
        (
            "look_back_period_s: 30s",
            "look_back_period_s: 500ms",
            4,
            "look_back_period_s",
            "below metrics_interval_s (1 s)",
        ),
        ("look_back_period_s: 30s", "timezone: Mars/Olympus", 4, "timezone", "'Mars/Olympus' is no time zone"),
        (
            "look_back_period_s: 30s",
            "guards: {excluded_periods: ['Sat 02:00-04:00', 'Samstag']}",
            4,
            "guards.excluded_periods[1]",
            "'Samstag' is not of the form",
        ),
        (
            "look_back_period_s: 30s",
            "fallback: {replicas: {matcher: 20}}",
            4,
            "fallback.replicas.matcher",
            "20; allowed is min_replicas to max_replicas (1 to 16)",
        ),
        ("look_back_period_s: 30s", "fallback: {replicas: {access_point: 2}}", 4, "fallback.replicas.access_point", ""),
        ("look_back_period_s: 30s", "cost: {budget_per_hour: 2}", 4, "cost.budget_per_hour", "needs prices"),
        (
            "look_back_period_s: 30s",
            "cost: {budget_per_hour: 0.1, replica_hour: {matcher: 0.2}}",
            4,
            "cost.budget_per_hour",
            "0.1; the layers' min_replicas alone cost 0.2",
        ),
        (
            "method: linear,",
            "method: none, schedule: [{cron: '0 7 * * *', layer: matcher, min_replicas: 2, for_s: 1h}],",
            22,
            "forecast.schedule",
            "has no effect with method none",
        ),
        (
            "method: linear,",
            "method: schedule, schedule: [{cron: '0 7 * * mon-fri x', layer: matcher, min_replicas: 2, for_s: 1h}],",
            22,
            "forecast.schedule[0].cron",
            "6 fields, expected are 5",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(before: str, after: str, line: int, key: str, text: str) -> None:
    found = problems(changed(before, after))
    assert (line, key) in [(one[0], one[1]) for one in found]
    assert any(text in one[2] for one in found if one[1] == key), found


def test_all_of_a_kind_are_told_at_once_in_order_of_lines() -> None:
    text = changed("    min_replicas: 1\n", "    min_replicas: 17\n").replace("min: 0.4", "min: 0.7")
    assert [line for line, _, _ in problems(text)] == [11, 14]
    with pytest.raises(PolicyFileError, match=r"^p\.yaml:11: layers\.matcher\.min_replicas: 17 is above"):
        policy_of(text.encode(), "p.yaml")


def test_layers_must_not_be_each_others_floor() -> None:
    text = changed(
        "      - {type: slo, name: delay}\n",
        "      - {type: ratio, of: exit_point, one_per: 0.2}\n",
    )
    keys = [key for _, key, _ in problems(text)]
    assert keys == ["layers.matcher.triggers[1].of", "layers.exit_point.triggers[0].of"]


def test_a_key_given_twice_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"p\.yaml:6: mode is given twice, first in line 4"):
        policy_of(b"apiVersion: kittiwake/v1\nkind: x\nmetadata: {}\nmode: auto\nslo: []\nmode: manual\n", "p.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: [1, 2\nb: 3\n", r"p\.yaml:2: not YAML"),
        (b"a: \xff", r"p\.yaml: not YAML"),
        (b"? [a]\n: 1\n", r"p\.yaml:1: a key that is a list"),
        (b"a: 1\n" * (FILE_BYTES // 5 + 1), r"p\.yaml: 26214\d bytes, the limit is 262144"),
        (b"a: &a [*a]\n", "not YAML|more than"),
        (b"a: 2026-99-99\n", r"p\.yaml: month must be in 1\.\.12"),
        (b"", "p.yaml:1: apiVersion is missing|Expected `object`"),
        (b"- 1\n", "Expected `object`, got `array`"),
    ],
)
def test_what_is_no_document_is_told(text: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        policy_of(text, "p.yaml")


def test_a_few_aliases_do_not_become_billions() -> None:
    rows = [b"a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    rows += [b"a%d: &a%d [%s]" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 12)]
    with pytest.raises(ConfigError, match=f"more than {NODES} values"):
        policy_of(b"\n".join(rows), "p.yaml")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file"):
        load_policy(tmp_path / "none.yaml")


def test_the_schema_knows_durations_and_refuses_other_keys() -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    document = yaml.safe_load(GOOD)
    validator.validate(document)
    assert not validator.is_valid({**document, "look_back": 3})
    assert not validator.is_valid({**document, "look_back_period_s": "30 parsecs"})
    assert msgspec.json.encode(json_schema())


INTEREST = {
    "publications_per_second": 800,
    "matches_per_publication": 930,
    "subscriptions": 10_000,
    "bytes_per_publication": 400,
}


def test_a_prior_is_read_from_the_file_beside_the_policy(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD + "capacity: {interest: interest.json}\n")
    (tmp_path / "interest.json").write_text(json.dumps(INTEREST | {"what": "others need"}))
    policy = load_policy(path)
    assert policy.capacity.known == Interest(**INTEREST)
    assert msgspec.json.decode(msgspec.json.encode(policy), type=ScalingPolicy) == policy, (
        "it goes to other nodes whole"
    )
    again = policy_of(
        GOOD.encode() + msgspec.json.encode({"capacity": {"interest": INTEREST}})[1:-1].replace(b"{", b" {")
    )
    assert again == policy
    assert policy_of(GOOD.encode()).capacity.known is None
    validator = jsonschema.Draft202012Validator(json_schema())
    for capacity in ({"interest": "interest.json"}, {"interest": INTEREST}, {}):
        validator.validate(yaml.safe_load(GOOD) | {"capacity": capacity})
    assert not validator.is_valid(yaml.safe_load(GOOD) | {"capacity": {"interest": 5}})


@pytest.mark.parametrize(
    ("given", "key", "text"),
    [
        ("{interest: none.json}", "capacity.interest", "none.json cannot be read: No such file or directory"),
        ("{interest: broken.json}", "capacity.interest", "broken.json: interest summary: JSON is malformed"),
        ("{interest: less.json}", "capacity.interest", "less.json: interest summary: subscriptions is -1"),
        (
            json.dumps({"interest": {key: INTEREST[key] for key in INTEREST if key != "publications_per_second"}}),
            "capacity.interest",
            "publications_per_second is missing",
        ),
        ("{interest: 5}", "capacity.interest", "Expected `str | object | null`, got `int`"),
        ("{intrest: a.json}", "capacity.intrest", "no such key (did you mean interest?); allowed are interest"),
        (json.dumps({"interest": INTEREST | {"subscriptions": -1}}), "capacity.interest", "subscriptions is -1"),
    ],
)
def test_what_is_wrong_with_a_prior_is_told_with_its_line(tmp_path: Path, given: str, key: str, text: str) -> None:
    (tmp_path / "broken.json").write_text("not json")
    (tmp_path / "less.json").write_text(json.dumps(INTEREST | {"subscriptions": -1}))
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD + f"capacity: {given}\n")
    with pytest.raises(PolicyFileError) as caught:
        load_policy(path)
    ((line, found, said),) = caught.value.problems
    assert (line, found) == (GOOD.count("\n") + 1, key)
    assert text in said
