"""The filter as the rest of Kittiwake sees it: one checked tree with its normal form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from cluster.errors import FilterError
from cluster.language.builder import Attribute, Expression
from cluster.language.evaluate import evaluate
from cluster.language.explain import Explanation, explain
from cluster.language.json_form import json_of, tree_of_json
from cluster.language.limits import DEFAULT_LIMITS, FilterLimits
from cluster.language.normal import NormalForm
from cluster.language.normalise import normal_form
from cluster.language.printer import normal_form_text, text_of
from cluster.language.text import tree_of_text
from cluster.language.tree import Tree, attributes_of, check_limits, measure

# Canonical text is at most this many times as long as the text it came from (a control character, one byte in raw
# text, takes six as an escape; `1e15` prints with 18 characters), so shorter texts fit without being printed.
_GROWTH = 8


class FilterCost(msgspec.Struct, frozen=True):
    """What a filter costs an index: the size of its tree and of its normal form."""

    predicates: int
    depth: int
    conjunctions: int
    atoms: int

    def __str__(self) -> str:
        return (
            f"{self.predicates} predicates, {self.depth} levels deep; "
            f"normal form: {self.conjunctions} conjunctions of {self.atoms} atoms in all"
        )


class Filter:
    """A filter within its limits that can be true. Immutable; equal filters have the same tree.

    Made by `parse`, `Filter.from_json` or `as_filter`.
    """

    __slots__ = ("_text", "normal_form", "tree")

    tree: Tree
    normal_form: NormalForm

    def __init__(self, tree: Tree, form: NormalForm, text: str | None = None) -> None:
        """For the functions of this module: the tree was checked and the normal form is its own."""
        self.tree = tree
        self.normal_form = form
        self._text = text

    @classmethod
    def from_tree(cls, tree: Tree, limits: FilterLimits = DEFAULT_LIMITS) -> Filter:
        """Return the filter of a tree that a program built; raises FilterError."""
        check_limits(tree, limits)
        return cls(tree, normal_form(tree, limits), _canonical(tree, limits))

    @classmethod
    def from_json(cls, found: object, limits: FilterLimits = DEFAULT_LIMITS) -> Filter:
        """Return the filter of the JSON spelling (an object, not its text); raises FilterError."""
        return cls.from_tree(tree_of_json(found, limits), limits)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON spelling; the caller owns it."""
        return json_of(self.tree)

    @property
    def text(self) -> str:
        """The canonical text: `parse(f.text) == f`."""
        if self._text is None:
            self._text = text_of(self.tree)
        return self._text

    @property
    def attributes(self) -> frozenset[str]:
        """The names of the attributes that the filter mentions."""
        return attributes_of(self.tree)

    @property
    def cost(self) -> FilterCost:
        """The size of the tree and of the normal form."""
        predicates, depth = measure(self.tree)
        atoms = sum(map(len, self.normal_form))
        return FilterCost(predicates, depth, len(self.normal_form), atoms)

    def describe(self) -> str:
        """Return the normal form for people, one conjunction a line."""
        return normal_form_text(self.normal_form)

    def matches(self, attributes: Mapping[str, object]) -> bool:
        """Tell whether the filter is true for the attributes."""
        return evaluate(self.tree, attributes) is True

    def evaluate(self, attributes: Mapping[str, object]) -> bool | None:
        """Return True, False, or None for unknown."""
        return evaluate(self.tree, attributes)

    def explain(self, attributes: Mapping[str, object]) -> Explanation:
        """Return what each part of the filter comes to, and why; positions are in `text`."""
        return explain(self.tree, attributes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"parse({self.text!r})"


def parse(text: str, limits: FilterLimits = DEFAULT_LIMITS) -> Filter:
    """Return the filter of a text.

    Raises: FilterError with reason, position and limit for a text that is malformed, never true, or over a limit.
    """
    if not isinstance(text, str):
        raise FilterError(f"the text of a filter must be a string, not {type(text).__name__}")
    tree = tree_of_text(text, limits)
    canonical = None
    try:
        if len(text) * 4 * _GROWTH > limits.text_bytes:
            canonical = _canonical(tree, limits)
        return Filter(tree, normal_form(tree, limits), canonical)
    except FilterError as error:
        # What is wrong with the filter as a whole starts where the filter does.
        raise FilterError(error.reason, position=0, limit=error.limit) from error


def as_filter(spelling: object, limits: FilterLimits = DEFAULT_LIMITS) -> Filter:
    """Return the filter of any spelling: text, an expression of `F`, a JSON object, or a Filter (returned as it is)."""
    if isinstance(spelling, Filter):
        return spelling
    if isinstance(spelling, str):
        return parse(spelling, limits)
    if isinstance(spelling, Expression):
        return Filter.from_tree(spelling.tree, limits)
    if isinstance(spelling, Mapping):
        return Filter.from_json(spelling, limits)
    if isinstance(spelling, Attribute):
        raise FilterError(f"{spelling!r} is an attribute, not a filter: compare it")
    raise FilterError(f"a filter is text, an expression of F or a JSON object, not {type(spelling).__name__}")


def _canonical(tree: Tree, limits: FilterLimits) -> str:
    """Return the canonical text, which has to fit as well: it is what travels."""
    text = text_of(tree)
    size = len(text.encode())
    if size > limits.text_bytes:
        raise FilterError(
            f"the canonical text has {size} bytes, more than {limits.text_bytes}", limit=limits.text_bytes
        )
    return text
