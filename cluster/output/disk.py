"""The few things that a log asks of a disk; everything it writes goes through here.

Small, so that a double can stand in (`tests/properties/disks.py`): it keeps what is written and what is durable apart
and dies before and after each single operation. Paths are relative to the log's folder, with `/`.

LocalDisk is a folder of this machine. RemoteDisk is any pyarrow or fsspec file system: it has no fsync and no append, a
file appears as a whole when it is synced or closed, and to add to one is to write it again. Only segments and manifests
are kept there; write-ahead files are always local.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow.fs as pafs


class File(Protocol):
    """A file that is being written. position: bytes in it."""

    position: int

    def write(self, data: bytes) -> None:
        """Add the bytes at the end; when this returns they survive the process, not the machine."""

    def sync(self) -> None:
        """Return when all that was written survives the machine."""

    def cut(self, position: int) -> None:
        """Take back what was written from this byte on."""

    def close(self) -> None:
        """Let go of it."""


class Disk(Protocol):
    """A folder and what is below it."""

    def create(self, path: str) -> File:
        """Make a new, empty file, with the folders above it; one that is there is emptied."""

    def append(self, path: str) -> File:
        """Open a file that is there, or make it, to write at its end."""

    def rename(self, path: str, to: str) -> None:
        """Give a file another name; one that has that name is replaced, at once."""

    def sync_folder(self, path: str) -> None:
        """Return when the names in this folder survive the machine."""

    def read(self, path: str) -> bytes:
        """Return a file's bytes. Raises FileNotFoundError."""

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, ascending; none if there is no such folder."""

    def size(self, path: str) -> int:
        """Return a file's bytes, -1 if it is not there."""

    def locked(self, path: str) -> contextlib.AbstractContextManager[None]:
        """Hold a lock that only one process has at a time; it is free when its holder dies."""


class _LocalFile:
    def __init__(self, path: Path, flags: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | flags, 0o600)
        self.position = os.fstat(self._descriptor).st_size

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            written = os.write(self._descriptor, rest)
            self.position += written
            rest = rest[written:]

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def cut(self, position: int) -> None:
        os.ftruncate(self._descriptor, position)
        self.position = position

    def close(self) -> None:
        os.close(self._descriptor)


class LocalDisk:
    """A folder of this machine, or one that is mounted and keeps POSIX's promises."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def __str__(self) -> str:
        return str(self.root)

    def create(self, path: str) -> File:
        return self._open(path, os.O_TRUNC)

    def append(self, path: str) -> File:
        return self._open(path, 0)

    def _open(self, path: str, flags: int) -> File:
        full = self.root / path
        try:
            return _LocalFile(full, flags)
        except FileNotFoundError:
            self._make(full.parent)
            return _LocalFile(full, flags)

    def _make(self, folder: Path) -> None:
        """Make a folder durably: its name is in its parent, which must be synced."""
        missing = [folder]
        while not missing[-1].parent.exists():
            missing.append(missing[-1].parent)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for made in missing:
            _sync_folder(made.parent)

    def rename(self, path: str, to: str) -> None:
        target = self.root / to
        try:
            os.replace(self.root / path, target)
        except FileNotFoundError:
            self._make(target.parent)
            os.replace(self.root / path, target)

    def sync_folder(self, path: str) -> None:
        _sync_folder(self.root / path)

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def remove(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, path: str) -> int:
        try:
            return (self.root / path).stat().st_size
        except FileNotFoundError:
            return -1

    def owned(self, path: str, *, shared: bool = False) -> contextlib.ExitStack | None:
        """Return a hold on a lock as in `locked`, None if another has it; closing it lets it go.

        shared: several may have it so at a time, and then nobody has it alone.
        """
        held = contextlib.ExitStack()
        full = self.root / path
        full.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(full, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        held.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            held.close()
            return None
        except OSError:
            held.close()
            raise
        return held

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[None]:
        full = self.root / path
        full.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(full, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _RemoteFile:
    """Bytes that become a file when they are synced or closed."""

    def __init__(self, system: Any, path: str, start: bytes) -> None:
        self._system = system
        self._path = path
        self._data = bytearray(start)
        self._clean = False
        self.position = len(start)

    def write(self, data: bytes) -> None:
        self._data += data
        self.position = len(self._data)
        self._clean = False

    def sync(self) -> None:
        if not self._clean:
            with self._system.open_output_stream(self._path) as stream:
                stream.write(bytes(self._data))
            self._clean = True

    def cut(self, position: int) -> None:
        del self._data[position:]
        self.position = position
        self._clean = False

    def close(self) -> None:
        self.sync()


class RemoteDisk:
    """A folder of a pyarrow file system."""

    def __init__(self, system: pafs.FileSystem, root: str) -> None:
        self.system: Any = system
        self.root = root.rstrip("/")

    def __str__(self) -> str:
        return f"{self.system.type_name}:{self.root}"

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def create(self, path: str) -> File:
        full = self._full(path)
        self.system.create_dir(full.rpartition("/")[0], recursive=True)
        return _RemoteFile(self.system, full, b"")

    def append(self, path: str) -> File:
        try:
            start = self.read(path)
        except FileNotFoundError:
            return self.create(path)
        return _RemoteFile(self.system, self._full(path), start)

    def rename(self, path: str, to: str) -> None:
        full = self._full(to)
        self.system.create_dir(full.rpartition("/")[0], recursive=True)
        self.system.move(self._full(path), full)

    def sync_folder(self, path: str) -> None:
        """Names of such a file system are durable when they are there."""

    def read(self, path: str) -> bytes:
        with self.system.open_input_stream(self._full(path)) as stream:
            data: bytes = stream.read()
        return data

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.system.delete_file(self._full(path))

    def names(self, folder: str) -> list[str]:
        selector = pafs.FileSelector(self._full(folder), allow_not_found=True)
        return sorted(info.base_name for info in self.system.get_file_info(selector))

    def size(self, path: str) -> int:
        info = self.system.get_file_info(self._full(path))
        return -1 if info.type == pafs.FileType.NotFound else int(info.size)

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[None]:
        """No lock is to be had; names that bear the incarnation must do."""
        yield


def write_whole(disk: Disk, folder: str, name: str, data: bytes) -> None:
    """Write a file so that it is there as a whole or not at all, and durable on return."""
    aside = f"{folder}/_{name}"
    file = disk.create(aside)
    try:
        file.write(data)
        file.sync()
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove(aside)  # where there is no room, half a file takes some
        raise
    finally:
        file.close()
    disk.rename(aside, f"{folder}/{name}")
    disk.sync_folder(folder)


def open_disk(place: str | Path) -> LocalDisk | RemoteDisk:
    """Return the disk that a path or a URI means; what pyarrow does not know goes to fsspec.

    Raises: ValueError for a URI of a kind that neither knows, ImportError if its library is missing.
    """
    text = str(place)
    if "://" not in text:
        return LocalDisk(Path(text).expanduser())
    if text.startswith("file://"):
        return LocalDisk(text.removeprefix("file://"))
    try:
        system, path = pafs.FileSystem.from_uri(text)
    except (ValueError, OSError):
        import fsspec  # only for what pyarrow has no own file system for

        other, path = fsspec.core.url_to_fs(text)
        system = pafs.PyFileSystem(pafs.FSSpecHandler(other))
    return RemoteDisk(system, path)
