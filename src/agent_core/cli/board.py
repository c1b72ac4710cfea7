"""The Tasks of an orchestrator run: a picture that stays below the output, and a last summary."""

import asyncio
import os
from pathlib import Path

from agent_core.cli.pictures import rendered, summary_lines, task_tree
from agent_core.cli.secrets import terminal_redactor
from agent_core.cli.terminal import Style, Terminal
from agent_core.config.load import read_setup
from agent_core.config.paths import Setup
from agent_core.errors import ConfigError
from agent_core.tasks.log_store import StoredTask, stored_tasks

_REFRESH_S = 0.3


class Board:
    """The Tasks that one session works on now.

    The logs are the source: what is shown is what is written, whoever wrote it.
    """

    def __init__(self, setup: Setup, session_id: str, terminal: Terminal) -> None:
        self._setup = setup
        self._session_id = session_id
        self._terminal = terminal
        self._clean = terminal_redactor(os.environ, setup).text
        self._seen: object = None
        self._picture = ""

    @classmethod
    def of(cls, path: str | None, session_id: str, terminal: Terminal) -> "Board | None":
        """The board of a session; None where there is no project to look at."""
        try:
            return cls(read_setup(path), session_id, terminal)
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
        """Say how each Task of this run stands in the end."""
        for task in await asyncio.to_thread(self._tasks):
            for line in summary_lines(task.dag, clean=self._clean):
                self._terminal.line(line, Style.DIM)

    def _draw(self) -> str:
        """The picture; the last one, if no log has changed."""
        state = self._state()
        if state != self._seen:
            self._seen = state
            width = self._terminal.width - 1
            trees = (
                task_tree(task.dag, clean=self._clean) for task in self._tasks() if _goes_on(task)
            )
            self._picture = "".join(rendered(tree, width=width, is_coloured=True) for tree in trees)
        return self._picture

    def _tasks(self) -> list[StoredTask]:
        found = stored_tasks(
            self._setup.tasks_dir,
            project_dir=self._setup.project,
            session_id=self._session_id,
        )
        return list(found.tasks)

    def _state(self) -> object:
        folder = self._setup.tasks_dir / self._session_id
        try:
            logs = sorted(folder.iterdir())
        except OSError:
            return None
        return [(log.name, *_stamp(log)) for log in logs]


def _goes_on(task: StoredTask) -> bool:
    return not task.dag.task.status.is_terminal


def _stamp(log: Path) -> tuple[int, int]:
    try:
        facts = log.stat(follow_symlinks=False)
    except OSError:
        return 0, 0
    return facts.st_size, facts.st_mtime_ns
