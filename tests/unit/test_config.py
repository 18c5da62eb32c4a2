"""The configuration: defaults, every key checked, errors that name the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cluster.config import CONFIG_BYTES, LOCAL_OUTPUT, Config, Settings, config_from, is_loopback, load_config
from cluster.errors import ConfigError
from cluster.language import FilterLimits

CONFIGS = Path(__file__).parents[2] / "configs"


def test_without_a_file_everything_has_its_default() -> None:
    config = load_config(None)
    assert config_from(None) == config_from({}) == Config()
    assert config == Config(output=LOCAL_OUTPUT)
    assert (config.layers.matchers, config.client_port.port, config.client_port.host) == (1, 7400, "127.0.0.1")


def test_the_defaults_are_those_of_the_issue() -> None:
    limits = Config().client_limits
    assert (limits.first_frame_bytes, limits.login_ms, limits.waiting_clients) == (4096, 5_000, 512)
    assert (limits.frame_bytes, limits.attributes, limits.string_bytes) == (1 << 20, 256, 65_536)
    assert limits.subscriptions == 10_000
    filters = Config().filters
    assert (filters.predicates, filters.depth, filters.text_bytes) == (64, 16, 8192)
    assert (filters.list_values, filters.conjunctions) == (256, 1024)
    transitions = Config().transitions
    assert (transitions.strategy, transitions.wave_groups, transitions.wave_bytes) == ("waves", 64, 8 << 20)


def test_filter_settings_and_filter_limits_are_the_same_list() -> None:
    names = {*FilterLimits.__struct_fields__} - {"name_bytes"}
    assert names == {*Config().filters.__struct_fields__}
    for name in names:
        assert getattr(FilterLimits(), name) == getattr(Config().filters, name)


@pytest.mark.parametrize("name", ["local.yaml", "cluster.yaml"])
def test_the_files_that_come_along_are_good(name: str) -> None:
    config = load_config(CONFIGS / name)
    if name == "local.yaml":
        assert config == load_config(None)
    else:
        assert config.output == LOCAL_OUTPUT
        assert config.layers.matchers > 1


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"matchers": 3}, ["matchers"]),
        ({"layers": {"matcher": 3}}, ["layers", "matcher"]),
        ({"layers": {"matchers": 0}}, ["layers.matchers", "1"]),
        ({"layers": {"matchers": 2048}}, ["layers.matchers", "2047"]),
        ({"layers": {"matchers": "three"}}, ["layers.matchers", "int"]),
        ({"layers": {"matchers": True}}, ["layers.matchers", "int"]),
        ({"layers": [1]}, ["layers", "object"]),
        ([], ["object"]),
        ("local", ["object"]),
        ({"name": "Not Good"}, ["name"]),
        ({"name": ""}, ["name"]),
        ({"client_port": {"port": 70_000}}, ["client_port.port", "65535"]),
        ({"client_port": {"port": -1}}, ["client_port.port"]),
        ({"client_port": {"port": 65_535}, "layers": {"connection_points": 2}}, ["client_port.port", "65536"]),
        ({"client_port": {"host": "0.0.0.0"}}, ["client_port.host", "insecure"]),
        ({"client_port": {"host": "broker.example"}}, ["client_port.host", "insecure"]),
        ({"transitions": {"strategy": "slowly"}}, ["transitions.strategy", "slowly"]),
        ({"transitions": {"wave_groups": 0}}, ["transitions.wave_groups", "1"]),
        ({"transitions": {"wave_groups": 4097}}, ["transitions.wave_groups", "4096"]),
        ({"client_limits": {"frame_bytes": 4095}}, ["client_limits.frame_bytes", "4096"]),
        ({"client_limits": {"first_frame_bytes": 100}}, ["client_limits.first_frame_bytes", "256"]),
        ({"client_limits": {"subscriptions": 1 << 20}}, ["client_limits.subscriptions"]),
        ({"flow": {"queue_messages": 0}}, ["flow.queue_messages"]),
        ({"flow": {"queue_bytes": 1.5}}, ["flow.queue_bytes"]),
        ({"flow": {"publish_floor_bytes": 10, "publish_window_bytes": 9}}, ["flow.publish_floor_bytes"]),
        ({"timing": {"role_lost_ms": 499}}, ["timing.role_lost_ms", "timing.role_heartbeat_ms"]),
        ({"ray": {"placement": "anywhere"}}, ["ray.placement"]),
        ({"ray": {"cpus_per_role": 0}}, ["ray.cpus_per_role"]),
        ({"filters": {"depth": 65}}, ["filters.depth", "64"]),
        ({"output": {"path": "output", "all": "yes"}}, ["output.all", "bool"]),
        ({"output": {"all": True}}, ["output.all", "output.path"]),
        (
            {"output": {"compact_to_bytes": 1 << 20, "compact_below_bytes": 1 << 21}},
            ["output.compact_to_bytes: below "],
        ),
        ({"durable": {"expires_s": 61, "expires_s_max": 60}}, ["durable.expires_s: above durable.expires_s_max"]),
    ],
)
def test_what_is_wrong_is_named(document: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from(document, "my.yaml")
    text = str(caught.value)
    assert text.startswith("my.yaml: ")
    for word in words:
        assert word in text
    assert "$." not in text


def test_everything_is_written_where_that_is_asked() -> None:
    assert not LOCAL_OUTPUT.all
    assert config_from({"output": {"path": "output", "all": True}}).output.all


def test_every_section_refuses_unknown_keys() -> None:
    for section, kind in Config.__annotations__.items():
        default = getattr(Config(), section)
        if isinstance(default, Settings):
            with pytest.raises(ConfigError, match=f"{section}.*no_such_key"):
                config_from({section: {"no_such_key": 1}})
        else:
            assert kind


def test_every_integer_refuses_what_is_below_its_range() -> None:
    for section in Config.__struct_fields__:
        default = getattr(Config(), section)
        if not isinstance(default, Settings):
            continue
        for key, value in msgspec.structs.asdict(default).items():
            if type(value) is int:
                with pytest.raises(ConfigError, match=f"{section}.{key}"):
                    config_from({section: {key: -1}})


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("192.168.1.4", False),
        ("::", False),
        ("broker.example", False),
        ("", False),
    ],
)
def test_what_stays_on_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_an_open_host_needs_to_be_accepted() -> None:
    config = config_from({"client_port": {"host": "0.0.0.0", "insecure": True}})
    assert config.client_port.host == "0.0.0.0"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"layers: [", "not YAML"),
        (b"\xff\xfe\x00", "not YAML"),
        (b"a: &a [*a]", "a"),
        (b"!!python/object/apply:os.system ['true']", "not YAML"),
        (b"- 1", "object"),
        (b"#" * (CONFIG_BYTES + 1), str(CONFIG_BYTES)),
    ],
)
def test_an_unreadable_file_is_a_config_error_that_names_it(tmp_path: Path, text: bytes, word: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert "bad.yaml" in str(caught.value)
    assert word in str(caught.value)


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: No such file"):
        load_config(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="directory"):
        load_config(tmp_path)


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing\n")
    assert load_config(path) == Config()


def test_the_data_directory_may_begin_at_home() -> None:
    assert config_from({"data_directory": "~/x"}).directory == Path.home() / "x"
    assert config_from({"data_directory": "/tmp/x"}).directory == Path("/tmp/x")
