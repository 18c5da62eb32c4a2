"""Write the dashboards as JSON, or say whether what is committed is current.

python -m configs.grafana.build
python -m configs.grafana.build --check      exit code 1 if a file differs, is missing or is one too many
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from configs.grafana import clients, layers, overview, scaling, transitions
from configs.grafana.boards import Board, to_grafana

FOLDER = Path(__file__).with_name("dashboards")
BOARDS: tuple[Board, ...] = (overview.BOARD, layers.BOARD, transitions.BOARD, scaling.BOARD, clients.BOARD)


def files() -> dict[str, str]:
    """Return the text of each file by its name."""
    encoder = JSONEncoder(indent=2, sort_keys=True, ensure_ascii=False)
    return {
        f"{board.uid.removeprefix('kittiwake-')}.json": encoder.encode(to_grafana(board)) + "\n" for board in BOARDS
    }


def stale() -> list[str]:
    """Return the names of the files that differ from what would be written, are missing, or are too many."""
    wanted = files()
    present = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    return sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m configs.grafana.build", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and exit with 1 if a file is not current")
    if parser.parse_args(arguments).check:
        found = stale()
        for name in found:
            print(f"{FOLDER / name} is not current; run python -m configs.grafana.build", file=sys.stderr)
        return int(bool(found))
    FOLDER.mkdir(exist_ok=True)
    wanted = files()
    for path in FOLDER.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(FOLDER / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
