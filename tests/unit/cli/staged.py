"""The command line with a staged runtime behind it: `python staged.py <scene> [run arguments]`.

Everything but the runtime is real: process, signals, pipes, terminal. What a scene does is written
below as the events of one run.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from agent_core import RunResult
from agent_core.cli import run
from agent_core.cli.command import execute
from agent_core.errors import ConfigError, ErrorCode, StorageError
from agent_core.permissions import PermissionCallback, UnattendedError
from agent_core.permissions.answers import call_back
from agent_core.types import (
    ApprovalRecord,
    CancelResult,
    ErrorPayload,
    EventLevel,
    EventType,
    PermissionRequest,
    RunMode,
    RunStatus,
    RuntimeEvent,
    ToolPermission,
    Usage,
    utc_now,
)


def tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def happens(
    kind: str, payload: dict[str, Any] | None = None, level: EventLevel = EventLevel.INFO
) -> RuntimeEvent:
    return RuntimeEvent(
        event_id="evt_1",
        session_id="sess_1",
        event_type=EventType(kind),
        payload=payload or {},
        level=level,
        created_at=utc_now(),
    )


class StagedRun:
    """A handle whose events are those of a scene."""

    session_id = "sess_1"
    mode = RunMode.NORMAL
    permission_mode = "ask"
    pending_requests = ()
    warnings = ()

    def __init__(self, scene: str, message: str, callback: PermissionCallback) -> None:
        self.status = RunStatus.RUNNING
        self.error: ErrorPayload | None = None
        self.result_text: str | None = None
        self.usage = Usage(input_tokens=12, output_tokens=3, total_tokens=15)
        self._scene, self._message, self._callback = scene, message, callback
        self._cancelled = asyncio.Event()

    async def events(self) -> AsyncGenerator[RuntimeEvent]:
        yield happens("loop_started")
        yield happens("model_started")
        text = ""
        async for event in getattr(self, f"_{self._scene}")():
            if event.event_type is EventType.MODEL_STARTED:
                text = ""
            if event.event_type is EventType.MODEL_TEXT_DELTA:
                text += event.payload["text"]
            yield event
        if self.status is RunStatus.RUNNING:
            self.status = RunStatus.COMPLETED
            self.result_text = self.result_text or text

    async def wait(self) -> RunStatus:
        return self.status

    async def result(self) -> RunResult[str]:
        text = self.result_text or ""
        return RunResult(
            output=text,
            text=text,
            status=self.status,
            usage=self.usage,
            session_id=self.session_id,
            run_id="run_1",
        )

    async def cancel(self) -> CancelResult:
        self._cancelled.set()
        tell("cancel was called")
        return CancelResult(run_id="run_1", status=RunStatus.CANCELLED)

    async def _says(self) -> AsyncGenerator[RuntimeEvent]:
        for text in ("You said: ", self._message):
            yield happens("model_text_delta", {"text": text})
        yield happens("model_completed")
        yield happens("run_completed")

    async def _works(self) -> AsyncGenerator[RuntimeEvent]:
        yield happens("model_text_delta", {"text": "Let me look."})
        yield happens("model_completed")
        yield happens("tool_started", {"tool_name": "code.read_file", "summary": '{"path":"a"}'})
        yield happens("tool_progress", {"tool_name": "code.read_file", "text": "half\nway"})
        yield happens("tool_completed", {"tool_name": "code.read_file", "duration_ms": 12})
        failure = {"tool_name": "x\ny", "duration_ms": 2500, "code": "timeout", "message": "late"}
        yield happens("tool_failed", failure, EventLevel.WARNING)
        error = {"code": "provider_rate_limited", "message": "slow down"}
        yield happens("model_retry", {"attempt": 1, "delay_ms": 1500, "error": error})
        instead = {"fallback": {"provider": "ollama", "model": "small\x1b"}}
        error = {"code": "provider_error", "message": "gone", "details": instead}
        yield happens("model_retry", {"attempt": 2, "delay_ms": 0, "error": error})
        yield happens("mcp_server_failed", {"server_id": "git", "error": "died"}, EventLevel.ERROR)
        yield happens("model_started")
        yield happens("model_text_delta", {"text": "Done.\n"})
        yield happens("model_completed")
        yield happens("run_completed")

    async def _does_not_stream(self) -> AsyncGenerator[RuntimeEvent]:
        self.result_text = "whole answer"
        yield happens("model_completed")
        yield happens("run_completed")

    async def _attacks(self) -> AsyncGenerator[RuntimeEvent]:
        attack = "\x1b]0;owned\x07\x9b2J\u202e\U000e0041 real\rfake \udc80"
        yield happens("model_text_delta", {"text": attack + "\r"})
        yield happens("model_text_delta", {"text": "\nnext\r"})
        yield happens("model_text_delta", {"text": "lone"})
        yield happens("model_completed")
        yield happens("tool_started", {"tool_name": attack, "summary": attack})
        yield happens("tool_failed", {"tool_name": attack, "code": "x", "message": attack})
        yield happens("run_completed")

    async def _fails(self) -> AsyncGenerator[RuntimeEvent]:
        self.status = RunStatus.FAILED
        self.error = ErrorPayload(
            type="ProviderError", code=ErrorCode.PROVIDER_ERROR, message="no\nluck"
        )
        yield happens("model_text_delta", {"text": "half an ans"})
        yield happens("run_failed", {"error": {"code": "provider_error"}}, EventLevel.ERROR)

    async def _asks(self) -> AsyncGenerator[RuntimeEvent]:
        request = PermissionRequest(
            request_id="req_1",
            session_id="sess_1",
            agent_id="agent_2",
            run_id="run_2",
            parent_agent_id="agent_1",
            parent_run_id="run_1",
            agent_role="sub",
            tool_name="code.write_file",
            permission=ToolPermission.WRITE,
            args_summary='{"path": "a.py"}',
            target_scope="/p",
            cwd="/p",
            metadata={"target": "/p/a.py", "reason": "outside_roots", "diff": "-old\n+new\n"},
        )
        scopes = ["/p", *(f"/p{number}" for number in range(2, int(self._message) + 1))]

        async def ask(scope: str) -> str:
            try:
                asked = request.model_copy(update={"target_scope": scope})
                return (await call_back(self._callback, asked)).decision
            except UnattendedError:
                return "unattended"

        text = " ".join(await asyncio.gather(*map(ask, scopes)))
        yield happens("model_text_delta", {"text": text})
        yield happens("run_completed")

    async def _hangs(self) -> AsyncGenerator[RuntimeEvent]:
        yield happens("model_text_delta", {"text": "thinking"})
        await self._cancelled.wait()
        yield happens("model_text_delta", {"text": " …"})
        self.status = RunStatus.CANCELLED
        yield happens("run_cancelled")

    async def _never_closes(self) -> AsyncGenerator[RuntimeEvent]:
        yield happens("model_text_delta", {"text": "thinking"})
        await self._cancelled.wait()
        await asyncio.sleep(60)

    async def _floods(self) -> AsyncGenerator[RuntimeEvent]:
        while not self._cancelled.is_set():
            yield happens("tool_progress", {"tool_name": "x", "text": "x" * 1000})
            await asyncio.sleep(0)
        yield happens("run_cancelled")


class StagedRuntime:
    def __init__(self, scene: str, callback: PermissionCallback) -> None:
        self._scene, self._callback = scene, callback

    async def approvals(self, *_: object, **__: object) -> list[ApprovalRecord]:
        return []

    async def finish_wishes(self, *_: object) -> list[object]:
        return []

    async def resolve_session_id(self, prefix: str) -> str:
        """Every session that is named exists."""
        return prefix

    def leave_wishes(self) -> None:
        pass

    async def start(
        self,
        message: str,
        session_id: str | None = None,
        mode: str = "normal",
        *,
        move_session: bool = False,
        here: bool = False,
    ) -> StagedRun:
        assert here
        if self._scene == "session_is_busy":
            raise StorageError(ErrorCode.SESSION_ACTIVE, "the session is busy")
        if self._scene == "breaks":
            raise RuntimeError("a bug with password=hunter2")
        tell(f"started {mode} {session_id}")
        return StagedRun(self._scene, message, self._callback)


def open_staged(scene: run.Scene) -> AbstractAsyncContextManager[StagedRuntime]:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[StagedRuntime]:
        if SCENE == "has_no_config":
            raise ConfigError(ErrorCode.CONFIG_ERROR, f"no config in {scene.options.path}")
        if SCENE == "opens_slowly":
            tell("opening")
            await asyncio.sleep(60)
        yield StagedRuntime(SCENE, scene.prompt)
        tell("closed")

    return opened()


if __name__ == "__main__":
    SCENE = sys.argv.pop(1)
    run.Scene.open_runtime = open_staged  # pyright: ignore[reportAttributeAccessIssue] - the stage
    sys.exit(execute())
