"""The template language: the part of Handlebars that prompts need, and nothing that runs.

    {{ name }}  {{ user.city }}           a value; @index, @key, @first and @last inside #each
    {{#if x}} … {{else}} … {{/if}}
    {{#each xs}} {{ this }} {{/each}}
    {{> name}}                            another template
    {{{{raw}}}} {{ as it is }} {{{{/raw}}}}
    {{! a comment }}

A tag of a block or a comment that has a line to itself takes the line with it. Values are data:
nothing in them is read as a tag.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast

from agcore.errors import PromptError
from agent_core.providers.jsontext import dump_text

_TAG = re.compile(
    r"\{\{\{\{\s*raw\s*\}\}\}\}(?P<raw>.*?)\{\{\{\{\s*/raw\s*\}\}\}\}"
    r"|\{\{!--.*?--\}\}"
    r"|\{\{(?P<tag>.*?)\}\}",
    re.DOTALL,
)
_PATH = re.compile(r"@?[^\W\d][\w-]*(\.[\w-]+)*|\.")
_PARTIAL = re.compile(r"[\w./-]+")
_MISSING = object()


class TemplateContext:
    """The values for a template's variables: text, numbers, lists and tables of them."""

    def __init__(
        self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), **more: Any
    ) -> None:
        self._values: dict[str, Any] = {**dict(values), **more}

    def set(self, name: str, value: Any) -> Self:
        """Give a variable its value."""
        self._values[name] = value
        return self

    def get(self, name: str) -> Any:
        """The value of a variable; None if it has none."""
        return self._values.get(name)

    @property
    def values(self) -> Mapping[str, Any]:
        """Every variable."""
        return self._values


Values = TemplateContext | Mapping[str, Any]


class PromptTemplate:
    """A template that has been read and checked.

    Raises:
        PromptError: the source is not a template; names the line.
    """

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source
        self.nodes = _Parser(name, source).parse()

    def __repr__(self) -> str:
        return f"PromptTemplate({self.name!r})"

    def render(
        self, context: Values | None = None, partials: "PromptTemplateRegistry | None" = None
    ) -> str:
        """Fill the template in; `{{> name}}` includes templates of `partials`.

        Raises:
            PromptError: a variable is missing; `details.variable` names it. In `{{#if x}}` a
                missing variable counts as false.
        """
        values = context.values if isinstance(context, TemplateContext) else (context or {})
        renderer = _Renderer(self.name, partials or PromptTemplateRegistry())
        return "".join(renderer.render(self.nodes, _Scope(values)))

    def variables(self) -> list[str]:
        """The variables it mentions, each once, in their order."""
        return list(dict.fromkeys(_paths(self.nodes)))


class PromptTemplateRegistry:
    """Templates by name; they may include one another."""

    def __init__(self, templates: Iterable[PromptTemplate] = ()) -> None:
        self._templates: dict[str, PromptTemplate] = {}
        for template in templates:
            self.register(template)

    def register(self, template: PromptTemplate) -> None:
        """Add a template.

        Raises:
            PromptError: the name is taken.
        """
        if template.name in self._templates:
            message = f"there is already a template named {template.name!r}; give it another name"
            raise PromptError(message, template=template.name)
        self._templates[template.name] = template

    def get(self, name: str) -> PromptTemplate | None:
        """The template of that name."""
        return self._templates.get(name)

    def names(self) -> list[str]:
        """Every name, sorted."""
        return sorted(self._templates)

    def render(self, name: str, context: Values | None = None) -> str:
        """Fill in the template of that name.

        Raises:
            PromptError: there is none, or a variable is missing.
        """
        template = self._templates.get(name)
        if template is None:
            known = ", ".join(self.names()) or "none"
            message = f"there is no template named {name!r}; there are: {known}"
            raise PromptError(message, template=name)
        return template.render(context, self)


@dataclass(slots=True)
class _Node:
    """A part of a template.

    Attributes:
        kind: `text`, `variable`, `partial`, `if` or `each`; empty for the template itself.
        value: the text, the path or the name.
        line: where it begins.
        body: the nodes of a block, and those after `{{else}}`.
    """

    kind: str
    value: str = ""
    line: int = 0
    body: list["_Node"] = field(default_factory=list["_Node"])
    otherwise: list["_Node"] | None = None


class _Parser:
    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._source = source
        self._open = [_Node("")]

    def parse(self) -> Sequence[_Node]:
        """The nodes of the template.

        Raises:
            PromptError: it is not one.
        """
        at = 0
        for match in _TAG.finditer(self._source):
            start, end = match.span()
            tag = match["tag"]
            is_block = not tag or tag[0] in "#/!" or tag.strip() == "else"
            if match["raw"] is None and is_block:  # one that is alone on its line has the line
                line_start = self._source.rfind("\n", 0, start) + 1
                line_end = self._source.find("\n", end) + 1 or len(self._source)
                around = self._source[line_start:start] + self._source[end:line_end]
                if not around.strip():
                    start, end = line_start, line_end
            self._text(at, start)
            self._take(match)
            at = end
        self._text(at, len(self._source))
        block = self._open[-1]
        if block.kind:
            raise self._wrong(block.line, f"{{{{#{block.kind} {block.value}}}}} is never closed")
        return block.body

    def _text(self, start: int, end: int) -> None:
        stray = self._source.find("{{", start, end)
        if stray >= 0:
            raise self._wrong(self._line(stray), "a tag is never closed")
        if start < end:
            self._add(_Node("text", self._source[start:end]))

    def _add(self, node: _Node) -> None:
        block = self._open[-1]
        (block.body if block.otherwise is None else block.otherwise).append(node)

    def _line(self, at: int) -> int:
        return self._source.count("\n", 0, at) + 1

    def _take(self, match: re.Match[str]) -> None:
        line = self._line(match.start())
        raw, tag = match["raw"], match["tag"]
        if raw is not None:
            self._add(_Node("text", raw))
        elif tag is None or tag.startswith("!"):
            return
        elif tag[0:1] in {"#", "/"} or tag.strip() == "else":
            self._take_block(tag.strip(), line)
        elif tag.startswith(">"):
            name = tag[1:].strip()
            if not _PARTIAL.fullmatch(name):
                raise self._wrong(line, f"{name[:80]!r} is not the name of a template")
            self._add(_Node("partial", name, line))
        else:
            self._add(_Node("variable", self._path(tag.strip(), line), line))

    def _take_block(self, tag: str, line: int) -> None:
        """Open, turn or close a block."""
        block = self._open[-1]
        if tag.startswith("#"):
            kind, _, path = tag[1:].strip().partition(" ")
            if kind not in {"if", "each"}:
                reason = f"there is no block {{{{#{kind}}}}}; there are #if and #each"
                raise self._wrong(line, reason)
            self._open.append(_Node(kind, self._path(path.strip(), line), line))
        elif tag.startswith("/"):
            kind = tag[1:].strip()
            if not kind or block.kind != kind:
                raise self._wrong(line, f"{{{{/{kind}}}}} closes nothing that is open here")
            self._open.pop()
            self._add(block)
        elif not block.kind or block.otherwise is not None:
            raise self._wrong(line, "{{else}} belongs to no block here")
        else:
            block.otherwise = []

    def _path(self, path: str, line: int) -> str:
        if not _PATH.fullmatch(path):
            raise self._wrong(line, f"{path[:80]!r} is not the name of a variable")
        return path

    def _wrong(self, line: int, reason: str) -> PromptError:
        message = f"the template {self._name!r} is wrong in line {line}: {reason}"
        return PromptError(message, template=self._name, line=line)


@dataclass(frozen=True, slots=True)
class _Scope:
    """What names mean at one place: the current item, then everything around it."""

    this: Any
    special: Mapping[str, Any] = field(default_factory=dict[str, Any])
    around: "_Scope | None" = None

    def look_up(self, path: str) -> Any:
        """The value at a path; `_MISSING` if there is none."""
        if path == ".":
            return self.this
        first, *rest = path.split(".")
        value = self.this if first == "this" else _MISSING
        scope: _Scope | None = self
        while value is _MISSING and scope is not None and first != "this":
            value = scope.special.get(first, _MISSING)
            if value is _MISSING:
                value = _member(scope.this, first)
            scope = scope.around
        for step in rest:
            value = _member(value, step)
        return value


@dataclass(frozen=True, slots=True)
class _Renderer:
    """Renders one template, and those it includes; `within` are those that include it."""

    name: str
    partials: PromptTemplateRegistry
    within: tuple[str, ...] = ()

    def render(self, nodes: Sequence[_Node], scope: _Scope) -> Iterator[str]:
        """The pieces of the text.

        Raises:
            PromptError: a variable or a partial is missing, or a template includes itself.
        """
        for node in nodes:
            match node.kind:
                case "text":
                    yield node.value
                case "variable":
                    value = self._value(node, scope)
                    if value is not None:
                        yield value if isinstance(value, str) else dump_text(value)
                case "if":
                    found = scope.look_up(node.value)
                    holds = found is not _MISSING and bool(found)
                    yield from self.render(node.body if holds else node.otherwise or (), scope)
                case "each":
                    yield from self._each(node, scope)
                case _:
                    name, found = node.value, self.partials.get(node.value)
                    if found is None:
                        message = f"there is no template {name!r} to include"
                        raise self._wrong(node.line, message, partial=name)
                    if name in (*self.within, self.name):
                        reason = f"{name!r} includes itself"
                        raise self._wrong(node.line, reason, partial=name)
                    inner = _Renderer(name, self.partials, (*self.within, self.name))
                    yield from inner.render(found.nodes, scope)

    def _each(self, node: _Node, scope: _Scope) -> Iterator[str]:
        value = self._value(node, scope)
        if isinstance(value, Mapping):
            pairs = list(cast("Mapping[Any, Any]", value).items())
        elif value is None or (isinstance(value, Sequence) and not isinstance(value, str | bytes)):
            pairs = list(enumerate(cast("Sequence[Any]", value or ())))
        else:
            reason = f"{node.value} is no list to go through"
            raise self._wrong(node.line, reason, variable=node.value)
        if not pairs:
            yield from self.render(node.otherwise or (), scope)
        for index, (key, item) in enumerate(pairs):
            special = {
                "@index": index,
                "@key": key,
                "@first": index == 0,
                "@last": index == len(pairs) - 1,
            }
            yield from self.render(node.body, _Scope(item, special, scope))

    def _value(self, node: _Node, scope: _Scope) -> Any:
        value = scope.look_up(node.value)
        if value is _MISSING:
            reason = f"the variable {node.value!r} is missing"
            raise self._wrong(node.line, reason, variable=node.value)
        return value

    def _wrong(self, line: int, reason: str, **details: Any) -> PromptError:
        message = f"the template {self.name!r} cannot be filled in, line {line}: {reason}"
        return PromptError(message, template=self.name, line=line, **details)


def _member(value: Any, name: str) -> Any:
    """A key of a mapping or a place in a list. Attributes are not for templates to read."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).get(name, _MISSING)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and name.isdecimal():
        items = cast("Sequence[Any]", value)
        return items[int(name)] if int(name) < len(items) else _MISSING
    return _MISSING


def _paths(nodes: Sequence[_Node]) -> Iterator[str]:
    """The paths a template mentions, in their order, those inside blocks included."""
    for node in nodes:
        if node.kind in {"variable", "if", "each"}:
            yield node.value
        yield from _paths(node.body)
        yield from _paths(node.otherwise or ())
