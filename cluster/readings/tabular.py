"""Publications from CSV and from JSON lines, plain or gzipped; a line that cannot be used is reported, not fatal.

CSV: the first row names the attributes; the separator is whichever of `,` `;` tab the first row has most of. Types
are found value by value: whole numbers, decimal numbers, `true` and `false` in any case; an empty field is an absent
attribute; all else is a string, also numbers with leading zeros (`007`, `079`), since those are codes.
JSON lines: one object a line, nested ones flattened with `.`.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NoReturn

from cluster.language.normal import Value
from cluster.readings.source import DAMAGED, Publication, ReadingsError, Report, open_binary, size_bytes
from cluster.readings.values import INTEGER_MAX, INTEGER_MIN, ValueRefused, flatten, is_unicode

_INTEGER = re.compile(r"[+-]?(?:0|[1-9]\d*)", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_DIGITS_MAX = 400
"""Longer runs of digits are strings: no number that fits needs as many, and int() of them costs quadratic time."""

LINE_BYTES_MAX = 1 << 20
"""Longer lines are refused without being held; the default limit of a frame is as much."""


class JsonLinesFile:
    """A file of JSON objects, one a line."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._size = size_bytes(self._path)
        self.report = Report()
        self.fraction = 0.0

    def __iter__(self) -> Iterator[Publication]:
        report = self.report = Report()
        self.fraction = 0.0
        name = self._path.name
        contents, disk = open_binary(self._path)
        number = 0
        try:
            with disk, contents:
                while line := contents.readline(LINE_BYTES_MAX + 1):
                    number += 1
                    if len(line) > LINE_BYTES_MAX:
                        while line and not line.endswith(b"\n"):
                            line = contents.readline(LINE_BYTES_MAX)
                        report.rows += 1
                        report.trouble(name, number, f"longer than {LINE_BYTES_MAX} bytes", unused_row=True)
                        continue
                    if line.isspace():
                        continue
                    report.rows += 1
                    report.values += 1
                    try:
                        publication = parse_json_line(line)
                    except ValueRefused as error:
                        report.trouble(name, number, str(error), unused_row=True)
                        continue
                    report.valid += 1
                    report.published += 1
                    self.fraction = disk.tell() / self._size
                    yield publication
        except DAMAGED as error:
            report.trouble(name, 0, f"damaged, what follows line {number} is lost: {error}")
        self.fraction = 1.0


class CsvFile:
    """A table whose first row names the attributes. Raises ReadingsError for a first row that does not."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._size = size_bytes(self._path)
        self.report = Report()
        self.fraction = 0.0
        with self._text() as (text, _):
            self._header(text)

    def __iter__(self) -> Iterator[Publication]:
        report = self.report = Report()
        self.fraction = 0.0
        with self._text() as (text, disk):
            names, delimiter = self._header(text)
            text.seek(0)
            rows = csv.reader(text, delimiter=delimiter)
            first = True
            while True:
                try:
                    row = next(rows, None)
                except csv.Error as error:
                    report.rows += 1
                    report.trouble(self._path.name, rows.line_num, str(error), unused_row=True)
                    continue
                except DAMAGED as error:
                    reason = f"damaged, what follows line {rows.line_num} is lost: {error}"
                    report.trouble(self._path.name, 0, reason)
                    break
                if row is None:
                    break
                if first or not row:
                    first = False
                    continue
                report.rows += 1
                report.values += 1
                try:
                    publication = _publication(names, row)
                except ValueRefused as error:
                    report.trouble(self._path.name, rows.line_num, str(error), unused_row=True)
                    continue
                report.valid += 1
                report.published += 1
                self.fraction = min(1.0, disk.tell() / self._size)
                yield publication
        self.fraction = 1.0

    def _text(self) -> _Text:
        return _Text(self._path)

    def _header(self, text: IO[str]) -> tuple[list[str], str]:
        try:
            line = text.readline(LINE_BYTES_MAX)
        except DAMAGED as error:
            raise ReadingsError(f"{self._path}: damaged: {error}") from error
        delimiter = max(",;\t", key=line.count)
        try:
            names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
        except csv.Error as error:
            raise ReadingsError(f"{self._path}: its first row is no CSV: {error}") from error
        if not names:
            raise ReadingsError(f"{self._path}: empty; the first row of a CSV file names the attributes")
        for index, name in enumerate(names):
            if not name:
                raise ReadingsError(f"{self._path}: column {index + 1} has no name in the first row")
            if name in names[:index]:
                raise ReadingsError(f"{self._path}: two columns are called {name!r}")
            if not is_unicode(name):
                raise ReadingsError(f"{self._path}: the first row is not UTF-8")
        return names, delimiter


class _Text:
    """A file's contents as text and the file on disk below it, closed together.

    Bytes that are not UTF-8 become lone surrogates, which `check_value` refuses, line by line.
    """

    def __init__(self, path: Path) -> None:
        self._contents, self._disk = open_binary(path)

    def __enter__(self) -> tuple[IO[str], IO[bytes]]:
        self._text = io.TextIOWrapper(self._contents, encoding="utf-8-sig", errors="surrogateescape", newline="")
        return self._text, self._disk

    def __exit__(self, *_: object) -> None:
        self._text.close()
        self._disk.close()


def parse_json_line(line: bytes | str) -> Publication:
    """Return the publication that a line of JSON spells. Raises ValueRefused, which says what is wrong."""
    try:
        value = json.loads(line, parse_constant=_refuse_constant)
    except ValueRefused:
        raise
    except UnicodeDecodeError as error:
        raise ValueRefused("not UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueRefused(f"not JSON: {error.msg} at character {error.pos + 1}") from error
    except (ValueError, RecursionError) as error:  # more digits than int() takes; nesting without end
        raise ValueRefused(f"not usable: {error}") from error
    if not isinstance(value, dict):
        raise ValueRefused("not a JSON object")
    flat = flatten(value)
    if not flat:
        raise ValueRefused("no attributes")
    return flat


def _refuse_constant(name: str) -> NoReturn:
    raise ValueRefused(f"{name} is not a finite number")


def parse_text(text: str) -> Value:
    """Return what a CSV field spells; the empty string is the caller's to treat as absent.

    Raises: ValueRefused for numbers that no attribute can hold.
    """
    first = text[:1]
    if first in "+-." or first.isdigit():
        if len(text) > _DIGITS_MAX:
            return text
        if _INTEGER.fullmatch(text):
            integer = int(text)
            if not INTEGER_MIN <= integer <= INTEGER_MAX:
                raise ValueRefused("does not fit in 64 bits")
            return integer
        if _FLOAT.fullmatch(text):
            number = float(text)
            if not math.isfinite(number):
                raise ValueRefused("is not a finite number")
            return number
    elif first in "tTfF" and len(text) in (4, 5):
        lower = text.lower()
        if lower in ("true", "false"):
            return lower == "true"
    return text


def _publication(names: list[str], row: list[str]) -> Publication:
    if len(row) != len(names):
        raise ValueRefused(f"{len(row)} fields where the first row has {len(names)}")
    publication: Publication = {}
    for name, text in zip(names, row, strict=True):
        if not text:
            continue
        try:
            value = parse_text(text)
        except ValueRefused as error:
            raise ValueRefused(f"attribute {name!r} {error}") from None
        if isinstance(value, str) and not is_unicode(value):
            raise ValueRefused(f"attribute {name!r} is not UTF-8")
        publication[name] = value
    if not publication:
        raise ValueRefused("no attributes")
    return publication
