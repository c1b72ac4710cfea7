"""`soong-agent undo`, `redo` and `workspace diff`: report the files restored, or why not."""

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import groupby

from agent_core.api import AgentRuntime
from agent_core.cli.exit_codes import COMPLETED, FAILED
from agent_core.cli.layout import ASCII_SIGNS, SIGNS, shown_error
from agent_core.cli.nearby import name_nearby, resolve_session
from agent_core.cli.options import Options
from agent_core.cli.render import CallLayout
from agent_core.cli.setup import open_runtime, run_on_terminal
from agent_core.cli.sheet import Sheet, write_output
from agent_core.cli.terminal import Style, Terminal, exit_code_of
from agent_core.config.paths import Setup
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.text import Clean, first_words, plural, visible, without_code
from agent_core.types import SwitchResult, WorkspaceDiff

_MOST_PATHS = 50
_EXPECTED = (" (excluded)", " (program_home)")
"""Ends of the descriptions of paths that are never recorded, as the settings have it."""
_LONGEST_MESSAGE = 200


def move_session(options: Options) -> int:
    """Undo, redo or compare, and return the exit code."""
    return run_on_terminal(options, options.path, partial(_move, options), asks_model=False)


async def _move(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    async with open_runtime(setup, read_only=options.command == "workspace") as runtime:
        if options.command == "workspace":
            states = [await _state(runtime, each) for each in (options.before, options.after)]
            show_diff(await runtime.diff_workspace(*states), terminal, clean)
            return COMPLETED
        if options.session_id:
            session_id = await resolve_session(runtime, options.session_id)
        else:
            session_id = await runtime.last_session(setup.project)
        if session_id is None:
            text = f"no session of {setup.project} has an answer yet"
            nearby = await name_nearby(runtime, setup.project)
            text += nearby or "; name one, or its project with --path"
            terminal.line(f"error: {text}", Style.BAD)
            return FAILED
        change = runtime.undo if options.command == "undo" else runtime.redo
        try:
            result = await change(session_id, force=options.force)
        except AgentCoreError as error:
            terminal.line(f"error: {visible(shown_error(clean(error.message)))}", Style.BAD)
            show_refused(error, terminal, clean)
            return exit_code_of(error)
        show_move(result, terminal, clean)
        return COMPLETED


async def _state(runtime: AgentRuntime, name: str) -> str:
    """The id of a node by its beginning; snapshots are named in full."""
    return name if name.startswith("snap_") else await runtime.resolve_node_id(name)


def show_move(result: SwitchResult, terminal: Terminal, clean: Clean) -> None:
    """Show the changes to the files, and the new end of the session."""
    show_restored(result, terminal, clean)
    if result.message is not None:
        terminal.line(f"taken back: {message_of(result, clean)}")
    where = result.node_id or "its beginning"
    terminal.line(f"session {result.session_id} continues from {where}", Style.DIM)
    if result.snapshot_before is not None:
        terminal.line(f"snapshot of the files just before: {result.snapshot_before}", Style.DIM)


def message_of(result: SwitchResult, clean: Clean) -> str:
    """Return the beginning of the message that an undo took back, on one line."""
    return visible(first_words(clean(result.message or ""), _LONGEST_MESSAGE), one_line=True)


def show_restored(result: SwitchResult, terminal: Terminal, clean: Clean) -> None:
    """Show the changes to the files, and what was left alone."""
    show_paths("restored", result.restored, terminal, clean)
    show_paths("deleted", result.deleted, terminal, clean)
    show_paths("moved aside", result.moved_aside, terminal, clean)
    show_paths("left as it is", result.refused, terminal, clean, Style.WARN)
    unexpected = [each for each in result.left_out if not each.endswith(_EXPECTED)]
    show_paths("in no snapshot", unexpected, terminal, clean)
    show_paths("git is left alone", result.git, terminal, clean, Style.WARN)
    for remark in result.remarks:
        terminal.line(visible(clean(without_code(remark)), one_line=True), Style.WARN)


def show_refused(error: AgentCoreError, terminal: Terminal, clean: Clean) -> None:
    """Show a line for each path because of which nothing was done, unless the error names all."""
    reasons: Mapping[str, str] = error.details.get("reasons", {})
    if error.code is not ErrorCode.PATH_CONFLICT or all(path in error.message for path in reasons):
        return
    for why, paths in groupby(sorted(reasons, key=reasons.__getitem__), key=reasons.__getitem__):
        show_paths(why, paths, terminal, clean)


def show_paths(
    what: str,
    paths: Iterable[str],
    terminal: Terminal,
    clean: Clean,
    style: Style = Style.DIM,
) -> None:
    """Show a line for each path, and how many more there are."""
    every = list(paths)
    for path in every[:_MOST_PATHS]:
        terminal.line(f"  {what}: {visible(clean(path), one_line=True)}", style)
    if (more := len(every) - _MOST_PATHS) > 0:
        terminal.line(f"  {what}: {plural(more, 'more path')}", style)


def show_diff(found: WorkspaceDiff, terminal: Terminal, clean: Clean) -> None:
    """Show the changes: text as a diff on standard output, all else by its name.

    A screen shows the numbered lines that calls and `/diff` show; a program gets a unified diff.
    """
    sheet = Sheet()
    layout = CallLayout(sheet.width - 1, SIGNS if terminal.has_signs else ASCII_SIGNS)
    for change in found.changes:
        path = visible(clean(change.path), one_line=True)
        note = f" ({change.note})" if change.note else ""
        sheet.line((f"{change.kind}: {path}{note}", Style.BOLD))
        if change.diff is None:
            continue
        if sheet.is_screen:
            for line in layout.changes(clean(change.diff), most=None):
                sheet.line(*line)
        else:
            write_output(visible(clean(change.diff)))
    show_paths("in no snapshot", found.left_out, terminal, clean)
    show_paths("git", found.git, terminal, clean, Style.WARN)
    if not found.changes:
        terminal.line("no file differs", Style.DIM)
