"""How often each mutant is caught: the share of seeds that fail, and the first one that does."""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim import output_mutants, recovery_mutants, valid_mutants, view_mutants
from tests.sim.mutants import MUTANTS, applied
from tests.sim.run import play

assert output_mutants and recovery_mutants and valid_mutants and view_mutants, "their mutants are entered on import"  # noqa: PT018

BUGS = ("TypeError", "AttributeError", "NameError", "UnboundLocalError", "ImportError")
"""Failures that say that the mutant itself does not fit the machines any more; they are no catch."""


@dataclass(frozen=True)
class Detection:
    """Of `seeds` runs with a mutant `caught` failed; first: the first of them; how: what its failure said."""

    name: str
    seeds: int
    caught: int
    first: int | None
    how: str


def is_catch(failure: str | None) -> bool:
    """Tell whether a failure is the checker's doing, or an invariant's within a machine."""
    if failure is not None and failure.startswith(BUGS):
        raise AssertionError(f"the mutant does not fit: {failure}")
    return failure is not None


def detect(name: str, seeds: int) -> Detection:
    """Run a mutant with the seeds from 0 on."""
    caught = 0
    first = None
    how = ""
    with applied(name):
        for seed in range(seeds):
            failure = play(seed, MUTANTS[name].scenario).failure
            if is_catch(failure):
                caught += 1
                if first is None:
                    first, how = seed, str(failure)
    return Detection(name, seeds, caught, first, how)


def first_catch(name: str, seeds: int) -> int | None:
    """Return the first of so many seeds that catches the mutant."""
    with applied(name):
        return next((seed for seed in range(seeds) if is_catch(play(seed, MUTANTS[name].scenario).failure)), None)
