"""The machine code of the index is kept on disk, and made anew when it can't be used from there."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from cluster.matching import kernels


class Compiler:
    """Stands in for a minute of compiling."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folders: list[Path]) -> None:
        self.made = 0
        module = types.ModuleType("cluster.matching.entry_points")
        vars(module)["compile_for"] = self._compile_for
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr("cluster.matching.entry_points", module, raising=False)
        monkeypatch.setattr(kernels, "_folders", lambda: folders)

    def _compile_for(self, target: object) -> bytes:
        assert target == "this machine"
        self.made += 1
        return b"machine code" * 100

    def code(self) -> int:
        """Ask for the code; return how often it has been compiled by now."""
        target: object = "this machine"
        assert kernels._code(target) == b"machine code" * 100  # type: ignore[arg-type]
        return self.made


def test_code_is_compiled_once_and_then_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = Compiler(monkeypatch, [tmp_path / "first", tmp_path / "second"])
    assert [compiler.code() for _ in range(3)] == [1, 1, 1]
    (kept,) = tmp_path.glob("*/*")
    assert kept.parent.name == "first"
    assert kept.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("size", [0, 20, 32, 40, -1])
def test_what_is_cut_off_is_compiled_anew(size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = Compiler(monkeypatch, [tmp_path])
    compiler.code()
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:size])
    assert [compiler.code() for _ in range(2)] == [2, 2]


@pytest.mark.parametrize("place", [0, 31, 32, 700])
def test_what_is_damaged_is_compiled_anew(place: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = Compiler(monkeypatch, [tmp_path])
    compiler.code()
    (kept,) = tmp_path.iterdir()
    content = bytearray(kept.read_bytes())
    content[place] ^= 1
    kept.write_bytes(content)
    assert [compiler.code() for _ in range(2)] == [2, 2]


def test_the_next_place_is_taken_where_the_first_cannot_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    compiler = Compiler(monkeypatch, [tmp_path / "file" / "first", tmp_path / "second"])
    assert [compiler.code() for _ in range(2)] == [1, 1]
    assert len(list((tmp_path / "second").iterdir())) == 1


def test_without_a_place_it_is_compiled_each_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    compiler = Compiler(monkeypatch, [tmp_path / "file" / "first"])
    assert [compiler.code() for _ in range(2)] == [1, 2]


def test_the_name_follows_the_sources_that_are_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "kernels.py"))
    (tmp_path / "index.py").write_text("once")
    (tmp_path / "walk.py").write_text("once")
    before = kernels._key()
    (tmp_path / "index.py").write_text("changed")
    assert kernels._key() == before
    (tmp_path / "walk.py").write_text("changed")
    assert kernels._key() != before


def test_what_is_kept_is_used_without_the_compiler() -> None:
    from cluster.matching import warm

    warm()  # kept from here on
    code = "from cluster.matching import warm; warm(); import sys; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_each_entry_point_is_called_with_as_many_arguments_as_it_takes() -> None:
    from cluster.matching.entry_points import ENTRY_POINTS

    assert {one.__name__: one.__code__.co_argcount for one in ENTRY_POINTS} == kernels._ARGUMENTS


def test_there_are_no_other_entry_points() -> None:
    with pytest.raises(AttributeError, match="no attribute nothing"):
        kernels.__getattr__("nothing")
