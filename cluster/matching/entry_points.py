"""The functions that Python calls, compiled to one piece of machine code; `kernels.py` keeps and loads it.

Compiling needs numba and takes about a minute; loading needs neither. So numba is imported only where this file is,
which is where nothing is cached yet.

Each takes and returns 64-bit integers only, addresses among them. What numba makes of it has a convention of its own
(a place for the result, one for an exception, a status); a few lines of LLVM's language around it make it a plain C
function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import binding
from numba import njit, types

from cluster.matching import answering, edit, filing, numbers, packing, predicates, search
from cluster.matching import owned as owning
from cluster.matching import walk as walking
from cluster.matching.layout import (
    A_LISTED,
    A_NEXT,
    H_ATTRIBUTES,
    H_ATTRIBUTES_FREE,
    H_CLUSTERS,
    H_CLUSTERS_FREE,
    H_PREDICATES,
    H_PREDICATES_FREE,
    K_BEFORE,
    K_NEXT,
    P_LISTED,
    P_NEXT,
)
from cluster.matching.outcomes import PACKED

# Conjunctions that a sweep looks at in passing.
_SWEPT_PER_ADD = 2
_SWEPT_PER_MATCH = 32

_PLAIN = """
define i64 @{name}({parameters}) {{
  %result = alloca i64
  %exception = alloca ptr
  %status = call i32 @{native}({arguments})
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %never, label %done
never:
  call void @llvm.trap()
  unreachable
done:
  %value = load i64, ptr %result
  ret i64 %value
}}
declare void @llvm.trap()
declare i32 @{native}({types})
"""
"""Nothing in the compiled code raises, so that the status is always 0."""


def count_attributes(payload: int, size: int, lengths: int, count: int, names_max: int) -> int:
    return walking.count_attributes(payload, size, lengths, count, names_max)


def walk(payload: int, size: int, lengths: int, count: int, limits: int, words: int) -> int:
    return walking.walk(payload, size, lengths, count, limits, words)


def add(m: int, subscription: int, client: int, encoded: int, size: int) -> int:
    outcome = packing.pack(m, encoded, size)
    if outcome == PACKED:
        edit.add(m, subscription, client)
        filing.sweep(m, _SWEPT_PER_ADD)
    predicates.settle(m)
    return outcome


def remove(m: int, subscription: int) -> int:
    if not edit.remove(m, subscription):
        return 0
    predicates.settle(m)
    return 1


def sweep(m: int, steps: int) -> int:
    forgetting = numbers.forget(m, H_PREDICATES, H_PREDICATES_FREE, P_NEXT, P_LISTED, steps)
    if numbers.forget(m, H_ATTRIBUTES, H_ATTRIBUTES_FREE, A_NEXT, A_LISTED, steps):
        forgetting = True
    if numbers.forget(m, H_CLUSTERS, H_CLUSTERS_FREE, K_NEXT, K_BEFORE, steps):
        forgetting = True
    return 1 if filing.sweep(m, steps) or forgetting else 0


def match(m: int, payload: int, words: int, first: int, result: int, capacity: int) -> int:
    filing.sweep(m, _SWEPT_PER_MATCH)
    return search.match(m, payload, words, first, result, capacity)


def answer(payload: int, lengths: int, words: int, found: int, wanted: int, target: int) -> int:
    return answering.answer(payload, lengths, words, found, wanted, target)


def owned(found: int, owners: int, slot: int) -> int:
    return owning.owned(found, owners, slot)


ENTRY_POINTS: tuple[Callable[..., int], ...] = (
    count_attributes,
    walk,
    add,
    remove,
    sweep,
    match,
    answer,
    owned,
)


def compile_for(target: binding.TargetMachine) -> bytes:
    """Return the machine code of all entry points, under their names, as an object file for this target."""
    whole: Any = None
    for function in ENTRY_POINTS:
        for part in _compiled(function):
            if whole is None:
                whole = part
            else:
                whole.link_in(part)
    whole.verify()
    code: bytes = target.emit_object(whole)
    return code


def _compiled(function: Callable[..., int]) -> tuple[Any, Any]:
    """Return numba's module of a function, and that of the plain function around it."""
    count = function.__code__.co_argcount
    options = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled = njit(**options)(function)
    signature = (types.int64,) * count
    compiled.compile(signature)
    native = compiled.overloads[signature].fndesc.llvm_func_name
    names = [f"%a{number}" for number in range(count)]
    around = _PLAIN.format(
        name=function.__name__,
        native=f'"{native}"',
        parameters=", ".join(f"i64 {name}" for name in names),
        arguments=", ".join(["ptr %result", "ptr %exception", *(f"i64 {name}" for name in names)]),
        types=", ".join(["ptr", "ptr", *["i64"] * count]),
    )
    return binding.parse_assembly(compiled.inspect_llvm(signature)), binding.parse_assembly(around)
