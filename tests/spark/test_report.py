"""The report: its facts against plain figures, and the page in a browser, from a file, without a network."""

from __future__ import annotations

import re
import shutil
import subprocess
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cluster.spark.jobs import facts as facts_of
from cluster.spark.jobs import report
from cluster.spark.jobs.facts import Facts
from cluster.spark.jobs.page import page
from tests.spark import made
from tests.spark.test_jobs import CITY, MADRID, OPTIONS, ROWS, plain

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER_S_MAX = 120


@pytest.fixture(scope="module")
def facts(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Facts:
    folder = tmp_path_factory.mktemp("log")
    made.write(folder, ROWS)
    return facts_of.gather(partial(plain(folder).read, spark), OPTIONS)


def browse(file: Path, *arguments: str) -> str:
    """Open a file in a headless browser that reaches no network; return what it writes to stdout."""
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed (Debian: apt-get install chromium)")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
    flags += ["--proxy-server=127.0.0.1:9", f"--user-data-dir={file.parent / 'browser'}"]
    done = subprocess.run(
        [program, *flags, *arguments, file.as_uri()],
        capture_output=True,
        text=True,
        timeout=BROWSER_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_facts(facts: Facts) -> None:
    assert facts.readings == len(CITY)
    assert [one.name for one in facts.stations] == sorted(made.STATIONS)
    for one in facts.stations:
        assert (one.lat, one.lon) == pytest.approx(made.STATIONS[one.name])
    assert {one.name: one.readings for one in facts.stations} == {
        name: sum(one.station == name for one in CITY) for name in made.STATIONS
    }
    for quantity, best in facts.highest.items():
        own = sorted((one for one in CITY if one.quantity == quantity), key=lambda o: (-o.value, -o.time, o.station))
        expected = [(o.value, o.station, datetime.fromtimestamp(o.time, MADRID).replace(tzinfo=None)) for o in own[:3]]
        assert [(one.value, one.station, one.time) for one in best] == expected
    for (weekday, hour), mean in facts.hours["o3"].items():
        local = [
            one.value
            for one in CITY
            if one.quantity == "o3"
            and (at := datetime.fromtimestamp(one.hour, MADRID)).hour == hour
            and at.weekday() == weekday
        ]
        assert mean == pytest.approx(sum(local) / len(local))
    assert sum(one.publications for one in facts.delays) == len(CITY)
    assert [(one.phase, one.publications > 0) for one in facts.phases][1] == ("during", True)
    assert facts.epochs == [1, 2]
    longest = max(facts.episodes, key=lambda one: one.hours)
    assert facts.episodes[0] == longest


def test_the_page_in_a_browser(facts: Facts, tmp_path: Path) -> None:
    file = tmp_path / report.PAGE
    file.write_text(page(facts, "Three days & a <test>"), encoding="utf-8")
    dom = browse(file, "--dump-dom")
    assert "<h1>Three days &amp; a &lt;test&gt;</h1>" in dom
    figures = re.findall(r'<figure id="([^"]+)"', dom)
    assert figures == [
        *("map-a", "map-b"),
        *("series-no2", "series-o3", "series-co"),
        *("week-no2", "week-o3", "week-co"),
        "delay-over-time",
    ]
    # Each station is on each map, with its name; each hour of the three days is a cell with its mean.
    for name in made.STATIONS:
        assert len(re.findall(rf"<title>{name}:", dom)) == 2
    assert len(re.findall(r"<title>(?:Sat|Sun|Mon) \d\d:00 to \d\d:00: \d", dom)) == 3 * len(facts.hours["no2"])
    assert f"<strong>{len(CITY):,}</strong>" in dom
    rows = dom[dom.index('<table id="transitions">') :]
    assert re.findall(r"<td>(before|during|after)</td>", rows) == ["before", "during", "after"]
    during = next(one for one in facts.phases if one.phase == "during")
    assert f'<td class="n">{during.publications:,}</td>' in rows
    top = dom[dom.index('<table id="top-no2">') :]
    highest = max(one.value for one in CITY if one.quantity == "no2")
    assert f'<td class="n">{highest:g}</td>' in top
    assert not re.findall(r"(?:src|href)=\"(?!#)|url\(|@import|<script", dom), "the page fetches something"


def test_the_page_as_it_is_seen(facts: Facts, tmp_path: Path) -> None:
    """Not just there but drawn: the colours of the maps, the heat maps and the lines are in the picture."""
    from PIL import Image

    file = tmp_path / report.PAGE
    file.write_text(page(facts, "Seen"), encoding="utf-8")
    shot = tmp_path / "seen.png"
    browse(file, f"--screenshot={shot}", "--window-size=1280,3000", "--force-color-profile=srgb")
    with Image.open(shot) as image:
        assert image.width == 1280
        colours = {colour for _, colour in image.convert("RGB").getcolors(maxcolors=1 << 24) or ()}
    over = {(0x2F, 0x8F, 0x6B), (0xF0, 0xC0, 0x4A), (0xE8, 0x82, 0x3A)} & colours
    assert len(over) >= 2, "stations with and without exceedances"
    assert {(0x0D, 0x08, 0x87), (0xF0, 0xF9, 0x21)} <= colours, "the ends of the heat maps' scale"
    assert (0x1F, 0x6F, 0x8B) in colours, "lines"


def test_a_page_about_nothing() -> None:
    nothing = Facts(
        timezone="UTC",
        summary=None,
        readings=0,
        first=None,
        last=None,
        stations=[],
        stations_left_out=0,
        quantities={},
        units={},
        limits=OPTIONS.limits,
        compliance=[],
        episodes=[],
        days={},
        hours={},
        highest={},
        bucket_s=1,
        delays=[],
        phases=[],
        epochs=[],
    )
    text = page(nothing, "Nothing")
    assert "no readings" in text
    assert "<figure" not in text


def test_what_is_written_replaces_what_was_there(
    spark: SparkSession, facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "gather", lambda read, options: facts)
    (tmp_path / report.PAGE).write_text("old", encoding="utf-8")
    path = report.write_report(lambda columns: spark.range(1), OPTIONS, tmp_path, "New")
    assert path == tmp_path / report.PAGE
    assert "<h1>New</h1>" in path.read_text(encoding="utf-8")
    first = datetime.fromtimestamp(CITY[0].time, UTC).astimezone(MADRID)
    assert f"{first:%d %B %Y, %H:%M}" in path.read_text(encoding="utf-8")
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith("_")] == []
