"""How other commands of this machine reach the coordinator: the run file, and a lane a question.

The run file `run.json` in the data directory (mode 0600, it holds the cluster's secret) tells where the coordinator
listens. Whoever asks is an operator: a lane of its own, which ends with the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from pathlib import Path
from typing import Any

import msgspec

from actors.transport import Identity, LaneProtocol
from cluster.admin import Admin, Question
from cluster.channel import Lane
from cluster.codec import decode_message, encode_message
from cluster.config import Config
from cluster.errors import KittiwakeError
from cluster.messages import COORDINATOR_PEER, OPERATOR, Answer, Status

ANSWER_S = 5.0
"""What the coordinator may take for an answer; it never waits for anybody else to give one."""


class RunFile(msgspec.Struct):
    """What other commands need to reach the cluster. endpoints: of its connection points when it came up."""

    name: str
    pid: int
    host: str
    port: int
    secret: str
    endpoints: list[str]


def run_path(config: Config) -> Path:
    """Return where the run file of a cluster is."""
    return config.directory / "run.json"


def write_run_file(config: Config, run: RunFile) -> None:
    """Put the file there, whole or not at all."""
    config.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = run_path(config)
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(run))
    temporary.replace(path)


def remove_run_file(config: Config) -> None:
    """Take the file away if this process has written it: a second start that fails leaves the first one its own."""
    path = run_path(config)
    with contextlib.suppress(KittiwakeError):
        if read_run_file(config).pid == os.getpid():
            path.unlink(missing_ok=True)


def read_run_file(config: Config) -> RunFile:
    """Return what the running cluster of this configuration has written. Raises KittiwakeError if there is none."""
    path = run_path(config)
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunFile)
    except FileNotFoundError:
        missing = f"{path} is missing (`kittiwake up` starts one)"
        raise KittiwakeError(f"no cluster {config.name!r} runs here: {missing}") from None
    except (OSError, msgspec.DecodeError) as error:
        raise KittiwakeError(f"{path} is unreadable: {error}") from error


def admin_of(run: RunFile) -> Admin:
    """Return what scales the cluster of this run file. What it cannot reach is a KittiwakeError."""

    async def ask(question: Question) -> Answer | Status:
        try:
            return await asyncio.wait_for(_ask(run, question), ANSWER_S)
        except (TimeoutError, OSError) as error:
            why = str(error) or f"no answer within {ANSWER_S:g} s"
            raise KittiwakeError(f"the coordinator of {run.name!r} does not answer: {why}") from error

    return Admin(ask)


def open_admin(config: Config) -> Admin:
    """Return what scales the cluster of this configuration that runs on this machine. Raises KittiwakeError."""
    return admin_of(read_run_file(config))


async def read_status(config: Config) -> dict[str, Any]:
    """Ask the running cluster of this configuration for its status. Raises KittiwakeError if none answers."""
    return await open_admin(config).status()


async def _ask(run: RunFile, question: Question) -> Answer | Status:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Answer | Status] = loop.create_future()
    # Who asks may have given up before it waits for the answer: that there is none is nothing to warn of then.
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())
    lane = Lane()

    def up(protocol: LaneProtocol, other: Identity, received: int) -> None:
        del other
        lane.connect(received)
        lane.send(encode_message(question))
        protocol.write(lane.poll())

    def frames(protocol: LaneProtocol, bodies: list[bytes]) -> None:
        del protocol
        for body in bodies:
            message = lane.receive(body)
            if message is not None and not answer.done():
                decoded = decode_message(message)
                assert isinstance(decoded, Answer | Status), f"{type(decoded).__name__} to an operator"
                answer.set_result(decoded)

    def down(protocol: LaneProtocol, reason: str) -> None:
        del protocol
        if not answer.done():
            answer.set_exception(ConnectionError(reason))

    own = Identity(OPERATOR, secrets.randbelow(1 << 31), 1)
    transport, _ = await loop.create_connection(
        lambda: LaneProtocol(
            own,
            bytes.fromhex(run.secret),
            target=Identity(*COORDINATOR_PEER, 0),
            received=lambda _: 0,
            up=up,
            frames=frames,
            down=down,
        ),
        run.host,
        run.port,
    )
    try:
        return await answer
    finally:
        transport.abort()
