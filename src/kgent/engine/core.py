"""The default engine: the loop of agent_core, without a home, a database or hooks."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from agent_core.budgets.call_budget import CallBudget
from agent_core.budgets.meter import Budgets, MeteredAdapter
from agent_core.budgets.prices import Prices
from agent_core.config.models import BudgetConfig, ContextConfig, ModelConfig
from agent_core.context.composer import Composer
from agent_core.context.system_prompt import system_block
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.extensions import Extension, ExtensionContext, Place
from agent_core.loop import Outcome, RunLimits
from agent_core.loop.assembly import StandaloneRun, build_run
from agent_core.loop.context import OnEnd
from agent_core.providers.base import ProviderAdapter, ProviderRegistry
from agent_core.providers.retrying import with_retries
from agent_core.storage.budgets import UnstoredBudgets
from agent_core.telemetry.opening import open_telemetry
from agent_core.types import (
    Budget,
    EndReason,
    EventType,
    Node,
    Role,
    RunIdentity,
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
    interrupted,
    out_of_steps,
    run_limited,
)
from kgent.engine.conversation import CONVERSATION, messages_of
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
        model = core_model(config)
        registry = ProviderRegistry()
        if model.provider not in registry.keys and model.provider in self._providers.keys:
            return
        adapter = _create_adapter(registry, model)
        await adapter.close()

    async def run_async(self, request: AgentRunRequest) -> AgentResult:
        """Run the model and the tools it calls until it ends without calls.

        Raises:
            KgentError: category `config`; the profile names no model, or one that cannot be used.
        """
        config = request.context.config
        model = core_model(config)
        api_key(config)  # a missing key is reported before anything is sent
        ends: list[Outcome] = []
        work = partial(self._run_loop, request, model, on_end=ends.append)
        result = await run_limited(request, work)
        return _with_usage(result, ends[-1]) if ends else result

    async def _run_loop(
        self, request: AgentRunRequest, model: ModelConfig, *, on_end: OnEnd
    ) -> AgentResult:
        context = request.context
        provider = _create_adapter(self._providers, model)
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
        run = build_run(
            provider=MeteredAdapter(
                with_retries(provider, model),
                model,
                prices=Prices(),
                estimate=budgets.estimate,
                meter=meter,
            ),
            composer=Composer(model=model, context=ContextConfig(), static=[system]),
            tools=[adapt_tool(tool, context) for tool in request.tools],
            run=identity,
            extensions=[_EndHook(request.ask_further), *([CallBudget(meter)] if meter else [])],
            redactor=context.records.redactor,
            limits=RunLimits(max_turns=request.max_steps or RunLimits().max_turns),
            project_dir=context.sandbox_root,
        )
        watching = asyncio.create_task(_watch(request, run))
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
            context.records.archive.add_lines(CONVERSATION, *messages_of(run.ctx.journal.path))
            await provider.close()
        return _build_result(outcome, request, run.ctx.journal.path)


def _create_adapter(registry: ProviderRegistry, model: ModelConfig) -> ProviderAdapter:
    try:
        return registry.create(model)
    except AgentCoreError as error:
        raise config_error(f"model: {error.message}", error.code) from error


class _EndHook(Extension):
    """Lets the run end when nothing more is asked of the model."""

    place = Place.HOOKS

    def __init__(self, ask_further: Callable[[], Awaitable[str | None]]) -> None:
        self._ask_further = ask_further

    async def before_stop(
        self,
        context: ExtensionContext,  # noqa: ARG002
        answer: str,  # noqa: ARG002
    ) -> str | None:
        return await self._ask_further()


async def _watch(request: AgentRunRequest, run: StandaloneRun) -> None:
    """Report the run's text, and record calls that reached no tool."""
    from agent_core.types.event_details import (  # noqa: PLC0415 - for readers of events only
        Delta,
        ToolDenied,
        ToolFailed,
    )

    async for event in run.stream.read():
        details, call_id = event.details, event.tool_call_id
        if kind := _REPORTED.get(event.event_type):
            request.report(kind, details.text if isinstance(details, Delta) else "")
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
    counts = spent.model_dump(exclude={"raw_usage", "cost", "is_estimated"})
    usage = {name: count for name, count in counts.items() if count}
    figures = {"cost": spent.cost, "usage_is_estimated": spent.is_estimated}
    return result.model_copy(update={"usage": {**usage, "model_calls": outcome.turns}, **figures})


def _last_answer(path: Sequence[Node]) -> str | None:
    """Return the last text that the model ended with before it was asked to continue."""
    for node in reversed(path):
        if node.role is Role.ASSISTANT and not node.calls and not node.is_partial:
            return node.text or None
    return None


def _end_of(outcome: Outcome, request: AgentRunRequest) -> AgentResult:
    text = outcome.text or None
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
