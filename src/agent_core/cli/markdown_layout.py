"""Lays out Markdown in rows: words wrap, and code and addresses stay whole, to be copied."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode
from msgspec import Struct
from pygments.lexers import (
    get_lexer_by_name,  # pyright: ignore[reportUnknownVariableType]
)
from pygments.token import Token as Kind
from pygments.util import ClassNotFound

from agent_core.cli.layout import cells, cut_parts, spans_of, words_of
from agent_core.text import visible

LONGEST_COLOURED = 20_000
"""Characters of code that are coloured: a lexer takes long."""
_DEEPEST = 12
_TAB = 4
_BETWEEN = 2
_LEAST_ROOM = 8
_SPARE = 6
"""Columns by which a column of a table may grow once rows of it have been shown."""

PARSER = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["strikethrough", "table"])
    .disable(["reference", "entity"])
)
"""Parser that takes HTML and reference addresses as text, so that none of it is lost."""

_DIM = "2"
_HEADINGS = {"h1": "1;4", "h2": "1", "h3": "1", "h4": "1;3", "h5": "3", "h6": "3"}
_INLINE = {"strong": "1", "em": "3", "s": "9"}
_CODE_INLINE, _ADDRESS = "36", "4"
_CODE: dict[Any, str] = {
    Kind.Comment: "2",
    Kind.Keyword: "35",
    Kind.Literal.String: "32",
    Kind.Literal.Number: "36",
    Kind.Name.Function: "1;34",
    Kind.Name.Class: "1;34",
    Kind.Name.Builtin: "36",
    Kind.Name.Tag: "35",
    Kind.Name.Attribute: "36",
    Kind.Name.Decorator: "36",
    Kind.Generic.Deleted: "31",
    Kind.Generic.Inserted: "32",
    Kind.Generic.Heading: "1",
    Kind.Generic.Subheading: "36",
}
"""Only colours that can be read on dark and on light."""

Piece = tuple[str, str]
"""A text, and the numbers of its looks."""
Cell = Sequence[Piece]
"""The content of a cell of a table."""


class Row(Struct):
    """A line of a layout; with a long word or a line of code it may be wider than the window.

    Attributes:
        pieces: the text.
        lead: what comes before it and is not part of it: indents, bullets, rules, heads of tables.
        is_code: containers do not indent it.
        ends: the next row shows none of the same cells.
    """

    pieces: Sequence[Piece] = ()
    lead: Sequence[Piece] = ()
    is_code: bool = False
    ends: bool = True

    @property
    def size(self) -> int:
        """Return how many characters of the text it holds, blanks aside."""
        return sum(len("".join(text.split())) for text, _ in self.pieces)

    def equals(self, other: "Row") -> bool:
        """Return whether a row shows the same; code counts as the same in other colours."""
        is_same_code = self.is_code and other.is_code and _text(self.pieces) == _text(other.pieces)
        return is_same_code or self == other

    def without(self, count: int) -> "Row":
        """Return the row without the first characters of its text; its lead becomes blank."""
        whole, at = _text(self.pieces), 0
        while count or (at < len(whole) and whole[at] == " "):
            count -= not whole[at].isspace()
            at += 1
        lead = " " * cells(_text(self.lead))
        return Row(cut_parts(self.pieces, at, len(whole)), [(lead, "")], self.is_code)

    def shown(self, *, has_colours: bool) -> str:
        """Return the line for a terminal, without blanks at its end."""
        pieces = [*self.lead, *self.pieces]
        while pieces and not pieces[-1][0].rstrip(" "):
            pieces.pop()
        if pieces:
            pieces[-1] = (pieces[-1][0].rstrip(" "), pieces[-1][1])
        return "".join(
            f"\x1b[{look}m{text}\x1b[0m" if look and has_colours and text else text
            for text, look in ((visible(text, zero_width=False), look) for text, look in pieces)
        )


class Columns(Struct, frozen=True):
    """Widths of the columns of a table; without widths each row is a list of its cells.

    Attributes:
        line: of the source where the table begins.
        room: the width that they are for.
    """

    line: int
    room: int
    widths: Sequence[int]


class Layout:
    """Lays out Markdown for a width.

    Args:
        width: columns that a row may take.
        columns: of a table of which rows have been shown already.

    Attributes:
        columns: the columns of the last table.
    """

    def __init__(self, width: int, columns: Columns | None = None) -> None:
        self._width = width
        self._fixed = columns
        self.columns: Columns | None = None

    def fix(self) -> Columns | None:
        """Return the columns of the last table, widened for what its next lines may hold."""
        columns = self.columns
        if columns is None or columns == self._fixed or not columns.widths:
            return columns
        count = len(columns.widths)
        spare = columns.room - 1 - _BETWEEN * (count - 1) - sum(columns.widths)
        more = min(spare // count, _SPARE)
        return Columns(columns.line, columns.room, [width + more for width in columns.widths])

    def rows(self, text: str) -> list[Row]:
        """Return the rows of a text, whose blocks are set off by empty ones."""
        blocks: list[list[Row]] = []
        tokens = PARSER.parse(text)
        lines = text.split("\n")
        for part in _blocks(tokens):
            if max(token.level for token in part) > _DEEPEST:  # there is no room so far inside
                first, last = part[0].map or (0, len(lines))
                blocks.append([Row([(line, "")], is_code=True) for line in lines[first:last]])
            else:
                blocks += [self._block(node, self._width) for node in SyntaxTreeNode(part).children]
        return _apart([block for block in blocks if block])

    def _block(self, node: SyntaxTreeNode, room: int) -> list[Row]:
        room = max(room, _LEAST_ROOM)
        match node.type:
            case "paragraph":
                return _wrapped(_inline(node.children), room)
            case "heading":
                look = _HEADINGS[node.tag]
                parts = [(text, _joined(look, own)) for text, own in _inline(node.children)]
                return _wrapped(parts, room)
            case "fence" | "code_block":
                return [*_code(node.content, node.info if node.type == "fence" else "")]
            case "bullet_list" | "ordered_list":
                return self._list(node, room)
            case "blockquote":
                inside = [self._block(child, room - 2) for child in node.children]
                return _led(_apart(inside), [("▌ ", _DIM)], [("▌ ", _DIM)])
            case "table":
                return self._table(node, room)
            case "hr":
                return [Row(lead=[("─" * room, _DIM)])]
            case _:
                return _wrapped([(node.content.rstrip("\n"), "")], room)

    def _list(self, node: SyntaxTreeNode, room: int) -> list[Row]:
        rows: list[Row] = []
        number = int(node.attrs.get("start", 1))
        for item in node.children:
            lead = " • " if node.type == "bullet_list" else f" {number}{item.markup or '.'} "
            inside: list[Row] = []
            for block in (self._block(child, room - len(lead)) for child in item.children):
                has_code = any(each.is_code for each in (*inside[-1:], *block[:1]))
                inside += [Row(), *block] if has_code and inside else block
            if inside and inside[0].is_code:
                inside.insert(0, Row())
            if rows and rows[-1].is_code:
                rows.append(Row())
            indent = " " * len(lead)
            rows += _led(inside or [Row()], [(lead, _DIM)], [(indent, "")])
            number += 1
        return rows

    def _table(self, node: SyntaxTreeNode, room: int) -> list[Row]:
        lines = [
            [[*_inline(cell.children)] for cell in row.children]
            for part in node.children
            for row in part.children
        ]
        head, *body = lines
        line = node.map[0] if node.map else 0
        fixed = self._fixed
        if fixed is not None and (fixed.line, fixed.room) == (line, room):
            widths = fixed.widths
        else:
            widths = _fit_columns(lines, room)
        self.columns = Columns(line, room, widths)
        if not widths:
            return [*chain.from_iterable(_records(head, body, room))]
        aligns = [
            str(cell.attrs.get("style", "")) for cell in node.children[0].children[0].children
        ]
        marked = [[(text, _joined("1", look)) for text, look in cell] for cell in head]
        rows = [*_table_line(marked, widths, aligns)]
        heads = [Row(lead=row.pieces) for row in rows]
        heads.append(Row(lead=[(f" {'─' * (sum(widths) + _BETWEEN * (len(widths) - 1))}", _DIM)]))
        return [
            *heads,
            *chain.from_iterable(_table_line(cells_, widths, aligns) for cells_ in body),
        ]


def _blocks(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Yield the tokens of each block that is inside no other."""
    block: list[Token] = []
    for token in tokens:
        block.append(token)
        if not token.level and token.nesting <= 0:
            yield block
            block = []


def _apart(blocks: Iterable[Sequence[Row]]) -> list[Row]:
    rows: list[Row] = []
    for block in blocks:
        rows += [Row(), *block] if rows else block
    return rows


def _led(rows: Sequence[Row], first: Sequence[Piece], others: Sequence[Piece]) -> list[Row]:
    """Return rows behind a lead; code keeps the left edge, from where it is copied."""
    led: list[Row] = []
    for number, row in enumerate(rows):
        is_bare = row.is_code or not (number == 0 or row.pieces or row.lead or others[0][1])
        lead = () if is_bare else first if number == 0 else others
        led.append(Row(row.pieces, [*lead, *row.lead], row.is_code, row.ends))
    return led


def _joined(*looks: str) -> str:
    return ";".join(filter(None, looks))


def _inline(nodes: Sequence[SyntaxTreeNode], look: str = "") -> Iterator[Piece]:
    for node in nodes:
        match node.type:
            case "text":
                yield node.content, look
            case "softbreak":
                yield " ", look
            case "hardbreak":
                yield "\n", ""
            case "code_inline":
                yield node.content, _joined(look, _CODE_INLINE)
            case "image":
                yield f"{node.content} ({node.attrs.get('src')})", look
            case "link":
                yield from _link(node, look)
            case "inline" | "strong" | "em" | "s":
                yield from _inline(node.children, _joined(look, _INLINE.get(node.type, "")))
            case _:
                yield node.content, look


def _link(node: SyntaxTreeNode, look: str) -> Iterator[Piece]:
    """Yield the text of a link, and its address if that is another."""
    address = str(node.attrs.get("href", ""))
    inside = [*_inline(node.children, look)]
    text = _text(inside)
    if node.info == "auto" or text == address:
        yield text, _joined(look, _ADDRESS)
        return
    yield from inside
    yield " (", look
    yield address, _joined(look, _ADDRESS)
    yield ")", look


def _wrapped(parts: Iterable[Piece], room: int) -> list[Row]:
    pieces = [*parts]
    whole = _text(pieces)
    rows, at = list[Row](), 0
    for line in whole.split("\n"):
        spans = spans_of(line, room)
        rows += [Row(cut_parts(pieces, at + start, at + end)) for start, end in spans]
        at += len(line) + 1
    return rows


def _code(code: str, info: str) -> Iterator[Row]:
    code = code.rstrip().expandtabs(_TAB)
    line: list[Piece] = []
    for kind, text in _coloured(code, info):
        first, *others = text.split("\n")
        line.append((first, kind))
        for other in others:
            yield Row(line, is_code=True)
            line = [(other, kind)]
    yield Row(line, is_code=True)


def _coloured(code: str, info: str) -> Iterator[tuple[str, str]]:
    """Yield the looks and the pieces of code, every character of it."""
    name = info.split(maxsplit=1)[0] if info.strip() else ""
    try:
        lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
    except ClassNotFound:
        lexer = None
    if lexer is None or len(code) > LONGEST_COLOURED:
        yield "", code
        return
    found = [(kind, text) for kind, text in lexer.get_tokens(code) if text]
    if "".join(text for _, text in found) != code:
        yield "", code
        return
    for kind, text in found:
        while kind not in _CODE and kind.parent is not None:
            kind = kind.parent
        yield _CODE.get(kind, ""), text


def _text(pieces: Sequence[Piece]) -> str:
    return "".join(text for text, _ in pieces)


def _fit_columns(lines: Sequence[Sequence[Cell]], room: int) -> list[int]:
    """Return the widths of the columns; none if the words of the cells do not fit side by side."""
    columns = [*zip(*lines, strict=True)]
    wanted = [max(max(cells(_text(cell)) for cell in column), 1) for column in columns]
    least = [
        max(
            (cells(_text(cell)[a:b]) for cell in column for a, b in words_of(_text(cell))),
            default=1,
        )
        for column in columns
    ]
    room -= 1 + _BETWEEN * (len(columns) - 1)
    if sum(wanted) <= room:
        return wanted
    spare = room - sum(least)
    if spare < 0:
        return []
    more = [want - low for want, low in zip(wanted, least, strict=True)]
    return [low + spare * want // sum(more) for low, want in zip(least, more, strict=True)]


def _table_line(line: Sequence[Cell], widths: Sequence[int], aligns: Sequence[str]) -> list[Row]:
    """Return the rows of a line of a table."""
    wrapped = [_wrapped(cell, width) for cell, width in zip(line, widths, strict=True)]
    rows: list[Row] = []
    for number in range(max(map(len, wrapped), default=0)):
        pieces: list[Piece] = []
        for column, width, align in zip(wrapped, widths, aligns, strict=True):
            cell = column[number].pieces if number < len(column) else ()
            left = max(width - cells(_text(cell)), 0)
            before = left if "right" in align else left // 2 if "center" in align else 0
            gap = _BETWEEN if pieces else 1
            pieces += [(" " * (gap + before), ""), *cell, (" " * (left - before), "")]
        rows.append(Row(pieces, ends=False))
    rows[-1].ends = True
    return rows


def _records(
    head: Sequence[Cell], body: Sequence[Sequence[Cell]], room: int
) -> Iterator[list[Row]]:
    """Yield each line of a table as a list of its cells, behind the names of their columns."""
    if not body:
        yield _wrapped([*chain.from_iterable([*cell, (" ", "")] for cell in head)], room)
    for number, line in enumerate(body):
        rows = [Row()] if number else []
        for name, cell in zip(head, line, strict=True):
            if not _text(cell).strip():
                continue
            lead = [(f"{_text(name)}: " if _text(name).strip() else "", "1")]
            taken = cells(lead[0][0])
            if taken > room // 2:
                rows.append(Row(lead=lead))
                lead, taken = [("  ", "")], 2
            rows += _led(_wrapped(cell, max(room - taken, _LEAST_ROOM)), lead, [("  ", "")])
        yield rows
