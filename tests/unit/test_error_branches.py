"""What counts as an error branch, and when it counts as executed."""

from __future__ import annotations

from tests import error_branches

SOURCE = """
def read(path):
    try:
        return open(path)
    except FileNotFoundError:
        raise KeyError(path) from None
    except (OSError,
            ValueError) as error:
        note(error)
        raise
    finally:
        done()


@compiled(cache=True)
def kernel():
    raise IndexError


@numba.njit
def other():
    raise IndexError


class Machine:
    async def step(self):
        if self.broken:
            raise RuntimeError(
                "broken"
            )
"""


def test_handlers_and_raises_are_found_and_compiled_code_is_not() -> None:
    found = list(error_branches.branches(SOURCE, "x.py"))
    assert [(branch.line, branch.kind) for branch in found] == [
        (6, "except"),
        (9, "except"),
        (10, "raise"),
        (28, "raise"),
    ]
    assert found[0].text == "except FileNotFoundError:"
    assert found[-1].text == "raise RuntimeError("


def test_all_branches_of_the_package_are_missing_when_nothing_ran() -> None:
    missing, total = error_branches.never_executed({})
    assert len(missing) == total > 100
    first = missing[0]
    less, same = error_branches.never_executed({first.file: {first.line}})
    assert (len(less), same) == (total - 1, total)
    assert first not in less
