"""Where Prometheus finds the endpoints of a cluster: a document that follows the roles as they come and go.

The coordinator's endpoint serves it (`http_sd_configs`), and it is in the data directory (`file_sd_configs`), replaced
as a whole when something in it changes.

A slice's `instance` is its layer and slot, not an address: whoever plays it next continues its series.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from cluster.messages import COORDINATOR_PEER, Peer

FILE_NAME = "metrics-targets.json"
LOOK_S = 0.25

log = logging.getLogger("kittiwake")


def targets_document(cluster: str, endpoints: Mapping[Peer, str]) -> bytes:
    """Return the document: a target for each slice, labelled with the cluster's name and the instance."""
    groups = [
        {"targets": [address], "labels": {"cluster": cluster, "instance": instance_of(peer)}}
        for peer, address in sorted(endpoints.items())
    ]
    return msgspec.json.format(msgspec.json.encode(groups), indent=1) + b"\n"


def instance_of(peer: Peer) -> str:
    """Return what the slice is called in Prometheus: `matcher-0`; the coordinator is alone."""
    return peer.layer if peer == COORDINATOR_PEER else f"{peer.layer}-{peer.slot}"


class TargetsFile:
    """The document on disk. document: called to see what it is now; None for what it was before."""

    def __init__(self, directory: Path, document: Callable[[], bytes | None]) -> None:
        self._path = directory / FILE_NAME
        self._document = document
        self._written: bytes | None = None
        self._troubled = False
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.TimerHandle | None = None
        self._look()

    def _look(self) -> None:
        self._try()
        self._next = self._loop.call_later(LOOK_S, self._look)

    def close(self) -> None:
        """The cluster stops: there is nothing to be found any more."""
        if self._next is not None:
            self._next.cancel()
        self._document = lambda: b"[]\n"
        self._try()

    def _try(self) -> None:
        """Write what has changed; a disk that is full is tried again, and no reason to stop anything."""
        document = self._document()
        if document is None or document == self._written:
            return
        try:
            self._write(document)
        except OSError as error:
            if not self._troubled:
                log.warning("metrics: %s cannot be written: %s", self._path, error.strerror)
        self._troubled = self._written != document

    def _write(self, document: bytes) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = self._path.with_suffix(".new")
        aside.write_bytes(document)
        os.replace(aside, self._path)
        self._written = document
