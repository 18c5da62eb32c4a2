"""Cell T26: which error branches of `cluster/` does no test execute?

    uv run python -m tests.error_branches                     # unit, properties, simulator, transcripts, faults
    uv run python -m tests.error_branches tests/unit --json

Runs the tests under coverage and lists every `except` handler and every `raise` in `cluster/` that was never executed:
most catastrophic failures of distributed systems are wrong handling of an error that was signalled (Yuan et al., OSDI
2014). What runs as compiled code cannot be traced and is left out. The exit status is 1 if any is left, 2 if a test
failed: what is listed then may be executed by what that test did not come to.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "cluster"
TESTS = ("tests/unit", "tests/properties", "tests/sim", "tests/transcripts", "tests/faults")
COMPILED = ("compiled", "njit", "jit", "intrinsic", "overload")
"""Decorators whose functions do not run as Python."""


@dataclass(frozen=True)
class Branch:
    """One branch. line: executed when it is: the raise, or the first statement of the handler."""

    file: str
    line: int
    kind: str
    text: str


def branches(source: str, file: str) -> Iterator[Branch]:
    """Return the error branches of a module, in its order. A handler that only raises counts once."""
    lines = source.splitlines()
    found: dict[int, Branch] = {}

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(map(_is_compiled, node.decorator_list)):
            return
        if isinstance(node, ast.ExceptHandler):
            line = node.body[0].lineno
            found.setdefault(line, Branch(file, line, "except", lines[node.lineno - 1].strip()))
        elif isinstance(node, ast.Raise):
            found.setdefault(node.lineno, Branch(file, node.lineno, "raise", lines[node.lineno - 1].strip()))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(source))
    yield from (found[line] for line in sorted(found))


def _is_compiled(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
    return name in COMPILED


def never_executed(executed: dict[str, set[int]]) -> tuple[list[Branch], int]:
    """Return the branches that were not, and how many there are in all. executed: lines by file below the root."""
    missing: list[Branch] = []
    total = 0
    for path in sorted(PACKAGE.rglob("*.py")):
        file = str(path.relative_to(ROOT))
        for branch in branches(path.read_text(), file):
            total += 1
            if branch.line not in executed.get(file, set()):
                missing.append(branch)
    return missing, total


def run(paths: list[str]) -> tuple[dict[str, set[int]], bool]:
    """Run the tests under coverage; return the lines executed by file, and whether all tests passed."""
    import coverage
    import pytest

    measured = coverage.Coverage(data_file=None, source=[str(PACKAGE)], concurrency=["thread"])
    measured.start()
    try:
        status = pytest.main(["-q", "-m", "not live", "-p", "no:cacheprovider", *paths])
    finally:
        measured.stop()
    data: Any = measured.get_data()
    executed = {str(Path(file).relative_to(ROOT)): set(data.lines(file) or ()) for file in data.measured_files()}
    return executed, status == pytest.ExitCode.OK


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="tests.error_branches", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", default=TESTS, help=f"tests to run; default {' '.join(TESTS)}")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, behind what pytest says")
    options = parser.parse_args(arguments)
    executed, passed = run([str(path) for path in options.paths])
    missing, total = never_executed(executed)
    if options.json:
        print(json.dumps({"branches": total, "never_executed": [asdict(branch) for branch in missing]}))
    else:
        for branch in missing:
            print(f"{branch.file}:{branch.line}: {branch.kind} never executed: {branch.text}")
        print(f"{total - len(missing)} of {total} error branches executed")
    if not passed:
        print("error_branches: a test failed", file=sys.stderr)
        return 2
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
