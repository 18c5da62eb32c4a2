"""Valid publications: the store against a plain dict, questions against a scan, and merged pieces against both."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest

from cluster import parse
from cluster.config import ClientLimits, ValidSettings
from cluster.initial import Initial
from cluster.language import encode_normal
from cluster.session_disk import SessionDisk
from cluster.valid import KEPT_BYTES, Kept, Key, Piece, ValidPublications, inward, outward, well_formed

FILTERS = ("a > 3", "a == 1 or b == 2", "missing b", "exists a", "not (a > 5)")


ACTIONS = ("add", "add", "add", "take", "remove", "settle", "withdraw", "withdraw_any", "time", "ask", "crash")


def draw(rng: random.Random) -> tuple[Key, dict[str, Any]]:
    """Return a key out of few, and attributes."""
    key = (rng.choice("pqr"), rng.randint(0, 2), rng.randint(1, 12))
    attributes = {"a": rng.randint(0, 8)} | ({"b": rng.randint(0, 3)} if rng.random() < 0.5 else {})
    return key, attributes


def answer(store: ValidPublications, text: str, now_ms: int, after: Key | None, rng: random.Random) -> Piece:
    """Ask for one piece, in steps of any size."""
    piece = Piece(parse(text).normal_form, after, most=3, most_bytes=400, most_looked_at=10, cost=1)
    while not piece.full:
        assert piece.step(store, now_ms, rng.randint(1, 4)) >= 1
    return piece


@pytest.mark.parametrize("seed", range(20))
def test_the_store_equals_a_dict_and_answers_as_a_scan_does(seed: int) -> None:
    rng = random.Random(seed)
    limit = rng.choice((5, 1000))
    disk = SessionDisk()
    settings = ValidSettings(publications=limit, bytes=rng.choice((4_000, 1 << 20)))
    store = ValidPublications(settings, disk._write)
    model: dict[Key, tuple[int | None, dict[str, Any]]] = {}
    withdrawn: set[Key] = set()
    saved: set[Key] = set()
    now_ms = 1_000
    for _ in range(300):
        key, attributes = draw(rng)
        payload = msgpack.packb(attributes)
        match rng.choice(ACTIONS):
            case "add" | "take" as way:
                expires_ms = rng.choice((None, now_ms + rng.randint(1, 50)))
                until_us = None if expires_ms is None else 1000 * expires_ms
                kept = Kept(7, until_us, expires_ms, False, payload)
                room = len(store) < limit and store.bytes + len(payload) + KEPT_BYTES <= store._settings.bytes
                fresh = key not in store and key not in withdrawn
                if way == "take":
                    store.take(key, kept)
                    saved.add(key)
                else:
                    assert (store.add(key, kept) is None) == (room or not fresh)
                if fresh and (room or way == "take"):
                    model[key] = (expires_ms, attributes)
            case "remove":
                assert store.remove(key) == (key in model)
                model.pop(key, None)
            case "withdraw":
                assert store.withdraw(key[0], [key[1]], key[2]) == [key[1]]
                model.pop(key, None)
                withdrawn.add(key)
            case "withdraw_any":
                lives = [life for life in range(3) if (key[0], life, key[2]) in model]
                assert store.withdraw(key[0], None, key[2]) == lives
                for life in lives:
                    del model[key[0], life, key[2]]
                    withdrawn.add((key[0], life, key[2]))
            case "time":
                now_ms += rng.randint(0, 20)
                if rng.random() < 0.5:
                    due = [one for one, (expires_ms, _) in model.items() if expires_ms and expires_ms <= now_ms]
                    assert store.expire(now_ms) == len(due)
                    for one in due:
                        del model[one]
            case "settle":
                settled = [one for one in model if one[:2] == key[:2] and one[2] <= key[2]]
                assert store.settle(key[0], key[1], 1, key[2]) == bool(settled)
                saved.update(settled)
            case "crash":
                store = ValidPublications(settings, disk._write)
                store.restore(disk.read(), 1000 * now_ms, now_ms)
                model = {
                    one: held for one, held in model.items() if one in saved and (held[0] is None or held[0] > now_ms)
                }
            case "ask":
                text = rng.choice(FILTERS)
                found: list[Key] = []
                piece = answer(store, text, now_ms, None, rng)
                while True:
                    found += [inward(one, now_ms)[0] for one in piece.found]
                    if piece.ended:
                        break
                    piece = answer(store, text, now_ms, piece.after, rng)
                valid = [one for one, (expires_ms, _) in model.items() if expires_ms is None or expires_ms > now_ms]
                assert found == sorted(one for one in valid if parse(text).matches(model[one][1]))
        assert len(store) == len(model)
        saved &= set(model)
        assert {(one.publisher, one.instance, one.sequence) for one in disk.read().valid} == saved
        store.check()
    store.expire(now_ms + 100)
    assert all(expires_ms is None for expires_ms, _ in model.values()) or len(store) < len(model)


@pytest.mark.parametrize("seed", range(30))
def test_merged_pieces_give_everything_once_in_order_whatever_moves_and_comes_live(seed: int) -> None:
    rng = random.Random(seed)
    stores = {slot: ValidPublications(ValidSettings(), lambda _: None) for slot in range(3)}
    whole: dict[Key, dict[str, Any]] = {}
    for _ in range(60):
        key, attributes = draw(rng)
        if key not in whole:
            whole[key] = attributes
            for slot in rng.sample(range(3), rng.choice((1, 1, 2))):  # some were sent twice
                stores[slot].add(key, Kept(7, None, None, rng.random() < 0.5, msgpack.packb(attributes)))
    text = rng.choice(FILTERS)
    initial = Initial(0, encode_normal(parse(text).normal_form))
    initial.ask(stores)
    given: list[Key] = []
    live: list[Key] = []
    unsettled: set[Key] = set()
    for _ in range(1000):
        if initial.over:
            break
        for slot, part in initial.due():
            piece = answer(stores[slot], text, 0, part.after, rng)
            initial.found(slot, piece.found, piece.after, ended=piece.ended)
        chosen, _passed = initial.take(rng.randint(1, 4), 1 << 20)
        given += [(one.publisher, one.instance, one.sequence) for one in chosen]
        unsettled |= {(one.publisher, one.instance, one.sequence) for one in chosen if not one.settled}
        if rng.random() < 0.1 and len(stores) > 1:
            leaving = rng.choice(sorted(stores))
            entries = list(stores.pop(leaving).entries(None, 0))
            for key, kept in entries:
                stores[min(stores)].take(*inward(outward(key, kept, 0), 0))
            initial.ask(stores)
        if rng.random() < 0.2 and not live:
            # From some publication of a publisher on everything comes live, what was given before included.
            first = rng.choice(sorted(whole))
            live = [one for one in sorted(whole) if one[:2] == first[:2] and one >= first]
            live = [one for one in live if parse(text).matches(whole[one]) and (one in unsettled or one not in given)]
            live = [one for one in live if initial.admits(one[:2], one[2])]
    assert initial.over
    assert given == sorted(set(given))
    assert not set(given) & set(live)
    assert sorted([*given, *live]) == sorted(
        key for key, attributes in whole.items() if parse(text).matches(attributes)
    )
    initial.prune(lambda life: 12)
    assert not initial.prune(lambda life: 12)


@pytest.mark.parametrize(
    ("payload", "well"),
    [
        (msgpack.packb({"a": 1, "b": "x", "c": None, "d": 1.5, "e": True}), True),
        (msgpack.packb({}), True),
        (msgpack.packb({"a": 2**64 - 1, "b": -(2**63)}), True),
        (b"\x82\xa1a\x01\xa1a\x02", True),  # twice the same name: the last counts
        (b"\x83\xa1a\x01\xa1a\x02\xa1b\x03", False),  # but both are attributes, and two is the limit here
        (msgpack.packb({"a": float("nan")}), False),
        (msgpack.packb({"a": float("inf")}), False),
        (msgpack.packb({"a": [1]}), False),
        (msgpack.packb({"a": b"x"}), False),
        (msgpack.packb({1: 1}), False),
        (msgpack.packb({"": 1}), False),
        (msgpack.packb({"a": "12345678"}), True),
        (msgpack.packb({"a": "123456789"}), False),
        (msgpack.packb({"a": "äääää"}), False),
        (msgpack.packb({"abcde": 1}), False),
        (msgpack.packb({"a": 1})[:-1], False),
        (msgpack.packb({"a": 1}) + b"\xc0", False),
        (b"\x81\xa1a\xa1\xff", False),
        (b"", False),
        (b"\xc1", False),
    ],
)
def test_well_formed_is_what_the_matchers_take(payload: bytes, well: bool) -> None:
    limits = ClientLimits(attributes=2 if payload[:1] in (b"\x82", b"\x83") else 5, name_bytes=4, string_bytes=8)
    from cluster.matching.batch import Batch, BatchLimits

    assert well_formed(payload, limits) == well
    batch = Batch(
        len(payload).to_bytes(4, "little"),
        payload,
        BatchLimits(limits.attributes, limits.name_bytes, limits.string_bytes),
    )
    assert (not batch.rejected) == well
