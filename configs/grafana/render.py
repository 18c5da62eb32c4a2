"""Draw the dashboards' panels from a running Prometheus: a PNG file a board, laid out as Grafana would.

python -m configs.grafana.render --prometheus http://127.0.0.1:9090 --to DIRECTORY
python -m configs.grafana.render --prometheus http://127.0.0.1:9090 --to DIRECTORY --board overview --minutes 15

Reads the JSON that Grafana reads, not the Python that it was made from. Exit code 1 if Prometheus does not answer.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.grafana.asking import Prometheus, PrometheusError, Series, filled
from configs.grafana.drawing import Answer, draw

FOLDER = Path(__file__).with_name("dashboards")
POINTS = 240
"""How many steps the time shown is cut into; Grafana's is about the width of a panel in pixels."""

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Window:
    """The cluster and the time shown, in seconds since 1970, and how often Prometheus scrapes."""

    start_s: float
    end_s: float
    scrape_s: float
    cluster: str

    @property
    def step_s(self) -> float:
        """Return the time between two points; not below a scrape, as nothing is known in between."""
        return max(self.scrape_s, (self.end_s - self.start_s) / POINTS)

    def fill(self, expr: str) -> str:
        """Return an expression with Grafana's variables replaced."""
        return filled(expr, scrape_s=self.scrape_s, step_s=self.step_s, cluster=self.cluster)


def panels(board: Document) -> list[Document]:
    """Return a board's panels without the headings, those of folded rows too."""
    found: list[Document] = []
    for panel in board["panels"]:
        found += panel.get("panels", []) if panel["type"] == "row" else [panel]
    return found


def ask(panel: Document, prometheus: Prometheus, window: Window) -> list[Answer]:
    """Return what Prometheus answers to each of a panel's queries."""
    answers = []
    for target in panel["targets"]:
        expr = window.fill(target["expr"])
        series = prometheus.range(expr, window.start_s, window.end_s, window.step_s)
        answers.append(Answer(target.get("legendFormat", ""), tuple(series)))
    return answers


def marks(board: Document, prometheus: Prometheus, window: Window) -> list[tuple[str, str, Series]]:
    """Return the name, the colour and the series of each of a board's annotations."""
    found = []
    for one in board.get("annotations", {}).get("list", []):
        if "expr" in one:
            expr = window.fill(one["expr"])
            for series in prometheus.range(expr, window.start_s, window.end_s, window.step_s):
                found.append((one["name"], one["iconColor"], series))
    return found


def render(boards: Iterable[Path], prometheus: Prometheus, window: Window, to: Path) -> list[Path]:
    """Write a PNG file for each board; return their paths. Raises PrometheusError."""
    to.mkdir(parents=True, exist_ok=True)
    written = []
    for path in boards:
        board = json.loads(path.read_text(encoding="utf-8"))
        answers = [(panel, ask(panel, prometheus, window)) for panel in panels(board)]
        figure = draw(board, answers, marks(board, prometheus, window), (window.start_s, window.end_s))
        target = to / f"{path.stem}.png"
        figure.savefig(target)
        written.append(target)
    return written


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; return the exit code."""
    known = sorted(path.stem for path in FOLDER.glob("*.json"))
    parser = argparse.ArgumentParser(
        prog="python -m configs.grafana.render", description="Draw the dashboards' panels from a running Prometheus."
    )
    parser.add_argument("--prometheus", required=True, metavar="URL", help="where it is, as http://127.0.0.1:9090")
    parser.add_argument("--to", required=True, type=Path, metavar="DIRECTORY", help="where the PNG files go")
    parser.add_argument("--cluster", help="its name, where Prometheus knows several")
    parser.add_argument("--board", action="append", choices=known, help="only this one; may be given more than once")
    parser.add_argument("--minutes", type=float, default=15.0, help="how far back from now (default: %(default)g)")
    chosen = parser.parse_args(arguments)
    if not chosen.minutes > 0:
        parser.error(f"--minutes {chosen.minutes:g}: it must be above 0")
    try:
        prometheus = Prometheus(chosen.prometheus)
        now_s = time.time()
        cluster = _cluster(prometheus, chosen.cluster)
        window = Window(now_s - 60 * chosen.minutes, now_s, prometheus.scrape_interval_s(), cluster)
        for path in render((FOLDER / f"{name}.json" for name in chosen.board or known), prometheus, window, chosen.to):
            print(path)
    except PrometheusError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def _cluster(prometheus: Prometheus, wanted: str | None) -> str:
    known = prometheus.clusters()
    if wanted is None and len(known) == 1:
        return known[0]
    if wanted not in known:
        which = f"no cluster {wanted!r}" if wanted else "not one cluster alone"
        raise PrometheusError(f"Prometheus knows {which}, but these: {', '.join(known) or 'none'}")
    return wanted


if __name__ == "__main__":
    sys.exit(main())
