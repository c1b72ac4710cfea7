"""Conducts a run inside its folder: prepare, let the engine work, check, and close the books."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent_core.errors import ErrorCode
from kgent.config.prompts import render_system_prompt
from kgent.engine.base import (
    AgentEngine,
    AgentResult,
    AgentRunRequest,
    EngineStatus,
    EventCallback,
)
from kgent.errors import ErrorCategory, ErrorInfo, error_info
from kgent.governance.deliverables import check_deliverables
from kgent.governance.policy import final_status
from kgent.governance.results import DeliverableCheck
from kgent.memory.client import NoMemory
from kgent.memory.contract import MemoryClient
from kgent.records.events import EventType
from kgent.records.transcript import quoted
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.context import RunContext
from kgent.runtime.listening import RedactingCallback
from kgent.runtime.options import RunResult
from kgent.runtime.scribe import Closing, RunFolderWriter
from kgent.sandbox.workspace import sandbox_rules
from kgent.skills.models import SkillSummary
from kgent.skills.registry import SkillRegistry
from kgent.tools.registry import build_toolsets

RECALLED = 5
_MEMORY_CHARS = 500


@dataclass(frozen=True, slots=True)
class _Work:
    """What came of the part of a run that can go wrong."""

    text: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict[str, int])
    failure: ErrorInfo | None = None
    interruption: ErrorInfo | None = None


class RunExecutor:
    """One run in one folder, which is there already."""

    def __init__(
        self,
        context: RunContext,
        *,
        prompt: str,
        engine: AgentEngine,
        memory: MemoryClient | None,
        config_path: Path,
        cancellation: Cancellation,
        event_callback: EventCallback | None,
    ) -> None:
        self._context = context
        self._prompt = prompt
        self._engine = engine
        self._memory = memory or NoMemory()
        self._has_memory = memory is not None
        self._cancellation = cancellation
        self._redactor = context.records.redactor
        self._listener = (
            RedactingCallback(event_callback, self._redactor) if event_callback else None
        )
        self._scribe = RunFolderWriter(context, config_path=config_path)
        config = context.config
        self._skills = SkillRegistry(
            [config.place(path) for path in config.skills.paths], config.skills.enabled
        )

    def run(self) -> RunResult:
        """Do everything, and leave a folder whose `run.json` says how it ended."""
        try:
            work = self._work()
        except KeyboardInterrupt:
            work = self._interrupted(_Work())
        except Exception as error:  # noqa: BLE001 - a run's fate, decided here
            work = _Work(failure=self._cleaned(error_info(error, ErrorCategory.INTERNAL)))
        try:
            return self._finish(work)
        except KeyboardInterrupt:  # while the books were being closed: close them all the same
            return self._finish(self._interrupted(work))
        finally:
            self._context.records.close()

    def _work(self) -> _Work:
        scribe = self._scribe
        scribe.open(self._prompt)
        index = self._index_skills()
        memories = self._recall()
        config = self._context.config
        prompt = render_system_prompt(config, index, memories, sandbox_rules(config))
        scribe.keep_system_prompt(prompt)
        tools = build_toolsets(
            self._context, self._skills, self._memory, cancellation=self._cancellation
        )
        scribe.start([tool.name for tool in tools])
        result = self._engine.run(
            AgentRunRequest(
                context=self._context,
                prompt=self._prompt,
                system_prompt=prompt,
                tools=tools,
                timeout_seconds=config.runtime.timeout_seconds,
                max_steps=config.runtime.max_steps,
                stream=config.runtime.stream,
                cancellation_token=self._cancellation,
                event_callback=self._listener,
            )
        )
        if self._listener is not None:
            self._listener.finish()
        return self._outcome(result)

    def _index_skills(self) -> list[SkillSummary]:
        index = self._skills.discover()
        listed = [{"id": skill.id, "name": skill.name} for skill in index]
        self._scribe.emit(
            EventType.SKILL_INDEXED, f"skills found: {len(index)}", {"skills": listed}
        )
        lines = [f"- `{skill.id}`: {skill.description}" for skill in index] or ["(no skills)"]
        self._scribe.tell("Skills", "\n".join(lines))
        self._scribe.add_readable(self._skills.folders)
        return index

    def _recall(self) -> str | None:
        """What is remembered about the prompt. A memory that fails costs the run nothing else."""
        scribe = self._scribe
        if not self._has_memory:
            scribe.tell("Memory", "(no memory is connected)")
            return None
        scopes = self._context.config.memory.scopes or [""]
        scribe.emit(EventType.MEMORY_RECALL_STARTED, "recall begins", {"scopes": scopes})
        try:
            found = [
                item
                for scope in scopes
                for item in self._memory.recall_memory(self._prompt, scope, RECALLED)
            ]
        except Exception as error:  # noqa: BLE001 - somebody else's memory
            scribe.note_error(self._cleaned(error_info(error, ErrorCategory.MEMORY)))
            scribe.tell("Memory", "(the memory could not be read)")
            return None
        summary = f"memories found: {len(found)}"
        scribe.emit(EventType.MEMORY_RECALL_COMPLETED, summary, {"count": len(found)})
        best = sorted(found, key=lambda item: -(item.score or 0))[:RECALLED]
        text = "\n".join(f"- {' '.join(item.content.split())[:_MEMORY_CHARS]}" for item in best)
        scribe.tell("Memory", quoted(text) if text else "(nothing fits)")
        return text or None

    def _outcome(self, result: AgentResult) -> _Work:
        text = self._redactor.text(result.final_text) if result.final_text else None
        if result.status is EngineStatus.COMPLETED:
            return _Work(text, result.usage)
        error = result.error or ErrorInfo(
            code=ErrorCode.INTERNAL_ERROR.value,
            message=f"the engine says {result.status} and not why",
            category=ErrorCategory.ENGINE,
        )
        if result.status is EngineStatus.INTERRUPTED:
            return _Work(text, result.usage, interruption=self._cleaned(error))
        return _Work(text, result.usage, failure=self._cleaned(error))

    def _interrupted(self, work: _Work) -> _Work:
        self._cancellation.cancel("the run was interrupted")
        return replace(work, interruption=self._cancellation.reason)

    def _finish(self, work: _Work) -> RunResult:
        failures = [work.failure] if work.failure is not None else []
        check: DeliverableCheck | None = None
        try:
            if (changed := self._scribe.find_changed_records()) is not None:
                failures.append(changed)
            for failure in failures:
                self._scribe.note_error(failure)
            check = self._check_deliverables()
        except Exception as error:  # noqa: BLE001 - the run ends all the same
            failures.append(self._cleaned(error_info(error, ErrorCategory.INTERNAL)))
        status, error = final_status(
            failure=failures[0] if failures else None, interruption=work.interruption, check=check
        )
        closed = self._scribe.close(Closing(status, check, error, work.text, work.usage))
        return self._result(closed)

    def _check_deliverables(self) -> DeliverableCheck:
        required = self._context.config.deliverables.required
        emit, actor = self._scribe.emit, "governance"
        emit(
            EventType.DELIVERABLE_CHECK_STARTED,
            f"required deliverables: {len(required)}",
            {"required": [one.path for one in required]},
            actor=actor,
        )
        check = check_deliverables(self._context.sandbox_root, required)
        for path, reason in check.missing.items():
            emit(
                EventType.DELIVERABLE_MISSING,
                f"{path}: {reason}",
                {"path": path, "reason": reason},
                actor=actor,
                severity="warning",
            )
        emit(
            EventType.DELIVERABLE_CHECK_COMPLETED,
            check.summary,
            {"status": check.status.value, "found": check.found, "missing": check.missing},
            actor=actor,
        )
        return check

    def _result(self, closing: Closing) -> RunResult:
        context, check = self._context, closing.check
        return RunResult(
            session_id=context.session_id,
            task_id=context.task_id,
            run_id=context.run_id,
            status=closing.status,
            sandbox_root=context.sandbox_root,
            final_text=closing.text,
            error=closing.error,
            found=check.found if check else [],
            missing=list(check.missing) if check else [],
            seal=self._scribe.seal(),
        )

    def _cleaned(self, error: ErrorInfo) -> ErrorInfo:
        return ErrorInfo.model_validate(self._redactor.payload(error.model_dump(mode="json")))
