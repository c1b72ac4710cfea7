"""The words of a question about a call: what it would do, where, what an answer covers, the keys.

Nothing that a model, a tool or a file has written begins at the left edge: it cannot imitate the
keys.
"""

import shlex
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct

from agent_core.cli.layout import cells, split_row
from agent_core.history.questions import request_facts
from agent_core.permissions.request import (
    THIS_CALL_ONLY,
    UNTIL_END,
    coverage_of_rule,
    rule_of,
    wide_of,
)
from agent_core.text import visible
from agent_core.types import BY_NETWORK, Decision, ToolPermission

if TYPE_CHECKING:
    from agent_core.types import PermissionRequest

MARK = "  | "
"""Begins every further row of a text that is not the program's own."""
_VERBS = {
    "code.run_command": "Run",
    "code.write_file": "Write",
    "code.edit_file": "Edit",
    "code.read_file": "Read",
    "code.list_dir": "List",
    "code.search": "Search",
}
_PLACES = {
    "sensitive": "a sensitive path",
    "outside_roots": "outside the project",
    "program_home": "the program's own files",
    "outside_sandbox": "outside the sandbox",
}
_WIDE_KEYS = {
    Decision.ALLOW_READS: ("r", "all reads", "all that only reads"),
    Decision.ALLOW_EDITS: ("d", "all edits", "all edits"),
}
_HELP = {
    "y": "allow this call",
    "n": "deny this call",
    "e": "deny it, with a reason that the model reads",
    "v": "page through everything; a part was left out above",
    "w": "show the rules that would allow it in all sessions, and add one to rules.toml",
}


class Choice(Struct, frozen=True):
    """A key that a question takes: its label, and the answer it gives; None if it gives none."""

    key: str
    label: str
    decision: Decision | None = None


class OfferedRule(Struct, frozen=True):
    """A rule that a question offers to save: its text, its key, and its coverage in words."""

    decision: Decision
    text: str
    what: str
    covers: str


def choices_of(request: "PermissionRequest") -> list[Choice]:
    """Return the keys that a question takes, the most used first; `v` is for what was cut."""
    choices = [Choice("y", "once", Decision.ALLOW_ONCE)]
    if is_remembered(request):
        choices.append(Choice("a", "session", Decision.ALLOW_FOR_SESSION))
    choices += [Choice(key, label, wide) for wide, (key, label, _) in _wide(request).items()]
    if rules_of(request):
        choices.append(Choice("w", "always"))
    return [*choices, Choice("n", "no", Decision.DENY), Choice("e", "no, why"), Choice("?", "help")]


def is_remembered(request: "PermissionRequest") -> bool:
    """Return whether an answer for the session covers more than this call."""
    return (request.target_scope or THIS_CALL_ONLY) != THIS_CALL_ONLY


def what_lines(request: "PermissionRequest") -> list[str]:
    """Return what a call would do: one line, and more for a command of several lines."""
    verb = _VERBS.get(request.tool_name)
    if verb is None:
        verb = f"Call {visible(request.tool_name, one_line=True)}"
    first, *rest = (visible(line, one_line=True) for line in subject_of(request).split("\n"))
    return [f"{verb}: {first}", *(f"{MARK}{line}" for line in rest)]


def subject_of(request: "PermissionRequest") -> str:
    """Return what a call is about: a command, a path, or the arguments of a server's tool."""
    metadata = request.metadata
    if "mcp" in request.tags and request.args_summary:  # its target is only where the server is
        return request.args_summary
    target = str(metadata.get("lines") or metadata.get("target") or request.args_summary)
    return target.removeprefix(f"{metadata.get('project') or request.cwd}/")


def where_line(request: "PermissionRequest") -> str | None:
    """Return where a call would act, if that is not the project, or another place is its reason."""
    metadata, parts = request.metadata, list[str]()
    if request.cwd != metadata.get("project"):
        parts.append(f"in {request.cwd}")
    if reason := str(metadata.get("reason") or ""):
        place = ", ".join(metadata.get("places") or ())
        parts.append(": ".join(filter(None, (_PLACES.get(reason, reason), place))))
    if metadata.get("asked_by") == BY_NETWORK:
        parts.append("with network access")
    return f"  {visible('; '.join(parts), one_line=True)}" if parts else None


def rows_of(line: str, width: int | None) -> list[str]:
    """Return the rows that a line of a question takes; every further row is marked, too.

    Args:
        line: may hold what others have written.
        width: of the terminal; None where there is none, and a line is a row.
    """
    line = visible(line).expandtabs()
    if width is None or cells(line) < width:
        return [line]
    first, rest = split_row(line, width - 1)
    rows = [first]
    while rest:
        row, rest = split_row(rest, width - 1 - len(MARK))
        rows.append(f"{MARK}{row}")
    return rows


def risk_of(request: "PermissionRequest") -> str:
    """Return the kind of a call: whether it only reads, writes, or can do whatever the user can."""
    if "dangerous" in request.tags and not request.dangerous:  # a command known to read only
        return ToolPermission.READONLY
    return f"{request.permission}{', dangerous' if request.dangerous else ''}"


def help_lines(
    request: "PermissionRequest", choices: Sequence[Choice], *, may_cancel: bool = False
) -> list[str]:
    """Return everything about a question that is not on its first lines, and its keys in words.

    Args:
        request: the question.
        choices: its keys.
        may_cancel: Escape ends the run too.
    """
    shown = subject_of(request)
    facts = [("tool", f"{request.tool_name} ({risk_of(request)})")]
    facts += [(name, value) for name, value in request_facts(request) if value != shown]
    covers = {"a": _scope_beside_target(request)}
    covers |= {key: what for key, _, what in _wide(request).values()}
    lines = [*chain.from_iterable(_blocks(facts))]
    for choice in choices:
        meaning = _HELP.get(choice.key)
        if choice.key in covers:
            meaning = f"allow it, and while this program runs: {covers[choice.key]}"
        lines += [f"  {choice.key}  {meaning}"] if meaning else []
    keys = "Escape and Ctrl-C end" if may_cancel else "Ctrl-C ends"
    numbers = "1, 2, 3 are y, a, n" if is_remembered(request) else "1, 3 are y, n"
    return [*lines, f"  {numbers}; {keys} the run"]


def _scope_beside_target(request: "PermissionRequest") -> str:
    """Return the coverage of an answer for the session, since target and folder are shown above."""
    scope = request.target_scope or THIS_CALL_ONLY
    exactly = f" as exactly: {request.metadata.get('target')} in {shlex.quote(request.cwd)}"
    if scope.endswith(exactly):
        scope = f"{scope.removesuffix(exactly)}, with exactly these words and in this folder"
    return visible(scope, one_line=True)


def _wide(request: "PermissionRequest") -> dict[Decision, tuple[str, str, str]]:
    """Return the wider answer that a question takes: its key, its label, its coverage."""
    offered = wide_of(request)
    if offered is None or offered[0] not in _WIDE_KEYS:
        return {}
    decision, covers = offered
    key, label, _ = _WIDE_KEYS[decision]
    return {decision: (key, label, visible(covers.removesuffix(UNTIL_END), one_line=True))}


def rules_of(request: "PermissionRequest") -> dict[str, OfferedRule]:
    """Return the rules that a question offers to save, by their keys."""
    rules: dict[str, OfferedRule] = {}
    if text := rule_of(request, Decision.ALLOW_ONCE):
        what = "add it, and allow this call"
        covers = f"in every session: {coverage_of_rule(text)}"
        rules["y"] = OfferedRule(Decision.ALLOW_ONCE, text, what, covers)
    for decision, (key, _, covers) in _wide(request).items():
        if text := rule_of(request, decision):
            what = f"add it, and allow {_WIDE_KEYS[decision][2]}"
            rules[key] = OfferedRule(decision, text, what, f"in every session: {covers}")
    return rules


def fact_lines(request: "PermissionRequest") -> list[str]:
    """Return all facts as lines; further ones are marked, and cannot pass for another fact."""
    return [*chain.from_iterable(_blocks(request_facts(request)))]


def _blocks(facts: Sequence[tuple[str, str]]) -> list[list[str]]:
    blocks: list[list[str]] = []
    for name, value in facts:
        first, *rest = (visible(line, one_line=True) for line in value.split("\n"))
        blocks.append([f"  {name}: {first}", *(f"  {MARK}{line}" for line in rest)])
    return blocks
