"""`soong-agent sessions`: lists, finds, renames, deletes, forks, shows and exports sessions."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from agent_core.api import AgentRuntime
from agent_core.cli.damage import warn_of_damage
from agent_core.cli.exit_codes import COMPLETED, FAILED, MISUSED
from agent_core.cli.layout import fitted, shown_error
from agent_core.cli.lines import InputLines
from agent_core.cli.nearby import name_nearby, resolve_run, resolve_session
from agent_core.cli.options import Options
from agent_core.cli.setup import open_runtime, run_on_terminal
from agent_core.cli.sheet import Sheet, status_of, style_of, title_of, write_output
from agent_core.cli.terminal import Style, Terminal
from agent_core.config.paths import Setup
from agent_core.errors import validation_error
from agent_core.history.figures import format_age, format_bytes, format_cost, format_tokens
from agent_core.text import Clean, plural, visible
from agent_core.text.json_text import JsonObject
from agent_core.types import (
    CleanupResult,
    RunStatus,
    SessionBytes,
    SessionRecord,
    SessionSummary,
    StoredBytes,
    SwitchResult,
)

_WIDE = 110
"""Columns from which on a session takes one line."""

_SHOWS = {"list", "search", "du", "show", "tree", "export"}
"""Actions that change nothing."""

_STAYS = "what stays: Task logs and files in the project, memories, typed lines, saved rules"


def manage_sessions(options: Options) -> int:
    """Carry out the action, and return the exit code."""
    asks_model = options.action == "compact"
    # The project of --older-than selects sessions, and need not exist any more.
    path = None if options.action == "delete" and not options.ids else options.path
    return run_on_terminal(options, path, partial(_manage, options), asks_model=asks_model)


async def _manage(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    read_only = options.action in _SHOWS or (options.action == "delete" and options.dry_run)
    async with open_runtime(setup, read_only=read_only) as runtime:
        match options.action:
            case "list":
                return await _list(runtime, options, setup, terminal, clean)
            case "search":
                return await _search(runtime, options, setup, terminal)
            case "du":
                return await _show_bytes(runtime, options, setup, terminal)
            case "delete":
                return await _delete(runtime, options, terminal)
            case "export":
                from agent_core.cli.export.write import read_target  # noqa: PLC0415 - here only

                read_target(options)
            case _:
                pass
        session_id = await resolve_session(runtime, options.id)
        match options.action:
            case "show":
                from agent_core.cli.story import show_session  # noqa: PLC0415 - needed here only

                if options.last is not None and options.last < 1:
                    message = f"--last takes 1 or more, not {options.last}"
                    raise validation_error(message)
                run_id = await resolve_run(runtime, options.run) if options.run else None
                await show_session(
                    runtime,
                    session_id,
                    terminal,
                    clean,
                    run_id=run_id,
                    last=options.last,
                    is_full=options.full,
                )
            case "tree":
                from agent_core.cli.tree import show_tree  # noqa: PLC0415 - needed here only

                await show_tree(runtime, session_id, terminal, clean)
            case "rename":
                renamed = await runtime.rename_session(session_id, clean(" ".join(options.words)))
                terminal.line(f"{session_id} is now called: {visible(renamed.title or '')}")
            case "export":
                from agent_core.cli.export.write import export_session  # noqa: PLC0415 - here only

                return await export_session(runtime, session_id, options, terminal, clean)
            case "fork":
                from agent_core.cli.undo import show_move  # noqa: PLC0415 - here only

                at, into = options.at, options.into
                forked = await fork_session(runtime, session_id, at=at, into=into)
                show_move(forked, terminal, clean)
                folder = visible(clean(forked.session.cwd))
                terminal.record(f"{forked.session_id}  {folder}")
            case _:
                return await _compact(runtime, session_id, options, terminal)
    return COMPLETED


async def _list(
    runtime: AgentRuntime, options: Options, setup: Setup, terminal: Terminal, clean: Clean
) -> int:
    limit = options.limit or sys.maxsize - 1
    if limit < 0:
        message = f"--limit takes 1 or more, or 0 for all, not {options.limit}"
        raise validation_error(message)
    found = await runtime.session_summaries(
        limit + 1,
        project=setup.project if options.here else None,
        query=" ".join(options.words) or None,
    )
    more, found = len(found) > limit, found[:limit]
    sheet = Sheet()
    for summary in found:
        if options.json:
            write_output(f"{json.dumps(summary.model_dump(mode='json'))}\n")
        else:
            _list_one(summary, sheet)
    if not found and not options.json:
        terminal.line(await _there_are_none(runtime, options, setup), Style.DIM)
    if more and not options.json:
        terminal.line(f"only {plural(limit, 'session')} shown: --limit 0 shows all", Style.DIM)
    warn_of_damage([each.damaged for each in found if each.damaged], terminal, clean)
    return COMPLETED


async def _there_are_none(runtime: AgentRuntime, options: Options, setup: Setup) -> str:
    of = f" of {visible(str(setup.project), one_line=True)}" if options.here else ""
    if options.words:
        return f"no session{of} has these words in its title, project or id"
    nearby = await name_nearby(runtime, setup.project) if options.here else ""
    return f"there are no sessions{of}{nearby}"


def _list_one(summary: SessionSummary, sheet: Sheet) -> None:
    status = status_of(summary)
    style = style_of(status)
    turns = plural(summary.turns, "turn")
    tokens = f"{format_tokens(summary.usage.total_tokens)} tokens"
    cost, project = format_cost(summary.usage), _project_name(summary.cwd)
    title = title_of(summary)
    if not sheet.is_screen:
        when = f"{summary.updated_at.astimezone():%Y-%m-%d %H:%M}"
        parts = (summary.short_id, when, status, turns, tokens, cost, summary.cwd, title)
        sheet.line("  ".join(parts))
        return
    age = format_age(summary.updated_at)
    if sheet.width >= _WIDE:
        sheet.line(
            (f"{summary.short_id:<16}  ", Style.DIM),
            (f"{status:<9}  ", style),
            f"{age:>10}  {turns:>9}  {tokens:>13}  {cost:>12}  ",
            (f"{fitted(project, 24):<24}  ", Style.DIM),
            (title, Style.BOLD),
            cut=True,
        )
        return
    sheet.line((title, Style.BOLD), cut=True)
    facts = [(status, style), (f" · {age} · {turns}", Style.PLAIN)]
    costs = f"{tokens} · {cost} · {project}"
    if len(summary.short_id) + len(status) + len(age) + len(costs) + 20 < sheet.width:
        sheet.line(f"  {summary.short_id}  ", *facts, f" · {costs}", cut=True)
    else:
        sheet.line(f"  {summary.short_id}  ", (status, style), cut=True)
        sheet.line(f"  {age} · {turns} · {tokens}", cut=True)
        sheet.line(f"  {cost} · {project}", cut=True)


def _project_name(cwd: str) -> str:
    home = str(Path.home())
    return f"~{cwd[len(home) :]}" if cwd == home or cwd.startswith(f"{home}/") else cwd


async def _search(runtime: AgentRuntime, options: Options, setup: Setup, terminal: Terminal) -> int:
    found = await runtime.search_sessions(
        " ".join(options.words),
        options.limit or sys.maxsize,
        project=setup.project if options.here else None,
    )
    sheet = Sheet()
    before = ""
    for match in found:
        if options.json:
            write_output(f"{json.dumps(match.model_dump(mode='json'))}\n")
            continue
        if match.session_id != before:
            sheet.line((title_of(match), Style.BOLD), cut=True)
            sheet.line((f"  {match.session_id}  {_project_name(match.cwd)}", Style.DIM), cut=True)
            before = match.session_id
        who = ", ".join(dict.fromkeys(match.tools)) or str(match.role)
        sheet.line((f"  [{match.node_id}] {who}", Style.DIM), cut=True)
        sheet.block(match.snippet, indent="    ")
    if not found:
        terminal.line("nothing was found", Style.DIM)
    return COMPLETED if found else FAILED


async def _show_bytes(
    runtime: AgentRuntime, options: Options, setup: Setup, terminal: Terminal
) -> int:
    limit = options.limit or sys.maxsize
    if limit < 0:
        message = f"--limit takes 1 or more, or 0 for all, not {options.limit}"
        raise validation_error(message)
    found = await runtime.stored_bytes(setup.project if options.here else None)
    if options.json:
        write_output(f"{json.dumps(_bytes_in_json(found))}\n")
        return COMPLETED
    if not found.sessions:
        terminal.line(await _there_are_none(runtime, options, setup), Style.DIM)
        return COMPLETED
    sheet = Sheet()
    for heading, rows in (
        ("by project", [(each, _project_name(each.project)) for each in found.projects]),
        ("by session", [(each, _session_name(each)) for each in found.sessions]),
    ):
        sheet.line((f"{heading:<46}{'rows':>11}{'artifacts':>11}{'snapshots':>11}", Style.DIM))
        for each, name in rows[:limit]:
            figures = (each.row_bytes, each.artifact_bytes, each.snapshot_bytes)
            shown = "".join(f"{format_bytes(figure):>11}" for figure in figures)
            sheet.line((f"  {fitted(name, 43):<43} {shown}", Style.PLAIN))
        if len(rows) > limit:
            sheet.line((f"  … {len(rows) - limit:,} more: --limit 0 shows all", Style.DIM))
    if found.database_bytes is not None and found.free_bytes is not None:
        size, free = format_bytes(found.database_bytes), format_bytes(found.free_bytes)
        sheet.line((f"the database takes {size}, of which {free} are free", Style.DIM))
    return COMPLETED


def _session_name(session: SessionBytes) -> str:
    return f"{session.session_id}  {visible(session.title or '', one_line=True)}"


def _bytes_in_json(found: StoredBytes) -> JsonObject:
    """Return each session and each project with its sum, and the sums of all."""
    sessions, projects = (
        [{**each.model_dump(mode="json"), "total_bytes": each.total_bytes} for each in rows]
        for rows in (found.sessions, found.projects)
    )
    total = {
        name: sum(int(each[name]) for each in projects)
        for name in ("row_bytes", "artifact_bytes", "snapshot_bytes", "total_bytes")
    }
    files = {"database_bytes": found.database_bytes, "free_bytes": found.free_bytes}
    return {"projects": projects, "sessions": sessions, "total": {**total, **files}}


async def _delete(runtime: AgentRuntime, options: Options, terminal: Terminal) -> int:
    older_than, keep_last = options.older_than, options.keep_last
    if bool(options.ids) == (older_than is not None) or (options.ids and keep_last):
        message = "name sessions, or add --older-than with an age such as 90d, but not both"
        if options.ids and older_than is None:
            message = "--keep-last needs --older-than, and cannot be combined with ids"
        terminal.line(f"error: {message}. Nothing was deleted", Style.BAD)
        return MISUSED
    if options.ids:
        ids = [await resolve_session(runtime, each) for each in options.ids]
        if options.path is not None and (other := await _of_another(runtime, ids, options.path)):
            message = f"{other} is a session of another project than {visible(options.path)}"
            terminal.line(f"error: {message}. Nothing was deleted", Style.BAD)
            return MISUSED
        select = partial(runtime.delete_sessions, session_ids=ids)
    else:
        select = partial(
            runtime.delete_sessions,
            older_than=older_than,
            project=options.path,
            keep_last=keep_last or 0,
        )
    found = await select(dry_run=True)
    if options.dry_run:
        await _list_candidates(runtime, found.candidates, terminal)
        count = plural(len(found.candidates), "session")
        terminal.line(f"{count} with {format_bytes(found.freed_bytes)} would be deleted")
        return COMPLETED
    if not found.candidates:
        terminal.line("no session is that old; nothing was deleted")
        return COMPLETED
    if not options.yes:
        if not (sys.stdin.isatty() and terminal.is_watched):
            message = "deletion asks only on a terminal; add --yes. Nothing was deleted"
            terminal.line(f"error: {message}", Style.BAD)
            return MISUSED
        listed: list[str] = []
        for session_id in found.candidates:
            page = await runtime.replay_session(session_id, from_seq=1, to_seq=0)
            listed.append(f"  {session_id}  {visible(title_of(page.session))}")
        lines = InputLines(sys.stdin.fileno())
        question = f"Delete {plural(len(found.candidates), 'session')} for good? [y/N] "
        if not await terminal.confirm(lines, question, "sessions delete", listed):
            terminal.line("nothing was deleted")
            return FAILED
    return _report(await select(dry_run=False), terminal)


async def _of_another(runtime: AgentRuntime, ids: Sequence[str], project: str) -> str | None:
    """Return the first of these sessions that works in another folder, or None."""
    folder = await asyncio.to_thread(Path(project).resolve)
    for session_id in ids:
        page = await runtime.replay_session(session_id, from_seq=1, to_seq=0)
        if Path(page.session.cwd) != folder:
            return session_id
    return None


async def _list_candidates(
    runtime: AgentRuntime, session_ids: Sequence[str], terminal: Terminal
) -> None:
    """Show the sessions that would be deleted: ids and titles, or for a program ids alone."""
    for session_id in session_ids:
        title = ""
        if terminal.is_watched:
            page = await runtime.replay_session(session_id, from_seq=1, to_seq=0)
            title = f"  {visible(title_of(page.session))}"
        terminal.record(f"{session_id}{title}")


def _report(result: CleanupResult, terminal: Terminal) -> int:
    """Show what was deleted and what stays, and return the exit code."""
    for session_id in result.deleted:
        terminal.line(f"deleted {session_id}")
    for failed in result.failed:
        is_kept = failed.id in result.candidates and failed.id not in result.deleted
        what = f"{failed.id} was not deleted" if is_kept else "a part of it is left"
        terminal.line(f"error: {what}: {shown_error(visible(failed.error.message))}", Style.BAD)
    if result.deleted:
        size = format_bytes(result.freed_bytes)
        terminal.line(f"{plural(len(result.deleted), 'session')} with {size}; {_STAYS}", Style.DIM)
    return FAILED if result.failed else COMPLETED


async def fork_session(
    runtime: AgentRuntime, session_id: str, *, at: str | None, into: str | Path | None
) -> SwitchResult:
    """Begin another session from a message.

    Args:
        runtime: of the project.
        session_id: the session.
        at: the message, or the beginning of its id.
        into: folder for the copy of the project; a folder beside it by default.
    """
    node_id = await runtime.resolve_node_id(at, session_id) if at else None
    page = await runtime.replay_session(session_id, from_seq=1, to_seq=0)
    into = into or await asyncio.to_thread(_free_folder, page.session)
    return await runtime.fork(session_id, node_id, into=into)


def _free_folder(session: SessionRecord) -> Path:
    """Return an unused folder beside the project."""
    project = Path(session.cwd)
    number = 1
    while True:
        place = project.with_name(f"{project.name}-fork{'' if number == 1 else f'-{number}'}")
        if not os.path.lexists(place):
            return place
        number += 1


async def _compact(
    runtime: AgentRuntime, session_id: str, options: Options, terminal: Terminal
) -> int:
    from agent_core.cli.view import RunView  # noqa: PLC0415 - needed here only

    view = RunView(terminal)
    handle = await runtime.compact_session(
        session_id, instructions=options.focus, move_session=options.move_session
    )
    async for event in handle.events():
        view.event(event)
    status = await handle.wait()
    view.end(handle.result_text, handle.error, handle.usage)
    return COMPLETED if status is RunStatus.COMPLETED else FAILED
