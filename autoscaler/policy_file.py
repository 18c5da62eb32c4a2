"""Reads a scaling policy from YAML. Whatever is wrong with it is said with file, line, key and what is allowed.

All troubles of one kind are told at once: first keys that are not known, then values, then contradictions
(`policy_check.py`), as one often makes the next.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from autoscaler.costs import Interest, read_interest
from autoscaler.policy import CapacityPolicy, ScalingPolicy
from autoscaler.policy_check import contradictions
from autoscaler.yaml_lines import Lines, Path
from cluster.errors import ConfigError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

ELSEWHERE = {
    "key_groups": "fixed at 4096",
    "max_groups_per_wave": "`transitions.wave_groups` of the cluster's configuration",
    "max_bytes_in_flight": "`transitions.wave_bytes` of the cluster's configuration",
    "prepare_timeout_s": "`transitions.prepare_timeout_ms` of the cluster's configuration",
    "max_extra_delay_ms": "`transitions.slow_switch_ms` of the cluster's configuration",
    "warm_spares": "`ray.spares` of the cluster's configuration",
    "ap": "access_point",
    "ep": "exit_point",
    "cp": "connection_point",
    "node_hour": "replica_hour; replicas are what a policy counts",
}
"""What people may look for here, and where it is."""


class Problem(NamedTuple):
    """line: from 1. key: as `layers.matcher.triggers[1].target`; empty for the whole document."""

    line: int
    key: str
    text: str


class PolicyFileError(ConfigError):
    """A policy that is not to be used. problems: all that was found, in order of lines."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = sorted(problems)
        super().__init__(
            "\n".join(f"{source}:{line}: {key + ': ' if key else ''}{text}" for line, key, text in self.problems)
        )


def load_policy(path: str | FilePath) -> ScalingPolicy:
    """Read a file. Raises ConfigError if it is unreadable, PolicyFileError if it holds no policy that can be used."""
    try:
        text = FilePath(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    return policy_of(text, str(path), FilePath(path).parent)


def load_interest(path: str | FilePath) -> Interest:
    """Read a summary of interest. Raises: ConfigError, which names the file and what is wrong."""
    try:
        document = FilePath(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return read_interest(document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def policy_of(text: bytes, source: str = "the policy", folder: FilePath = FilePath()) -> ScalingPolicy:
    """Return the policy of a YAML text; what it names another file for is read, relative to `folder`, and in its place.

    Raises as `load_policy`.
    """
    document = Lines(text, source)
    _durations(document.value)
    misfits = list(_misfits(document.value, inspect.type_info(ScalingPolicy), ()))
    if misfits:
        _fail(document, misfits)
    try:
        policy = msgspec.convert(document.value, ScalingPolicy)
    except msgspec.ValidationError as error:
        _fail(document, [_explained(error)])
    found = list(contradictions(policy))
    interest = policy.capacity.interest
    try:
        if isinstance(interest, str):
            interest = load_interest(folder / FilePath(interest).expanduser())
        elif interest is not None:
            interest.check()
    except ConfigError as error:
        found.append((("capacity", "interest"), str(error)))
    if found:
        _fail(document, found)
    return msgspec.structs.replace(policy, capacity=CapacityPolicy(interest))


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a policy file, for editors."""
    schema = msgspec.json.schema(ScalingPolicy)
    for definition in schema["$defs"].values():
        for name, value in definition.get("properties", {}).items():
            if name.endswith(("_s", "_ms")) or name == "horizon":
                default = {"default": value.pop("default")} if "default" in value else {}
                text = {"type": "string", "pattern": f"^{_DURATION.pattern}$"}
                definition["properties"][name] = {"anyOf": [value, text], **default}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Kittiwake scaling policy", **schema}


def _fail(document: Lines, found: list[tuple[Path, str]]) -> None:
    problems = [Problem(document.line(path), _key(path), text) for path, text in found]
    raise PolicyFileError(document.source, problems)


def _key(path: Path) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _durations(value: Any) -> None:
    """Turn `30s` into the number of the unit that the key names, in place."""
    if isinstance(value, list):
        for one in value:
            _durations(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            match = _DURATION.fullmatch(one) if isinstance(one, str) else None
            if match is not None and (key.endswith(("_s", "_ms")) or key == "horizon"):
                seconds = float(match[1]) * _SECONDS[match[2]]
                value[key] = round(seconds * 1000, 6) if key.endswith("_ms") else round(seconds, 9)
            else:
                _durations(one)


def _misfits(value: Any, kind: inspect.Type, path: Path) -> Iterator[tuple[Path, str]]:
    """Find keys and types of triggers that are not known, and keys that are missing."""
    if isinstance(kind, inspect.VarTupleType) and isinstance(value, list):
        for place, one in enumerate(value):
            yield from _misfits(one, kind.item_type, (*path, place))
    if not isinstance(value, dict):
        return
    structs = [one for one in getattr(kind, "types", (kind,)) if isinstance(one, inspect.StructType)]
    if structs and structs[0].tag_field is not None:
        tag = structs[0].tag_field
        names = {str(one.tag): one for one in structs}
        if value.get(tag) not in names:
            what = f"{value[tag]!r}" if tag in value else "missing"
            yield (*path, tag), f"{what}; allowed are {', '.join(sorted(names))}"
            return
        structs = [names[value[tag]]]
    for struct in structs:
        fields = {field.encode_name: field.type for field in struct.fields}
        allowed = sorted({*fields, *([struct.tag_field] if struct.tag_field else [])})
        for key, one in value.items():
            if key in fields:
                yield from _misfits(one, fields[key], (*path, key))
            elif key != struct.tag_field:
                near = difflib.get_close_matches(key, allowed, 1)
                hint = ELSEWHERE.get(key) or (near[0] if near else None)
                more = (
                    ""
                    if hint is None
                    else f" (did you mean {hint}?)"
                    if near and key not in ELSEWHERE
                    else f": see {hint}"
                )
                yield (*path, key), f"no such key{more}; allowed are {', '.join(allowed)}"
        for field in struct.fields:
            if field.required and field.encode_name not in value:
                yield path, f"{field.encode_name} is missing"


def _explained(error: msgspec.ValidationError) -> tuple[Path, str]:
    """Turn `Invalid enum value 'foo' - at `$.mode`` into the path, and a text that says what is allowed."""
    text, _, place = str(error).partition(" - at `")
    path: Path = tuple(
        int(part[1:-1]) if part.startswith("[") else part.removeprefix(".")
        for part in re.findall(r"\.\w+|\[\d+\]", place.rstrip("`").removeprefix("$"))
    )
    allowed = _literals(inspect.type_info(ScalingPolicy), path)
    return path, f"{text}; allowed are {', '.join(map(str, allowed))}" if allowed else text


def _literals(kind: inspect.Type, path: Path) -> list[object]:
    """Return the words that are allowed there, if it is words."""
    kinds: list[inspect.Type] = [kind]
    for part in path:
        following: list[inspect.Type] = []
        for one in (inner for outer in kinds for inner in getattr(outer, "types", (outer,))):
            if isinstance(one, inspect.StructType):
                following += [field.type for field in one.fields if field.encode_name == part]
            elif isinstance(one, inspect.VarTupleType):
                following.append(one.item_type)
        kinds = following
    flat = [inner for outer in kinds for inner in getattr(outer, "types", (outer,))]
    words = [value for one in flat if isinstance(one, inspect.LiteralType) for value in one.values]
    return sorted(set(words), key=str)
