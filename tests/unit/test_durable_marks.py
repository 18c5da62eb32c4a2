"""What a durable session that has moved remembers of publishers, and when it forgets it."""

from __future__ import annotations

from cluster.config import Config, Durable
from cluster.durable import DurableSession, Held
from cluster.homes import Homes
from cluster.journal import SavedSession
from cluster.session_disk import SessionDisk
from tests.properties.test_durable import Home, chunk

AWAY_S = 10
NUMBER = 9
DURABLE = Durable(publisher_away_s=AWAY_S)


class Moved:
    """A session that has come from another home, where it got the publications 1 to 5 of a publisher, and its disk."""

    def __init__(self) -> None:
        former = Home()
        former.session.push(chunk(1, 5))
        former.sync()
        self.disk = SessionDisk()
        self.homes = Homes(Config(durable=DURABLE))
        session = self.homes.arrive(NUMBER, "lab")
        session.arrive(former.session.after(), 1, 1, {0: Held("a > 1", "block", b"normal")})
        self.sync()
        session.take_over(*former.session.handed(), [("p", 3, 5)])
        self.homes.take_over(session)
        self.sync()

    @property
    def session(self) -> DurableSession:
        found = self.homes.find("lab")
        assert found is not None
        return found

    @property
    def saved(self) -> SavedSession:
        (saved,) = self.disk.read().sessions
        return saved

    def sync(self) -> None:
        while (portion := self.homes.journal.take()) is not None:
            self.disk.ask(portion)
            upto = self.disk.sync()
            assert upto is not None
            self.homes.journal.stored(upto)

    def restart(self) -> None:
        self.disk.crash()
        self.homes = Homes(Config(durable=DURABLE))
        self.homes.restore(self.disk.read())

    def pass_time(self, *moments_s: float) -> None:
        for moment in moments_s:
            self.homes.forget_marks(round(1000 * moment))
        self.sync()

    @property
    def remembers(self) -> bool:
        """Whether it does; memory and disk agree."""
        assert (self.session.marks is not None) == bool(self.saved.marks)
        return self.session.marks is not None


def test_what_the_former_home_had_is_not_taken_again() -> None:
    moved = Moved()
    assert moved.remembers
    assert len(moved.session.offered(chunk(4, 3))) == 1
    moved.sync()
    assert moved.saved.marks == [("p", 3, 6)]


def test_marks_end_when_the_time_is_over_and_their_rows_with_them() -> None:
    moved = Moved()
    moved.pass_time(1, 1 + AWAY_S)
    assert moved.remembers
    moved.session.offered(chunk(6, 1))
    moved.pass_time(1.001 + AWAY_S)
    assert not moved.remembers
    assert not moved.session.keeps_marks, "it goes by what the connection point remembers"
    assert not moved.session.mark(("p", 3), 99)
    moved.sync()
    moved.restart()
    assert not moved.remembers
    assert moved.session.unsettled == 5
    moved.session.check()


def test_a_recovery_begins_the_time_anew() -> None:
    moved = Moved()
    moved.pass_time(1)
    moved.homes.count_anew()
    moved.pass_time(1 + AWAY_S, 2 + AWAY_S, 1 + 2 * AWAY_S)
    assert moved.remembers
    moved.pass_time(1.001 + 2 * AWAY_S)
    assert not moved.remembers


def test_another_incarnation_begins_it_anew() -> None:
    moved = Moved()
    moved.pass_time(1)
    moved.restart()
    moved.pass_time(5 + AWAY_S, 5 + 2 * AWAY_S)
    assert moved.remembers
    assert not moved.session.mark(("p", 3), 5)
    moved.pass_time(5.001 + 2 * AWAY_S)
    assert not moved.remembers


def test_a_crash_before_that_is_on_disk_brings_them_back() -> None:
    moved = Moved()
    moved.homes.forget_marks(1000)
    moved.homes.forget_marks(1001 + 1000 * AWAY_S)
    assert moved.session.marks is None
    moved.restart()
    assert moved.remembers


def test_a_session_that_is_about_to_move_again_keeps_them() -> None:
    moved = Moved()
    moved.pass_time(1)
    moved.session.freeze(2)
    moved.pass_time(2 + AWAY_S)
    assert moved.remembers
