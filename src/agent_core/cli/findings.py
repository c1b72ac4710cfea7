"""The findings of checks, as lines or as JSON."""

import json
from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict

from agent_core.cli.options import COMPLETED, FAILED
from agent_core.cli.terminal import Terminal

State = Literal["ok", "remark", "broken"]


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


def show_findings(findings: Sequence[Finding], terminal: Terminal, *, as_json: bool) -> int:
    """Show the findings, and return the exit code: 0 if none is broken.

    Lines show a cure of several checks once; in JSON each check has it.

    Raises:
        OutputClosedError: standard output is closed.
    """
    is_well = all(finding.state != "broken" for finding in findings)
    if as_json:
        checks = [asdict(finding) for finding in findings]
        terminal.text(json.dumps({"ok": is_well, "checks": checks}, indent=2) + "\n")
    else:
        said: set[str | None] = {None}
        for finding, following in zip_longest(findings, findings[1:]):
            text = finding.text.replace("\n", f"\n{'':<23}")
            terminal.text(f"{finding.state:<7} {finding.name:<14} {text}\n")
            cure = finding.cure
            if cure not in said and (following is None or following.cure != cure):
                said.add(cure)
                terminal.text(f"{'':<23}{cure}\n")
    return COMPLETED if is_well else FAILED
