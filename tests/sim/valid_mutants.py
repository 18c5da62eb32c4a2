"""Ways to lose what is valid in a crash of its connection point, or to bring back what is not; see `mutants.py`.

Each takes away one rule of `cluster/valid.py`: what is written, what is taken up, and what waits until it is written.
Those with 0 seeds were seen by none of some 60; `unit/test_valid_disk.py` holds what they break.
"""

from __future__ import annotations

from typing import Any

from cluster.journal import Recovered
from cluster.valid import ValidPublications
from cluster.validity import Validity
from tests.sim.mutants import Replace, mutant


@mutant("what is valid is not written to disk", seeds=20, scenario="valid_crash")
def valid_not_written(replace: Replace) -> None:
    replace(ValidPublications, "_save", lambda *_: None)


@mutant("what is valid is written, and not taken up", seeds=20, scenario="valid_crash")
def valid_not_restored(replace: Replace) -> None:
    original = ValidPublications.restore

    def restore(self: ValidPublications, recovered: Recovered, *arguments: Any) -> None:
        original(self, recovered._replace(valid=[]), *arguments)

    replace(ValidPublications, "restore", restore)


@mutant("what is valid is acknowledged before it is on disk", seeds=0, scenario="valid_crash")
def acknowledged_before_saved(replace: Replace) -> None:
    original = Validity.settle

    def settle(self: Validity, *arguments: Any) -> int:
        original(self, *arguments)
        return 0

    replace(Validity, "settle", settle)


@mutant("a withdrawal leaves what is on disk", seeds=20, scenario="valid_crash")
def withdrawn_stays_on_disk(replace: Replace) -> None:
    replace(ValidPublications, "_unsave", lambda *_: None)


@mutant("a withdrawal is told as done before it is on disk", seeds=0, scenario="valid_crash")
def withdrawn_before_saved(replace: Replace) -> None:
    def tell(self: Validity, slot: int, content: Any) -> None:
        self._tell([slot], content)

    def withdrawn(self: Validity, one: Any) -> None:
        if one.instances is None and one.found:
            self._begin(one.session, one.request, one.publisher, sorted(one.found), one.sequence, set())
        else:
            self._withdrawn(one.session, one.request)

    replace(Validity, "_tell_when_written", tell)
    replace(Validity, "_answered", withdrawn)


@mutant("which publications were withdrawn is not taken up", seeds=0, scenario="valid_crash")
def withdrawals_not_restored(replace: Replace) -> None:
    original = ValidPublications.restore

    def restore(self: ValidPublications, recovered: Recovered, *arguments: Any) -> None:
        original(self, recovered._replace(withdrawals=[]), *arguments)

    replace(ValidPublications, "restore", restore)


@mutant("what has expired comes back to life in a crash", seeds=60, scenario="valid_crash")
def valid_as_long_again(replace: Replace) -> None:
    original = ValidPublications.restore

    def restore(self: ValidPublications, recovered: Recovered, now_us: int, now_ms: int) -> None:
        original(self, recovered, 0, now_ms)

    replace(ValidPublications, "restore", restore)


@mutant("what is taken over is on no disk when it is told", seeds=0, scenario="valid_crash")
def taken_before_saved(replace: Replace) -> None:
    def tell(self: Validity, slot: int, content: Any) -> None:
        self._tell([slot], content)

    replace(Validity, "_tell_when_written", tell)


@mutant("what is handed over stays in the file of who leaves", seeds=0, scenario="valid_crash")
def handed_over_stays(replace: Replace) -> None:
    replace(ValidPublications, "handed_over", lambda *_: None)
