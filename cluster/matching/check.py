"""Every invariant of the index, verified by plain Python that reads the mapping; shares no code with the kernels."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from cluster.matching import layout as at
from cluster.matching import pool, tiles
from cluster.matching.inputs import EQUAL, PREFIX, SET, STRING, SUFFIX
from cluster.matching.records import (
    EXACT,
    KINDS,
    NEAR,
    NOT_IN,
    NOT_STRING,
    RANGE,
    RECORD_COUNT,
    RECORD_WORDS,
    TRUE,
)
from cluster.matching.setting import CACHE_SLOTS

if TYPE_CHECKING:
    from cluster.matching.index import Index

_ARGUMENTS = {TRUE: 0, RANGE: 2, KINDS: 0, EXACT: 2, NOT_IN: 1, NOT_STRING: 0, NEAR: 3}
_FREED = 0xFFFFFFFF


def check(index: Index) -> None:
    """Verify every invariant. Raises AssertionError."""
    _Checker(index).run()


class _Checker:
    def __init__(self, index: Index) -> None:
        self._index = index
        self._map = index._map
        self._blocks: dict[int, int] = {}  # ref -> the cell that must own it
        self._predicate_uses: dict[int, int] = {}
        self._attribute_uses: dict[int, int] = {}
        self._columns: dict[int, set[tuple[int, float]]] = {}  # conjunction -> (column word, bound)

    def run(self) -> None:
        self._conjunctions = self._get(at.H_CONJUNCTIONS)
        self._check_order()
        self._check_records()
        self._check_clusters()
        self._check_predicates()
        self._check_attributes()
        self._check_cache()
        self._check_pool()

    # ---- reading ----

    def _get(self, place: int) -> int:
        return int(struct.unpack_from("<q", self._map, place)[0])

    def _get32(self, place: int) -> int:
        return int(struct.unpack_from("<I", self._map, place)[0])

    def _double(self, place: int) -> float:
        return float(struct.unpack_from("<d", self._map, place)[0])

    def _own(self, cell: int) -> int:
        """Return the ref in a cell, noting that the cell owns it."""
        ref = self._get(cell)
        assert ref >= at.POOL, f"cell {cell:#x} holds no block"
        assert ref not in self._blocks, f"block {ref:#x} has two owners"
        self._blocks[ref] = cell
        assert self._get(ref) & ~7 == cell, f"block {ref:#x} names another cell than {cell:#x}"
        return ref

    def _table(self, cell: int, heads: int, nexts: int, hashes: int) -> list[int]:
        """Return the items of a hash table, each checked to be in its bucket."""
        buckets = self._get(cell)
        items = []
        for bucket in range(buckets):
            item = self._get32(heads + 4 * bucket)
            while item:
                hash32 = self._get32(hashes + 4 * item)
                mask = 1 << max(3, (buckets - 1).bit_length())
                expected = hash32 % mask
                if expected >= buckets:
                    expected = hash32 % (mask // 2)
                assert expected == bucket, f"item {item} is in bucket {bucket} and not {expected}"
                items.append(item)
                assert len(items) < 1 << 24, "a chain has a loop"
                item = self._get32(nexts + 4 * item)
        assert len(items) == len(set(items)), "an item is in the table twice"
        assert buckets == 0 or buckets <= max(8, 2 * len(items) + 1), f"{buckets} buckets for {len(items)} items"
        return items

    # ---- subscriptions ----

    def _check_order(self) -> None:
        leaves = self._get(at.H_LEAVES)
        previous = (-1, -1)
        firsts = []
        seen = set()
        subscriptions = 0
        for rank in range(leaves):
            leaf = self._get32(at.O_LEAVES + 4 * rank)
            assert self._get32(at.O_RANK + 4 * leaf) == rank, f"leaf {leaf} has another rank than {rank}"
            count = self._get32(at.O_COUNT + 4 * leaf)
            assert 1 <= count <= 256, f"leaf {leaf} holds {count}"
            for place in range(256 * leaf, 256 * leaf + count):
                subscription = self._get(at.O_SUBSCRIPTION + 8 * place) % (1 << 64)
                key = (self._get(at.O_CLIENT + 8 * place), subscription)
                assert key > previous, f"{key} stands behind {previous}"
                previous = key
                subscriptions += 1
                conjunction = self._get32(at.O_FIRST + 4 * place)
                firsts.append(conjunction)
                assert conjunction, "a subscription has no conjunction"
                while conjunction:
                    assert 1 <= conjunction <= self._conjunctions
                    assert conjunction not in seen, f"conjunction {conjunction} has two subscriptions"
                    seen.add(conjunction)
                    assert self._get32(at.C_POSITION + 4 * conjunction) == place
                    conjunction = self._get32(at.C_SIBLING + 4 * conjunction)
        marks = np.frombuffer(self._map, dtype=np.uint16, count=256 * leaves, offset=at.O_MARKS)
        assert not marks.any(), "a position is marked between publications"
        for slot in range(at.SLOTS):
            start = at.O_BITS + at.BITS_STEP * slot
            bits = np.frombuffer(self._map, dtype=np.int64, count=4 * leaves, offset=start)
            assert not bits.any(), "a bit is set between publications"
            start = at.O_TOUCHED + at.TOUCHED_STEP * slot
            assert not any(self._map[start : start + leaves]), "a leaf is touched between publications"
        assert len(seen) == self._conjunctions, "a conjunction belongs to no subscription"
        assert subscriptions == self._get(at.H_SUBSCRIPTIONS) == len(self._index)
        items = self._table(at.H_ID_BUCKETS, at.C_HEADS, at.C_NEXT, at.C_HASH)
        assert sorted(items) == sorted(firsts), "the table of ids differs from the order"

    def _check_records(self) -> None:
        for conjunction in range(1, self._conjunctions + 1):
            record = self._own(at.C_RECORD + 8 * conjunction)
            place = record + RECORD_WORDS
            columns: set[tuple[int, float]] = set()
            for _ in range(self._get(record + RECORD_COUNT)):
                operation = self._get(place)
                type_, attribute = operation & 0xFF, operation >> 8 & 0xFFFFFF
                extra = operation >> 32 & 0xFFFFFFFF
                self._use(self._attribute_uses, attribute)
                if type_ in (TRUE, NOT_IN, NOT_STRING):
                    self._use(self._predicate_uses, extra)
                elif type_ == NEAR:
                    self._use(self._attribute_uses, extra & 0xFFFFFF)
                elif type_ == RANGE:
                    columns.add((attribute << 1 | tiles.LOWER, self._double(place + 8)))
                    columns.add((attribute << 1 | tiles.UPPER, self._double(place + 16)))
                place += 8 + 8 * _ARGUMENTS[type_]
            self._columns[conjunction] = columns

    @staticmethod
    def _use(uses: dict[int, int], number: int) -> None:
        uses[number] = uses.get(number, 0) + 1

    # ---- clusters ----

    def _check_clusters(self) -> None:
        clusters = self._table(at.H_CLUSTER_BUCKETS, at.K_HEADS, at.K_NEXT, at.K_HASH)
        assert len(clusters) == self._get(at.H_CLUSTERS_LIVE)
        listed = self._check_lists()
        assert sorted(clusters) == sorted(listed), "the table of clusters differs from the lists"
        entries: list[int] = []
        for cluster in clusters:
            key = self._own(at.K_KEY + 8 * cluster)
            columns = self._get32(key + tiles.KEY_COUNTS)
            others = self._get32(key + tiles.KEY_COUNTS + 4)
            start = key + tiles.KEY_WORDS + 8 * others
            words = [self._get(start + 8 * column) for column in range(columns)]
            assert columns <= tiles.COLUMNS_MAX
            root = self._own(at.K_ROOT + 8 * cluster)
            height = self._get32(at.K_HEIGHT + 4 * cluster)
            self._residues = 0
            found = self._check_block(root, 0, cluster, height, words)[0]
            if columns and self._get(key + tiles.KEY_ACCESS) & 0xFF != tiles.BY_PREDICATE:
                by_residue = self._get(key + tiles.KEY_ACCESS) & 0xFF == tiles.BY_ATTRIBUTE_RESIDUE
                assert self._residues == (len(found) if by_residue else 0), "a residue is in the wrong cluster"
            assert len(found) == self._get32(at.K_COUNT + 4 * cluster) > 0
            entries += found
        assert sorted(entries) == list(range(1, self._conjunctions + 1)), "not every conjunction is filed once"

    def _check_lists(self) -> list[int]:
        heads = [(at.H_ALWAYS, tiles.BY_NOTHING)]
        for attribute in self._table(at.H_ATTRIBUTE_BUCKETS, at.A_HEADS, at.A_NEXT, at.A_HASH):
            heads.append((at.A_CLUSTERS + 4 * attribute, attribute << 8 | tiles.BY_ATTRIBUTE))
        for predicate in self._table(at.H_PREDICATE_BUCKETS, at.P_HEADS, at.P_NEXT, at.P_HASH):
            heads.append((at.P_CLUSTERS + 4 * predicate, predicate << 8 | tiles.BY_PREDICATE))
        listed = []
        for head, access in heads:
            before = 0
            cluster = self._get32(head)
            while cluster:
                key = self._get(at.K_KEY + 8 * cluster)
                stated = self._get(key + tiles.KEY_ACCESS)
                if stated & 0xFF == tiles.BY_ATTRIBUTE_RESIDUE:
                    stated += tiles.BY_ATTRIBUTE - tiles.BY_ATTRIBUTE_RESIDUE
                assert stated == access, "a cluster is in another's list"
                assert self._get32(at.K_BEFORE + 4 * cluster) == before
                listed.append(cluster)
                before = cluster
                cluster = self._get32(at.K_AFTER + 4 * cluster)
        return listed

    def _check_block(
        self, block: int, parent: int, cluster: int, height: int, words: list[int]
    ) -> tuple[list[int], list[tuple[float, float]]]:
        """Return a block's conjunctions and its least and greatest bound by column."""
        count = self._get32(block + pool.B_COUNT)
        capacity = self._get32(block + pool.B_CAPACITY)
        assert 1 <= count <= capacity, f"block {block:#x} holds {count} of {capacity}"
        assert self._get(block + pool.B_PARENT) == parent
        assert self._get(block + pool.B_CLUSTER) == cluster
        columns = len(words)
        if height == 0:
            assert self._get(block) & 7 == pool.LEAF
            assert capacity in (4, 16, 64)
            assert parent == 0 or count > 0
            conjunctions = []
            bounds = [(float("inf"), float("-inf"))] * columns
            mask = self._get(block + pool.B_RESIDUE) % (1 << 64)
            self._residues += (mask & ((1 << count) - 1)).bit_count()
            start = block + pool.B_ITEMS + 8 * capacity
            if capacity == 64:
                start += tiles.CODES_BYTES * columns
            for place in range(count):
                conjunction = self._get32(block + pool.B_ITEMS + 4 * place)
                conjunctions.append(conjunction)
                assert self._get(at.C_LEAF + 8 * conjunction) == block << 6 | place
                for column, word in enumerate(words):
                    bound = self._double(start + 8 * capacity * column + 8 * place)
                    assert (word, bound) in self._columns[conjunction]
                    bounds[column] = (min(bounds[column][0], bound), max(bounds[column][1], bound))
            if capacity == 64:
                self._check_codes(block, columns, count)
            return conjunctions, bounds
        assert self._get(block) & 7 == pool.NODE
        assert capacity in (8, 64)
        conjunctions = []
        below = []
        for place in range(count):
            child = self._own(block + pool.B_ITEMS + 8 * place)
            inner, bounds = self._check_block(child, block, cluster, height - 1, words)
            conjunctions += inner
            below.append(bounds)
            for column in range(columns):
                where = block + pool.B_ITEMS + 8 * capacity * (1 + 2 * column) + 8 * place
                stated = (self._double(where), self._double(where + 8 * capacity))
                assert stated == bounds[column], f"bounds {stated} of a child that has {bounds[column]}"
        return conjunctions, [
            (min(bounds[column][0] for bounds in below), max(bounds[column][1] for bounds in below))
            for column in range(columns)
        ]

    def _check_codes(self, leaf: int, columns: int, count: int) -> None:
        """Check that the codes of a leaf of 64 are in the order of the bounds, and are what a value would get."""
        ranges = leaf + pool.B_ITEMS + 512
        for column in range(columns):
            start, scale = self._double(ranges + 16 * column), self._double(ranges + 16 * column + 8)
            pairs = []
            for place in range(count):
                bound = self._double(ranges + tiles.CODES_BYTES * columns + 512 * column + 8 * place)
                code = self._map[ranges + 16 * columns + 64 * column + place] << 8
                code += self._map[ranges + 16 * columns + 64 * (columns + column) + place]
                assert code == int(min(max((bound - start) * scale + 1.0, 0.0), 255.0) * 256.0)
                pairs.append((bound, code))
            pairs.sort()
            assert [code for _, code in pairs] == sorted(code for _, code in pairs)

    # ---- predicates and attributes ----

    def _check_predicates(self) -> None:
        predicates = self._table(at.H_PREDICATE_BUCKETS, at.P_HEADS, at.P_NEXT, at.P_HASH)
        assert len(predicates) == self._get(at.H_PREDICATES_LIVE)
        owners: dict[int, set[int]] = {}
        strings: dict[int, set[int]] = {}
        values: dict[int, int] = {}
        affixes: dict[int, dict[int, int]] = {}
        for predicate in predicates:
            meta = self._get(at.P_META + 8 * predicate)
            type_, kind, attribute = meta & 0xFF, meta >> 8 & 0xFF, meta >> 16
            self._use(self._attribute_uses, attribute)
            filed = self._get32(at.P_CLUSTERS + 4 * predicate) != 0
            if type_ == EQUAL:
                self._use(values, attribute)
                if kind != 5:
                    assert self._get(at.P_BODY + 8 * predicate) == 0
                    continue
            body = self._own(at.P_BODY + 8 * predicate)
            if type_ == SET:
                members = [self._get32(body + 16 + 4 * i) for i in range(self._get(body + 8) // 4)]
                assert members == sorted(set(members)), "a set is not sorted"
                for member in members:
                    self._use(self._predicate_uses, member)
                    if filed:
                        owners.setdefault(member, set()).add(predicate)
            elif type_ in (PREFIX, SUFFIX):
                self._use(affixes.setdefault(attribute, {}), (type_ - PREFIX) * 64 + self._get(body + 8))
            elif type_ == STRING and filed:
                strings.setdefault(attribute, set()).add(predicate)
        for predicate in predicates:
            assert self._get32(at.P_USES + 4 * predicate) == self._predicate_uses.pop(predicate, 0) > 0
            found = set()
            link = self._get32(at.P_OWNERS + 4 * predicate)
            while link:
                found.add(self._get32(at.LINKS + 8 * link))
                link = self._get32(at.LINKS + 8 * link + 4)
            assert found == owners.get(predicate, set()), "a set's links are wrong"
        assert not self._predicate_uses, f"predicates {self._predicate_uses} are used and do not exist"
        self._values, self._strings, self._affixes = values, strings, affixes

    def _check_attributes(self) -> None:
        attributes = self._table(at.H_ATTRIBUTE_BUCKETS, at.A_HEADS, at.A_NEXT, at.A_HASH)
        assert len(attributes) == self._get(at.H_ATTRIBUTES_LIVE)
        assert self._get(at.H_FREED) == 0, "attributes without uses were not freed"
        names = {}
        for attribute in attributes:
            assert self._get32(at.A_USES + 4 * attribute) == self._attribute_uses.pop(attribute, 0) > 0
            body = self._own(at.A_NAME + 8 * attribute)
            name = self._map[body + 16 : body + 16 + self._get(body + 8)].decode()
            names[name] = attribute
            assert self._get32(at.A_VALUES + 4 * attribute) == self._values.get(attribute, 0)
            if self._get(at.A_SAMPLE + 8 * attribute):
                sample = self._own(at.A_SAMPLE + 8 * attribute)
                values = [self._double(sample + 16 + 8 * i) for i in range(self._get(sample + 8))]
                assert values == sorted(values), "a sample is not sorted"
            counts = {}
            if self._get(at.A_AFFIXES + 8 * attribute):
                block = self._own(at.A_AFFIXES + 8 * attribute)
                counts = {i: self._get32(block + 24 + 4 * i) for i in range(128)}
                for side in range(2):
                    lengths = self._get(block + 8 + 8 * side) % (1 << 64)
                    assert lengths == sum(1 << i for i in range(64) if counts[64 * side + i])
            assert {i: n for i, n in counts.items() if n} == self._affixes.get(attribute, {})
            found = set()
            predicate = self._get32(at.A_LISTED + 4 * attribute)
            while predicate:
                found.add(predicate)
                predicate = self._get32(at.P_LISTED + 4 * predicate)
            assert found == self._strings.get(attribute, set()), "an attribute's string conditions are wrong"
        assert not self._attribute_uses, f"attributes {self._attribute_uses} are used and do not exist"
        assert len(names) == len(attributes), "two attributes have one name"

    def _check_cache(self) -> None:
        words = np.frombuffer(self._map, dtype=np.int64, count=3 * CACHE_SLOTS, offset=at.CACHE)
        for slot in np.flatnonzero(words[2::3]).tolist():
            self._own(at.CACHE + 24 * slot + 16)

    def _check_pool(self) -> None:
        expected: set[int] = set()
        for class_, size in enumerate(at.POOL_SIZES):
            start = at.pool_start(class_)
            used = self._get(at.H_POOL_USED + 8 * class_)
            expected.update(start + size * block for block in range(used))
        assert expected == self._blocks.keys(), "a block of the pool has no owner, or the other way round"
