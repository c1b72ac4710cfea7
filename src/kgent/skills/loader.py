"""Loads one skill within a budget: a skill is guidance, and must leave room for the work."""

import os
from pathlib import Path

from agent_core.disk.reading import read_text_file
from agent_core.text import one_line
from kgent.skills.models import LoadedSkill
from kgent.skills.parser import SkillHead, read_body

MAX_INSTRUCTIONS = 20_000
"""Characters of instructions."""
MAX_SUMMARY = 2000
"""Characters of the list of references, and of the list of templates."""
_FIRST_LINE_BYTES = 512
_MAX_ENTRIES = 200


def load(head: SkillHead) -> LoadedSkill:
    """Read the instructions of a skill, and list what lies beside them.

    Raises:
        KgentError: category `skill`; it cannot be read.
    """
    folder = head.summary.path
    return LoadedSkill(
        summary=head.summary,
        instructions=cut(read_body(folder), MAX_INSTRUCTIONS),
        references_summary=_listed(folder / "references"),
        templates_summary=_listed(folder / "templates"),
        declared_permissions=head.permissions,
    )


def cut(text: str, limit: int) -> str:
    """`text`, or its beginning with a mark that counts what is missing; never beyond `limit`."""
    if len(text) <= limit:
        return text
    mark = f"\n[… cut: {len(text)} characters, {limit} fit]"
    return text[: limit - len(mark)] + mark


def _listed(folder: Path) -> str | None:
    """One line a file: path, size and first line."""
    lines: list[str] = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if len(lines) == _MAX_ENTRIES:
                break
            if (file := Path(parent, name)).is_file() and not file.is_symlink():
                lines.append(_entry(folder, file))
    return cut("\n".join(lines), MAX_SUMMARY) if lines else None


def _entry(folder: Path, file: Path) -> str:
    shown = file.relative_to(folder.parent).as_posix()
    try:
        size = file.stat().st_size
        head = read_text_file(file, _FIRST_LINE_BYTES).decode("utf-8", "ignore")
    except OSError:
        return f"- {shown} (cannot be read)"
    first = one_line(head.strip().partition("\n")[0].lstrip("# "))[:120]
    return f"- {shown} ({size} bytes): {first}" if first else f"- {shown} ({size} bytes)"
