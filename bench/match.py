"""The matching engine alone: how long does a publication take, and does every engine find the same?

    uv run python -m bench.match --workload geofence --subscriptions 100000
    uv run python -m bench.match --workload silbops --subscriptions 10000 --engine all --json

Without --engine it runs `index` and `numpy` in turn and prints their ratio. Engines:

    index  cluster.matching.Index; timed from the publications' bytes to the sorted hits, decoding included
    numpy  vectorised brute force (bench/numpy_scan.py); publications are decoded beforehand, outside the time
    scan   the oracle, plain Python
    all    the three of them

All return the same: the subscriptions in the order of (publication, client, subscription), and where each group of
a publication and a client begins. Each engine gets the subscriptions one by one, a warm-up with all publications,
then the publications in batches, `--repeats` times; the median counts. add_us is the mean time of an add,
add_cpu_us_max the most processor time that one took. The index may tend itself between warm-up and measurement, as
it would in idle moments. The checksum (sum over publications of the sum of matching ids, modulo 2**64) must be
equal for all engines; if not, the exit status is 1. --dump writes subscriptions.jsonl and publications.jsonl for
other engines.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgpack
import numpy as np

from bench import workloads
from bench.environment import environment
from bench.numpy_scan import NumpyScan
from cluster.language.normal import NormalForm
from cluster.matching import Batch, Hits, Index, Scan, warm

CHUNK = 2000  # forms made at a time, so that a million of them are never in memory together
REMOVED_MAX = 20_000


class Engine(Protocol):
    """What all engines can do."""

    def add(self, subscription: int, normal_form: NormalForm, client: int) -> None: ...

    def remove(self, subscription: int) -> bool: ...

    def match(self, batch: Batch) -> Hits: ...

    def fold(self, units: int = ...) -> bool: ...

    def memory_bytes(self) -> int: ...


def make_engine(name: str) -> Engine:
    """Return a new engine: index, numpy or scan."""
    if name == "index":
        return Index()
    if name == "numpy":
        return NumpyScan()
    if name == "scan":
        return Scan()
    raise ValueError(f"unknown engine {name!r}: one of index, numpy, scan")


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    options = _parser().parse_args(arguments)
    engines = {None: ["index", "numpy"], "all": ["index", "numpy", "scan"]}.get(options.engine, [options.engine])
    if options.publications is None:
        options.publications = 2000 if options.subscriptions <= 20_000 else 1000
        if options.subscriptions > 200_000:
            options.publications = 200
    if options.dump:
        dump(options)
    results = {name: measure(name, options) for name in engines}
    checksums = {result["checksum"] for result in results.values()}
    ratio = None
    if "index" in results and "numpy" in results:
        ratio = round(results["numpy"]["us_per_publication"] / results["index"]["us_per_publication"], 2)
    if options.json:
        if len(results) == 1:
            print(json.dumps({**_described(options), **results[engines[0]]}))
        else:
            print(json.dumps({**_described(options), "engines": results, "ratio": ratio}))
    else:
        _print_table(options, results, ratio)
    if len(checksums) > 1:
        print(f"the engines differ: {results}", file=sys.stderr)
        return 1
    return 0


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return one engine's figures."""
    engine = make_engine(name)
    if name == "index":
        warm()
    made = workloads.source(
        options.workload, options.subscriptions, options.publications, options.seed, options.distribution
    )
    seconds_adding = longest = 0.0
    forms: list[NormalForm] = []
    subscription = 0

    def add_all() -> None:
        nonlocal subscription, seconds_adding, longest
        gc.disable()  # its pauses grow with the chunk's objects, which are the benchmark's and not the engine's
        begin = time.perf_counter()
        for form in forms:
            before = time.thread_time()
            engine.add(subscription, form, subscription % options.clients)
            longest = max(longest, time.thread_time() - before)
            subscription += 1
        seconds_adding += time.perf_counter() - begin
        gc.enable()
        forms.clear()

    for conditions in made.conditions:
        forms.append(workloads.form(conditions))
        if len(forms) == CHUNK:
            add_all()
    add_all()
    packed = [msgpack.packb(publication) for publication in made.publications()]
    parts = [packed[begin : begin + options.batch] for begin in range(0, len(packed), options.batch)]
    batches = [(np.array([len(one) for one in part], "<u4").tobytes(), b"".join(part)) for part in parts]
    matches = _matches(engine, batches)
    hits = 0
    checksum = 0
    for match in matches:
        part = match()
        hits += len(part)
        checksum += int(part.subscription.sum(dtype=np.uint64))
    while engine.fold():
        pass
    if name != "scan":
        for match in matches:
            match()
        while engine.fold():
            pass
    seconds = []
    for _ in range(options.repeats if name != "scan" else 1):
        gc.collect()
        begin = time.perf_counter()
        for match in matches:
            match()  # the hits are dropped, as after sending them off
        seconds.append(time.perf_counter() - begin)
    bytes_per_subscription = engine.memory_bytes() / max(1, options.subscriptions)
    return {
        "engine": name,
        "us_per_publication": round(statistics.median(seconds) / options.publications * 1e6, 3),
        "us_per_publication_min": round(min(seconds) / options.publications * 1e6, 3),
        "us_per_publication_max": round(max(seconds) / options.publications * 1e6, 3),
        "matches_per_publication": round(hits / options.publications, 3),
        "checksum": checksum % (1 << 64),
        "add_us": round(seconds_adding / max(1, options.subscriptions) * 1e6, 3),
        "add_cpu_us_max": round(longest * 1e6, 1),
        "remove_us": _remove(engine, options),
        "bytes_per_subscription": round(bytes_per_subscription, 1),
    }


def _matches(engine: Engine, batches: list[tuple[bytes, bytes]]) -> list[Callable[[], Hits]]:
    """Return a function per batch that matches it; what an engine may have beforehand is prepared here."""
    if isinstance(engine, NumpyScan):
        decoded = [Batch(lengths, payload).publications() for lengths, payload in batches]
        return [partial(engine.match_decoded, publications) for publications in decoded]
    return [partial(_match_bytes, engine, lengths, payload) for lengths, payload in batches]


def _match_bytes(engine: Engine, lengths: bytes, payload: bytes) -> Hits:
    return engine.match(Batch(lengths, payload))


def _remove(engine: Engine, options: argparse.Namespace) -> float:
    """Return the mean microseconds of a removal, over at most 20,000 random ones."""
    count: int = min(options.subscriptions // 2, REMOVED_MAX)
    if count == 0:
        return 0.0
    removed = random.Random(options.seed).sample(range(options.subscriptions), count)
    begin = time.perf_counter()
    for subscription in removed:
        engine.remove(subscription)
    seconds = time.perf_counter() - begin
    return round(seconds / count * 1e6, 3)


def dump(options: argparse.Namespace) -> None:
    """Write subscriptions.jsonl (id, client, filter) and publications.jsonl into a folder."""
    folder = Path(options.dump)
    folder.mkdir(parents=True, exist_ok=True)
    made = workloads.source(
        options.workload, options.subscriptions, options.publications, options.seed, options.distribution
    )
    with (folder / "subscriptions.jsonl").open("w") as file:
        for number, conditions in enumerate(made.conditions):
            row = {"id": number, "client": number % options.clients, "filter": workloads.text(conditions)}
            file.write(json.dumps(row) + "\n")
    with (folder / "publications.jsonl").open("w") as file:
        for publication in made.publications():
            file.write(json.dumps(publication) + "\n")


def _described(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "workload": options.workload,
        "distribution": options.distribution,
        "subscriptions": options.subscriptions,
        "publications": options.publications,
        "batch": options.batch,
        "seed": options.seed,
        "environment": environment(),
    }


def _print_table(options: argparse.Namespace, results: dict[str, dict[str, Any]], ratio: float | None) -> None:
    described = _described(options)
    print(", ".join(f"{key} {value}" for key, value in described.items() if key != "environment"))
    print(", ".join(f"{key} {value}" for key, value in described["environment"].items()))
    columns = (
        "engine",
        "us_per_publication",
        "us_per_publication_min",
        "us_per_publication_max",
        "matches_per_publication",
        "add_us",
        "add_cpu_us_max",
        "remove_us",
        "bytes_per_subscription",
        "checksum",
    )
    rows = [columns, *[tuple(str(result[column]) for column in columns) for result in results.values()]]
    widths = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    if ratio is not None:
        print(f"ratio numpy / index: {ratio}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.match", description="Time the matching engine alone.")
    parser.add_argument("--workload", choices=workloads.NAMES, default="geofence")
    parser.add_argument("--subscriptions", type=int, default=10_000)
    parser.add_argument("--publications", type=int, help="default 2000; 1000 and 200 for many subscriptions")
    parser.add_argument(
        "--engine", choices=("index", "numpy", "scan", "all"), help="default: index and numpy, and their ratio"
    )
    parser.add_argument("--distribution", choices=("uniform", "zipf"), default="uniform", help="of sgim")
    parser.add_argument("--clients", type=int, default=10, help="subscriptions are dealt to them in turn")
    parser.add_argument("--batch", type=int, default=64, help="publications matched in one call")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--dump", metavar="DIR", help="write the input as JSON lines, then measure")
    return parser


if __name__ == "__main__":
    sys.exit(main())
