"""The engine that uses Pydantic AI. Importing this module needs the extra `pydantic-ai`."""

import asyncio
import json
import os
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import cast

import httpx2
from pydantic_ai import (
    Agent,
    RunContext as AgentContext,
    RunUsage,
    UsageLimits,
    capture_run_messages,
    exceptions,
    messages,
)
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel

from agent_core.budgets.prices import Prices
from agent_core.config.servers import ollama_address
from agent_core.config.services import COMPATIBLE, SERVICES
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.mcp.route import RoutedTransport
from agent_core.providers.base import require_real_models
from agent_core.providers.estimates import estimate_tools
from agent_core.text import estimate_text
from agent_core.text.json_text import JsonObject, table
from agent_core.types import Usage
from kgent.config.models import KgentConfig
from kgent.engine.base import (
    AgentResult,
    AgentRunRequest,
    AsyncAgentEngine,
    EngineEventKind,
    EngineStatus,
    answer_call,
    api_key,
    core_model,
    each_model,
    make_open_calls,
    out_of_budget,
    out_of_steps,
    record_fallback,
    require_model,
    run_limited,
)
from kgent.errors import ErrorInfo, config_error, engine_error
from kgent.records.conversation import (
    ArchivedBlock,
    ArchivedMessage,
    blocks_of,
    call_block,
    in_call_order,
    message,
    result_block,
    text_block,
)
from kgent.tools.calls import record_rejected_call
from kgent.tools.core_adapter import describe_tool, explain_rejection
from kgent.tools.pydantic_adapter import adapt_tool

_NO_KEY = "not-needed"  # local servers accept any key, but the client requires one
_CODES: tuple[tuple[type[Exception], ErrorCode, bool], ...] = (
    (exceptions.ModelAuthenticationError, ErrorCode.PROVIDER_AUTH_FAILED, False),
    (exceptions.ModelRateLimitError, ErrorCode.PROVIDER_RATE_LIMITED, True),
    (exceptions.ModelContextWindowExceededError, ErrorCode.PROMPT_TOO_LONG, False),
    (exceptions.ModelTimeoutError, ErrorCode.PROVIDER_TIMEOUT, True),
    (exceptions.ModelRequestTimeout, ErrorCode.PROVIDER_TIMEOUT, True),
    (exceptions.ModelConnectionError, ErrorCode.PROVIDER_ERROR, True),
    (exceptions.ModelServerError, ErrorCode.PROVIDER_ERROR, True),
)
_MAX_MESSAGE = 500
_LIMITS = ("input_tokens", "output_tokens", "total_tokens", "tool_calls")
_MAX_RETRIES = 1_000_000  # errors are answered; only the steps of a run are limited
_TIMEOUT_S, _CONNECT_S = 600, 10
_KEY_HEADERS = {"authorization", "x-api-key", "api-key"}
_PLAIN_HEADERS = {
    "accept", "accept-encoding", "anthropic-beta", "anthropic-version", "connection",
    "content-length", "content-type", "host", "transfer-encoding", "user-agent",
}  # fmt: skip


class PydanticAIAgentEngine(AsyncAgentEngine):
    """Runs an agent of Pydantic AI with kgent's tools.

    Args:
        model: a model of Pydantic AI, used instead of the profile's model.
    """

    def __init__(self, model: Model | None = None) -> None:
        self._model = model

    async def check(self, config: KgentConfig) -> None:
        """Refuse a model that Pydantic AI does not know, unless a model was given in code.

        Raises:
            KgentError: category `config`; provider or name is missing, or cannot be used this way.
        """
        if self._model is None:
            for one in each_model(config):
                async with httpx2.AsyncClient(transport=RoutedTransport()) as client:
                    _build_model(one, client, key=_NO_KEY)

    async def run_async(self, request: AgentRunRequest) -> AgentResult:
        """Run the agent to its end.

        Raises:
            KgentError: category `config`; the profile names no model that Pydantic AI knows.
        """
        config, spent, used = request.context.config, _Spent(), list[str]()
        profiles = each_model(config)
        clients = [build_http_client(one) for one in profiles]
        model = self._model
        if model is None:
            models = [build_model(*pair) for pair in zip(profiles, clients, strict=True)]
            model = _chain(request, models, used) if models[1:] else models[0]
        result = await run_limited(request, partial(_run_agent, request, model, clients, spent))
        result = result.model_copy(update={"answered_by": used[-1] if used else None})
        return await self._with_usage(result, spent, config)

    async def _with_usage(
        self, result: AgentResult, spent: "_Spent", config: KgentConfig
    ) -> AgentResult:
        """Return the result with the usage of the run, and its cost if that is known."""
        usage, cost = _count_usage(spent.usage), None
        counts = {name: count for name, count in usage.items() if name != "model_calls"}
        if counts and self._model is None and result.answered_by is None:
            price = await Prices().of(core_model(config))
            cost = float(price.of(Usage.model_validate(counts))) if price else None
        figures = {"usage": usage, "cost": cost, "usage_is_estimated": spent.is_estimated}
        return result.model_copy(update=figures)


@dataclass
class _Spent:
    """The usage of a run; if `is_estimated`, the service has not reported all of it."""

    usage: RunUsage = field(default_factory=RunUsage)
    is_estimated: bool = False

    def add_cut_off(
        self,
        request: AgentRunRequest,
        exchange: Sequence[messages.ModelMessage],
        *,
        was_sent: bool = True,
    ) -> None:
        """Count the last call with its estimate, if it was sent or part of a reply has arrived."""
        reply = exchange[-1] if exchange else None
        if isinstance(reply, messages.ModelResponse):
            if reply.usage.has_values():
                return
            asked, said = exchange[:-1], "".join(map(_text_of, reply.parts))
        else:
            asked, said = exchange, ""
        if not asked or not (was_sent or said):
            return
        prompt = estimate_text(request.system_prompt) + estimate_text(json.dumps(_archive(asked)))
        prompt += estimate_tools(map(describe_tool, request.tools))
        self.usage.input_tokens += prompt
        self.usage.output_tokens += estimate_text(said)
        replies = sum(isinstance(one, messages.ModelResponse) for one in asked)
        self.usage.requests = max(self.usage.requests, replies + 1)
        self.is_estimated = True


def _was_sent(error: BaseException) -> bool:
    """Return whether a call without an answer may have reached the service."""
    if not isinstance(error, exceptions.ModelConnectionError):
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout):
            return False
        cause = cause.__cause__ or cause.__context__
    return True


def _text_of(part: messages.ModelResponsePart) -> str:
    match part:
        case messages.TextPart(content=text) | messages.ThinkingPart(content=text):
            return text
        case messages.ToolCallPart():
            return part.args_as_json_str()
        case _:
            return ""


def _chain(request: AgentRunRequest, models: Sequence[Model], used: list[str]) -> Model:
    """Return a model that asks the next one when one fails; `used` gets the fallbacks."""

    def hands_over(error: Exception) -> bool:
        if not isinstance(error, exceptions.AgentRunError):
            return False
        failed = getattr(error, "model_name", None)
        following = next((n for n, one in enumerate(models, 1) if one.model_name == failed), 1)
        if len(used) < following < len(models):
            used.append(models[following].model_id)
            record_fallback(request.context, _failure_of(error), used[-1])
        return True

    return FallbackModel(*models, fallback_on=hands_over)


async def _run_agent(
    request: AgentRunRequest, model: Model, clients: Sequence[httpx2.AsyncClient], spent: _Spent
) -> AgentResult:
    sent, exchange = JsonObject(), list[messages.ModelMessage]()
    written = _Written(request, spent)
    agent = Agent(
        model,
        instructions=request.system_prompt,
        deps_type=type(None),
        retries=_MAX_RETRIES,
        tools=[adapt_tool(tool, written.make_call) for tool in request.tools],
    )
    answer: str | None = None
    budget = request.context.config.runtime.budget
    steps = [limit for limit in (request.max_steps, budget.requests) if limit is not None]
    limits = UsageLimits(
        request_limit=min(steps, default=None),
        input_tokens_limit=budget.input_tokens,
        output_tokens_limit=budget.output_tokens,
        total_tokens_limit=budget.total_tokens,
        tool_calls_limit=budget.tool_calls,
    )
    try:
        async with AsyncExitStack() as stack:  # closes the connections at the end of the block
            for client in clients:
                await stack.enter_async_context(client)
            await stack.enter_async_context(agent)
            prompt, history = request.prompt, None
            if request.history:
                prompt, history, answer = await _continue(request)
            is_over = prompt is None and answer is not None
            while not is_over:
                with capture_run_messages() as exchange:  # includes the messages of the history
                    written.follow(exchange, history)
                    done = await agent.run(
                        prompt,
                        message_history=history,
                        usage_limits=limits,
                        usage=spent.usage,
                        event_stream_handler=partial(_watch, request, sent, written),
                    )
                written.add()
                answer, history = done.output, done.all_messages()
                prompt = await request.ask_further()
                is_over = prompt is None
    except exceptions.UsageLimitExceeded as error:
        unit = next((name for name in _LIMITS if f"{name}_limit" in str(error)), "requests")
        if unit == "requests" and limits.request_limit != budget.requests:
            return out_of_steps(request.max_steps, text=answer)
        return out_of_budget(unit, text=answer)
    except asyncio.CancelledError:
        spent.add_cut_off(request, exchange)
        raise
    except exceptions.AgentRunError as error:
        spent.add_cut_off(request, exchange, was_sent=_was_sent(error))
        failed = EngineStatus.FAILED
        return AgentResult(status=failed, final_text=answer, error=_failure_of(error))
    finally:
        spent.is_estimated |= any(
            isinstance(one, messages.ModelResponse) and not one.usage.has_values()
            for one in exchange
        )
        written.add()
        request.context.records.conversation.finish()
    return AgentResult(status=EngineStatus.COMPLETED, final_text=answer)


def _failure_of(error: exceptions.AgentRunError) -> ErrorInfo:
    code, retryable = ErrorCode.PROVIDER_ERROR, False
    for kind, known, may_retry in _CODES:
        if isinstance(error, kind):
            code, retryable = known, may_retry
            break
    text = " ".join(str(error).split())[:_MAX_MESSAGE] or type(error).__name__
    return engine_error(code, text, retryable=retryable)


async def _continue(
    request: AgentRunRequest,
) -> tuple[str | None, list[messages.ModelMessage], str | None]:
    """Return the next message, the conversation before it, and the answer that it ends with."""
    prompt: str | None = request.prompt
    answer: str | None = None
    if request.continues:
        await make_open_calls(request)
        prompt = None
    history = request.context.records.conversation.messages
    last = history[-1]
    is_answer = last["role"] == "assistant" and not last.get("cut_off")
    if prompt is None and is_answer:
        answer = "".join(block["text"] for block in blocks_of([last], "text"))
        prompt = await request.ask_further()
    return prompt, _exchange_of(history), answer


class _Written:
    """Adds the messages of a run to its conversation as they arrive, each once."""

    def __init__(self, request: AgentRunRequest, spent: _Spent) -> None:
        self._request, self._spent = request, spent
        self._conversation = request.context.records.conversation
        self._exchange: list[messages.ModelMessage] = []
        self._known: list[messages.ModelMessage] = []
        self._parts: set[int] = set()
        self._answered: set[str] = set()

    def follow(
        self,
        exchange: list[messages.ModelMessage],
        history: Sequence[messages.ModelMessage] | None,
    ) -> None:
        """Follow the messages of the next run of the agent, which include those of the history."""
        self._exchange, self._known = exchange, list(history or ())
        self._parts = {id(part) for one in self._known for part in one.parts}

    async def make_call(self, call_id: str, name: str, args: JsonObject) -> object:
        """Make a call after its message is in the conversation, and add the result at once."""
        self.add()
        content = await answer_call(self._request, call_id, name, args)
        self._answered.add(call_id)
        return content

    def add(self) -> None:
        """Add the messages that are new, and report what they have cost."""
        self._request.on_spent(
            _count_usage(self._spent.usage), is_estimated=self._spent.is_estimated
        )
        for one in self._exchange:
            parts = [part for part in one.parts if id(part) not in self._parts]
            if not parts:
                continue
            self._known.append(one)  # so that no other part gets the identity of one of these
            self._parts.update(map(id, parts))
            for found in _archive([replace(one, parts=parts)]):
                ids = {block["tool_call_id"] for block in blocks_of([found], "tool_result")}
                if ids and ids <= self._answered:
                    self._answered -= ids
                else:
                    self._conversation.add(found)


async def _watch(
    request: AgentRunRequest,
    sent: JsonObject,
    written: _Written,
    _: AgentContext[None],
    events: AsyncIterable[messages.AgentStreamEvent],
) -> None:
    """Report the run's text, and record calls that the framework answers itself."""
    written.add()
    async for event in events:
        if isinstance(event, messages.PartStartEvent) and event.index == 0:
            request.report(EngineEventKind.STEP)
        match event:
            case messages.PartStartEvent(part=messages.TextPart(content=text)):
                request.report(EngineEventKind.TEXT, text)
            case messages.PartDeltaEvent(delta=messages.TextPartDelta(content_delta=text)):
                request.report(EngineEventKind.TEXT, text)
            case messages.PartDeltaEvent(delta=messages.ThinkingPartDelta(content_delta=str(text))):
                request.report(EngineEventKind.REASONING, text)
            case messages.FunctionToolCallEvent(part=call):
                sent[call.tool_call_id] = call.args or {}
            case messages.FunctionToolResultEvent(part=part) if part.outcome == "retried":
                args = _read_arguments(sent.get(part.tool_call_id, {}))
                name = part.tool_name
                code, message = explain_rejection(
                    request.tools, request.context, name=name, args=args
                )
                await record_rejected_call(
                    request.context,
                    call_id=part.tool_call_id,
                    name=name,
                    args=args,
                    code=code,
                    message=message,
                )
            case _:
                pass


def _read_arguments(sent: object) -> object:
    """Return the arguments of a call; the model's text if it is not a JSON object."""
    if not isinstance(sent, str):
        return sent
    with suppress(ValueError, RecursionError):
        found: object = json.loads(sent or "{}")
        return cast("object", found) if isinstance(found, dict) else sent
    return sent


def _archive(exchange: Iterable[messages.ModelMessage]) -> list[ArchivedMessage]:
    """Return the conversation in the form of the archive."""
    found: list[ArchivedMessage] = []
    for one in exchange:
        if isinstance(one, messages.ModelResponse):
            if blocks := [block for part in one.parts if (block := _block_of(part))]:
                shown, is_cut_off = _shown(one.timestamp), one.state == "interrupted"
                found.append(message("assistant", shown, *blocks, is_cut_off=is_cut_off))
            continue
        for part in one.parts:
            if isinstance(part, messages.ToolReturnPart):
                is_retry, answered = part.outcome == "retried", cast("object", part.content)
                shown = part.model_response_str() if is_retry else answered
                answer = table(answered)
                is_error = is_retry or answer.get("ok") is False
                block = result_block(part.tool_call_id, part.tool_name, shown, is_error=is_error)
                found.append(message("tool", _shown(part.timestamp), block))
            elif isinstance(part, messages.UserPromptPart | messages.RetryFeedbackPart):
                text = part.content if isinstance(part.content, str) else str(part.content)
                found.append(message("user", _shown(part.timestamp), text_block(text)))
    return in_call_order(found)


def _exchange_of(history: Iterable[ArchivedMessage]) -> list[messages.ModelMessage]:
    """Return the conversation of earlier attempts, without replies that were cut off."""
    found: list[messages.ModelMessage] = []
    for one in history:
        if one.get("cut_off"):
            continue
        blocks = one["content"]
        if one["role"] == "assistant":
            if parts := [part for block in blocks if (part := _read_reply_part(block))]:
                found.append(messages.ModelResponse(parts=parts))
            continue
        request = [part for block in blocks if (part := _read_request_part(block))]
        if found and isinstance(last := found[-1], messages.ModelRequest):
            found[-1] = messages.ModelRequest(parts=[*last.parts, *request])
        elif request:
            found.append(messages.ModelRequest(parts=request))
    return found


def _read_request_part(block: ArchivedBlock) -> messages.ModelRequestPart | None:
    match block:
        case {"type": "text", "text": str() as text}:
            return messages.UserPromptPart(text)
        case {"type": "tool_result", "tool_call_id": call_id, "content": content}:
            name = str(block.get("name", ""))
            return messages.ToolReturnPart(name, content, tool_call_id=call_id)
        case _:
            return None


def _read_reply_part(block: ArchivedBlock) -> messages.ModelResponsePart | None:
    data = block.get("provider_data") or {}
    match block:
        case {"type": "text", "text": str() as text}:
            return messages.TextPart(text)
        case {"type": "reasoning", "text": str() as text} if data:
            return messages.ThinkingPart(text, **data)
        case {"type": "tool_call", "tool_call_id": call_id, "name": name, "arguments": args}:
            return messages.ToolCallPart(name, args, tool_call_id=call_id, **data)
        case _:
            return None


def _data_of(part: messages.ThinkingPart | messages.ToolCallPart) -> JsonObject:
    """Return what the provider gets back with this part when the conversation is continued."""
    fields = ("id", "signature", "provider_name", "provider_details")
    data = {name: value for name in fields if (value := getattr(part, name, None))}
    return data if data.keys() & {"signature", "provider_details"} else {}


def _block_of(part: messages.ModelResponsePart) -> ArchivedBlock | None:
    match part:
        case messages.TextPart(content=text):
            return text_block(text) if text else None
        case messages.ThinkingPart(content=text):
            return text_block(text, "reasoning", provider_data=_data_of(part))
        case messages.ToolCallPart(tool_name=name, args=args):
            arguments = _read_arguments(args or {})
            return call_block(part.tool_call_id, name, arguments, provider_data=_data_of(part))
        case _:
            return cast("ArchivedBlock", {"type": part.part_kind})  # the archive only names it


def _shown(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="microseconds")


def _count_usage(usage: RunUsage) -> dict[str, int]:
    counts = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "model_calls": usage.requests,
    }
    return {name: count for name, count in counts.items() if count}


# --- the profile's model --------------------------------------------------------------------------


def build_model(config: KgentConfig, client: httpx2.AsyncClient) -> Model:
    """Build the model that a profile names, without connecting to it.

    Credentials and addresses come from the profile only: no environment variable has an effect
    except the one that holds the key, which `model.api_key_env` may name.

    Raises:
        KgentError: category `config`; provider, name or key is missing, the provider cannot be used
          this way, or requests to real models are not allowed.
    """
    provider, name = require_model(config)
    try:
        require_real_models(provider, name)
    except AgentCoreError as error:
        raise config_error(f"model: {error.message}", error.code) from error
    return _build_model(config, client, key=api_key(config) or _NO_KEY)


def _build_model(config: KgentConfig, client: httpx2.AsyncClient, *, key: str) -> Model:
    provider, name = require_model(config)
    try:
        known = _MODELS.get(provider)
        if known is None:
            raise ValueError(
                f"with this engine there are {', '.join(sorted(_MODELS))}; a service that speaks"
                " OpenAI's protocol is openai with model.base_url"
            )
        build, address = known
        address = config.model.base_url or address or f"{ollama_address(os.environ)}/v1"
        return build(name, base_url=address, key=key, client=client)
    except (exceptions.UserError, ValueError, TypeError, ImportError) as error:
        reason = str(error).partition("\n")[0]
        message = f"Pydantic AI cannot use the model {provider}:{name}: {reason}"
        raise config_error(message) from error


def _build_openai(name: str, *, base_url: str, key: str, client: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415 - a client of its own
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415

    provider = OpenAIProvider(base_url=base_url, api_key=key, http_client=client)
    return OpenAIChatModel(name, provider=provider)


def _build_anthropic(name: str, *, base_url: str, key: str, client: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models.anthropic import AnthropicModel  # noqa: PLC0415 - another extra
    from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: PLC0415

    provider = AnthropicProvider(base_url=base_url, api_key=key, http_client=client)
    return AnthropicModel(name, provider=provider)


_MODELS: Mapping[str, tuple[Callable[..., Model], str]] = {
    "openai": (_build_openai, "https://api.openai.com/v1"),
    "ollama": (_build_openai, ""),
    "anthropic": (_build_anthropic, "https://api.anthropic.com"),
    **{name: (_build_openai, SERVICES[name].url) for name in COMPATIBLE},
}
"""The function that builds the model of a provider, and the provider's address, if it is fixed."""


def build_http_client(config: KgentConfig) -> httpx2.AsyncClient:
    """Build a client that sends no credential except the profile's own; the caller closes it.

    The services' own packages add values from the environment (keys, organisations, whole headers).
    Only headers that never contain such values are sent.

    Raises:
        KgentError: category `config`; the variable of the key is not set.
    """
    key = api_key(config) or _NO_KEY

    async def keep_known_headers(request: httpx2.Request) -> None:
        for name, value in list(request.headers.items()):
            is_key = name in _KEY_HEADERS and value.removeprefix("Bearer ") == key
            if not (is_key or name in _PLAIN_HEADERS or name.startswith("x-stainless-")):
                del request.headers[name]

    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(_TIMEOUT_S, connect=_CONNECT_S),
        event_hooks={"request": [keep_known_headers]},
        transport=RoutedTransport(),
    )
