"""What costs most, and what people see of measures: the sample of hits, the aggregates in the status, the command."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import actors.asking
from actors.cli import main
from cluster.aggregates import of_cluster, of_slices
from cluster.busiest import HALF_SAMPLES, KEPT, SAMPLE, Busiest, document, ranked
from cluster.columns import U64
from cluster.config import Config
from cluster.histogram import quantile
from cluster.measures import DELAY, MATCH
from cluster.messages import (
    CONNECTION_POINT,
    EXIT_POINT,
    MATCHER,
    OPERATOR,
    Answer,
    Peer,
    Received,
    Report,
    Request,
    Send,
    SessionOpened,
    Tick,
    client_key,
    subscription_id,
)
from tests.unit.test_coordinator import serving


def test_shares_are_seen_as_they_are_within_the_sample_s_error() -> None:
    rng = random.Random(7)
    busiest = Busiest()
    shares = {1: 0.5, 2: 0.2, 3: 0.05}
    for _ in range(1500):
        known = rng.choices([*shares, 0], [*shares.values(), 0.25], k=600)
        # The rest is spread over many; hits of a publication are sorted by subscription.
        hits = [one or 1000 + rng.randrange(100_000) for one in known]
        busiest.sample(np.array(sorted(hits[:300]) + sorted(hits[300:]), U64))
    top = busiest.top()
    assert [subscription for subscription, _ in top[:3]] == [1, 2, 3]
    for subscription, parts in top[:3]:
        assert parts / 1e6 == pytest.approx(shares[subscription], rel=0.15)
    assert len(top) < 10


def test_the_sample_is_bounded_in_work_and_in_memory() -> None:
    busiest = Busiest()
    hits = np.arange(1_000_000, dtype=U64)
    busiest.sample(hits)
    assert sum(busiest._counts.values()) <= SAMPLE
    rng = np.random.default_rng(3)
    for _ in range(2 * HALF_SAMPLES // 63 + 10):
        busiest.sample(rng.integers(0, 1 << 60, 1000).astype(U64))
    assert len(busiest._counts) <= KEPT + 10 * SAMPLE, "those seen once are forgotten"
    assert busiest.top() == [], "nothing stands out"
    busiest.sample(np.array([], U64))


def test_what_was_busy_fades() -> None:
    busiest = Busiest()
    for subscription in (5, 6, 6, 6):
        for _ in range(HALF_SAMPLES // SAMPLE):
            busiest.sample(np.full(SAMPLE, subscription, U64))
    assert busiest.top()[0][0] == 6
    assert dict(busiest.top())[5] < 200_000, "it was a quarter of all"


def test_matchers_are_weighed_by_their_hits() -> None:
    client = client_key(0, 7)
    rows = ranked({0: ([(subscription_id(client, 3), 500_000)], 10.0), 1: ([(9, 100_000), (8, 50_000)], 1000.0)})
    assert [(row.matcher, row.hits_per_s) for row in rows] == [(1, 100.0), (1, 50.0), (0, 5.0)]
    answer = document(rows, 1010.0, {client: "roof"}, 3, ["matcher 2"])
    assert answer["subscriptions"][2] == {
        "client_id": "roof",
        "subscription": 3,
        "matcher": 0,
        "hits_per_s": 5.0,
        "share": 0.005,
    }
    assert answer["subscriptions"][0]["client_id"] is None
    assert len(document(rows, 1010.0, {}, 1, [])["subscriptions"]) == 1
    assert document([], 0.0, {}, 1, []) == {"hits_per_s": 0.0, "subscriptions": [], "missing": []}


def report(at_ms: int, **options: Any) -> Report:
    values: dict[str, Any] = {"counters": {}, "histograms": {}, "lanes": [], "match_ns": None, **options}
    return Report(at_ms, **values)


def test_an_operator_asks_the_coordinator() -> None:
    machine = serving()
    operator = Peer(OPERATOR, 0)

    def ask(arguments: dict[str, Any]) -> Answer:
        (sent,) = machine.handle(Received(operator, Request("busiest", json.dumps(arguments).encode())))
        assert isinstance(sent, Send)
        assert isinstance(sent.message, Answer)
        return sent.message

    assert json.loads(ask({}).document)["missing"] == ["matcher 0", "matcher 1"]
    client = client_key(0, 1)
    machine.handle(Received(Peer(CONNECTION_POINT, 0), SessionOpened("roof", client, 1)))
    machine.handle(Received(Peer(MATCHER, 0), report(1000, counters={"hits": 100})))
    top = [(subscription_id(client, 4), 250_000)]
    machine.handle(Received(Peer(MATCHER, 0), report(2000, counters={"hits": 500}, busiest=top)))
    answer = json.loads(ask({"top": 1}).document)
    assert answer == {
        "hits_per_s": 400.0,
        "subscriptions": [{"client_id": "roof", "subscription": 4, "matcher": 0, "hits_per_s": 100.0, "share": 0.25}],
        "missing": ["matcher 1"],
    }
    for wrong in (0, 51, "all"):
        assert ask({"top": wrong}).error == f"top is {wrong!r}, allowed is 1 to 50"


class FakeAdmin:
    async def busiest(self, top: int) -> dict[str, Any]:
        row = {"client_id": "roof", "subscription": 4, "matcher": 0, "hits_per_s": 1234.5, "share": 0.25}
        gone = row | {"client_id": None}
        return {"hits_per_s": 5000.0, "subscriptions": [row, gone][:top], "missing": ["matcher 1"]}


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"name: absent\ndata_directory: {tmp_path / 'data'}\n")
    result = CliRunner().invoke(main, ["busiest", "--config", str(config)])
    assert result.exit_code == 1
    assert "no cluster 'absent' runs here" in result.output
    monkeypatch.setattr(actors.asking, "open_admin", lambda config: FakeAdmin())
    result = CliRunner().invoke(main, ["busiest"])
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["5,000", "matches/s", "in", "all"],
        ["CLIENT", "SUBSCRIPTION", "MATCHER", "SHARE", "MATCHES/S"],
        ["roof", "4", "0", "25.0%", "1,234"],
        ["(not", "connected)", "4", "0", "25.0%", "1,234"],
        ["nothing", "reported", "yet:", "matcher", "1"],
    ]
    assert len(json.loads(CliRunner().invoke(main, ["busiest", "--top", "1", "--json"]).stdout)["subscriptions"]) == 1


# Aggregates --------------------------------------------------------------------------------------------------------


def test_a_quantile_is_read_from_the_buckets() -> None:
    assert quantile([0, 0, 0], (10, 20), 0.5) is None
    assert quantile([4, 0, 0], (10, 20), 0.5) == 5
    assert quantile([2, 2, 0], (10, 20), 0.75) == 15
    assert quantile([0, 0, 9], (10, 20), 0.5) == 20


def test_the_status_holds_the_last_interval_of_each_slice_and_of_all() -> None:
    machine = serving()
    machine.handle(Tick(1_000))
    door, matcher, exit_point = Peer(CONNECTION_POINT, 0), Peer(MATCHER, 0), Peer(EXIT_POINT, 0)
    delay = [0] * (len(DELAY.buckets) + 2)
    slower = [*delay]
    slower[4], slower[-1] = 100, 400_000
    match = [0] * (len(MATCH.buckets) + 2)
    for at_ms, grown, delays in ((1000, 0, delay), (3000, 1, slower)):
        counters = {
            "accepted": 10 + 100 * grown,
            "outcome_matched": 4 + 60 * grown,
            "outcome_unmatched": 1 + 20 * grown,
            "in_flight": 5 + 20 * grown,
            "notifications": 200 * grown,
            "useful_us": 400_000 * grown,
            "resident_bytes": 5,
        }
        machine.handle(Received(door, report(at_ms, counters=counters, histograms={"notification_delay": delays})))
        searched = {"publications": 100 * grown, "useful_us": 3_000_000 * grown}
        machine.handle(Received(matcher, report(at_ms, counters=searched, histograms={"match": match})))
    lanes = [(CONNECTION_POINT, 0, 2, 77), (CONNECTION_POINT, 1, 1, 5)]
    machine.handle(Received(exit_point, report(9, lanes=lanes)))
    status = machine.status()
    rows = {(row["layer"], row["slot"]): row for row in status["members"]}  # type: ignore[attr-defined]
    assert rows[door]["measures"] == {
        "useful_share": 0.2,
        "publications_per_s": 50.0,
        "notifications_per_s": 100.0,
        "backlog_messages": 2,
        "backlog_bytes": 77,
        "resident_bytes": 5,
    }
    assert rows[matcher]["measures"]["useful_share"] == 1.0
    assert rows[exit_point]["measures"]["useful_share"] is None, "one report says nothing of an interval"
    assert "measures" not in rows[Peer(MATCHER, 1)]
    measures: Any = status["measures"]
    books = measures["books"]
    assert books["accepted"] == sum(books.values()) - books["accepted"] == 110
    assert measures["notification_delay_ms"] == {"count": 100, "p50": 4.0, "p99": 4.98}
    assert measures["match_ms"] == {"count": 0, "p50": None, "p99": None}
    assert measures["layers"][CONNECTION_POINT]["publications_per_s"] == 50.0
    assert measures["layers"][MATCHER] == {
        "reporting": 1,
        "useful_share_max": 1.0,
        "publications_per_s": 50.0,
        "notifications_per_s": 0,
        "backlog_messages": 0,
        "backlog_bytes": 0,
        "resident_bytes": 0,
    }
    assert json.loads(json.dumps(measures)) == measures


def test_of_no_reports_there_is_nothing_to_say() -> None:
    assert of_slices({}) == {}
    nothing = of_cluster({})
    assert set(nothing["books"].values()) == {0}
    assert nothing["layers"][MATCHER]["reporting"] == 0
    assert Config().metrics.interval_ms == 1000
