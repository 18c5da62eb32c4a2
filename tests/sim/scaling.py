"""What happens to the cluster itself in a run: wishes, slow and failing starts, crashes of the coordinator and of
newcomers; and what must hold of it afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cluster import moving
from cluster.access_point import AccessPoint
from cluster.assignment import fewest_moves
from cluster.connection_point import ConnectionPoint
from cluster.coordinating.records import State
from cluster.exit_point import ExitPoint
from cluster.matcher import Matcher
from cluster.messages import (
    COORDINATOR_PEER,
    EXIT_POINT,
    Answer,
    AppendOutput,
    Died,
    Instruction,
    Peer,
    Request,
    SpawnFailed,
)
from cluster.serving.books import OUTCOMES
from cluster.serving.shared import DROPPED_FOR
from cluster.view import View, key_group
from cluster.wish import PLURALS
from tests.sim.client import require

if TYPE_CHECKING:
    from tests.sim.world import World

COUNTERS_OF_THE_STOPPED = frozenset(
    {
        "accepted",
        "publications",
        "released",
        "duplicates",
        "matched",
        "unmatched",
        "rejected",
        "notifications",
        "dropped",
        "valid_handed_over",
        *OUTCOMES,
        "abandoned",
        "in_flight",
        *DROPPED_FOR.values(),
    }
)


class Scaling:
    """The part of a world that has to do with views. stopped: sums of counters of roles that are no more, by layer."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self.starting: list[tuple[Peer, int]] = []
        self.stopped: dict[tuple[str, str], int] = {}
        self.wishes = 0
        self.restarts = 0
        self.troubled: set[int] = set()  # operations that did not simply go from rest to their end
        self.deaths = 0
        self.news: list[tuple[Peer, int]] = []  # deaths that the coordinator will be told of
        self._crash_armed = False
        world.assembly.starter = self._start
        world.assembly.stopper = self._stop
        world.assembly.instruct = self._instruct

    # Processes ---------------------------------------------------------------------------------------------------

    def _start(self, peer: Peer, incarnation: int) -> None:
        self._world.note(f"{peer} is to be started as {incarnation}")
        self.starting.append((peer, incarnation))

    def started(self, place: int) -> None:
        """A process is up, or will not be."""
        peer, incarnation = self.starting.pop(place)
        if self._rng.random() < 0.15 * self._world.plan.trouble and not self._world.healing:
            self._world.note(f"{peer} could not be started")
            self._world.assembly.feed(COORDINATOR_PEER, SpawnFailed(peer, incarnation, "no room"))
            return
        self._world.note(f"{peer} is up as {incarnation}")
        self._world.assembly.spawn(peer, incarnation)

    def _stop(self, peer: Peer, incarnation: int) -> None:
        self.starting = [one for one in self.starting if one != (peer, incarnation)]
        assembly = self._world.assembly
        if assembly.incarnations.get(peer) != incarnation:
            return
        view = assembly.coordinator._shared.view
        if view is not None and (member := view.member(peer)) is not None and member.incarnation == incarnation:
            self.deaths += 1  # held for dead, wrongly
            self._trouble()
        self._world.note(f"{peer} is stopped")
        self._count(peer)
        assembly.stop(peer, incarnation)
        self._world.role_stopped(peer)

    def _count(self, peer: Peer) -> None:
        for name, value in self._world.assembly.roles[peer].machine.gauges().items():
            if name in COUNTERS_OF_THE_STOPPED:
                self.stopped[peer.layer, name] = self.stopped.get((peer.layer, name), 0) + value

    # What is done to it ------------------------------------------------------------------------------------------

    def wish(self) -> None:
        """Ask for another size of one or more layers, or for a slice to be replaced."""
        rng = self._rng
        arguments: dict[str, object] = {"strategy": rng.choice(("waves", "waves", "all_at_once"))}
        view = self._world.assembly.coordinator._shared.view
        if rng.random() < 0.2 and view is not None:
            layer = PLURALS[rng.choice(self._world.plan.wished)]
            arguments["replace"] = [[layer, rng.choice(view.slots(layer))]]
        else:
            wished = self._world.plan.wished
            layers = rng.sample(wished, min(len(wished), rng.choice((1, 1, 1, 2, 3))))
            arguments |= {layer: rng.randint(1, 3) for layer in layers}
        self._request("scale", arguments)

    def _trouble(self) -> None:
        """What is under way does not go its way undisturbed."""
        operation = self._world.assembly.coordinator._operations.present
        if operation is not None:
            self.troubled.add(operation.number)

    def abort(self) -> None:
        """Have what is under way given up."""
        self._request("abort", {})

    def _request(self, command: str, arguments: dict[str, object]) -> None:
        assembly = self._world.assembly
        before = assembly.coordinator._operations.present
        if before is not None and before.state == "running":
            self._trouble()
            self.troubled.add(before.number + 1)  # the one that goes on from there
        self._world.note(f"wish: {command} {arguments}")
        answer = assembly.request(Request(command, msgspec.json.encode(arguments)))
        if answer is None:
            self._world.note("no answer")
            return
        assert isinstance(answer, Answer), "a wish is answered otherwise"
        if answer.error:
            self._world.note(f"refused: {answer.error}")
        elif command == "scale":
            self.wishes += 1

    def crash_coordinator(self) -> None:
        """Its process dies, now or in the middle of what it does next, and comes again."""
        if self._world.assembly.coordinator.state is not State.SERVING:
            return
        self._trouble()
        if self._rng.random() < 0.5:
            self._crash_armed = True
        else:
            self._restart()

    def _restart(self) -> None:
        self.restarts += 1
        self._world.note("the coordinator is started anew")
        self.starting = []
        self._world.assembly.restart_coordinator()

    def _instruct(self, peer: Peer, instructions: list[Instruction]) -> list[Instruction]:
        """Let an armed crash cut off what the coordinator was about to do."""
        if peer.layer == EXIT_POINT and any(isinstance(one, AppendOutput) for one in instructions):
            return self._cut_off(peer, instructions)
        if peer != COORDINATOR_PEER or not self._crash_armed or len(instructions) < 2:
            return instructions
        self._crash_armed = False
        kept = self._rng.randint(0, len(instructions) - 1)
        self._world.note(f"the coordinator dies after {kept} of {len(instructions)} instructions")
        self._world.after_this(self._restart)
        return instructions[:kept]

    def _cut_off(self, peer: Peer, instructions: list[Instruction]) -> list[Instruction]:
        """Let an exit point die now and then between what it writes and what it sends."""
        world = self._world
        if world.healing or self._rng.random() > 0.01 * world.plan.deaths * world.plan.trouble:
            return instructions
        view = world.assembly.coordinator._shared.view
        if view is None or view.member(peer) is None or world.assembly.coordinator.state is State.GATHERING:
            return instructions
        kept = self._rng.randint(0, len(instructions))
        world.note(f"{peer} dies after {kept} of {len(instructions)} instructions")
        world.after_this(lambda: self._die(peer))
        return instructions[:kept]

    def _die(self, peer: Peer) -> None:
        if peer in self._world.assembly.roles:
            self.deaths += 1
            self._trouble()
            self._count(peer)
            self._world.assembly.crash(peer, lambda count: self._rng.randint(0, count))
            self._world.role_stopped(peer)

    def crash_newcomer(self) -> None:
        """A process that is in no view yet dies."""
        assembly = self._world.assembly
        view = assembly.coordinator._shared.view
        leaving = {member.peer for member in assembly.coordinator._shared.memory.leaving}
        if view is None or assembly.coordinator.state is not State.SERVING:
            return
        newcomers = [peer for peer in sorted(assembly.roles) if view.member(peer) is None and peer not in leaving]
        transition = assembly.coordinator._shared.transition
        if not newcomers or (transition is not None and transition.decided):
            return
        peer = self._rng.choice(newcomers)
        self._trouble()
        self._world.note(f"{peer} dies")
        self._count(peer)
        assembly.crash(peer)
        self._world.role_stopped(peer)

    def crash_member(self) -> None:
        """A role of the present view dies; the coordinator is told, or finds out by itself."""
        assembly = self._world.assembly
        coordinator = assembly.coordinator
        transition = coordinator._shared.transition
        if self._world.plan.midst and (transition is None or transition.over):
            return
        view = coordinator._shared.view
        if view is None or coordinator.state is State.GATHERING:
            return
        immortal = self._world.plan.immortal
        alive = [one.peer for one in view.members if one.peer in assembly.roles and one.layer != immortal]
        if not alive:
            return
        peer = self._rng.choice(alive)
        phase = "nothing" if transition is None else f"the change to {transition.epoch} at {transition.phase.name}"
        self._world.note(f"{peer} dies during {phase}")
        self.deaths += 1
        self._trouble()
        if self._rng.random() < 0.7:
            self.news.append((peer, assembly.incarnations[peer]))
        self._count(peer)
        assembly.crash(peer, lambda count: self._rng.randint(0, count))
        self._world.role_stopped(peer)

    def told(self, place: int) -> None:
        """The coordinator hears of a death."""
        peer, incarnation = self.news.pop(place)
        self._world.note(f"the coordinator is told that {peer} has died")
        self._world.assembly.feed(COORDINATOR_PEER, Died(peer, incarnation, "killed"))

    # What must hold ----------------------------------------------------------------------------------------------

    def check_bounds(self) -> None:
        """Between matchers no more is on its way than the window allows, changes that were sent on aside."""
        for peer, role in self._world.assembly.roles.items():
            machine = role.machine
            if isinstance(machine, Matcher) and machine._moving is not None:
                for target, departure in machine._moving._departures.items():
                    flight = departure.flight - machine._moving.sent_on
                    limit = moving.WINDOW_ENTRIES
                    require(
                        flight <= limit, f"{peer}: {flight} on their way to matcher {target}, the window is {limit}"
                    )

    @property
    def at_rest(self) -> bool:
        """Whether the cluster is what it is wanted to be."""
        coordinator = self._world.assembly.coordinator
        operation = coordinator._operations.present
        return (
            coordinator.state is State.SERVING
            and coordinator._shared.transition is None
            and coordinator._shared.recovery is None
            and not self.news
            and all(
                self._world.assembly.incarnations.get(member.peer) == member.incarnation
                for member in (coordinator._shared.view.members if coordinator._shared.view is not None else ())
            )
            and not coordinator._shared.memory.leaving
            and not any(
                role.machine._leftovers
                for role in self._world.assembly.roles.values()
                if isinstance(role.machine, Matcher)
            )
            and not self.starting
            and (operation is None or operation.state != "running")
        )

    def check_rest(self) -> None:
        """Every role serves the one view, and every subscription is where it belongs and nowhere else."""
        assembly = self._world.assembly
        coordinator = assembly.coordinator
        view = coordinator._shared.view
        assert view is not None, "at rest without a view"
        members = {member.peer: member.incarnation for member in view.members}
        require(members == assembly.incarnations, f"the view has {members}, there are {assembly.incarnations}")
        last = coordinator._operations.history[-1:]
        if not last or last[0].state == "done":
            require(fewest_moves(view.owners, view.matchers) == 0, "the groups are not spread evenly")
        for peer, role in assembly.roles.items():
            machine = role.machine
            own = machine._shared.view if isinstance(machine, ConnectionPoint) else machine._view  # type: ignore[attr-defined]
            require(isinstance(own, View) and own == view, f"{peer} serves another view")
            if isinstance(machine, Matcher):
                self._check_matcher(peer, machine, view)
            elif isinstance(machine, AccessPoint):
                require(machine._next is None and not machine._unanswered, f"{peer} keeps something of a view change")
                require({epoch for epoch, _ in machine._exit_sequences} <= {view.epoch}, f"{peer} numbers old epochs")
            elif isinstance(machine, ExitPoint):
                require(machine._next is None and machine._handover is None, f"{peer} keeps something of a view change")
                require({epoch for epoch, _ in machine._streams} <= {view.epoch}, f"{peer} keeps old streams")
        self._check_history()

    def _check_matcher(self, peer: Peer, machine: Matcher, view: View) -> None:
        require(machine._moving is None and not machine._removed, f"{peer} keeps something of a view change")
        rows = [subscription for subscription, _ in machine.table.rows()]
        require(len(machine.index) == len(rows), f"{peer}: {len(machine.index)} in the index, {len(rows)} in the table")
        strays = [one for one in rows if view.owner_of_group(key_group(one)) != peer.slot]
        require(not strays, f"{peer} holds {strays}, which are others'")

    def _check_history(self) -> None:
        for operation in self._world.assembly.coordinator._operations.history:
            require(operation.state != "running", f"operation {operation.number} never ends")
            if operation.state == "done" and operation.number not in self.troubled:
                require(
                    operation.groups_moved == operation.groups_minimum,
                    f"operation {operation.number} moved {operation.groups_moved}, "
                    f"{operation.groups_minimum} would have done",
                )
