"""Checks of session databases, in files and on servers, and of secrets."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent_core.cli.findings import Finding
from agent_core.config.paths import Setup
from agent_core.disk.trying import WriteFault, nearest_existing, try_file, try_folder, try_tree
from agent_core.errors import AgentCoreError
from agent_core.history.figures import format_bytes
from agent_core.history.words import MOST_NAMED
from agent_core.opening import SIDE_FILES
from agent_core.redaction.redactor import SHORTEST_SECRET
from agent_core.storage.connections import try_to_lock
from agent_core.storage.health import examine, find_damage
from agent_core.storage.sql import needing_postgres
from agent_core.text import plural

if TYPE_CHECKING:
    from agent_core.storage.postgres.health import ServerHealth

_MOST_TABLES = 3
_HELD = ("snapshots", "unfinished")
"""Folders of the home whose files are all the program's own."""
_LITTLE_SPACE = 200 * 2**20
_ORDINARY = re.compile(r".{,7}|[A-Za-z_.-]{,11}|[0-9]{,11}", re.DOTALL).fullmatch


def examine_file(path: Path) -> list[Finding]:
    """Check that sessions can be read and stored in a file; nothing is left behind."""
    name = "database"
    files = [path, *(Path(f"{path}{end}") for end in SIDE_FILES)]
    faults = [try_folder(path.parent), *map(try_file, files)]
    if found := [fault for fault in faults if fault is not None]:
        return [Finding(name, "broken", str(found[0]), found[0].cure)]
    try:
        try_to_lock(path)
    except AgentCoreError as error:
        return [Finding.of_error(name, error.message, "")]
    try:
        health = examine(path)
    except AgentCoreError as error:
        return [Finding.of_error(name, error.message, "")]
    except OSError as error:
        cure = f"make {path} readable and writable for you, or restore it from a backup"
        return [Finding(name, "broken", str(error), cure)]
    free = f"{format_bytes(health.free_bytes)} free"
    if health.free_bytes < _LITTLE_SPACE:
        return [Finding(name, "broken", f"{path}: only {free}", "free some space on its disk")]
    if health.version is None:
        return [Finding(name, "ok", f"{path} is created by the first run; {free}")]
    size = f"{format_bytes(health.size_bytes)}, {format_bytes(health.unused_bytes)} of it unused"
    text = f"{path}, version {health.version}, {size}, {free}"
    if health.is_locked:
        cure = "wait for the other process, or end it"
        return [Finding(name, "remark", f"{text}; another process is writing", cure)]
    if health.version < health.newest:
        return [Finding(name, "ok", f"{text}; the next run upgrades it to {health.newest}")]
    return [Finding(name, "ok", text), *_examine_rows(path)]


def _examine_rows(path: Path) -> list[Finding]:
    """Name the rows that cannot be read whole."""
    try:
        damaged, is_all = find_damage(path)
    except AgentCoreError as error:
        return [Finding("rows", "remark", error.message, "try again when it is less busy")]
    looked = "all rows" if is_all else "a part of the rows"
    if not damaged:
        return [Finding("rows", "ok", f"{looked} of the database can be read")]
    named = "; ".join(map(str, damaged[:MOST_NAMED]))
    more = f"; and {len(damaged) - MOST_NAMED:,} more" if len(damaged) > MOST_NAMED else ""
    text = f"of {looked}, {plural(len(damaged), 'row')} cannot be read whole: {named}{more}"
    cure = "`sessions show` and `sessions export` give the rest; a backup may have the rows"
    return [Finding("rows", "remark", text, cure)]


def examine_home(home: Path) -> list[Finding]:
    """Add up what the home holds, and try to write what a run writes; nothing is left behind.

    Also names deletions that have not ended.
    """
    name = "home"
    sizes = {"artifacts": 0, "snapshots": 0, "everything else": 0}
    for folder, _, files in os.walk(home):
        part = next(iter(Path(folder).relative_to(home).parts), "")
        kind = {"sessions": "artifacts", "snapshots": "snapshots"}.get(part)
        for each in files:
            with suppress(OSError):
                status = os.lstat(os.path.join(folder, each))  # noqa: PTH118 - many files
                sizes[kind or "everything else"] += status.st_size
    if faults := _write_faults(home):
        first, *others = faults
        more = f"; the same is true of {len(others):,} more" if others else ""
        return [Finding(name, "broken", f"{first}{more}", first.cure)]
    shown = ", ".join(f"{what} {format_bytes(size)}" for what, size in sizes.items())
    text = f"{home} takes {format_bytes(sum(sizes.values()))}: {shown}"
    if any(home.glob("unfinished/deleted-*/*")):
        text += "; a deletion of sessions has not ended"
        return [
            Finding(
                name, "remark", text, "the next start finishes it, unless a process is doing so"
            )
        ]
    return [Finding(name, "ok", text)]


def _write_faults(home: Path) -> list[WriteFault]:
    """Return what a run could not write in the home."""
    folders = [home, *(home / name for name in ("sessions", "sessions/.owners", *_HELD, "memory"))]
    tried = [try_folder(folder) for folder in dict.fromkeys(map(nearest_existing, folders))]
    held = [fault for name in ("sessions", *_HELD) for fault in try_tree(home / name)]
    found = {each.path: each for each in (*tried, *held) if each is not None}
    return list(found.values())


def examine_server(url: str, setup: Setup) -> list[Finding]:
    """Check that sessions can be read and stored in a Postgres database; nothing is written."""
    name = "database"
    try:
        with needing_postgres():
            from agent_core.storage.postgres import health  # noqa: PLC0415
        found = health.examine(url)
    except AgentCoreError as error:
        return [Finding.of_error(name, error.message, "fix the named problem")]
    place = f"PostgreSQL {found.server}, database {found.database}"
    if problems := list(_problems_of(found)):
        return [Finding(name, "broken", f"{place}: {what}", cure) for what, cure in problems]
    size = format_bytes(found.size_bytes)
    if not found.version:
        return [Finding(name, "ok", f"{place}: the tables are created by the first run; {size}")]
    text = f"{place}, version {found.version}, {size}"
    findings = [Finding(name, "ok", text)]
    if found.version < found.newest:
        findings = [Finding(name, "ok", f"{text}; the next run upgrades it to {found.newest}")]
    if found.is_pooled:
        text = "its address leads to a pooler: readers in other processes poll, without the text"
        text += " that is still being generated"
        cure = "use the server's own address if they need that text"
        findings.append(Finding("notices", "remark", text, cure))
    if found.upgrades:
        text = "the tables of the queue are older than the installed package procrastinate"
        cure = "soong-agent store migrate, when every worker has this version"
        findings.append(Finding("queue", "remark", text, cure))
    if found.search != "there" and found.version == found.newest:
        text = "search has no index, and reads all messages to find a rare word"
        cure = "soong-agent store migrate builds it, in minutes, while runs continue"
        if found.search == "impossible":
            cure = "create the extensions pg_trgm and btree_gin, then run soong-agent store migrate"
        findings.append(Finding("search", "remark", text, cure))
    if abs(found.clock_s) > setup.config.worker.lease_s / 3:
        ahead = "ahead of" if found.clock_s > 0 else "behind"
        text = f"its clock is {abs(found.clock_s):.1f} s {ahead} this machine's"
        cure = "synchronise both clocks with NTP: they decide whether a process counts as alive"
        findings.append(Finding("clock", "remark", text, cure))
    return findings


def _problems_of(found: "ServerHealth") -> Iterator[tuple[str, str]]:
    """Yield why a database cannot hold sessions, each with the cure."""
    from agent_core.storage.postgres.health import OLDEST_SERVER  # noqa: PLC0415 - loaded by now

    if found.server < OLDEST_SERVER:
        yield "the server is too old", f"sessions need PostgreSQL {OLDEST_SERVER} or newer"
    if found.encoding != "UTF8":
        cure = "create a database with ENCODING 'UTF8', from template0"
        yield f"it is in {found.encoding}, and has to be in UTF8", cure
    if found.is_read_only:
        yield "it is read-only", "use the address of the primary server, or let this user write"
    if tables := found.closed_tables.split(", ") if found.closed_tables else []:
        named = ", ".join(tables[:_MOST_TABLES])
        more = f" and {len(tables) - _MOST_TABLES} more" if len(tables) > _MOST_TABLES else ""
        cure = "grant them to this user, or use the user who owns the tables"
        yield f"no right to read and write {named}{more}", cure
    elif not found.can_create and (found.version < found.newest or not found.is_complete):
        cure = "grant this user CREATE on the database and on its schema"
        yield "no right to create tables and schemas", cure


def examine_secrets(secrets: Mapping[str, str]) -> list[Finding]:
    """Return problems with removing these values, by their names, from stored and shown text.

    An address is not a finding of its own: the password in it is.
    """
    findings: list[Finding] = []
    for name, value in secrets.items():
        if "://" in value or name.endswith("_quoted") or not _ORDINARY(value.strip()):
            continue
        address = name.removesuffix("_password")
        what = f"the password in {address}" if address in secrets and address != name else name
        text = f"{what} is short, or an ordinary word: it is removed everywhere, even inside words"
        if len(value.strip()) < SHORTEST_SECRET:
            text = f"{what} is too short to be removed from stored and shown texts"
        cure = "choose a random one of 16 or more letters and digits; if none is needed, set none"
        findings.append(Finding("secret", "remark", text, cure))
    return findings
