"""What is written after `format("kittiwake")`: options, checked before anything is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.errors import FilterError, SparkError
from cluster.language.filter import Filter, parse
from cluster.spark.offsets import Offsets

OPTIONS = ("path", "filter", "columns", "startingOffsets", "maxOffsetsPerTrigger", "failOnDataLoss")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one read.

    path:                    the log: a folder, or a URI of a pyarrow or fsspec file system.
    filter:                  rows for which it is not true are left out; None for all.
    columns:                 which, in this order; None for all.
    starting_offsets:        where a new streaming query begins: `earliest`, `latest`, or the next offset by slot.
    max_offsets_per_trigger: rows that one micro-batch takes at most, over all slots; None for all there are.
    fail_on_data_loss:       whether rows that are gone end the query, or are passed over.
    """

    path: str
    filter: Filter | None = None
    columns: tuple[str, ...] | None = None
    starting_offsets: str | Offsets = "earliest"
    max_offsets_per_trigger: int | None = None
    fail_on_data_loss: bool = True


def read_options(given: Mapping[str, str]) -> Options:
    """Return the options of a read; names in any case. Raises SparkError naming the option and what it takes."""
    by_name = {name.lower(): value for name, value in given.items()}
    unknown = sorted(set(by_name) - {name.lower() for name in OPTIONS})
    if unknown:
        raise SparkError(f"unknown option {unknown[0]}; there are {', '.join(OPTIONS)}")
    path = by_name.get("path", "")
    if not path:
        raise SparkError("give the folder of the matched output: load(path), or option path")
    return Options(
        path,
        _filter(by_name.get("filter")),
        _columns(by_name.get("columns")),
        _starting(by_name.get("startingoffsets", "earliest")),
        _limit(by_name.get("maxoffsetspertrigger")),
        _flag("failOnDataLoss", by_name.get("failondataloss", "true")),
    )


def _filter(text: str | None) -> Filter | None:
    if text is None:
        return None
    try:
        return parse(text)
    except FilterError as error:
        raise SparkError(f"option filter: {error}") from error


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if "" in names or len(set(names)) < len(names):
        raise SparkError(f"option columns takes names, each once, with commas between them, not {text!r}")
    return names


def _starting(text: str) -> str | Offsets:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    wanted = 'option startingOffsets takes earliest, latest or JSON like {"0": 1200}: the next offset by slot'
    try:
        found = json.loads(text)
    except ValueError:
        raise SparkError(f"{wanted}; not {text!r}") from None
    if not isinstance(found, dict):
        raise SparkError(f"{wanted}; not {text!r}")
    for slot, offset in found.items():
        if not slot.isdecimal() or type(offset) is not int or offset < 0:
            raise SparkError(f"{wanted}; not {slot!r}: {offset!r}")
    return {int(slot): offset for slot, offset in found.items()}


def _limit(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise SparkError(f"option maxOffsetsPerTrigger takes a whole number from 1, not {text!r}")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise SparkError(f"option {name} takes true or false, not {text!r}")
    return text.lower() == "true"
