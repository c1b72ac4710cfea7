"""Removes one table of an array from a TOML document, and none of the comments around it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def remove_table(document: "TOMLDocument", section: str, name: str, at: int) -> None:
    """Remove a table of the array `section.name`.

    A comment above a table belongs, for the parser, to the table before it: it is kept.

    Args:
        document: the document, which is changed.
        section: the key of the table that has the array.
        name: the key of the array in it.
        at: the place of the table in it, from 0.

    Raises:
        IndexError: there is no such table.
    """
    from tomlkit.items import AoT, Comment, Whitespace  # noqa: PLC0415 - slow to import

    tables: Any = document[section][name]
    if not isinstance(tables, AoT):
        del tables[at]
        return
    body: list[Any] = tables[at].value.body
    comments: list[Any] = []
    while body and isinstance(body[-1][1], Comment | Whitespace):
        comments.insert(0, body.pop())
    del tables[at]
    rest: Any = tables
    if not any(isinstance(each, Comment) for _, each in comments):
        return
    if at > 0:
        rest[at - 1].value.body.extend(comments)
    elif len(rest) > 0:
        rest[0].value.body[:0] = comments
    else:
        for _, comment in comments:
            document.add(comment)
