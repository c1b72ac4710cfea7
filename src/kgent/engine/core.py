"""The default engine: the loop of agent_core, without a home, a database or hooks."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from agent_core.budgets.meter import Budgets, CallBudget, MeteredAdapter
from agent_core.budgets.prices import Prices
from agent_core.config.models import BudgetConfig, ContextConfig, ModelConfig
from agent_core.context.composer import Composer, SystemBlocks
from agent_core.context.system_prompt import system_block
from agent_core.errors import AgentCoreError, ErrorCode, StorageError
from agent_core.events import Journal
from agent_core.extensions import Extension, ExtensionContext, Rank
from agent_core.loop import HistorySource, Outcome, ResumePoint, RunLimits
from agent_core.loop.assembly import StandaloneRun, UnstoredHistory, build_run
from agent_core.loop.context import OnEnd
from agent_core.providers.base import ProviderAdapter, ProviderRegistry
from agent_core.providers.fallback import FallbackProvider
from agent_core.providers.retrying import with_retries
from agent_core.storage.budgets import UnstoredBudgets
from agent_core.telemetry.opening import open_telemetry
from agent_core.types import (
    Batch,
    Budget,
    EndReason,
    ErrorPayload,
    EventDraft,
    EventType,
    Node,
    Position,
    Role,
    RunIdentity,
    Usage,
    new_id,
    user_text,
)
from kgent.config.models import KgentConfig
from kgent.engine.base import (
    AgentResult,
    AgentRunRequest,
    AsyncAgentEngine,
    EngineEventKind,
    EngineStatus,
    api_key,
    core_model,
    each_model,
    interrupted,
    out_of_steps,
    parked_result,
    record_fallback,
    run_limited,
)
from kgent.engine.conversation import calls_to_make, messages_of, nodes_of
from kgent.errors import config_error, engine_error
from kgent.tools.calls import record_rejected_call
from kgent.tools.core_adapter import adapt_tool

_REPORTED = {
    EventType.MODEL_STARTED: EngineEventKind.STEP,
    EventType.MODEL_TEXT_DELTA: EngineEventKind.TEXT,
    EventType.MODEL_REASONING_DELTA: EngineEventKind.REASONING,
}


class CoreAgentEngine(AsyncAgentEngine):
    """Runs agent_core's loop over a history that exists only as long as the run.

    Args:
        providers: the available providers; the built-in ones by default.
    """

    def __init__(self, providers: ProviderRegistry | None = None) -> None:
        self._providers = providers or ProviderRegistry()

    async def check(self, config: KgentConfig) -> None:
        """Refuse a model that cannot be used; the check is skipped for a provider given in code.

        Raises:
            KgentError: category `config`; the profile names no model, or one that cannot be used.
        """
        registry = ProviderRegistry()
        for model in map(core_model, each_model(config)):
            if model.provider in registry.keys or model.provider not in self._providers.keys:
                await _create_adapter(registry, model).close()

    async def run_async(self, request: AgentRunRequest) -> AgentResult:
        """Run the model and the tools it calls until it ends without calls.

        Raises:
            KgentError: category `config`; the profile names no model, or one that cannot be used.
        """
        config = request.context.config
        models = [core_model(one) for one in each_model(config)]
        for one in each_model(config):
            api_key(one)  # a missing key is reported before anything is sent
        ends: list[Outcome] = []
        work = partial(self._run_loop, request, models, on_end=ends.append)
        result = await run_limited(request, work)
        return _with_usage(result, ends[-1]) if ends else result

    async def _run_loop(
        self, request: AgentRunRequest, models: Sequence[ModelConfig], *, on_end: OnEnd
    ) -> AgentResult:
        context = request.context
        adapters = [_create_adapter(self._providers, one) for one in models]
        if request.continues:
            _leave_out_played(adapters[0], request)
        model, answered_by = models[0], list[str]()
        system = system_block("kgent.profile", "profile", request.system_prompt)
        identity = RunIdentity(
            session_id=context.session_id, agent_id=new_id("agent"), run_id=context.run_id
        )
        limits = context.config.runtime.budget
        policy = BudgetConfig(on_unknown_price=limits.on_unknown_price)
        budgets = Budgets(UnstoredBudgets(), policy, scale=lambda _: 1.0)
        meter = budgets.of_run(
            identity,
            Budget.model_validate(limits.model_dump(exclude={"on_unknown_price", "wall_s"})),
        )
        chain: list[tuple[ModelConfig, ProviderAdapter]] = []
        for one, adapter in zip(models, adapters, strict=True):
            metered = MeteredAdapter(
                with_retries(adapter, one),
                one,
                prices=Prices(),
                estimate=budgets.estimate,
                meter=meter,
            )
            chain.append((one, metered))
        composer = Composer(model, ContextConfig(), SystemBlocks([system]))
        fallbacks = FallbackProvider(chain, composer.use, _hands_over)
        run = build_run(
            provider=fallbacks if chain[1:] else chain[0][1],
            composer=composer,
            tools=[adapt_tool(tool, context) for tool in request.tools],
            path=nodes_of(request.history, identity),
            run=identity,
            store=_Archive(request),
            history=_Earlier(request),
            extensions=[_EndHook(request.ask_further), *([CallBudget(meter)] if meter else [])],
            redactor=context.records.redactor,
            limits=RunLimits(max_turns=request.max_steps or RunLimits().max_turns),
            project_dir=context.sandbox_root,
        )
        watching = asyncio.create_task(_watch(request, run, answered_by))
        prompt = user_text(request.prompt)
        telemetry = open_telemetry(None, os.environ)
        try:
            if telemetry is None:
                outcome = await run.run(prompt, on_end=on_end)
            else:
                context.launcher.more_env = telemetry.environment
                name = context.profile_id
                outcome = await telemetry.run(run, prompt, model, name=name, on_end=on_end)
        finally:
            if telemetry is not None:
                await telemetry.close()
            await asyncio.wait([watching], timeout=1)
            watching.cancel()
            context.records.conversation.finish()
            for adapter in adapters:
                await adapter.close()
        result = _build_result(outcome, request, run.ctx.journal.path)
        return result.model_copy(update={"answered_by": answered_by[-1] if answered_by else None})


def _create_adapter(registry: ProviderRegistry, model: ModelConfig) -> ProviderAdapter:
    try:
        return registry.create(model)
    except AgentCoreError as error:
        raise config_error(f"model: {error.message}", error.code) from error


def _leave_out_played(adapter: ProviderAdapter, request: AgentRunRequest) -> None:
    """Let a script continue after the replies that the conversation has."""
    from agent_core.providers.scripted import ScriptedProvider  # noqa: PLC0415 - few runs have one

    if isinstance(adapter, ScriptedProvider):
        own = request.history[request.prompt_at :]
        adapter.skip(sum(one["role"] == "assistant" and not one.get("cut_off") for one in own))


class _Archive(UnstoredHistory):
    """Adds the messages of a run to its conversation as they arrive, and reports its usage."""

    def __init__(self, request: AgentRunRequest) -> None:
        super().__init__()
        self._request = request
        self._spent = Usage()
        self._replies = 0

    def append(self, batch: Batch) -> asyncio.Future[Position]:
        """Store the messages of the batch, and answer at once with its position."""
        stored = super().append(batch)
        try:
            if batch.nodes:
                self._request.context.records.conversation.add(*messages_of(batch.nodes))
        except OSError as error:
            stored = asyncio.get_running_loop().create_future()
            reason = f"the conversation cannot be written: {error.strerror or error}"
            stored.set_exception(StorageError(ErrorCode.STORAGE_ERROR, reason))
        self._report_usage(event.draft for event in batch.events)
        return stored

    def _report_usage(self, events: Iterable[EventDraft]) -> None:
        before = self._replies
        for event in events:
            if event.event_type in {EventType.MODEL_COMPLETED, EventType.MODEL_FAILED}:
                usage = Usage.model_validate(event.payload.get("usage") or {})
                self._spent = self._spent.plus(usage)
                self._replies += event.event_type is EventType.MODEL_COMPLETED
        if self._replies > before:
            usage, spent = _counts_of(self._spent, self._replies), self._spent
            self._request.on_spent(usage, spent.cost, is_estimated=spent.is_estimated)


class _Earlier(HistorySource):
    """The conversation of earlier attempts, which is on the path already."""

    def __init__(self, request: AgentRunRequest) -> None:
        self._request = request

    async def resume(self, journal: Journal) -> ResumePoint | None:
        """Return where a conversation continues without a new message; None if it gets one."""
        if not self._request.continues:
            return None
        calls = calls_to_make(self._request.history)
        return ResumePoint(0, Usage(), calls, nodes=journal.path[-1:])


class _EndHook(Extension):
    """Lets the run end when nothing more is asked of the model."""

    rank = Rank.HOOKS

    def __init__(self, ask_further: Callable[[], Awaitable[str | None]]) -> None:
        self._ask_further = ask_further

    async def before_stop(
        self,
        context: ExtensionContext,  # noqa: ARG002
        answer: str,  # noqa: ARG002
    ) -> str | None:
        return await self._ask_further()


def _hands_over(error: ErrorPayload) -> bool:
    """Return whether another model may do better after this failure."""
    own = {ErrorCode.BUDGET_EXCEEDED, ErrorCode.CANCELLED, ErrorCode.PROMPT_TOO_LONG}
    return error.code not in own  # the loop itself shortens a prompt that is too long


async def _watch(request: AgentRunRequest, run: StandaloneRun, answered_by: list[str]) -> None:
    """Report the run's text, and record calls that reached no tool, and fallbacks."""
    from agent_core.types.event_details import (  # noqa: PLC0415 - for readers of events only
        Delta,
        ErrorDetails,
        ModelRetried,
        ToolDenied,
        ToolFailed,
    )

    async for event in run.stream.read():
        details, call_id = event.details, event.tool_call_id
        if kind := _REPORTED.get(event.event_type):
            request.report(kind, details.text if isinstance(details, Delta) else "")
            continue
        if isinstance(details, ModelRetried) and details.next_model:
            answered_by.append(details.next_model)
            failure = details.error
            code, text = ErrorCode.PROVIDER_ERROR.value, "the model has failed"
            if isinstance(failure, ErrorDetails):
                code, text = failure.code or code, failure.message or text
            record_fallback(request.context, engine_error(code, text), details.next_model)
            continue
        if not isinstance(details, ToolFailed | ToolDenied) or not call_id:
            continue
        if any(call.call_id == call_id for call in request.context.records.tools.calls):
            continue
        calls = (call for node in reversed(run.ctx.journal.path) for call in node.calls)
        sent = next((call for call in calls if call.tool_call_id == call_id), None)
        await record_rejected_call(
            request.context,
            call_id=call_id,
            args=sent.metadata.get("invalid_arguments", sent.arguments) if sent else {},
            name=details.tool_name or "?",
            code=details.code or ErrorCode.TOOL_NOT_AVAILABLE,
            message=details.message or "the call could not be made",
        )


def _build_result(outcome: Outcome, request: AgentRunRequest, path: Sequence[Node]) -> AgentResult:
    result = _end_of(outcome, request)
    if result.status is EngineStatus.FAILED:  # text next to a call is not an answer
        result = result.model_copy(update={"final_text": _last_answer(path)})
    return result


def _with_usage(result: AgentResult, outcome: Outcome) -> AgentResult:
    """Return the result with the usage of the run."""
    spent = outcome.usage
    figures = {"cost": spent.cost, "usage_is_estimated": spent.is_estimated}
    usage = _counts_of(spent, outcome.turns)
    return result.model_copy(update={"usage": usage, **figures})


def _counts_of(spent: Usage, calls: int) -> dict[str, int]:
    counts = spent.model_dump(exclude={"raw_usage", "cost", "is_estimated"})
    return {**{name: count for name, count in counts.items() if count}, "model_calls": calls}


def _last_answer(path: Sequence[Node]) -> str | None:
    """Return the last text that the model ended with before it was asked to continue."""
    for node in reversed(path):
        if node.role is Role.ASSISTANT and not node.calls and not node.is_partial:
            return node.text or None
    return None


def _end_of(outcome: Outcome, request: AgentRunRequest) -> AgentResult:
    text = outcome.text or None
    if outcome.end_reason is None:
        return parked_result(outcome.requests, text=text)
    if outcome.end_reason is EndReason.COMPLETED:
        return AgentResult(status=EngineStatus.COMPLETED, final_text=text)
    if outcome.end_reason is EndReason.MAX_TURNS:
        return out_of_steps(request.max_steps, text=text)
    if reason := request.cancellation_token.reason:
        return interrupted(reason, text=text)
    error = outcome.error
    info = engine_error(ErrorCode.INTERNAL_ERROR, f"the loop ended: {outcome.end_reason}")
    if error is not None:
        details, retryable = error.details or None, error.retryable
        info = engine_error(error.code, error.message, retryable=retryable, details=details)
    return AgentResult(status=EngineStatus.FAILED, error=info)
