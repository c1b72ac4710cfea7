"""The cycle: submissions of one conversation, each a run of the engine's loop."""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, Unpack, cast

from agcore.llm.calls import CallerRun, CallTurn, ModelCalls
from agcore.llm.compact import ChatContext, CompactConfig, check_budget
from agcore.llm.error import ContextLengthError, LlmError, StreamBrokenError, llm_error_from_payload
from agcore.llm.history import ChatHistory, ChatRedactor
from agcore.llm.hooks import HookExecutor
from agcore.llm.provider import LlmProvider
from agcore.llm.stream import (
    AssistantTextDelta,
    CostUpdate,
    Error,
    StreamEvent,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    TurnComplete,
)
from agcore.llm.types import (
    CallSettings,
    ChatMessage,
    ChatResponse,
    CostTracker as CostTracker,
    ModelSettings,
    Prompt,
    TurnSettings,
)
from agent_core.aio import TaskStream, finish_uncancelled, stop_if_cancelled
from agent_core.aio.loops import running_loop
from agent_core.api.arguments import checks_arguments
from agent_core.assets import load_asset
from agent_core.budgets.meter import Budgets, CallBudget, Meter
from agent_core.config.models import BudgetConfig, RetryConfig
from agent_core.errors import ArgumentError, ErrorCode
from agent_core.extensions import Extension, ExtensionContext, Extensions
from agent_core.loop import Outcome, RunLimits, StandaloneRun, build_run
from agent_core.loop.option_checks import malformed_option
from agent_core.loop.options import (
    NO_OPTIONS,
    RunOptions,
    asked_options,
    with_contributions,
    with_instructions,
)
from agent_core.providers.estimates import estimate_blocks
from agent_core.providers.redacting import RequestRedactor
from agent_core.redaction import Redactor
from agent_core.telemetry.opening import telemetry_of_program
from agent_core.text import kind_of, nearest
from agent_core.tools import Tool
from agent_core.tools.limits import ResultLimiter
from agent_core.tools.toolsets import Toolset
from agent_core.types import (
    Budget,
    Draft,
    EventType,
    ImageBlock,
    Node,
    RunIdentity,
    RunStatus,
    RuntimeEvent,
    TextBlock,
    ToolDefinition,
    ToolResult,
    Usage,
    user_text,
)
from agent_core.types.budget import SharedBudget
from agent_core.types.content import text_in

_OPTIONS = TurnSettings.__annotations__.keys() - CallSettings.__annotations__.keys()


@checks_arguments(constructor=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class CycleConfig(ModelSettings):
    """Settings of a cycle; `ModelSettings` has the ones for its requests.

    A `tool_choice` that forces a call holds for the first request of a submission: what follows is
    up to the model.

    Attributes:
        max_tool_turns: how many rounds of tool calls one submission may take.
        retry: for rate limits, timeouts and 5xx; a wait is never shorter than the service asked.
    """

    max_tool_turns: int = 10
    retry: RetryConfig = field(default_factory=RetryConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTools:
    """The tools of one submission.

    Attributes:
        tools: the engine's tools that may be called.
        definitions: the definitions sent to the model, in this order.
        guard: decides about every call; without one all are allowed.
        results: bounds the results of calls.
        session_id: the session that calls are made in.
        agent_name: the agent of that session, for hooks.
        others: names of tools that exist, and that this submission does without.
    """

    tools: Sequence[Tool] = ()
    definitions: Sequence[ToolDefinition] = ()
    guard: Extension | None = None
    results: ResultLimiter | None = None
    session_id: str = "agcore"
    agent_name: str | None = None
    others: Collection[str] = ()

    def for_run(self) -> "RunTools":
        """See `ToolRunner.for_run`."""
        return self


class ToolRunner(Protocol):
    """Has tools that a cycle can run; `agcore.tools.ToolRegistry` is one."""

    def for_run(self) -> RunTools:
        """Return the tools in their current state."""
        ...


Tools = Sequence[ToolDefinition] | ToolRunner
"""Definitions, if the caller runs the tools; a runner, if the cycle does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submission:
    """One run of the engine that a cycle is about to make.

    Attributes:
        run: the run.
        prompt: the user's message.
        turn: the state of its model calls.
        start: the length of the history before it.
    """

    run: StandaloneRun
    prompt: Draft
    turn: CallTurn
    start: int


@checks_arguments(but=("submit", "submit_with_tools", "submit_stream"), constructor=True)
class LlmCycle:
    """A conversation with one model. One submission at a time.

    The history holds only work that was done: a submission that fails or is cancelled leaves the
    exchanges in which a tool call has begun, each call with its answer, and nothing else. An
    interrupted call is answered with a note that it may have had an effect.

    Args:
        provider: the model.
        config: settings of every request.
        caller: the run whose tool call this conversation answers: its budget pays, too.

    Raises:
        ArgumentError: an argument has a wrong type.
    """

    def __init__(
        self,
        provider: LlmProvider,
        config: CycleConfig | None = None,
        *,
        caller: CallerRun | None = None,
    ) -> None:
        if isinstance(provider, type) or not callable(getattr(provider, "chat", None)):
            what = f"the class {provider.__name__}" if isinstance(provider, type) else ""
            message = "provider must be an object with the methods chat and stream, not"
            raise ArgumentError(f"{message} {what or kind_of(provider)}", "provider")
        self._config = config or CycleConfig()
        self._system = ""
        self._added: list[ChatMessage] = []
        self._history = ChatHistory()
        self._redactor = Redactor({})
        self._clean = ChatRedactor(self._redactor)
        self._settings = ModelSettings(**self._config.by_name())
        self._calls = ModelCalls(
            provider=provider,
            retry=self._config.retry,
            history=self._history,
            requests=RequestRedactor(self._redactor),
            clean=self._clean,
            turn=CallTurn(self._settings),
        )
        self._context = ChatContext(self._summarise)
        self._budgets: Budgets | None = None
        self._caller = caller
        self._secrets: dict[str, str] = {}
        self._learn()

    def with_system_prompt(self, prompt: str) -> Self:
        """Put `prompt` before every conversation of this cycle."""
        self._system = prompt
        return self

    def with_messages(self, messages: Iterable[ChatMessage]) -> Self:
        """Replace the history. Calls in it that have no answer are sent as calls without a result.

        A summary that the cycle has made stays in force for the messages that it covers.
        """
        self._history.replace(self._clean.messages(messages))
        self._added = []
        return self

    def extend_messages(self, messages: Iterable[ChatMessage]) -> Self:
        """Append messages to the history, for example answers to tool calls."""
        self._history.extend(self._clean.messages(messages))
        return self

    def with_secrets(self, secrets: Mapping[str, str]) -> Self:
        """Keep these values out of requests, replies, answers of tools, events and the history.

        The key of an `AdapterProvider` is known without being named.

        Args:
            secrets: each secret by the name that is shown in its place, as `[redacted:<name>]`.
        """
        self._secrets |= secrets
        self._redactor.learn(secrets)
        self._calls.hooks.learn(secrets)
        return self

    def with_compact_config(self, config: CompactConfig) -> Self:
        """Make the history shorter when it outgrows a budget.

        Raises:
            LlmError: `ContextLength`; the budget is smaller than the prompt of a summary.
        """
        check_budget(config)
        self._context.config = config
        return self

    def with_budget(self, budget: BudgetConfig) -> Self:
        """Let all submissions of a session together spend no more than this."""
        from agent_core.storage.budgets import UnstoredBudgets  # noqa: PLC0415 - most have none

        paying = None if self._caller is None else self._caller.meter
        store = UnstoredBudgets() if paying is None else paying.budgets.store
        self._budgets = Budgets(store, budget, scale=lambda _: 1.0)
        return self

    def with_hook_executor(self, hooks: HookExecutor) -> Self:
        """Call these hooks."""
        self._calls.hooks = hooks
        self._learn()
        return self

    def messages(self, of: Sequence[ChatMessage] | None = None) -> list[ChatMessage]:
        """Return the history without the system prompt; a summary replaces the messages it covers.

        Args:
            of: a history to use instead of the cycle's own.
        """
        return self._history.visible(of)

    def added(self) -> list[ChatMessage]:
        """Return the messages that the last submission added to the history, compacted or not."""
        return list(self._added)

    def usage(self) -> CostTracker:
        """Return the usage of all calls since the last reset."""
        return self._calls.cost

    def turn_usage(self) -> Usage:
        """Return the usage of the last submission, including summaries made for it."""
        return self._calls.turn.cost.total()

    @property
    def run_id(self) -> str:
        """Id of the run that the last submission was."""
        return self._calls.turn.run_id

    def reset_usage(self) -> None:
        """Reset the usage to zero."""
        self._calls.cost.reset()

    async def submit(
        self,
        prompt: Prompt,
        tools: Sequence[ToolDefinition] = (),
        **settings: Unpack[TurnSettings],
    ) -> ChatResponse:
        """Send `prompt` and return one reply. Both join the history.

        In a prompt made of blocks, texts are sent first and images after them. Settings given here
        replace those of the configuration for this submission. With an `output_type` the reply's
        `output` is of that type; a reply that does not fit goes back to the model.

        The caller runs the tools that the model calls: add their answers with `extend_messages`
        before the next submission.

        Raises:
            LlmError: the call failed, or a hook blocked it.
        """
        return await self._reply(await self._prepare(prompt, tools, settings))

    async def submit_messages(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition] = (),
        **settings: Unpack[CallSettings],
    ) -> ChatResponse:
        """Send exactly these messages: no history, no system prompt, and nothing is kept.

        Raises:
            LlmError: as `submit`.
        """
        self._learn()
        chosen = replace(self._settings, **settings)
        self._calls.turn = CallTurn(chosen)
        return await self._calls.ask(messages, tools, settings=chosen)

    async def submit_with_tools(
        self, prompt: Prompt, tools: ToolRunner, **settings: Unpack[TurnSettings]
    ) -> ChatResponse:
        """Send `prompt`, run the tools the model calls, and repeat until it calls none.

        Raises:
            LlmError: as `submit`; `ToolTurnLimitError` after `max_tool_turns` rounds.
        """
        return await self._reply(await self._prepare(prompt, tools, settings))

    def submit_stream(
        self, prompt: Prompt, tools: Tools = (), **settings: Unpack[TurnSettings]
    ) -> AsyncGenerator[StreamEvent]:
        """Stream the events of `submit`, or of `submit_with_tools` if `tools` can run them.

        A failure is the last event, `Error`, and not an exception. Leaving the stream early, in
        any way, stops the submission.
        """
        return TaskStream(self.events_of(prompt, tools, settings))

    async def events_of(
        self, prompt: Prompt, tools: Tools, settings: TurnSettings
    ) -> AsyncGenerator[StreamEvent]:
        """Yield the events of `submit_stream`, as a plain generator that the caller closes."""
        try:
            work = await self._prepare(prompt, tools, settings, is_streamed=True)
            reading = work.run.stream.read()
            async with self._running(work) as running:
                async for event in reading:
                    for shown in self._convert_event(event, work.run.ctx.journal.path):
                        yield shown
                outcome = await running
            response = await self._response(work, outcome)
            yield TurnComplete(response.stop_reason, response)
        except LlmError as error:
            yield Error(error.message, error)

    async def _prepare(
        self, prompt: Prompt, tools: Tools, settings: TurnSettings, *, is_streamed: bool = False
    ) -> _Submission:
        """Build the run of a submission.

        Raises:
            LlmError: `ContextLength`; the system prompt and the tools leave no room for anything.
            AgentCoreError: `validation_error`; an option or a tool does not fit.
        """
        _check_tools(tools)
        self._learn()
        self._added = []
        given: dict[str, Any] = {**settings}
        asked = {name: given.pop(name) for name in settings if name in _OPTIONS}
        options = asked_options(None, asked) if asked else NO_OPTIONS
        expected = options.expected()
        are_called = not isinstance(tools, Sequence)
        runner = RunTools(definitions=tools) if isinstance(tools, Sequence) else tools.for_run()
        has, offered = list(runner.tools), list(runner.definitions)
        caller = self._caller
        turn = self._calls.turn = CallTurn(
            replace(self._settings, **given),
            limit=self._config.max_tool_turns if are_called else None,
            is_streamed=is_streamed,
            session_id=runner.session_id if are_called else None,
            agent_name=runner.agent_name,
            metadata=options.metadata,
            callers=() if caller is None else caller.costs,
        )
        name = re.sub(r"[^A-Za-z0-9_.:-]", "_", runner.agent_name or "")[:128] or "agcore"
        run = RunIdentity(session_id=runner.session_id, agent_id=name, run_id=turn.run_id)
        context = ExtensionContext(run=run, deps=options.deps)
        if callable(options.instructions):
            options = await with_instructions(options, context)
        if options.extensions:
            options = with_contributions(options, Extensions(context, options.extensions))
            if are_called:
                more = _contributed(options, offered)
                has += more
                offered += [tool.definition for tool in more]
        if disabled := options.disabled_tools:
            _check_names(disabled, {*runner.others, *(each.name for each in offered)})
            has = [tool for tool in has if tool.name not in disabled]
            offered = [each for each in offered if each.name not in disabled]
        turn.meter = self._meter(run, options.budget)
        if expected is not None and expected.tool is not None:
            offered.append(expected.tool)
        path = self._history.path()
        draft = self._fitting_prompt(prompt, offered, path, options, are_called=are_called)
        running_loop("a model cycle")
        most = self._config.max_tool_turns + 1 + (expected.retries if expected else 0)
        extensions = [self._calls, *options.extensions]
        if runner.guard is not None:
            extensions.append(runner.guard)
        if turn.meter is not None and turn.meter.limits("tool_calls"):
            extensions.append(CallBudget(turn.meter))
        made = build_run(
            provider=self._calls,
            composer=self._context,
            compactor=self._context,
            tools=has,
            path=path,
            run=run,
            redactor=self._redactor,
            extensions=extensions,
            results=runner.results,
            limits=RunLimits(max_turns=min(most, options.max_turns or most)),
            deps=options.deps,
            expected=expected,
            guards=options.guards,
            within=None if turn.meter is None else turn.meter.in_time(),
            leaves_calls=not are_called,
        )
        made.ctx.toolbox.ask_agent = CallerRun(
            provider=self._calls.provider,
            meter=turn.meter,
            costs=(self._calls.cost, turn.cost, *turn.callers),
            secrets=self._secrets,
            guard=runner.guard,
            depth=0 if caller is None else caller.depth + 1,
        )
        if options.output_validators or (expected is not None and expected.functions):
            from agent_core.loop.validators import OutputChecks  # noqa: PLC0415 - few have any

            made.ctx.toolbox.checks = OutputChecks(
                options.output_validators, options.output_retries
            )
        return _Submission(run=made, prompt=draft, turn=turn, start=len(path))

    def _fitting_prompt(
        self,
        prompt: Prompt,
        offered: Sequence[ToolDefinition],
        path: Sequence[Node],
        options: RunOptions[Any],
        *,
        are_called: bool,
    ) -> Draft:
        """Return the user's message, as far as it fits beside the history.

        Raises:
            AgentCoreError: `validation_error`; it is no message.
        """
        blocks = _prompt_blocks(prompt)
        pictures = [block for block in blocks if not isinstance(block, TextBlock)]
        words = text_in(blocks, "\n\n")
        system = "\n\n".join(filter(None, [self._system, options.text]))
        expected = options.expected()
        words = self._context.begin(
            self._redactor.secrets_only(system),
            offered,
            instructions=sum(estimate_blocks(m.content) for m in self._history.instructions),
            path=path,
            prompt=self._redactor.secrets_only(words),
            output=expected.format if expected else None,
            are_called=are_called,
        )
        draft = user_text(words)
        if not pictures:
            return draft
        return replace(draft, content=(*(draft.content if words else ()), *pictures))

    async def _reply(self, work: _Submission) -> ChatResponse:
        async with self._running(work) as running:
            outcome = await running
        return await self._response(work, outcome)

    @asynccontextmanager
    async def _running(self, work: _Submission) -> AsyncGenerator[asyncio.Task[Outcome]]:
        """Run a submission in a task of its own, and take what was done into the history.

        The task ends before the context does.
        """
        run, turn, outcome = work.run, work.turn, None
        telemetry = telemetry_of_program(os.environ)
        if telemetry is None:
            coroutine = run.run(work.prompt)
        else:
            model, name = self._calls.model(turn.settings.model), run.ctx.run.agent_id
            coroutine = telemetry.run(run, work.prompt, model, name=name)
        running = asyncio.create_task(coroutine)
        running.add_done_callback(lambda _: run.stream.close())  # however it ended
        try:
            yield running
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError, Exception):  # its awaiter has the error
                outcome = await finish_uncancelled(running)
            self._added = self._history.record(
                run.ctx.journal.path,
                work.start,
                begun=turn.begun,
                is_complete=outcome is not None and outcome.status is RunStatus.COMPLETED,
                metadata=self._redactor.payload_secrets_only(dict(turn.metadata)),
            )
            stop_if_cancelled()

    async def _response(self, work: _Submission, outcome: Outcome) -> ChatResponse:
        """Return the reply of a submission that has ended.

        Raises:
            LlmError: there is none.
        """
        response = work.turn.response
        if outcome.status is not RunStatus.COMPLETED or response is None:
            raise await self._failure(outcome, work.turn)
        message = self._added[-1]
        toolbox = work.run.ctx.toolbox
        has_value = toolbox.expected is not None or toolbox.checks is not None
        is_typed = has_value and not message.tool_calls
        return replace(response, message=message, output=outcome.output if is_typed else None)

    def _convert_event(self, event: RuntimeEvent, path: Sequence[Node]) -> Iterable[StreamEvent]:
        """Convert an event of the run to events of the toolkit; most have none."""
        payload, call_id = event.payload, event.tool_call_id or ""
        match event.event_type:
            case EventType.MODEL_TEXT_DELTA:
                yield AssistantTextDelta(payload["text"])
            case EventType.MODEL_COMPLETED:
                yield CostUpdate(Usage.model_validate(payload["usage"]), self.usage().total())
            case EventType.TOOL_STARTED:
                calls = (call for node in reversed(path) for call in node.calls)
                call = next(call for call in calls if call.tool_call_id == call_id)
                yield ToolExecutionStarted(call_id, call.name, call.arguments)
            case EventType.TOOL_COMPLETED | EventType.TOOL_FAILED | EventType.TOOL_DENIED:
                node = next(node for node in reversed(path) if node.node_id == event.node_id)
                name = payload["tool_name"]
                facts = node.results[0].model_dump(exclude={"type"})
                yield ToolExecutionCompleted(
                    call_id, name, ToolResult.model_validate({**facts, "tool_name": name})
                )
            case _:
                pass

    def _meter(self, run: RunIdentity, budget: Budget | SharedBudget | None) -> Meter | None:
        payer = None if self._caller is None else self._caller.meter
        if self._budgets is None and (budget is not None or payer is not None):
            self.with_budget(BudgetConfig())
        return self._budgets.of_run(run, budget, payer=payer) if self._budgets else None

    async def _failure(self, outcome: Outcome, turn: CallTurn) -> LlmError:
        if turn.failure is not None:
            if isinstance(turn.failure, ContextLengthError):
                await self._calls.report(turn.failure, turn)
            return turn.failure
        if outcome.error is None:
            return StreamBrokenError("the turn ended without a reply")
        config = self._context.config
        if config is not None and outcome.error.code is ErrorCode.PROMPT_TOO_LONG:
            return ContextLengthError(
                f"the request does not fit the {config.max_tokens} tokens of the budget"
                " (CompactConfig.max_tokens) even without its history; raise it, or send less"
            )
        return llm_error_from_payload(outcome.error)

    def _learn(self) -> None:
        """Take note of the provider's secrets, which may have changed."""
        if secrets := self._calls.secrets():
            self.with_secrets(secrets)

    async def _summarise(self, prompt: str, *, max_tokens: int) -> str:  # noqa: ARG002
        instructions = load_asset("agent.default_compact_agent").text
        messages = [ChatMessage.system_text(instructions), ChatMessage.user_text(prompt)]
        plain = replace(self._settings, tool_choice=None, stop=())
        return (await self._calls.ask(messages, settings=plain)).text


def _check_tools(tools: object) -> None:
    """Check the tools of a submission.

    Raises:
        ArgumentError: they are neither definitions nor something that can run tools.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        if isinstance(tools, type) or not callable(getattr(tools, "for_run", None)):
            message = "tools must be a list of ToolDefinition or a ToolRegistry, not"
            raise ArgumentError(f"{message} {kind_of(tools)}", "tools")
        return
    for at, each in enumerate(cast("Sequence[object]", tools)):
        if not isinstance(each, ToolDefinition):
            message = f"tools[{at}] must be a ToolDefinition, not {kind_of(each)}; a ToolRegistry"
            raise ArgumentError(f"{message} holds tools that the cycle calls itself", "tools")


def _check_names(disabled: Iterable[str], known: Collection[str]) -> None:
    """Check `disabled_tools`, except for tools of MCP servers, which may be unavailable.

    Raises:
        ArgumentError: there is no tool of such a name.
    """
    for name in disabled:
        if name not in known and not name.startswith("mcp."):
            reason = f"names {name}, and there is no such tool{nearest(name, known)}"
            raise malformed_option("disabled_tools", reason)


def _contributed(options: RunOptions[Any], offered: Iterable[ToolDefinition]) -> list[Tool]:
    """Return the tools that extensions contribute.

    Raises:
        AgentCoreError: one is taken, or a toolset.
    """
    given = options.tools or ()
    if any(isinstance(each, Toolset) for each in given):
        reason = "contribute a toolset; here an agent gets its toolsets as tools=[...]"
        raise malformed_option("extensions", reason)
    contributed = [tool for tool in given if isinstance(tool, Tool)]
    taken = {each.name for each in offered}
    for tool in contributed:
        if tool.name in taken:
            raise malformed_option("extensions", f"contribute {tool.name}, which is taken")
        taken.add(tool.name)
    return contributed


def _prompt_blocks(prompt: object) -> Sequence[TextBlock | ImageBlock]:
    """Return the blocks of a user's message.

    Raises:
        ArgumentError: it is something else, or says nothing.
    """
    if isinstance(prompt, str):
        prompt = [TextBlock(text=prompt)]
    listed = isinstance(prompt, Sequence)
    blocks = list(cast("Sequence[object]", prompt)) if listed else [prompt]
    for block in blocks:
        if not isinstance(block, TextBlock | ImageBlock):
            within = "holds" if listed else "is"
            reason = f"a message is a text, or a list of TextBlock and ImageBlock; it {within}"
            message = f"{reason} {kind_of(block)}"
            if isinstance(block, Mapping):
                message += "; earlier messages are given as history=[…]"
            raise ArgumentError(message, "message")
    given = cast("list[TextBlock | ImageBlock]", blocks)
    if not any(isinstance(each, ImageBlock) or each.text.strip() for each in given):
        raise ArgumentError("the message is empty; say what to do", "message")
    return given
