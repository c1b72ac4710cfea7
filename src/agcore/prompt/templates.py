"""The template language: the part of Handlebars that prompts need, without running code.

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
from pathlib import Path
from typing import Any, Self, cast

from agcore.prompt.error import PromptDepthError, PromptError
from agent_core.api.arguments import checks_arguments
from agent_core.errors import ArgumentError
from agent_core.opening import read_text
from agent_core.providers.jsontext import dump_text
from agent_core.text import kind_of, quoted

MAX_DEPTH = 100
"""Largest number of blocks and included templates nested in one another."""

_RAW_BEGINS = re.compile(r"\{\{\{\{\s*raw\s*\}\}\}\}")
_RAW_ENDS = re.compile(r"\{\{\{\{\s*/raw\s*\}\}\}\}")
_REST_OF_LINE = re.compile(r"[^\S\n]*(?:\n|\Z)")
_PATH = re.compile(r"@?[^\W\d][\w-]*(\.[\w-]+)*|\.")
_PARTIAL = re.compile(r"[\w./-]+")
_LONGEST_PLACE = 18
_MISSING = object()


class TemplateContext:
    """The values for a template's variables: text, numbers, lists and tables of them."""

    def __init__(
        self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), **more: Any
    ) -> None:
        if not isinstance(values, Iterable) or isinstance(values, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a program's
            raise ArgumentError(f"values must be a dict, not {kind_of(values)}", "values")
        self._values: dict[str, Any] = {**dict(values), **more}

    def set(self, name: str, value: Any) -> Self:
        """Set the value of a variable."""
        self._values[name] = value
        return self

    def get(self, name: str) -> Any:
        """Return the value of a variable; None if it has none."""
        return self._values.get(name)

    @property
    def values(self) -> Mapping[str, Any]:
        """Every variable."""
        return self._values


Values = TemplateContext | Mapping[str, Any]


class PromptTemplate:
    """A template that has been read and checked.

    Raises:
        PromptError: the source is not a template; names the line. `PromptDepthError`: its blocks
            are nested too deeply.
    """

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source
        self.nodes = _Parser(name, source).parse()

    @classmethod
    def from_file(cls, path: str | Path, name: str | None = None) -> Self:
        """Read a UTF-8 file; without a `name` it has the file's, less the suffix.

        Raises:
            PromptError: the file cannot be read, or is not a template.
        """
        file = Path(path)
        name = file.stem if name is None else name
        try:
            source = read_text(file, "utf-8-sig")
        except OSError as error:
            reason = f"the template file {file} cannot be read: {error.strerror or error}"
            raise PromptError(reason, template=name, path=str(file)) from error
        except UnicodeDecodeError as error:
            reason = f"the template file {file} is not UTF-8 (byte {error.start}); save it as UTF-8"
            raise PromptError(reason, template=name, path=str(file)) from error
        return cls(name, source)

    def __repr__(self) -> str:
        return f"PromptTemplate({self.name!r})"

    def render(
        self, context: Values | None = None, partials: "PromptTemplateRegistry | None" = None
    ) -> str:
        """Fill the template in; `{{> name}}` includes templates of `partials`.

        Raises:
            PromptError: a variable is missing; `details.variable` names it. In `{{#if x}}` a
                missing variable counts as false. `PromptDepthError`: templates that include one
                another are nested too deeply.
        """
        values = context.values if isinstance(context, TemplateContext) else (context or {})
        pieces: list[str] = []
        renderer = _Renderer(self.name, partials or PromptTemplateRegistry(), pieces)
        renderer.render(self.nodes, _Scope(values), 0)
        return "".join(pieces)

    def variables(self) -> list[str]:
        """Return the variables of the template, each once, in order of appearance."""
        return list(dict.fromkeys(_paths(self.nodes)))


@checks_arguments(constructor=True)
class PromptTemplateRegistry:
    """Templates by name; they may include one another."""

    def __init__(self, templates: Iterable[PromptTemplate] = ()) -> None:
        self._templates: dict[str, PromptTemplate] = {}
        for template in templates:
            self.register(template)

    @classmethod
    def from_folder(cls, folder: str | Path, pattern: str = "**/*.md") -> Self:
        """Load the templates from the files of a folder that match `pattern`.

        Each is named by its path below the folder, without the suffix: `mail/footer`.

        Raises:
            PromptError: there is no such folder, a file cannot be read or is not a template, or
                two of them have the same name.
        """
        root = Path(folder)
        if not root.is_dir():
            raise PromptError(f"there is no folder {root} to read templates from", path=str(root))
        files = sorted(file for file in root.glob(pattern) if file.is_file())
        names = (file.relative_to(root).with_suffix("").as_posix() for file in files)
        return cls(map(PromptTemplate.from_file, files, names))

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
        """Return the template of that name."""
        return self._templates.get(name)

    def names(self) -> list[str]:
        """Return every name, sorted."""
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
        line: the line where it begins.
        body: the nodes of a block, and those after `{{else}}`.
    """

    kind: str
    value: str = ""
    line: int = 0
    body: list["_Node"] = field(default_factory=list["_Node"])
    otherwise: list["_Node"] | None = None


class _Parser:
    """Parses a source from the first tag to the last, reading each part once."""

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._source = source
        self._open = [_Node("")]
        self._last_dashes = source.rfind("--}}")
        self._counted = (0, 1)  # a position, and its line

    def parse(self) -> Sequence[_Node]:
        """Return the nodes of the template.

        Raises:
            PromptError: the source is not a template.
        """
        source, at = self._source, 0
        while (start := source.find("{{", at)) >= 0:
            line = self._line(start)
            if raw := _RAW_BEGINS.match(source, start):
                raw_ends = _RAW_ENDS.search(source, raw.end())
                if raw_ends is None:
                    raise self._wrong(line, "{{{{raw}}}} is never closed")
                self._text(source[at:start])
                self._text(source[raw.end() : raw_ends.start()])
                at = raw_ends.end()
                continue
            tag, end = self._tag(start, line)
            is_block = not tag or tag[0] in "#/!" or tag.strip() == "else"
            after = _REST_OF_LINE.match(source, end) if is_block else None
            line_start = source.rfind("\n", at, start) + 1 or at
            is_first = line_start == 0 or source[line_start - 1] == "\n"
            if after and is_first and not source[line_start:start].strip():
                self._text(source[at:line_start])  # alone on its line, which is dropped
                at = after.end()
            else:
                self._text(source[at:start])
                at = end
            self._take(tag, line)
        self._text(source[at:])
        block = self._open[-1]
        if block.kind:
            raise self._wrong(block.line, f"{{{{#{block.kind} {block.value}}}}} is never closed")
        return block.body

    def _tag(self, start: int, line: int) -> tuple[str, int]:
        """Return the text between the braces that open at `start`, and the end of the tag."""
        if self._source.startswith("{{!--", start) and self._last_dashes >= start + 5:
            return "!", self._source.find("--}}", start + 5) + 4
        end = self._source.find("}}", start + 2)
        if end < 0:
            raise self._wrong(line, "a tag is never closed")
        return self._source[start + 2 : end], end + 2

    def _text(self, text: str) -> None:
        if text:
            self._add(_Node("text", text))

    def _add(self, node: _Node) -> None:
        block = self._open[-1]
        (block.body if block.otherwise is None else block.otherwise).append(node)

    def _line(self, at: int) -> int:
        """Return the line number of a position at or after the one asked for before."""
        place, line = self._counted
        self._counted = at, line + self._source.count("\n", place, at)
        return self._counted[1]

    def _take(self, tag: str, line: int) -> None:
        if tag.startswith("!"):
            return
        if tag[0:1] in {"#", "/"} or tag.strip() == "else":
            self._take_block(tag.strip(), line)
        elif tag.startswith(">"):
            name = tag[1:].strip()
            if not _PARTIAL.fullmatch(name):
                raise self._wrong(line, f"{quoted(name)} is not the name of a template")
            self._add(_Node("partial", name, line))
        else:
            self._add(_Node("variable", self._path(tag.strip(), line), line))

    def _take_block(self, tag: str, line: int) -> None:
        """Open a block, start its `{{else}}`, or close it."""
        block = self._open[-1]
        if tag.startswith("#"):
            kind, _, path = tag[1:].strip().partition(" ")
            if kind not in {"if", "each"}:
                reason = f"there is no block {{{{#{kind}}}}}; there are #if and #each"
                raise self._wrong(line, reason)
            if len(self._open) > MAX_DEPTH:
                reason = f"its blocks are nested deeper than {MAX_DEPTH} levels; make it flatter"
                raise self._wrong(line, reason, PromptDepthError)
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
            raise self._wrong(line, f"{quoted(path)} is not the name of a variable")
        return path

    def _wrong(self, line: int, reason: str, kind: type[PromptError] = PromptError) -> PromptError:
        message = f"the template {self._name!r} is wrong in line {line}: {reason}"
        return kind(message, template=self._name, line=line)


@dataclass(frozen=True, slots=True)
class _Scope:
    """The values of names at one place: the current item, then the enclosing scopes."""

    this: Any
    special: Mapping[str, Any] = field(default_factory=dict[str, Any])
    around: "_Scope | None" = None

    def look_up(self, path: str) -> Any:
        """Return the value at a path; `_MISSING` if there is none."""
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
    """Renders one template, and those it includes; `within` names the templates including it.

    The rendered text is added to `pieces`.
    """

    name: str
    partials: PromptTemplateRegistry
    pieces: list[str]
    within: tuple[str, ...] = ()

    def render(self, nodes: Sequence[_Node], scope: _Scope, depth: int) -> None:
        """Render nodes that are nested in `depth` blocks and templates.

        Raises:
            PromptError: a variable or a partial is missing, or a template includes itself.
        """
        for node in nodes:
            match node.kind:
                case "text":
                    self.pieces.append(node.value)
                case "variable":
                    value = self._value(node, scope)
                    if value is not None:
                        self.pieces.append(value if isinstance(value, str) else dump_text(value))
                case "if":
                    found = scope.look_up(node.value)
                    holds = found is not _MISSING and bool(found)
                    self.render(node.body if holds else node.otherwise or (), scope, depth + 1)
                case "each":
                    self._each(node, scope, depth + 1)
                case _:
                    self._include(node, scope, depth + 1)

    def _include(self, node: _Node, scope: _Scope, depth: int) -> None:
        name, found = node.value, self.partials.get(node.value)
        if found is None:
            message = f"there is no template {name!r} to include"
            raise self._wrong(node.line, message, partial=name)
        if name in (*self.within, self.name):
            raise self._wrong(node.line, f"{name!r} includes itself", partial=name)
        if depth > MAX_DEPTH:
            reason = f"{name!r} is included deeper than {MAX_DEPTH} levels; make it flatter"
            raise self._wrong(node.line, reason, PromptDepthError, partial=name)
        inner = _Renderer(name, self.partials, self.pieces, (*self.within, self.name))
        inner.render(found.nodes, scope, depth)

    def _each(self, node: _Node, scope: _Scope, depth: int) -> None:
        value = self._value(node, scope)
        if isinstance(value, Mapping):
            pairs = list(cast("Mapping[Any, Any]", value).items())
        elif value is None or (isinstance(value, Sequence) and not isinstance(value, str | bytes)):
            pairs = list(enumerate(cast("Sequence[Any]", value or ())))
        else:
            reason = f"{node.value} is not a list"
            raise self._wrong(node.line, reason, variable=node.value)
        if not pairs:
            self.render(node.otherwise or (), scope, depth)
        for index, (key, item) in enumerate(pairs):
            special = {
                "@index": index,
                "@key": key,
                "@first": index == 0,
                "@last": index == len(pairs) - 1,
            }
            self.render(node.body, _Scope(item, special, scope), depth)

    def _value(self, node: _Node, scope: _Scope) -> Any:
        value = scope.look_up(node.value)
        if value is _MISSING:
            reason = f"the variable {node.value!r} is missing"
            raise self._wrong(node.line, reason, variable=node.value)
        return value

    def _wrong(
        self, line: int, reason: str, kind: type[PromptError] = PromptError, **details: Any
    ) -> PromptError:
        message = f"the template {self.name!r} cannot be filled in, line {line}: {reason}"
        return kind(message, template=self.name, line=line, **details)


def _member(value: Any, name: str) -> Any:
    """Return a key of a mapping or an item of a list; templates cannot read attributes."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).get(name, _MISSING)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and name.isdecimal():
        items = cast("Sequence[Any]", value)
        place = int(name) if len(name) <= _LONGEST_PLACE else len(items)
        return items[place] if place < len(items) else _MISSING
    return _MISSING


def _paths(nodes: Sequence[_Node]) -> Iterator[str]:
    """Yield the paths a template mentions, in order, including those inside blocks."""
    for node in nodes:
        if node.kind in {"variable", "if", "each"}:
            yield node.value
        yield from _paths(node.body)
        yield from _paths(node.otherwise or ())
