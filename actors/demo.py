"""The demo: a whole cluster on this machine, six subscribers with typical interests, and proof that each got its own.

    oracle processes start        they read the same readings, and evaluate the six filters plainly, one by one
    cluster starts
    six clients subscribe, one publishes everything at full speed
    the oracle's answer is awaited, then the deliveries that are still missing, then a moment of quiet
    the table

The delivered sets are compared, publication by publication (demo_tally.py), not just their sizes; doubles, order and
a sample of the contents as well. The exit code follows.

For a report the cluster also writes its matched output, a seventh client subscribes to everything so that all of it is
there, and one matcher joins and leaves again while the readings come.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from actors.commands.broker import lost_members
from actors.commands.options import plural
from actors.commands.publishing import publish_all
from actors.commands.troubles import describe_report
from actors.demo_oracle import Oracle, Source
from actors.demo_tally import Comparison, Tally, judge
from cluster.config import ClientPort, Config, load_config
from cluster.errors import KittiwakeError, RejectedError
from cluster.readings import Readings

if TYPE_CHECKING:
    from actors.commands.running import Signals
    from cluster.admin import Admin
    from cluster.readings.source import Publication

PUBLISHER = "demo-publisher"
OUTPUT = "output"
"""The folder of matched output below the report's."""
JOINS, LEAVES = 0.3, 0.65
"""How much of the readings is published when a matcher joins, and when it leaves."""
READINGS = 100_000
TERMINAL_S, LOG_S = 0.25, 5.0  # between two lines of live counts

Connect = Callable[..., AbstractAsyncContextManager[Any]]
Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Interest:
    """A subscriber of the demo."""

    name: str
    kind: str
    filter: str


MADRID = (
    Interest("alarm", "a threshold", "no2 > 80"),
    Interest("centre", "a box", "lat between 40.41 and 40.43 and lon between -3.715 and -3.68"),
    Interest("squares", "a prefix", 'station starts_with "Pza"'),
    Interest("health", "a disjunction", "o3 > 120 or pm10 > 50 or co > 1.5"),
    Interest("hidden", "a negation", 'no2 > 60 and not (station_type == "UT")'),
    Interest("hills", "is not true", "altitude > 700 and (no2 <= 60) is not true"),
)
ARCHIVE = Interest("archive", "everything", "exists quantity")
CITY = (
    MADRID[0],
    Interest("centre", "a box", "lat between 41.345 and 41.365 and lon between 2.235 and 2.265"),
    Interest("squares", "a prefix", 'station starts_with "Plaza"'),
    MADRID[3],
    MADRID[4],
    Interest("hills", "is not true", "altitude > 150 and (no2 <= 60) is not true"),
)


@dataclass(slots=True)
class Pace:
    """How often counts are shown, and how long to wait for deliveries.

    quiet_s:  when everything has arrived, nothing may arrive for so long.
    settle_s: so long without an arrival, while some are missing, ends the wait.
    """

    live_s: float
    poll_s: float = 0.05
    quiet_s: float = 0.5
    settle_s: float = 15.0
    watch_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """right: whether the delivered sets equal the oracle's. operations: what the cluster tells of its transitions."""

    right: bool
    operations: list[dict[str, Any]]


async def demo(
    config: Config | None,
    data: str | None,
    limit: int | None,
    signals: Signals,
    show: Show,
    report: Path | None = None,
) -> Outcome:
    """Run the whole demo.

    config: None is one process a layer, on any free port. data: a folder of Madrid's; None is the generator.
    report: the folder below which the matched output goes (OUTPUT); what an earlier demo has left there goes away.
    """
    from actors.launch import FIRST_START, launch

    source = Source(data, READINGS, limit)
    readings = source.open()  # before anything starts: the path may be wrong
    interests: tuple[Interest, ...] = CITY if data is None else MADRID
    if config is None:
        config = demo_config()
    if report is not None:
        interests = (*interests, ARCHIVE)
        config = with_output(config, report / OUTPUT)
    started = time.perf_counter()
    with Oracle(source, [interest.filter for interest in interests], min(4, os.cpu_count() or 1)) as oracle:
        show(f"starting the cluster ({FIRST_START})")
        async with launch(config, fresh=True) as broker:
            signals.arm()
            show(
                f"up in {time.perf_counter() - started:.1f} s: {_layers(config)}; "
                f"clients connect to {', '.join(broker.endpoints)}"
            )
            from cluster.client import connect

            async def lost() -> list[str]:
                return lost_members(await broker.status())

            async def resize() -> None:
                if report is not None:
                    await scale_meanwhile(broker.admin, config.layers.matchers, lambda: _share(readings, limit), show)

            right = await play(
                broker.endpoints,
                readings,
                limit,
                interests,
                connect=connect,
                expected=lambda: asyncio.to_thread(oracle.result),
                lost=lost,
                show=show,
                live=_live_line if sys.stderr.isatty() else _live_log,
                pace=Pace(TERMINAL_S if sys.stderr.isatty() else LOG_S),
                meanwhile=resize,
            )
            outcome = Outcome(right, [] if report is None else await broker.admin.transitions())
    return outcome


def with_output(config: Config, folder: Path) -> Config:
    """Return the configuration with matched output in this folder, emptied of an earlier log."""
    if (folder / "_kittiwake").is_dir():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    output = msgspec.structs.replace(config.output, path=str(folder.resolve()))
    return msgspec.structs.replace(config, output=output)


def _share(readings: Readings, limit: int | None) -> float:
    """Return how much of what is to be published has been read, 0 to 1."""
    return readings.fraction if limit is None else max(readings.fraction, readings.report.published / limit)


async def scale_meanwhile(admin: Admin, matchers: int, share: Callable[[], float], show: Show) -> None:
    """Have a matcher join at JOINS of the way, and leave at LEAVES. What the cluster refuses is shown, and no more."""
    try:
        for due, wanted in ((JOINS, matchers + 1), (LEAVES, matchers)):
            while share() < due:
                await asyncio.sleep(0.1)
            show(f"now with {plural(wanted, 'matcher')}, while the readings come")
            await admin.scale(matchers=wanted)
    except KittiwakeError as error:
        show(f"the cluster did not change its size: {error}")


async def _nothing() -> None:
    return


def _layers(config: Config) -> str:
    layers = config.layers
    return ", ".join(
        (
            plural(layers.connection_points, "connection point"),
            plural(layers.access_points, "access point"),
            plural(layers.matchers, "matcher"),
            plural(layers.exit_points, "exit point"),
        )
    )


def demo_config() -> Config:
    """Return the configuration of a cluster that gets in no other's way: its own name, directory and free ports."""
    local = load_config(None)
    return Config(
        name="demo",
        data_directory=str(local.directory.with_name("demo")),
        client_port=ClientPort(host="127.0.0.1", port=0),
    )


async def play(
    endpoints: list[str],
    readings: Readings,
    limit: int | None,
    interests: tuple[Interest, ...],
    *,
    connect: Connect,
    expected: Callable[[], Awaitable[bytes]],
    lost: Callable[[], Awaitable[list[str]]],
    show: Show,
    live: Show,
    pace: Pace,
    meanwhile: Callable[[], Coroutine[Any, Any, None]] = _nothing,
) -> bool:
    """Subscribe, publish, wait, compare, and show the table, on a cluster that is up.

    connect:  as cluster.client's. expected: gives the oracle's bits, once awaited.
    lost:     gives the names of the cluster's processes that are lost; asked now and then.
    live:     shows the counts while it runs; called with "" at the end of it.
    meanwhile: is run beside, and cancelled with the end if it is not done by then.
    Raises:   KittiwakeError when a process is lost, as nothing brings it back.
    Returns:  whether everything is as promised.
    """
    tally = Tally(PUBLISHER, len(interests))
    refused: list[RejectedError] = []
    async with AsyncExitStack() as stack:
        streams = []
        for place, interest in enumerate(interests):
            url = endpoints[place % len(endpoints)]
            client = await stack.enter_async_context(connect(url, client_id=f"demo-{interest.name}"))
            streams.append(await client.subscribe(interest.filter))
            show(f"{interest.name:<8} wants {interest.filter}")
        publisher = await stack.enter_async_context(connect(endpoints[0], client_id=PUBLISHER))
        show("")
        try:
            async with asyncio.TaskGroup() as tasks:
                helpers = [tasks.create_task(_follow(stream, place, tally)) for place, stream in enumerate(streams)]
                start = time.perf_counter()
                helpers.append(tasks.create_task(_watch(lost, pace.watch_s)))
                helpers.append(tasks.create_task(meanwhile()))
                helpers.append(tasks.create_task(_show_live(tally, readings, start, live, pace.live_s)))
                await publish_all(publisher, _feed(readings, limit, tally), "matched", refused.append)
                seconds = time.perf_counter() - start
                helpers.pop().cancel()
                live("")
                show(f"{describe_report(readings.report)}")
                for trouble in readings.report.troubles:
                    show(f"  {trouble}")
                more = readings.report.trouble_count - len(readings.report.troubles)
                if more:
                    show(f"  and {more:,} more like these")
                bits = await expected()
                await _settle(tally, bits, pace)
                for helper in helpers:
                    helper.cancel()
        except BaseExceptionGroup as group:
            raise _first(group) from group
        refusals = publisher.rejected + sum(error.sequence is None for error in refused)
    comparisons, verdict = judge(tally, bits, [interest.name for interest in interests], refusals)
    show("")
    for line in table(interests, tally, comparisons):
        show(line)
    show("")
    for line in summary(tally, bits, seconds):
        show(line)
    for fault in verdict.faults:
        show(f"WRONG: {fault}")
    if not verdict.faults:
        show("Each subscriber got exactly the publications that the oracle says, once each, in order.")
    return not verdict.faults


def _feed(readings: Readings, limit: int | None, tally: Tally) -> Iterator[Publication]:
    sent = tally.sent
    for publication in itertools.islice(readings, limit):
        sent(publication)
        yield publication


async def _follow(stream: Any, place: int, tally: Tally) -> None:
    arrived = tally.arrived
    async for notification in stream:
        if arrived(place, notification.publisher, notification.sequence):
            tally.content(place, notification.sequence, notification.attributes)


async def _watch(lost: Callable[[], Awaitable[list[str]]], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        if names := await lost():
            raise KittiwakeError(f"the cluster has lost {', '.join(names)}")


async def _show_live(tally: Tally, readings: Readings, start: float, live: Show, every_s: float) -> None:
    before, before_s = 0, start
    while True:
        await asyncio.sleep(every_s)
        now_s = time.perf_counter()
        rate = (tally.published - before) / max(now_s - before_s, 1e-9)
        before, before_s = tally.published, now_s
        live(
            f"{100 * readings.fraction:3.0f} %  published {tally.published:,} ({rate:,.0f}/s)  "
            f"delivered {tally.delivered:,}"
        )


async def _settle(tally: Tally, bits: bytes, pace: Pace) -> None:
    """Wait until everything expected has arrived and nothing more comes, or nothing has come for too long."""
    matched = [one.matched for one in tally.compare(bits)]
    count, since = tally.arrivals, time.perf_counter()
    while True:
        await asyncio.sleep(pace.poll_s)
        now = time.perf_counter()
        if tally.arrivals != count:
            count, since = tally.arrivals, now
        complete = all(one.delivered >= wanted for one, wanted in zip(tally.received, matched, strict=True))
        if now - since >= (pace.quiet_s if complete else pace.settle_s):
            return


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception that is no group: what a command's user can be told in a line."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def table(interests: tuple[Interest, ...], tally: Tally, comparisons: list[Comparison]) -> list[str]:
    """Return the lines of the table: a row for each subscriber."""
    head = "SUBSCRIBER INTEREST PUBLISHED MATCHED DELIVERED MISSING SURPLUS DOUBLED DISORDER"
    rows = [head.split()]
    for interest, one, comparison in zip(interests, tally.received, comparisons, strict=True):
        counts = (
            tally.published,
            comparison.matched,
            one.delivered,
            comparison.missing,
            comparison.surplus + one.foreign,
            one.doubled,
            one.out_of_order,
        )
        rows.append([interest.name, interest.kind, *(f"{count:,}" for count in counts)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def summary(tally: Tally, bits: bytes, seconds: float) -> list[str]:
    """Return the figures over all subscribers."""
    matched = len(bits) - bits.count(0)
    rate = tally.published / max(seconds, 1e-9)
    lines = [
        f"{tally.published:,} published in {seconds:.1f} s: {rate:,.0f} publications/s; "
        f"{matched:,} of them matched, {tally.delivered:,} notifications delivered"
    ]
    p50, p99 = tally.delay_s(0.5), tally.delay_s(0.99)
    if p50 is not None and p99 is not None:
        lines.append(
            f"delay from sending to `async for`, at full speed, so with the publisher's whole window before it: "
            f"p50 {1000 * p50:,.1f} ms, p99 {1000 * p99:,.1f} ms"
        )
    return lines


def _live_line(text: str) -> None:
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()


def _live_log(text: str) -> None:
    if text:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
