"""Text of a filter -> tree, by recursive descent.

    filter      = conjunction { "or" conjunction }
    conjunction = negation { "and" negation }
    negation    = "not" negation | primary
    primary     = "(" filter ")" [ "is" "not" "true" ] | predicate
    predicate   = name ("==" | "=" | "!=" | "<>" | "<" | "<=" | ">" | ">=") literal
                | name ["not"] "between" literal "and" literal
                | name ["not"] "in" "(" literal { "," literal } ")"
                | name ["not"] ("starts_with" | "ends_with" | "contains" | "like") string
                | name "is" ["not"] ("null" | "number" | "string" | "bool")
                | ("exists" | "missing") ( name | "(" name ")" )
                | "within" "(" name "," name "," number "," number "," number "," number ")"
                | "near" "(" name "," name "," number "," number "," number ")"

`is not true` follows parentheses only: in `a > 1 and b > 2 is not true` readers disagree about what it covers. The
parser counts nested `not` and parentheses and stops at the limit, so Python's own recursion limit is never met.
"""

from __future__ import annotations

from cluster.errors import FilterError
from cluster.language import tree
from cluster.language.lexer import Token, tokens_of
from cluster.language.limits import DEFAULT_LIMITS, FilterLimits
from cluster.language.tree import Scalar, Tree

_KINDS = ("null", "number", "string", "bool")
_NOT_NUMBERS = ("nan", "inf", "infinity")


def tree_of_text(text: str, limits: FilterLimits = DEFAULT_LIMITS) -> Tree:
    """Return the tree of a filter's text.

    Raises: FilterError with the position (index in characters) for whatever isn't a filter within the limits.
    Cost:   linear in the text.
    """
    return _Parser(text, limits).whole()


class _Parser:
    __slots__ = ("_at", "_limits", "_predicates", "_tokens")

    def __init__(self, text: str, limits: FilterLimits) -> None:
        self._tokens = tokens_of(text, limits)
        self._at = 0  # index of the token that comes next
        self._limits = limits
        self._predicates = 0

    def whole(self) -> Tree:
        if self._tokens[0][0] == "end":
            raise self._error("an empty filter")
        found = self._disjunction(0)
        token = self._tokens[self._at]
        if token[0] != "end":
            if token[0] == "is":
                raise self._error("'is not true' needs its expression in parentheses")
            raise self._error("expected and, or, or the end", found=True)
        return found

    def _disjunction(self, depth: int) -> Tree:
        first = self._conjunction(depth)
        if self._tokens[self._at][0] != "or":
            return first
        operands = [first]
        while self._tokens[self._at][0] == "or":
            self._at += 1
            operands.append(self._conjunction(depth))
        return tree.any_of(operands)

    def _conjunction(self, depth: int) -> Tree:
        first = self._negation(depth)
        if self._tokens[self._at][0] != "and":
            return first
        operands = [first]
        while self._tokens[self._at][0] == "and":
            self._at += 1
            operands.append(self._negation(depth))
        return tree.all_of(operands)

    def _negation(self, depth: int) -> Tree:
        kind, value, position = self._tokens[self._at]
        if kind == "name" or kind == "quoted":
            self._at += 1
            self._count(position)
            return self._on_attribute(str(value))
        if kind == "not":
            self._check_depth(depth)
            self._at += 1
            return tree.Not(self._negation(depth + 1))
        if kind == "(":
            return self._parenthesised(depth)
        if kind in ("exists", "missing"):
            self._count(position)
            return self._presence(kind)
        if kind in ("within", "near"):
            self._count(position)
            return self._place(kind)
        if kind == "literal":
            raise self._error("an attribute stands on the left of its operator, the value on the right")
        raise self._error("expected a predicate", found=True)

    def _parenthesised(self, depth: int) -> Tree:
        self._check_depth(depth)
        self._at += 1
        inside = self._disjunction(depth + 1)
        if self._tokens[self._at][0] == "is":
            raise self._error("'is not true' needs its expression in parentheses")
        self._expect(")")
        if self._tokens[self._at][0] != "is":
            return inside
        self._at += 1
        words = self._tokens[self._at : self._at + 2]
        if len(words) < 2 or words[0][0] != "not" or words[1][:2] != ("literal", True):
            raise self._error("only 'is not true' can follow parentheses")
        self._at += 2
        return tree.IsNotTrue(inside)

    def _on_attribute(self, attribute: str) -> Tree:
        kind, _, position = self._tokens[self._at]
        self._at += 1
        if kind in tree.COMPARISONS:
            value, position = self._literal()
            try:
                return tree.comparison(attribute, kind, value)
            except FilterError as error:
                raise self._placed(error, position) from error
        if kind == "is":
            negated = self._accept("not")
            return self._negate(negated, tree.kind_test(attribute, self._kind()))
        negated = kind == "not"
        if negated:
            kind, _, position = self._tokens[self._at]
            self._at += 1
        try:
            if kind == "between":
                low, position = self._literal()
                self._expect("and")
                high, _ = self._literal()
                return self._negate(negated, tree.between(attribute, low, high))
            if kind == "in":
                return self._negate(negated, tree.member_of(attribute, self._list()))
            if kind in ("starts_with", "ends_with", "contains", "like"):
                text, position = self._literal()
                return self._negate(negated, tree.string_match(attribute, kind, text))
        except FilterError as error:
            raise self._placed(error, position) from error
        self._at -= 1
        if negated:
            raise self._error("expected between, in, starts_with, ends_with, contains or like after not", found=True)
        raise self._error(f"expected an operator after {attribute!r} (a bool is compared: == true)", found=True)

    def _negate(self, negated: bool, predicate: Tree) -> Tree:
        return tree.Not(predicate) if negated else predicate

    def _kind(self) -> str:
        kind, value, _ = self._tokens[self._at]
        word = value.lower() if kind == "name" and isinstance(value, str) else kind
        if word not in _KINDS:
            if kind == "literal" and isinstance(value, bool):
                raise self._error(
                    "'is' asks for a type; a bool is compared (== true), an expression stands in parentheses"
                )
            raise self._error("expected null, number, string or bool after is", found=True)
        self._at += 1
        return word

    def _presence(self, kind: str) -> Tree:
        self._at += 1
        opened = self._accept("(")
        attribute = self._name()
        if opened:
            self._expect(")")
        return tree.kind_test(attribute, kind)

    def _place(self, kind: str) -> Tree:
        position = self._tokens[self._at][2]
        self._at += 1
        self._expect("(")
        latitude = self._name()
        self._expect(",")
        longitude = self._name()
        numbers: list[Scalar] = []
        positions: list[int] = []
        for _ in range(4 if kind == "within" else 3):
            self._expect(",")
            value, at = self._literal()
            if isinstance(value, str | bool):
                raise FilterError(f"{kind} needs numbers here", position=at)
            numbers.append(value)
            positions.append(at)
        self._expect(")")
        try:
            if kind == "within":
                return tree.within(latitude, longitude, *numbers)
            return tree.near(latitude, longitude, *numbers)
        except FilterError as error:
            raise self._placed(error, position) from error

    def _list(self) -> list[Scalar]:
        self._expect("(")
        if self._tokens[self._at][0] == ")":
            raise self._error("the list of in must not be empty")
        values = [self._literal()[0]]
        while self._accept(","):
            value, position = self._literal()
            if len(values) == self._limits.list_values:
                limit = self._limits.list_values
                raise FilterError(f"a list of more than {limit} values", position=position, limit=limit)
            values.append(value)
        self._expect(")")
        return values

    def _literal(self) -> tuple[Scalar, int]:
        kind, value, position = self._tokens[self._at]
        if kind == "literal":
            self._at += 1
            return value, position
        if kind in ("name", "quoted"):
            if kind == "name" and str(value).lower() in _NOT_NUMBERS:
                raise self._error("NaN and infinities are refused")
            raise self._error(
                "an attribute is compared with a value, not with another attribute (a string stands in quotes)"
            )
        if kind == "null":
            raise self._error("null is not a value to compare with; ask for it with 'is null'")
        raise self._error("expected a value", found=True)

    def _name(self) -> str:
        kind, value, _ = self._tokens[self._at]
        if kind != "name" and kind != "quoted":
            raise self._error("expected an attribute's name", found=True)
        self._at += 1
        return str(value)

    def _accept(self, kind: str) -> bool:
        if self._tokens[self._at][0] != kind:
            return False
        self._at += 1
        return True

    def _expect(self, kind: str) -> None:
        if self._tokens[self._at][0] != kind:
            raise self._error(f"expected {kind!r}", found=True)
        self._at += 1

    def _count(self, position: int) -> None:
        self._predicates += 1
        if self._predicates > self._limits.predicates:
            limit = self._limits.predicates
            raise FilterError(f"more than {limit} predicates", position=position, limit=limit)

    def _check_depth(self, depth: int) -> None:
        if depth >= self._limits.depth:
            limit = self._limits.depth
            position = self._tokens[self._at][2]
            raise FilterError(f"more than {limit} levels deep", position=position, limit=limit)

    def _placed(self, error: FilterError, position: int) -> FilterError:
        """Return the error with the position, unless it has one."""
        if error.position is not None:
            return error
        return FilterError(error.reason, position=position, limit=error.limit)

    def _error(self, reason: str, *, found: bool = False) -> FilterError:
        """Return the error for the token that comes next, which may be the lexer's own complaint."""
        kind, value, position = self._tokens[self._at]
        if kind == "error":
            limit = self._tokens[self._at + 1][1]
            return FilterError(str(value), position=position, limit=int(limit) or None)
        if found:
            reason = f"{reason}, found {_shown(self._tokens[self._at])}"
        return FilterError(reason, position=position)


def _shown(token: Token) -> str:
    kind, value, _ = token
    if kind == "end":
        return "the end"
    if kind in ("literal", "name", "quoted"):
        text = str(value).lower() if isinstance(value, bool) else repr(value)
        return text if len(text) <= 40 else text[:37] + "..."
    return repr(kind)
