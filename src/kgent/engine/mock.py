"""An engine without a model: it plays a script, for tests and for trying a profile out."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from agent_core.disk.reading import read_text_file
from agent_core.errors import ErrorCode
from agent_core.types import new_id
from kgent.engine.base import AgentResult, AgentRunRequest, EngineEventKind, EngineStatus
from kgent.engine.outcome import conclude, failed, interrupted, out_of_steps
from kgent.errors import ErrorCategory, ErrorInfo, KgentError
from kgent.tools.registry import call_tool, record_unheard_call

MAX_SCRIPT_BYTES = 1_000_000
_GLANCE_S = 0.02
_DEFAULT = "The mock engine has nothing to add."


class MockCall(BaseModel):
    """Call a tool. What it answers is recorded, and otherwise ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tool: str
    args: dict[str, Any] = {}


class MockFailure(BaseModel):
    """Fail, and end."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fail: str
    code: str = ErrorCode.PROVIDER_ERROR.value
    retryable: bool = False

    @property
    def error(self) -> ErrorInfo:
        """The failure as every engine reports it."""
        return ErrorInfo(
            code=self.code,
            message=self.fail,
            category=ErrorCategory.ENGINE,
            retryable=self.retryable,
        )


class MockPause(BaseModel):
    """Wait; time and cancellation are honoured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sleep: Annotated[float, Field(ge=0)]


MockStep = str | MockCall | MockFailure | MockPause
"""Text is something the model says; the last text is the answer."""


class MockAgentEngine:
    """Plays its steps in order; every step but a pause counts as one model call.

    Args:
        script: the steps. Without any, the one in the profile's `model.path` is played; without
            that one too, the answer is a fixed text and nothing is written.
    """

    def __init__(self, script: Sequence[MockStep] | None = None) -> None:
        self._script = script
        self.requests: list[AgentRunRequest] = []
        """Every request so far."""

    def run(self, request: AgentRunRequest) -> AgentResult:
        """Play the script.

        Raises:
            KgentError: category `config`; the script in `model.path` cannot be used.
        """
        self.requests.append(request)
        script = self._script if self._script is not None else _from_profile(request)
        return conclude(request, lambda: _play(script, request))


def _play(script: Sequence[MockStep], request: AgentRunRequest) -> AgentResult:
    token = request.cancellation_token
    said: str | None = None
    usage = {"model_calls": 0}
    for step in script:
        if token.is_cancelled:
            break
        if isinstance(step, MockPause):
            _wait(step.sleep, request)
            continue
        if usage["model_calls"] == request.max_steps:
            return out_of_steps(request.max_steps, text=said, usage=usage)
        usage["model_calls"] += 1
        if isinstance(step, MockFailure):
            return failed(step.error, usage=usage)
        said = _say_or_call(step, request) or said
    if token.is_cancelled:
        return interrupted(token.reason, text=said, usage=usage)
    return AgentResult(status=EngineStatus.COMPLETED, final_text=said, usage=usage)


def _say_or_call(step: str | MockCall, request: AgentRunRequest) -> str | None:
    request.tell(EngineEventKind.STEP)
    if isinstance(step, str):
        request.tell(EngineEventKind.TEXT, step)
        return step
    _call(step, request)
    return None


def _call(step: MockCall, request: AgentRunRequest) -> None:
    call_id = new_id("call")
    tool = next((tool for tool in request.tools if tool.name == step.tool), None)
    if tool is not None:
        call_tool(tool, step.args, request.context, call_id=call_id)
        return
    record_unheard_call(
        request.context,
        call_id=call_id,
        name=step.tool,
        args=step.args,
        code=ErrorCode.TOOL_NOT_AVAILABLE.value,
        message=f"there is no tool {step.tool[:80]} in this run",
    )


def _wait(seconds: float, request: AgentRunRequest) -> None:
    until = time.monotonic() + seconds
    while not request.cancellation_token.is_cancelled and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _GLANCE_S))


def _from_profile(request: AgentRunRequest) -> list[MockStep]:
    config = request.context.config
    if config.model.path is None:
        return [_DEFAULT]
    path = config.place(config.model.path)
    try:
        return TypeAdapter(list[MockStep]).validate_json(_content(path))
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no list of mock steps"
        message = f"the script {path}, which model.path names, cannot be used: {reason}"
        raise KgentError(ErrorCode.CONFIG_ERROR, message, category=ErrorCategory.CONFIG) from error


def _content(path: Path) -> bytes:
    return read_text_file(path, MAX_SCRIPT_BYTES)
