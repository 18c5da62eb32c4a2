"""Small pieces of SVG as text: scales, ticks, marks. Own, not matplotlib's, for what a page needs beyond a picture.

Marks take their colours from the page's style sheet, so that one page serves light and dark screens; each has a title
that shows when one points at it; text stays text, for readers and for screen readers. matplotlib's SVG has none of
these.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps [low, high] to [start, end], linearly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return where a value lies, rounded to a hundredth."""
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        share = (at - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 2)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers (1, 2 or 5 times a power of ten apart) from low to high."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * place, 12) for place in range(first, math.floor(high / step + 1e-9) + 1)]


def powers(low: float, high: float) -> list[float]:
    """Return the powers of ten from low to high."""
    return [10.0**power for power in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)]


def number(value: float, digits: int = 3) -> str:
    """Return a number for people: `1,234`, `56.7`, `0.089`."""
    if value == 0:
        return "0"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    text = f"{value:.{min(places, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def tag(name: str, *inside: str, **attributes: object) -> str:
    """Return an element. Attributes are escaped, `class_` is class, `_` is `-`; what is inside is not escaped."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value != ""
    )
    return f"<{name}{given}>{''.join(inside)}</{name}>" if inside else f"<{name}{given}/>"


def text(x: float, y: float, words: str, *, class_: str = "", anchor: str = "start") -> str:
    """Return a line of text."""
    return tag("text", escape(words), x=x, y=y, class_=class_, text_anchor=anchor)


def title(words: str) -> str:
    """Return what shows when one points at the mark that this is in."""
    return tag("title", escape(words))


def line(points: Iterable[tuple[float, float]], class_: str) -> str:
    """Return a line through the points; nothing for less than two."""
    joined = [f"{x:g},{y:g}" for x, y in points]
    return tag("polyline", points=" ".join(joined), class_=class_) if len(joined) > 1 else ""


def band(points: Sequence[tuple[float, float, float]], class_: str) -> str:
    """Return the area between two lines over the same x; points are (x, y of one, y of the other)."""
    if len(points) < 2:
        return ""
    there = [f"{x:g},{low:g}" for x, low, _ in points]
    back = [f"{x:g},{high:g}" for x, _, high in reversed(points)]
    return tag("polygon", points=" ".join([*there, *back]), class_=class_)


def picture(width: float, height: float, name: str, *inside: str) -> str:
    """Return a whole picture, as wide as its place; name: what it shows, for those who do not see it."""
    return tag("svg", title(name), *inside, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=name)


RAMP = (
    (13, 8, 135),
    (84, 2, 163),
    (139, 10, 165),
    (185, 50, 137),
    (219, 92, 104),
    (244, 136, 73),
    (254, 188, 43),
    (240, 249, 33),
)
"""matplotlib's `plasma` at eighths: equal steps look equal, also without colour vision and in print."""


def ramp(share: float) -> str:
    """Return the colour for 0 to 1."""
    place = min(max(share, 0.0), 1.0) * (len(RAMP) - 1)
    index = min(int(place), len(RAMP) - 2)
    part = place - index
    mixed = (round(a + part * (b - a)) for a, b in zip(RAMP[index], RAMP[index + 1], strict=True))
    return "#" + "".join(f"{each:02x}" for each in mixed)
