"""Sources of publications: files of readings, and readings made up on the spot.

A source is iterated; each item is one publication, a flat map attribute name -> value, ready for `client.publish`.
Iterating again starts from the beginning with a fresh report. Nothing here needs more than the standard library, so
that it runs on a client's machine.
"""

from __future__ import annotations

from cluster.readings.formats import FORMATS, open_readings
from cluster.readings.generator import CityGenerator
from cluster.readings.madrid import MadridYear
from cluster.readings.source import Readings, ReadingsError, Report, Trouble
from cluster.readings.tabular import CsvFile, JsonLinesFile

__all__ = [
    "FORMATS",
    "CityGenerator",
    "CsvFile",
    "JsonLinesFile",
    "MadridYear",
    "Readings",
    "ReadingsError",
    "Report",
    "Trouble",
    "open_readings",
]
