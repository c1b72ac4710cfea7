"""The content of a skill, read within a budget."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from agent_core.opening import read_text_file
from agent_core.text import one_line
from kgent.skills.models import SkillFile
from kgent.skills.parser import SKILL_FILE, skill_error

MAX_INSTRUCTIONS = 20_000
"""Characters of a skill's instructions."""
MAX_SUMMARY = 2000
"""Characters of the list of references, and of the list of templates."""
MAX_SKILL_BYTES = 50_000_000
MAX_SKILL_FILES = 2000
"""Limits for the files of a skill that are copied into the folder of a run."""
_FIRST_LINE_BYTES = 512
_MAX_ENTRIES = 200


def list_skill_files(folder: Path) -> Iterator[SkillFile]:
    """Yield the files of a skill, sorted by path, without links that lead out of it.

    Raises:
        KgentError: category `skill`; one cannot be read, or the skill is too large to be copied.
    """
    size, count = 0, 0
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            file = Path(parent, name)
            place = file.resolve()
            is_inside = place.is_relative_to(folder) or name == SKILL_FILE
            if not is_inside or not place.is_file():
                continue
            count += 1
            try:
                content = read_text_file(place, MAX_SKILL_BYTES + 1 - size)
                is_executable = bool(place.stat().st_mode & 0o111)
            except OSError as error:
                raise skill_error(file, f"it cannot be read: {error.strerror or error}") from error
            size += len(content)
            if size > MAX_SKILL_BYTES or count > MAX_SKILL_FILES:
                limit = f"{MAX_SKILL_FILES:,} files of {MAX_SKILL_BYTES:,} bytes in all"
                raise skill_error(folder, f"a run keeps a copy of it, of at most {limit}")
            yield SkillFile(file.relative_to(folder).as_posix(), content, is_executable)


def hash_files(files: Iterable[SkillFile]) -> str:
    """Return a hash over the names, the contents and the execute permissions of files."""
    digest = hashlib.sha256()
    for file in files:
        kind = "x" if file.is_executable else "-"
        digest.update(f"{hashlib.sha256(file.content).hexdigest()} {kind} ".encode())
        digest.update(os.fsencode(file.name) + b"\0")
    return digest.hexdigest()


def cut_text(text: str, limit: int) -> str:
    """Return `text`, cut to `limit` characters including a note about the missing ones."""
    if len(text) <= limit:
        return text
    mark = f"\n[… cut: {len(text)} characters, {limit} fit]"
    return text[: limit - len(mark)] + mark


def list_beside(folder: Path) -> str | None:
    """List the files of a folder, one per line: path, size and first line."""
    lines: list[str] = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            file = Path(parent, name)
            if len(lines) == _MAX_ENTRIES or not file.is_file() or file.is_symlink():
                continue
            shown = file.relative_to(folder.parent).as_posix()
            try:
                size = file.stat().st_size
                head = read_text_file(file, _FIRST_LINE_BYTES).decode("utf-8-sig", "ignore")
            except OSError:
                lines.append(f"- {shown} (cannot be read)")
                continue
            first = one_line(head.strip().partition("\n")[0].lstrip("# "))[:120]
            lines.append(f"- {shown} ({size} bytes){f': {first}' if first else ''}")
    return cut_text("\n".join(lines), MAX_SUMMARY) if lines else None
