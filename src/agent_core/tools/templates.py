"""`{{args.field}}` in the commands of declarative tools: the only thing that is ever filled in.

A value never becomes more than one word: an argument vector is filled element by element, and a
shell script (`agent_core.tools.script`) gets each value as a parameter.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

PLACEHOLDER = re.compile(r"\{\{\s*args\.([A-Za-z_][A-Za-z0-9_-]*)\s*\}\}")
_ANY_BRACES = re.compile(r"\{\{.*?\}\}", re.DOTALL)


def placeholders(template: str) -> Iterator[str]:
    """The fields a template names.

    Raises:
        ValueError: there is something else between double braces.
    """
    for found in _ANY_BRACES.finditer(template):
        match = PLACEHOLDER.fullmatch(found[0])
        if match is None:
            raise ValueError(f"{found[0][:80]} is not of the form {{{{args.field}}}}")
        yield match[1]


def filled_argv(argv: Sequence[str], arguments: Mapping[str, Any]) -> list[str]:
    """Each element with its values put in; an absent one is empty."""
    return [PLACEHOLDER.sub(lambda m: value_text(arguments.get(m[1])), part) for part in argv]


def value_text(value: object) -> str:
    """A value as one word: a string as it is, nothing for null, everything else as JSON."""
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return orjson.dumps(value).decode()
