"""Numbers for people, by Grafana's ids of units."""

from __future__ import annotations

import math

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def shown(value: float, unit: str) -> str:
    """Return a number as Grafana shows it, about: `12 ms`, `1.5 kB`, `35 %`, `1.2 k/s`."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    match unit:
        case "s":
            return _time(value)
        case "ms":
            return _time(value / 1000)
        case "percentunit":
            return f"{_short(100 * value)} %"
        case "percent":
            return f"{_short(value)} %"
        case "bytes" | "decbytes":
            return f"{_scaled(value)}B"
        case "Bps" | "binBps":
            return f"{_scaled(value)}B/s"
        case "bool_yes_no":
            return "yes" if value else "no"
        case "none" | "short":
            return _scaled(value).rstrip()
        case _ if unit.endswith("ps"):  # cps, ops, reqps, wps: counts of something a second
            return f"{_scaled(value).rstrip()}/s"
        case _ if unit.startswith("currency"):
            return f"{_short(value)} {unit.removeprefix('currency')}"
        case _:
            return f"{_short(value)} {unit.removeprefix('suffix:').strip()}"


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _scaled(value: float) -> str:
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "


def _time(seconds: float) -> str:
    size = abs(seconds)
    if size >= 3600:
        return f"{seconds / 3600:.3g} h"
    if size >= 60:
        return f"{seconds / 60:.3g} min"
    if size >= 1 or size == 0:
        return f"{seconds:.3g} s"
    return f"{seconds * 1000:.3g} ms" if size >= 1e-3 else f"{seconds * 1e6:.3g} µs"
