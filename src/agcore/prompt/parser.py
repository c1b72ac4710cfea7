"""Reads the template language: the part of Handlebars that prompts need, and nothing that runs.

    {{ name }}  {{ user.city }}           a value; @index, @key, @first and @last inside #each
    {{#if x}} … {{else}} … {{/if}}
    {{#each xs}} {{ this }} {{/each}}
    {{> name}}                            another template
    {{{{raw}}}} {{ as it is }} {{{{/raw}}}}
    {{! a comment }}

A tag of a block or a comment that has a line to itself takes the line with it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from agcore.prompt.errors import PromptError
from agcore.prompt.nodes import Each, If, Node, Nodes, Partial, Text, Variable

_TAG = re.compile(
    r"\{\{\{\{\s*raw\s*\}\}\}\}(?P<raw>.*?)\{\{\{\{\s*/raw\s*\}\}\}\}"
    r"|\{\{!--.*?--\}\}"
    r"|\{\{(?P<tag>.*?)\}\}",
    re.DOTALL,
)
_PATH = re.compile(r"@?[^\W\d][\w-]*(\.[\w-]+)*|\.")
_PARTIAL = re.compile(r"[\w./-]+")
_BLOCKS = ("if", "each")


@dataclass(slots=True)
class _Open:
    """A block whose end has not come yet; the template itself is the outermost."""

    kind: str = ""
    path: str = ""
    line: int = 0
    then: list[Node] = field(default_factory=list[Node])
    otherwise: list[Node] | None = None

    @property
    def nodes(self) -> list[Node]:
        return self.then if self.otherwise is None else self.otherwise

    def closed(self) -> Node:
        make = If if self.kind == "if" else Each
        return make(self.path, self.line, self.then, self.otherwise or [])


def parse(name: str, source: str) -> Nodes:
    """Read a template.

    Raises:
        PromptError: it is not one; names the template and the line.
    """
    return _Parser(name, source).parse()


class _Parser:
    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._source = source
        self._open = [_Open()]

    def parse(self) -> Nodes:
        at = 0
        for match in _TAG.finditer(self._source):
            start, end = self._extent(match)
            self._text(at, start)
            self._take(match)
            at = end
        self._text(at, len(self._source))
        if len(self._open) > 1:
            block = self._open[-1]
            raise self._wrong(block.line, f"{{{{#{block.kind} {block.path}}}}} is never closed")
        return self._open[0].then

    def _text(self, start: int, end: int) -> None:
        stray = self._source.find("{{", start, end)
        if stray >= 0:
            raise self._wrong(self._line(stray), "a tag is never closed")
        if start < end:
            self._open[-1].nodes.append(Text(self._source[start:end]))

    def _line(self, at: int) -> int:
        return self._source.count("\n", 0, at) + 1

    def _take(self, match: re.Match[str]) -> None:
        line = self._line(match.start())
        raw, tag = match["raw"], match["tag"]
        if raw is not None:
            self._open[-1].nodes.append(Text(raw))
        elif tag is None or tag.startswith("!"):
            return
        elif tag.startswith("#"):
            self._begin(tag[1:].strip(), line)
        elif tag.startswith("/"):
            self._end(tag[1:].strip(), line)
        elif tag.strip() == "else":
            self._else(line)
        elif tag.startswith(">"):
            self._open[-1].nodes.append(Partial(self._named(tag[1:].strip(), line), line))
        else:
            self._open[-1].nodes.append(Variable(self._path(tag.strip(), line), line))

    def _begin(self, tag: str, line: int) -> None:
        kind, _, path = tag.partition(" ")
        if kind not in _BLOCKS:
            raise self._wrong(line, f"there is no block {{{{#{kind}}}}}; there are #if and #each")
        self._open.append(_Open(kind, self._path(path.strip(), line), line))

    def _end(self, kind: str, line: int) -> None:
        if len(self._open) == 1 or self._open[-1].kind != kind:
            raise self._wrong(line, f"{{{{/{kind}}}}} closes nothing that is open here")
        block = self._open.pop()
        self._open[-1].nodes.append(block.closed())

    def _else(self, line: int) -> None:
        block = self._open[-1]
        if not block.kind or block.otherwise is not None:
            raise self._wrong(line, "{{else}} belongs to no block here")
        block.otherwise = []

    def _path(self, path: str, line: int) -> str:
        if not _PATH.fullmatch(path):
            raise self._wrong(line, f"{path[:80]!r} is not the name of a variable")
        return path

    def _named(self, name: str, line: int) -> str:
        if not _PARTIAL.fullmatch(name):
            raise self._wrong(line, f"{name[:80]!r} is not the name of a template")
        return name

    def _extent(self, match: re.Match[str]) -> tuple[int, int]:
        """Where the tag begins and ends; one that is alone on its line has the whole line."""
        start, end = match.span()
        tag = match["tag"]
        if match["raw"] is not None or (tag and tag[0] not in "#/!" and tag.strip() != "else"):
            return start, end
        source = self._source
        line_start = source.rfind("\n", 0, start) + 1
        newline = source.find("\n", end)
        line_end = len(source) if newline < 0 else newline + 1
        if source[line_start:start].strip() or source[end:line_end].strip():
            return start, end
        return line_start, line_end

    def _wrong(self, line: int, reason: str) -> PromptError:
        message = f"the template {self._name!r} is wrong in line {line}: {reason}"
        return PromptError(message, template=self._name, line=line)


def variables(nodes: Nodes) -> Iterator[str]:
    """The paths a template mentions, in their order, those inside blocks included."""
    for node in nodes:
        match node:
            case Variable(path=path):
                yield path
            case If():
                yield node.path
                yield from variables(node.then)
                yield from variables(node.otherwise)
            case Each():
                yield node.path
                yield from variables(node.body)
                yield from variables(node.otherwise)
            case Text() | Partial():
                pass
