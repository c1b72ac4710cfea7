"""The other engine: Pydantic AI. It needs the extra `pydantic-ai`."""

from collections.abc import AsyncIterable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from agent_core.errors import ErrorCode
from kgent.config.models import KgentConfig
from kgent.engine.base import AgentResult, AgentRunRequest, EngineEventKind, EngineStatus
from kgent.engine.calling import call_in_thread
from kgent.engine.outcome import api_key, conclude, model_secrets, out_of_steps, required
from kgent.errors import ErrorCategory, KgentError
from kgent.runtime.loops import in_own_loop

if TYPE_CHECKING:
    from pydantic_ai.messages import AgentStreamEvent
    from pydantic_ai.models import Model

_NO_KEY = "not-needed"  # servers on one's own machine take any key, but the client wants one


class PydanticAIAgentEngine:
    """Runs an agent of Pydantic AI with kgent's tools.

    Args:
        model: a model of Pydantic AI instead of the one the profile names.
    """

    def __init__(self, model: "Model | None" = None) -> None:
        self._model = model

    def secrets(self, config: KgentConfig) -> Mapping[str, str]:
        """The model's key."""
        return model_secrets(config)

    def run(self, request: AgentRunRequest) -> AgentResult:
        """Run the agent to its end.

        Raises:
            KgentError: category `config`; Pydantic AI is not installed, or the profile names no
                model it knows.
        """
        _require_installed()
        model = self._model or _model(request.context.config)
        work = partial(_converse, request, model)
        return conclude(request, lambda: in_own_loop(work, cancellation=request.cancellation_token))


async def _converse(request: AgentRunRequest, model: "Model") -> AgentResult:
    from pydantic_ai import Agent, RunUsage, UsageLimits  # noqa: PLC0415 - an extra
    from pydantic_ai.exceptions import UsageLimitExceeded  # noqa: PLC0415

    from kgent.tools.pydantic_adapter import pydantic_tools  # noqa: PLC0415

    usage = RunUsage()
    agent = Agent(
        model,
        instructions=request.system_prompt,
        deps_type=type(None),
        tools=pydantic_tools(request.tools, request.context, call=call_in_thread),
    )
    try:
        done = await agent.run(
            request.prompt,
            usage_limits=UsageLimits(request_limit=request.max_steps),
            usage=usage,
            event_stream_handler=partial(_watch, request),
        )
    except UsageLimitExceeded:
        return out_of_steps(request.max_steps, usage=_counted(usage))
    return AgentResult(
        status=EngineStatus.COMPLETED, final_text=str(done.output), usage=_counted(usage)
    )


async def _watch(
    request: AgentRunRequest, _: Any, events: "AsyncIterable[AgentStreamEvent]"
) -> None:
    from pydantic_ai import messages  # noqa: PLC0415 - an extra

    request.tell(EngineEventKind.STEP)
    async for event in events:
        match event:
            case messages.PartStartEvent(part=messages.TextPart(content=text)):
                request.tell(EngineEventKind.TEXT, text)
            case messages.PartDeltaEvent(delta=messages.TextPartDelta(content_delta=text)):
                request.tell(EngineEventKind.TEXT, text)
            case messages.PartDeltaEvent(delta=messages.ThinkingPartDelta(content_delta=str(text))):
                request.tell(EngineEventKind.REASONING, text)
            case _:
                pass


def _counted(usage: Any) -> dict[str, int]:
    counts = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "model_calls": usage.requests,
    }
    return {name: count for name, count in counts.items() if count}


def _model(config: KgentConfig) -> "Model":
    from pydantic_ai.exceptions import UserError  # noqa: PLC0415 - an extra

    provider = required(config.model.provider, "model.provider", config)
    name = required(config.model.name, "model.name", config)
    try:
        if provider == "openai":
            return _openai(config, name)
        return _inferred(config, provider, name)
    except (UserError, ValueError, TypeError, ImportError) as error:
        reason = str(error).partition("\n")[0]
        message = f"Pydantic AI cannot use the model {provider}:{name}: {reason}"
        raise KgentError(ErrorCode.CONFIG_ERROR, message, category=ErrorCategory.CONFIG) from error


def _openai(config: KgentConfig, name: str) -> "Model":
    from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415 - an extra
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415

    key = api_key(config) or (_NO_KEY if config.model.base_url else None)
    return OpenAIChatModel(
        name, provider=OpenAIProvider(base_url=config.model.base_url, api_key=key)
    )


def _inferred(config: KgentConfig, provider: str, name: str) -> "Model":
    from pydantic_ai.models import infer_model  # noqa: PLC0415 - an extra
    from pydantic_ai.providers import infer_provider_class  # noqa: PLC0415

    settings = {"base_url": config.model.base_url, "api_key": api_key(config)}
    given = {key: value for key, value in settings.items() if value is not None}
    return infer_model(
        f"{provider}:{name}", provider_factory=lambda key: infer_provider_class(key)(**given)
    )


def _require_installed() -> None:
    if find_spec("pydantic_ai") is None:
        message = "engine pydantic_ai needs an extra: pip install 'soong-agent[pydantic-ai]'"
        raise KgentError(ErrorCode.CONFIG_ERROR, message, category=ErrorCategory.CONFIG)
