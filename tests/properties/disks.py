"""A disk that dies: it keeps what is written and what is durable apart, and can be copied before any operation.

A power cut leaves of each file what was synced, and of what was written after that nothing, some, or all, torn at any
byte; of names, those that their folder's last sync knew, and later changes in their order up to some point.
The end of a process alone loses nothing.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


class Dead(BaseException):
    """The machine, or the process, has died. Not an Exception: nobody may live on."""


@dataclass
class _Node:
    """A file's bytes: as written, and how many of them are on disk."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


class Disk:
    """A folder in memory. operations: so far. full: nothing more fits.

    broken: operations of this name fail with EIO.
    """

    def __init__(self) -> None:
        self.files: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}  # names as they are on disk
        self.pending: list[tuple[str, str, _Node | None]] = []  # (folder, name, node or None): not synced yet, in order
        self.operations = 0
        self.trace: list[str] = []
        self.full = False
        self.broken = ""
        self.generation = 0
        self.before: Callable[[], None] | None = None  # called before each operation

    def copy(self) -> Disk:
        """Return a disk that is in the same state, and goes its own way from here."""
        nodes: dict[int, _Node] = {}

        def same(node: _Node) -> _Node:
            return nodes.setdefault(id(node), _Node(bytearray(node.data), node.synced))

        twin = Disk()
        twin.files = {path: same(node) for path, node in self.files.items()}
        twin.durable = {path: same(node) for path, node in self.durable.items()}
        twin.pending = [(folder, path, node and same(node)) for folder, path, node in self.pending]
        twin.operations = self.operations
        return twin

    def step(self, name: str, path: str, generation: int | None = None) -> None:
        if self.before is not None:
            self.before()
        if generation is not None and generation != self.generation:
            raise Dead(f"{name} {path} by a process that has ended")
        self.operations += 1
        self.trace.append(f"{name} {path}")
        if name == self.broken:
            raise OSError(errno.EIO, "input/output error", path)
        if self.full and name in ("create", "write"):
            raise OSError(errno.ENOSPC, "no space left on device", path)

    def _set(self, path: str, node: _Node | None) -> None:
        if node is None:
            self.files.pop(path, None)
        else:
            self.files[path] = node
        self.pending.append((path.rpartition("/")[0], path, node))

    # As cluster.output.disk.Disk:

    def create(self, path: str) -> File:
        self.step("create", path)
        self._set(path, _Node())
        return File(self, path, self.files[path])

    def append(self, path: str) -> File:
        self.step("append", path)
        if path not in self.files:
            self._set(path, _Node())
        return File(self, path, self.files[path])

    def rename(self, path: str, to: str) -> None:
        self.step("rename", to)
        node = self.files[path]
        self._set(to, node)
        self._set(path, None)

    def sync_folder(self, path: str) -> None:
        self.step("sync_folder", path)
        self._settle([one for one in self.pending if one[0] == path])
        self.pending = [one for one in self.pending if one[0] != path]

    def _settle(self, changes: list[tuple[str, str, _Node | None]]) -> None:
        for _, path, node in changes:
            if node is None:
                self.durable.pop(path, None)
            else:
                self.durable[path] = node

    def read(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return bytes(self.files[path].data)

    def remove(self, path: str) -> None:
        if path in self.files:
            self.step("remove", path)
            self._set(path, None)

    def names(self, folder: str) -> list[str]:
        inside = f"{folder}/" if folder else ""
        return sorted({path[len(inside) :].split("/")[0] for path in self.files if path.startswith(inside)})

    def size(self, path: str) -> int:
        return len(self.files[path].data) if path in self.files else -1

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[None]:
        yield

    # What happens to it:

    def restart(self) -> None:
        """The process has ended; what it has written is there."""
        self.generation += 1

    def power_cut(self, rng: random.Random) -> None:
        """The machine has ended."""
        self.restart()
        self._settle(self.pending[: rng.randint(0, len(self.pending))])
        self.pending = []
        self.files = dict(self.durable)
        for node in {id(node): node for node in self.files.values()}.values():
            data, synced = bytes(node.data), node.synced
            if not data.startswith(synced):
                synced = b""  # it was cut back since
            kept = bytearray(data[: rng.randint(len(synced), len(data))])
            if len(kept) > len(synced) and rng.random() < 0.5:
                # Pages reach the disk in any order.
                at = rng.randrange(len(synced), len(kept))
                kept[at : at + 64] = bytes(len(kept[at : at + 64]))
            node.data, node.synced = kept, bytes(kept)


class File:
    """An open file of it; of a process that has ended it is dead."""

    def __init__(self, disk: Disk, path: str, node: _Node) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._generation = disk.generation
        self.position = len(node.data)

    def write(self, data: bytes) -> None:
        begin = len(self._node.data)
        self._node.data += data[: len(data) // 2]  # it may die in the middle
        self.position = len(self._node.data)
        self._disk.step("write", self._path, self._generation)
        self._node.data[begin:] = data
        self.position = len(self._node.data)

    def sync(self) -> None:
        self._disk.step("sync", self._path, self._generation)
        self._node.synced = bytes(self._node.data)

    def cut(self, position: int) -> None:
        self._disk.step("cut", self._path, self._generation)
        del self._node.data[position:]
        self.position = position

    def close(self) -> None:
        pass
