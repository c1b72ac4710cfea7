"""The cycle of a model call: history, retries, hooks, cost, and the loop that runs tools.

Streamed or not, with tools or without, every call goes the same way: `_turn` is the loop, `_reply`
fits the conversation into its budget, `_delivered` tries until an answer has come.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Self

from agcore.llm.answered import fill_missing_results
from agcore.llm.bounds import tokens_of
from agcore.llm.cleaning import Cleaner, HoldsSecrets
from agcore.llm.compact import SUMMARY_PROMPT, CompactConfig, Compactor
from agcore.llm.cost import CostTracker
from agcore.llm.errors import (
    ContextLengthError,
    LlmError,
    RequestBlockedError,
    StreamBrokenError,
    ToolTurnLimitError,
    provider_errors,
)
from agcore.llm.hooks import HookContext, HookEvent, HookExecutor
from agcore.llm.joining import joined
from agcore.llm.provider import LlmProvider
from agcore.llm.rounds import ToolRound, ToolRunner, steps
from agcore.llm.stream import (
    AssistantTextDelta,
    CostUpdate,
    Error,
    StreamEvent,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    TurnComplete,
)
from agcore.llm.types import ChatMessage, ChatRequest, ChatResponse
from agent_core.config.models import RetryConfig
from agent_core.context.tokens import estimate_tools
from agent_core.providers.failures import CallError
from agent_core.providers.retry import pause_before_retry_s
from agent_core.redaction import Redactor
from agent_core.types import ToolDefinition, ToolResult

Tools = Sequence[ToolDefinition] | ToolRunner
"""Definitions, if the caller runs what is asked for; a runner, if the cycle does."""

_Pieces = AsyncGenerator[AssistantTextDelta | ChatResponse]
_Ask = Callable[[ChatRequest], _Pieces]


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleConfig:
    """Settings of every request of a cycle.

    Attributes:
        model: None means the provider's own.
        max_tool_turns: how many rounds of tool calls one submission may take.
        retry: for rate limits, timeouts and 5xx; a wait is never shorter than the service asked.
    """

    model: str | None = None
    temperature: float | None = None
    max_output_tokens: int | None = None
    max_tool_turns: int = 10
    retry: RetryConfig = field(default_factory=RetryConfig)


class LlmCycle:
    """A conversation with one model. One submission at a time.

    What happened stays in the history and what did not is not there: a submission that fails or
    is cancelled leaves the exchanges in which a call has begun, each call with its answer, and
    nothing of the rest. A call that was interrupted is answered as one of unknown effect.
    """

    def __init__(self, provider: LlmProvider, config: CycleConfig | None = None) -> None:
        self._provider = provider
        self._config = config or CycleConfig()
        self._system: str | None = None
        self._messages: list[ChatMessage] = []
        self._added: list[ChatMessage] = []
        self._cost = CostTracker()
        self._hooks = HookExecutor()
        self._compactor: Compactor | None = None
        self._redactor = Redactor({})
        self._clean = Cleaner(self._redactor)
        self._learn()

    def with_system_prompt(self, prompt: str) -> Self:
        """Put `prompt` before every conversation of this cycle."""
        self._system = prompt
        return self

    def with_messages(self, messages: Iterable[ChatMessage]) -> Self:
        """Replace the history. Calls in it that have no answer are sent with one that says so."""
        self._messages = self._clean.messages(messages)
        self._added = []
        return self

    def extend_messages(self, messages: Iterable[ChatMessage]) -> Self:
        """Add to the history: answers to tool calls, for example."""
        self._messages.extend(self._clean.messages(messages))
        return self

    def with_secrets(self, secrets: Mapping[str, str]) -> Self:
        """Keep these values out of requests, replies, answers of tools, events and the history.

        The key of an `AdapterProvider` is known without being named.

        Args:
            secrets: what is shown in place of each, as `[redacted:<name>]`, and the secret.
        """
        self._redactor.learn(secrets)
        self._hooks.learn(secrets)
        return self

    def with_compact_config(self, config: CompactConfig) -> Self:
        """Make the history shorter when it outgrows a budget."""
        self._compactor = Compactor(config, self._summarise)
        return self

    def with_hook_executor(self, hooks: HookExecutor) -> Self:
        """Call these hooks."""
        self._hooks = hooks
        self._learn()
        return self

    def messages(self) -> list[ChatMessage]:
        """The history, without the system prompt."""
        return list(self._messages)

    def added(self) -> list[ChatMessage]:
        """What the last submission has added to the history, compacted or not."""
        return list(self._added)

    def usage(self) -> CostTracker:
        """What all calls have cost since the last reset."""
        return self._cost

    def reset_usage(self) -> None:
        """Count from nothing again."""
        self._cost.reset()

    async def submit(self, prompt: str, tools: Sequence[ToolDefinition] = ()) -> ChatResponse:
        """Say `prompt` and get one reply. Both join the history.

        Tools the model asks for are the caller's to run: add their answers with
        `extend_messages` before the next submission.

        Raises:
            LlmError: the call failed, or a hook blocked it.
        """
        return await self._completed(self._turn(prompt, tools, self._whole))

    async def submit_messages(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition] = ()
    ) -> ChatResponse:
        """Send exactly these messages: no history, no system prompt, and nothing is kept.

        Raises:
            LlmError: as `submit`.
        """
        self._learn()
        response = await self._once(self._request(messages, tools))
        self._cost.add(response.usage)
        return response

    async def submit_with_tools(self, prompt: str, tools: ToolRunner) -> ChatResponse:
        """Say `prompt`, run the tools the model asks for, and go on until it asks for none.

        Raises:
            LlmError: as `submit`; `ToolTurnLimitError` after `max_tool_turns` rounds.
        """
        return await self._completed(self._turn(prompt, tools, self._whole))

    async def submit_stream(self, prompt: str, tools: Tools = ()) -> AsyncGenerator[StreamEvent]:
        """Like `submit`, or `submit_with_tools` if `tools` can run them, as it happens.

        A failure is the last event, `Error`, and not an exception. Close the generator to stop.
        """
        try:
            async with aclosing(self._turn(prompt, tools, self._piecewise)) as events:
                async for event in events:
                    yield event
        except LlmError as error:
            yield Error(error.message, error)

    async def _turn(self, prompt: str, tools: Tools, ask: _Ask) -> AsyncGenerator[StreamEvent]:
        """The loop: ask, run what is asked for, until nothing is."""
        self._learn()
        self._added = []
        runner = None if isinstance(tools, Sequence) else tools
        definitions = tools if isinstance(tools, Sequence) else tools.definitions()
        unsaid = self._clean.messages([ChatMessage.user_text(prompt)])
        rounds = 0
        while True:
            response: ChatResponse | None = None
            async with aclosing(self._reply(unsaid, definitions, ask)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, ChatResponse):
                        response = piece
                    else:
                        yield piece
            if response is None:
                raise StreamBrokenError("the provider ended its stream without a reply")
            self._cost.add(response.usage)
            yield CostUpdate(response.usage, self._cost.total())
            if runner is None or not response.tool_calls:
                self._keep(*unsaid, response.message)
                yield TurnComplete(response.stop_reason, response)
                return
            if rounds >= self._config.max_tool_turns:
                raise ToolTurnLimitError(self._config.max_tool_turns)
            rounds += 1
            async for event in self._run(runner, unsaid, response):
                yield event
            unsaid = []

    async def _run(
        self, runner: ToolRunner, unsaid: Sequence[ChatMessage], response: ChatResponse
    ) -> AsyncGenerator[StreamEvent]:
        """One round of tools. Calls join the history together with their answers.

        A round that is stopped joins it too, as soon as a call has begun: the next turn must know
        what was done.
        """
        calls = ToolRound(response.tool_calls)
        results: list[ToolResult] = []
        try:
            async with aclosing(steps(runner, calls)) as begun:
                async for call in begun:
                    yield ToolExecutionStarted(call.tool_call_id, call.name, call.arguments)
        finally:
            if calls.has_begun:
                results = self._clean.results(calls.results())
                self._keep(*unsaid, response.message, ChatMessage.tool_results(results))
        for result in results:
            yield ToolExecutionCompleted(result.tool_call_id, result.tool_name, result)

    async def _completed(self, events: AsyncGenerator[StreamEvent]) -> ChatResponse:
        async with aclosing(events):
            async for event in events:
                if isinstance(event, TurnComplete):
                    return event.response
        raise StreamBrokenError("the turn ended without a reply")

    def _keep(self, *messages: ChatMessage) -> None:
        self._messages.extend(messages)
        self._added.extend(messages)

    async def _reply(
        self, unsaid: Sequence[ChatMessage], tools: Sequence[ToolDefinition], ask: _Ask
    ) -> _Pieces:
        """One reply to the history and what is not part of it yet; compacts what is too long."""
        said = await self._fit(unsaid, tools, force=False)
        try:
            async with aclosing(self._delivered(self._with_history(said, tools), ask)) as pieces:
                async for piece in pieces:
                    yield piece
            return
        except ContextLengthError as error:
            before = list(self._messages)
            said = await self._fit(unsaid, tools, force=True)
            if self._messages == before:
                await self._failed(self._with_history(said, tools), error)
                raise
        async with aclosing(self._delivered(self._with_history(said, tools), ask)) as pieces:
            async for piece in pieces:
                yield piece

    async def _fit(
        self, unsaid: Sequence[ChatMessage], tools: Sequence[ToolDefinition], *, force: bool
    ) -> Sequence[ChatMessage]:
        """Bring the history within the budget, and return what of `unsaid` can be sent with it."""
        if self._compactor is None:
            return unsaid
        system = [ChatMessage.system_text(self._system)] if self._system else []
        overhead = estimate_tools(tools) + tokens_of(system)
        said = self._compactor.share_of(unsaid, history=self._messages, overhead=overhead)
        around = overhead + tokens_of(said)
        self._messages = await self._compactor.fit(self._messages, overhead=around, force=force)
        return said

    async def _delivered(self, request: ChatRequest, ask: _Ask) -> _Pieces:
        """One request, tried until it is answered; nothing is tried again once text was seen.

        Raises:
            LlmError: it failed for good. A prompt that is too long is not announced to the hooks
                here: compaction may still help.
        """
        verdict = await self._hooks.execute(
            HookContext(event=HookEvent.PRE_REQUEST, request=request)
        )
        if verdict.blocked:
            raise RequestBlockedError(f"a hook blocked the request: {verdict.reason}")
        attempt = 0
        while True:
            attempt += 1
            seen = False
            try:
                async with aclosing(ask(request)) as pieces:
                    async for piece in pieces:
                        seen = True
                        yield piece
                break
            except LlmError as error:
                pause_s = None if seen else self._pause_s(attempt, error)
                if pause_s is None:
                    if not isinstance(error, ContextLengthError):
                        await self._failed(request, error)
                    raise
                await self._hooks.execute(
                    HookContext(
                        event=HookEvent.ON_RETRY, request=request, error=error, attempt=attempt
                    )
                )
            await asyncio.sleep(pause_s)
        await self._hooks.execute(HookContext(event=HookEvent.POST_REQUEST, request=request))

    def _pause_s(self, attempt: int, error: LlmError) -> float | None:
        asked: float | None = getattr(error, "retry_after_s", None)
        failure = CallError(error.code, error.message, error.retryable, retry_after_s=asked)
        return pause_before_retry_s(self._config.retry, attempt, failure)

    async def _failed(self, request: ChatRequest, error: LlmError) -> None:
        context = HookContext(event=HookEvent.ON_ERROR, request=request, error=error)
        await self._hooks.execute(context)

    async def _whole(self, request: ChatRequest) -> _Pieces:
        with provider_errors(self._clean.error):
            response = await self._provider.chat(request)
        yield self._clean.response(response)

    async def _piecewise(self, request: ChatRequest) -> _Pieces:
        live = self._redactor.secrets_stream()
        with provider_errors(self._clean.error):
            async with aclosing(joined(self._provider.stream(request))) as pieces:
                async for piece in pieces:
                    shown = live.feed(piece) if isinstance(piece, str) else live.finish()
                    if shown:
                        yield AssistantTextDelta(shown)
                    if isinstance(piece, ChatResponse):
                        yield self._clean.response(piece)

    def _learn(self) -> None:
        """Take note of the provider's secrets, which may have changed."""
        if isinstance(self._provider, HoldsSecrets):
            self.with_secrets(self._provider.secrets())

    async def _once(self, request: ChatRequest) -> ChatResponse:
        try:
            async with aclosing(self._delivered(request, self._whole)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, ChatResponse):
                        return piece
        except ContextLengthError as error:
            await self._failed(request, error)
            raise
        raise StreamBrokenError("the provider gave no reply")

    async def _summarise(self, transcript: str) -> str:
        messages = [ChatMessage.system_text(SUMMARY_PROMPT), ChatMessage.user_text(transcript)]
        return (await self.submit_messages(messages)).text

    def _with_history(
        self, unsaid: Sequence[ChatMessage], tools: Sequence[ToolDefinition]
    ) -> ChatRequest:
        system = [ChatMessage.system_text(self._system)] if self._system else []
        return self._request([*system, *fill_missing_results([*self._messages, *unsaid])], tools)

    def _request(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition]
    ) -> ChatRequest:
        request = ChatRequest(
            messages=messages,
            tools=tools,
            model=self._config.model,
            temperature=self._config.temperature,
            max_output_tokens=self._config.max_output_tokens,
        )
        return self._clean.request(request)
