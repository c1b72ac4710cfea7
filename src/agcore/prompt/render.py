"""Fills a parsed template in. Values are data: nothing in them is ever read as a tag."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from agcore.prompt.errors import PromptError
from agcore.prompt.nodes import Each, If, Nodes, Partial, Text, Variable
from agent_core.providers.jsontext import dump_text

FindPartial = Callable[[str], Nodes | None]

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Scope:
    """What names mean at one place: the current item, then everything around it."""

    this: Any
    special: Mapping[str, Any] = field(default_factory=dict[str, Any])
    around: "Scope | None" = None

    def find(self, name: str) -> Any:
        """The value of a name without dots; `_MISSING` if it has none."""
        if name in {"this", "."}:
            return self.this
        scope: Scope | None = self
        while scope is not None:
            if name in scope.special:
                return scope.special[name]
            found = _member(scope.this, name)
            if found is not _MISSING:
                return found
            scope = scope.around
        return _MISSING


@dataclass(frozen=True, slots=True)
class Renderer:
    """Renders one template, and those it includes.

    Attributes:
        name: of the template, for messages.
        partials: finds what `{{> name}}` includes.
        within: the templates that are being included, outermost first.
    """

    name: str
    partials: FindPartial
    within: tuple[str, ...] = ()

    def render(self, nodes: Nodes, scope: Scope) -> Iterator[str]:
        """The pieces of the text.

        Raises:
            PromptError: a variable or a partial is missing, or a template includes itself.
        """
        for node in nodes:
            match node:
                case Text(text=text):
                    yield text
                case Variable():
                    yield _as_text(self._value(node.path, node.line, scope))
                case If():
                    found = _lookup(node.path, scope)
                    holds = found is not _MISSING and bool(found)
                    yield from self.render(node.then if holds else node.otherwise, scope)
                case Each():
                    yield from self._each(node, scope)
                case Partial():
                    yield from self._partial(node, scope)

    def _each(self, node: Each, scope: Scope) -> Iterator[str]:
        value = self._value(node.path, node.line, scope)
        pairs = self._pairs(value, node)
        if not pairs:
            yield from self.render(node.otherwise, scope)
        for index, (key, item) in enumerate(pairs):
            special = {
                "@index": index,
                "@key": key,
                "@first": index == 0,
                "@last": index == len(pairs) - 1,
            }
            yield from self.render(node.body, Scope(item, special, scope))

    def _pairs(self, value: Any, node: Each) -> list[tuple[Any, Any]]:
        if value is None:
            return []
        if isinstance(value, Mapping):
            return list(cast("Mapping[Any, Any]", value).items())
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            return list(enumerate(cast("Sequence[Any]", value)))
        raise self._wrong(node.line, f"{node.path} is no list to go through", variable=node.path)

    def _partial(self, node: Partial, scope: Scope) -> Iterator[str]:
        found = self.partials(node.name)
        if found is None:
            message = f"there is no template {node.name!r} to include"
            raise self._wrong(node.line, message, partial=node.name)
        if node.name in (*self.within, self.name):
            raise self._wrong(node.line, f"{node.name!r} includes itself", partial=node.name)
        inner = Renderer(node.name, self.partials, (*self.within, self.name))
        yield from inner.render(found, scope)

    def _value(self, path: str, line: int, scope: Scope) -> Any:
        value = _lookup(path, scope)
        if value is _MISSING:
            raise self._wrong(line, f"the variable {path!r} is missing", variable=path)
        return value

    def _wrong(self, line: int, reason: str, **details: Any) -> PromptError:
        message = f"the template {self.name!r} cannot be filled in, line {line}: {reason}"
        return PromptError(message, template=self.name, line=line, **details)


def _lookup(path: str, scope: Scope) -> Any:
    if path == ".":
        return scope.this
    first, *rest = path.split(".")
    value = scope.find(first)
    for step in rest:
        value = _member(value, step)
    return value


def _member(value: Any, name: str) -> Any:
    """A key of a mapping or a place in a list. Attributes are not for templates to read."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).get(name, _MISSING)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and name.isdecimal():
        items = cast("Sequence[Any]", value)
        return items[int(name)] if int(name) < len(items) else _MISSING
    return _MISSING


def _as_text(value: Any) -> str:
    match value:
        case str():
            return value
        case None:
            return ""
        case _:
            return dump_text(value)
