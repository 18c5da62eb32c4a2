"""Which cluster a conjunction belongs in, by estimated cost; learned from the publications seen.

The choices:

    FULL    the key holds everything that a key can hold: all predicates and all ranges (as columns). Visiting a cluster
            costs the same for few entries as for many, so this wants siblings.
    ONE     the key is one predicate, or one range, the most selective; the rest is verified from the record.
    REST    there is neither: the presence of an attribute leads to it, or nothing does.

Costs are in nanoseconds a publication, measured on one core: a visit of a cluster about 40, an entry compared
in a block about 0.5, a conjunction verified about 15. They need only be right within a factor of two.

A predicate's selectivity is the share of the weighted publications that made it true, a range's the share of
a sorted sample of its attribute's values. Before publications have come, bounds of other filters stand for
values, and the number of an attribute's known values for their frequency. As both are guesses, and as
siblings come later, a sweep looks at every conjunction again when publications or conjunctions have
multiplied, or when verifying has become much more frequent; a few conjunctions at a time, beside the work at
hand (`sweep`).
"""

from __future__ import annotations

from cluster.matching import tiles
from cluster.matching.compiled import compiled
from cluster.matching.inputs import EQUAL, SET, STRING
from cluster.matching.layout import (
    A_SAMPLE,
    A_SEEN,
    A_USES,
    A_VALUES,
    C_LEAF,
    C_RECORD,
    COUNTERS,
    H_CHECKED,
    H_CONJUNCTIONS,
    H_PUBLICATIONS,
    H_RANDOM,
    H_REFILED,
    H_SWEEP,
    H_SWEEP_CHECKED,
    H_SWEEP_CONJUNCTIONS,
    H_SWEEP_ENDED,
    H_SWEEP_PUBLICATIONS,
    H_SWEEP_RATE,
    H_TOTAL,
    H_WORK,
    K_KEY,
    P_BODY,
    P_META,
    P_SEEN,
    S_KEY,
    S_PLAN,
    S_VALUES,
)
from cluster.matching.machine import (
    fold_multiply,
    load32,
    load64,
    load_double,
    shift_right,
    store32,
    store64,
    store_double,
)
from cluster.matching.pool import B_CLUSTER, PLAIN, acquire
from cluster.matching.records import (
    ABSENT_BIT,
    KINDS,
    RANGE,
    RECORD_COUNT,
    RECORD_WORDS,
    TRUE,
    arguments_of,
)
from cluster.matching.tiles import (
    BY_ATTRIBUTE,
    BY_ATTRIBUTE_RESIDUE,
    BY_NOTHING,
    BY_PREDICATE,
    KEY_ACCESS,
    KEY_COUNTS,
    KEY_WORDS,
    LOWER,
    UPPER,
)

_VISIT_NS = 40.0
_COMPARE_NS = 0.15
_VERIFY_NS = 40.0
_SIBLINGS_MIN = 24
_MOVE_BELOW = 0.6  # a sweep moves a conjunction when the new cost is below this share of the old one
_PRIOR = 16.0  # weight of the guesses, in publications
_COUNTERS = 1 << 18
_PLANNED_MAX = 8  # predicates and ranges of a conjunction that are considered
_INFINITY = float("inf")

# A sample: word 1 the number of values, then up to 64 doubles, ascending.
SAMPLE = 64
_SAMPLE_VALUES = 16
_SAMPLE_FROM_USES = 16

# The plan of the conjunction at hand, in S_PLAN.
_N_PREDICATES, _N_RANGES, _N_OTHERS, _OTHER_ATTRIBUTE, _SIGNATURE = 0, 8, 16, 24, 32
_BEST, _BEST_INDEX, _BEST_COST = 40, 48, 56
_PREDICATES = 64  # pairs: predicate, share
_RANGES = _PREDICATES + 16 * _PLANNED_MAX  # fours: attribute, low, high, share
_BYTES_RANGE = 32

FULL, ONE_PREDICATE, ONE_RANGE, REST = 0, 1, 2, 3


@compiled
def attribute_share(m: int, attribute: int) -> float:
    """Return the estimated share of publications that have an attribute."""
    total = load_double(m + H_TOTAL)
    return (load_double(m + A_SEEN + 8 * attribute) + 0.5 * _PRIOR) / (total + _PRIOR)


@compiled
def predicate_share(m: int, predicate: int) -> float:
    """Return the estimated share of publications that make a predicate true."""
    meta = load64(m + P_META + 8 * predicate)
    total = load_double(m + H_TOTAL)
    if meta & 0xFF == EQUAL:
        prior = 1.0 / (load32(m + A_VALUES + 4 * (meta >> 16)) + 8)
        return (load_double(m + P_SEEN + 8 * predicate) + prior * _PRIOR) / (total + _PRIOR)
    if meta & 0xFF == SET:
        body = m + load64(m + P_BODY + 8 * predicate)
        members = load64(body + 8) // 4
        looked = min(members, 16)
        share = 0.0
        for index in range(looked):
            member = load32(body + 16 + 4 * index)
            prior = 1.0 / (load32(m + A_VALUES + 4 * (meta >> 16)) + 8)
            share += (load_double(m + P_SEEN + 8 * member) + prior * _PRIOR) / (total + _PRIOR)
        return min(1.0, share * members / looked)
    if meta & 0xFF == STRING:
        return 0.05
    return (load_double(m + P_SEEN + 8 * predicate) + 0.01 * _PRIOR) / (total + _PRIOR)


@compiled
def add_to_sample(m: int, attribute: int, value: float) -> None:
    """Put a value into an attribute's sample, in place of a random one when it is full."""
    sample = load64(m + A_SAMPLE + 8 * attribute)
    count = load64(m + sample + 8)
    start = m + sample + _SAMPLE_VALUES
    place = count
    if count == SAMPLE:
        seed = fold_multiply(load64(m + H_RANDOM) + 0x1E3779B97F4A7C15, 0x2D358DCCAA6C78A5)
        store64(m + H_RANDOM, seed)
        place = shift_right(seed, 58)
        while place < SAMPLE - 1 and load_double(start + 8 * place + 8) < value:
            store_double(start + 8 * place, load_double(start + 8 * place + 8))
            place += 1
    else:
        store64(m + sample + 8, count + 1)
    while place and load_double(start + 8 * place - 8) > value:
        store_double(start + 8 * place, load_double(start + 8 * place - 8))
        place -= 1
    store_double(start + 8 * place, value)


@compiled
def _rank(m: int, sample: int, value: float) -> float:
    """Return the share of a sample below a value, interpolated."""
    count = load64(m + sample + 8)
    start = m + sample + _SAMPLE_VALUES
    low = 0
    high = count
    while low < high:
        middle = (low + high) // 2
        if load_double(start + 8 * middle) < value:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return 0.0
    if low == count:
        return 1.0
    before = load_double(start + 8 * low - 8)
    after = load_double(start + 8 * low)
    inside = (0.5 * value - 0.5 * before) / (0.5 * after - 0.5 * before)
    return (low - 0.5 + inside) / count


@compiled
def range_share(m: int, attribute: int, low: float, high: float) -> float:
    """Return the estimated share of an attribute's values in a range."""
    sample = load64(m + A_SAMPLE + 8 * attribute)
    if sample == 0 or load64(m + sample + 8) < 16:
        return 0.1 if low > -_INFINITY and high < _INFINITY else 0.5
    share = _rank(m, sample, high) - _rank(m, sample, low)
    return min(1.0, max(share, 1e-4))


@compiled
def _sample_bounds(m: int, attribute: int, low: float, high: float) -> None:
    """Let a filter's bounds stand for values as long as there are few publications."""
    sample = load64(m + A_SAMPLE + 8 * attribute)
    if sample == 0:
        if load32(m + A_USES + 4 * attribute) < _SAMPLE_FROM_USES:
            return
        sample = acquire(m, _SAMPLE_VALUES + 8 * SAMPLE, A_SAMPLE + 8 * attribute, PLAIN)
        store64(m + sample + 8, 0)
    if load64(m + sample + 8) == SAMPLE and load64(m + H_PUBLICATIONS) > SAMPLE:
        return
    if low > -_INFINITY:
        add_to_sample(m, attribute, low)
    if high < _INFINITY:
        add_to_sample(m, attribute, high)


@compiled
def _plan(m: int, record: int) -> None:
    """Take a record apart into the plan and compute its signature."""
    plan = m + S_PLAN
    predicates = 0
    ranges = 0
    others = 0
    other_attribute = 0
    signature = 0
    at = m + record + RECORD_WORDS
    for _ in range(load64(m + record + RECORD_COUNT)):
        operation = load64(at)
        type_ = operation & 0xFF
        attribute = (operation >> 8) & 0xFFFFFF
        extra = (operation >> 32) & 0xFFFFFFFF
        if type_ == TRUE and predicates < _PLANNED_MAX:
            store64(plan + _PREDICATES + 16 * predicates, extra)
            store_double(plan + _PREDICATES + 16 * predicates + 8, predicate_share(m, extra))
            predicates += 1
            signature = fold_multiply(signature ^ (extra * 4 + 3), 0x4BE98134A5976FD3)
        elif type_ == RANGE and ranges < _PLANNED_MAX:
            low = load_double(at + 8)
            high = load_double(at + 16)
            place = plan + _RANGES + _BYTES_RANGE * ranges
            store64(place, attribute)
            store_double(place + 8, low)
            store_double(place + 16, high)
            store_double(place + 24, range_share(m, attribute, low, high))
            ranges += 1
            sides = (1 if low > -_INFINITY else 0) + (2 if high < _INFINITY else 0)
            signature = fold_multiply(signature ^ (attribute * 4 + sides) ^ (1 << 40), 0x4BE98134A5976FD3)
        else:
            others += 1
            if not (type_ == KINDS and extra & ABSENT_BIT):
                other_attribute = attribute
        at += 8 + 8 * arguments_of(type_)
    store64(plan + _N_PREDICATES, predicates)
    store64(plan + _N_RANGES, ranges)
    store64(plan + _N_OTHERS, others)
    store64(plan + _OTHER_ATTRIBUTE, other_attribute)
    store64(plan + _SIGNATURE, signature)


@compiled
def _counter(m: int) -> int:
    """Return the address of the counter of the planned conjunction's signature."""
    return m + COUNTERS + 4 * (load64(m + S_PLAN + _SIGNATURE) & (_COUNTERS - 1))


@compiled
def _best_predicate(m: int) -> int:
    """Return the place in the plan of the most selective predicate; a later one must be clearly better."""
    best = 0
    for index in range(1, load64(m + S_PLAN + _N_PREDICATES)):
        share = load_double(m + S_PLAN + _PREDICATES + 16 * index + 8)
        if share < 0.8 * load_double(m + S_PLAN + _PREDICATES + 16 * best + 8):
            best = index
    return best


@compiled
def _full_cost(m: int) -> float:
    """Return the cost of FULL with as many siblings as are counted."""
    plan = m + S_PLAN
    predicates = load64(plan + _N_PREDICATES)
    ranges = load64(plan + _N_RANGES)
    siblings = max(1, load32(_counter(m)))
    visited = 1.0
    if predicates:
        visited = load_double(plan + _PREDICATES + 16 * _best_predicate(m) + 8)
    elif ranges:
        visited = attribute_share(m, load64(plan + _RANGES))
    two_sided = 0
    for index in range(ranges):
        place = plan + _RANGES + _BYTES_RANGE * index
        if load_double(place + 8) > -_INFINITY and load_double(place + 16) < _INFINITY:
            two_sided += 1
    touched = 1.0
    side = 1.0
    if two_sided and siblings > 64:
        side = (48.0 / siblings) ** (1.0 / two_sided)
    for index in range(ranges):
        place = plan + _RANGES + _BYTES_RANGE * index
        share = load_double(place + 24)
        if load_double(place + 8) > -_INFINITY and load_double(place + 16) < _INFINITY:
            touched *= min(1.0, side + share)
    held = 1.0
    if load64(plan + _N_OTHERS):
        for index in range(ranges):
            held *= load_double(plan + _RANGES + _BYTES_RANGE * index + 24)
    else:
        held = 0.0
    return visited * (_VISIT_NS / siblings + _COMPARE_NS * (ranges + 0.5) * touched + _VERIFY_NS * held)


@compiled
def _one_predicate_cost(m: int, index: int) -> float:
    return _VERIFY_NS * load_double(m + S_PLAN + _PREDICATES + 16 * index + 8)


@compiled
def _one_range_cost(m: int, index: int) -> float:
    place = m + S_PLAN + _RANGES + _BYTES_RANGE * index
    attribute = load64(place)
    share = load_double(place + 24)
    touched = min(1.0, share + 64.0 / (load32(m + A_USES + 4 * attribute) + 1))
    return attribute_share(m, attribute) * (_VERIFY_NS * share + _COMPARE_NS * touched)


@compiled
def _choose(m: int) -> None:
    """Write the best choice for the planned conjunction into the plan."""
    plan = m + S_PLAN
    predicates = load64(plan + _N_PREDICATES)
    ranges = load64(plan + _N_RANGES)
    best = REST
    best_index = 0
    best_cost = _INFINITY
    if predicates:
        best = ONE_PREDICATE
        best_index = _best_predicate(m)
        best_cost = _one_predicate_cost(m, best_index)
    for index in range(ranges):
        cost = _one_range_cost(m, index)
        if cost < best_cost:
            best = ONE_RANGE
            best_index = index
            best_cost = cost
    if predicates + ranges:
        alone = predicates + ranges + load64(plan + _N_OTHERS) == 1
        if alone or load32(_counter(m)) >= _SIBLINGS_MIN:
            cost = _full_cost(m)
            if alone or cost < best_cost:
                best = FULL
                best_cost = cost
    store64(plan + _BEST, best)
    store64(plan + _BEST_INDEX, best_index)
    store_double(plan + _BEST_COST, best_cost)


@compiled
def _put_range(m: int, index: int, columns: int) -> int:
    """Append a planned range's columns to the key and its bounds to S_VALUES; returns the number of columns."""
    key = m + S_KEY
    start = key + KEY_WORDS + 8 * load32(key + KEY_COUNTS + 4)
    place = m + S_PLAN + _RANGES + _BYTES_RANGE * index
    attribute = load64(place)
    if load_double(place + 8) > -_INFINITY:
        store64(start + 8 * columns, attribute << 1 | LOWER)
        store_double(m + S_VALUES + 8 * columns, load_double(place + 8))
        columns += 1
    if load_double(place + 16) < _INFINITY:
        store64(start + 8 * columns, attribute << 1 | UPPER)
        store_double(m + S_VALUES + 8 * columns, load_double(place + 16))
        columns += 1
    return columns


@compiled
def _make_key(m: int) -> int:
    """Write the chosen cluster's key to S_KEY and the entry's bounds to S_VALUES.

    Returns the entry's guard << 1 | residue. The guard is a place in LIVE that the publication must have
    marked: the next best equality, or the presence of an attribute; 0 is always marked.
    """
    plan = m + S_PLAN
    key = m + S_KEY
    predicates = load64(plan + _N_PREDICATES)
    ranges = load64(plan + _N_RANGES)
    others = load64(plan + _N_OTHERS)
    other_attribute = load64(plan + _OTHER_ATTRIBUTE)
    best = load64(plan + _BEST)
    chosen = load64(plan + _BEST_INDEX)
    columns = 0
    store64(key + KEY_COUNTS, 0)
    if best == FULL:
        access_predicate = 0
        if predicates:
            access = _best_predicate(m)
            access_predicate = load64(plan + _PREDICATES + 16 * access)
            store64(key + KEY_ACCESS, access_predicate << 8 | BY_PREDICATE)
            count = 0
            for index in range(predicates):
                if index != access:
                    store64(key + KEY_WORDS + 8 * count, load64(plan + _PREDICATES + 16 * index))
                    count += 1
            store32(key + KEY_COUNTS + 4, count)
        else:
            store64(key + KEY_ACCESS, load64(plan + _RANGES) << 8 | (BY_ATTRIBUTE_RESIDUE if others else BY_ATTRIBUTE))
        for index in range(ranges):
            columns = _put_range(m, index, columns)
        store32(key + KEY_COUNTS, columns)
        return (2 * other_attribute) << 1 | (1 if others else 0)
    guard = 2 * other_attribute
    if ranges and not (best == ONE_RANGE and ranges == 1):
        other = 1 if best == ONE_RANGE and chosen == 0 else 0
        guard = 2 * load64(plan + _RANGES + _BYTES_RANGE * other)
    guard_share = 2.0
    for index in range(predicates):
        predicate = load64(plan + _PREDICATES + 16 * index)
        share = load_double(plan + _PREDICATES + 16 * index + 8)
        if (
            not (best == ONE_PREDICATE and index == chosen)
            and load64(m + P_META + 8 * predicate) & 0xFF not in (SET, STRING)
            and share < guard_share
        ):
            guard = 2 * predicate + 1
            guard_share = share
    if best == ONE_PREDICATE:
        store64(key + KEY_ACCESS, load64(plan + _PREDICATES + 16 * chosen) << 8 | BY_PREDICATE)
    elif best == ONE_RANGE:
        attribute = load64(plan + _RANGES + _BYTES_RANGE * chosen)
        residue = others > 0 or predicates + ranges > 1
        store64(key + KEY_ACCESS, attribute << 8 | (BY_ATTRIBUTE_RESIDUE if residue else BY_ATTRIBUTE))
        columns = _put_range(m, chosen, 0)
        store32(key + KEY_COUNTS, columns)
    elif other_attribute:
        store64(key + KEY_ACCESS, other_attribute << 8 | BY_ATTRIBUTE)
    else:
        store64(key + KEY_ACCESS, BY_NOTHING)
    return guard << 1 | (1 if others or predicates + ranges > 1 else 0)


@compiled
def file(m: int, conjunction: int) -> None:
    """Put a new conjunction, which has its record, into a cluster."""
    record = load64(m + C_RECORD + 8 * conjunction)
    _plan(m, record)
    for index in range(load64(m + S_PLAN + _N_RANGES)):
        place = m + S_PLAN + _RANGES + _BYTES_RANGE * index
        _sample_bounds(m, load64(place), load_double(place + 8), load_double(place + 16))
    at = _counter(m)
    store32(at, load32(at) + 1)
    _choose(m)
    _enter(m, conjunction)


@compiled
def _enter(m: int, conjunction: int) -> None:
    word = _make_key(m)
    cluster = tiles.find_cluster(m, True)
    tiles.insert(m, cluster, conjunction, word >> 1, word & 1 != 0)


@compiled
def unfile(m: int, conjunction: int) -> None:
    """Take a conjunction out of its cluster and of the count of its siblings."""
    _plan(m, load64(m + C_RECORD + 8 * conjunction))
    at = _counter(m)
    store32(at, load32(at) - 1)
    tiles.remove(m, conjunction)


@compiled
def _present_cost(m: int, cluster: int) -> float:
    """Return the planned conjunction's cost in the cluster where it is."""
    plan = m + S_PLAN
    key = load64(m + K_KEY + 8 * cluster)
    columns = tiles.key_columns(m, key)
    access = load64(m + key + KEY_ACCESS)
    predicates = load64(plan + _N_PREDICATES)
    ranges = load64(plan + _N_RANGES)
    if access & 0xFF == BY_PREDICATE:
        if tiles.key_others(m, key) + 1 < predicates or (ranges and not columns):
            for index in range(predicates):
                if load64(plan + _PREDICATES + 16 * index) == access >> 8:
                    return _one_predicate_cost(m, index)
        return _full_cost(m)
    if columns:
        if predicates == 0 and ranges == 1:
            return _full_cost(m)
        first = load64(tiles.columns_at(m, key)) >> 1
        last = load64(tiles.columns_at(m, key) + 8 * (columns - 1)) >> 1
        if first == last and predicates + ranges > 1:
            for index in range(ranges):
                if load64(plan + _RANGES + _BYTES_RANGE * index) == first:
                    return _one_range_cost(m, index)
        return _full_cost(m)
    return _INFINITY if predicates + ranges else 0.0


@compiled
def _refile(m: int, conjunction: int) -> None:
    """Move a conjunction to a clearly better cluster, if there is one."""
    _plan(m, load64(m + C_RECORD + 8 * conjunction))
    if load64(m + S_PLAN + _N_PREDICATES) + load64(m + S_PLAN + _N_RANGES) < 1:
        return
    _choose(m)
    leaf = load64(m + C_LEAF + 8 * conjunction) >> 6
    cluster = load64(m + leaf + B_CLUSTER)
    cost = load_double(m + S_PLAN + _BEST_COST)
    if cost >= _MOVE_BELOW * _present_cost(m, cluster):
        return
    _make_key(m)
    if tiles.find_cluster(m, False) == cluster:
        return
    tiles.remove(m, conjunction)
    _enter(m, conjunction)
    store64(m + H_REFILED, load64(m + H_REFILED) + 1)


@compiled
def _sweep_is_due(m: int) -> bool:
    publications = load64(m + H_PUBLICATIONS)
    conjunctions = load64(m + H_CONJUNCTIONS)
    if conjunctions == 0:
        return False
    if publications >= 4 * load64(m + H_SWEEP_PUBLICATIONS) + 64:
        return True
    if conjunctions >= 2 * load64(m + H_SWEEP_CONJUNCTIONS) + 512:
        return True
    since = publications - load64(m + H_SWEEP_ENDED)
    if since < 1024:
        return False
    rate = (load64(m + H_CHECKED) - load64(m + H_SWEEP_CHECKED)) / since
    if rate > 2.0 * load_double(m + H_SWEEP_RATE) + 32.0:
        store_double(m + H_SWEEP_RATE, rate)
        return True
    return False


@compiled
def sweep(m: int, steps: int) -> bool:
    """Look at up to `steps` conjunctions again, when a sweep is under way or due.

    Tells whether one is still under way.
    """
    at = load64(m + H_SWEEP)
    if at == 0:
        if not _sweep_is_due(m):
            return False
        at = 1
        store64(m + H_SWEEP_CONJUNCTIONS, load64(m + H_CONJUNCTIONS))
        store64(m + H_SWEEP_PUBLICATIONS, load64(m + H_PUBLICATIONS))
    last = load64(m + H_CONJUNCTIONS)
    for _ in range(steps):
        if at > last:
            break
        _refile(m, at)
        at += 1
    store64(m + H_WORK, load64(m + H_WORK) + steps)
    if at > last:
        store64(m + H_SWEEP, 0)
        store64(m + H_SWEEP_ENDED, load64(m + H_PUBLICATIONS))
        store64(m + H_SWEEP_CHECKED, load64(m + H_CHECKED))
        return False
    store64(m + H_SWEEP, at)
    return True
