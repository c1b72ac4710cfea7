"""Finds the lines of keys in a TOML file: the parser of the standard library tells none."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

_ENDS = ("]", "}", '"""', "'''")
_MOST_READ = 10_000_000
"""Characters that are parsed: a broken file may make every line a part of one statement."""
_AT_THE_END = r" \(at end of document\)$"


def dotted_key(path: Iterable[int | str]) -> str:
    """Write a key as TOML does, with the place in an array in brackets: `a.b[0]."c d"`."""
    parts: list[str] = []
    for part in path:
        if isinstance(part, int) and parts:
            parts[-1] += f"[{part}]"
        else:
            part = str(part)
            is_bare = part.replace("-", "_").isidentifier()
            parts.append(part if is_bare else json.dumps(part, ensure_ascii=False))
    return ".".join(parts)


def find_lines(text: str, *, with_headers: bool = False) -> dict[str, int]:
    """Return the line of each key of a TOML file, from 1.

    An array of tables has the line of its first table, and each table one of its own: `rules`,
    `rules[0]`, `rules[1]`. With `with_headers` the headers of other tables are found too.
    """
    lines, table, counts = dict[str, int](), tuple[int | str, ...](), dict[str, int]()
    for begin, statement, values in _statements(text):
        if not statement.lstrip().startswith("["):
            for path in values:
                lines.setdefault(dotted_key((*table, *path)), begin)
            continue
        table, is_array = (), statement.lstrip().startswith("[[")
        (header,) = values
        for at, part in enumerate(header, 1):
            table = (*table, part)
            key = dotted_key(table)
            if is_array and at == len(header):
                lines.setdefault(key, begin)
                counts[key] = counts.get(key, 0) + 1
            if key in counts:
                table = (*table, counts[key] - 1)
        if is_array or with_headers:
            lines.setdefault(dotted_key(table), begin)
    return lines


def find_line(lines: Mapping[str, int], key: str) -> int | None:
    """Return the line of a key, else of what it belongs to: its table, or an array."""
    while key and key not in lines:
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return lines.get(key)


def problem_of(text: str, error: ValueError) -> str:
    """Return why a text is not TOML, with a line even if it was noticed only at the end."""
    message = str(error)
    if not re.search(_AT_THE_END, message):
        return message
    begin = 1
    for at, statement, _ in _statements(text):
        begin = at + statement.count("\n")
    lines = text.split("\n")
    while begin < len(lines) and not lines[begin - 1].partition("#")[0].strip():
        begin += 1
    return re.sub(_AT_THE_END, f" (begun at line {begin}, and never ended)", message)


def _statements(text: str) -> Iterator[tuple[int, str, list[Sequence[str]]]]:
    """Yield the first line of each statement, its text, and the keys that it sets."""
    import tomllib  # noqa: PLC0415 - not every home has a file

    begin, statement, left = 1, "", _MOST_READ
    for number, line in enumerate(text.split("\n"), 1):
        statement += f"{line}\n"
        # A value over several lines ends with one of these.
        if number > begin and not any(end in line for end in _ENDS):
            continue
        left -= len(statement)
        if left < 0:
            return
        try:
            table = tomllib.loads(statement)
        except (ValueError, RecursionError):
            continue
        if table:
            yield begin, statement, [path for path, _ in leaves(table)]
        begin, statement = number + 1, ""


def leaves(table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the keys and values below all tables; an empty table is a value."""
    pending: list[tuple[tuple[str, ...], Any]] = [((), table)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict) and value:
            inner = cast("dict[str, Any]", value)
            pending += reversed([((*path, name), each) for name, each in inner.items()])
        else:
            yield path, value
