"""Adapt a cycle's provider to the engine, with hooks, retries, redaction and cost."""

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

from agcore.llm.error import (
    AuthenticationError,
    ContextLengthError,
    LlmError,
    RateLimitError,
    RequestBlockedError,
    RequestError,
    StreamBrokenError,
    ToolTurnLimitError,
    llm_error_from_payload,
    raise_as_llm_error,
)
from agcore.llm.history import ChatHistory, ChatRedactor
from agcore.llm.hooks import HookContext, HookEvent, HookExecutor, HookResult
from agcore.llm.provider import (
    AdapterProvider,
    LlmProvider,
    SecretSource,
    chat_request,
    instruction_blocks,
    model_request,
    request_settings,
    response_of,
    system_messages,
)
from agcore.llm.stream import ChatChunk
from agcore.llm.types import (
    ChatMessage,
    ChatRequest,
    ChatResponse,
    CostTracker,
    FinishReason,
    ModelSettings,
)
from agent_core.aio import TaskStream
from agent_core.budgets.meter import Meter, MeteredAdapter
from agent_core.budgets.prices import Prices, may_have_price
from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.errors import ErrorCode, PermissionDeniedError, ToolError
from agent_core.extensions import Extension, ExtensionContext, Rank
from agent_core.providers.adapter_faults import open_stream
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.estimates import PromptEstimates
from agent_core.providers.failures import Called
from agent_core.providers.redacting import RequestRedactor
from agent_core.providers.reply import CallDraft, ReplyAccumulator
from agent_core.providers.requests import IdentityCache
from agent_core.providers.retrying import RetryingAdapter
from agent_core.providers.tally import CallTally, CountedStart
from agent_core.tools import ToolReturn
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


def _stop_of(response: ChatResponse, *, has_calls: bool) -> StopReason:
    """Return how the engine treats a reply: one that was cut off ends the turn, not continued."""
    if response.stop_reason is FinishReason.CONTENT_FILTER:
        return StopReason.CONTENT_FILTER
    return StopReason.TOOL_USE if has_calls else StopReason.END_TURN


_REFUSED = (AuthenticationError, ContextLengthError, RateLimitError, RequestError)
_UNFORCED = (None, "auto", "none")
_ALLOWED = HookResult.allow()


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
        callers: costs of the runs that have asked for this one.
        begun: ids of the tool calls that have begun or were answered.
        rounds: how many replies with calls there have been.
        failure: the error of the last call, if it failed.
        sent: the last request, as the engine has built it.
        chat: the last request as the toolkit's, once something needs it.
        response: the last reply.
    """

    settings: ModelSettings
    limit: int | None = None
    is_streamed: bool = False
    session_id: str | None = None
    agent_name: str | None = None
    run_id: str = field(default_factory=lambda: new_id("run"))
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    meter: Meter | None = None
    cost: CostTracker = field(default_factory=CostTracker)
    callers: Sequence[CostTracker] = ()
    begun: set[str] = field(default_factory=set[str])
    rounds: int = 0
    failure: LlmError | None = None
    sent: ModelRequest | None = None
    chat: ChatRequest | None = None
    response: ChatResponse | None = None

    def next_settings(self) -> ModelSettings:
        """Return the settings of the next request; `tool_choice` forces a tool only once."""
        if self.response is None or self.settings.tool_choice in _UNFORCED:
            return self.settings
        return replace(self.settings, tool_choice=None)

    def count_round(self, calls: Sequence[ToolCall]) -> None:
        """Count a reply with calls of tools; the final answer is none.

        Raises:
            LlmError: there are more than the caller allows.
        """
        is_typed = self.sent is not None and self.sent.output is not None
        is_answer = is_typed and {call.name for call in calls} == {FINAL_ANSWER}
        if self.limit is None or not calls or is_answer:
            return
        self.rounds += 1
        if self.rounds > self.limit:
            raise ToolTurnLimitError(self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerRun:
    """A run that calls tools: what an agent that answers such a call shares with it.

    Attributes:
        provider: its model.
        meter: of its budget, which pays for the other agent, too.
        costs: what the calls of the other agent are added to.
        secrets: what the other agent must not see or show either.
        guard: decides about its calls.
        depth: how many agents have called one another to start it.
    """

    provider: LlmProvider
    meter: Meter | None
    costs: Sequence[CostTracker]
    secrets: Mapping[str, str]
    guard: Extension | None
    depth: int

    async def __call__(self, *_: object) -> ToolReturn:
        """Refuse the agents of the engine; those of the toolkit answer by themselves."""
        reason = "agents of the engine can only be asked in a run of a runtime"
        raise ToolError(ErrorCode.TOOL_NOT_AVAILABLE, reason)


@dataclass(kw_only=True)
class ModelCalls(Extension):
    """The model of a cycle, as an adapter of the engine: with hooks, retries and costs.

    Attributes:
        provider: answers the requests. An adapter of the engine gets the engine's requests.
        retry: for rate limits, timeouts and 5xx; a wait is never shorter than the service asked.
        history: converts the messages of a request.
        requests: keeps secrets out of the engine's requests.
        clean: keeps them out of messages.
        turn: the state that all calls of the current run share.
        hooks: called before a call, after it, and when it fails.
        cost: of all calls.
        prices: of models.
    """

    rank: ClassVar[Rank] = Rank.HOOKS

    provider: LlmProvider
    retry: RetryConfig
    history: ChatHistory
    requests: RequestRedactor
    clean: ChatRedactor
    turn: CallTurn
    hooks: HookExecutor = field(default_factory=HookExecutor)
    cost: CostTracker = field(default_factory=CostTracker)
    prices: Prices = field(default_factory=Prices)
    _estimates: PromptEstimates = field(default_factory=PromptEstimates)
    _sent: IdentityCache[ChatMessage, ModelMessage] = field(
        default_factory=IdentityCache[ChatMessage, ModelMessage]
    )

    def model(self, name: str | None) -> ModelConfig:
        """Return the configuration of the model with this name, as far as the provider knows it."""
        known = self.provider.config if isinstance(self.provider, AdapterProvider) else None
        name = self.name_of_model(name)
        return (known or ModelConfig(provider="agcore", name=name)).model_copy(
            update={"name": name}
        )

    def name_of_model(self, name: str | None) -> str:
        """Return the name that requests have for a model: the given one, or the provider's."""
        adapter = self.provider if isinstance(self.provider, AdapterProvider) else None
        return name or (adapter.model if adapter else "agcore")

    def secrets(self) -> Mapping[str, str]:
        """Return the provider's secrets, which may change."""
        return self.provider.secrets() if isinstance(self.provider, SecretSource) else {}

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """See `ProviderAdapter.stream`; failures are raised, and kept in `turn`."""
        turn = self.turn
        settings = turn.next_settings()
        whole = request.model_copy(
            update={
                **request_settings(settings, self.name_of_model(None)),
                "system": [*request.system, *instruction_blocks(self.history.instructions)],
            }
        )
        turn.sent, turn.chat = self.requests.clean(whole), None
        return self._events(turn.sent, turn)

    async def close(self) -> None:
        """Leave the provider open: it belongs to the application."""

    async def ask(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition] = (),
        *,
        settings: ModelSettings,
    ) -> ChatResponse:
        """Send exactly these messages, outside the history of a run.

        Raises:
            LlmError: the call failed, or a hook blocked it.
        """
        turn = replace(self.turn, settings=settings, limit=None, is_streamed=False)
        turn.sent = turn.response = None
        chat = ChatRequest(
            **settings.by_name(), messages=self.clean.messages(messages), tools=tools
        )
        name = self.name_of_model(settings.model)
        sent = self.requests.clean(model_request(chat, self._sent, model=name))
        turn.chat = replace(chat, tools=sent.tools)
        try:
            async with aclosing(self._events(sent, turn)) as events:
                async for _ in events:
                    pass
        except ContextLengthError as error:
            await self.report(error, turn)
            raise
        if turn.response is None:
            raise StreamBrokenError("the provider gave no reply")
        return turn.response

    async def report(self, error: LlmError, turn: CallTurn) -> None:
        """Call the hooks for a call that has failed for good."""
        await self._call_hooks(HookEvent.ON_ERROR, turn, error=error)

    async def before_tool_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        call: ToolCall,
        definition: ToolDefinition,  # noqa: ARG002
    ) -> None:
        """Call the hooks before a tool runs, and note that it has begun.

        Raises:
            PermissionDeniedError: a hook blocked the call.
        """
        verdict = await self._call_hooks(HookEvent.PRE_TOOL, self.turn, tool_call=call)
        if verdict.blocked:
            message = f"{call.name}: a hook blocked the call: {verdict.reason}"
            raise PermissionDeniedError(
                ErrorCode.PERMISSION_DENIED, message, details={"tool_name": call.name}
            )
        self.turn.begun.add(call.tool_call_id)

    async def after_tool_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        call: ToolCall,
        result: ToolResult,
    ) -> None:
        """Call the hooks after a call has been answered."""
        self.turn.begun.add(call.tool_call_id)
        await self._call_hooks(HookEvent.POST_TOOL, self.turn, tool_call=call, tool_result=result)

    async def _call_hooks(self, event: HookEvent, turn: CallTurn, **facts: Any) -> HookResult:
        if not self.hooks.listens(event):
            return _ALLOWED
        if event not in {HookEvent.PRE_TOOL, HookEvent.POST_TOOL}:
            facts["request"] = self._chat_request(turn)
        return await self.hooks.execute(
            HookContext(
                event=event,
                session_id=turn.session_id,
                agent_name=turn.agent_name,
                metadata=turn.metadata,
                **facts,
            )
        )

    def _chat_request(self, turn: CallTurn) -> ChatRequest:
        """Return the last request as the toolkit's, without secrets."""
        if turn.chat is None and (sent := turn.sent) is not None:
            given = [*self.history.instructions, *self.history.convert(sent.messages)]
            messages = self.clean.messages([*system_messages(sent), *given])
            turn.chat = chat_request(sent, messages, model=turn.settings.model)
        return turn.chat or ChatRequest(**turn.settings.by_name(), messages=())

    async def _events(self, sent: ModelRequest, turn: CallTurn) -> AsyncGenerator[ModelEvent]:
        """Make one call, with retries as long as no text has arrived.

        Raises:
            LlmError: it failed for good. The hooks hear of a prompt that is too long only later,
              because compaction may still help.
        """
        verdict = await self._call_hooks(HookEvent.PRE_REQUEST, turn)
        if verdict.blocked:
            turn.failure = RequestBlockedError(f"a hook blocked the request: {verdict.reason}")
            raise turn.failure
        provider, call, is_whole = self.provider, None, False
        if type(provider) is AdapterProvider:  # a subclass may change what is sent
            adapter = provider.adapter
        else:
            request = self._chat_request(turn)
            adapter = call = _ChatCall(provider, request, is_streamed=turn.is_streamed)
        tally = CallTally(lambda: self._estimates.prompt(sent))
        try:
            with raise_as_llm_error():
                async with open_stream(self._with_costs(adapter, turn), sent) as events:
                    async for event in events:
                        tally.take(event)
                        yield await self._follow(event, turn, tally, call)
                        is_whole = is_whole or isinstance(event, ModelCompleted)
            if not is_whole:
                raise StreamBrokenError("the provider ended its stream without a reply")
        except LlmError as error:
            turn.failure = self.clean.error(error)
            if not isinstance(error, ContextLengthError | ToolTurnLimitError):
                await self.report(error, turn)
            raise
        finally:
            tally.end()
            for usage in tally.losses:
                self._add_cost(usage, turn)

    def _with_costs(self, adapter: ProviderAdapter, turn: CallTurn) -> ProviderAdapter:
        """Return an adapter with retries, priced, and charged to the run's budget if it has one."""
        adapter = RetryingAdapter(adapter, self.retry, is_whole=not turn.is_streamed)
        config = self.provider.config if isinstance(self.provider, AdapterProvider) else None
        if turn.meter is None and (config is None or not may_have_price(config)):
            return adapter
        return MeteredAdapter(
            adapter,
            self.model(turn.settings.model),
            prices=self.prices,
            estimate=self._estimates.prompt,
            meter=turn.meter,
        )

    async def _follow(
        self, event: ModelEvent, turn: CallTurn, tally: CallTally, call: "_ChatCall | None"
    ) -> ModelEvent:
        """Call the hooks for an event, and return it with its tally or without secrets.

        Raises:
            LlmError: it is a failure.
        """
        match event:
            case ModelStarted() if not isinstance(event, CountedStart):
                return CountedStart.of(event, tally)
            case ModelRetry(error=failed, attempt=attempt):
                error = self.clean.error(_error(failed, call))
                await self._call_hooks(HookEvent.ON_RETRY, turn, error=error, attempt=attempt)
                return event.model_copy(update={"error": ErrorPayload.of(error)})
            case ModelFailed(error=failed):
                raise _error(failed, call)
            case ModelCompleted():
                response = response_of(event) if call is None else call.reply
                (message,) = self.clean.messages([response.message])
                usage = self.clean.usage(event.usage)
                # An adapter may name calls that have no block.
                calls = event.tool_calls if message is response.message else message.tool_calls
                turn.response = response = replace(response, message=message, usage=usage)
                self._add_cost(usage, turn)
                facts = {"response": response, "usage": usage}
                await self._call_hooks(HookEvent.POST_REQUEST, turn, **facts)
                turn.count_round(calls)
                return event.model_copy(
                    update={
                        "content": message.content,
                        "tool_calls": calls,
                        "usage": usage,
                        "stop_reason": _stop_of(response, has_calls=bool(calls)),
                        "raw_stop_reason": response.stop_reason,
                    }
                )
            case _:
                return event

    def _add_cost(self, usage: Usage, turn: CallTurn) -> None:
        for tracker in (self.cost, turn.cost, *turn.callers):
            tracker.add(usage)


def _error(failed: ErrorPayload, call: "_ChatCall | None") -> LlmError:
    own = None if call is None else call.failure
    return llm_error_from_payload(failed) if own is None else own


@dataclass(slots=True)
class _ChatCall:
    """One call of a provider that is no adapter of the engine, as one.

    Attributes:
        reply: the reply, once it is whole.
        failure: the reason why the last attempt brought no reply.
    """

    provider: LlmProvider
    request: ChatRequest
    is_streamed: bool
    reply: ChatResponse = field(
        default_factory=lambda: ChatResponse(ChatMessage.assistant_text(""))
    )
    failure: LlmError | None = None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """See `ProviderAdapter.stream`; only `max_output_tokens` of the request is used."""
        is_native = isinstance(self.provider, AdapterProvider)  # it checks the form itself
        yield ModelStarted(provider="agcore", model=request.model, native_output=is_native)
        sent, most = self.request, request.max_output_tokens
        if most != sent.max_output_tokens:
            sent = replace(sent, max_output_tokens=most)
        whole: ChatResponse | None = None
        try:
            with raise_as_llm_error():
                if not self.is_streamed:
                    whole = await self.provider.chat(sent)
                else:
                    chunks = self.provider.stream(sent)
                    if isinstance(chunks, TaskStream):
                        chunks = chunks.unwrap()
                    async with aclosing(join_chunks(chunks)) as pieces:
                        async for piece in pieces:
                            if isinstance(piece, ChatResponse):
                                whole = piece
                            else:
                                yield piece
        except LlmError as error:
            self.failure = error
            yield ModelFailed(error=_payload(error))
            return
        if whole is not None:
            self.reply, message = whole, whole.message
            yield ModelCompleted(
                content=message.content, tool_calls=message.tool_calls, usage=whole.usage
            )

    async def close(self) -> None:
        """Leave the provider open: it belongs to the application."""


def _payload(error: LlmError) -> ErrorPayload:
    """Return a failure as the engine's. A request that a service refuses costs nothing."""
    details = {name: error.details[name] for name in ("sent",) if name in error.details}
    if isinstance(error, _REFUSED):
        details["status"] = getattr(error, "status", None)
    if (asked := getattr(error, "retry_after_s", None)) is not None:
        details["retry_after_s"] = asked
    return ErrorPayload.of(error).model_copy(update={"details": details})


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


@dataclass(frozen=True, slots=True)
class ProviderModel:
    """A provider of the toolkit as the model of runs of the engine.

    Attributes:
        provider: answers the requests; it is opened and closed by the caller.
    """

    provider: LlmProvider

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """See `ProviderAdapter.stream`."""
        messages = [*system_messages(request), *ChatHistory().convert(request.messages)]
        asked = chat_request(request, messages, model=request.model)
        call = _ChatCall(self.provider, asked, is_streamed=True)
        async with aclosing(call.stream(request)) as events:
            async for event in events:
                yield event

    async def close(self) -> None:
        """Leave the provider open: it belongs to the application."""


def adapter_of(model: str | ModelConfig | ProviderAdapter | LlmProvider) -> Any:
    """Return a model of the toolkit as a run of the engine takes it."""
    if isinstance(model, AdapterProvider):
        return model.adapter
    is_of_toolkit = callable(getattr(model, "chat", None))
    return ProviderModel(cast("LlmProvider", model)) if is_of_toolkit else model
