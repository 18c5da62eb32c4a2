"""The compiled entry points (`entry_points.py`), kept on disk as machine code and loaded from there.

A file holds the code for one state of the sources, one version of the compiler and one kind of processor, all of which
its name tells, and a digest of itself: what is cut off or damaged is compiled anew. It lies beside the sources, or
where these can't be written to, in the user's cache; where neither can, each process compiles for itself.

Loading takes a tenth of a second and does not need numba. It happens at the first use of any entry point;
`index.warm` makes it happen, so that no first message waits for it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llvmlite import binding

_ARGUMENTS = {
    "count_attributes": 5,
    "walk": 6,
    "add": 5,
    "remove": 2,
    "sweep": 2,
    "match": 6,
    "answer": 6,
    "owned": 3,
}
"""The entry points, and how many arguments each takes; `entry_points.py` has them, and needs numba to be looked at.

An argument is an integer, or `bytes`, whose address is meant; these are only read, and not beyond the call.
"""
_DIGEST_BYTES = 32
_NOT_COMPILED = {"__init__", "answers", "batch", "check", "hits", "index", "kernels", "memory", "scan"}
"""The files here that no entry point uses: a change of theirs leaves the code as it is."""
_ENGINES: list[Any] = []
"""What owns the loaded code."""


def __getattr__(name: str) -> Callable[..., int]:
    """Load the entry points when the first one is asked for."""
    if name not in _ARGUMENTS:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    globals().update(_load())
    entry_point: Callable[..., int] = globals()[name]
    return entry_point


def _load() -> dict[str, Callable[..., int]]:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = _target()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target)
    engine.add_object_file(binding.ObjectFileRef.from_data(_code(target)))
    engine.finalize_object()
    _ENGINES.append(engine)
    return {
        name: ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * count)(engine.get_function_address(name))
        for name, count in _ARGUMENTS.items()
    }


def _target() -> binding.TargetMachine:
    """Return this machine as a target, as numba has it."""
    target = binding.Target.from_default_triple()
    return target.create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
        reloc="static" if target.name.startswith("x86") else "default",
        codemodel="jitdefault",
        jit=True,
    )


def _code(target: binding.TargetMachine) -> bytes:
    name = f"kernels-{_key()}.o"
    folders = _folders()
    for folder in folders:
        code = _read(folder / name)
        if code is not None:
            return code
    from cluster.matching.entry_points import compile_for

    code = compile_for(target)
    for folder in folders:
        try:
            _write(folder / name, code)
        except OSError:
            continue  # no place to keep it
        break
    return code


def _folders() -> list[Path]:
    """Return where the code may be kept, the best place first."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return [Path(__file__).parent / "__pycache__", Path(cache).expanduser() / "kittiwake"]


def _key() -> str:
    """Return what the code depends on, as a short name."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in _NOT_COMPILED:
            digest.update(path.name.encode() + path.read_bytes())
    digest.update(f"{version('numba')} {version('llvmlite')}".encode())
    digest.update(f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}".encode())
    return digest.hexdigest()[:24]


def _read(path: Path) -> bytes | None:
    """Return the code that a file holds, None if it is not there or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    """Put the code into a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.stem, delete=False) as file:
        file.write(hashlib.sha256(code).digest() + code)
        os.fchmod(file.fileno(), 0o644)
    os.replace(file.name, path)
