"""An engine without a model that plays a script, for tests and for trying a profile out."""

import asyncio
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from agent_core.config.models import RetryConfig
from agent_core.errors import ErrorCode
from agent_core.opening import read_text_file
from agent_core.types import Frozen, new_id
from kgent.config.models import KgentConfig
from kgent.engine.base import (
    AgentResult,
    AgentRunRequest,
    AsyncAgentEngine,
    EngineEventKind,
    EngineStatus,
    answer_call,
    make_open_calls,
    out_of_budget,
    out_of_steps,
    run_limited,
)
from kgent.errors import config_error, engine_error
from kgent.records.conversation import (
    ArchivedBlock,
    ArchivedMessage,
    blocks_of,
    call_block,
    message,
    result_block,
    text_block,
)
from kgent.records.lines import now
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

    It keeps a conversation, from which another attempt continues, once it has called a tool.

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
        talk = _Talk(request)
        result = await run_limited(request, partial(_play, script, request, talk))
        return result.model_copy(update={"final_text": talk.text, "usage": talk.usage})


class _Talk:
    """The conversation of a script, which is kept from the first call of a tool on.

    Attributes:
        text: the latest text, which is the answer if nothing follows it.
        usage: the number of model calls.
    """

    def __init__(self, request: AgentRunRequest) -> None:
        self.text: str | None = None
        self.usage = {"model_calls": 0}
        self._conversation = request.context.records.conversation
        self._held: list[ArchivedMessage] | None = None if request.history else []

    def say(self, role: str, block: ArchivedBlock) -> None:
        """Add a message."""
        one = message(role, now(), block)
        if self._held is None:
            self._conversation.add(one)
            return
        self._held.append(one)
        if block["type"] == "tool_call":
            self._conversation.add(*self._held)
            self._held = None


async def _play(script: Sequence[MockStep], request: AgentRunRequest, talk: _Talk) -> AgentResult:
    budget, answer, made, failures = request.context.config.runtime.budget, None, 0, 0
    steps = await _begin(script, request, talk)
    while steps:
        step = steps.pop()
        if isinstance(step, MockContinuation):
            if (asked := await request.ask_further()) is None:
                break
            talk.say("user", text_block(asked))
            answer = talk.text
            steps += reversed(step.nudged)
            continue
        if isinstance(step, MockPause):
            await asyncio.sleep(step.sleep)
            continue
        if talk.usage["model_calls"] == request.max_steps:
            return out_of_steps(request.max_steps)
        if talk.usage["model_calls"] == budget.requests:
            return out_of_budget("requests")
        talk.usage["model_calls"] += 1
        request.on_spent(talk.usage)
        if isinstance(step, MockFailure):
            failures += 1
            if step.retryable and steps and failures < RetryConfig().max_attempts:
                continue
            talk.text = answer
            error = engine_error(step.code, step.fail, retryable=step.retryable)
            return AgentResult(status=EngineStatus.FAILED, error=error)
        failures = 0
        request.report(EngineEventKind.STEP)
        if isinstance(step, str):
            talk.text = step
            talk.say("assistant", text_block(step))
            request.report(EngineEventKind.TEXT, step)
        else:
            made += 1
            is_spent = budget.tool_calls is not None and made > budget.tool_calls
            await _call(step, request, talk, is_spent=is_spent)
            if is_spent:
                return out_of_budget("tool_calls")
        await asyncio.sleep(0)  # lets a cancellation take effect
    return AgentResult(status=EngineStatus.COMPLETED)


async def _begin(
    script: Sequence[MockStep], request: AgentRunRequest, talk: _Talk
) -> list[MockStep]:
    """Return the steps to play, the next one last; open calls of earlier attempts are made."""
    steps = list(reversed(script))
    if not request.continues:
        talk.say("user", text_block(request.prompt))
        return steps
    own = request.history[request.prompt_at :]
    said = blocks_of((one for one in own if one["role"] == "assistant"), "text")
    talk.text = said[-1]["text"] if said else None
    await make_open_calls(request)
    _leave_out_played(steps, own)
    return steps


def _leave_out_played(steps: list[MockStep], own: Sequence[ArchivedMessage]) -> None:
    """Remove the steps that were played before, and the pause or failure that came next."""
    played = sum(one["role"] == "assistant" for one in own)
    while steps and (played or isinstance(steps[-1], MockPause | MockFailure)):
        step = steps.pop()
        if isinstance(step, MockContinuation):
            steps += reversed(step.nudged)
        elif isinstance(step, str | MockCall):
            played -= 1


async def _call(step: MockCall, request: AgentRunRequest, talk: _Talk, *, is_spent: bool) -> None:
    """Call the tool; if the budget is spent, only record the call."""
    call_id = new_id("call")
    talk.say("assistant", call_block(call_id, step.tool, step.args))
    if not is_spent:
        await answer_call(request, call_id, step.tool, step.args)
        return
    code, text = ErrorCode.BUDGET_EXCEEDED, "the budget of the run has no call of a tool left"
    await record_rejected_call(
        request.context,
        call_id=call_id,
        name=step.tool,
        args=step.args,
        code=code.value,
        message=text,
    )
    content = {"code": code.value, "message": text}
    talk.say("tool", result_block(call_id, step.tool, content, is_error=True))


def _load_script(config: KgentConfig) -> list[MockStep]:
    if config.model.path is None:
        return [_DEFAULT]
    path = config.place(config.model.path)
    try:
        content = read_text_file(path, MAX_SCRIPT_BYTES).removeprefix(BOM_UTF8)
        return TypeAdapter(list[MockStep]).validate_json(content)
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a list of mock steps"
        message = f"the script {path}, which model.path names, cannot be used: {reason}"
        raise config_error(message) from error
