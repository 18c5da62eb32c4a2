"""The cluster's configuration: YAML -> checked, typed settings.

Every key is optional and has the default shown here; an unknown key, a wrong type or a value out of range is a
ConfigError that names the key. `configs/local.yaml` and `configs/cluster.yaml` are the two to start from.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from cluster.errors import ConfigError
from cluster.language.limits import DEFAULT_LIMITS

Count = Annotated[int, Meta(ge=1, le=2047)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Positive = Annotated[int, Meta(ge=1)]

CONFIG_BYTES = 1 << 20

T = TypeVar("T")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of all sections: a misspelt key never passes in silence."""


class Layers(Settings, frozen=True):
    """How many slices each layer starts with."""

    connection_points: Count = 1
    access_points: Count = 1
    matchers: Count = 1
    exit_points: Count = 1


class ClientPort(Settings, frozen=True):
    """Where clients connect: connection point k listens on `port` + k; port 0 takes any free one.

    insecure: must be true for a host that is not loopback, as clients are not authenticated.
    """

    host: str = "127.0.0.1"
    port: Port = 7400
    insecure: bool = False


class RaySettings(Settings, frozen=True):
    """Where the roles run.

    address:       of a running Ray cluster; None starts one on this machine for as long as the command runs.
    cpus_per_role: what each role asks of Ray; it decides placement, not speed. A Ray of our own is asked for none.
    placement:     "spread" a layer over the nodes or "pack" it.
    lane_host:     the address that roles listen on for each other; None takes loopback with a Ray of our own,
                   else the node's address.
    spares:        processes kept warm to replace one that dies, or to be a newcomer: about 150 MB each, and some
                   seconds gained. With one or more, another process of the coordinator stands by as well.
    """

    address: str | None = None
    cpus_per_role: Annotated[float, Meta(gt=0, le=64)] = 0.1
    placement: Literal["spread", "pack"] = "spread"
    lane_host: str | None = None
    spares: Annotated[int, Meta(ge=0, le=64)] = 0
    start_timeout_s: Positive = 120


class ClientLimits(Settings, frozen=True):
    """What a client may send. Beyond a limit on a connection it is closed with the reason; beyond one on a request
    or a publication that one is refused.

    first_frame_bytes, login_ms, waiting_clients: before login: the size of the one frame, the time to send it, and
                           how many connections may be in that state (the oldest makes room).
    frame_bytes:           a frame after login. partial_frame_ms: the time to complete one.
    publications_per_frame, attributes, name_bytes, string_bytes: of publications.
    subscriptions:         open at once, for one client.
    failures_per_second:   connections that end without a login or break the protocol; what comes beyond it is
                           accepted later (admission.py).
    """

    connections: Positive = 10_000
    waiting_clients: Positive = 512
    failures_per_second: Positive = 100
    first_frame_bytes: Annotated[int, Meta(ge=256, le=8192)] = 4096
    login_ms: Positive = 5_000
    frame_bytes: Annotated[int, Meta(ge=4096, le=8 << 20)] = 1 << 20
    partial_frame_ms: Positive = 10_000
    publications_per_frame: Annotated[int, Meta(ge=1, le=65536)] = 8192
    attributes: Annotated[int, Meta(ge=1, le=256)] = 256
    name_bytes: Annotated[int, Meta(ge=1, le=256)] = 256
    string_bytes: Annotated[int, Meta(ge=1, le=1 << 20)] = 65_536
    subscriptions: Annotated[int, Meta(ge=1, le=1 << 19)] = 10_000


class FilterSettings(Settings, frozen=True):
    """What a filter may be; beyond it a subscription is refused with the limit."""

    predicates: Positive = DEFAULT_LIMITS.predicates
    depth: Annotated[int, Meta(ge=1, le=64)] = DEFAULT_LIMITS.depth
    text_bytes: Positive = DEFAULT_LIMITS.text_bytes
    list_values: Positive = DEFAULT_LIMITS.list_values
    conjunctions: Positive = DEFAULT_LIMITS.conjunctions
    normal_bytes: Positive = DEFAULT_LIMITS.normal_bytes


class Flow(Settings, frozen=True):
    """Credit and queues; every queue is bounded in messages and bytes.

    publish_window, publish_window_bytes: unacknowledged publications of one client.
    publish_pool_bytes: their bytes over all clients of a connection point; as it fills, windows shrink down to
                        publish_floor_bytes.
    receive_window:     unconsumed notifications that a client is sent, whatever more it asks for.
    flight_bytes:       written to one client and not yet reported as consumed.
    queue_messages, queue_bytes: waiting for one client beyond that; then the subscriptions' policies decide.
    stall_ms:           a client with policy block that consumes nothing for so long, while others wait for it,
                        is disconnected.
    batch_publications: an access point closes a batch when it holds so many.
    """

    publish_window: Positive = 8192
    publish_window_bytes: Positive = 2 << 20
    publish_pool_bytes: Positive = 64 << 20
    publish_floor_bytes: Positive = 64 << 10
    receive_window: Positive = 65_536
    flight_bytes: Positive = 1 << 20
    queue_messages: Positive = 8192
    queue_bytes: Positive = 4 << 20
    stall_ms: Positive = 30_000
    batch_publications: Positive = 1024


class Durable(Settings, frozen=True):
    """Durable sessions, per connection point; each keeps them in a file of its own in the data directory.

    sessions:           how many may live there; a login for one more is refused.
    queue_messages, queue_bytes: notifications that one session is owed; beyond it the oldest that is not underway to
                        the client is removed and counted as `quota`.
    total_bytes:        the same over all sessions there: beyond it a session that gets one more loses its oldest.
    expires_s, expires_s_max: how long a session without a connection is kept when the client does not say, and at most.
    max_deliver:        how often a notification is delivered without an acknowledgement when the client does not say.
    unsettled_ranges:   of acknowledgements out of order: behind so many gaps nothing new is sent before one closes.
    publisher_away_s:   after a session has moved to another connection point, and after a recovery, it knows for so
                        long by itself what it had of each publisher; one that was cut off for longer, and then sends
                        again what it had sent before the move, may be heard twice, or not, in it (`durable/marks.py`).
    dead_letter_bytes:  of the dead-letter file; then it is renamed to `.1` and a new one begun.
    """

    sessions: Annotated[int, Meta(ge=0)] = 1000
    queue_messages: Positive = 10_000
    queue_bytes: Positive = 16 << 20
    total_bytes: Positive = 512 << 20
    expires_s: Positive = 3600
    expires_s_max: Positive = 30 * 86_400
    max_deliver: Annotated[int, Meta(ge=1, le=1 << 20)] = 20
    unsettled_ranges: Positive = 1024
    publisher_away_s: Positive = 3600
    dead_letter_bytes: Positive = 16 << 20


class ValidSettings(Settings, frozen=True):
    """Publications with `valid_for`; beyond a limit they are matched as any other, but not kept for later subscribers.

    publications, bytes: of one connection point, payloads and about 400 bytes each.
    for_s_max:           the longest `valid_for`, until unpublished aside.
    """

    publications: Positive = 100_000
    bytes: Positive = 64 << 20
    for_s_max: Annotated[int, Meta(ge=1, le=1 << 31)] = 31 * 24 * 3600


class Timing(Settings, frozen=True):
    """Clocks, in milliseconds.

    client_heartbeat_ms: the server's ping; three of silence end a connection.
    role_heartbeat_ms, role_lost_ms: the roles' reports to the coordinator, and when their absence means lost.
    """

    client_heartbeat_ms: Positive = 10_000
    role_heartbeat_ms: Positive = 250
    role_lost_ms: Positive = 1_500


class Transitions(Settings, frozen=True):
    """How the view changes.

    strategy:           waves: some key groups at a time; all_at_once; stop_swap: the aligned protocol of the
                        E-SilboPS paper, which parks subscriptions and publications, for comparison.
    wave_groups, wave_bytes: what one wave moves at most: key groups (of 4096), and bytes of their filters.
    slow_switch_ms:     a wave that takes longer from its decision until its markers, which travel behind the data, are
                        through halves the next one and has it wait: queues are long. Otherwise it follows at once.
    start_timeout_ms:   until a process that is started has joined and has its lanes, code compiled if need be.
    prepare_timeout_ms: from the beginning of a view change to its decision; then it is aborted.
    move_clients_ms:    clients of a connection point that is to leave are disconnected when none has moved for so long.
    """

    strategy: Literal["waves", "all_at_once", "stop_swap"] = "waves"
    wave_groups: Annotated[int, Meta(ge=1, le=4096)] = 64
    wave_bytes: Positive = 8 << 20
    slow_switch_ms: Positive = 100
    start_timeout_ms: Positive = 120_000
    prepare_timeout_ms: Positive = 30_000
    move_clients_ms: Positive = 30_000


class Metrics(Settings, frozen=True):
    """What Prometheus finds; every process serves its own metrics, the coordinator the list of all as well.

    enabled:     false for no endpoints at all; the roles report to the coordinator in any case.
    host:        where the endpoints listen, on every node: loopback, or 0.0.0.0 for all of a node's addresses.
    port:        of the coordinator's endpoint, which is the one to be known; 0, or where it is taken, any free one. The
                 others take any.
    token_file:  a file with a token that scrapers must present (`Authorization: Bearer`); mode 0600, the same on each
                 node.
    insecure:    must be true for a host that is not loopback without a token.
    interval_ms: between the roles' reports to the coordinator.
    """

    enabled: bool = True
    host: str = "127.0.0.1"
    port: Port = 7390
    token_file: str | None = None
    insecure: bool = False
    interval_ms: Annotated[int, Meta(ge=100, le=60_000)] = 1000


class OutputSettings(Settings, frozen=True):
    """The log of what was matched, for analyses; its exit points write it. `cluster/output/` has the whole story.

    path:             a folder, relative to the data directory, or a URI of a pyarrow or fsspec file system (then the
                      write-ahead files stay in `output` in the data directory). None writes nothing, and nobody may ask
                      for `ack="stored"`. With several machines the data directory must be one that they share.
    all:              every publication is written, those that match nothing without subscriptions and clients; else
                      those alone that match. Refused ones never are.
    segment_bytes, segment_age_s: a write-ahead file becomes segments when it has so many bytes, or is so old.
    compact_below_bytes, compact_to_bytes: segments of one day below the first are merged until they have the second.
    retention_age_s, retention_bytes: of a slot's segments, oldest first; None keeps them for ever.
    grace_s:          how long a file stays for readers that know it when compaction or retention has unlisted it.
    """

    path: str | None = None
    all: bool = False
    segment_bytes: Annotated[int, Meta(ge=4096, le=1 << 30)] = 16 << 20
    segment_age_s: Annotated[float, Meta(gt=0, le=3600)] = 5.0
    compact_below_bytes: Annotated[int, Meta(ge=0)] = 8 << 20
    compact_to_bytes: Positive = 64 << 20
    retention_age_s: Positive | None = None
    retention_bytes: Positive | None = None
    grace_s: Annotated[float, Meta(ge=0)] = 60.0


LOCAL_OUTPUT = OutputSettings(path="output", retention_age_s=7 * 86_400)
"""Of a cluster without a configuration file, as configs/local.yaml has it; a Config made in Python writes nothing."""


class Config(Settings, frozen=True):
    """A whole cluster. data_directory: the run file and everything durable; made with mode 0700.

    autoscaler: a file with a scaling policy, relative to the configuration's own file; None for sizes that only
                operators change.
    """

    name: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,62}$")] = "local"
    data_directory: str = "~/.local/state/kittiwake/local"
    layers: Layers = Layers()
    client_port: ClientPort = ClientPort()
    ray: RaySettings = RaySettings()
    client_limits: ClientLimits = ClientLimits()
    filters: FilterSettings = FilterSettings()
    flow: Flow = Flow()
    durable: Durable = Durable()
    valid: ValidSettings = ValidSettings()
    timing: Timing = Timing()
    transitions: Transitions = Transitions()
    metrics: Metrics = Metrics()
    autoscaler: str | None = None
    output: OutputSettings = OutputSettings()

    @property
    def directory(self) -> Path:
        """The data directory with `~` resolved."""
        return Path(self.data_directory).expanduser()


def config_from(document: Any, source: str = "the configuration") -> Config:
    """Return the settings that a parsed document holds. Raises ConfigError, which names the key and the source."""
    config = settings_from({} if document is None else document, Config, source)
    _check(config, source)
    return config


def load_config(path: str | Path | None) -> Config:
    """Read a YAML file; None gives configs/local.yaml: one slice a layer on this machine. Raises ConfigError."""
    if path is None:
        return Config(output=LOCAL_OUTPUT)
    config = config_from(read_yaml(path), str(path))
    if config.autoscaler is None:
        return config
    policy = Path(path).parent / Path(config.autoscaler).expanduser()
    return msgspec.structs.replace(config, autoscaler=str(policy.absolute()))


def settings_from(document: Any, kind: type[T], source: str) -> T:
    """Return a parsed document as settings of any kind. Raises ConfigError, which names the key and the source."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_readable(error)}") from error


def read_yaml(path: str | Path) -> Any:
    """Return what a YAML file of at most CONFIG_BYTES holds. Raises ConfigError, which names the file."""
    import yaml  # not a dependency of client machines

    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if len(text) > CONFIG_BYTES:
        raise ConfigError(f"{path}: {len(text)} bytes, the limit is {CONFIG_BYTES}")
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error


def _readable(error: msgspec.ValidationError) -> str:
    """msgspec says `... - at `$.flow.queue_bytes``; people look for `flow.queue_bytes`."""
    text, _, place = str(error).partition(" - at `")
    key = place.rstrip("`").removeprefix("$").lstrip(".")
    return f"{key}: {text}" if key else text


def _check(config: Config, source: str) -> None:
    """What no single key shows."""
    port = config.client_port
    last = port.port + config.layers.connection_points - 1
    if port.port and last > 65535:
        raise ConfigError(f"{source}: client_port.port: connection point ports end at {last}, the limit is 65535")
    if not is_loopback(port.host) and not port.insecure:
        raise ConfigError(
            f"{source}: client_port.host: {port.host} is not loopback and clients are not authenticated; "
            "set client_port.insecure to true to accept that"
        )
    metrics = config.metrics
    if metrics.enabled and not is_loopback(metrics.host) and not metrics.token_file and not metrics.insecure:
        raise ConfigError(
            f"{source}: metrics.host: {metrics.host} is not loopback and nothing is asked of scrapers; "
            "set metrics.token_file, or metrics.insecure to true to accept that"
        )
    if config.flow.publish_floor_bytes > config.flow.publish_window_bytes:
        raise ConfigError(f"{source}: flow.publish_floor_bytes: above flow.publish_window_bytes")
    if config.durable.expires_s > config.durable.expires_s_max:
        raise ConfigError(f"{source}: durable.expires_s: above durable.expires_s_max")
    if config.output.all and config.output.path is None:
        raise ConfigError(f"{source}: output.all: nothing is written without output.path")
    if config.output.compact_to_bytes < config.output.compact_below_bytes:
        raise ConfigError(f"{source}: output.compact_to_bytes: below output.compact_below_bytes")
    if config.timing.role_lost_ms < 2 * config.timing.role_heartbeat_ms:
        raise ConfigError(f"{source}: timing.role_lost_ms: below two heartbeats of timing.role_heartbeat_ms")


def is_loopback(host: str) -> bool:
    """Tell whether an address stays on this machine; a name other than localhost counts as not."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
