"""`{{args.field}}` in the commands of declarative tools: the only thing that is ever filled in.

A value never becomes more than one word: an argument vector is filled element by element, and in
a shell string each value is quoted. Quoting holds only where the shell reads a plain word, so a
placeholder inside quotes, backticks or a here-document is refused when the tool is loaded.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

_PLACEHOLDER = re.compile(r"\{\{\s*args\.([A-Za-z_][A-Za-z0-9_-]*)\s*\}\}")
_ANY_BRACES = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_HERE_DOCUMENT = re.compile(r"(?<!<)<<(?!<)")


def placeholders(template: str) -> Iterator[str]:
    """The fields a template names.

    Raises:
        ValueError: there is something else between double braces.
    """
    for found in _ANY_BRACES.finditer(template):
        match = _PLACEHOLDER.fullmatch(found[0])
        if match is None:
            raise ValueError(f"{found[0][:80]} is not of the form {{{{args.field}}}}")
        yield match[1]


def filled_argv(argv: Sequence[str], arguments: Mapping[str, Any]) -> list[str]:
    """Each element with its values put in; an absent one is empty."""
    return [_PLACEHOLDER.sub(lambda m: _text(arguments.get(m[1])), part) for part in argv]


def filled_shell(script: str, arguments: Mapping[str, Any]) -> str:
    """The script with its values put in, each quoted as one word."""
    return _PLACEHOLDER.sub(lambda m: shlex.quote(_text(arguments.get(m[1]))), script)


def check_shell(script: str) -> None:
    """Make sure that every placeholder stands where a quoted word is read as one.

    Raises:
        ValueError: one is inside quotes, backticks or a script with a here-document.
    """
    starts = {match.start() for match in _PLACEHOLDER.finditer(script)}
    if starts and _HERE_DOCUMENT.search(script):
        raise ValueError("a script with placeholders cannot have a here-document (<<)")
    for position, quote in _quotes(script):
        if position in starts and quote:
            raise ValueError(
                f"a placeholder stands inside {quote}…{quote}; leave them out, values are quoted"
            )


def _quotes(script: str) -> Iterator[tuple[int, str]]:
    """Each position outside comments with the quote it is inside, or nothing."""
    quote, position = "", 0
    while position < len(script):
        character = script[position]
        yield position, quote
        if character == "\\" and quote != "'":
            position += 1
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"`":
            quote = character
        elif character == "#" and (position == 0 or script[position - 1] in " \t\n;&|("):
            position = (script + "\n").index("\n", position)
        position += 1


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return orjson.dumps(value).decode()
