"""YAML as values that know their lines, so that an error can point at the place.

Stricter than the parser: a key given twice is an error, and a document that repeats itself
through aliases until it is huge, or contains itself, is refused before anything walks it. Values
mean what they look like: a tag that says otherwise (`!!bool x`) is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import yaml

MAX_NODES = 20_000
_MAX_DEPTH = 50
_MAX_DIGITS = 40
_TAG = "tag:yaml.org,2002:"


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


def read_yaml(text: str, *, max_nodes: int = MAX_NODES) -> YamlSource:
    """Parse one document with the safe loader.

    Args:
        text: the document.
        max_nodes: how many values and keys it may have, repetitions counted.

    Raises:
        YamlFaultError: it is no YAML, has a key twice or a tag, or is too large or too deep.
    """
    try:
        return _read(text, max_nodes)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = error.problem or error.context or "it cannot be read"
        raise YamlFaultError(mark.line + 1 if mark else 1, f"not valid YAML: {reason}") from None
    except RecursionError:
        raise YamlFaultError(1, "it is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise YamlFaultError(1, f"not valid YAML: {reason}") from None


def _read(text: str, max_nodes: int) -> YamlSource:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise YamlFaultError(1, "the file is empty")
        walk = _Walk(cast("_Resolve", loader.resolve), max_nodes)  # pyright: ignore[reportUnknownMemberType] - untyped
        walk.visit(node, "", 0)
        construct = cast("Callable[[yaml.Node], Any]", loader.construct_document)  # pyright: ignore[reportUnknownMemberType] - untyped
        return YamlSource(construct(node), walk.lines)
    finally:
        loader.dispose()


_Resolve = Callable[[type[yaml.Node], str, tuple[bool, bool]], str]
"""The tag of a value by its looks; the flags say whether it is plain or quoted."""


class _Walk:
    """Visits every node once for each place where it stands."""

    def __init__(self, resolve: _Resolve, max_nodes: int) -> None:
        self.lines: dict[str, int] = {}
        self._count = 0
        self._resolve = resolve
        self._max_nodes = max_nodes

    def visit(self, node: yaml.Node, key: str, depth: int) -> None:
        line = node.start_mark.line + 1
        self.lines.setdefault(key, line)
        self._count += 1
        if self._count > self._max_nodes or depth > _MAX_DEPTH:
            raise YamlFaultError(line, "it is nested too deeply, or far too large")
        match node:
            case yaml.ScalarNode():
                self._check_scalar(node)
            case yaml.MappingNode(tag="tag:yaml.org,2002:map"):
                self._visit_mapping(node, key, depth)
            case yaml.SequenceNode(tag="tag:yaml.org,2002:seq"):
                for index, item in enumerate(node.value):
                    self.visit(item, f"{key}[{index}]", depth + 1)
            case _:
                raise _tagged(node)

    def _check_scalar(self, node: yaml.ScalarNode) -> None:
        is_plain = node.style is None
        if node.tag != self._resolve(yaml.ScalarNode, node.value, (is_plain, not is_plain)):
            raise _tagged(node)
        if node.tag == f"{_TAG}int" and len(node.value) > _MAX_DIGITS:
            reason = f"a number has at most {_MAX_DIGITS} digits"
            raise YamlFaultError(node.start_mark.line + 1, reason)

    def _visit_mapping(self, node: yaml.MappingNode, key: str, depth: int) -> None:
        seen: set[str] = set()
        for name_node, value_node in node.value:
            line = name_node.start_mark.line + 1
            if not isinstance(name_node, yaml.ScalarNode):
                raise YamlFaultError(line, "a key must be a word, not a list or a mapping")
            self._check_scalar(name_node)
            name = str(name_node.value)
            if name in seen:
                raise YamlFaultError(line, f"the key {name[:80]!r} is given twice")
            seen.add(name)
            shown = name if name.replace("-", "_").isidentifier() else f'"{name}"'
            inner = f"{key}.{shown}" if key else shown
            self.lines[inner] = line
            self.visit(value_node, inner, depth + 1)


def _tagged(node: yaml.Node) -> YamlFaultError:
    shown = str(node.tag).replace(_TAG, "!!")[:80]
    reason = f"the tag {shown} is not known here; write the value without a tag"
    return YamlFaultError(node.start_mark.line + 1, reason)
