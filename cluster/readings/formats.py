"""Open a path as a source of publications, in the format asked for or in the one it looks like."""

from __future__ import annotations

from pathlib import Path

from cluster.readings.madrid import MadridYear
from cluster.readings.source import Readings, ReadingsError
from cluster.readings.tabular import CsvFile, JsonLinesFile

FORMATS = ("madrid", "csv", "jsonl")


def open_readings(path: str | Path, format: str | None = None) -> Readings:
    """Return the readings at a path, plain or gzipped.

    format: one of FORMATS; None takes a folder for Madrid's, and a file for what its name ends in.
    Raises: ReadingsError if the path is missing, not in that format, or its name does not tell the format.
    """
    path = Path(path)
    if not path.exists():
        raise ReadingsError(f"{path}: no such file or folder")
    if format is None:
        format = _guess(path)
    elif format not in FORMATS:
        raise ReadingsError(f"format {format!r} is not known; known are {', '.join(FORMATS)}")
    if format == "madrid":
        return MadridYear(path)
    if path.is_dir():
        raise ReadingsError(f"{path}: is a folder; {format} is read from a file")
    return CsvFile(path) if format == "csv" else JsonLinesFile(path)


def _guess(path: Path) -> str:
    if path.is_dir():
        return "madrid"
    name = path.name.lower().removesuffix(".gz")
    if name.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    if name.endswith((".csv", ".tsv")):
        return "csv"
    raise ReadingsError(f"{path}: its name does not tell its format; say which: --format {'|'.join(FORMATS)}")
