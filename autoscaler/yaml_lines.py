"""YAML as plain values, together with the line that each key and value stands on.

`yaml.safe_load` forgets where things stood, and takes a key given twice for its last value; a person who mends a file
needs the line, and would look for the wrong one. Paths are tuples of keys and places: ("slo", 0, "target").
"""

from __future__ import annotations

from typing import Any, Final

import yaml

from cluster.errors import ConfigError

Path = tuple[str | int, ...]
FILE_BYTES: Final = 1 << 18
NODES: Final = 20_000
"""Values in one document; aliases count each time, so that a few of them cannot become billions."""


class Lines:
    """A parsed document. value: plain dicts, lists and scalars. lines: per path its line, from 1; of a key its own."""

    def __init__(self, text: bytes, source: str) -> None:
        """Raises ConfigError, with source and line, if the text is too long, no YAML, or gives a key twice."""
        self.source = source
        self.lines: dict[Path, int] = {}
        self._left = NODES
        if len(text) > FILE_BYTES:
            raise ConfigError(f"{source}: {len(text)} bytes, the limit is {FILE_BYTES}")
        try:
            loader = yaml.SafeLoader(text.decode("utf-8-sig"))
            node = loader.get_single_node()
            self._loader = loader
            self.value: Any = None if node is None else self._plain(node, ())
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = source if mark is None else f"{source}:{mark.line + 1}"
            raise ConfigError(f"{where}: not YAML: {error.problem or error.context}") from error
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"{source}: not YAML: {error}") from error
        except ValueError as error:  # such as a date that is none
            raise ConfigError(f"{source}: {error}") from error

    def line(self, path: Path) -> int:
        """Return the line of what the path leads to, or of the nearest that is there."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)

    def _plain(self, node: yaml.Node, path: Path) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ConfigError(f"{self.source}:{node.start_mark.line + 1}: more than {NODES} values")
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            found: dict[str, Any] = {}
            for key, value in node.value:
                line = key.start_mark.line + 1
                if not isinstance(key, yaml.ScalarNode):
                    raise ConfigError(f"{self.source}:{line}: a key that is a list or a mapping")
                if key.value in found:
                    first = self.lines[(*path, key.value)]
                    raise ConfigError(f"{self.source}:{line}: {key.value} is given twice, first in line {first}")
                self.lines[(*path, key.value)] = line
                found[key.value] = self._plain(value, (*path, key.value))
            return found
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(one, (*path, place)) for place, one in enumerate(node.value)]
        return self._loader.construct_object(node)
