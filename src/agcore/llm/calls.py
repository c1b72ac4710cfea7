"""Adapt a cycle's provider to the engine, with hooks, retries, redaction and cost."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from agcore.llm.error import (
    AuthenticationError,
    ContextLengthError,
    LlmError,
    RateLimitError,
    RequestBlockedError,
    RequestError,
    StreamBrokenError,
    ToolTurnLimitError,
    raise_as_llm_error,
)
from agcore.llm.history import ChatHistory, ChatRedactor
from agcore.llm.hooks import HookContext, HookEvent, HookExecutor, HookResult
from agcore.llm.provider import (
    AdapterProvider,
    LlmProvider,
    SecretSource,
    model_request,
    response_of,
)
from agcore.llm.stream import ChatChunk
from agcore.llm.types import ChatMessage, ChatRequest, ChatResponse, CostTracker, FinishReason
from agent_core.aio import TaskStream
from agent_core.budgets.meter import Meter, MeteredAdapter
from agent_core.budgets.prices import Prices, may_have_price
from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.errors import ErrorCode, PermissionDeniedError
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.estimates import PromptEstimates
from agent_core.providers.failures import Called, CallError, pause_before_retry_s
from agent_core.providers.reply import CallDraft, ReplyAccumulator
from agent_core.providers.requests import IdentityCache
from agent_core.providers.tally import CallTally, CountedStart
from agent_core.types import (
    FINAL_ANSWER,
    ErrorPayload,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    ModelRetry,
    ModelStarted,
    ModelTextDelta,
    StopReason,
    ToolCall,
    ToolDefinition,
    ToolResult,
    Usage,
    new_id,
)

_STOPS = {
    FinishReason.STOP: StopReason.END_TURN,
    FinishReason.LENGTH: StopReason.MAX_TOKENS,
    FinishReason.TOOL_CALLS: StopReason.TOOL_USE,
    FinishReason.CONTENT_FILTER: StopReason.CONTENT_FILTER,
}
_REFUSED = (AuthenticationError, ContextLengthError, RateLimitError, RequestError)
_UNFORCED = (None, "auto", "none")


@dataclass(slots=True)
class CallTurn:
    """State that the model calls of one run share.

    Attributes:
        settings: model, temperature and the like of every request.
        limit: how many replies with calls may be acted on; None if the caller runs the tools.
        is_streamed: replies are requested in pieces.
        session_id: whose run it is, for hooks.
        agent_name: the agent of that session.
        run_id: of the run.
        metadata: of the submission, for hooks.
        meter: charges the calls to a budget, if there is one.
        cost: of these calls, and of summaries made for them.
        tally: counts the attempts of the current call.
        rounds: how many replies with calls there have been.
        failure: the error of the last call, if it failed.
        request: the last one.
        response: the last reply.
    """

    settings: ChatRequest
    limit: int | None = None
    is_streamed: bool = False
    session_id: str | None = None
    agent_name: str | None = None
    run_id: str = field(default_factory=lambda: new_id("run"))
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    meter: Meter | None = None
    cost: CostTracker = field(default_factory=CostTracker)
    tally: CallTally = field(default_factory=lambda: CallTally(lambda: 0))
    rounds: int = 0
    failure: LlmError | None = None
    request: ChatRequest | None = None
    response: ChatResponse | None = None

    def next_settings(self) -> ChatRequest:
        """Return the settings of the next request; `tool_choice` forces a tool only once."""
        if self.response is None or self.settings.tool_choice in _UNFORCED:
            return self.settings
        return replace(self.settings, tool_choice=None)


@dataclass(slots=True)
class HookedProvider:
    """A `ProviderAdapter` around an `LlmProvider`.

    Attributes:
        provider: answers the requests.
        retry: for rate limits, timeouts and 5xx; a wait is never shorter than the service asked.
        history: converts the messages of a request.
        clean: removes secrets.
        hooks: called before a call, after it, and when it fails.
        cost: of all calls.
        turn: the state that all calls of the current run share.
        prices: of models.
    """

    provider: LlmProvider
    retry: RetryConfig
    history: ChatHistory
    clean: ChatRedactor
    hooks: HookExecutor = field(default_factory=HookExecutor)
    cost: CostTracker = field(default_factory=CostTracker)
    turn: CallTurn = field(default_factory=lambda: CallTurn(ChatRequest(messages=())))
    prices: Prices = field(default_factory=Prices)
    _sent: IdentityCache[ChatMessage, ModelMessage] = field(
        default_factory=IdentityCache[ChatMessage, ModelMessage]
    )
    _estimates: PromptEstimates = field(default_factory=PromptEstimates)

    def model(self, name: str | None) -> ModelConfig:
        """Return the configuration of the model with this name, as far as the provider knows it."""
        adapter = self.provider if isinstance(self.provider, AdapterProvider) else None
        name = name or (adapter.model if adapter else "agcore")
        known = adapter.config if adapter else None
        return (known or ModelConfig(provider="agcore", name=name)).model_copy(
            update={"name": name}
        )

    def secrets(self) -> Mapping[str, str]:
        """Return the provider's secrets, which may change."""
        return self.provider.secrets() if isinstance(self.provider, SecretSource) else {}

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """See `ProviderAdapter.stream`; failures are raised, and kept in `turn`."""
        turn = self.turn
        is_native = isinstance(self.provider, AdapterProvider)  # AdapterProvider checks it itself
        turn.tally = CallTally(lambda: 0)  # each attempt has its own
        started = ModelStarted(provider="agcore", model=request.model, native_output=is_native)
        yield CountedStart.of(started, turn.tally)
        system = [ChatMessage.system_text(block.content) for block in request.system]
        system += self.history.instructions
        sent = self.history.convert(request.messages)
        turn.request = self.clean.request(
            replace(
                turn.next_settings(),
                messages=[*system, *sent],
                tools=request.tools,
                output=request.output,
            )
        )
        try:
            async with aclosing(self._deltas(turn.request, turn)) as deltas:
                async for delta in deltas:
                    yield delta
            response = self._reply(turn)
            calls = response.tool_calls
            is_answer = request.output is not None and {c.name for c in calls} == {FINAL_ANSWER}
            if calls and turn.limit is not None and not is_answer:
                turn.rounds += 1
                if turn.rounds > turn.limit:
                    raise ToolTurnLimitError(turn.limit)
            yield ModelCompleted(
                content=response.message.content,
                tool_calls=calls,
                usage=response.usage,
                # A reply that was cut off ends the turn: it is not continued.
                stop_reason=StopReason.TOOL_USE if calls else StopReason.END_TURN,
                raw_stop_reason=response.stop_reason,
            )
        except LlmError as error:
            turn.failure = error
            raise

    async def close(self) -> None:
        """Leave the provider open: it belongs to the application."""

    async def ask(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition] = (),
        *,
        settings: ChatRequest,
    ) -> ChatResponse:
        """Send exactly these messages, outside the history of a run.

        Raises:
            LlmError: the call failed, or a hook blocked it.
        """
        request = self.clean.request(replace(settings, messages=messages, tools=tools))
        now = self.turn
        turn = CallTurn(
            settings,
            session_id=now.session_id,
            agent_name=now.agent_name,
            metadata=now.metadata,
            meter=now.meter,
            cost=now.cost,
            request=request,
        )
        try:
            async with aclosing(self._deltas(request, turn)) as deltas:
                async for _ in deltas:
                    pass
        except ContextLengthError as error:
            await self.report(error, turn)
            raise
        return self._reply(turn)

    async def report(self, error: LlmError, turn: CallTurn) -> None:
        """Call the hooks for a call that has failed for good."""
        await self._call_hooks(
            turn, HookContext(event=HookEvent.ON_ERROR, request=turn.request, error=error)
        )

    async def before_tool(self, call: ToolCall) -> None:
        """Call the hooks before a tool runs.

        Raises:
            PermissionDeniedError: a hook blocked the call.
        """
        verdict = await self._call_hooks(
            self.turn, HookContext(event=HookEvent.PRE_TOOL, tool_call=call)
        )
        if verdict.blocked:
            message = f"{call.name}: a hook blocked the call: {verdict.reason}"
            raise PermissionDeniedError(
                ErrorCode.PERMISSION_DENIED, message, details={"tool_name": call.name}
            )

    async def after_tool(self, call: ToolCall, result: ToolResult) -> None:
        """Call the hooks after a call has been answered."""
        await self._call_hooks(
            self.turn, HookContext(event=HookEvent.POST_TOOL, tool_call=call, tool_result=result)
        )

    async def _call_hooks(self, turn: CallTurn, context: HookContext) -> HookResult:
        whose = replace(
            context,
            session_id=turn.session_id,
            agent_name=turn.agent_name,
            metadata=turn.metadata,
        )
        return await self.hooks.execute(whose)

    async def _deltas(
        self, request: ChatRequest, turn: CallTurn
    ) -> AsyncGenerator[ModelTextDelta | ModelRetry]:
        """Send one request, with retries as long as no text has arrived.

        Raises:
            LlmError: it failed for good. The hooks hear of a prompt that is too long only later,
              because compaction may still help.
        """
        verdict = await self._call_hooks(
            turn, HookContext(event=HookEvent.PRE_REQUEST, request=request)
        )
        if verdict.blocked:
            raise RequestBlockedError(f"a hook blocked the request: {verdict.reason}")
        attempt = 0
        while True:
            attempt += 1
            seen = False
            try:
                async with aclosing(self._attempt(request, turn)) as deltas:
                    async for delta in deltas:
                        seen = True
                        yield delta
                break
            except LlmError as failure:
                error = self.clean.error(failure)
                asked: float | None = getattr(error, "retry_after_s", None)
                known = CallError(error.code, error.message, error.retryable, retry_after_s=asked)
                pause_s = pause_before_retry_s(self.retry, attempt, known)
                if seen or pause_s is None:
                    if not isinstance(error, ContextLengthError):
                        await self.report(error, turn)
                    raise
                await self._call_hooks(
                    turn,
                    HookContext(
                        event=HookEvent.ON_RETRY, request=request, error=error, attempt=attempt
                    ),
                )
            delay_ms, failed = round(pause_s * 1000), ErrorPayload.of(error)
            yield ModelRetry(attempt=attempt, delay_ms=delay_ms, error=failed)
            await asyncio.sleep(pause_s)
        response = self._reply(turn)
        for tracker in (self.cost, turn.cost):
            tracker.add(response.usage)
        await self._call_hooks(
            turn,
            HookContext(
                event=HookEvent.POST_REQUEST,
                request=request,
                response=response,
                usage=response.usage,
            ),
        )

    async def _attempt(
        self, request: ChatRequest, turn: CallTurn
    ) -> AsyncGenerator[ModelTextDelta]:
        """Make one attempt, with its price, charged to the run's budget if it has one."""
        attempt = _Attempt(self.provider, request, is_streamed=turn.is_streamed)
        config = self.provider.config if isinstance(self.provider, AdapterProvider) else None
        model = self.model(request.model)
        adapter: ProviderAdapter = attempt
        sent = ModelRequest(
            model=model.name, messages=[], max_output_tokens=request.max_output_tokens
        )

        def whole() -> ModelRequest:
            return model_request(request, self._sent, model=model.name)

        if turn.meter is not None or (config is not None and may_have_price(config)):
            adapter = MeteredAdapter(
                attempt,
                model,
                prices=self.prices,
                estimate=self._estimates.prompt,
                meter=turn.meter,
            )
            sent = whole()
        tally = CallTally(lambda: self._estimates.prompt(whole()))
        usage = Usage()
        try:
            with raise_as_llm_error():
                async with aclosing(adapter.stream(sent)) as events:
                    async for event in events:
                        tally.take(event)
                        match event:
                            case ModelTextDelta():
                                yield event
                            case ModelCompleted():
                                usage = event.usage
                            case _:
                                pass
                if attempt.failure is not None:
                    raise attempt.failure
                if attempt.response is None:
                    raise StreamBrokenError("the provider ended its stream without a reply")
        finally:
            tally.end()
            self._count_lost(tally, turn)
        (message,) = self.clean.messages([attempt.response.message])
        turn.response = replace(attempt.response, message=message, usage=self.clean.usage(usage))

    def _count_lost(self, tally: CallTally, turn: CallTurn) -> None:
        turn.tally.losses += tally.losses
        for usage in tally.losses:
            self.cost.add(usage)
            turn.cost.add(usage)

    def _reply(self, turn: CallTurn) -> ChatResponse:
        if turn.response is None:
            raise StreamBrokenError("the provider gave no reply")
        return turn.response


@dataclass(slots=True)
class _Attempt:
    """One call of a provider, as an adapter of the engine.

    Attributes:
        response: the reply, once it is whole.
        failure: the reason why there is no reply.
    """

    provider: LlmProvider
    request: ChatRequest
    is_streamed: bool
    response: ChatResponse | None = None
    failure: LlmError | None = None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """See `ProviderAdapter.stream`; only `max_output_tokens` of the request is used."""
        yield ModelStarted(provider="agcore", model=request.model)
        sent, most = self.request, request.max_output_tokens
        if most != sent.max_output_tokens:
            sent = replace(sent, max_output_tokens=most)
        try:
            with raise_as_llm_error():
                if not self.is_streamed:
                    self.response = await self.provider.chat(sent)
                else:
                    chunks = self.provider.stream(sent)
                    if isinstance(chunks, TaskStream):
                        chunks = chunks.unwrap()
                    async with aclosing(join_chunks(chunks)) as pieces:
                        async for piece in pieces:
                            if isinstance(piece, ChatResponse):
                                self.response = piece
                            else:
                                yield piece
        except LlmError as error:
            self.failure = error
            # A request that a service refuses, or that does not reach it, costs nothing.
            details = {name: error.details[name] for name in ("sent",) if name in error.details}
            if isinstance(error, _REFUSED):
                details["status"] = getattr(error, "status", None)
            yield ModelFailed(error=ErrorPayload.of(error).model_copy(update={"details": details}))
            return
        if self.response is not None:
            message = self.response.message
            yield ModelCompleted(
                content=message.content, tool_calls=message.tool_calls, usage=self.response.usage
            )

    async def close(self) -> None:
        """Leave the provider open: it belongs to the application."""


async def join_chunks(
    pieces: AsyncIterator[ChatChunk | ChatResponse],
) -> AsyncGenerator[ModelTextDelta | ChatResponse]:
    """Yield text as it arrives, and the whole reply last; closing this closes `pieces`.

    Raises:
        LlmError: the stream ended without a finish reason, so the reply is incomplete.
    """
    draft = ReplyAccumulator(Called("agcore", ""), str, history=())
    calls: dict[int, CallDraft] = {}
    usage, finish_reason = Usage(), None
    try:
        async for piece in pieces:
            if isinstance(piece, ChatResponse):
                yield piece
                return
            if piece.text:
                draft.add_text(piece.text)
            for part in piece.tool_calls:  # pieces of one call have the same index
                call = calls.get(part.index)
                if call is None:
                    call = calls[part.index] = draft.open_call(part.tool_call_id, part.name)
                elif not call.wire_name:
                    call.wire_name = part.name
                draft.feed(call, part.arguments)
            usage = piece.usage or usage
            finish_reason = piece.finish_reason or finish_reason
            for delta in _texts(draft.deltas()):
                yield delta
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()
    if finish_reason is None:
        raise StreamBrokenError("the stream ended without a finish reason")
    events = draft.finish(_STOPS[finish_reason], finish_reason.value, usage=usage)
    for delta in _texts(events):
        yield delta
    if isinstance(completed := events[-1], ModelCompleted):
        yield response_of(completed)


def _texts(events: Iterable[ModelEvent]) -> list[ModelTextDelta]:
    return [event for event in events if isinstance(event, ModelTextDelta)]
