"""Metrics of a real cluster under load: every endpoint that discovery names is scraped, by HTTP, and its books hold."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from actors.discovery import FILE_NAME
from actors.launch import Broker, launch
from cluster.config import ClientPort, Config, Metrics
from cluster.messages import DATA_LAYERS
from cluster.metrics import AUTOSCALER, METRICS, OUTPUT, Kind
from tests.live.processes import PATIENCE_S, PATIENT
from tests.live.test_recovery import TWO, member, strike
from tests.live.traffic import traffic

pytestmark = [
    pytest.mark.live,
    # Ray's own, on import and at its end.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SERIES_MOST = 1000
"""Of one family, over the whole cluster."""
NAMES = {metric.name: metric for metric in METRICS}

Samples = dict[tuple[str, tuple[str, ...]], float]
"""By name, and the values of the labels."""


def get(address: str, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode()
        return text


def read(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removesuffix("_created")
            for end in ("_bucket", "_sum", "_count"):
                name = name.removesuffix(end) if name not in NAMES else name
            assert set(sample.labels) - {"le"} == set(NAMES[name].labels), sample
            found[sample.name, tuple(sample.labels.values())] = sample.value
    return found


def targets(document: str) -> dict[str, str]:
    """Return the address of each instance."""
    return {group["labels"]["instance"]: group["targets"][0] for group in json.loads(document)}


async def scrape(addresses: Iterable[str]) -> list[Samples]:
    """Scrape all of them at the same time."""
    return list(map(read, await asyncio.gather(*(asyncio.to_thread(get, address) for address in addresses))))


def total(scrapes: Iterable[Samples], name: str, *labels: str) -> float:
    """Return a metric's sum over the series that have these values of labels among theirs."""
    return sum(
        value
        for samples in scrapes
        for (sample, values), value in samples.items()
        if sample == f"kittiwake_{name}" and set(labels) <= set(values)
    )


def check_books(samples: Samples) -> None:
    """Every process's own books hold exactly, whenever it is scraped."""
    accepted = total([samples], "publications_accepted_total")
    outcomes = ("matched_total", "unmatched_total", "rejected_total", "repeated_total", "abandoned_total", "in_flight")
    assert accepted == sum(total([samples], f"publications_{outcome}") for outcome in outcomes)
    for metric in METRICS:
        if metric.kind is Kind.HISTOGRAM:
            for (sample, labels), value in samples.items():
                if sample == f"{metric.name}_bucket" and labels[-1] == "+Inf":
                    assert value == samples[f"{metric.name}_count", labels[:-1]]


async def found(path: Path, wanted: Mapping[str, bool], former: str = "") -> dict[str, str]:
    """Wait until these instances are there, or not; none of them at the former address."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            now = targets(path.read_text())
            if all((name in now) == there for name, there in wanted.items()) and former not in now.values():
                return now
            await asyncio.sleep(0.05)


async def settled(addresses: Iterable[str]) -> list[Samples]:
    """Scrape until nothing is underway any more."""
    addresses = list(addresses)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            scrapes = await scrape(addresses)
            if not total(scrapes, "publications_in_flight"):
                return scrapes
            await asyncio.sleep(0.1)


async def check_found_alike(broker: Broker, path: Path) -> dict[str, str]:
    """Discovery by file and by HTTP say the same, and the status as well; return it."""
    status = await broker.status()
    by_http = targets(await asyncio.to_thread(get, status["metrics_address"], "/targets"))
    async with asyncio.timeout(PATIENCE_S):
        while (by_file := targets(path.read_text())) != by_http:
            await asyncio.sleep(0.05)  # the file is looked after a few times a second
    assert by_file["coordinator"] == status["metrics_address"]
    assert set(by_file.values()) == {status["metrics_address"], *(row["metrics_address"] for row in status["members"])}
    return by_file


def test_every_slice_is_found_and_scraped_and_its_books_hold(tmp_path: Path) -> None:
    async def story() -> None:
        config = Config(
            name="metrics",
            data_directory=str(tmp_path),
            client_port=ClientPort(port=0),
            layers=TWO,
            timing=PATIENT,
            metrics=Metrics(port=0, interval_ms=200),
        )
        path = tmp_path / FILE_NAME
        async with launch(config) as broker:
            async with traffic(broker) as made:
                known = await check_found_alike(broker, path)
                assert set(known) == {"coordinator", *(f"{layer}-{slot}" for layer in DATA_LAYERS for slot in (0, 1))}
                while min(map(len, made.got)) <= 100:
                    for samples in await scrape(known.values()):
                        check_books(samples)
                await broker.admin.scale(matchers=3)
                known = await found(path, {"matcher-2": True})
                while made.round_trips <= 10:
                    for samples in await scrape(known.values()):
                        check_books(samples)
                scrapes = await scrape(known.values())
                series: dict[str, int] = {}
                for samples in scrapes:
                    for name, _ in samples:
                        series[name] = series.get(name, 0) + 1
                assert max(series.values()) <= SERIES_MOST
                exported = {name if name in NAMES else name.rpartition("_")[0] for name in series}
                assert exported >= {metric.name for metric in METRICS if metric not in (*OUTPUT, *AUTOSCALER)}
            scrapes = await settled(known.values())
            for outcome in ("matched", "unmatched", "rejected"):
                entered = total(scrapes, f"publications_{outcome}_total", "connection_point")
                assert entered == total(scrapes, "publications_released_total", "exit_point", outcome)
            assert total(scrapes, "publications_matched_total") > 0 < total(scrapes, "publications_unmatched_total")
            accepted = total(scrapes, "publications_accepted_total")
            assert total(scrapes, "publications_routed_total") == accepted
            assert total(scrapes, "slices", "matcher") == total(scrapes, "slices_wanted", "matcher") == 3
            assert total(scrapes, "transitions_total", "committed") >= 1
            assert total(scrapes, "operations_total", "done") == 1
            assert total(scrapes, "moved_groups_total") == 4096 // 3
            delivered = total(scrapes, "notifications_total", "exit_point")
            assert total(scrapes, "notification_delay_seconds_count") == delivered > 0
            for name in ("match_seconds_count", "subscribe_ack_seconds_count", "resident_bytes", "cpu_seconds_total"):
                assert total(scrapes, name) > 0
            for layer in DATA_LAYERS:
                assert total(scrapes, "useful_seconds_total", layer) > 0

            former = known["matcher-1"]
            await strike(broker, "matcher", 1)
            known = await found(path, {"matcher-1": True}, former)
            await broker.admin.scale(matchers=2)
            known = await found(path, {"matcher-2": False})
            assert await check_found_alike(broker, path) == known
            scrapes = await scrape(known.values())
            for samples in scrapes:
                check_books(samples)
            assert total(scrapes, "recoveries_total") == 1
            assert total(scrapes, "recovery_seconds_count", "all") == 1
            assert total(scrapes, "slices", "matcher") == 2

            # The coordinator's next life has the endpoints from the roles, which run on.
            former = known["coordinator"]
            os.kill((await broker.status())["coordinator"]["pid"], signal.SIGKILL)
            await found(path, dict.fromkeys(known, True), former)
            async with asyncio.timeout(PATIENCE_S):
                while (await broker.status())["state"] != "serving":
                    await asyncio.sleep(0.1)
            assert (await member(broker, "matcher", 1))["metrics_address"] == known["matcher-1"]
            await check_found_alike(broker, path)
        assert targets(path.read_text()) == {}, "the cluster has stopped"

    asyncio.run(story())
