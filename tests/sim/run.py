"""Playing seeds, and what they have in common: the hash of the trace, and the story of a failure."""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.world import World


@dataclass(frozen=True)
class Outcome:
    """What a seed came to. failure: None if it passed. story: the end of its trace."""

    seed: int
    digest: str
    steps: int
    publications: int
    notifications: int
    view_changes: int
    failure: str | None
    story: str


def play(seed: int, scenario: str = "mixed") -> Outcome:
    """Run one seed; whatever is raised on the way is its failure."""
    world = World(seed, scenario)
    failure = None
    story = ""
    try:
        world.run()
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        words = [word.strip(",:;") for word in failure.split() if word.startswith("#")]
        story = world.trace.tail(f"{words[0]} " if words else "")
    notifications = sum(len(session.received) for client in world.clients for session in client.sessions)
    view_changes = sum(len(operation.steps) for operation in world.assembly.coordinator._operations.history)
    # A world is a knot of references; each matcher's index reserves a good deal of address space until it is freed.
    world.assembly.roles.clear()
    return Outcome(
        seed,
        world.trace.digest(),
        world.trace.stamp,
        len(world.publications),
        notifications,
        view_changes,
        failure,
        story,
    )
