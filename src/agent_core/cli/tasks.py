"""Tasks of a project: `soong-agent tasks`, and the live picture below a run's output."""

import asyncio
import json
import os
import sys
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agent_core.cli.exit_codes import COMPLETED, FAILED, MISUSED
from agent_core.cli.layout import window_size
from agent_core.cli.nearby import resolve_session
from agent_core.cli.options import Options
from agent_core.cli.pictures import build_tree, render_svg, render_tree, summary_lines
from agent_core.cli.setup import (
    build_terminal_redactor,
    open_runtime,
    read_command_setup,
    run_on_terminal,
)
from agent_core.cli.sheet import write_output
from agent_core.cli.terminal import Style, Terminal
from agent_core.config.paths import Setup
from agent_core.errors import ConfigError, ErrorCode, StorageError
from agent_core.opening import write_text
from agent_core.tasks.log_store import StoredTask, read_stored_tasks
from agent_core.tasks.model import TaskStepStatus
from agent_core.tasks.tools import summarise_task, view_step
from agent_core.text import Clean, visible
from agent_core.text.json_text import JsonObject
from agent_core.types import utc_now

if TYPE_CHECKING:
    from agent_core.api import AgentRuntime

_PIPE_WIDTH = 120
_PLAIN_LINES = str.maketrans("│├└─·…", "|+`--.")
_REFRESH_S = 0.3


def show_tasks(options: Options) -> int:
    """List the Tasks, print one, or write its picture, and return the exit code."""
    show = _list if options.action == "list" else _show
    return run_on_terminal(options, options.path, partial(show, options), asks_model=False)


async def _list(options: Options, setup: Setup, _: Terminal, clean: Clean) -> int:
    tasks, problems = await _read(options, setup)
    for each in tasks:
        if options.json:
            write_output(clean(json.dumps(_summary_in_json(each), ensure_ascii=False)) + "\n")
            continue
        task, counts = each.dag.task, each.dag.counts()
        done = f"{counts.get(TaskStepStatus.COMPLETED, 0)}/{each.dag.count()} steps"
        line = f"{task.task_id}  {task.status:<9}  {done:>11}  {each.session_id}  {task.title}"
        write_output(visible(clean(line), one_line=True) + "\n")
    for problem in problems:
        _note(f"error: {clean(problem)}")
    if not tasks and not problems and not options.json:
        whose = f" in session {options.session_id}" if options.session_id else ""
        _note(f"there are no Tasks of {setup.project}{whose}")
    return FAILED if problems else COMPLETED


async def _read(options: Options, setup: Setup) -> tuple[list[StoredTask], list[str]]:
    options.session_id = await _session_of(setup, options.session_id)
    return read_stored_tasks(
        setup.tasks_dir, project_dir=setup.project, session_id=options.session_id
    )


async def _show(options: Options, setup: Setup, _: Terminal, clean: Clean) -> int:
    tasks, problems = await _read(options, setup)
    ids = {each.task_id for each in tasks}
    begun = {task_id for task_id in ids if task_id.startswith(options.id)}
    if options.id not in ids and len(begun) > 1:
        return _fail(clean(f"{options.id} begins several: {', '.join(sorted(begun))}"), MISUSED)
    wanted = begun.pop() if options.id not in ids and begun else options.id
    mine = [each for each in tasks if each.task_id == wanted]
    if not mine:
        known = ", ".join(dict.fromkeys(each.task_id for each in tasks)) or "none"
        message = f"there is no Task {options.id} in this project; there are: {known}"
        return _fail(clean("\n".join([message, *problems])), FAILED)
    if others := [each.session_id for each in mine[1:]]:
        _note(f"also in session {', '.join(others)}: choose with --session-id")
    if options.json:
        write_output(clean(json.dumps(_as_json(mine[0]), ensure_ascii=False)) + "\n")
        return COMPLETED
    tree = build_tree(mine[0].dag, clean=clean, session_id=mine[0].session_id)
    if options.svg is not None:
        path, svg = Path(options.svg), render_svg(tree, title=clean(f"Task {mine[0].task_id}"))
        try:
            write_text(path, svg)
        except OSError as error:
            return _fail(f"{path} cannot be written: {error.strerror}", FAILED)
        _note(f"written to {path}")
        return COMPLETED
    is_terminal = sys.stdout.isatty()
    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    width = window_size(sys.stdout).columns if is_terminal else _PIPE_WIDTH
    text = render_tree(tree, width=width, is_coloured=is_terminal and not is_plain)
    encoding = sys.stdout.encoding
    if not encoding.lower().startswith("utf"):
        text = text.translate(_PLAIN_LINES)
    write_output(text.encode(encoding, "replace").decode(encoding))
    return COMPLETED


def _summary_in_json(task: StoredTask) -> JsonObject:
    """Return a Task without its steps."""
    return {"session_id": task.session_id, **summarise_task(task.dag)}


def _as_json(task: StoredTask) -> JsonObject:
    """Return a Task with all its steps; a claimed step says whether its lease has ended."""
    dag, now = task.dag, utc_now()
    steps = [view_step(dag, step) for step in dag.steps()]
    for step, view in zip(dag.steps(), steps, strict=True):
        if step.status.is_claim:
            view["lease_ended"] = step.has_ended_lease(now)
        elif step.status is TaskStepStatus.PENDING and (stuck := dag.obstacles(step.step_id)):
            view["stranded_by_step_ids"] = [each.step_id for each in stuck]
    return {**_summary_in_json(task), "steps": steps}


def _note(text: str) -> None:
    sys.stderr.write(visible(text) + "\n")


def _fail(text: str, code: int) -> int:
    _note(f"error: {text}")
    return code


async def _session_of(setup: Setup, prefix: str | None) -> str | None:
    """Return the session that a prefix names: the only one with Tasks, or one of the database.

    Raises:
        StorageError: `session_not_found`.
        AgentCoreError: `validation_error`: several sessions have ids that begin so.
    """
    if prefix is None:
        return None
    named = [each.name for each in setup.tasks_dir.iterdir()] if setup.tasks_dir.is_dir() else []
    found = [name for name in named if name.startswith((prefix, f"sess_{prefix}"))]
    if prefix in found or len(found) == 1:
        return prefix if prefix in found else found[0]
    async with open_runtime(setup, read_only=True) as runtime:
        return await resolve_session(runtime, prefix)


async def own_runs(runtime: "AgentRuntime", session_id: str) -> set[str] | None:
    """Return the runs that may have begun a session's Tasks; None for a fork, which has copies.

    Other Tasks under its id belong to an earlier session, which was deleted.
    """
    try:
        page = await runtime.replay_session(session_id, from_seq=1, to_seq=0)
    except StorageError as error:
        if error.code is not ErrorCode.SESSION_NOT_FOUND:
            raise
        return set()  # it has not begun
    if page.session.parent_session_id is not None:
        return None
    return {run.run_id for run in await runtime.session_runs(session_id)}


class LiveTasks:
    """The present Tasks of one session, as a picture that stays below the output.

    It is read from the logs, so it shows the Tasks of every process.
    """

    def __init__(
        self, setup: Setup, session_id: str, terminal: Terminal, runs: Collection[str] | None
    ) -> None:
        self._runs = runs
        self._setup = setup
        self._session_id = session_id
        self._terminal = terminal
        self._clean = build_terminal_redactor(os.environ, setup).text
        self._seen: object = None
        self._picture = ""

    @classmethod
    def of(
        cls,
        options: Options,
        session_id: str,
        terminal: Terminal,
        runs: Collection[str] | None,
    ) -> "LiveTasks | None":
        """Return the Tasks of a session that these runs have begun, or None without a project."""
        try:
            setup = read_command_setup(options.path, options.model)
            return cls(setup, session_id, terminal, runs)
        except ConfigError:
            return None  # a runtime that is not of this home

    async def watch(self) -> None:
        """Keep the picture up to date until cancelled; nothing is shown but on a terminal."""
        try:
            while self._terminal.can_draw:
                if picture := await asyncio.to_thread(self._draw):
                    self._terminal.show_below(picture)
                await asyncio.sleep(_REFRESH_S)
        finally:
            self._terminal.show_below("")

    async def summary(self) -> None:
        """Show the final state of each Task of this run."""
        for task in await asyncio.to_thread(self._tasks):
            for line in summary_lines(task.dag, clean=self._clean):
                self._terminal.line(line, Style.DIM)

    def _draw(self) -> str:
        """The picture; the last one, if no log has changed."""
        state = self._log_state()
        if state != self._seen:
            self._seen = state
            trees = (
                build_tree(task.dag, clean=self._clean)
                for task in self._tasks()
                if not task.dag.task.status.is_terminal
            )
            width = self._terminal.width - 1
            self._picture = "".join(render_tree(t, width=width, is_coloured=True) for t in trees)
        return self._picture

    def _tasks(self) -> list[StoredTask]:
        folder, project = self._setup.tasks_dir, self._setup.project
        tasks, _ = read_stored_tasks(
            folder, project_dir=project, session_id=self._session_id, runs=self._runs
        )
        return tasks

    def _log_state(self) -> object:
        """Return a value that changes whenever a log is written."""
        state: list[tuple[str, int, int]] = []
        try:
            logs = sorted((self._setup.tasks_dir / self._session_id).iterdir())
        except OSError:
            return None
        for log in logs:
            try:
                facts = log.stat(follow_symlinks=False)
            except OSError:
                state.append((log.name, 0, 0))
            else:
                state.append((log.name, facts.st_size, facts.st_mtime_ns))
        return state
