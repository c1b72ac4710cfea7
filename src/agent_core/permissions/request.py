"""Puts a call into a question that a person can answer: complete, bounded, and not deceiving."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_core.redaction.redactor import Redactor
from agent_core.redaction.visible import shortened, visible
from agent_core.types import (
    Access,
    Decision,
    PermissionRequest,
    RunIdentity,
    ToolCall,
    ToolDefinition,
    new_id,
)

MAX_SUMMARY = 8_000
MAX_DIFF = 60_000
MAX_LINE = 4_000
MAX_PLACES = 50
THIS_CALL_ONLY = "this call only"


class Questions:
    """Writes requests. No secret and no control character gets into one."""

    def __init__(self, project_dir: Path, redactor: Redactor) -> None:
        self._project_dir = project_dir
        self._redactor = redactor

    def about(
        self,
        call: ToolCall,
        definition: ToolDefinition,
        access: Access,
        run: RunIdentity,
        *,
        hosts: Sequence[str] | None = None,
        covers: str | None = None,
    ) -> PermissionRequest:
        """The question whether `run` may make this call.

        Args:
            call: what the model asked for.
            definition: the tool.
            access: what the call would touch.
            run: who makes it.
            hosts: the hosts it names, if it is a network call.
            covers: what an answer for the session would cover; None for this call only.
        """
        line = self._line
        return PermissionRequest(
            request_id=new_id("req"),
            session_id=run.session_id,
            agent_id=run.agent_id,
            run_id=run.run_id,
            parent_agent_id=run.parent_agent_id,
            parent_run_id=run.parent_run_id,
            agent_role=run.role,
            tool_name=definition.name,
            permission=definition.permission,
            tags=set(definition.tags),
            args_summary=line(access.summary, MAX_SUMMARY),
            target_scope=line(covers or THIS_CALL_ONLY),
            cwd=line(access.cwd or str(self._project_dir)),
            env_summary=line(", ".join(access.env_names)),
            network_host=line(",".join(hosts)) if hosts else None,
            dangerous=access.dangerous,
            hook_summary=self._cleaned(access.hook_summary),
            suggested_decision=_suggestion(access),
            metadata=self._metadata(call, access),
        )

    def _metadata(self, call: ToolCall, access: Access) -> dict[str, Any]:
        metadata: dict[str, Any] = {"tool_call_id": call.tool_call_id}
        if access.target is not None:
            metadata["target"] = self._line(access.target, MAX_SUMMARY)
        if access.reason is not None:
            metadata["reason"] = self._line(access.reason)
        if access.places:
            metadata["places"] = [self._line(place) for place in access.places[:MAX_PLACES]]
            if (more := len(access.places) - MAX_PLACES) > 0:
                metadata["places"].append(f"… (+{more} more)")
        if access.diff is not None:
            diff = self._redactor.text(access.diff)
            metadata["diff"] = shortened(visible(diff), MAX_DIFF)
        return metadata

    def _cleaned(self, summary: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if summary is None:
            return None
        return {
            key: self._line(value) if isinstance(value, str) else value
            for key, value in summary.items()
        }

    def _line(self, text: str, limit: int = MAX_LINE) -> str:
        return shortened(visible(self._redactor.text(text), one_line=True), limit)


def for_the_record(request: PermissionRequest) -> dict[str, Any]:
    """The request as an event's payload, without the diff: the call itself is in the history."""
    payload = request.model_dump(mode="json")
    payload["tags"] = sorted(request.tags)
    payload["metadata"].pop("diff", None)
    return payload


def _suggestion(access: Access) -> Decision:
    return Decision.DENY if access.dangerous or access.reason else Decision.ALLOW_ONCE
