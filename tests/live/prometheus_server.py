"""A real Prometheus on this machine, for a test: the committed configuration, on other ports and more often."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from configs.grafana.asking import Prometheus, PrometheusError

CONFIGS = Path(__file__).parents[2] / "configs"
PROGRAM = shutil.which("prometheus")
SCRAPE_S = 1
START_S = 120.0


@contextmanager
def prometheus(directory: Path, port: int, metrics_port: int) -> Iterator[Prometheus]:
    """Run Prometheus with configs/prometheus.yml, which finds the cluster at metrics_port; end it afterwards."""
    assert PROGRAM is not None
    document = yaml.safe_load((CONFIGS / "prometheus.yml").read_text(encoding="utf-8"))
    document["global"] = {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": "1s"}
    document["rule_files"] = [str(CONFIGS / path) for path in document["rule_files"]]
    (job,) = [job for job in document["scrape_configs"] if job["job_name"] == "kittiwake"]
    (discovery,) = job["http_sd_configs"]
    discovery["url"] = discovery["url"].replace(":7390/", f":{metrics_port}/")
    discovery["refresh_interval"] = "1s"
    document["scrape_configs"] = [job]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "prometheus.yml").write_text(yaml.safe_dump(document), encoding="utf-8")
    address = f"127.0.0.1:{port}"
    command = [
        PROGRAM,
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}",
        "--storage.tsdb.retention.time=1h",
        "--log.level=warn",
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        server = Prometheus(f"http://{address}")
        _wait(server, process, directory / "log")
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(server: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        assert process.poll() is None, f"Prometheus ended: {log.read_text()}"
        assert time.monotonic() < deadline, f"Prometheus does not answer: {log.read_text()}"
        try:
            server.get("status/runtimeinfo")
            return
        except PrometheusError:
            time.sleep(0.1)
