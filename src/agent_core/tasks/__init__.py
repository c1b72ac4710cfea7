"""Tasks: an orchestrator's graph of steps, and the append-only log it is made from.

`decide` says what a command changes, the log gets it, `apply` makes it true; replaying a log is
nothing but `apply` again. `board` is where others come in, `tools` where models do.
"""

from agent_core.tasks.actor import Actor, TaskScope
from agent_core.tasks.board import BoardSettings, ClaimedStep, TaskBoard, open_board
from agent_core.tasks.cleanup import cleanup_ended_tasks
from agent_core.tasks.commands import AbortTask, Report, RunEnding
from agent_core.tasks.digest import BoardLimits, board_text
from agent_core.tasks.model import StepStatus, TaskStatus
from agent_core.tasks.ports import Clock, NoRuns, RunStopper, TaskJournal
from agent_core.tasks.tools import task_tools

__all__ = [
    "AbortTask",
    "Actor",
    "BoardLimits",
    "BoardSettings",
    "ClaimedStep",
    "Clock",
    "NoRuns",
    "Report",
    "RunEnding",
    "RunStopper",
    "StepStatus",
    "TaskBoard",
    "TaskJournal",
    "TaskScope",
    "TaskStatus",
    "board_text",
    "cleanup_ended_tasks",
    "open_board",
    "task_tools",
]
