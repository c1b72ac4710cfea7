"""Markdown with a head: how instruction files, skills, agents and memories say what they are.

The head is YAML between two `---` lines. It comes from files anybody may have written, so its
size is bounded, it is loaded with the safe loader, and a broken one is a fact, not an exception.
"""

import re
from dataclasses import dataclass, field
from typing import Any, cast

MAX_HEAD_CHARS = 8192
"""A longer head is not read: it is no description any more."""

_HEAD = re.compile(
    r"\A---[ \t]*\r?\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """A text taken apart.

    Attributes:
        fields: the head's keys and values; empty where there is no readable head.
        body: the text after the head; all of it where there is no head.
        problem: why a head that is there could not be read, in words for the file's author.
    """

    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    body: str = ""
    problem: str | None = None

    def text(self, key: str) -> str:
        """The value of `key` on one line; empty if it is absent or not a scalar."""
        value = self.fields.get(key)
        if value is None or isinstance(value, dict | list):
            return ""
        return " ".join(str(value).split())


def parse_front_matter(text: str) -> FrontMatter:
    """Split a text into head and body. Never raises: what is wrong is in `problem`."""
    text = text.removeprefix("\ufeff")
    if not text.startswith("---"):
        return FrontMatter(body=text)
    match = _HEAD.match(text, 0, MAX_HEAD_CHARS)
    if match is None:
        return FrontMatter(body=text, problem="the front matter has no end line '---'")
    body = text[match.end() :]
    try:
        fields = _load(match[1])
    except ValueError as error:
        return FrontMatter(body=body, problem=f"the front matter is not readable: {error}")
    return FrontMatter(fields, body)


def _load(head: str) -> dict[str, Any]:
    import yaml  # noqa: PLC0415 - most runs read no front matter

    try:
        loaded: object = yaml.safe_load(head)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise ValueError(first or type(error).__name__) from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ValueError("it is no table of keys and values")
    return {str(key): value for key, value in cast("dict[object, Any]", loaded).items()}
