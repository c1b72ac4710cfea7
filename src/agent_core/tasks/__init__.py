"""Tasks: an orchestrator's graph of steps, and the append-only log it is built from.

`rules` decides the changes that a command makes, the log stores them, `apply` applies them;
replaying a log applies them again. Other packages use `board`, models use `tools`.
"""

from agent_core.tasks.board import BoardSettings, TaskBoard, open_board
from agent_core.tasks.board_view import BoardLimits, render_board
from agent_core.tasks.log_store import cleanup_ended_tasks
from agent_core.tasks.model import Actor, TaskScope, TaskStatus, WorkerEnding
from agent_core.tasks.tools import build_task_tools

__all__ = [
    "Actor",
    "BoardLimits",
    "BoardSettings",
    "TaskBoard",
    "TaskScope",
    "TaskStatus",
    "WorkerEnding",
    "build_task_tools",
    "cleanup_ended_tasks",
    "open_board",
    "render_board",
]
