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


def _spread(builder: Any, value: Any, vector: Any) -> Any:
    """Return a vector of equal elements."""
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


@intrinsic
def mark_lanes(typingctx: Any, address: Any, mask: Any, bit: Any) -> Any:
    """Set a bit of 16 (1 << its place) in those of the 64 words of 16 bits at the address that the mask names."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], _LANES.as_pointer())
        lanes = builder.load(place, align=2)
        named = builder.bitcast(arguments[1], ir.VectorType(ir.IntType(1), 64))
        bits = _spread(builder, builder.trunc(arguments[2], _I16), _LANES)
        marked = builder.or_(lanes, builder.select(named, bits, ir.Constant(_LANES, [0] * 64)))
        builder.store(marked, place, align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


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
        codes = builder.bitcast(builder.fptosi(builder.fmul(code, steps), ir.VectorType(_I32, 16)), _BYTES)
        target = builder.inttoptr(arguments[3], _BYTES.as_pointer())
        # The bytes of a 32-bit number come lowest first on all machines that this is for.
        for part, byte in enumerate((1, 0)):
            chosen = ir.Constant(ir.VectorType(_I32, 64), [(place & ~3) + byte for place in range(64)])
            spread = builder.shuffle_vector(codes, ir.Constant(_BYTES, ir.Undefined), chosen)
            builder.store(spread, builder.gep(target, [ir.Constant(_I32, part)]), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.float64, types.float64, types.int64), generate


def _keep(operator: str) -> Callable[..., Any]:
    def define(typingctx: Any, address: Any, codes: Any, masks: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            loaded = builder.load(builder.inttoptr(arguments[0], _BYTES.as_pointer()), align=1)
            vector = ir.VectorType(_I32, 16)
            codes = builder.inttoptr(arguments[1], _I32.as_pointer())
            masks = builder.inttoptr(arguments[2], _I64.as_pointer())
            for slot in range(16):
                code = builder.load(builder.gep(codes, [ir.Constant(_I32, slot)]), align=4)
                spread = builder.bitcast(_spread(builder, code, vector), _BYTES)
                kept = builder.bitcast(builder.icmp_unsigned(operator, loaded, spread), _I64)
                place = builder.gep(masks, [ir.Constant(_I32, slot)])
                builder.store(builder.and_(builder.load(place, align=8), kept), place, align=8)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), generate

    return define


# For each of 16 codes, as `codes_16` writes them: clear in its mask of 64 bits those whose byte at the address is
# greater (less) than the code.
keep_at_most_16 = intrinsic(_keep("<="))
keep_at_least_16 = intrinsic(_keep(">="))


@intrinsic
def set_16(typingctx: Any, address: Any, word: Any) -> Any:
    """Write a word of 64 bits 16 times."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_I64, 16)
        place = builder.inttoptr(arguments[0], vector.as_pointer())
        builder.store(_spread(builder, arguments[1], vector), place, align=8)
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


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Ask for the cache line at an address, without waiting for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _I8.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        place = builder.inttoptr(arguments[0], pointer)
        # for reading, into all levels of the cache, data
        builder.call(function, [place, ir.Constant(_I32, 0), ir.Constant(_I32, 3), ir.Constant(_I32, 1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate
