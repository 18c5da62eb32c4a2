"""Imports point one way, the machines touch neither clock nor socket, and a client machine needs little.

cluster <- autoscaler <- actors        tests and bench may use everything
"""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("cluster", "autoscaler", "actors")

EDGES = ("cluster.client", "cluster.testing", "cluster.readings", "cluster.output", "cluster.spark")
"""Where cluster/ touches the world: sockets, files, an event loop. Everything else in it decides and does not act."""

ACTING = {
    "asyncio",
    "concurrent",
    "datetime",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "queue",
    "random",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "socketserver",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uvloop",
    "uuid",
}
"""Modules that bring in a clock, randomness, a file, a thread or a socket."""

ALLOWED = {
    ("autoscaler.explain", "datetime"): "it prints moments that it is given",
    ("autoscaler.periods", "datetime"): "the day of the week of a moment that it is given",
    ("autoscaler.policy_file", "pathlib"): "load_policy reads a file, for those who act",
    ("autoscaler.cron", "datetime"): "the calendar of a time that is handed in",
    ("cluster.admin", "asyncio"): "it waits for the end of an operation; whom it asks is handed in",
    ("cluster.config", "pathlib"): "load_config reads a file, for those who act",
    ("cluster.matching.kernels", "os"): "compiled code is kept on disk",
    ("cluster.matching.kernels", "pathlib"): "compiled code is kept on disk, under a digest of its sources",
    ("cluster.matching.kernels", "tempfile"): "compiled code is written aside first",
}

LIGHT = {"msgspec", "msgpack"}
"""What a client machine has besides the standard library (click belongs to the command)."""

LIGHT_PARTS = (
    "cluster",
    "cluster.client",
    "cluster.codec",
    "cluster.errors",
    "cluster.frames",
    "cluster.language",
    "cluster.messages",
)


def modules() -> dict[str, Path]:
    """Return all modules of the product by name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = list(path.relative_to(ROOT).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            found[".".join(parts)] = path
    return found


MODULES = modules()


def is_part(name: str, of: str) -> bool:
    """Tell whether a module is `of` or lies below it."""
    return name == of or name.startswith(of + ".")


@cache
def imports(name: str, *, at_import: bool = False) -> tuple[str, ...]:
    """Return what a module imports, as full names.

    at_import: leave out what is imported inside of functions, or for types only.
    """
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if at_import and (typing_only or inside):
            skipped.update(ast.walk(node))
    found: list[str] = []
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            assert node.module is not None, "an absolute import names its module"
            full_names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [full if full in MODULES else node.module for full in full_names]
    return tuple(found)


def test_the_walk_sees_imports() -> None:
    assert "cluster.messages" in set(imports("cluster.connection_point"))
    assert "cluster.matcher" in set(imports("cluster.role"))
    assert "cluster.matcher" not in set(imports("cluster.role", at_import=True))
    assert len(MODULES) > 50


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_point_one_way(name: str) -> None:
    own = PACKAGES.index(name.split(".")[0])
    for target in imports(name):
        top = target.split(".")[0]
        assert top not in ("tests", "bench"), f"{name} imports {target}"
        if top in PACKAGES:
            assert PACKAGES.index(top) <= own, f"{name} imports {target}"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_only_actors_import_ray(name: str) -> None:
    if not is_part(name, "actors"):
        assert not [target for target in imports(name) if is_part(target, "ray")]


@pytest.mark.parametrize("name", sorted(name for name in MODULES if not is_part(name, "actors")))
def test_what_decides_has_no_clock_socket_or_thread(name: str) -> None:
    if any(is_part(name, edge) for edge in EDGES):
        return
    acting = {target for target in imports(name) if target.split(".")[0] in ACTING}
    acting -= {target for module, target in ALLOWED if module == name}
    assert not acting, f"{name} imports {sorted(acting)}"
    for target in imports(name):
        assert not any(is_part(target, edge) for edge in EDGES) or name == "cluster", f"{name} imports {target}"


def test_exceptions_are_used() -> None:
    for module, target in ALLOWED:
        if module in MODULES:
            assert target in set(imports(module)), f"{module} no longer imports {target}"


def reach(name: str) -> set[str]:
    """Return the modules of the product that importing this one loads, and everything else that it imports."""
    todo, seen = [name], set()
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        if one not in MODULES:
            continue
        # Importing a.b.c runs a and a.b first.
        parts = one.split(".")
        todo += [".".join(parts[:length]) for length in range(1, len(parts))]
        todo += imports(one, at_import=True)
    return seen


@pytest.mark.parametrize("part", LIGHT_PARTS)
def test_a_client_machine_needs_little(part: str) -> None:
    names = [name for name in MODULES if name == part or (part != "cluster" and is_part(name, part))]
    assert names, f"{part} is gone"
    known = {*sys.stdlib_module_names, *LIGHT, *PACKAGES}
    for name in names:
        heavy = {target.split(".")[0] for target in reach(name)} - known
        assert not heavy, f"{name} needs {sorted(heavy)}"


BLOCKER = """
import sys
blocked = {"numpy", "numba", "llvmlite", "ray", "click", "yaml", "uvloop", "sortedcontainers", "pyspark"}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ImportError(f"{name} is not installed on a client machine")
sys.meta_path.insert(0, Blocker())
"""


def run_blocked(program: str) -> str:
    """Run a program that cannot import what the broker extras bring; return what it prints."""
    done = subprocess.run([sys.executable, "-c", BLOCKER + program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_sdk_and_the_language_work_without_the_broker_extras() -> None:
    printed = run_blocked(
        "import cluster\n"
        "print(callable(cluster.connect), callable(cluster.connect_sync))\n"
        "print(cluster.parse('no2 > 40 and lat between 40.38 and 40.45').matches({'no2': 45.0, 'lat': 40.4}))\n"
        "print((cluster.F.no2 > 40).tree == cluster.parse('no2 > 40').tree)\n"
        "from cluster.codec import encode_frame, decode_client_frame\n"
        "from cluster.frames import Pong\n"
        "print(decode_client_frame(encode_frame(Pong())[4:]))\n"
        "import cluster.messages\n"
    )
    assert printed.splitlines() == ["True True", "True", "True", "Pong()"]


def test_importing_the_product_starts_nothing() -> None:
    printed = run_blocked(
        "import threading\nimport cluster\n"
        "print(threading.active_count(), sorted(n for n in sys.modules if n.split('.')[0] in blocked))"
    )
    assert printed.strip() == "1 []"


def test_packages_have_no_cycles() -> None:
    """A folder's modules may know each other; folders and modules beside them form no circle."""

    def unit(name: str) -> str:
        parts = name.split(".")
        folder = ".".join(parts[:2])
        return folder if (ROOT / Path(*parts[:2])).is_dir() else name

    edges: dict[str, set[str]] = {}
    for name in MODULES:
        if name in PACKAGES:
            continue  # a package's own __init__ gathers what it offers
        for target in imports(name, at_import=True):
            if target in MODULES and target not in PACKAGES and unit(target) != unit(name):
                edges.setdefault(unit(name), set()).add(unit(target))
    done: set[str] = set()
    path: list[str] = []

    def visit(node: str) -> None:
        assert node not in path, " -> ".join([*path[path.index(node) :], node])
        if node in done:
            return
        path.append(node)
        for target in sorted(edges.get(node, ())):
            visit(target)
        path.pop()
        done.add(node)

    for node in sorted(edges):
        visit(node)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("actors.roles", {"pyarrow", "numba", "autoscaler", "actors.lives", "cluster.matcher"}),
        ("actors.lives", {"pyarrow", "numba", "cluster.matcher"}),
        ("actors.coordinator", {"pyarrow", "numba", "autoscaler", "actors.lives", "actors.shell", "numpy"}),
    ],
)
def test_a_process_loads_what_its_role_needs(module: str, absent: set[str]) -> None:
    """Each takes a tenth of a second and more, or tens of MB, in every process that is started in a takeover."""
    program = f"import sys, {module}\nprint(sorted({absent!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
