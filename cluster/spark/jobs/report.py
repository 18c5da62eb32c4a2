"""`report`: one self-contained HTML page on what the log holds. facts.py computes, figures.py draws, page.py writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame

from cluster.spark.jobs.facts import gather
from cluster.spark.jobs.options import JobOptions
from cluster.spark.jobs.page import page

PAGE = "report.html"
TITLE = "What the sensors said"


def write_report(
    read: Callable[[Sequence[str]], DataFrame], options: JobOptions, folder: Path, title: str | None = None
) -> Path:
    """Write the page into a folder, in the place of an earlier one, and return its path. read: as facts.gather's."""
    text = page(gather(read, options), title or TITLE)
    aside = folder / f"_{PAGE}.new"
    aside.write_text(text, encoding="utf-8")
    return aside.replace(folder / PAGE)
