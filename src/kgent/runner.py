"""One run, from a profile and a prompt to a finished run folder. Read `run` first."""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from agcore.memory import MemoryStore
from agent_core.errors import ErrorCode
from agent_core.process import Launcher
from agent_core.redaction import Redactor
from kgent.cancellation import Cancellation
from kgent.config import KgentConfig
from kgent.deliverables import DeliverableCheck, check_deliverables, final_status
from kgent.engine.base import (
    AgentEngine,
    AgentRunRequest,
    EngineEvent,
    EngineEventKind,
    EngineStatus,
    EngineWithSecrets,
    EventCallback,
)
from kgent.engine.core import CoreAgentEngine
from kgent.engine.mock import MockAgentEngine
from kgent.errors import ErrorCategory, ErrorInfo, KgentError, error_info
from kgent.memory import SQLITE, MemoryClient, NoMemory, open_memory, sqlite_name
from kgent.profile import (
    apply_options,
    fingerprint_config,
    load_config,
    render_sandbox_rules,
    render_system_prompt,
)
from kgent.records import RunEnvironment, RunEventType, RunRecords, quoted
from kgent.run_folder import create_run_folder, resolve_run_folder
from kgent.skills import SkillRegistry, SkillSummary
from kgent.state import RunFolderStatus, RunIds, RunOptions, RunResult
from kgent.tools import build_tools
from kgent.writer import RunEnd, RunFolderWriter

logger = logging.getLogger(__name__)

RECALLED = 5
_MEMORY_CHARS = 500


def run(
    config_path: Path | str,
    prompt: str,
    options: RunOptions | None = None,
    *,
    engine: AgentEngine | None = None,
    memory: MemoryClient | MemoryStore | None = None,
    cancellation: Cancellation | None = None,
    event_callback: EventCallback | None = None,
) -> RunResult:
    """Run a profile once. Blocks until the run is over; never raises for what went wrong in it.

    Args:
        config_path: the profile.
        prompt: what the user wants.
        options: what the caller says instead of the profile.
        engine: instead of the one the profile names.
        memory: a memory for this run: a `MemoryClient`, or a `MemoryStore` of the toolkit.
        cancellation: asks the run to stop; it ends `incomplete`.
        event_callback: gets what the engine does while it works.

    Returns:
        How it went. A run that was refused before it had a folder has no `sandbox_root`.
    """
    chosen, ids = options or RunOptions(), RunIds.new()
    with ExitStack() as stack:
        try:
            ids = RunIds.choose(chosen)
            config = apply_options(load_config(config_path), chosen)
            _check_run(config, prompt, memory)
            client = stack.enter_context(_open_memory(config, memory))
            chosen_engine = engine or select_engine(config)
            root, secrets = resolve_run_folder(config, ids), dict[str, str]()
            if isinstance(chosen_engine, EngineWithSecrets):
                secrets.update(chosen_engine.secrets(config))
            env = RunEnvironment(
                ids=ids,
                config_fingerprint=fingerprint_config(config),
                sandbox_root=root,
                config=config,
                records=RunRecords(root, ids, redactor=Redactor(secrets)),
                launcher=stack.enter_context(closing(Launcher())),
            )
            create_run_folder(env)
        except KgentError as error:
            status = RunFolderStatus.FAILED
            return RunResult(**asdict(ids), status=status, error=error_info(error))
        executor = RunExecutor(
            env,
            prompt=prompt,
            engine=chosen_engine,
            memory=client,
            config_path=Path(config_path).expanduser().absolute(),
            cancellation=cancellation or Cancellation(),
            event_callback=event_callback,
        )
        return executor.run()


def select_engine(config: KgentConfig) -> AgentEngine:
    """The engine of `runtime.engine`; nothing is connected, and no secret is read.

    Raises:
        KgentError: category `config`; the engine needs an extra that is not installed.
    """
    match config.runtime.engine:
        case "core":
            return CoreAgentEngine()
        case "mock":
            return MockAgentEngine()
        case "pydantic_ai":
            if find_spec("pydantic_ai") is None:
                message = (
                    "engine pydantic_ai needs an extra: pip install 'soong-agent[pydantic-ai]'"
                )
                raise KgentError(ErrorCode.CONFIG_ERROR, message, category=ErrorCategory.CONFIG)
            from kgent.engine.pydantic_ai import PydanticAIAgentEngine  # noqa: PLC0415 - an extra

            return PydanticAIAgentEngine()


def _check_run(config: KgentConfig, prompt: str, memory: MemoryClient | MemoryStore | None) -> None:
    """Refuse what the profile alone cannot tell.

    Raises:
        KgentError: category `config`.
    """
    wants = config.memory
    is_external = wants.enabled and wants.write_mode == "external"
    problem = None
    if not prompt.strip():
        problem = "the prompt is empty"
    elif is_external and memory is None and sqlite_name(wants.provider) is None:
        problem = (
            "memory.write_mode external needs a memory: one given in code, or"
            f" memory.provider {SQLITE}<file>"
        )
    if problem is not None:
        raise KgentError(ErrorCode.CONFIG_ERROR, problem, category=ErrorCategory.CONFIG)


def _open_memory(
    config: KgentConfig, given: MemoryClient | MemoryStore | None
) -> AbstractContextManager[MemoryClient | None]:
    if not config.memory.enabled:
        return open_memory(None, None)
    name = sqlite_name(config.memory.provider)
    return open_memory(config.place(name) if name else None, given)


class RedactingCallback:
    """Passes events on to a caller. A tail that may be the beginning of a secret waits.

    A caller that breaks gets no more events; that is no reason for a run to fail.
    """

    def __init__(self, callback: EventCallback, redactor: Redactor) -> None:
        self._callback: EventCallback | None = callback
        self._streams = {
            kind: redactor.stream() for kind in (EngineEventKind.TEXT, EngineEventKind.REASONING)
        }

    def __call__(self, event: EngineEvent) -> None:
        """Pass an event on."""
        stream = self._streams.get(event.kind)
        if stream is None:
            self.finish()
            self._pass_on(event)
        elif shown := stream.feed(event.text):
            self._pass_on(EngineEvent(kind=event.kind, text=shown))

    def finish(self) -> None:
        """Pass on what waits: the text is complete."""
        for kind, stream in self._streams.items():
            if rest := stream.finish():
                self._pass_on(EngineEvent(kind=kind, text=rest))

    def _pass_on(self, event: EngineEvent) -> None:
        if self._callback is None:
            return
        try:
            self._callback(event)
        except Exception as error:  # noqa: BLE001 - the caller's code, or a closed pipe
            logger.warning("the event callback broke and hears no more: %s", type(error).__name__)
            self._callback = None


@dataclass(frozen=True, slots=True)
class _EngineOutcome:
    """What came of the part of a run that can go wrong."""

    text: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict[str, int])
    failure: ErrorInfo | None = None
    interruption: ErrorInfo | None = None


class RunExecutor:
    """One run in one folder, which is there already."""

    def __init__(
        self,
        env: RunEnvironment,
        *,
        prompt: str,
        engine: AgentEngine,
        memory: MemoryClient | None,
        config_path: Path,
        cancellation: Cancellation,
        event_callback: EventCallback | None,
    ) -> None:
        self._env = env
        self._records = env.records
        self._redactor = env.records.redactor
        self._prompt = prompt
        self._engine = engine
        self._memory = memory
        self._cancellation = cancellation
        self._callback = (
            RedactingCallback(event_callback, self._redactor) if event_callback else None
        )
        self._writer = RunFolderWriter(env, config_path=config_path)
        self._skills = SkillRegistry.of(env.config)

    def run(self) -> RunResult:
        """Do everything, and leave a folder whose `run.json` says how it ended."""
        try:
            outcome = self._run_engine()
        except KeyboardInterrupt:
            outcome = self._interrupt(_EngineOutcome())
        except Exception as error:  # noqa: BLE001 - the run ends with it
            outcome = _EngineOutcome(failure=self._error_info(error, ErrorCategory.INTERNAL))
        try:
            return self._finish(outcome)
        except KeyboardInterrupt:  # while the records were being closed: close them all the same
            return self._finish(self._interrupt(outcome))
        finally:
            self._records.close()

    def _run_engine(self) -> _EngineOutcome:
        writer, config = self._writer, self._env.config
        writer.open(self._prompt)
        index = self._index_skills()
        memories = self._recall()
        prompt = render_system_prompt(config, index, memories, render_sandbox_rules(config))
        writer.keep_system_prompt(prompt)
        memory, token = self._memory or NoMemory(), self._cancellation
        tools = build_tools(self._env, self._skills, memory, cancellation=token)
        writer.start([tool.name for tool in tools])
        request = AgentRunRequest(
            env=self._env,
            prompt=self._prompt,
            system_prompt=prompt,
            tools=tools,
            timeout_seconds=config.runtime.timeout_seconds,
            max_steps=config.runtime.max_steps,
            stream=config.runtime.stream,
            cancellation_token=token,
            event_callback=self._callback,
        )
        result = self._engine.run(request)
        if self._callback is not None:
            self._callback.finish()
        text = self._redactor.text(result.final_text) if result.final_text else None
        if result.status is EngineStatus.COMPLETED:
            return _EngineOutcome(text, result.usage)
        error = result.error or ErrorInfo(
            code=ErrorCode.INTERNAL_ERROR.value,
            message=f"the engine says {result.status} and not why",
            category=ErrorCategory.ENGINE,
        )
        error = error.redacted(self._redactor)
        if result.status is EngineStatus.INTERRUPTED:
            return _EngineOutcome(text, result.usage, interruption=error)
        return _EngineOutcome(text, result.usage, failure=error)

    def _index_skills(self) -> list[SkillSummary]:
        index = self._skills.discover()
        listed = [{"id": skill.id, "name": skill.name} for skill in index]
        summary = f"skills found: {len(index)}"
        self._records.emit(RunEventType.SKILL_INDEXED, summary, {"skills": listed})
        lines = [f"- `{skill.id}`: {skill.description}" for skill in index] or ["(no skills)"]
        self._records.append_section("Skills", "\n".join(lines))
        self._writer.add_readable(self._skills.folders)
        return index

    def _recall(self) -> str | None:
        """What is remembered about the prompt. A memory that fails costs the run nothing else."""
        records, memory = self._records, self._memory
        if memory is None:
            records.append_section("Memory", "(no memory is connected)")
            return None
        scopes = self._env.config.memory.scopes or [""]
        records.emit(RunEventType.MEMORY_RECALL_STARTED, "recall begins", {"scopes": scopes})
        try:
            found = [
                item
                for scope in scopes
                for item in memory.recall_memory(self._prompt, scope, RECALLED)
            ]
        except Exception as error:  # noqa: BLE001 - the memory's own code
            self._writer.note_error(self._error_info(error, ErrorCategory.MEMORY))
            records.append_section("Memory", "(the memory could not be read)")
            return None
        summary = f"memories found: {len(found)}"
        records.emit(RunEventType.MEMORY_RECALL_COMPLETED, summary, {"count": len(found)})
        best = sorted(found, key=lambda item: -(item.score or 0))[:RECALLED]
        text = "\n".join(f"- {' '.join(item.content.split())[:_MEMORY_CHARS]}" for item in best)
        records.append_section("Memory", quoted(text) if text else "(nothing fits)")
        return text or None

    def _interrupt(self, outcome: _EngineOutcome) -> _EngineOutcome:
        self._cancellation.cancel("the run was interrupted")
        return replace(outcome, interruption=self._cancellation.reason)

    def _finish(self, outcome: _EngineOutcome) -> RunResult:
        failures = [outcome.failure] if outcome.failure is not None else []
        check: DeliverableCheck | None = None
        try:
            if (changed := self._writer.find_changed_records()) is not None:
                failures.append(changed)
            for failure in failures:
                self._writer.note_error(failure)
            check = self._check_deliverables()
        except Exception as error:  # noqa: BLE001 - the run ends all the same
            failures.append(self._error_info(error, ErrorCategory.INTERNAL))
        status, error = final_status(
            failure=failures[0] if failures else None,
            interruption=outcome.interruption,
            check=check,
        )
        end = self._writer.close(RunEnd(status, check, error, outcome.text, outcome.usage))
        return RunResult(
            **asdict(self._env.ids),
            status=end.status,
            sandbox_root=self._env.sandbox_root,
            final_text=end.text,
            error=end.error,
            found=check.found if check else [],
            missing=list(check.missing) if check else [],
            seal=self._writer.seal(),
        )

    def _check_deliverables(self) -> DeliverableCheck:
        required = self._env.config.deliverables.required
        emit, actor = self._records.emit, "governance"
        summary = f"required deliverables: {len(required)}"
        data: dict[str, object] = {"required": [one.path for one in required]}
        emit(RunEventType.DELIVERABLE_CHECK_STARTED, summary, data, actor=actor)
        check = check_deliverables(self._env.sandbox_root, required)
        for path, reason in check.missing.items():
            data = {"path": path, "reason": reason}
            summary, event = f"{path}: {reason}", RunEventType.DELIVERABLE_MISSING
            emit(event, summary, data, actor=actor, severity="warning")
        data = {"status": check.status.value, "found": check.found, "missing": check.missing}
        emit(RunEventType.DELIVERABLE_CHECK_COMPLETED, check.summary, data, actor=actor)
        return check

    def _error_info(self, error: BaseException, category: ErrorCategory) -> ErrorInfo:
        return error_info(error, category).redacted(self._redactor)
