"""Tree -> normal form: where is the filter true, as a disjunction of conjunctions of atoms.

Negation is pushed down by asking each node not "are you true?" only but one of four questions, each answered through
the same questions to its operands:

    question    of not x       of x and y                of x or y               of x is not true
    true        x false        x true and y true         x true or y true        x not true
    false       x true         x false or y false        x false and y false     x true
    not true    x not false    x not true or y not true  x not true and ...      x true
    not false   x not true     x not false and ...       x not false or ...      x not true

A predicate answers with where it is true or false, joined for the last two with where it is unknown. So Kleene's third
value is gone below this module.

The hard case is a conjunction of disjunctions, whose normal form may be exponential. Operands are multiplied one at a
time, the shortest first; a product over the limit is refused. So is a filter that takes more than 8 merges for each
conjunction allowed, though contradictions may have thinned the product out: the work is bounded whatever the filter.
Merging long lists on one attribute counts as a merge more for each 8 values.
`x in (..)` and `!=` stay one atom and multiply nothing.
"""

from __future__ import annotations

from cluster.errors import FilterError
from cluster.language.combine import combine
from cluster.language.encoding import encode_normal
from cluster.language.leaves import Draft, where_false, where_true, where_unknown
from cluster.language.limits import DEFAULT_LIMITS, FilterLimits
from cluster.language.normal import Conjunction, Member, NormalForm
from cluster.language.tree import And, IsNotTrue, Not, Or, Tree

_TRUE, _FALSE, _NOT_TRUE, _NOT_FALSE = range(4)
_OPPOSITE = (_FALSE, _TRUE, _NOT_FALSE, _NOT_TRUE)
_MERGES_PER_CONJUNCTION = 8
_VALUES_PER_MERGE = 8


def normal_form(tree: Tree, limits: FilterLimits = DEFAULT_LIMITS) -> NormalForm:
    """Return the normal form of a tree that is within the limits.

    Raises: FilterError if the filter can't be true, or needs more conjunctions than allowed.
    Cost:   about 3 µs a predicate in a conjunction; at most 50 ms, for a filter that uses up its merges (measured on
            one core of the development machine).
    """
    expansion = _Expansion(limits.conjunctions)
    drafts = expansion.within_limit(expansion.expand(tree, _TRUE))
    if not drafts:
        raise FilterError("the filter can never be true")
    form = tuple(map(_finished, drafts))
    if len(form) == 1:
        return form
    form = _distinct(form)
    size = len(encode_normal(form))
    if size > limits.normal_bytes:
        raise FilterError(
            f"the normal form has {size} bytes, more than {limits.normal_bytes}", limit=limits.normal_bytes
        )
    return form


class _Expansion:
    """Expands one tree; counts the merges."""

    __slots__ = ("_limit", "_merges_left")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._merges_left = limit * _MERGES_PER_CONJUNCTION

    def expand(self, node: Tree, question: int) -> list[Draft]:
        if isinstance(node, (And, Or)):
            answers = [self.expand(operand, question) for operand in node.operands]
            if isinstance(node, And) == (question in (_TRUE, _NOT_FALSE)):
                return self._product(answers)
            return self.within_limit([draft for answer in answers for draft in answer])
        if isinstance(node, Not):
            return self.expand(node.operand, _OPPOSITE[question])
        if isinstance(node, IsNotTrue):
            # Two-valued from here up, so "false" and "not true" ask the same of it.
            return self.expand(node.operand, _NOT_TRUE if question in (_TRUE, _NOT_FALSE) else _TRUE)
        drafts = where_true(node) if question in (_TRUE, _NOT_FALSE) else where_false(node)
        return drafts + where_unknown(node) if question in (_NOT_TRUE, _NOT_FALSE) else drafts

    def _product(self, answers: list[list[Draft]]) -> list[Draft]:
        answers.sort(key=len)
        product: list[Draft] = [{}]
        for answer in answers:
            if not answer:
                return []
            self._spend(len(product) * len(answer))
            merged = [self._merge(one, other) for one in product for other in answer]
            product = self.within_limit([draft for draft in merged if draft is not None])
        return product

    def within_limit(self, drafts: list[Draft]) -> list[Draft]:
        """Return the drafts, without doubles if it takes that to fit; refuse what doesn't."""
        if len(drafts) <= self._limit:
            return drafts
        # Only now is it worth looking for doubles.
        drafts = list({_key(_finished(draft)): draft for draft in drafts}.values())
        if len(drafts) > self._limit:
            self._refuse()
        return drafts

    def _merge(self, one: Draft, other: Draft) -> Draft | None:
        """Return the conjunction of two, or None if they contradict each other. Neither argument is changed."""
        merged = one | other
        if len(merged) == len(one) + len(other):
            return merged
        for attribute in one.keys() & other.keys():
            both = one[attribute] + other[attribute]
            self._spend(sum(len(atom.values) for atom in both if isinstance(atom, Member)) // _VALUES_PER_MERGE)
            atoms = combine(attribute, both)
            if atoms is None:
                return None
            merged[attribute] = atoms
        return merged

    def _spend(self, merges: int) -> None:
        self._merges_left -= merges
        if self._merges_left < 0:
            self._refuse()

    def _refuse(self) -> None:
        raise FilterError(f"the normal form needs more than {self._limit} conjunctions", limit=self._limit)


def _finished(draft: Draft) -> Conjunction:
    if len(draft) == 1:
        return next(iter(draft.values()))
    return tuple(atom for attribute in sorted(draft) for atom in draft[attribute])


def _distinct(form: NormalForm) -> NormalForm:
    return tuple({_key(conjunction): conjunction for conjunction in form}.values())


def _key(conjunction: Conjunction) -> object:
    """Return what tells conjunctions apart; to Python the members True and 1 are equal, so their types are in it."""
    return tuple((atom, *map(_is_bool, atom.values)) if isinstance(atom, Member) else atom for atom in conjunction)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)
