"""Every exception that Kittiwake raises on purpose.

Each carries, as fields, what was expected and what came, so that a caller can react without reading the text.
Codes are stable: they travel on the wire and are part of the client protocol.
"""

from __future__ import annotations


class KittiwakeError(Exception):
    """The base of all expected trouble; `code` is the stable word that travels on the wire."""

    code = "error"


class FilterError(KittiwakeError):
    """A filter that is malformed, never true, or over a limit.

    position: index into the text in characters where the trouble starts; None for a filter not given as text.
    limit:    the limit that was passed, None where the trouble is not a limit.
    """

    code = "filter"

    def __init__(self, reason: str, *, position: int | None = None, limit: int | None = None) -> None:
        self.reason = reason
        self.position = position
        self.limit = limit
        where = "" if position is None else f" at position {position}"
        super().__init__(f"{reason}{where}")


class ConfigError(KittiwakeError):
    """A configuration that is unreadable, has unknown keys, or values out of range; the text names the key."""

    code = "config"


class CodecError(KittiwakeError):
    """Bytes that are not a message: who sent them is at fault, and its connection ends."""

    code = "malformed"


class RejectedError(KittiwakeError):
    """A publication that the cluster refused; nobody received it.

    sequence: the publisher's number of the publication. reason: names the attribute and the limit.
    """

    code = "rejected"

    def __init__(self, reason: str, *, sequence: int | None = None) -> None:
        self.reason = reason
        self.sequence = sequence
        super().__init__(reason)


class OverloadedError(RejectedError):
    """A publication that asked to be stored, for which there was no room. It was delivered as any other."""

    code = "overloaded"


class ConnectionLostError(KittiwakeError):
    """The connection ended and will not be renewed; `reason` is the broker's last word or the socket's error."""

    code = "connection"

    def __init__(self, reason: str, *, reason_code: str = "connection") -> None:
        self.reason = reason
        self.code = reason_code
        super().__init__(reason)


class RefusedError(KittiwakeError):
    """A request that the cluster refused and that changed nothing; `limit` as in FilterError.

    code: the refusing part's word, as it came on the wire ("too_many", "policy", ...).
    """

    code = "refused"

    def __init__(self, reason: str, *, code: str = "refused", limit: int | None = None) -> None:
        self.reason = reason
        self.code = code
        self.limit = limit
        super().__init__(reason)


class PolicyError(RefusedError):
    """A slow-consumer policy that is malformed, unknown, or over a limit; position and limit as in FilterError."""

    code = "policy"

    def __init__(self, reason: str, *, position: int | None = None, limit: int | None = None) -> None:
        super().__init__(reason, code=self.code, limit=limit)
        self.position = position
        if position is not None:
            self.args = (f"{reason} at position {position}",)


class SessionError(KittiwakeError):
    """What only a durable session has was asked of one that is not durable, or that has ended."""

    code = "session"


class SparkError(KittiwakeError):
    """Spark cannot start, or was asked for what the matched output cannot give; names the option or the cause."""

    code = "spark"
