"""Renders Markdown as it arrives: finished blocks once, the unfinished one again and again."""

import re
from io import StringIO
from itertools import accumulate, pairwise
from time import monotonic
from typing import Any, ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich import markdown as md
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.syntax import ANSISyntaxTheme, Syntax
from rich.text import Text
from rich.theme import Theme

from agent_core.text import visible

_LONGEST_BLOCK = 60_000
"""A longer block is shown as it is: it is data, and laying it out would take long."""
_LONGEST_CODE = 20_000
_LONGEST_LOOK = 8_000
_PAUSE_S = 0.1

_PARSER = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["strikethrough", "table"])
    .disable(["reference", "entity"])
)
"""HTML and addresses of references are text like any other: what is not shown would be lost."""
_LOOK = re.compile(r"(\x1b\[[0-9;]*m)")
_BLANK_END = re.compile(r"(?:\x1b\[[0-9;]*m *\x1b\[0m| )+$")

_CODE = ANSISyntaxTheme(
    {
        ("Comment",): Style(dim=True),
        ("Keyword",): Style(color="magenta"),
        ("Literal", "String"): Style(color="green"),
        ("Literal", "Number"): Style(color="cyan"),
        ("Name", "Function"): Style(color="blue", bold=True),
        ("Name", "Class"): Style(color="blue", bold=True),
        ("Name", "Builtin"): Style(color="cyan"),
        ("Name", "Tag"): Style(color="magenta"),
        ("Name", "Attribute"): Style(color="cyan"),
        ("Name", "Decorator"): Style(color="cyan"),
        ("Generic", "Deleted"): Style(color="red"),
        ("Generic", "Inserted"): Style(color="green"),
        ("Generic", "Heading"): Style(bold=True),
        ("Generic", "Subheading"): Style(color="cyan"),
    }
)
"""Only colours that can be read on dark and on light."""

_LOOKS = Theme(
    {
        "markdown.code": "cyan",
        "markdown.code_block": "none",
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "bold italic",
        "markdown.h5": "italic",
        "markdown.h6": "italic",
        "markdown.item.bullet": "dim",
        "markdown.item.number": "dim",
        "markdown.link": "none",
        "markdown.link_url": "underline",
        "markdown.block_quote": "dim",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
        "markdown.hr": "dim",
    }
)


class _Heading(md.Heading):
    LEVEL_ALIGN: ClassVar[dict[str, Any]] = {}


class _CodeBlock(md.CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        name = self.lexer_name if len(code) < _LONGEST_CODE else "text"
        yield Syntax(code, name, theme=_CODE, word_wrap=True, padding=(0, 2))


class _Image(md.ImageItem):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text.assemble(self.text or "", f" ({self.destination})", end="")


class _Table(md.TableElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            for column in getattr(table, "columns", ()):
                column.overflow = "fold"
            yield table


class _Document(md.Markdown):
    elements: ClassVar[dict[str, type[md.MarkdownElement]]] = {
        **md.Markdown.elements,
        "heading_open": _Heading,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
        "image": _Image,
        "table_open": _Table,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        self.parsed = _PARSER.parse(text)
        for token in self.parsed:
            token.children = _without_autolinks(token.children) if token.children else None


def _without_autolinks(tokens: list[Token]) -> list[Token]:
    """The tokens without links whose text is their address: they would be shown twice."""
    return [token for token in tokens if token.info != "auto"]


class MarkdownStream:
    """One message: finished blocks are taken from it, and the rest can be looked at.

    Args:
        has_colours: looks are used; otherwise only the layout.
    """

    def __init__(self, *, has_colours: bool) -> None:
        self._has_colours = has_colours
        self._rest = ""
        self._held_return = ""
        self._searched = 0.0
        self._has_taken = False

    def feed(self, text: str) -> None:
        """Add a piece of any size."""
        text = self._held_return + text
        self._held_return = "\r" if text.endswith("\r") else ""
        self._rest += visible(text.removesuffix("\r"), zero_width=False)

    def take(self, width: int) -> str:
        """The blocks that are finished, laid out, and no longer part of the rest.

        A block is finished once another one follows it.
        """
        now = monotonic()
        if "\n" not in self._rest or now - self._searched < _PAUSE_S:
            return ""
        self._searched = now
        end = self._rest.rfind("\n") + 1 if len(self._rest) > _LONGEST_BLOCK else self._last_block()
        done, self._rest = self._rest[:end], self._rest[end:]
        return self._spaced(done, width)

    def peek(self, width: int) -> list[str]:
        """The unfinished rest, laid out; its end alone where it is long."""
        if not self._rest.strip():
            return []
        is_long = len(self._rest) > _LONGEST_LOOK
        text = self._rest[-_LONGEST_LOOK // 4 :] if is_long else self._rest
        lines = (text if is_long else self._render(text, width)).splitlines()
        return ["", *lines] if self._has_taken else lines

    def finish(self, width: int) -> str:
        """All that is left, laid out."""
        rest, self._rest = self._rest + visible(self._held_return), ""
        self._held_return = ""
        return self._spaced(rest, width)

    def finish_plain(self) -> str:
        """All that is left, as it came."""
        rest, self._rest = self._rest + visible(self._held_return), ""
        self._held_return = ""
        return rest.strip("\n")

    def _last_block(self) -> int:
        """Where the last block begins; 0 if there is only one."""
        return ([0, *_starts(self._rest)])[-1]

    def _spaced(self, text: str, width: int) -> str:
        """The text laid out, with an empty line before it if some stands there already."""
        if not text.strip():
            return ""
        before = "\n" if self._has_taken else ""
        self._has_taken = True
        return before + self._render(text, width)

    def _render(self, text: str, width: int) -> str:
        if len(text) > _LONGEST_BLOCK:
            return text if text.endswith("\n") else f"{text}\n"
        screen = Console(
            file=StringIO(),
            width=width,
            force_terminal=True,
            color_system="standard" if self._has_colours else None,
            legacy_windows=False,
            highlight=False,
            emoji=False,
            theme=_LOOKS,
            _environ={},
        )
        blocks: list[str] = []
        starts = [0, *_starts(text), len(text)]
        for start, end in pairwise(starts):
            with screen.capture() as captured:
                screen.print(_Document(text[start:end]))
            lines = [_safe(_BLANK_END.sub("", line)) for line in captured.get().split("\n")]
            if block := "\n".join(lines).strip("\n"):
                blocks.append(f"{block}\n")
        return "\n".join(blocks)


def _starts(text: str) -> list[int]:
    """Where the second block begins and those after it, in characters."""
    tokens = _PARSER.parse(text)
    numbers = [
        token.map[0] for token in tokens if not token.level and token.nesting >= 0 and token.map
    ]
    places = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    return [places[number] for number in numbers[1:]]


def _safe(line: str) -> str:
    """A line that was laid out: between its looks nothing acts on a terminal."""
    parts = _LOOK.split(line)
    return "".join(
        part if number % 2 else visible(part, zero_width=False) for number, part in enumerate(parts)
    )
