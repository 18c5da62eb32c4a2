"""Where everything in the index lies: one reserved mapping, cut into regions of fixed places.

The index's state is a small database in one private anonymous mapping (`reserve`). The mapping is huge, but only
address space: a page costs memory from its first use on, and `trim` gives pages back. So a table grows
without ever being copied (no pause, however large), a region's place is a constant in the compiled code, and
a kernel takes one argument, the mapping's address `m`. The price: nothing checks bounds, so each structure's
file states its invariants and `check.py` verifies them all.

Numbers of things (conjunctions, predicates, attributes, clusters) start at 1; 0 stands for none. A `ref` is a
place in the mapping, counted from its start. "32" tables hold unsigned 32-bit numbers, all others 64-bit
words or doubles.
"""

from __future__ import annotations

import mmap

REGION_BITS = 33  # 8 GB of address space each
STAGGER = 4096 + 64
"""Each region starts so much later in its 8 GB than the one before it, so that the first items of all tables do not
meet in the same lines of the processor's caches. A multiple of 16, as refs leave their four lowest bits to others."""
REGION_STEP = (1 << REGION_BITS) + STAGGER

_names = iter(range(256))


def _region() -> int:
    return next(_names) * REGION_STEP


HEADER = _region()  # single words, below

# A conjunction: one way for a subscription to match. Numbers are dense: the last one moves into a hole.
C_POSITION = _region()  # 32: the subscription's place in the order
C_SIBLING = _region()  # 32: the next conjunction of the same subscription
C_LEAF = _region()  # ref of the leaf that holds it << 6 | place in it
C_RECORD = _region()  # ref of its packed constraints
C_HASH = _region()  # 32: hash of the subscription's id (a first conjunction only)
C_NEXT = _region()  # 32: chain of the table of ids (a first conjunction only)
C_HEADS = _region()  # 32: buckets of the table of ids

# The order: positions sorted by (client, subscription), in leaves of 256. See order.py.
O_SUBSCRIPTION = _region()  # id, by position
O_CLIENT = _region()  # client, by position
O_FIRST = _region()  # 32: the subscription's first conjunction, by position
O_COUNT = _region()  # 32: positions used, by leaf
O_RANK = _region()  # 32: where the leaf stands in the order, by leaf
O_LEAVES = _region()  # 32: leaf, by rank
O_BITS = _region()  # by slot, one bit a position: hit by the publication in the slot; zero between calls
O_TOUCHED = _region()  # by slot, one byte a rank: the leaf has a bit set; zero between calls
O_MARKS = _region()  # by position, 16 bits, one a slot: hit by these publications; zero between calls

# A predicate: an equality, a set of values, or a string condition, shared by all conjunctions that hold it.
P_META = _region()  # type | kind << 8 | attribute << 16
P_KEY = _region()  # the value's bits or the hash of its bytes
P_BODY = _region()  # ref of the bytes; 0 for numbers and bools
P_USES = _region()  # 32: records and sets that name it
P_CLUSTERS = _region()  # 32: first cluster filed under it
P_OWNERS = _region()  # 32: first link to the filed sets that hold this equality
P_LISTED = _region()  # 32: for a filed string condition: the next one of its attribute
P_SEEN = _region()  # double: weight of the publications that made it true
P_HASH = _region()  # 32
P_NEXT = _region()  # 32: chain; of a free number: the next free one
P_HEADS = _region()  # 32

# An attribute that some subscription names.
A_NAME = _region()  # ref of the name's bytes
A_KEY = _region()  # hash of the name
A_USES = _region()  # 32: atoms and predicates that name it
A_CLUSTERS = _region()  # 32: first cluster filed under its presence
A_VALUES = _region()  # 32: equalities on it
A_LISTED = _region()  # 32: first filed string condition on it
A_VERSION = _region()  # counts changes of that list
A_SAMPLE = _region()  # ref of its sample of values; 0 until it is worth one
A_AFFIXES = _region()  # ref of the counts of its PREFIXes and SUFFIXes by length; 0 without any
A_SEEN = _region()  # double: weight of the publications that had it
A_KIND = _region()  # kind in the publication at hand
A_BITS = _region()  # value in the publication at hand
A_NUMBER = _region()  # double: nearest double of a number, else NaN
A_TOKEN = _region()  # 32: the equality predicate that the value makes true, or 0
A_GROUP = _region()  # the last group of publications that had a number here
A_ROW = _region()  # doubles: the numbers of that group's publications by slot, NaN for none
A_HASH = _region()  # 32
A_NEXT = _region()  # 32: chain; of a free number: the next free one
A_HEADS = _region()  # 32

# A cluster: conjunctions filed under the same key, in a tree of blocks. See tiles.py.
K_KEY = _region()  # ref of the key
K_ROOT = _region()  # ref of the root block
K_COUNT = _region()  # 32: entries
K_HEIGHT = _region()  # 32: 0 when the root is a leaf
K_AFTER = _region()  # 32: next cluster filed under the same thing
K_BEFORE = _region()  # 32
K_HASH = _region()  # 32
K_NEXT = _region()  # 32: chain; of a free number: the next free one
K_HEADS = _region()  # 32

LIVE = _region()  # stamp of the last publication that had attribute a (2a) or made predicate p true (2p + 1)
LINKS = _region()  # pairs of 32: filed set, next link
COUNTERS = _region()  # 32: conjunctions by hash of their full signature; a guess where two collide
CACHE = _region()  # (hash, attribute | version << 24, ref) of cached string values
SCRATCH = _region()  # temporary values of one call

POOL = _region()  # first of the pools of blocks, by size. See pool.py

# Words of the header.
(
    H_CONJUNCTIONS,
    H_SUBSCRIPTIONS,
    H_ID_BUCKETS,
    H_LEAVES,
    H_PREDICATES,  # highest number in use
    H_PREDICATES_FREE,  # first free number below it
    H_PREDICATES_LIVE,
    H_PREDICATE_BUCKETS,
    H_ATTRIBUTES,
    H_ATTRIBUTES_FREE,
    H_ATTRIBUTES_LIVE,
    H_ATTRIBUTE_BUCKETS,
    H_CLUSTERS,
    H_CLUSTERS_FREE,
    H_CLUSTERS_LIVE,
    H_CLUSTER_BUCKETS,
    H_ALWAYS,  # first cluster to visit for every publication
    H_LINKS,
    H_LINKS_FREE,
    H_STAMP,
    H_WEIGHT,  # double: what one publication counts now; grows, so that old ones fade
    H_TOTAL,  # double: weight of all publications
    H_PUBLICATIONS,
    H_RANDOM,
    H_EVENTS,  # bits set by the publication at hand, doubles counted
    H_CHECKED,  # conjunctions verified
    H_WASTED,  # of these, the ones that did not hold
    H_WORK,  # units of maintenance done, ever: words moved, blocks split, conjunctions looked at
    H_SWEEP,  # next conjunction of the sweep that refiles; 0 when none is under way
    H_SWEEP_CONJUNCTIONS,  # conjunctions when the last sweep began
    H_SWEEP_PUBLICATIONS,  # publications when the last sweep began
    H_SWEEP_CHECKED,  # H_CHECKED when the last sweep ended
    H_SWEEP_ENDED,  # publications when the last sweep ended
    H_SWEEP_RATE,  # double: verified per publication before the last sweep
    H_REFILED,  # conjunctions moved by sweeps
    H_FREED,  # attributes that the call at hand may leave without uses; their numbers are in S_FREED
    H_CACHE_BYTES,
    H_CACHE_HAND,
    H_GROUP,  # number of the group of publications at hand
    H_ROWS,  # attributes with a row in this group; their numbers are in S_ROWS
    H_GROUPING,  # groups of SLOTS publications pay; else each is a group of its own
) = (HEADER + 8 * index for index in range(41))
H_POOL_USED = HEADER + 1024  # blocks used, by size class
H_POOL_BYTES = HEADER + 2048  # bytes a block, by size class

SLOTS = 16  # publications searched together
BITS_STEP = (1 << 28) + STAGGER  # from a slot's bits to the next one's
TOUCHED_STEP = (1 << 24) + STAGGER

# Places in SCRATCH.
S_RECORD = SCRATCH + (1 << 25)  # the record being built
S_KEY = SCRATCH + (2 << 25)  # the cluster key being built
S_VALUES = SCRATCH + (3 << 25)  # doubles: bounds of the entry being filed, or the publication's values by column
S_STACK = SCRATCH + (4 << 25)  # nodes still to visit
S_ACTIVE = SCRATCH + (5 << 25)  # 32: predicates true and filed under
S_PRESENT = SCRATCH + (6 << 25)  # 32: attributes present
S_FREED = SCRATCH + (7 << 25)  # 32: attributes that may be without uses
S_SORT = SCRATCH + (8 << 25)  # (double, place) pairs being sorted
S_MOVED = SCRATCH + (9 << 25)  # entries on their way from a thin leaf
S_TRUE = SCRATCH + (10 << 25)  # 32: string conditions that a value makes true
S_SET = SCRATCH + (11 << 25)  # 32: members of a set being built
S_PLAN = SCRATCH + (12 << 25)  # choices for the conjunction being filed, see filing.py

S_ROWS = SCRATCH + (13 << 25)  # 32: attributes that have a row in the group
S_HITS = SCRATCH + (14 << 25)  # hits by slot, doubles counted
S_READ_ALL = S_HITS + 4096  # by slot: so many hits that all bits are to be read
S_LOOKED = S_HITS + 8192  # leaves looked at, those of each publication counted
S_NEXT_ROW = S_HITS + 12288  # by slot: the row of the next hit to read
S_END_ROW = S_HITS + 16384  # by slot: the row after its last
S_GROUP = SCRATCH + (15 << 25)  # for the search of a group, see groups.py
S_INPUT = SCRATCH + (16 << 25)  # a packed normal form
ENCODED_BYTES = 1 << 24  # the largest encoded normal form; packed it takes up to 16 times as much

# Block sizes: steps of 16 bytes, then of about a fifth, to 80 kB (a set of 256 values, a text filter, a node
# of 16 columns).
_sizes = list(range(16, 272, 16))
while _sizes[-1] < 80_000:
    _sizes.append((_sizes[-1] * 6 // 5 + 15) // 16 * 16)
POOL_SIZES: tuple[int, ...] = tuple(_sizes)
MAPPING_BYTES = POOL + (len(POOL_SIZES) + 1 << REGION_BITS)


def pool_start(size_class: int) -> int:
    """Return where a size class's blocks start."""
    return POOL + size_class * REGION_STEP


_MAP_NORESERVE = 0x4000 if not hasattr(mmap, "MAP_NORESERVE") else mmap.MAP_NORESERVE


def reserve() -> mmap.mmap:
    """Return a fresh mapping, all zeros, of which nothing is in memory yet.

    Raises OSError where the system limits address space (`ulimit -v`, vm.overcommit_memory=2): the index needs
    about 1 TB of it, though no memory.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return mmap.mmap(-1, MAPPING_BYTES, flags=flags)
