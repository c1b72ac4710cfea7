"""Tasks: an orchestrator's graph of steps, and the append-only log it is made from.

`rules` decides what a command changes, the log gets it, `apply` makes it true; replaying a log is
`apply` again. `board` is where other packages come in, `tools` where models do.
"""

from agent_core.tasks.board import BoardSettings, TaskBoard, open_board
from agent_core.tasks.board_view import BoardLimits, render_board
from agent_core.tasks.log_store import cleanup_ended_tasks
from agent_core.tasks.model import Actor, RunEnding, TaskScope, TaskStatus
from agent_core.tasks.tools import build_task_tools

__all__ = [
    "Actor",
    "BoardLimits",
    "BoardSettings",
    "RunEnding",
    "TaskBoard",
    "TaskScope",
    "TaskStatus",
    "build_task_tools",
    "cleanup_ended_tasks",
    "open_board",
    "render_board",
]
