"""Why something was delivered: what a connection point remembers, what the coordinator passes on, the verdict."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from cluster import frames
from cluster.client import Client
from cluster.client.attributes import AttributePacker
from cluster.columns import U32, U64
from cluster.config import Config, Flow, Layers
from cluster.errors import KittiwakeError, RejectedError
from cluster.messages import (
    CONNECTION_POINT,
    COORDINATOR_PEER,
    OPERATOR,
    Answer,
    Explain,
    Explained,
    LaneDown,
    Peer,
    Received,
    Request,
    Send,
    SessionOpened,
    Tick,
    client_key,
    subscription_id,
)
from cluster.outbox import Chunk, Outbox
from cluster.questions import ANSWER_MS, OPEN_MAX
from cluster.recent import CHUNK_BYTES, FRAMES, Recent
from cluster.testing import LocalCluster
from cluster.verdict import judged
from tests.unit.control import Control, layers
from tests.unit.conversation import conversation
from tests.unit.edge import NOW_US, Edge, publish, small_config

# What is remembered --------------------------------------------------------------------------------------------------


def chunk(*notifications: tuple[str, int, list[int]], payload: bytes = b"x") -> Chunk:
    """Return a chunk of (publisher, sequence, numbers); the run of each was taken in at 1000 + its sequence."""
    count = len(notifications)
    return Chunk(
        [(publisher, 5, 1000 + sequence) for publisher, sequence, _ in notifications],
        np.arange(count, dtype=U32).tobytes(),
        np.array([sequence for _, sequence, _ in notifications], U64).tobytes(),
        np.array([len(payload)] * count, U32).tobytes(),
        np.array([len(numbers) for _, _, numbers in notifications], U32).tobytes(),
        np.array([number for _, _, numbers in notifications for number in numbers], U32).tobytes(),
        payload * count,
    )


def test_what_was_sent_is_found_with_its_place_and_its_subscriptions() -> None:
    recent = Recent()
    recent.sent(1, 0, [chunk(("p", 7, [0]), ("q", 7, [1, 2]), ("p", 8, [3]))])
    recent.sent(1, 3, [chunk(("p", 9, [0, 5]))])
    recent.sent(2, 0, [chunk(("p", 10, [4]))])
    assert recent.find(1, "p", 7) == (1, "", 1007, [0])
    assert recent.find(1, "q", 7) == (2, "", 1007, [1, 2])
    assert recent.find(1, "p", 9) == (4, "", 1009, [0, 5])
    assert recent.find(1, "p", 10) is None, "another session's"
    assert recent.find(2, "p", 10) == (1, "", 1010, [4])


def test_of_two_of_one_name_the_later_one_is_found() -> None:
    recent = Recent()
    recent.sent(1, 0, [chunk(("p", 7, [0]), ("p", 7, [1]))])
    assert recent.find(1, "p", 7) == (2, "", 1007, [1])
    recent.sent(1, 2, [chunk(("p", 7, [2]))])
    assert recent.find(1, "p", 7) == (3, "", 1007, [2])


def test_bytes_that_look_like_a_sequence_are_not_taken_for_one() -> None:
    recent = Recent()
    recent.sent(1, 0, [chunk(("p", 7 << 32, [0]), ("p", 7 << 32, [0]))])
    assert (7).to_bytes(8, "little") not in struct.pack("<Q", 7 << 32)
    assert recent.find(1, "p", 7) is None
    assert struct.pack("<Q", 7) in struct.pack("<2Q", 7 << 32, 0), "across two of them"
    recent.sent(1, 2, [chunk(("p", 7 << 32, [0]), ("p", 0, [0]))])
    assert recent.find(1, "p", 7) is None


def test_drops_are_remembered_with_their_reason_and_counted() -> None:
    recent = Recent()
    recent.dropped(1, "drop_oldest", chunk(("p", 1, [0, 2]), ("p", 2, [2])))
    recent.dropped(1, "drop_newest", chunk(("p", 3, [2])))
    recent.dropped(2, "drop_oldest", chunk(("p", 4, [2])))
    assert recent.find(1, "p", 2) == (0, "drop_oldest", 1002, [2])
    assert recent.drops(1, 2) == {"drop_newest": 1, "drop_oldest": 2}
    assert recent.drops(1, 0) == {"drop_oldest": 1}
    assert recent.drops(1, 9) == {}


def test_it_is_bounded_and_the_oldest_goes_first() -> None:
    recent = Recent(limit=10 * (CHUNK_BYTES + 20))
    for sequence in range(1, 1001):
        recent.sent(1, sequence - 1, [chunk(("p", sequence, [0]), payload=b"x" * 10_000)])
        recent.dropped(1, "drop_oldest", chunk(("q", sequence, [0])))
    assert recent.held_bytes == 2 * 10 * (CHUNK_BYTES + 20), "whatever the payload"
    assert [bool(recent.find(1, "p", sequence)) for sequence in (990, 991, 1000)] == [False, True, True]
    assert [bool(recent.find(1, "q", sequence)) for sequence in (990, 991, 1000)] == [False, True, True]
    for sequence in range(1, 2 * FRAMES):
        recent.taken("p", sequence, sequence, sequence)
        recent.rejected("p", [(sequence, "bad")])
    assert recent.taken_us("p", FRAMES - 1) is None
    assert recent.taken_us("p", FRAMES) == FRAMES
    assert recent.rejection("p", FRAMES - 1) is None
    assert recent.rejection("p", FRAMES) == "bad"


def test_frames_taken_in_tell_when_and_whose() -> None:
    recent = Recent()
    recent.taken("p", 1, 10, 100)
    recent.taken("q", 5, 5, 200)
    assert [recent.taken_us("p", sequence) for sequence in (1, 10, 11)] == [100, 100, None]
    assert recent.taken_us("q", 5) == 200


def test_a_queue_tells_what_waits_and_whether_more_may_go() -> None:
    outbox = Outbox(window=3, flight_bytes=100, queue_messages=10, queue_bytes=10_000, frame_bytes=4096)
    assert outbox.has_credit()
    outbox.push(chunk(("p", 1, [0]), payload=b"x" * 200))
    outbox.push(chunk(("p", 2, [0]), ("p", 3, [0])))
    assert sum(map(len, outbox.take())) == 1
    assert not outbox.has_credit(), "too many bytes in flight"
    assert [struct.unpack("<2Q", one.sequence) for one in outbox.waiting()] == [(2, 3)]
    assert outbox.consume(1)
    assert outbox.has_credit()
    outbox.push(chunk(("p", 4, [0]), ("p", 5, [0])))
    while outbox.has_credit() and outbox.take():
        pass
    assert not outbox.has_credit(), "the window is full, or the bytes are"
    assert outbox.waiting()


# The connection point ------------------------------------------------------------------------------------------------


def ask(edge: Edge, client: int, number: int, publisher: str = "", sequence: int = 0) -> dict[str, Any]:
    """Return what the connection point answers to the coordinator."""
    out = edge.feed(Received(COORDINATOR_PEER, Explain(9, client, number, publisher, sequence)))
    (sent,) = out
    assert isinstance(sent, Send)
    assert sent.peer == COORDINATOR_PEER
    assert isinstance(sent.message, Explained)
    assert sent.message.question == 9
    found: dict[str, Any] = json.loads(sent.message.document)
    return found


def delivery(facts: dict[str, Any], sequence: int, **attributes: Any) -> str:
    """Return the code of what the facts come to."""
    code = judged(facts, attributes, sequence)["delivery"]["code"]
    assert isinstance(code, str)
    return code


def test_a_notification_on_its_way() -> None:
    edge = Edge(small_config(queue_messages=100))
    connection = edge.login(receive_window=2)
    edge.subscribe(connection, 0)
    key, session = edge.key(connection), edge.session_number(connection)
    edge.deliver(*[(number, number, [(session, [0])]) for number in (1, 2, 3)])
    assert delivery(ask(edge, key, 0, "publisher", 1), 1, a=2) == "queued", "until the round ends"
    edge.drain()
    assert delivery(ask(edge, key, 0, "publisher", 1), 1, a=2) == "delivered"
    facts = ask(edge, key, 0, "publisher", 3)
    assert delivery(facts, 3, a=2) == "waiting_for_credit"
    subscriber = facts["subscriber"]
    assert (subscriber["queued"], subscriber["sent"], subscriber["consumed"]) == (1, 2, 0)
    assert (subscriber["credit"], subscriber["reads"]) == (False, True)
    edge.say(connection, frames.Consumed(1))
    edge.drain()
    codes = [delivery(ask(edge, key, 0, "publisher", sequence), sequence, a=2) for sequence in (1, 2, 3, 4)]
    assert codes == ["consumed", "delivered", "delivered", "not_seen"]
    assert delivery(ask(edge, key, 0, "stranger", 1), 1, a=2) == "not_seen"
    assert delivery(ask(edge, key, 0, "stranger", 1), 1, a=0) == "not_matching"


def test_what_was_dropped_says_so() -> None:
    edge = Edge(small_config(queue_messages=1))
    connection = edge.login(receive_window=1)
    edge.subscribe(connection, 0, policy="drop_oldest")
    key, session = edge.key(connection), edge.session_number(connection)
    for number in range(1, 5):
        edge.deliver((number, number, [(session, [0])]))
        edge.drain()
    codes = [delivery(ask(edge, key, 0, "publisher", sequence), sequence, a=2) for sequence in range(1, 5)]
    assert codes == ["delivered", "dropped", "dropped", "waiting_for_credit"]
    subscription = ask(edge, key, 0)["subscriber"]["subscription"]
    assert subscription["dropped_lately"] == {"drop_oldest": 2}
    assert subscription["policy"] == "drop_oldest"


def test_a_subscription_that_is_not_confirmed_or_not_there() -> None:
    edge = Edge()
    connection = edge.login()
    key = edge.key(connection)
    assert delivery(ask(edge, key, 0), 1) == "unknown_subscription"
    edge.say(connection, frames.Subscribe(1, 0, "a > 1", "block"))
    facts = ask(edge, key, 0)
    assert facts["subscriber"]["subscription"]["confirmed"] is False
    assert delivery(facts, 1, a=2) == "before_subscription"
    edge.confirm_changes()
    subscription = ask(edge, key, 0)["subscriber"]["subscription"]
    assert subscription["confirmed"] is True
    assert subscription["id"] == key << 20
    assert subscription["asked_us"] == NOW_US
    edge.say(connection, frames.Unsubscribe(2, 0))
    assert ask(edge, key, 0)["subscriber"]["subscription"] is None
    edge.close(connection)
    assert ask(edge, key, 0) == {}
    assert delivery({}, 1) == "unknown_client"


def test_a_filter_that_is_refused_leaves_the_one_in_force() -> None:
    edge = Edge()
    connection = edge.login()
    edge.subscribe(connection, 0)
    before = ask(edge, edge.key(connection), 0)["subscriber"]["subscription"]
    edge.say(connection, frames.Subscribe(1, 0, "a > ", "block"))
    assert ask(edge, edge.key(connection), 0)["subscriber"]["subscription"] == before


def test_how_far_a_publisher_has_come() -> None:
    edge = Edge()
    subscriber = edge.login("lab")
    edge.subscribe(subscriber, 0)
    key = edge.key(subscriber)
    publisher = edge.login("roof")
    assert delivery(ask(edge, key, 0, "roof", 1), 1, a=2) == "not_published"
    edge.say(publisher, publish(1, 3))
    edge.drain()
    facts = ask(edge, key, 0, "roof", 2)
    assert facts["publisher"] == {"published": 3, "acknowledged": 0, "taken_us": NOW_US}
    assert delivery(facts, 2, a=2) == "under_way"
    edge.acknowledge(edge.key(publisher), 3, [(2, "too odd")])
    assert judged(ask(edge, key, 0, "roof", 2), {"a": 2}, 2)["delivery"] == {"code": "rejected", "detail": "too odd"}
    assert delivery(ask(edge, key, 0, "roof", 3), 3, a=2) == "not_seen"
    assert delivery(ask(edge, key, 0, "roof", 4), 4, a=2) == "not_published"
    edge.close(publisher)
    facts = ask(edge, key, 0, "roof", 2)
    assert facts["publisher"] == {"taken_us": NOW_US, "rejected": "too odd"}, "remembered beyond the session"


def test_what_was_taken_in_before_the_subscription_says_so() -> None:
    edge = Edge()
    publisher, subscriber = edge.login("roof"), edge.login("lab")
    edge.say(publisher, publish(1))
    edge.drain()
    edge.acknowledge(edge.key(publisher), 1)
    edge.subscribe(subscriber, 0)
    facts = ask(edge, edge.key(subscriber), 0, "roof", 1)
    facts["subscriber"]["subscription"]["asked_us"] += 2_000_000
    found = judged(facts, {"a": 2}, 1)["delivery"]
    assert found["code"] == "before_subscription"
    assert "2.000 s before" in found["detail"]
    facts["subscriber"]["subscription"]["asked_us"] = None
    assert delivery(facts, 1, a=2) == "not_seen", "when it was asked for is not known"


def test_one_that_came_for_another_subscription_of_the_client() -> None:
    edge = Edge()
    connection = edge.login()
    edge.subscribe(connection, 0)
    edge.subscribe(connection, 1, "b > 1")
    session = edge.session_number(connection)
    edge.deliver((1, 1, [(session, [0])]))
    edge.drain()
    facts = ask(edge, edge.key(connection), 1, "publisher", 1)
    assert delivery(facts, 1, a=2) == "not_matching"
    assert delivery(facts, 1, a=2, b=2) == "not_seen"
    other = judged(ask(edge, edge.key(connection), 0, "publisher", 1), {"a": 0}, 1)
    assert other["matches"] is False
    assert other["delivery"]["code"] == "delivered"
    assert "another one then" in other["delivery"]["detail"]


# The coordinator -----------------------------------------------------------------------------------------------------


def serving(**counts: int) -> Control:
    control = Control(layers(**counts)).serve()
    control.take()
    return control


def operator(number: int = 0) -> Peer:
    return Peer(OPERATOR, number)


def request(control: Control, asker: int = 0, **arguments: Any) -> list[Send]:
    """Ask as an operator; return what is sent because of it."""
    out = control.feed(Received(operator(asker), Request("why", msgspec.json.encode(arguments))))
    assert all(isinstance(one, Send) for one in out)
    return [one for one in out if isinstance(one, Send)]


def error_of(sent: list[Any]) -> str:
    (one,) = sent
    assert isinstance(one.message, Answer)
    return one.message.error


def test_the_question_goes_to_both_and_their_answers_come_together() -> None:
    control = serving(connection_points=2)
    first, second = Peer(CONNECTION_POINT, 0), Peer(CONNECTION_POINT, 1)
    lab, roof = client_key(0, 5), client_key(1, 6)
    control.feed(Received(first, SessionOpened("lab", lab, 1)))
    control.feed(Received(second, SessionOpened("roof", roof, 1)))
    sent = request(control, client_id="lab", number=3, publisher="roof", sequence=8)
    assert sent == [Send(first, Explain(1, lab, 3, "roof", 8)), Send(second, Explain(1, lab, 3, "roof", 8))]
    assert control.feed(Received(second, Explained(1, b'{"publisher": {"acknowledged": 8}}'))) == []
    assert control.feed(Received(second, Explained(1, b"{}"))) == [], "twice from one is once"
    (answer,) = control.feed(Received(first, Explained(1, b'{"subscriber": {"queued": 1}}')))
    assert isinstance(answer, Send)
    assert answer.peer == operator()
    assert isinstance(answer.message, Answer)
    assert json.loads(answer.message.document) == {"publisher": {"acknowledged": 8}, "subscriber": {"queued": 1}}
    assert control.feed(Received(first, Explained(1, b"{}"))) == [], "and what comes late is nothing"


def test_the_clusters_id_says_where_to_ask() -> None:
    control = serving(connection_points=2)
    lab = client_key(1, 5)
    sent = request(control, subscription=int(subscription_id(lab, 3)))
    assert sent == [Send(Peer(CONNECTION_POINT, 1), Explain(1, lab, 3, "", 0))]
    (answer,) = request(control, subscription=int(subscription_id(client_key(7, 5), 3)))
    assert answer == Send(operator(), Answer(b"{}", "")), "no such connection point"
    (answer,) = request(control, client_id="nobody")
    assert answer == Send(operator(), Answer(b"{}", ""))


def test_a_connection_point_that_is_lost_or_silent_is_named() -> None:
    control = serving()
    peer = Peer(CONNECTION_POINT, 0)
    control.feed(Received(peer, SessionOpened("lab", client_key(0, 5), 1)))
    control.silent.add(peer)
    request(control, client_id="lab")
    control.machine.handle(Tick(control.now_ms + 50))  # heard it a moment ago
    out = control.feed(Tick(control.now_ms + ANSWER_MS + 1))
    answers = [one for one in out if isinstance(one, Send) and one.peer.layer == OPERATOR]
    assert error_of(answers) == f"no answer within {ANSWER_MS} ms from connection_point 0"


def test_one_that_is_lost_meanwhile_is_named_at_once() -> None:
    control = serving()
    peer = Peer(CONNECTION_POINT, 0)
    control.feed(Received(peer, SessionOpened("lab", client_key(0, 5), 1)))
    request(control, client_id="lab")
    out = [one for one in control.feed(LaneDown(peer)) if isinstance(one, Send) and one.peer.layer == OPERATOR]
    assert error_of(out) == "lost while it was asked: connection_point 0"
    assert error_of(request(control, client_id="lab")) == "connection_point 0 cannot be asked: it is lost"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"number": 1 << 20, "client_id": "lab"}, "subscription number 1048576"),
        ({"number": -1, "client_id": "lab"}, "subscription number -1"),
        ({"sequence": -1, "client_id": "lab"}, "sequence -1"),
        ({"client_id": 5}, "Expected `str`"),
        ({"client": "lab"}, "unknown field `client`"),
    ],
)
def test_questions_that_are_none(arguments: dict[str, Any], error: str) -> None:
    assert error in error_of(request(serving(), **arguments))


def test_questions_are_bounded() -> None:
    control = serving()
    control.feed(Received(Peer(CONNECTION_POINT, 0), SessionOpened("lab", client_key(0, 5), 1)))
    for asker in range(OPEN_MAX):
        assert len(request(control, asker, client_id="lab")) == 1
    assert "questions are under way" in error_of(request(control, OPEN_MAX, client_id="lab"))


# The whole of it -----------------------------------------------------------------------------------------------------


async def code_of(cluster: LocalCluster, publisher: Client, sequence: int, attributes: dict[str, Any]) -> str:
    """Return what became of a publication on its way to the first subscription of lab."""
    found = await cluster.admin.why(
        attributes, client_id="lab", number=0, publisher=publisher.client_id, sequence=sequence
    )
    code = found["delivery"]["code"]
    assert isinstance(code, str)
    return code


@conversation
async def test_in_a_cluster() -> None:
    config = Config(layers=Layers(connection_points=2, matchers=2), flow=Flow(receive_window=2))
    async with (
        LocalCluster(config=config) as cluster,
        cluster.connect("lab") as lab,
        cluster.connect("roof", connection_point=1) as roof,
    ):
        await roof.publish({"no2": 50.0})
        subscription = await lab.subscribe("no2 > 40 and (station is null or missing station)")
        for no2 in (45.0, 38.0, 46.0, 47.0, 48.0):
            await roof.publish({"no2": no2})
        found = await cluster.admin.why({"no2": 38.0}, client_id="lab", number=0, publisher="roof", sequence=3)
        assert found["matches"] is False
        assert found["delivery"]["code"] == "not_matching"
        assert found["explanation"]["value"] == "false"
        assert found["filter"].startswith("no2 > 40 and ")
        assert await code_of(cluster, roof, 1, {"no2": 50.0}) == "before_subscription"
        assert await code_of(cluster, roof, 2, {"no2": 45.0}) == "delivered"
        assert await code_of(cluster, roof, 6, {"no2": 48.0}) == "waiting_for_credit"
        assert await code_of(cluster, roof, 7, {"no2": 48.0}) == "not_published"
        (first,) = await subscription.take(1)
        await subscription.take(1)
        await subscription.take(1)
        assert await code_of(cluster, roof, first.sequence, first.attributes) == "consumed"
        by_id = await cluster.admin.why({"no2": 45.0}, subscription=found["subscriber"]["subscription"]["id"])
        assert by_id["matches"] is True
        assert by_id["delivery"] is None
        assert by_id["filter"] == found["filter"]
        for who, code in (({"client_id": "nobody"}, "unknown_client"), ({"client_id": "roof"}, "unknown_subscription")):
            missing = await cluster.admin.why({"no2": 1}, **who)  # type: ignore[arg-type]
            assert missing["matches"] is None
            assert missing["delivery"]["code"] == code
        with pytest.raises(KittiwakeError, match="client's id"):
            await cluster.admin.why({"no2": 1})
        with pytest.raises(KittiwakeError, match="subscription number"):
            await cluster.admin.why({"no2": 1}, client_id="lab", number=1 << 20)


@conversation
async def test_what_the_matchers_refuse_is_told_with_their_reason() -> None:
    async with LocalCluster() as cluster, cluster.connect("lab") as lab, cluster.connect("roof") as roof:
        await lab.subscribe("no2 > 40")
        roof._packer.limits = msgspec.structs.replace(roof._packer.limits, string_bytes=1 << 20)
        with pytest.raises(RejectedError) as caught:
            await roof.publish({"no2": 50.0, "note": "x" * 70_000})
        found = await cluster.admin.why({"no2": 50.0}, client_id="lab", number=0, publisher="roof", sequence=1)
        assert found["delivery"] == {"code": "rejected", "detail": caught.value.reason}


BAD: list[Callable[[], dict[str, Any]]] = [
    lambda: {"a": float("nan")},
    lambda: {"a": float("inf")},
    lambda: {"": 1},
    lambda: {"x" * 257: 1},
    lambda: {"a": "x" * 65_537},
    lambda: {"a": [1]},
    lambda: {f"a{number}": 1 for number in range(257)},
]
GOOD: list[Callable[[], dict[str, Any]]] = [
    dict,
    lambda: {"a": 2**64 - 1, "b": -(2**63), "c": None, "d": True, "e": 1e308, "é": "é" * 32_768},
    lambda: {f"a{number}": 1 for number in range(256)},
    lambda: {"x" * 256: "x" * 65_536},
]


@pytest.mark.parametrize("place", range(len(BAD) + len(GOOD)))
def test_the_check_here_is_the_matchers(place: int) -> None:
    from cluster.matching.batch import Batch

    attributes = [*BAD, *GOOD][place]()
    refused = False
    try:
        AttributePacker().pack(attributes)
    except RejectedError:
        refused = True
    assert refused == (place < len(BAD)) == bool(Batch.of([attributes]).rejected)
