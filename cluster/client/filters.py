"""Filters in whatever spelling the application has them -> the text that goes on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster.language import Expression, Filter

    FilterLike = str | Mapping[str, Any] | Filter | Expression


def filter_text(filter: FilterLike) -> str:
    """Return the filter as text.

    A string goes as it is, and is judged by the broker alone: a client older than the broker does not stand in the
    way of what the broker understands. Raises: FilterError for the other spellings when they are malformed.
    """
    if isinstance(filter, str):
        return filter
    # Imported here: an application that writes its filters as text never loads the language.
    from cluster.language import as_filter

    return as_filter(filter).text
