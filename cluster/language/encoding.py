"""Normal form <-> bytes (msgpack), as it travels between access points and matchers and lies in snapshots.

Numbers keep their type and value: integers stay integers up to 64 bits, floats stay doubles, -0.0 included.
"""

from __future__ import annotations

import math

import msgspec

from cluster.errors import CodecError, FilterError
from cluster.language import patterns
from cluster.language.normal import ANY_KIND, Interval, Kinds, Member, Near, NormalForm, Pattern, StringInterval

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(NormalForm)


def encode_normal(form: NormalForm) -> bytes:
    """Return the normal form as msgpack."""
    return _ENCODER.encode(form)


def decode_normal(data: bytes) -> NormalForm:
    """Return the normal form again; raises CodecError for bytes that are none."""
    try:
        form = _DECODER.decode(data)
        _check(form)
    except (msgspec.DecodeError, ValueError, FilterError, RecursionError) as error:
        raise CodecError(f"not a normal form: {error}") from error
    return form


def _check(form: NormalForm) -> None:
    """Raise ValueError for what the types allow and the normal form doesn't."""
    if not form:
        raise ValueError("no conjunction")
    for conjunction in form:
        for atom in conjunction:
            numbers: tuple[object, ...] = ()
            if type(atom) is Interval:  # by far the most frequent
                numbers = (atom.low, atom.high)
                if atom.low is None and atom.high is None:
                    raise ValueError("an interval without bounds")
            elif isinstance(atom, Kinds):
                if not 0 < atom.mask < ANY_KIND:
                    raise ValueError(f"mask {atom.mask}")
            elif isinstance(atom, StringInterval):
                if atom.low is None and atom.high is None:
                    raise ValueError("an interval without bounds")
            elif isinstance(atom, Member):
                numbers = atom.values
                if not atom.values:
                    raise ValueError("a member of nothing")
            elif isinstance(atom, Pattern):
                if atom.operator not in patterns.OPERATORS:
                    raise ValueError(f"operator {atom.operator!r}")
                if atom.operator == "like":
                    patterns.split_like(atom.text)
            elif isinstance(atom, Near):
                numbers = (atom.centre_latitude, atom.centre_longitude, atom.metres)
            for number in numbers:
                if isinstance(number, float) and not math.isfinite(number):
                    raise ValueError("a number that isn't finite")
