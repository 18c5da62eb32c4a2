"""What a publication costs in each layer, as a sum of few terms, and what the terms' coefficients are at first.

A slice's useful time a second, at L publications a second, S subscriptions, rho notifications for each publication, and
n, p, m, k slices of the four layers:

    connection point    L * (f + g*rho) / n            + w * wakes(L)    f: accept; g: deliver one notification
    access point        L * (f + d*m) / p              + w * wakes(L)    f: stamp; d: send to one matcher
    matcher             L * (a + b*S/m)                + w * wakes(L)    a: receive, decode; b: one subscription
    exit point          L * (a + (f + c*m + g*rho)/k)  + w * wakes(L)    c: a matcher's answer; g: list a delivery

So each layer has a part that every slice pays for every publication (`fixed`: a) and one that more slices share
(`shared`: the rest). A matcher's `a` is paid by each, as each publication visits all matchers: if L * a alone is what a
matcher may be busy, no number of matchers will do. The part of an exit point that more of them do not share is
expected to be next to nothing, and is there so that measurements may say otherwise.

wakes(L) are the wake-ups that publications cause which come one by one; the more come, the more of them share one:
L * WAKES / (L + WAKES). Measured on one machine of two cores, a matcher took 320 us a publication at 1,000 a second and
2.6 us at 62,000 a second. Who takes the first figure for `a` concludes that three thousand a second is the end. The
wake-ups are useful time and are seen as such, but they make room when there is need: sizes are not reckoned with them.

The first coefficients are from the same machine's table of CPU time by process (README, "The whole pipeline").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from autoscaler.signals import LAYERS
from cluster.errors import ConfigError
from cluster.messages import ACCESS_POINT, CONNECTION_POINT, EXIT_POINT, MATCHER

WAKES: Final = 1000.0
"""Publications a second from which on half of them find the process awake."""

Sizes = Mapping[str, int]
"""Slices of each layer, for all of LAYERS."""

Coefficients = dict[str, dict[str, float]]
"""Layer -> name of the coefficient -> seconds (b: seconds per subscription; g: per notification; w: per wake-up)."""

NAMES: Final[dict[str, tuple[str, ...]]] = {
    CONNECTION_POINT: ("f", "g", "w"),
    ACCESS_POINT: ("f", "d", "w"),
    MATCHER: ("a", "b", "w"),
    EXIT_POINT: ("a", "f", "c", "g", "w"),
}

PRIOR: Final[Coefficients] = {
    CONNECTION_POINT: {"f": 1e-6, "g": 6e-7, "w": 2e-4},
    ACCESS_POINT: {"f": 3e-7, "d": 1e-7, "w": 2e-4},
    MATCHER: {"a": 1.5e-6, "b": 5e-11, "w": 2e-4},
    EXIT_POINT: {"a": 1e-8, "f": 5e-7, "c": 2e-7, "g": 1.5e-6, "w": 2e-4},
}

SPREAD: Final = 30.0
WAKE_SPREAD: Final = 2.0
"""How far off the prior may be, as standard deviation / value. A subscription may cost a hundred times more than here
(string patterns, another engine); a wake-up is the operating system's and costs about the same anywhere. So what rows
leave open between the two goes to the wake-ups while there are few of anything else, and else to the work."""

FLOOR: Final = 0.3
"""No work costs less than this share of its prior. At low rates wake-ups are all that is seen, and work that is lost in
their noise would be taken for none: a live cluster at 140 publications/s was found good for 128 million."""

HIT_SECONDS: Final = 4e-8
"""A matcher's time for one match: opensense has 930 a publication, and takes 40 us."""

BYTE_SECONDS: Final = 2e-9
"""A matcher's time to decode one byte; an assumption, 1 us for 500 bytes."""


class Load(NamedTuple):
    """What the cluster has to do. Rates are per second, of the whole cluster.

    notifications_per_publication: notifications handed to clients, for each publication.
    """

    publications_per_s: float
    subscriptions: float
    notifications_per_publication: float = 0.0


class Row(NamedTuple):
    """The terms of one layer, in the order of NAMES without `w`: seconds a publication = terms . coefficients.

    fixed, shared: those that do not and those that do shrink with the layer's own count; they add up to `terms`.
    """

    fixed: tuple[float, ...]
    shared: tuple[float, ...]

    @property
    def terms(self) -> tuple[float, ...]:
        return tuple(one + other for one, other in zip(self.fixed, self.shared, strict=True))


def row(layer: str, sizes: Sizes, load: Load) -> Row:
    """Return a layer's terms at these sizes."""
    matchers, rho = sizes[MATCHER], load.notifications_per_publication
    count = sizes[layer]
    if layer == CONNECTION_POINT:
        return Row((0.0, 0.0), (1 / count, rho / count))
    if layer == ACCESS_POINT:
        return Row((0.0, 0.0), (1 / count, matchers / count))
    if layer == MATCHER:
        return Row((1.0, 0.0), (0.0, load.subscriptions / matchers))
    assert layer == EXIT_POINT, layer
    return Row((1.0, 0.0, 0.0, 0.0), (0.0, 1 / count, matchers / count, rho / count))


def wakes(publications_per_s: float) -> float:
    """Return the wake-ups a second that so many publications cause in a process that has the time."""
    return publications_per_s * WAKES / (publications_per_s + WAKES)


class Interest(msgspec.Struct, frozen=True, kw_only=True):
    """The summary that the analytics job `interest` writes; keys that are not here are its own business."""

    publications_per_second: float
    matches_per_publication: float
    subscriptions: float
    bytes_per_publication: float

    @property
    def load(self) -> Load:
        """The load that it speaks of, if each match went to a client of its own (fewer clients are less work)."""
        return Load(self.publications_per_second, self.subscriptions, self.matches_per_publication)

    def check(self) -> None:
        """Raise ConfigError, which names the field, for what is no amount."""
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if not 0 <= value < float("inf"):
                raise ConfigError(f"interest summary: {field} is {value}, allowed is a number from 0 on")


def read_interest(document: Mapping[str, Any] | bytes) -> Interest:
    """Return the summary that a document (or its JSON text) holds. Raises: ConfigError, which names the field."""
    try:
        summary = (
            msgspec.json.decode(document, type=Interest)
            if isinstance(document, bytes)
            else msgspec.convert(document, Interest)
        )
    except msgspec.MsgspecError as error:
        raise ConfigError(f"interest summary: {error}") from error
    summary.check()
    return summary


def prior(interest: Interest | None = None) -> Coefficients:
    """Return the coefficients that are expected before anything is measured.

    With a summary of interest a matcher's share of a subscription is what its matches cost spread over all of them, and
    its fixed part grows with the publications' size.
    """
    found = {layer: dict(values) for layer, values in PRIOR.items()}
    if interest is not None:
        found[MATCHER]["b"] += HIT_SECONDS * interest.matches_per_publication / max(interest.subscriptions, 1.0)
        found[MATCHER]["a"] += BYTE_SECONDS * interest.bytes_per_publication
    return found


assert tuple(NAMES) == LAYERS == tuple(PRIOR), "each layer has its coefficients"
