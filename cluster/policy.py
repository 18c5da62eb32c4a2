"""What a subscription wants to happen when its client does not keep up.

    block                        nothing is lost: whoever published waits
    drop_oldest                  the oldest that waits gives way
    drop_newest                  what comes to a full queue is not taken in
    latest_per_key(attribute)    of what waits, the newest for each value of the attribute is kept
    disconnect                   the client's session ends

A policy travels as this text. The attribute's name is written as in a filter: in backticks if it is no identifier.
What each does, and to a notification that several subscriptions match, is told in `outbox.py`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cluster.errors import FilterError, PolicyError
from cluster.language.lexer import KEYWORDS, tokens_of
from cluster.language.limits import DEFAULT_LIMITS, FilterLimits
from cluster.language.printer import name_text

BLOCK: Final = "block"
DROP_OLDEST: Final = "drop_oldest"
DROP_NEWEST: Final = "drop_newest"
LATEST_PER_KEY: Final = "latest_per_key"
DISCONNECT: Final = "disconnect"

SPELLINGS = (BLOCK, DROP_OLDEST, DROP_NEWEST, f"{LATEST_PER_KEY}(attribute)", DISCONNECT)


class Policy(NamedTuple):
    """One of the names above; `attribute` is None but for latest_per_key."""

    name: str
    attribute: str | None = None

    @property
    def text(self) -> str:
        """As it travels; `policy_of` of it gives the policy back."""
        return self.name if self.attribute is None else f"{self.name}({name_text(self.attribute)})"


_PLAIN = {name: Policy(name) for name in (BLOCK, DROP_OLDEST, DROP_NEWEST, DISCONNECT)}


def latest_per_key(attribute: str) -> str:
    """Return the policy that keeps the newest notification for each value of the attribute, as text."""
    return Policy(LATEST_PER_KEY, attribute).text


def policy_of(text: str, limits: FilterLimits = DEFAULT_LIMITS) -> Policy:
    """Return the policy that the text stands for.

    Raises: PolicyError, with the position (index in characters) where the trouble starts, and the limit passed.
    """
    plain = _PLAIN.get(text)
    if plain is not None:
        return plain
    name, opened, rest = text.partition("(")
    at = len(text) - len(rest)  # where the rest begins
    name = name.strip(" \t\r\n")
    if name != LATEST_PER_KEY:
        if opened and name in _PLAIN:
            raise PolicyError(f"policy {name} takes no attribute", position=at - 1)
        raise PolicyError(f"policy {text[:32]!r}, known are {', '.join(SPELLINGS)}")
    if not opened:
        raise PolicyError(f"policy {name} needs its attribute: {name}(attribute)", position=len(text))
    try:
        tokens = tokens_of(rest, limits)
    except FilterError as error:
        raise PolicyError(
            f"policy {name}: {error.reason}",
            position=None if error.position is None else at + error.position,
            limit=error.limit,
        ) from error
    found: str | None = None
    for wanted, (kind, value, place) in zip(("attribute", ")", "end"), tokens, strict=False):
        position = at + place
        if kind == "error":
            limit = tokens[-1][1]
            raise PolicyError(f"policy {name}: {value}", position=position, limit=int(limit) or None)
        if wanted == "attribute":
            if kind not in ("name", "quoted"):
                hint = f" (a keyword stands in backticks: `{kind}`)" if kind in KEYWORDS else ""
                raise PolicyError(f"policy {name}: expected an attribute's name{hint}", position=position)
            found = str(value)
        elif kind != wanted:
            expected = "the end" if wanted == "end" else repr(wanted)
            raise PolicyError(f"policy {name}: expected {expected} after its attribute", position=position)
    assert found is not None, "three tokens, the first of them a name"
    return Policy(LATEST_PER_KEY, found)
