"""The other engine: Pydantic AI. Importing this module needs the extra `pydantic-ai`."""

import json
from collections.abc import AsyncIterable, Mapping
from functools import partial

import httpx2
from pydantic_ai import Agent, RunContext, RunUsage, UsageLimits, messages
from pydantic_ai.exceptions import AgentRunError, UsageLimitExceeded
from pydantic_ai.models import Model

from agent_core.errors import ErrorCode
from kgent.config.models import KgentConfig
from kgent.engine.base import AgentResult, AgentRunRequest, EngineEventKind, EngineStatus
from kgent.engine.calling import call_in_thread
from kgent.engine.outcome import conclude, failed, model_secrets, out_of_steps
from kgent.engine.pydantic_model import failure_of, http_client, model_of
from kgent.runtime.loops import in_own_loop
from kgent.tools.pydantic_adapter import pydantic_tools
from kgent.tools.registry import record_unheard_call


class PydanticAIAgentEngine:
    """Runs an agent of Pydantic AI with kgent's tools.

    Args:
        model: a model of Pydantic AI instead of the one the profile names.
    """

    def __init__(self, model: Model | None = None) -> None:
        self._model = model

    def secrets(self, config: KgentConfig) -> Mapping[str, str]:
        """The model's key."""
        return model_secrets(config)

    def run(self, request: AgentRunRequest) -> AgentResult:
        """Run the agent to its end.

        Raises:
            KgentError: category `config`; the profile names no model that Pydantic AI knows.
        """
        config = request.context.config
        client = http_client(config)
        model = self._model or model_of(config, client)
        work = partial(_converse, request, model, client)
        return conclude(request, lambda: in_own_loop(work, cancellation=request.cancellation_token))


async def _converse(
    request: AgentRunRequest, model: Model, client: httpx2.AsyncClient
) -> AgentResult:
    usage, sent = RunUsage(), dict[str, object]()
    agent = Agent(
        model,
        instructions=request.system_prompt,
        deps_type=type(None),
        tools=pydantic_tools(request.tools, request.context, call=call_in_thread),
    )
    try:
        async with client, agent:  # the connections are closed at the end of the block
            done = await agent.run(
                request.prompt,
                usage_limits=UsageLimits(request_limit=request.max_steps),
                usage=usage,
                event_stream_handler=partial(_watch, request, sent),
            )
    except UsageLimitExceeded:
        return out_of_steps(request.max_steps, usage=_counted(usage))
    except AgentRunError as error:
        return failed(failure_of(error), usage=_counted(usage))
    return AgentResult(status=EngineStatus.COMPLETED, final_text=done.output, usage=_counted(usage))


async def _watch(
    request: AgentRunRequest,
    sent: dict[str, object],
    _: RunContext[None],
    events: AsyncIterable[messages.AgentStreamEvent],
) -> None:
    async for event in events:
        match event:
            case messages.PartStartEvent(index=index, part=part):
                if index == 0:
                    request.tell(EngineEventKind.STEP)
                if isinstance(part, messages.TextPart):
                    request.tell(EngineEventKind.TEXT, part.content)
            case messages.PartDeltaEvent(delta=delta):
                _tell_delta(request, delta)
            case messages.FunctionToolCallEvent(part=call):
                sent[call.tool_call_id] = call.args or {}
            case messages.FunctionToolResultEvent(part=part) if part.outcome == "retried":
                _write_down(request, part, sent.get(part.tool_call_id, {}))
            case _:
                pass


def _tell_delta(request: AgentRunRequest, delta: messages.ModelResponsePartDelta) -> None:
    match delta:
        case messages.TextPartDelta(content_delta=text):
            request.tell(EngineEventKind.TEXT, text)
        case messages.ThinkingPartDelta(content_delta=str(text)):
            request.tell(EngineEventKind.REASONING, text)
        case _:
            pass


def _write_down(request: AgentRunRequest, refusal: messages.ToolReturnPart, args: object) -> None:
    """Record a call that the framework answered itself: no such tool, or no usable arguments."""
    record_unheard_call(
        request.context,
        call_id=refusal.tool_call_id,
        name=refusal.tool_name,
        args=_decoded(args),
        code=ErrorCode.TOOL_NOT_AVAILABLE.value,
        message=refusal.model_response_str().partition("\n")[0],
    )


def _decoded(args: object) -> object:
    """Arguments as an object, if they are one; the framework passes on the text of the model."""
    if not isinstance(args, str):
        return args
    try:
        return json.loads(args)
    except (ValueError, RecursionError):
        return args


def _counted(usage: RunUsage) -> dict[str, int]:
    counts = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "model_calls": usage.requests,
    }
    return {name: count for name, count in counts.items() if count}
