"""Runs an exit point's writer of matched output: the appends in the machine's turn, everything slow in two threads.

    sync   when somebody asked for it: one fdatasync for all appends so far, then Stored; what comes meanwhile shares
           the next one (group commit)
    seal   every fraction of a second: closes a write-ahead file that is due, seals, merges, removes, adopts

Where there is no room an append comes to nothing and the machine is told; sealing waits and tries again. Any other
trouble of the disk ends the process: another incarnation takes over from what is on disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from cluster.config import Config
from cluster.messages import (
    AdoptOutput,
    AppendOutput,
    Event,
    Instruction,
    NameOutputClients,
    NotStored,
    OutputMarks,
    OutputSealed,
    OutputState,
    ReadOutput,
    SealOutput,
    Stored,
)
from cluster.output.adopting import adopt, join, seal_ended
from cluster.output.disk import Disk, LocalDisk, open_disk
from cluster.output.errors import OutputError
from cluster.output.manifest import Claim, slot_folder
from cluster.output.rows import Row, table_of
from cluster.output.segments import encode_segment
from cluster.output.slot_writer import SlotWriter, no_room
from cluster.output.tidying import TidySettings
from cluster.output.write_ahead import read_marks

STEP_S = 0.2
"""Between two looks of the sealing thread at what is due."""
TIDY_S = 5.0
"""Between two looks at what may be merged or removed, where nothing is sealed."""
FULL_S = 1.0
"""Until sealing is tried again where there was no room."""

log = logging.getLogger("kittiwake")


def output_places(config: Config) -> tuple[Disk, LocalDisk]:
    """Return where segments are, and where write-ahead files are: the same for a local path.

    Raises: OutputError for a place that cannot be opened.
    """
    path = config.output.path
    assert path is not None, "no output is configured"
    if "://" not in path:
        disk = LocalDisk(config.directory / Path(path).expanduser())
        return disk, disk
    try:
        return open_disk(path), LocalDisk(config.directory / "output")
    except (ValueError, ImportError, OSError) as error:
        raise OutputError(f"cannot be opened: {error}", file=path) from error


def tidy_settings(config: Config) -> TidySettings:
    """Return what the configuration says of merging and removing."""
    output = config.output
    return TidySettings(
        output.compact_below_bytes,
        output.compact_to_bytes,
        output.retention_age_s,
        output.retention_bytes,
        output.grace_s,
    )


def join_output(config: Config) -> ExitStack:
    """Keep who reads from sealing until the returned hold is closed: between an exit point that dies and the one that
    takes over there is nobody else to. Raises: OutputError.
    """
    try:
        return join(output_places(config)[1])
    except OSError as error:
        raise OutputError(error.strerror or str(error), file=f"output.path {config.output.path}") from error


def seal_output(config: Config, wait_s: float) -> None:
    """Seal what the exit points of a cluster have left that were killed, or had too much to do to end in time.

    wait_s: for the last of them to be gone.
    """
    done = seal_ended(*output_places(config), wait_s)
    if done.running:
        log.warning("matched output: a process of the cluster still runs, so what is left is not sealed")
    for slot, reason in done.failed.items():
        log.warning("matched output of slot %d: not all is sealed: %s", slot, reason)


class OutputWriter:
    """The writer of one slot.

    tell:   called in any thread with what the machine is to hear.
    failed: called once, in any thread, with what ends the writer.
    """

    def __init__(
        self,
        config: Config,
        slot: int,
        claim: Claim,
        *,
        tell: Callable[[Event], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Take over the slot's log. Raises: OutputError, OSError."""
        self._config = config.output
        self._claim = claim
        self._tell = tell
        self._failed = failed
        self._disk, self._local = output_places(config)
        self._holds = join(self._local)
        try:
            owner = self._local.owned(f"{slot_folder(slot)}/owner")
            if owner is not None:  # else a former one is not quite dead
                self._holds.enter_context(owner)
            self._writer = SlotWriter(self._disk, self._local, slot, claim, tidy_settings(config))
        except BaseException:
            self._holds.close()
            raise
        # What is loaded at the first use is loaded now, when nobody waits.
        encode_segment([table_of(slot, [Row(0, 0, "", 0, 0, None, 0, 0, {"": 0}, [0], [""])])])
        self._wake_sync = threading.Event()
        self._wake_seal = threading.Event()
        self._wanted = 0
        self._number = 0
        self._gathered: list[AppendOutput] = []
        self._errors = 0
        self._full = False
        self._state = OutputState(0, 0, 0, 0, False, 0)
        self._stopping = False
        self._seal_asked = False
        self._adopt: tuple[int, ...] | None = None
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
            for name, work in (("output sync", self._sync_loop), ("output seal", self._seal_loop))
        ]
        for thread in self._threads:
            thread.start()

    def marks(self) -> OutputMarks:
        """Return what all slots' logs hold now."""
        return OutputMarks(read_marks(self._local, self._disk))

    # In the machine's turn ---------------------------------------------------------------------------------------

    def perform(self, instruction: Instruction) -> None:
        """Do what the machine asks for; appends wait for `flush` or anything else. Raises: what ends the writer."""
        if isinstance(instruction, AppendOutput):
            self._gathered.append(instruction)
            return
        self.flush()
        match instruction:
            case NameOutputClients(names, ended):
                self._writer.name_clients(names, ended)
            case ReadOutput():
                self._writer.sync()
                self._tell(self.marks())
            case SealOutput():
                self._seal_asked = True
                self._wake_seal.set()
            case AdoptOutput(slots):
                self._adopt = slots
                self._wake_seal.set()

    def flush(self) -> None:
        """Write what was to be appended, before anything of it is said to anybody. Raises: what ends the writer."""
        batch, self._gathered = self._gathered, []
        if not batch:
            return
        try:
            self._writer.append([one.matched for one in batch], time.time_ns() // 1000)
        except OSError as error:
            if not no_room(error):
                raise
            self._errors += 1
            self._full = True
            reason = f"overloaded: not in the matched output, {error.strerror or error}"
            for one in batch:
                self._tell(NotStored(one.number, one.matched.rows, reason))
            return
        self._number = batch[-1].number
        self._full = False
        wanted = [one.number for one in batch if one.sync]
        if wanted:
            self._wanted = wanted[-1]
            self._wake_sync.set()

    def close(self) -> None:
        """Seal what there is, end the threads, let go of the files."""
        self.flush()
        self._stopping = True
        self._wake_sync.set()
        self._wake_seal.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._writer.close()
        self._holds.close()

    # Beside it ---------------------------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._failed(error)

    def _sync_loop(self) -> None:
        told = 0
        while not self._stopping:
            self._wake_sync.wait()
            self._wake_sync.clear()
            wanted, number = self._wanted, self._number
            if wanted > told:
                self._writer.sync()
                told = number
                self._tell(Stored(number))

    def _seal_loop(self) -> None:
        rotated_s = time.monotonic()
        tidied_s = rotated_s
        while True:
            self._wake_seal.wait(STEP_S)
            self._wake_seal.clear()
            stopping, asked = self._stopping, self._seal_asked
            now_s = time.monotonic()
            large = self._writer.open_bytes >= self._config.segment_bytes
            due = large or asked or stopping or now_s - rotated_s >= self._config.segment_age_s
            try:
                if due:
                    self._writer.rotate()
                    rotated_s = now_s
                sealed = self._writer.seal_all(_breathe)
                self._full = self._full and not sealed
                if asked:
                    self._seal_asked = False
                    self._tell(OutputSealed())
                if not stopping:
                    if sealed or now_s - tidied_s >= TIDY_S:
                        tidied_s = now_s
                        self._writer.tidying.step(time.time())
                    self._adopt_left()
            except OSError as error:
                if not no_room(error):
                    raise
                self._errors += 1
                self._full = True
                log.warning("matched output: %s; trying again in %g s", error, FULL_S)
                if not stopping:
                    time.sleep(FULL_S)
            self._tell_state()
            if stopping:
                return

    def _tell_state(self) -> None:
        writer = self._writer
        pending = max(writer.next - writer.log.manifest.next, 0)
        sealed = writer.sealed_rows, writer.sealed_segments, writer.sealed_bytes
        state = OutputState(*sealed, self._errors, self._full, pending)
        if state != self._state:
            self._state = state
            self._tell(state)

    def _adopt_left(self) -> None:
        slots, self._adopt = self._adopt, None
        if slots is not None:
            for slot, reason in adopt(self._disk, self._local, self._claim.run, slots).failed.items():
                log.warning("matched output of slot %d, which nobody plays: %s", slot, reason)


def _breathe() -> None:
    time.sleep(0)  # lets the machine have the interpreter
