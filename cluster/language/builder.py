"""The Python spelling: `(F.no2 > 40) & F.lat.between(40.38, 40.45)`.

`F.name` and `F["any name"]` stand for attributes; dots go on, `F.air.no2` is the attribute `air.no2`. A name that is
also a method here (`F.near`, `F.sensor.like`) is reached by brackets: `F["near"]`, `F["sensor.like"]`.
An operator on an attribute gives an expression; `&`, `|` and `~` join expressions, with parentheses around comparisons
since Python binds `&` tighter than `>`. Python's own `and`, `or`, `not`, `in` and chained comparisons can't be
overloaded; they ask an expression for its truth, which raises TypeError.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from cluster.language import tree
from cluster.language.printer import name_text, text_of
from cluster.language.tree import Tree


class Expression:
    """A filter under construction; immutable. Its limits are checked when it becomes a Filter."""

    __slots__ = ("tree",)

    def __init__(self, node: Tree) -> None:
        self.tree = node

    def __and__(self, other: Expression) -> Expression:
        if not isinstance(other, Expression):
            return NotImplemented
        return Expression(tree.all_of((self.tree, other.tree)))

    def __or__(self, other: Expression) -> Expression:
        if not isinstance(other, Expression):
            return NotImplemented
        return Expression(tree.any_of((self.tree, other.tree)))

    def __invert__(self) -> Expression:
        return Expression(tree.Not(self.tree))

    def is_not_true(self) -> Expression:
        """Hold where this is false or unknown."""
        return Expression(tree.IsNotTrue(self.tree))

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "a filter expression has no truth value: join with & | ~ (each comparison in parentheses), "
            "not with and, or, not, in or a chained comparison; between(), in_() and not_in() exist"
        )

    def __str__(self) -> str:
        return text_of(self.tree)

    def __repr__(self) -> str:
        return f"<filter expression {text_of(self.tree)}>"


class Attribute:
    """An attribute of a publication, to be compared."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = tree.attribute_name(name)

    def __getattr__(self, name: str) -> Attribute:
        if name.startswith("__"):
            raise AttributeError(name)
        return Attribute(f"{self._name}.{name}")

    def __eq__(self, value: object) -> Expression:  # type: ignore[override]
        return Expression(tree.comparison(self._name, "==", _operand(value)))

    def __ne__(self, value: object) -> Expression:  # type: ignore[override]
        return Expression(tree.comparison(self._name, "!=", _operand(value)))

    def __lt__(self, value: float | str) -> Expression:
        return Expression(tree.comparison(self._name, "<", _operand(value)))

    def __le__(self, value: float | str) -> Expression:
        return Expression(tree.comparison(self._name, "<=", _operand(value)))

    def __gt__(self, value: float | str) -> Expression:
        return Expression(tree.comparison(self._name, ">", _operand(value)))

    def __ge__(self, value: float | str) -> Expression:
        return Expression(tree.comparison(self._name, ">=", _operand(value)))

    __hash__ = None  # type: ignore[assignment]  # equality gives an expression

    def between(self, low: float | str, high: float | str) -> Expression:
        """Hold from low to high, both included."""
        return Expression(tree.between(self._name, low, high))

    def in_(self, values: Iterable[bool | int | float | str]) -> Expression:
        """Hold for one of the values."""
        if isinstance(values, str):
            raise TypeError("in_ takes a list of values; for a part of a string there is contains()")
        return Expression(tree.member_of(self._name, values))

    def not_in(self, values: Iterable[bool | int | float | str]) -> Expression:
        """Hold for a value of the type of one of the values that equals none."""
        return ~self.in_(values)

    def starts_with(self, text: str) -> Expression:
        """Hold for strings that start with the text."""
        return Expression(tree.string_match(self._name, "starts_with", text))

    def ends_with(self, text: str) -> Expression:
        """Hold for strings that end with the text."""
        return Expression(tree.string_match(self._name, "ends_with", text))

    def contains(self, text: str) -> Expression:
        """Hold for strings that contain the text."""
        return Expression(tree.string_match(self._name, "contains", text))

    def like(self, pattern: str) -> Expression:
        """Hold for strings that match the pattern: % any run, _ one character, backslash before % _ and itself."""
        return Expression(tree.string_match(self._name, "like", pattern))

    def exists(self) -> Expression:
        """Hold where the attribute is there, null included."""
        return Expression(tree.kind_test(self._name, "exists"))

    def missing(self) -> Expression:
        """Hold where the attribute isn't there."""
        return Expression(tree.kind_test(self._name, "missing"))

    def is_null(self) -> Expression:
        """Hold where the attribute is there and null."""
        return Expression(tree.kind_test(self._name, "null"))

    def is_number(self) -> Expression:
        """Hold for int and float."""
        return Expression(tree.kind_test(self._name, "number"))

    def is_string(self) -> Expression:
        """Hold for strings."""
        return Expression(tree.kind_test(self._name, "string"))

    def is_bool(self) -> Expression:
        """Hold for true and false."""
        return Expression(tree.kind_test(self._name, "bool"))

    def __bool__(self) -> NoReturn:
        raise TypeError(f"an attribute has no truth value: compare it, as in F[{self._name!r}] == True")

    def __repr__(self) -> str:
        return f"F[{self._name!r}]"

    def __str__(self) -> str:
        return name_text(self._name)


class Attributes:
    """The type of `F`: attributes by name, and the predicates on a place."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Attribute:
        if name.startswith("__"):
            raise AttributeError(name)
        return Attribute(name)

    def __getitem__(self, name: str) -> Attribute:
        return Attribute(name)

    def within(
        self,
        latitude: Attribute | str,
        longitude: Attribute | str,
        south: float,
        west: float,
        north: float,
        east: float,
    ) -> Expression:
        """Hold for places in the box, in degrees; west > east crosses the date line."""
        names = _name_of(latitude), _name_of(longitude)
        return Expression(tree.within(*names, south, west, north, east))

    def near(
        self,
        latitude: Attribute | str,
        longitude: Attribute | str,
        centre_latitude: float,
        centre_longitude: float,
        metres: float,
    ) -> Expression:
        """Hold for places at most `metres` from the centre along the great circle."""
        names = _name_of(latitude), _name_of(longitude)
        return Expression(tree.near(*names, centre_latitude, centre_longitude, metres))

    def __repr__(self) -> str:
        return "F"


F = Attributes()


def _name_of(attribute: Attribute | str) -> str:
    return attribute._name if isinstance(attribute, Attribute) else attribute


def _operand(value: object) -> object:
    if isinstance(value, Attribute | Expression):
        raise TypeError("an attribute is compared with a value, not with another attribute or expression")
    return value
