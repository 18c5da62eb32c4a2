"""Error branches that nothing else comes by (`python -m tests.error_branches` finds them): damage, limits, ends."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gzip
from pathlib import Path
from typing import Any

import pytest

from cluster import connect_sync, frames, parse
from cluster.client import requests as requests_module
from cluster.client.delivery import Delivery
from cluster.client.move import FormerSession
from cluster.client.requests import Requests
from cluster.codec import FrameReader
from cluster.errors import ConnectionLostError, RefusedError
from cluster.messages import CONNECTION_POINT, Peer
from cluster.readings import CityGenerator, MadridYear, ReadingsError, Report
from cluster.readings.madrid import _csv_files, read_stations
from cluster.readings.source import open_binary
from cluster.readings.tabular import CsvFile
from cluster.testing import LocalCluster
from tests.unit.client_broker import Behaviour
from tests.unit.conversation import conversation
from tests.unit.test_client_blocking import serving
from tests.unit.test_readings_madrid import HEADER, STATIONS, row, write

# Readings --------------------------------------------------------------------------------------------------------


def truncated(text: str) -> bytes:
    """Return a gzip file of it whose end is missing."""
    return gzip.compress(text.encode())[:-12]


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    for read in (MadridYear, CsvFile, open_binary, _csv_files, lambda path: read_stations(path, Report())):
        with pytest.raises(ReadingsError, match=r"gone: (?i:no such file)"):
            read(gone)


def test_a_damaged_list_of_stations_is_no_list(tmp_path: Path) -> None:
    path = tmp_path / "estaciones.csv.gz"
    path.write_bytes(truncated(STATIONS))
    with pytest.raises(ReadingsError, match=r"estaciones.csv.gz: damaged"):
        read_stations(path, Report())


def test_a_list_without_one_usable_station_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "estaciones.csv"
    lines = STATIONS.splitlines()
    path.write_text("\n".join([lines[0], lines[1].replace("635", "high")]) + "\n", encoding="utf-8")
    with pytest.raises(ReadingsError, match="not one station in it can be used"):
        read_stations(path, Report())


def test_a_row_whose_day_cannot_be_read_does_not_date_its_file(tmp_path: Path) -> None:
    (tmp_path / "estaciones.csv").write_text(STATIONS, encoding="utf-8")
    first = row(4, 8, "2017-01-01").replace(";2017;01;01;", ";2017;January;01;")
    write(tmp_path, "ene_mo17.csv", first, row(4, 8, "2017-01-02"), header=HEADER)
    readings = MadridYear(tmp_path)
    assert len(list(readings)) == 24
    assert len(readings.report.troubles) >= 1


def test_a_table_that_is_damaged_or_no_table(tmp_path: Path) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n1,2\n")[:12])
    with pytest.raises(ReadingsError, match="damaged"):
        CsvFile(path)
    path = tmp_path / "x.csv"
    path.write_text('"' + "x" * 200_000 + '",b\n1,2\n')
    with pytest.raises(ReadingsError, match="its first row is no CSV"):
        CsvFile(path)


def test_a_field_beyond_the_limit_costs_its_row_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n" + "x" * 200_000 + ",4\n5,6\n")
    table = CsvFile(path)
    assert {"a": 1, "b": 2} in list(table)
    assert table.report.rows == table.report.published + 1 == 3


def test_a_generator_of_fewer_than_none_is_refused() -> None:
    with pytest.raises(ValueError, match="count is -1"):
        CityGenerator(-1)


# The SDK ---------------------------------------------------------------------------------------------------------


def test_when_every_number_is_taken_no_subscription_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "NUMBER_COUNT", 2)
    requests = Requests()
    requests.open("a > 1", "block")
    requests.open("a > 2", "block")
    with pytest.raises(RefusedError, match="every subscription number is in use"):
        requests.open("a > 3", "block")
    assert requests.open_count == 2


def test_damage_on_the_former_connection_ends_it() -> None:
    former = FormerSession(FrameReader(1 << 20), Delivery(16))
    assert former.receive(b"\x03\x00\x00\x00\xff\xff\xff") == set()
    assert former.over


def test_calls_that_are_under_way_when_the_loop_stops_end_with_the_client() -> None:
    with (
        serving(Behaviour(acknowledge=False)) as server,
        concurrent.futures.ThreadPoolExecutor() as pool,
        connect_sync(server.url) as client,
    ):
        calls = [
            pool.submit(client.publish, {"a": 1}),
            pool.submit(client.publish_many, [{"a": 2}, {"a": 3}]),
        ]
        server.until(lambda: server.broker.accepted.keys() >= {1, 2, 3})
        client._thread.stop()
        for call in calls:
            with pytest.raises(ConnectionLostError) as caught:
                call.result(10)
            assert caught.value.code == "closed"


def test_a_stream_whose_client_ended_says_why_even_without_its_loop() -> None:
    with serving() as server, connect_sync(server.url) as client:
        subscription = client.subscribe("a > 0")
        server.call(server.broker.links[-1].send, frames.Bye("taken_over", "somebody else"))
        with pytest.raises(ConnectionLostError, match="somebody else"):
            subscription.get(10)
        client._thread.stop()
        with pytest.raises(ConnectionLostError, match="somebody else"):
            subscription.get(10)


# Matching, and the cluster in one process ------------------------------------------------------------------------


def test_a_normal_form_beyond_the_index_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from cluster.matching import Index, layout

    engine = Index()
    form: Any = parse("a > 1").normal_form
    with monkeypatch.context() as patched:
        patched.setattr(layout, "ENCODED_BYTES", 8)
        with pytest.raises(ValueError, match="larger than 8"):
            engine.add(1, form, 1)
    engine.add(1, form, 1)
    highest = engine._get(layout.H_ATTRIBUTES)
    engine._set(layout.H_ATTRIBUTES, (1 << 24) - 1)
    with pytest.raises(MemoryError, match="as many attributes"):
        engine.add(1, parse("unseen > 1").normal_form, 1)
    assert engine._get(layout.H_ATTRIBUTES) == (1 << 24) - 1
    engine._set(layout.H_ATTRIBUTES, highest)
    engine.add(1, form, 1)
    engine.check()


@conversation
async def test_a_cluster_that_is_closed_or_does_not_serve_refuses_connections() -> None:
    async with LocalCluster() as local:
        with pytest.raises(ConnectionRefusedError, match="connection_point 5 does not serve"):
            local._open(Peer(CONNECTION_POINT, 5), asyncio.Protocol())
    with pytest.raises(ConnectionRefusedError, match="is closed"):
        local._open(Peer(CONNECTION_POINT, 0), asyncio.Protocol())
