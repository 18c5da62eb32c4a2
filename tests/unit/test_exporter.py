"""The endpoints for Prometheus, over real sockets: what they say, whom they answer, and how they are found."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from actors import exporter as exporter_module
from actors.discovery import FILE_NAME, TargetsFile, targets_document
from actors.exporter import Exporter, read_token
from cluster.config import Config, Metrics, config_from
from cluster.errors import ConfigError
from cluster.figures import Series
from cluster.messages import COORDINATOR_PEER, MATCHER, Peer
from cluster.metrics import BY_NAME
from tests.unit.conversation import conversation

TOKEN = b"0123456789abcdef0123456789abcdef"
ACCEPTED = Series(BY_NAME["kittiwake_publications_accepted_total"], ("connection_point", "0"), 7)
DROPPED = [
    Series(BY_NAME["kittiwake_dropped_total"], ("connection_point", "0", reason), count)
    for reason, count in (("quota", 1), ("drop_oldest", 2))
]
DELAY = Series(
    BY_NAME["kittiwake_notification_delay_seconds"],
    ("connection_point", "0"),
    0.25,
    ((0.001, 3), (0.1, 5), (float("inf"), 6)),
)


def series() -> Iterator[Series]:
    yield ACCEPTED
    yield from DROPPED
    yield DELAY


def ask(address: str, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """Return status, content type and body."""
    request = urllib.request.Request(f"http://{address}{path}", method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


async def asked(address: str, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, str, str]:
    return await asyncio.to_thread(ask, address, path, method, **headers)


@pytest.fixture
def made() -> Iterator[Callable[..., Exporter]]:
    """Makes exporters, and closes them to the end."""
    exporters: list[Exporter] = []

    def make(settings: Metrics | None = None, source: Any = series, **options: Any) -> Exporter:
        exporters.append(Exporter(settings or Metrics(), source, host="127.0.0.1", **options))
        return exporters[-1]

    yield make
    for one in exporters:
        one._end()


def token_file(directory: Path, token: bytes = TOKEN, mode: int = 0o600) -> str:
    path = directory / "token"
    path.write_bytes(token + b"\n")
    path.chmod(mode)
    return str(path)


def test_what_the_machine_counts_is_served_in_the_format_that_is_asked_for(made: Callable[..., Exporter]) -> None:
    @conversation
    async def work() -> None:
        address = made().address
        status, kind, text = await asked(address)
        assert (status, kind.split(";")[0]) == (200, "text/plain")
        families = {family.name: family for family in text_string_to_metric_families(text)}
        (sample,) = families["kittiwake_publications_accepted"].samples
        assert (sample.value, sample.labels) == (7, {"layer": "connection_point", "slot": "0"})
        reasons = {one.labels["reason"]: one.value for one in families["kittiwake_dropped"].samples}
        assert reasons == {"quota": 1, "drop_oldest": 2}
        buckets = {
            sample.labels["le"]: sample.value
            for sample in families["kittiwake_notification_delay_seconds"].samples
            if sample.name.endswith("_bucket")
        }
        assert buckets == {"0.001": 3, "0.1": 5, "+Inf": 6}
        status, kind, text = await asked(address, Accept="application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert "kittiwake_dropped" in {family.name for family in parse_openmetrics(text)}

    work()


def test_values_are_taken_on_the_loop_and_made_into_text_beside_it(made: Callable[..., Exporter]) -> None:
    @conversation
    async def work() -> None:
        threads: list[int] = []

        def watched() -> Iterator[Series]:
            threads.append(threading.get_ident())
            return series()

        await asked(made(source=watched).address)
        assert threads == [threading.get_ident()]

    work()


def test_other_pages_and_other_methods_are_refused(made: Callable[..., Exporter]) -> None:
    @conversation
    async def work() -> None:
        address = made().address
        assert (await asked(address, "/"))[0] == (await asked(address, "/debug/pprof"))[0] == 404
        assert (await asked(address, "/targets"))[0] == 404, "the coordinator's alone"
        assert (await asked(address, method="POST"))[0] == (await asked(address, method="DELETE"))[0] == 405

    work()


def test_without_the_token_nothing_is_said(made: Callable[..., Exporter], tmp_path: Path) -> None:
    @conversation
    async def work() -> None:
        exporter = made(Metrics(token_file=token_file(tmp_path)), targets=lambda: b"[]")
        for path in ("/metrics", "/targets", "/nothing"):
            for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN.decode()}"}):
                status, _, text = await asked(exporter.address, path, **wrong)
                assert (status, "kittiwake" in text) == (401, False)
        status, _, text = await asked(exporter.address, Authorization=f"Bearer {TOKEN.decode()}")
        assert (status, "kittiwake_dropped_total" in text) == (200, True)

    work()


def test_a_token_file_is_kept_from_others_and_its_token_is_long(tmp_path: Path) -> None:
    assert read_token(Metrics(token_file=token_file(tmp_path))) == TOKEN
    for token, mode, said in (
        (TOKEN, 0o640, "its mode should be 0600"),
        (b"short", 0o600, "5 bytes, a token has 16 at least"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_token(Metrics(token_file=token_file(tmp_path, token, mode)))
    with pytest.raises(ConfigError, match="No such file"):
        read_token(Metrics(token_file=str(tmp_path / "none")))


def test_who_listens_beyond_loopback_asks_for_a_token_or_accepts_that_it_does_not() -> None:
    with pytest.raises(ConfigError, match=r"metrics\.host: 0\.0\.0\.0 is not loopback"):
        config_from({"metrics": {"host": "0.0.0.0"}})
    for accepted in ({"token_file": "t"}, {"insecure": True}, {"enabled": False}):
        config_from({"metrics": {"host": "0.0.0.0", **accepted}})
    assert Config().metrics.host == "127.0.0.1"


def test_a_port_that_is_taken_is_no_reason_not_to_start(
    made: Callable[..., Exporter], caplog: pytest.LogCaptureFixture
) -> None:
    @conversation
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            exporter = made(port=port)
            assert not exporter.address.endswith(f":{port}")
            assert f"127.0.0.1:{port}" in caplog.text
            assert (await asked(exporter.address))[0] == 200

    work()


def test_a_machine_that_does_not_answer_is_not_waited_for_forever(
    made: Callable[..., Exporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter_module, "ANSWER_S", 0.05)

    @conversation
    async def work() -> None:
        address = made().address
        loop = asyncio.get_running_loop()
        answers: list[int] = []
        thread = threading.Thread(target=lambda: answers.append(ask(address)[0]))
        thread.start()
        thread.join()  # the loop stands still meanwhile
        assert loop.is_running()
        assert answers == [503]
        assert (await asked(address))[0] == 200

    work()


def test_scrapers_that_say_nothing_do_not_keep_others_out(
    made: Callable[..., Exporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    @conversation
    async def work() -> None:
        host, _, port = made().address.rpartition(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(20)]
        try:
            assert (await asked(f"{host}:{port}"))[0] == 200
        finally:
            for one in silent:
                one.close()

    work()


def test_more_than_a_few_at_once_are_told_to_come_later(made: Callable[..., Exporter]) -> None:
    @conversation
    async def work() -> None:
        exporter = made()
        for _ in range(exporter_module.AT_ONCE):
            assert exporter._places.acquire(blocking=False)
        assert (await asked(exporter.address))[0] == 503
        exporter._places.release()
        assert (await asked(exporter.address))[0] == 200

    work()


def test_after_close_the_port_is_free(made: Callable[..., Exporter]) -> None:
    @conversation
    async def work() -> None:
        exporter = made()
        host, _, port = exporter.address.rpartition(":")
        await asyncio.to_thread(exporter._end)
        with pytest.raises(OSError, match="refused"):
            http.client.HTTPConnection(host, int(port), timeout=5).request("GET", "/metrics")

    work()


# Discovery ---------------------------------------------------------------------------------------------------------


def test_targets_name_the_slice_and_not_who_plays_it() -> None:
    document = json.loads(targets_document("city", {COORDINATOR_PEER: "h:1", Peer(MATCHER, 2): "h:9"}))
    assert document == [
        {"targets": ["h:1"], "labels": {"cluster": "city", "instance": "coordinator"}},
        {"targets": ["h:9"], "labels": {"cluster": "city", "instance": "matcher-2"}},
    ]


def test_while_it_is_not_known_what_was_said_before_holds(made: Callable[..., Exporter], tmp_path: Path) -> None:
    @conversation
    async def work() -> None:
        known: bytes | None = None
        exporter = made(targets=lambda: known)
        assert (await asked(exporter.address, "/targets"))[0] == 503
        (tmp_path / FILE_NAME).write_bytes(b"[0]")
        file = TargetsFile(tmp_path, lambda: known)
        assert (tmp_path / FILE_NAME).read_bytes() == b"[0]", "of the coordinator's former life"
        known = b"[1]"
        file._look()
        assert (tmp_path / FILE_NAME).read_bytes() == b"[1]"
        assert (await asked(exporter.address, "/targets"))[2] == "[1]"
        file.close()

    work()


def test_the_file_follows_the_document_and_is_empty_when_the_cluster_stops(tmp_path: Path) -> None:
    @conversation
    async def work() -> None:
        document = b"[1]"
        directory = tmp_path / "made"
        file = TargetsFile(directory, lambda: document)
        path = directory / FILE_NAME
        assert path.read_bytes() == b"[1]"
        first = path.stat().st_ino
        file._look()
        assert path.stat().st_ino == first, "written when it changes alone"
        document = b"[1, 2]"
        file._look()
        assert path.read_bytes() == b"[1, 2]"
        assert path.stat().st_ino != first, "replaced as a whole"
        file.close()
        assert json.loads(path.read_bytes()) == []
        assert os.listdir(directory) == [FILE_NAME]

    work()


def test_a_disk_that_is_full_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @conversation
    async def work() -> None:
        (tmp_path / "file").write_bytes(b"")
        blocked = tmp_path / "file" / "below"
        file = TargetsFile(blocked, lambda: b"[]\n")
        file._look()
        assert caplog.text.count("cannot be written") == 1, "said once"
        (tmp_path / "file").unlink()
        file._look()
        assert (blocked / FILE_NAME).read_bytes() == b"[]\n"
        file.close()

    work()
