"""The default engine: the loop of agent_core, without a home, a database or hooks."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from agent_core.config.models import ContextConfig, ModelConfig
from agent_core.context.composer import Composer
from agent_core.context.system_prompt import system_block
from agent_core.context.tokens import estimate_blocks
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.events import EventStream, Journal
from agent_core.loop import Outcome, RunContext as LoopContext, RunLimits, run_agent
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.registry import ProviderRegistry
from agent_core.redaction.journal import JournalRedactor
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.tools.limits import ResultLimiter
from agent_core.tools.registry import Toolbox
from agent_core.types import (
    AgentType,
    EndReason,
    EventType,
    RunIdentity,
    RunOpening,
    RuntimeEvent,
    new_id,
    user_text,
)
from kgent.config.models import KgentConfig
from kgent.engine.base import AgentResult, AgentRunRequest, EngineEventKind, EngineStatus
from kgent.engine.core_parts import NullCollaborators, core_tool
from kgent.engine.outcome import (
    api_key,
    conclude,
    failed,
    interrupted,
    model_secrets,
    out_of_steps,
    required,
)
from kgent.errors import ErrorCategory, ErrorInfo, KgentError
from kgent.runtime.loops import in_own_loop
from kgent.tools.registry import record_unheard_call

CONVERSATION = "conversation.jsonl"
_RESULT_BYTES = 262_144  # every tool of kgent bounds its own results well below this
_SHOWN = {
    EventType.MODEL_STARTED: EngineEventKind.STEP,
    EventType.MODEL_TEXT_DELTA: EngineEventKind.TEXT,
    EventType.MODEL_REASONING_DELTA: EngineEventKind.REASONING,
}
_UNHEARD = {EventType.TOOL_FAILED, EventType.TOOL_DENIED}


class CoreAgentEngine:
    """Runs agent_core's loop over a history that lives as long as the run.

    Args:
        providers: which providers there are; the built-in ones by default.
    """

    def __init__(self, providers: ProviderRegistry | None = None) -> None:
        self._providers = providers or ProviderRegistry()

    def secrets(self, config: KgentConfig) -> Mapping[str, str]:
        """The model's key."""
        return model_secrets(config)

    def run(self, request: AgentRunRequest) -> AgentResult:
        """Ask the model, run the tools it calls, until it has nothing left to call.

        Raises:
            KgentError: category `config`; the profile names no model, or one that cannot be used.
        """
        model = core_model(request.context.config)
        api_key(request.context.config)  # a missing one is found before anything is sent
        work = partial(self._converse, request, model)
        return conclude(request, lambda: in_own_loop(work, cancellation=request.cancellation_token))

    async def _converse(self, request: AgentRunRequest, model: ModelConfig) -> AgentResult:
        provider = self._adapter(model)
        conversation = _Conversation(request)
        try:
            return _result(await conversation.hold(model, provider), request)
        finally:
            conversation.keep()
            await provider.close()

    def _adapter(self, model: ModelConfig) -> ProviderAdapter:
        try:
            return self._providers.create(model)
        except AgentCoreError as error:
            raise KgentError(
                error.code, f"model: {error.message}", category=ErrorCategory.CONFIG
            ) from error


def core_model(config: KgentConfig) -> ModelConfig:
    """The profile's model as agent_core knows models.

    Raises:
        KgentError: category `config`; provider or name is missing.
    """
    model = config.model
    return ModelConfig(
        provider=required(model.provider, "model.provider", config),
        name=required(model.name, "model.name", config),
        base_url=model.base_url,
        api_key_env=model.api_key_env,
        path=str(config.place(model.path)) if model.path else None,
        context_window=model.context_window,
        max_output_tokens=model.max_output_tokens,
        temperature=model.temperature,
    )


class _Conversation:
    """One run of the loop: its journal, its history in memory, and who listens."""

    def __init__(self, request: AgentRunRequest) -> None:
        context = request.context
        self._request = request
        self._store = SqliteSessionStore.in_memory()
        self._stream = EventStream()
        self._heard: set[str] = set()
        self._run = RunIdentity(
            session_id=context.session_id, agent_id=new_id("agent"), run_id=context.run_id
        )
        self._journal = Journal(
            self._run,
            store=self._store,
            stream=self._stream,
            redactor=JournalRedactor(context.records.redactor),
            estimate=estimate_blocks,
        )

    async def hold(self, model: ModelConfig, provider: ProviderAdapter) -> Outcome:
        """Run the loop to its end."""
        await self._open()
        self._journal.begin()
        listening = asyncio.create_task(self._listen())
        try:
            prompt = user_text(self._request.prompt)
            return await run_agent(self._context(model, provider), prompt)
        finally:
            await asyncio.wait([listening], timeout=1)
            listening.cancel()

    def keep(self) -> None:
        """Keep what was said, message by message, for whoever reads the run folder."""
        fields = {"role", "content", "created_at"}
        said = [node.model_dump(mode="json", include=fields) for node in self._journal.path]
        self._request.context.records.archive.add_lines(CONVERSATION, *said)

    async def _open(self) -> None:
        await self._store.open_run(
            RunOpening(
                session_id=self._run.session_id,
                cwd=str(self._request.context.sandbox_root),
                owner="kgent",
                agent_type=AgentType.MAIN,
                agent_id=self._run.agent_id,
                run_id=self._run.run_id,
            ),
            is_dead=lambda owner, until: False,  # noqa: ARG005 - nobody else has this store
        )

    def _context(self, model: ModelConfig, provider: ProviderAdapter) -> LoopContext:
        request, alone = self._request, NullCollaborators()
        system = system_block("kgent.profile", "profile", request.system_prompt)
        return LoopContext(
            run=self._run,
            journal=self._journal,
            provider=provider,
            composer=Composer(model=model, context=ContextConfig(), static=[system]),
            history=alone,
            compactor=alone,
            toolbox=Toolbox(
                core_tool(tool, request.context, heard=self._heard) for tool in request.tools
            ),
            guard=alone,
            hooks=alone,
            results=ResultLimiter(None, limit_bytes=_RESULT_BYTES),
            project_dir=request.context.sandbox_root,
            limits=RunLimits(max_turns=request.max_steps or RunLimits().max_turns),
        )

    async def _listen(self) -> None:
        async for event in self._stream.read():
            if kind := _SHOWN.get(event.event_type):
                self._request.tell(kind, str(event.payload.get("text", "")))
            elif event.event_type in _UNHEARD and event.tool_call_id not in self._heard:
                self._write_down(event)

    def _write_down(self, event: RuntimeEvent) -> None:
        payload: Mapping[str, Any] = event.payload
        call_id = event.tool_call_id or event.event_id
        record_unheard_call(
            self._request.context,
            call_id=call_id,
            args=self._arguments(call_id),
            name=str(payload.get("tool_name", "?")),
            code=str(payload.get("code", ErrorCode.TOOL_NOT_AVAILABLE)),
            message=str(payload.get("message", "the call could not be made")),
        )

    def _arguments(self, call_id: str) -> object:
        """What the model sent with a call; text where it was no JSON object."""
        calls = (call for node in reversed(self._journal.path) for call in node.calls)
        call = next((call for call in calls if call.tool_call_id == call_id), None)
        if call is None:
            return {}
        return call.metadata.get("invalid_arguments", call.arguments)


def _result(outcome: Outcome, request: AgentRunRequest) -> AgentResult:
    usage = {
        **{
            name: count
            for name, count in outcome.usage.model_dump(exclude={"raw_usage"}).items()
            if count
        },
        "model_calls": outcome.turns,
    }
    text = outcome.text or None
    if outcome.end_reason is EndReason.COMPLETED:
        return AgentResult(status=EngineStatus.COMPLETED, final_text=text, usage=usage)
    if outcome.end_reason is EndReason.MAX_TURNS:
        return out_of_steps(request.max_steps, text=text, usage=usage)
    if reason := request.cancellation_token.reason:
        return interrupted(reason, text=text, usage=usage)
    error = outcome.error
    if error is None:
        message = f"the loop ended: {outcome.end_reason}"
        info = ErrorInfo(code="internal_error", message=message, category=ErrorCategory.ENGINE)
        return failed(info, usage=usage)
    info = ErrorInfo(
        code=error.code.value,
        message=error.message,
        category=ErrorCategory.ENGINE,
        retryable=error.retryable,
        details=error.details or None,
    )
    return failed(info, usage=usage)
