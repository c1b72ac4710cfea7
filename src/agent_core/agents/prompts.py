"""What a child reads as its first message: the parent's words, in parts with fixed names."""

import json
from collections.abc import Sequence
from typing import Any

from agent_core.tools.agent_tools import Assignment, ChildAssignment, Dispatch, SubAssignment
from agent_core.types import Draft, RunIdentity, user_text

_SHAPE = (
    "Your last message must be one JSON value that fits this JSON Schema, and nothing else:\n{}"
)


def child_prompt(assignment: ChildAssignment, leader: RunIdentity, tool_call_id: str) -> Draft:
    """The task of a sub agent or a fork."""
    parts = [("Task", assignment.task)]
    if isinstance(assignment, SubAssignment):
        parts.append(("Context", assignment.context or ""))
    return _draft([*parts, *_limits(assignment)], leader, tool_call_id)


def worker_prompt(dispatch: Dispatch, leader: RunIdentity, tool_call_id: str) -> Draft:
    """The instruction of a worker, and the Task it is sent to."""
    step_ids = dispatch.allowed_step_ids
    parts = [
        ("Instruction", dispatch.instruction),
        ("Task id", dispatch.task_id),
        ("Steps you may claim", ", ".join(dict.fromkeys(step_ids)) if step_ids else ""),
        ("Context", dispatch.context or ""),
    ]
    return _draft([*parts, *_limits(dispatch)], leader, tool_call_id)


def _limits(assignment: Assignment) -> list[tuple[str, str]]:
    constraints, schema = assignment.constraints, assignment.expected_output_schema
    shape = _SHAPE.format(_json(schema)) if schema is not None else ""
    return [("Constraints", constraints or ""), ("Answer", shape)]


def _draft(parts: Sequence[tuple[str, str]], leader: RunIdentity, tool_call_id: str) -> Draft:
    text = "\n\n".join(f"{name}:\n{words.strip()}" for name, words in parts if words.strip())
    return user_text(
        text,
        from_agent_id=leader.agent_id,
        from_run_id=leader.run_id,
        tool_call_id=tool_call_id,
    )


def _json(schema: dict[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False, sort_keys=True)
