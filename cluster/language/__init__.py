"""The filter language: text, JSON and Python spellings of one tree, its normal form, and its meaning.

    tree.py       the nodes, and the checks that all spellings share
    limits.py     how large a filter may be
    lexer.py      text -> tokens; text.py: tokens -> tree; printer.py: tree -> text
    json_form.py  tree <-> JSON; builder.py: F, the Python spelling
    patterns.py   string operators; geo.py: distance and boxes
    evaluate.py   the oracle: tree and attributes -> true, false or unknown
    explain.py    tree and attributes -> what each node comes to, and why
    normal.py     the normal form's types; normalise.py (leaves.py, combine.py): tree -> normal form
    denormalise.py  normal form -> a tree, for people
    holds.py      normal form and attributes -> yes or no; encoding.py: normal form <-> bytes
    filter.py     Filter, which holds it all together

What filters mean is told with executable examples in the README, section "Filters and what they mean".
"""

from __future__ import annotations

from cluster.errors import FilterError
from cluster.language.builder import Expression, F
from cluster.language.denormalise import tree_of_normal
from cluster.language.encoding import decode_normal, encode_normal
from cluster.language.explain import Explanation, explain
from cluster.language.filter import Filter, FilterCost, as_filter, parse
from cluster.language.holds import conjunction_holds, holds, normal_matches, value_holds
from cluster.language.limits import DEFAULT_LIMITS, FilterLimits

__all__ = [
    "DEFAULT_LIMITS",
    "Explanation",
    "Expression",
    "F",
    "Filter",
    "FilterCost",
    "FilterError",
    "FilterLimits",
    "as_filter",
    "conjunction_holds",
    "decode_normal",
    "encode_normal",
    "explain",
    "holds",
    "normal_matches",
    "parse",
    "tree_of_normal",
    "value_holds",
]
