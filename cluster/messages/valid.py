"""Publications that stay valid for a while: what connection points ask each other about them.

It goes in a Relay. Every question is asked again until it is answered, and may be answered twice.
"""

from __future__ import annotations

import msgspec


class ValidPublication(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A publication that is valid for `left_ms` more; None for until it is unpublished.

    until_us: the same as a time, microseconds since 1970, for those who put it on disk.
    settled: it is acknowledged, and with it all before it of this publisher: no notification of them is underway.
    """

    publisher: str
    instance: int
    sequence: int
    time_us: int
    until_us: int | None
    left_ms: int | None
    settled: bool
    payload: bytes


class FindValid(msgspec.Struct, frozen=True, array_like=True, tag_field="content", tag=1, gc=False):
    """Which valid ones match, of those behind `after` (publisher, instance, sequence)? query: echoed."""

    query: int
    after: tuple[str, int, int] | None
    normal_form: bytes


class FoundValid(msgspec.Struct, frozen=True, array_like=True, tag_field="content", tag=2, gc=False):
    """Those that match from the question's `after` up to `upto`, in this order. ended: there is nothing behind it."""

    query: int
    publications: list[ValidPublication]
    upto: tuple[str, int, int] | None
    ended: bool


class WithdrawValid(msgspec.Struct, frozen=True, array_like=True, tag_field="content", tag=3, gc=False):
    """These publications are valid no more. instances: of the publisher's lives; None for all there are."""

    query: int
    publisher: str
    instances: list[int] | None
    sequence: int


class WithdrawnValid(msgspec.Struct, frozen=True, array_like=True, tag_field="content", tag=4, gc=False):
    """They are not valid at the sender, and won't be again. instances: as asked, or those that there were."""

    query: int
    instances: list[int]


class TakeValid(msgspec.Struct, frozen=True, array_like=True, tag_field="content", tag=5, gc=False):
    """The sender is to leave: keep these for it."""

    query: int
    publications: list[ValidPublication]


class TakenValid(msgspec.Struct, frozen=True, array_like=True, tag_field="content", tag=6, gc=False):
    """taken: they are valid at the sender now; if not, it is to leave itself."""

    query: int
    taken: bool


AboutValid = FindValid | FoundValid | WithdrawValid | WithdrawnValid | TakeValid | TakenValid
