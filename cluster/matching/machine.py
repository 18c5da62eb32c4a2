"""The few machine operations that numba lacks: loads and stores at addresses, bit tricks, 64 comparisons at once.

All addresses and words are signed 64-bit integers, so that numba never mixes signed with unsigned (it would turn the
result into a float). `less_equal_64` is the heart of the index: one vector comparison of 64 doubles, its
outcomes as bits.

Nothing here checks bounds: the callers own the memory and the layout (`layout.py`, `batch.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I8, _I16, _I32, _I64, _F64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.DoubleType()


def _load(kind: Any, extend: bool, result: Any) -> Callable[..., Any]:
    def define(typingctx: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            loaded = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            return builder.zext(loaded, _I64) if extend else loaded

        return result(types.int64), generate

    return define


def _store(kind: Any, narrow: bool, value_type: Any) -> Callable[..., Any]:
    def define(typingctx: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = builder.trunc(arguments[1], kind) if narrow else arguments[1]
            builder.store(value, builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, value_type), generate

    return define


load8 = intrinsic(_load(_I8, True, types.int64))
load16 = intrinsic(_load(_I16, True, types.int64))
load32 = intrinsic(_load(_I32, True, types.int64))
load64 = intrinsic(_load(_I64, False, types.int64))
load_double = intrinsic(_load(_F64, False, types.float64))
store8 = intrinsic(_store(_I8, True, types.int64))
store16 = intrinsic(_store(_I16, True, types.int64))
store32 = intrinsic(_store(_I32, True, types.int64))
store64 = intrinsic(_store(_I64, False, types.int64))
store_double = intrinsic(_store(_F64, False, types.float64))


@intrinsic
def load_float(typingctx: Any, address: Any) -> Any:
    """Load a 32-bit float as a double."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FloatType()
        loaded = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
        return builder.fpext(loaded, _F64)

    return types.float64(types.int64), generate


@intrinsic
def swap16(typingctx: Any, value: Any) -> Any:
    """Turn the order of the two low bytes; the result is non-negative."""
    return types.int64(types.int64), _swapped(16)


@intrinsic
def swap32(typingctx: Any, value: Any) -> Any:
    """Turn the order of the four low bytes; the result is non-negative."""
    return types.int64(types.int64), _swapped(32)


@intrinsic
def swap64(typingctx: Any, value: Any) -> Any:
    """Turn the order of the eight bytes."""
    return types.int64(types.int64), _swapped(64)


def _swapped(bits: int) -> Callable[..., Any]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.IntType(bits)
        value = builder.trunc(arguments[0], kind) if bits < 64 else arguments[0]
        swapped = builder.bswap(value)
        return builder.zext(swapped, _I64) if bits < 64 else swapped

    return generate


@intrinsic
def bits_of(typingctx: Any, value: Any) -> Any:
    """The bits of a double."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _I64)

    return types.int64(types.float64), generate


@intrinsic
def double_of(typingctx: Any, bits: Any) -> Any:
    """The double with these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _F64)

    return types.float64(types.int64), generate


@intrinsic
def float_from_bits32(typingctx: Any, bits: Any) -> Any:
    """The 32-bit float with these bits, as a double."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(builder.trunc(arguments[0], _I32), ir.FloatType()), _F64)

    return types.float64(types.int64), generate


@intrinsic
def unsigned_to_double(typingctx: Any, value: Any) -> Any:
    """The nearest double of 64 bits read as an unsigned integer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.uitofp(arguments[0], _F64)

    return types.float64(types.int64), generate


@intrinsic
def shift_right(typingctx: Any, value: Any, bits: Any) -> Any:
    """Shift right and fill with zeros."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.lshr(arguments[0], arguments[1])

    return types.int64(types.int64, types.int64), generate


@intrinsic
def below(typingctx: Any, left: Any, right: Any) -> Any:
    """Compare as unsigned integers: left < right."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.icmp_unsigned("<", arguments[0], arguments[1])

    return types.boolean(types.int64, types.int64), generate


@intrinsic
def lowest_bit(typingctx: Any, value: Any) -> Any:
    """The place of the lowest bit set; 64 for zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), generate


@intrinsic
def count_bits(typingctx: Any, value: Any) -> Any:
    """The number of bits set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), generate


@intrinsic
def fold_multiply(typingctx: Any, left: Any, right: Any) -> Any:
    """Multiply to 128 bits and xor the halves: the step of the hash (wyhash, Wang Yi, 2019)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(arguments[0], wide), builder.zext(arguments[1], wide))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), _I64)
        return builder.xor(high, builder.trunc(product, _I64))

    return types.int64(types.int64, types.int64), generate


def _compare(operator: str, lanes: int) -> Callable[..., Any]:
    def define(typingctx: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            vector = ir.VectorType(_F64, lanes)
            loaded = builder.load(builder.inttoptr(arguments[0], vector.as_pointer()), align=8)
            one = builder.insert_element(ir.Constant(vector, ir.Undefined), arguments[1], ir.Constant(_I32, 0))
            zeros = ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
            spread = builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)
            outcomes = builder.fcmp_ordered(operator, loaded, spread)
            bits = builder.bitcast(outcomes, ir.IntType(lanes))
            return bits if lanes == 64 else builder.zext(bits, _I64)

        return types.int64(types.int64, types.float64), generate

    return define


# Bit j is set where the j-th double at the address is <= (>=) the value; none for a NaN.
less_equal_8 = intrinsic(_compare("<=", 8))
less_equal_16 = intrinsic(_compare("<=", 16))
less_equal_32 = intrinsic(_compare("<=", 32))
less_equal_64 = intrinsic(_compare("<=", 64))
greater_equal_8 = intrinsic(_compare(">=", 8))
greater_equal_16 = intrinsic(_compare(">=", 16))
greater_equal_32 = intrinsic(_compare(">=", 32))
greater_equal_64 = intrinsic(_compare(">=", 64))


def _compare_bytes(operator: str) -> Callable[..., Any]:
    def define(typingctx: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            vector = ir.VectorType(_I8, 64)
            loaded = builder.load(builder.inttoptr(arguments[0], vector.as_pointer()), align=1)
            byte = builder.trunc(arguments[1], _I8)
            one = builder.insert_element(ir.Constant(vector, ir.Undefined), byte, ir.Constant(_I32, 0))
            zeros = ir.Constant(ir.VectorType(_I32, 64), [0] * 64)
            spread = builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)
            return builder.bitcast(builder.icmp_unsigned(operator, loaded, spread), _I64)

        return types.int64(types.int64, types.int64), generate

    return define


# Bit j is set where the j-th of 64 bytes at the address is below (equal to) the value, 0..255.
bytes_below = intrinsic(_compare_bytes("<"))
bytes_equal = intrinsic(_compare_bytes("=="))


_LANES = ir.VectorType(_I16, 64)
_SIXTEEN = ir.VectorType(_F64, 16)
_BYTES = ir.VectorType(_I8, 64)
_WORDS = ir.VectorType(_I32, 16)


def _spread(builder: Any, value: Any, vector: Any) -> Any:
    """Return a vector of equal elements."""
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


@intrinsic
def marked_lanes(typingctx: Any, address: Any, bits: Any) -> Any:
    """Bit j is set where the j-th of 64 words of 16 bits at the address has one of the bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = builder.load(builder.inttoptr(arguments[0], _LANES.as_pointer()), align=2)
        bits = _spread(builder, builder.trunc(arguments[1], _I16), _LANES)
        outcomes = builder.icmp_unsigned("!=", builder.and_(lanes, bits), ir.Constant(_LANES, [0] * 64))
        return builder.bitcast(outcomes, _I64)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def clear_lanes(typingctx: Any, address: Any) -> Any:
    """Clear the 64 words of 16 bits at the address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], _LANES.as_pointer())
        builder.store(ir.Constant(_LANES, [0] * 64), place, align=2)
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def numbers_16(typingctx: Any, address: Any) -> Any:
    """Bit j is set where the j-th of 16 doubles at the address is not NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loaded = builder.load(builder.inttoptr(arguments[0], _SIXTEEN.as_pointer()), align=8)
        return builder.zext(builder.bitcast(builder.fcmp_ordered("==", loaded, loaded), _I16), _I64)

    return types.int64(types.int64), generate


@intrinsic
def codes_16(typingctx: Any, address: Any, start: Any, scale: Any, target: Any) -> Any:
    """Write the codes (`tiles.fine_code_of`) of 16 doubles; the code of a NaN is 0.

    First the upper bytes, four times each, then the lower ones.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero, one, most, steps = (ir.Constant(_SIXTEEN, [number] * 16) for number in (0.0, 1.0, 255.0, 256.0))
        values = builder.load(builder.inttoptr(arguments[0], _SIXTEEN.as_pointer()), align=8)
        scaled = builder.fmul(
            builder.fsub(values, _spread(builder, arguments[1], _SIXTEEN)), _spread(builder, arguments[2], _SIXTEEN)
        )
        code = builder.fadd(scaled, one)
        code = builder.select(builder.fcmp_ordered(">", code, zero), code, zero)
        code = builder.select(builder.fcmp_ordered("<", code, most), code, most)
        # The machine spreads four bytes from memory for free, but not one.
        code = builder.fptosi(builder.fmul(code, steps), _WORDS)
        target = builder.inttoptr(arguments[3], _WORDS.as_pointer())
        # By shifts and not by a shuffle of bytes, which the compiler takes apart byte by byte on some machines.
        for part, byte in enumerate((builder.lshr(code, _words(8)), builder.and_(code, _words(255)))):
            twice = builder.or_(byte, builder.shl(byte, _words(8)))
            spread = builder.or_(twice, builder.shl(twice, _words(16)))
            builder.store(spread, builder.gep(target, [ir.Constant(_I32, part)]), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.float64, types.float64, types.int64), generate


def _words(value: int) -> Any:
    return ir.Constant(_WORDS, [value] * 16)


_TOGETHER = 2
"""Slots that `compare_16` looks at together: what it knows of them stays in 16 registers of 32 bytes."""


@intrinsic
def compare_16(
    typingctx: Any, codes: Any, own: Any, step: Any, sides: Any, columns: Any, full: Any, slots: Any, masks: Any
) -> Any:
    """Compare 64 entries' codes with those of 16 slots in all columns.

    codes:  64 bytes a column. own: 16 codes a column, as `codes_16` writes them, `step` bytes from column to column.
    sides:  a word a column: 1 where entries below the slot's code fail, 0 where those above it do.
    full:   the entries that there are. slots: those to look at.
    masks:  16 words by slot of the entries that fail nowhere, then 16 of those among them that are equal somewhere;
            words of slots not to look at are arbitrary.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes, own, step, sides, columns, full, slots, masks = arguments
        zero = ir.Constant(_BYTES, [0] * 64)
        kind = ir.FunctionType(_BYTES, [_BYTES, _BYTES])
        above = builder.module.declare_intrinsic("llvm.usub.sat.v64i8", (), kind)  # a - b, 0 for none
        failing = [cgutils.alloca_once(builder, _BYTES) for _ in range(_TOGETHER)]
        equal = [cgutils.alloca_once(builder, _BYTES) for _ in range(_TOGETHER)]
        for first in range(0, 16, _TOGETHER):
            looked = builder.and_(slots, ir.Constant(_I64, (1 << _TOGETHER) - 1 << first))
            with builder.if_then(builder.icmp_unsigned("!=", looked, ir.Constant(_I64, 0))):
                for cell in (*failing, *equal):
                    builder.store(zero, cell)
                with cgutils.for_range(builder, columns) as loop:
                    column = loop.index
                    at = builder.add(codes, builder.mul(column, ir.Constant(_I64, 64)))
                    entries = builder.load(builder.inttoptr(at, _BYTES.as_pointer()), align=1)
                    at = builder.add(own, builder.mul(column, step))
                    at = builder.add(at, ir.Constant(_I64, 4 * first))
                    place = builder.inttoptr(at, _I32.as_pointer())
                    values = []
                    for slot in range(_TOGETHER):
                        code = builder.load(builder.gep(place, [ir.Constant(_I32, slot)]), align=1)
                        values.append(builder.bitcast(_spread(builder, code, _WORDS), _BYTES))
                        same = builder.sext(builder.icmp_unsigned("==", entries, values[slot]), _BYTES)
                        builder.store(builder.or_(builder.load(equal[slot]), same), equal[slot])
                    at = builder.add(sides, builder.mul(column, ir.Constant(_I64, 8)))
                    side = builder.load(builder.inttoptr(at, _I64.as_pointer()), align=8)
                    is_upper = builder.icmp_unsigned("!=", side, ir.Constant(_I64, 0))
                    with builder.if_else(is_upper) as (upper, lower):
                        with upper:
                            for slot, value in enumerate(values):
                                fails = builder.call(above, [value, entries])
                                builder.store(builder.or_(builder.load(failing[slot]), fails), failing[slot])
                        with lower:
                            for slot, value in enumerate(values):
                                fails = builder.call(above, [entries, value])
                                builder.store(builder.or_(builder.load(failing[slot]), fails), failing[slot])
                place = builder.inttoptr(masks, _I64.as_pointer())
                for slot in range(_TOGETHER):
                    held = builder.bitcast(builder.icmp_unsigned("==", builder.load(failing[slot]), zero), _I64)
                    held = builder.and_(held, full)
                    builder.store(held, builder.gep(place, [ir.Constant(_I32, first + slot)]), align=8)
                    same = builder.bitcast(builder.icmp_unsigned("!=", builder.load(equal[slot]), zero), _I64)
                    unsure = builder.and_(held, same)
                    builder.store(unsure, builder.gep(place, [ir.Constant(_I32, 16 + first + slot)]), align=8)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), generate


@intrinsic
def below_16(typingctx: Any, bounds: Any, step: Any, rows: Any, sides: Any, columns: Any) -> Any:
    """Compare a child's bounds with the numbers of 16 slots in all columns; NaN holds nowhere.

    bounds: address of the child's least bound in the first column; its greatest lies `step` bytes behind, and its
            bounds in the next column 2 * `step` bytes.
    rows:   a word a column: address of 16 doubles. sides: a word a column: 1 where bounds are to be at least the
            number, 0 where at most.
    Bit j is set where some bound between the two may hold for slot j in each column, bit 16 + j where all do.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bounds, step, rows, sides, columns = arguments
        lanes = ir.VectorType(_I64, 16)
        cells = [cgutils.alloca_once(builder, lanes) for _ in range(2)]
        for cell in cells:
            builder.store(ir.Constant(lanes, [-1] * 16), cell)
        with cgutils.for_range(builder, columns) as loop:
            offset = builder.mul(loop.index, ir.Constant(_I64, 8))
            side = builder.load(builder.inttoptr(builder.add(sides, offset), _I64.as_pointer()), align=8)
            # Where bounds are to be at least the number, -bound <= -number is asked, so that there is no branch.
            sign = builder.shl(side, ir.Constant(_I64, 63))
            row = builder.load(builder.inttoptr(builder.add(rows, offset), _I64.as_pointer()), align=8)
            numbers = builder.load(builder.inttoptr(row, lanes.as_pointer()), align=8)
            numbers = builder.bitcast(builder.xor(numbers, _spread(builder, sign, lanes)), _SIXTEEN)
            least = builder.add(bounds, builder.mul(builder.shl(loop.index, ir.Constant(_I64, 1)), step))
            to_greatest = builder.and_(step, builder.neg(side))
            some_at = builder.add(least, to_greatest)
            every_at = builder.sub(builder.add(least, step), to_greatest)
            for cell, at in zip(cells, (some_at, every_at), strict=True):
                bound = builder.load(builder.inttoptr(at, _I64.as_pointer()), align=8)
                bound = builder.bitcast(builder.xor(bound, sign), _F64)
                holds = builder.fcmp_ordered("<=", _spread(builder, bound, _SIXTEEN), numbers)
                builder.store(builder.and_(builder.load(cell), builder.sext(holds, lanes)), cell)
        bits = []
        for cell in cells:
            outcomes = builder.icmp_signed("<", builder.load(cell), ir.Constant(lanes, [0] * 16))
            bits.append(builder.zext(builder.bitcast(outcomes, _I16), _I64))
        return builder.or_(bits[0], builder.shl(bits[1], ir.Constant(_I64, 16)))

    return types.int64(*[types.int64] * 5), generate


@intrinsic
def turn_16(typingctx: Any, words: Any, target: Any) -> Any:
    """Turn 16 words of 64 bits to 64 words of 16: bit i of word j becomes bit j of word i."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        octets = ir.VectorType(_I8, 16)
        place = builder.inttoptr(arguments[0], octets.as_pointer())
        rows = []
        for pair in range(8):
            loaded = builder.load(builder.gep(place, [ir.Constant(_I32, pair)]), align=8)
            halves = ir.Constant(ir.VectorType(_I32, 16), [index // 2 + index % 2 * 8 for index in range(16)])
            rows.append(builder.shuffle_vector(loaded, ir.Constant(octets, ir.Undefined), halves))
        # Each step puts elements of two rows side by side that are of the same bytes of the words.
        for width in (16, 32, 64):
            vector = ir.VectorType(ir.IntType(width), 128 // width)
            half = vector.count // 2
            rows = [builder.bitcast(row, vector) for row in rows]
            joined: list[Any] = [None] * 8
            groups = 8 * 16 // width  # rows that are of different words, in each part of the words
            for part in range(8 // groups):
                for index in range(groups // 2):
                    left, right = (rows[part * groups + 2 * index + side] for side in (0, 1))
                    for upper in (0, 1):
                        order = [upper * half + at // 2 + at % 2 * vector.count for at in range(vector.count)]
                        mask = ir.Constant(ir.VectorType(_I32, vector.count), order)
                        to = (2 * part + upper) * (groups // 2) + index
                        joined[to] = builder.shuffle_vector(left, right, mask)
            rows = joined
        zero = ir.Constant(octets, [0] * 16)
        target = builder.inttoptr(arguments[1], _I16.as_pointer())
        for byte, row in enumerate(rows):
            row = builder.bitcast(row, octets)
            for bit in range(7, -1, -1):
                lanes = builder.bitcast(builder.icmp_signed("<", row, zero), _I16)
                builder.store(lanes, builder.gep(target, [ir.Constant(_I32, 8 * byte + bit)]), align=2)
                row = builder.add(row, row)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def nonzero_16(typingctx: Any, address: Any) -> Any:
    """Bit j is set where the j-th of 16 words of 64 bits at the address is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_I64, 16)
        loaded = builder.load(builder.inttoptr(arguments[0], vector.as_pointer()), align=8)
        outcomes = builder.icmp_unsigned("!=", loaded, ir.Constant(vector, [0] * 16))
        return builder.zext(builder.bitcast(outcomes, _I16), _I64)

    return types.int64(types.int64), generate


def _prefetch(write: int) -> Callable[..., Any]:
    def define(typingctx: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = _I8.as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
            function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
            place = builder.inttoptr(arguments[0], pointer)
            # into all levels of the cache, data
            builder.call(function, [place, ir.Constant(_I32, write), ir.Constant(_I32, 3), ir.Constant(_I32, 1)])
            return context.get_dummy_value()

        return types.void(types.int64), generate

    return define


# Ask for the cache line at an address, to read or to write it, without waiting for it.
prefetch = intrinsic(_prefetch(0))
prefetch_to_write = intrinsic(_prefetch(1))
