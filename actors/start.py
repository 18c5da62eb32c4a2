"""Starts a slice of any layer on the running loop: its ports, its machine, its way to the coordinator. Without Ray."""

from __future__ import annotations

import os
from collections.abc import Callable

from actors.shell import Shell
from actors.transport import Identity
from cluster.config import Config
from cluster.messages import CONNECTION_POINT, COORDINATOR, Connect, Join, Member, Peer
from cluster.role import Role, make_machine


async def start_role(
    peer: Peer,
    incarnation: int,
    config: Config,
    secret: bytes,
    *,
    host: str,
    coordinator: tuple[str, int],
    failed: Callable[[BaseException], None],
) -> tuple[Shell, Role, str]:
    """Open the ports, the lanes' on `host`, and join; return the shell, the role, and where clients connect, "" but
    for connection points.

    Raises: OSError when a port is taken.
    """
    machine = make_machine(peer, incarnation, config)
    port = config.client_port
    is_door = peer.layer == CONNECTION_POINT
    shell = Shell(
        Identity(peer.layer, peer.slot, incarnation),
        secret,
        failed=failed,
        client_address=(port.host, port.port + peer.slot if port.port else 0) if is_door else None,
    )
    door = ""
    try:
        lane_port = await shell.listen(host)
        if is_door:
            bound = await shell.bind_clients()
            door = f"{bound[0]}:{bound[1]}"
    except OSError:
        await shell.stop()
        raise
    join = Join(incarnation, host, lane_port, door, os.getpid())
    role = Role(peer, join, machine, config)
    shell.handler = role
    shell.perform([Connect(Member(COORDINATOR, 0, 1, *coordinator))])
    return shell, role, door
