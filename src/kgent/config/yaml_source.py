"""YAML as values that know their lines, so that an error can point at the place.

Stricter than the parser: a key given twice is an error, and a document that repeats itself
through aliases until it is huge, or contains itself, is refused before anything walks it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import yaml

_MAX_NODES = 20_000
_MAX_DEPTH = 50


class YamlFaultError(Exception):
    """The text cannot be used; `line` is counted from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


@dataclass(frozen=True, slots=True)
class YamlSource:
    """A document: its value, and the line of each dotted key (`deliverables.required[0].path`)."""

    value: Any
    lines: dict[str, int]

    def line_of(self, key: str) -> int:
        """The line of a key, or of the nearest one around it that is there."""
        while key not in self.lines and key:
            cut = max(key.rfind("."), key.rfind("["))
            key = key[:cut] if cut > 0 else ""
        return self.lines.get(key, 1)


def read_yaml(text: str) -> YamlSource:
    """Parse one document with the safe loader.

    Raises:
        YamlFaultError: it is no YAML, has a key twice, or is too large or too deep.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise YamlFaultError(1, "the file is empty")
        walk = _Walk()
        walk.visit(node, "", 0)
        construct = cast("Callable[[yaml.Node], Any]", loader.construct_document)  # pyright: ignore[reportUnknownMemberType] - untyped
        return YamlSource(construct(node), walk.lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = error.problem or error.context or "it cannot be read"
        raise YamlFaultError(mark.line + 1 if mark else 1, f"not valid YAML: {reason}") from None
    except RecursionError:
        raise YamlFaultError(1, "it is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise YamlFaultError(1, f"not valid YAML: {reason}") from None
    finally:
        loader.dispose()


class _Walk:
    """Visits every node once for each place where it stands."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        self._count = 0

    def visit(self, node: yaml.Node, key: str, depth: int) -> None:
        line = node.start_mark.line + 1
        self.lines.setdefault(key, line)
        self._count += 1
        if self._count > _MAX_NODES or depth > _MAX_DEPTH:
            raise YamlFaultError(line, "it is nested too deeply, or far too large")
        match node:
            case yaml.MappingNode():
                self._visit_mapping(node, key, depth)
            case yaml.SequenceNode():
                for index, item in enumerate(node.value):
                    self.visit(item, f"{key}[{index}]", depth + 1)
            case _:
                pass

    def _visit_mapping(self, node: yaml.MappingNode, key: str, depth: int) -> None:
        seen: set[str] = set()
        for name_node, value_node in node.value:
            name = str(name_node.value)
            line = name_node.start_mark.line + 1
            if name in seen:
                raise YamlFaultError(line, f"the key {name[:80]!r} is given twice")
            seen.add(name)
            shown = name if name.replace("-", "_").isidentifier() else f'"{name}"'
            inner = f"{key}.{shown}" if key else shown
            self.lines[inner] = line
            self.visit(value_node, inner, depth + 1)
