"""Least squares with a prior, for coefficients that cannot be negative; it learns a row at a time and forgets slowly.

Coefficients are worked with as multiples of their prior values, so that microseconds and picoseconds weigh the same:
phi = theta / theta_prior, and the prior says phi = 1 +- its spread. Rows are weighted by the noise that they are told.
What no row has touched therefore stays at its prior, and what rows leave open (two coefficients of which only the sum
was ever seen) is shared out in proportion to what the prior thinks that each contributes.

Rows are gathered in cells, one for each combination of sizes that was seen. Within a cell the weight of the past is
bounded (RECENT rows), so that a machine that became slower is believed after minutes. Between cells a row's weight
halves every HALF_LIFE rows seen anywhere: what was learned at six matchers yesterday still counts today, though the
cluster has spent all of today at two. Plain exponential forgetting over all rows would have lost it.

No coefficient goes below its floor, a share of its prior. The minimum under that is exact: with at most five
coefficients every set of those that stand at their floors can be tried; that of the last time comes first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

RECENT = 200.0
"""Rows of one cell that count in full: at one each two seconds, the last seven minutes or so."""

HALF_LIFE = 40_000.0
"""Rows anywhere after which what other cells hold counts half: about a day at one each two seconds."""

STALE = 20
"""Rows of one cell after which the coefficients are reckoned anew, at most; while few were seen, after each."""

MAX_CELLS = 64
"""Cells kept; the one that weighs least makes room."""

SLACK = 1e-9

Vector = list[float]
Matrix = list[list[float]]


@dataclass
class Cell:
    """The rows of one size, summed. rows: how many count. touched: the count of all rows when the last one came."""

    products: Matrix
    targets: Vector
    rows: float = 0.0
    touched: int = 0


@dataclass
class LeastSquares:
    """One layer's coefficients. prior: their expected values, each above 0. spread: standard deviation / prior.
    floor: the least that a coefficient can be, in multiples of its prior; 0 for each if not given.
    """

    prior: Sequence[float]
    spread: Sequence[float]
    floor: Sequence[float] = ()
    cells: dict[Hashable, Cell] = field(default_factory=dict)
    seen: int = 0
    _solved: Vector | None = None
    _inverted: Matrix | None = None
    _kept: tuple[int, ...] = ()
    _since: int = 0

    def __post_init__(self) -> None:
        assert all(value > 0 for value in self.prior), "coefficients are worked with as multiples of their priors"
        self.floor = self.floor or [0.0] * len(self.prior)
        assert len(self.floor) == len(self.prior), "each coefficient has its floor"
        assert len(self.spread) == len(self.prior), "each coefficient has its spread"

    def add(self, cell: Hashable, row: Sequence[float], target: float, noise: float) -> None:
        """Learn that row . theta was `target`, give or take `noise` (same unit as target, above 0)."""
        size = len(self.prior)
        assert len(row) == size, "a row has one entry a coefficient"
        self.seen += 1
        held = self.cells.get(cell)
        if held is None:
            if len(self.cells) >= MAX_CELLS:
                lightest = min(self.cells, key=lambda key: self._weight(self.cells[key]) * self.cells[key].rows)
                del self.cells[lightest]
            held = self.cells[cell] = Cell([[0.0] * size for _ in range(size)], [0.0] * size)
        keep = self._weight(held) if held.touched else 1.0
        if held.rows * keep + 1 > RECENT:
            keep *= (RECENT - 1) / (held.rows * keep)
        scaled = [entry * value / noise for entry, value in zip(row, self.prior, strict=True)]
        aim = target / noise
        for i in range(size):
            line = held.products[i]
            for j in range(size):
                line[j] = line[j] * keep + scaled[i] * scaled[j]
            held.targets[i] = held.targets[i] * keep + scaled[i] * aim
        held.rows = held.rows * keep + 1
        held.touched = self.seen
        self._since += 1
        if self._since >= min(STALE, held.rows / 5):
            self._solved = self._inverted = None

    def _weight(self, cell: Cell) -> float:
        return math.pow(0.5, (self.seen - cell.touched) / HALF_LIFE)

    def solve(self) -> Vector:
        """Return the coefficients, each at least its floor; the caller leaves the list as it is."""
        if self._solved is None:
            products, targets = self._sums()
            # As multiples above the floors none is below 0.
            lifts = (sum(a * b for a, b in zip(line, self.floor, strict=True)) for line in products)
            above, self._kept = _minimum(
                products, [t - lift for t, lift in zip(targets, lifts, strict=True)], self._kept
            )
            self._solved = [
                (least + more) * value for least, more, value in zip(self.floor, above, self.prior, strict=True)
            ]
            self._since = 0
        return self._solved

    def deviation(self, row: Sequence[float]) -> float:
        """Return the standard deviation of row . theta, as far as noise and prior explain it."""
        if self._inverted is None:
            self._inverted = _inverse(self._sums()[0])
        inverse = self._inverted
        scaled = [entry * value for entry, value in zip(row, self.prior, strict=True)]
        size = range(len(scaled))
        return math.sqrt(max(0.0, sum(scaled[i] * inverse[i][j] * scaled[j] for i in size for j in size)))

    def _sums(self) -> tuple[Matrix, Vector]:
        size = len(self.prior)
        targets = [1.0 / spread**2 for spread in self.spread]
        products = [[targets[i] if i == j else 0.0 for j in range(size)] for i in range(size)]
        for cell in self.cells.values():
            weight = self._weight(cell)
            for i in range(size):
                targets[i] += weight * cell.targets[i]
                for j in range(size):
                    products[i][j] += weight * cell.products[i][j]
        return products, targets


def _minimum(products: Matrix, targets: Vector, guess: tuple[int, ...]) -> tuple[Vector, tuple[int, ...]]:
    """Return the phi >= 0 of least phi . products . phi / 2 - targets . phi, and which of them are not 0.

    products: positive definite. guess: which are not 0, to be tried first.
    """
    size = len(targets)
    every = [kept for count in range(size, -1, -1) for kept in itertools.combinations(range(size), count)]
    for kept in (guess, *every):
        part = _solve([[products[i][j] for j in kept] for i in kept], [targets[i] for i in kept])
        if part and min(part) < 0:
            continue
        full = [0.0] * size
        for position, value in zip(kept, part, strict=True):
            full[position] = value
        # The minimum is where raising none of those at 0 would help (Karush, Kuhn and Tucker); there is one only.
        slopes = (sum(a * b for a, b in zip(products[i], full, strict=True)) - targets[i] for i in range(size))
        if all(slope >= -SLACK for i, slope in enumerate(slopes) if i not in kept):
            return full, kept
    raise AssertionError("a positive definite form has a minimum")


def _solve(products: Matrix, targets: Vector) -> Vector:
    """Return the solution of a positive definite system, by elimination."""
    return [line[0] for line in _eliminate(products, ([target] for target in targets))]


def _inverse(products: Matrix) -> Matrix:
    size = len(products)
    return _eliminate(products, ([1.0 if i == j else 0.0 for j in range(size)] for i in range(size)))


def _eliminate(products: Matrix, right: Iterable[Vector]) -> Matrix:
    lines = [list(line) + list(end) for line, end in zip(products, right, strict=True)]
    size = len(lines)
    for i in range(size):
        # Positive definite: the pivots on the diagonal are above 0, and no exchange of lines is needed.
        pivot = lines[i][i]
        lines[i] = [entry / pivot for entry in lines[i]]
        for j in range(size):
            factor = lines[j][i]
            if j != i and factor:
                lines[j] = [entry - factor * head for entry, head in zip(lines[j], lines[i], strict=True)]
    return [line[size:] for line in lines]
