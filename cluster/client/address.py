"""Where the connection points are: `kittiwake://host:port[,host:port...]` and how to get there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from cluster.errors import ConfigError

SCHEME = "kittiwake://"
DEFAULT_PORT = 7400
DEFAULT_URL = f"{SCHEME}127.0.0.1:{DEFAULT_PORT}"

ProtocolFactory = Callable[[], asyncio.Protocol]
Connector = Callable[[ProtocolFactory], Awaitable[asyncio.Transport]]
"""Opens one transport for the protocol that the factory makes. Trouble is an OSError; another host or another
moment is tried then."""


def parse_url(url: str) -> list[tuple[str, int]]:
    """Return the (host, port) pairs of a URL, at least one.

    An IPv6 address stands in brackets; the port is 7400 where none is given; a slash at the end is allowed.
    Raises: ConfigError, which shows the part that does not fit.
    """
    if not url.startswith(SCHEME):
        raise ConfigError(f"the address {url!r} does not begin with {SCHEME}")
    addresses = []
    for part in url[len(SCHEME) :].removesuffix("/").split(","):
        if part.startswith("["):
            host, closed, rest = part[1:].partition("]")
            colon, port = rest[:1], rest[1:]
            wrong = not closed or colon not in ("", ":")
        else:
            host, colon, port = part.partition(":")
            wrong = False
        wrong = wrong or not host or any(character in "/?#@ []" for character in host)
        if colon and not wrong:
            wrong = not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536)
        if wrong:
            raise ConfigError(f"{part!r} in the address {url!r} is not a host:port")
        addresses.append((host, int(port) if colon else DEFAULT_PORT))
    return addresses


def join_url(addresses: Iterable[tuple[str, int]]) -> str:
    """Return the URL of these addresses, each once."""
    parts = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses)
    return SCHEME + ",".join(dict.fromkeys(parts))


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of an address as brokers name it: host:port, an IPv6 host in brackets or not."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port) if port.isdigit() else DEFAULT_PORT


def address_connector(address: str) -> Connector:
    """Return a connector for an address as brokers name it."""
    return tcp_connector(*parse_address(address))


def tcp_connector(host: str, port: int) -> Connector:
    """Return a connector that opens TCP connections to this address."""

    async def connect(factory: ProtocolFactory) -> asyncio.Transport:
        transport, _ = await asyncio.get_running_loop().create_connection(factory, host, port)
        return transport

    return connect
