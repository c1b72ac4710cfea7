"""The findings of checks, as lines or as JSON."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Literal, Self

from msgspec import Struct
from msgspec.structs import asdict, replace

from agent_core.cli.exit_codes import COMPLETED, FAILED
from agent_core.cli.layout import wrapped
from agent_core.cli.sheet import Sheet
from agent_core.cli.terminal import Terminal
from agent_core.text import without_code

State = Literal["ok", "remark", "broken"]


NOT_CHECKED = "not checked"
_INDENT, _LEAST_ROOM = 23, 16


class Finding(Struct, frozen=True):
    """The finding of one check.

    Attributes:
        name: of the check.
        state: `broken` if a need of a run is missing.
        text: the facts.
        cure: the remedy; None if all is well.
    """

    name: str
    state: State
    text: str
    cure: str | None = None

    @classmethod
    def of_error(cls, name: str, message: str, cure: str) -> Self:
        """Return what an error says: its first line may name a cure behind a semicolon."""
        first, newline, rest = without_code(message).partition("\n")
        text, _, own = first.partition("; ")
        return cls(name, "broken", f"{text}{newline}{rest}", own or cure)

    @classmethod
    def unknown(cls, name: str, because: str, cure: str) -> Self:
        """Return that a check could not be made."""
        return cls(name, "remark", f"{NOT_CHECKED}: {because}", cure)


def _merged(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the findings; those that could not be made for one reason are one, with the first."""
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for each in findings:
        if each.text.startswith(NOT_CHECKED):
            alike[each.text].append(each.name)
    for each in findings:
        names = alike.get(each.text, [each.name])
        if len(names) == 1:
            yield each
        elif names[0] == each.name:
            because = each.text.removeprefix(f"{NOT_CHECKED}: ")
            yield replace(each, name=NOT_CHECKED, text=f"{', '.join(names)}: {because}")


def _indented(text: str, room: int) -> str:
    """Return a text behind its lead: on a screen, lines that fit, broken between words."""
    lines = [part for line in text.split("\n") for part in wrapped(line, room, breaks=False)]
    return f"\n{'':<{_INDENT}}".join(lines)


def show_findings(findings: Sequence[Finding], terminal: Terminal, *, as_json: bool) -> int:
    """Show the findings, and return the exit code: 0 if none is broken.

    Lines show a cure of several checks, and the reason why they were not made, once; in JSON each
    check has its own.

    Raises:
        OutputClosedError: standard output is closed.
    """
    is_well = all(finding.state != "broken" for finding in findings)
    if as_json:
        checks = [asdict(finding) for finding in findings]
        terminal.text(json.dumps({"ok": is_well, "checks": checks}, indent=2) + "\n")
    else:
        said: set[str | None] = {None}
        room = max(Sheet().width - _INDENT - 1, _LEAST_ROOM)
        shown = list(_merged(findings))
        for finding, following in zip_longest(shown, shown[1:]):
            lead = f"{finding.state:<7} {finding.name:<14} "
            terminal.text(f"{lead}{_indented(finding.text, room)}\n")
            cure = finding.cure
            if cure not in said and (following is None or following.cure != cure):
                said.add(cure)
                terminal.text(f"{'':<{_INDENT}}{_indented(cure or '', room)}\n")
    return COMPLETED if is_well else FAILED
