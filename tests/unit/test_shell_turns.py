"""What many lanes bring at once is taken in turns: none keeps the machine from its ticks, nor others from theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.shell import Link
from cluster.messages import (
    ACCESS_POINT,
    EXIT_POINT,
    MATCHER,
    Delivered,
    Drained,
    Event,
    Instruction,
    LaneUp,
    Received,
    Send,
    Tick,
)
from tests.unit.conversation import conversation
from tests.unit.test_shells import Actor, actors

COUNT = 50
DRAINED = -1


class Story:
    """What a shell hands to its machine: (layer, number) of a message, DRAINED in the place of the number for the end
    of a turn. each: called after a message.
    """

    def __init__(self, actor: Actor, turn_ns: int | None, each: Callable[[int], None] = lambda number: None) -> None:
        self.told: list[tuple[str, int]] = []
        self._tell = actor.script.handle
        self._each = each
        actor.script.handle = self._handle  # type: ignore[method-assign]
        actor.shell._turn_ns = turn_ns

    def _handle(self, event: Event) -> list[Instruction]:
        if isinstance(event, Received):
            assert isinstance(event.message, Delivered)
            self.told.append((event.peer.layer, event.message.tokens[0]))
            self._each(event.message.tokens[0])
        elif isinstance(event, Drained):
            self.told.append(("", DRAINED))
        return self._tell(event)

    def of(self, layer: str) -> list[int]:
        """Return the numbers of one peer's messages, in the order in which they were told."""
        return [number for one, number in self.told if one == layer]

    async def until(self, *layers: str) -> None:
        """Wait until all has come of these peers."""
        while any(len(self.of(layer)) < COUNT for layer in layers):
            await asyncio.sleep(0.001)

    def turns(self) -> list[int]:
        """Return how many messages there were in each turn that had any."""
        counts = [0]
        for _, number in self.told:
            if number == DRAINED:
                counts.append(0)
            else:
                counts[-1] += 1
        return [count for count in counts if count]


def send_all(sender: Actor, to: Actor) -> None:
    """Send numbered messages, all in one piece."""
    sender.shell.perform([Send(to.peer, Delivered([number])) for number in range(COUNT)])


def link(of: Actor, to: Actor) -> Link:
    return of.shell._links[to.peer]


def reads(of: Actor, to: Actor) -> bool:
    """Tell whether the lane's socket is read."""
    protocol = link(of, to).protocol
    assert protocol is not None
    transport = protocol._transport
    assert isinstance(transport, asyncio.ReadTransport)
    return transport.is_reading()


@conversation
async def test_what_comes_at_once_is_taken_in_turns_between_which_others_have_theirs() -> None:
    """With no time at all a turn has one message; nothing is read before what was read is taken."""
    async with actors((MATCHER, 1), (ACCESS_POINT, 1)) as (one, other):
        await other.connect(one)
        passes: list[int] = []
        reading: set[bool] = set()

        def count() -> None:
            passes[-1] += 1

        def each(number: int) -> None:
            passes.append(0)
            reading.add(reads(one, other))
            asyncio.get_running_loop().call_soon(count)

        story = Story(one, 0, each)
        send_all(other, one)
        await story.until(ACCESS_POINT)
        assert story.of(ACCESS_POINT) == list(range(COUNT))
        # Taken when the turn before ends, the first one's neighbour may share its Drained.
        assert max(story.turns()) <= 2
        assert passes[:-1].count(0) <= 1, "the loop comes round between two of them"
        assert False in reading, "it is paused meanwhile"
        await asyncio.sleep(0)
        assert reads(one, other)
        assert not one.shell._waiting


@conversation
async def test_a_tick_is_told_while_lanes_wait() -> None:
    async with actors((MATCHER, 1), (ACCESS_POINT, 1)) as (one, other):
        await other.connect(one)
        places: list[int] = []

        def each(number: int) -> None:
            if number == 0:
                one.shell.tell(Tick(1))

        story = Story(one, 0, each)
        tell = one.script.handle

        def handle(event: Event) -> list[Instruction]:
            if event == Tick(1):
                places.append(len(story.of(ACCESS_POINT)))
            return tell(event)

        one.script.handle = handle  # type: ignore[method-assign]
        send_all(other, one)
        await story.until(ACCESS_POINT)
        assert places, "it was told"
        assert places[0] < 5, "and not behind all the others"


@conversation
async def test_lanes_that_wait_take_turns() -> None:
    async with actors((MATCHER, 1), (ACCESS_POINT, 1), (EXIT_POINT, 1)) as (one, left, right):
        await left.connect(one)
        await right.connect(one)
        story = Story(one, 0)
        send_all(left, one)
        send_all(right, one)
        await story.until(ACCESS_POINT, EXIT_POINT)
        assert story.of(ACCESS_POINT) == story.of(EXIT_POINT) == list(range(COUNT))
        layers = [layer for layer, number in story.told if number != DRAINED]
        begun = max(layers.index(ACCESS_POINT), layers.index(EXIT_POINT))
        ended = min(len(layers) - 1 - layers[::-1].index(layer) for layer in (ACCESS_POINT, EXIT_POINT))
        both = layers[begun : ended + 1]
        assert len(both) > COUNT
        assert not any(len({*both[place : place + 3]}) == 1 for place in range(len(both) - 2)), "nobody goes on alone"


@conversation
async def test_what_waits_when_its_lane_is_cut_comes_again_once() -> None:
    async with actors((MATCHER, 1), (ACCESS_POINT, 1)) as (one, other):
        await other.connect(one)

        def each(number: int) -> None:
            if number == 5 and one.script.count(LaneUp(other.peer)) == 1:
                protocol = link(one, other).protocol
                assert protocol is not None
                protocol.abort("cut by the test")

        story = Story(one, 0, each)
        send_all(other, one)
        await story.until(ACCESS_POINT)
        assert story.of(ACCESS_POINT) == list(range(COUNT))
        assert one.script.count(LaneUp(other.peer)) == 2
        assert link(other, one).lane.resent > 0


@conversation
async def test_who_judges_others_by_their_silence_takes_all_that_has_come() -> None:
    async with actors((MATCHER, 1), (ACCESS_POINT, 1)) as (one, other):
        await other.connect(one)
        story = Story(one, None)
        send_all(other, one)
        await story.until(ACCESS_POINT)
        assert story.turns() == [COUNT]
