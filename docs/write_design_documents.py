"""Writes the pages that compare the design documents with the program, from one table for each.

The tables are `docs/design_documents/NNN.toml`; docs/design_documents/README.md says how to add
rows. `make reference` writes the pages, and the suite fails if they differ from the tables, or if
a place that a table names does not exist.
"""

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
TABLES = DOCS / "design_documents"
MARK = "<!-- From here on written by docs/write_design_documents.py -->"
FROM_RUST = "agcore/coming-from-rust.md"


@dataclass(frozen=True)
class Row:
    """Something that a document names.

    Attributes:
        name: as the document has it.
        name_zh: a name that is a phrase, in Chinese; otherwise the same.
        place: where it is here, relative to the section's home; empty if it is not built.
        difference: how and why it is different; empty if it is the same.
        difference_zh: the same in Chinese.
        is_same: the document's own name leads to it.
    """

    name: str
    name_zh: str
    place: str
    difference: str
    difference_zh: str
    is_same: bool


@dataclass(frozen=True)
class Section:
    """A part of a document, and its rows.

    Attributes:
        title: of the part, in English.
        zh: its title in Chinese.
        home: the module that names and places without a dotted path of their own belong to.
        rows: what it names.
    """

    title: str
    zh: str
    home: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Table:
    """One document.

    Attributes:
        number: of the document.
        title: of the document, in English.
        zh: its title in Chinese.
        about: what it describes, and what implements it.
        about_zh: the same in Chinese.
        sections: its parts.
    """

    number: str
    title: str
    zh: str
    about: str
    about_zh: str
    sections: Sequence[Section]


def tables() -> list[Table]:
    """Read every table, in the order of the documents.

    Raises:
        ValueError: a row does not have one, two or four entries.
    """
    return [_table(path) for path in sorted(TABLES.glob("*.toml"))]


def _table(path: Path) -> Table:
    data = tomllib.loads(path.read_text("utf-8"))
    sections = [
        Section(
            each["title"],
            each["zh"],
            each.get("home", ""),
            [_row(row) for row in each["rows"]],
        )
        for each in data.pop("section")
    ]
    return Table(number=path.stem, sections=sections, **data)


def _row(given: list[Any]) -> Row:
    first, *rest = given
    name, name_zh = (first, first) if isinstance(first, str) else first
    match rest:
        case []:
            return Row(name, name_zh, name.replace("::", "."), "", "", is_same=True)
        case [place]:
            return Row(name, name_zh, place, "", "", is_same=False)
        case [place, difference, difference_zh]:
            return Row(name, name_zh, place, difference, difference_zh, is_same=False)
        case _:
            raise ValueError(f"a row has one, two or four entries: {given}")


def _code(text: str) -> str:
    """Mark a name as code; a phrase and a text with marks of its own stay as they are."""
    is_phrase = " " in text and not any(sign in text for sign in ("::", "(", "--", "[", "="))
    return text if "`" in text or is_phrase or not text else f"`{text}`"


def _place(place: str, top: str) -> str:
    """Format a place; a file is a link from the page, which is `top` below the repository."""
    path = place.partition("::")[0]
    return f"[`{place}`]({top}{path})" if "/" in place.split(" ")[0] else f"`{place}`"


def _lines(table: Sequence[Sequence[str]], *header: str) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"

    return "\n".join(map(line, [header, ["---"] * len(header), *table]))


def _section(section: Section, *, top: str = "../", is_chinese: bool = False) -> Iterator[str]:
    """Yield what is the same in one section, and a table of the rest."""
    same = ", ".join(_code(row.name) for row in section.rows if row.is_same)
    if section.home:
        yield f"在 `{section.home}` 中。" if is_chinese else f"In `{section.home}`."
    if same:
        yield f"与文档一致：{same}。" if is_chinese else f"As in the document: {same}."
    nothing = "未实现" if is_chinese else "not built"
    others = [
        (
            _code(row.name_zh if is_chinese else row.name),
            _place(row.place, top) if row.place else nothing,
            row.difference_zh if is_chinese else row.difference,
        )
        for row in section.rows
        if not row.is_same
    ]
    if others:
        english = ("document", "here", "difference")
        yield _lines(others, *(("文档", "这里", "差异与理由") if is_chinese else english))


def _overview(known: Sequence[Table], *, is_chinese: bool) -> str:
    """Return a table of the documents, with the numbers of their rows of each kind."""
    english = (
        "document",
        "same name here",
        "another place or a test",
        "different, with the reason",
    )
    chinese = ("文档", "同名", "位于别处或由测试对应", "有差异并附理由")
    lines: list[Sequence[str]] = []
    for table in known:
        rows = [row for section in table.sections for row in section.rows]
        same = sum(row.is_same for row in rows)
        different = sum(bool(row.difference) for row in rows)
        title = f"{table.number}: {table.zh if is_chinese else table.title}"
        lines.append((title, str(same), str(len(rows) - same - different), str(different)))
    return _lines(lines, *(chinese if is_chinese else english))


def _traced(table: Table, *, is_chinese: bool) -> Iterator[str]:
    """Yield the paragraphs about one document."""
    yield f"## {table.number}: {table.zh if is_chinese else table.title}"
    yield table.about_zh if is_chinese else table.about
    for section in table.sections:
        yield f"### {table.number}, {section.zh if is_chinese else section.title}"
        yield from _section(section, is_chinese=is_chinese)


def _from_rust(table: Table) -> Iterator[str]:
    """Yield the paragraphs of the page for readers of document 002: every name, by module."""
    for section in table.sections:
        if section.home:
            yield f"## {section.title}"
            yield from _section(section, top="../../")


def _below_mark(page: str, paragraphs: Iterable[str]) -> str:
    head = (DOCS / page).read_text("utf-8").partition(MARK)[0]
    return "\n\n".join([head.rstrip(), MARK, *paragraphs]) + "\n"


def pages() -> dict[str, str]:
    """Return the text of every page by its path below `docs/`.

    Raises:
        ValueError: a table has a row of the wrong form.
    """
    known = tables()
    (rust,) = (table for table in known if table.number == "002")
    written: dict[str, str] = {}
    for page, is_chinese in [("design-documents.md", False), ("design-documents.zh-CN.md", True)]:
        parts = (part for table in known for part in _traced(table, is_chinese=is_chinese))
        written[page] = _below_mark(page, [_overview(known, is_chinese=is_chinese), *parts])
    written[FROM_RUST] = _below_mark(FROM_RUST, _from_rust(rust))
    return written


def main() -> None:
    """Write the pages anew.

    Raises:
        OSError: a page cannot be written.
    """
    for page, text in pages().items():
        (DOCS / page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
