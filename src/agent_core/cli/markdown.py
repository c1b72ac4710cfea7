"""Renders Markdown as it arrives: finished blocks once, the unfinished one again and again."""

import re
from collections.abc import Iterator
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
from rich.theme import Theme

from agent_core.cli.layout import wrapped
from agent_core.text import visible

_LONGEST_MESSAGE = 100_000
"""Characters that are laid out; the rest is shown as it is, since layout takes long."""
_LONGEST_CODE = 60_000
_LONGEST_BLOCK = 10_000
_LONGEST_LOOK = 4_000
_LONGEST_COLOURED = 20_000
_DEEPEST = 12
_PAUSE_S = 0.1
_SHARE = 5
"""Reading unfinished text takes at most one part in this many of the time."""

_PARSER = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["strikethrough", "table"])
    .disable(["reference", "entity"])
)
"""Parser that takes HTML and reference addresses as text, so that none of it is lost."""
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
        name = self.lexer_name if len(code) < _LONGEST_COLOURED else "text"
        yield Syntax(code, name, theme=_CODE, word_wrap=True, padding=(0, 2))


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
        "table_open": _Table,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        self.parsed = _PARSER.parse(text)
        for token in self.parsed:
            token.children = list(_inline(token.children)) if token.children else None


def _inline(tokens: list[Token]) -> Iterator[Token]:
    """Return the tokens without links whose text is their address, and with words for pictures."""
    for token in tokens:
        if token.type == "image":
            yield Token("text", "", 0, content=f"{token.content} ({token.attrs.get('src')})")
        elif token.info != "auto":
            yield token


class MarkdownStream:
    """One message: finished blocks are taken from it, and the rest can be looked at.

    Args:
        has_colours: looks are used; otherwise only the layout.
    """

    def __init__(self, *, has_colours: bool) -> None:
        self._has_colours = has_colours
        self._rest = ""
        self._held_return = ""
        self._room = _LONGEST_MESSAGE
        self._has_taken = False
        self._next_search = self._next_look = 0.0
        self._looked_at: tuple[int, list[str]] = (0, [])

    def feed(self, text: str) -> None:
        """Add a piece of any size."""
        text = self._held_return + text
        self._held_return = "\r" if text.endswith("\r") else ""
        self._rest += visible(text.removesuffix("\r"), zero_width=False)

    def take(self, width: int) -> str:
        """The blocks that are finished, laid out, and no longer part of the rest.

        A block is finished once another one follows it.
        """
        began = monotonic()
        if "\n" not in self._rest or began < self._next_search:
            return ""
        is_code = self._rest.lstrip().startswith(("```", "~~~"))
        most = min(_LONGEST_CODE if is_code else _LONGEST_BLOCK, max(self._room, 0))
        end = self._rest.rfind("\n") + 1 if len(self._rest) > most else self._last_block()
        done, self._rest = self._rest[:end], self._rest[end:]
        taken = self._spaced(done, width)
        if end:
            self._next_look = 0.0
        self._next_search = monotonic() + max((monotonic() - began) * _SHARE, _PAUSE_S)
        return taken

    def peek(self, width: int) -> list[str]:
        """The unfinished rest as it was a moment ago, laid out; its end alone where it is long."""
        began = monotonic()
        if not self._rest.strip():
            return []
        if began < self._next_look and self._looked_at[0] == width:
            return self._looked_at[1]
        is_long = len(self._rest) > _LONGEST_LOOK
        if is_long:
            tail = self._rest[-_LONGEST_LOOK:].split("\n")[-20:]
            lines = [part for line in tail for part in wrapped(line, width)]
        else:
            lines = self._render(self._rest, width).splitlines()
        self._looked_at = width, ["", *lines] if self._has_taken else lines
        self._next_look = monotonic() + (monotonic() - began) * _SHARE
        return self._looked_at[1]

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
        """Return the start of the last block; 0 if there is only one."""
        return ([0, *_starts(self._rest)])[-1]

    def _spaced(self, text: str, width: int) -> str:
        """Lay out the text, with an empty line before it if other text comes before."""
        if not text.strip():
            return ""
        before = "\n" if self._has_taken and self._room > 0 else ""
        self._has_taken = True
        rendered = self._render(text, width)
        self._room -= len(text)
        return before + rendered

    def _render(self, text: str, width: int) -> str:
        is_code = text.lstrip().startswith(("```", "~~~"))
        if len(text) > min(_LONGEST_CODE if is_code else 2 * _LONGEST_BLOCK, self._room):
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
            document = _Document(text[start:end])
            if max((token.level for token in document.parsed), default=0) > _DEEPEST:
                blocks.append(f"{text[start:end].rstrip()}\n")  # there is no room so far inside
                continue
            with screen.capture() as captured:
                screen.print(document)
            lines = [_safe(_BLANK_END.sub("", line)) for line in captured.get().split("\n")]
            if block := "\n".join(lines).strip("\n"):
                blocks.append(f"{block}\n")
        return "\n".join(blocks)


def _starts(text: str) -> list[int]:
    """Return the starts of the second block and later ones, in characters."""
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
