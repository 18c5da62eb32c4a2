"""Text of a filter -> tokens.

A token is (kind, value, position). The kind of a keyword or symbol is itself in lower case (`and`, `<=`); the others
are `name` (bare), `quoted` (a name in backticks), `literal`, `end` and `error`. An error is a token too, so that the
parser reports whatever is wrong first in reading order; a `limit` token behind it holds the limit passed, or 0.

Double-quoted strings take JSON's escapes, single-quoted ones are raw with `''` for a quote, and in backticks two
backticks stand for one. Identifiers are ASCII letters, digits and `_`, with dots between them; other names stand in
backticks.
"""

from __future__ import annotations

import re

from cluster.errors import FilterError
from cluster.language.limits import FilterLimits
from cluster.language.tree import INTEGER_HIGHEST, INTEGER_LOWEST, Scalar

Token = tuple[str, Scalar, int]

# `number`, `string` and `bool` mean something after `is` only and stay free as names.
KEYWORDS = frozenset(
    {"and", "or", "not", "is", "in", "between", "starts_with", "ends_with", "contains", "like"}
    | {"exists", "missing", "within", "near", "true", "false", "null"}
)

_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
PLAIN_NAME = re.compile(_IDENTIFIER)

_TOKEN = re.compile(
    rf"""
    [ \t\r\n]*+ (?:
      ({_IDENTIFIER})                                                               # 1 word
    | (-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?![A-Za-z0-9_.])       # 2 number
    | (<>|[<>=!]=|[<>=(),])                                                         # 3 symbol
    | "([^"\\]*+(?:\\.[^"\\]*+)*+)"                                                 # 4 string with escapes
    | '([^']*+(?:''[^']*+)*+)'                                                      # 5 raw string
    | `([^`]*+(?:``[^`]*+)*+)`                                                      # 6 quoted name
    | (.)                                                                           # 7 anything else
    )""",
    re.VERBOSE | re.DOTALL,
)
_SAME_AS = {"=": "==", "<>": "!="}
_WORDS: dict[str, tuple[str, Scalar]] = {word: (word, word) for word in KEYWORDS}
_WORDS["true"] = ("literal", True)
_WORDS["false"] = ("literal", False)

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

_NUMBER_START = re.compile(r"[+-]?\.?[0-9]")
_HINTS = {
    "&": "write and",
    "|": "write or",
    "!": "write not, or != for unequal",
    "~": "write not",
    "{": "the JSON spelling is given as an object, not as text",
}
_UNTERMINATED = {'"': "a string", "'": "a string", "`": "a name"}


def tokens_of(text: str, limits: FilterLimits) -> list[Token]:
    """Return the tokens of a text, closed by one `end` or `error` token.

    Raises FilterError at once for a text that is over the limit or isn't Unicode.
    """
    _check_size(text, limits)
    tokens: list[Token] = []
    add = tokens.append
    for found in _TOKEN.finditer(text.rstrip(" \t\r\n")):
        group = found.lastindex
        assert group is not None
        value = found[group]
        position = found.start(group) - (3 < group < 7)  # a string or quoted name starts with its quote
        try:
            if group == 1:
                word = _WORDS.get(value) or _WORDS.get(value.lower())
                if word is not None:
                    add((word[0], word[1], position))
                else:
                    add(("name", _checked_name(value, limits), position))
            elif group == 2:
                add(("literal", _number(value), position))
            elif group == 3:
                value = _SAME_AS.get(value, value)
                add((value, value, position))
            elif group == 4:
                plain = _unescaped(value, position + 1) if "\\" in value else value
                add(("literal", plain, position))
            elif group == 5:
                add(("literal", value.replace("''", "'"), position))
            elif group == 6:
                add(("quoted", _checked_name(value.replace("``", "`"), limits), position))
            else:
                raise FilterError(_complaint(text, position))
        except FilterError as error:
            where = position if error.position is None else error.position
            add(("error", error.reason, where))
            add(("limit", error.limit or 0, where))
            return tokens
    add(("end", "the end", len(text)))
    return tokens


def _check_size(text: str, limits: FilterLimits) -> None:
    if text.isascii():
        size, fits = len(text), limits.text_bytes
    else:
        try:
            encoded = text.encode()
        except UnicodeEncodeError as error:
            raise FilterError("a lone surrogate is not a character", position=error.start) from None
        size, fits = len(encoded), len(encoded[: limits.text_bytes].decode(errors="ignore"))
    if size > limits.text_bytes:
        raise FilterError(
            f"the text has {size} bytes, more than {limits.text_bytes}",
            position=fits,
            limit=limits.text_bytes,
        )


def _checked_name(name: str, limits: FilterLimits) -> str:
    if not name:
        raise FilterError("an attribute's name must not be empty")
    # A character takes at most four bytes, so most names need no encoding to be measured.
    if len(name) * 4 > limits.name_bytes and len(name.encode()) > limits.name_bytes:
        raise FilterError(f"an attribute's name of more than {limits.name_bytes} bytes", limit=limits.name_bytes)
    return name


def _number(digits: str) -> int | float:
    if "." in digits or "e" in digits or "E" in digits:
        number = float(digits)
        if number - number != 0:
            raise FilterError("a number beyond the range of a double; NaN and infinities are refused")
        return number
    # The length comes first: int() of thousands of digits is slow, and refused by Python with another exception.
    if len(digits) > 20 or not INTEGER_LOWEST <= int(digits) <= INTEGER_HIGHEST:
        raise FilterError("an integer must fit in 64 bits, signed or unsigned")
    return int(digits)


def _unescaped(raw: str, position: int) -> str:
    def replace(found: re.Match[str]) -> str:
        code, letter = found.groups()
        if code is not None:
            return chr(int(code, 16))
        plain = _ESCAPES.get(letter)
        if plain is None:
            raise FilterError(
                f"\\{letter} is not an escape (JSON's are; a string in single quotes takes backslashes as they are)",
                position=position + found.start(),
            )
        return plain

    text = _ESCAPE.sub(replace, raw)
    try:
        # Two escapes may make one character beyond the first plane; what stays a surrogate is alone.
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise FilterError("an escape that is a lone surrogate is not a character") from None


def _complaint(text: str, position: int) -> str:
    character = text[position]
    if character in _UNTERMINATED:
        return f"{_UNTERMINATED[character]} that doesn't end (opened by {character})"
    if _NUMBER_START.match(text, position):
        return "not a number: digits stand before and behind the point, no leading zeros, no plus, nothing attached"
    if character in "+-":
        return f"unexpected {character!r} (a value is a literal; NaN and infinities are refused)"
    hint = _HINTS.get(character)
    if hint is None and character.isalpha():
        hint = "a name with other than ASCII letters, digits, _ and dots stands in backticks"
    return f"unexpected {character!r}" + (f": {hint}" if hint else "")
