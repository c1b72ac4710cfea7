"""The tables `[[permissions.rules]]`: which calls are allowed, asked for, or refused."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from agent_core.config.section import Section
from agent_core.text import quoted

RuleDecision = Literal["allow", "ask", "deny"]
_MOST_RULES = 1_000
_MOST = 4_096
_TOOL = r"[\w.*?!\[\]-]+"
_HOST = r"(?:\*\.)?[\w.-]+|\[?[0-9a-fA-F.]*(?::[0-9a-fA-F.]*){2,}\]?"
_BRACES = r"(?<!\[)\{[^}/]*,[^/]*\}"


def _as_list(value: object) -> list[object]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError("must be a string, or an array of strings")
    if not value:
        raise ValueError("is empty; name at least one, or remove the key")
    return cast("list[object]", value)


def _as_words(value: object) -> object:
    """Return each word of a command as the list of its alternatives."""
    if isinstance(value, str) and value.split() != [value]:
        raise ValueError(f"must have each word by itself: command = {_array(value.split())}")
    words = [_as_list(word) for word in _as_list(value)]
    for name in filter(lambda word: isinstance(word, str), words[0]):
        if not str(name).strip() or (name == "*" and words != [["*"]]):
            raise ValueError("must begin with the name of a program")
        if "/" not in str(name) and str(name).split() != [name]:
            shown = _array(str(name).split())
            raise ValueError(f"must have each word by itself, not {quoted(str(name))}: {shown}")
    return words


def _array(words: Sequence[str]) -> str:
    """Return words as an array of TOML, for a message."""
    written = ", ".join(f'"{word}"' for word in words)
    return f"[{written}]"


def _as_names(value: object) -> object:
    names = _as_list(value)
    if any(isinstance(name, str) and (not name.strip() or "\0" in name) for name in names):
        raise ValueError("has an entry that is empty or has a NUL in it; remove it")
    return names


def _problem_of_tool(name: str) -> str | None:
    return (
        None
        if re.fullmatch(_TOOL, name, re.ASCII)
        else "is not the name of a tool; write code.run_command"
    )


def _problem_of_host(name: str) -> str | None:
    if re.fullmatch(_HOST, name):
        return None
    return (
        "is not a host; write example.org, or *.example.org for every name below it, without"
        " scheme, port and path"
    )


def _problem_of_path(path: str) -> str | None:
    """Return why a path reads as if it could do more than paths do here, or None."""
    if path.startswith("!"):
        return "leaves nothing out; a rule that denies does (a file is called so: ./!x)"
    if re.match(r"\$\w", path):
        return "has a variable; write ~ for your folder, or the whole path"
    if re.search(_BRACES, path):
        return "has alternatives in braces; name each by itself (a file is called so: [{]a,b})"
    return None


def _all(problem_of: Callable[[str], str | None]) -> AfterValidator:
    """Build a validator that refuses a list with a name that `problem_of` objects to."""

    def check(names: list[str]) -> list[str]:
        for name in names:
            if problem := problem_of(name):
                raise ValueError(f"has {quoted(name)}, which {problem}")
        return names

    return AfterValidator(check)


def _as_examples(value: object) -> object:
    """Check examples, each of them one string or a list of words, and return them unchanged."""
    for example in (examples := [] if value == [] else _as_list(value)):
        for word in _as_list(example):
            if not isinstance(word, str) or "\0" in word:
                raise ValueError("must hold strings, or arrays of words")
        if not example[0].strip():  # pyright: ignore[reportIndexIssue, reportUnknownMemberType]
            raise ValueError("has an empty example; remove it")
    return examples


Names = Annotated[list[str], BeforeValidator(_as_names), Field(max_length=_MOST)]
"""One string or several."""

Words = Annotated[list[list[str]], BeforeValidator(_as_words), Field(max_length=_MOST)]
"""The words of a command, each with its alternatives."""

Examples = Annotated[list[Any], BeforeValidator(_as_examples), Field(max_length=_MOST)]

KEYS = ("tool", "command", "path", "host", "agent", "only")
"""Keys that select the calls of a rule; all that are set have to match."""


class PermissionRule(Section):
    """One rule; `match` and `not_match` are examples that it is checked with when it is read."""

    decision: RuleDecision
    tool: Annotated[Names, _all(_problem_of_tool)] | None = None
    command: Words | None = None
    path: Annotated[Names, _all(_problem_of_path)] | None = None
    host: Annotated[Names, _all(_problem_of_host)] | None = None
    agent: Names | None = None
    only: Literal["reads", "edits"] | None = None
    reason: Annotated[str, Field(max_length=_MOST)] | None = None
    match: Examples = []
    not_match: Examples = []

    @model_validator(mode="after")
    def _is_about_something(self) -> "PermissionRule":
        if not self.subject:
            raise ValueError(
                f"does not say for which calls it is; add one or more of {', '.join(KEYS)}"
            )
        if self.only == "edits" and self.command is not None:
            raise ValueError(
                'is for a command and only for "edits", but no command is such an edit'
            )
        if both := [example for example in self.match if example in self.not_match]:
            raise ValueError(f"has {both[0]!r} in match and in not_match; remove it from one")
        return self

    @property
    def subject(self) -> dict[str, Any]:
        """The conditions of the rule: its `KEYS` that are set."""
        return {key: value for key in KEYS if (value := getattr(self, key)) is not None}


def _without_contradictions(rules: list[PermissionRule]) -> list[PermissionRule]:
    for first, second in _contradictions(rules):
        kinds = f"{rules[first].decision} and {rules[second].decision}"
        raise ValueError(
            f"[{first}] and [{second}] (rules {first + 1} and {second + 1}) are for the very same"
            f" calls and say {kinds}; remove one"
        )
    return rules


def _contradictions(rules: Sequence[PermissionRule]) -> Iterator[tuple[int, int]]:
    seen: dict[str, int] = {}
    for number, rule in enumerate(rules):
        first = seen.setdefault(repr(rule.subject), number)
        if rules[first].decision != rule.decision:
            yield first, number


Rules = Annotated[
    list[PermissionRule], Field(max_length=_MOST_RULES), AfterValidator(_without_contradictions)
]
