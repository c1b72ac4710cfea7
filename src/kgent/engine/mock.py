"""An engine without a model that plays a script, for tests and for trying a profile out."""

import asyncio
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from agent_core.config.models import RetryConfig
from agent_core.disk.reading import read_text_file
from agent_core.errors import ErrorCode
from agent_core.types import Frozen, new_id
from kgent.config.models import KgentConfig
from kgent.engine.base import (
    AgentResult,
    AgentRunRequest,
    AsyncAgentEngine,
    EngineEventKind,
    EngineStatus,
    interrupted,
    out_of_budget,
    out_of_steps,
    run_limited,
)
from kgent.errors import config_error, engine_error
from kgent.tools.calls import record_rejected_call

MAX_SCRIPT_BYTES = 1_000_000
_DEFAULT = "The mock engine has nothing to add."


class MockCall(Frozen):
    """Call a tool. Its answer is recorded, and otherwise ignored."""

    tool: str
    args: dict[str, Any] = {}


class MockFailure(Frozen):
    """Fail, and end. After a `retryable` failure the next step, if there is one, is tried."""

    fail: str
    code: str = ErrorCode.PROVIDER_ERROR.value
    retryable: bool = False


class MockPause(Frozen):
    """Wait, unless the time limit or a cancellation ends the run."""

    sleep: Annotated[float, Field(ge=0)]


class MockContinuation(Frozen):
    """Continue with these steps if the model is asked to continue, and end otherwise."""

    nudged: list["MockStep"]


MockStep = str | MockCall | MockFailure | MockPause | MockContinuation
"""A text is a message of the model; the last text is the answer."""


class MockAgentEngine(AsyncAgentEngine):
    """Plays its steps in order; every step except a pause counts as one model call.

    Args:
        script: the steps. By default the script in the profile's `model.path` is played; without
          that too, the answer is a fixed text and nothing is written.
    """

    def __init__(self, script: Sequence[MockStep] | None = None) -> None:
        self._script = script
        self.requests: list[AgentRunRequest] = []
        """Every request so far."""

    def secrets(self, config: KgentConfig) -> Mapping[str, str]:  # noqa: ARG002
        """Return nothing: no model is asked."""
        return {}

    async def check(self, config: KgentConfig) -> None:
        """Refuse an unusable script in `model.path`, unless a script was given in code.

        Raises:
            KgentError: category `config`; the script cannot be used.
        """
        if self._script is None:
            _load_script(config)

    async def run_async(self, request: AgentRunRequest) -> AgentResult:
        """Play the script.

        Raises:
            KgentError: category `config`; the script in `model.path` cannot be used.
        """
        self.requests.append(request)
        script = self._script if self._script is not None else _load_script(request.context.config)
        return await run_limited(request, partial(_play, script, request))


async def _play(script: Sequence[MockStep], request: AgentRunRequest) -> AgentResult:
    token, usage = request.cancellation_token, {"model_calls": 0}
    text: str | None = None
    answer: str | None = None
    steps, budget, made = list(reversed(script)), request.context.config.runtime.budget, 0
    failures = 0
    try:
        while steps:
            step = steps.pop()
            if isinstance(step, MockContinuation):
                if await request.ask_further() is None:
                    break
                answer = text
                steps += reversed(step.nudged)
                continue
            if isinstance(step, MockPause):
                await asyncio.sleep(step.sleep)
                continue
            if (ended := _out_of_calls(request, text, usage)) is not None:
                return ended
            usage["model_calls"] += 1
            if isinstance(step, MockFailure):
                failures += 1
                if _is_tried_again(step, steps, failures):
                    continue
                error = engine_error(step.code, step.fail, retryable=step.retryable)
                failed = EngineStatus.FAILED
                return AgentResult(status=failed, final_text=answer, error=error, usage=usage)
            failures = 0
            request.report(EngineEventKind.STEP)
            if isinstance(step, str):
                text = step
                request.report(EngineEventKind.TEXT, step)
            else:
                made += 1
                is_spent = budget.tool_calls is not None and made > budget.tool_calls
                await _call(step, request, is_spent=is_spent)
                if is_spent:
                    return out_of_budget("tool_calls", text=text, usage=usage)
            await asyncio.sleep(0)  # lets a cancellation take effect
    except asyncio.CancelledError:
        if not token.is_cancelled:
            raise
        return interrupted(token.reason, text=text, usage=usage)
    return AgentResult(status=EngineStatus.COMPLETED, final_text=text, usage=usage)


def _out_of_calls(
    request: AgentRunRequest, text: str | None, usage: dict[str, int]
) -> AgentResult | None:
    """Return the result if no more model calls are allowed; None otherwise."""
    if usage["model_calls"] == request.max_steps:
        return out_of_steps(request.max_steps, text=text, usage=usage)
    if usage["model_calls"] == request.context.config.runtime.budget.requests:
        return out_of_budget("requests", text=text, usage=usage)
    return None


def _is_tried_again(failure: MockFailure, steps: Sequence[MockStep], failures: int) -> bool:
    return failure.retryable and bool(steps) and failures < RetryConfig().max_attempts


async def _call(step: MockCall, request: AgentRunRequest, *, is_spent: bool) -> None:
    """Call the tool; if there is no such tool or no budget, only record the call."""
    call_id = new_id("call")
    tool = next((tool for tool in request.tools if tool.name == step.tool), None)
    if tool is not None and not is_spent:
        await tool.invoke(step.args, request.context, call_id=call_id)
        return
    code = ErrorCode.BUDGET_EXCEEDED if is_spent else ErrorCode.TOOL_NOT_AVAILABLE
    message = f"there is no tool {step.tool[:80]} in this run"
    await record_rejected_call(
        request.context,
        call_id=call_id,
        name=step.tool,
        args=step.args,
        code=code.value,
        message="the budget of the run has no call of a tool left" if is_spent else message,
    )


def _load_script(config: KgentConfig) -> list[MockStep]:
    if config.model.path is None:
        return [_DEFAULT]
    path = config.place(config.model.path)
    try:
        content = read_text_file(path, MAX_SCRIPT_BYTES).removeprefix(BOM_UTF8)
        return TypeAdapter(list[MockStep]).validate_json(content)
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no list of mock steps"
        message = f"the script {path}, which model.path names, cannot be used: {reason}"
        raise config_error(message) from error
