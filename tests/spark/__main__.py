"""Kill a streaming query many times: python -m tests.spark --kills 20 --seed 1

The nightly size of test_exactly_once.py. Prints what was lost and doubled; exit status 1 if anything was.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from cluster.spark import session
from tests.spark import kills


def main() -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    spark = session("kills", **{"spark.master": "local[2]"})
    with tempfile.TemporaryDirectory() as folder:
        outcome = kills.run(spark, Path(folder), options.kills, options.seed)
    spark.stop()
    counts = {point: outcome.at.count(point) for point in kills.POINTS}
    print(f"{outcome.rows} rows, {outcome.lost} lost, {outcome.doubled} doubled")
    print(f"killed at {counts}, seed {options.seed}")
    return 1 if outcome.lost or outcome.doubled else 0


if __name__ == "__main__":
    sys.exit(main())
