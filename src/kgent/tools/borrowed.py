"""Borrows the tools of agent_core: they know how to read, search, write and run safely.

What a path may be is decided before, by kgent's own rules; that the borrowed tool touches exactly
that path is checked again after it has had its look, before it does anything.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from agent_core.config.models import ToolsConfig
from agent_core.errors import ErrorCode
from agent_core.tools.base import Tool, ToolContext, ToolOutput
from agent_core.tools.paths import PathPolicy
from agent_core.tools.workspace import Workspace
from agent_core.types import ArtifactSource, RunIdentity
from kgent.errors import ErrorCategory, KgentError
from kgent.records.context import TOOL_OUTPUT
from kgent.runtime.loops import in_own_loop
from kgent.tools.guarded import Call

RESULT_BYTES = 16_384
"""What one page of a file, or one stream of a command, may take."""


def run_core_tool(
    make: Callable[[Workspace], Tool],
    arguments: Mapping[str, Any],
    call: Call,
    *,
    expected: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a tool of agent_core for this call, and return what it answers.

    Args:
        make: the tool, such as `agent_core.tools.code.read.read_file`.
        arguments: for that tool.
        call: the call it is run for.
        expected: the only path it may touch.
        env: what a command sees.

    Raises:
        ToolError: the tool could not do it.
        KgentError: the path leads elsewhere now, or the run is to stop.
    """
    tool = make(_workspace(call, env or {}))

    async def work() -> Any:
        action = await tool.prepare(tool.parse(arguments), _facts(call))
        if expected is not None and action.access.target != str(expected):
            message = f"{expected} has become a link to somewhere else"
            raise KgentError(ErrorCode.PERMISSION_DENIED, message, category=ErrorCategory.SANDBOX)
        answer = await action.run()
        return answer.answer if isinstance(answer, ToolOutput) else answer

    try:
        return cast("dict[str, Any]", in_own_loop(work, cancellation=call.cancellation))
    except asyncio.CancelledError:
        reason = call.cancellation.reason
        message = f"stopped: {reason.message}" if reason else "stopped"
        raise KgentError(ErrorCode.CANCELLED, message, category=ErrorCategory.TOOL) from None


def _workspace(call: Call, env: Mapping[str, str]) -> Workspace:
    limits = ToolsConfig(
        result_limit_bytes=RESULT_BYTES,
        stdout_limit_bytes=RESULT_BYTES,
        stderr_limit_bytes=RESULT_BYTES,
    )
    return Workspace(
        boundaries=PathPolicy(call.root),
        limits=limits,
        env=env,
        launcher=call.context.launcher,
        unfinished=call.context.records.files.unfinished,
    )


def _facts(call: Call) -> ToolContext:
    context = call.context

    async def keep(
        data: ArtifactSource,
        *,
        filename: str,
        kind: str = "tool_output",  # noqa: ARG001 - the protocol's
        mime_type: str | None = None,  # noqa: ARG001
        summary: str | None = None,  # noqa: ARG001
    ) -> str:
        label, ending = f"{call.call_id}-{Path(filename).stem}", Path(filename).suffix
        return context.records.archive.keep_raw(TOOL_OUTPUT, label, _read(data), ending=ending)

    return ToolContext(
        run=RunIdentity(session_id=context.session_id, agent_id="kgent", run_id=context.run_id),
        tool_call_id=call.call_id,
        project_dir=call.root,
        progress=_unheard,
        artifact=keep,
        is_cancelled=lambda: call.cancellation.is_cancelled,
    )


def _read(source: ArtifactSource) -> bytes:
    match source:
        case bytes():
            return source
        case Path():
            return source.read_bytes()
        case _:
            source.seek(0)
            return source.read()


def _unheard(text: str) -> None:
    """Progress of a borrowed tool: there is no event for it."""
