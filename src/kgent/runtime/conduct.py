"""Conducts a run inside its folder: prepare, let the engine work, check, and close the books."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_core.errors import AgentCoreError
from kgent.config.loader import dump_config
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
from kgent.governance.policy import final_status, verdict_on
from kgent.governance.results import DeliverableCheck
from kgent.memory.client import NoMemory
from kgent.memory.contract import MemoryClient
from kgent.records.events import EventType
from kgent.records.files import put_file
from kgent.records.transcript import quoted
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.context import RunContext
from kgent.runtime.options import RunResult
from kgent.runtime.state import RUN_FILE, RunState, RunStatus, now
from kgent.sandbox.manifest import (
    SandboxManifest,
    new_sandbox_manifest,
    write_artifact_manifest,
    write_sandbox_manifest,
)
from kgent.sandbox.workspace import (
    ARTIFACT_MANIFEST,
    CONFIG_FILE,
    PROMPT_FILE,
    SANDBOX_MANIFEST,
    SYSTEM_PROMPT_FILE,
    sandbox_rules,
)
from kgent.skills.models import SkillSummary
from kgent.skills.registry import SkillRegistry
from kgent.tools.registry import build_toolsets

RECALLED = 5
_MEMORY_CHARS = 500
_CLOSING = {
    RunStatus.COMPLETED: (EventType.RUN_COMPLETED, "info"),
    RunStatus.INCOMPLETE: (EventType.RUN_INCOMPLETE, "warning"),
    RunStatus.FAILED: (EventType.RUN_FAILED, "error"),
}


@dataclass(frozen=True, slots=True)
class _Work:
    """What came of the part of a run that can go wrong."""

    text: str | None = None
    usage: Mapping[str, int] | None = None
    failure: ErrorInfo | None = None
    interruption: ErrorInfo | None = None


class Conductor:
    """One run in one folder, which is there already."""

    def __init__(  # noqa: PLR0913 - made in one place
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
        self._event_callback = event_callback
        self._config_path = config_path
        config = context.config
        self._skills = SkillRegistry(
            [config.place(path) for path in config.skills.paths], config.skills.enabled
        )
        created = now()
        facts: dict[str, Any] = {
            **context.core_fields(),
            "config_path": str(config_path),
            "engine": config.runtime.engine,
            "model": {"provider": config.model.provider, "name": config.model.name},
            "created_at": created,
            "updated_at": created,
        }
        self._state = RunState.model_validate(facts)
        self._manifest: SandboxManifest = new_sandbox_manifest(self._root)

    @property
    def _root(self) -> Path:
        return self._context.sandbox_root

    def run(self) -> RunResult:
        """Do everything, and leave a complete folder whatever happens."""
        try:
            work = self._work()
        except KeyboardInterrupt:
            self._cancellation.cancel("the run was interrupted")
            work = _Work(interruption=self._cancellation.reason)
        except AgentCoreError as error:
            work = _Work(failure=error_info(error))
        except Exception as error:  # noqa: BLE001 - a run's fate, decided here
            work = _Work(failure=error_info(error))
        try:
            return self._finish(work)
        except (OSError, AgentCoreError) as error:  # the disk is full, or the folder is gone
            info = error_info(error, ErrorCategory.SANDBOX)
            return self._result(RunStatus.FAILED, work, error=info)
        finally:
            self._context.records.close()

    # --- the run, in the order in which it happens ----------------------------------------------

    def _work(self) -> _Work:
        self._open()
        index = self._index_skills()
        memories = self._recall()
        system_prompt = self._render(index, memories)
        tools = build_toolsets(
            self._context, self._skills, self._memory, cancellation=self._cancellation
        )
        self._enter(RunStatus.RUNNING, started_at=now())
        runtime = self._context.config.runtime
        self._emit(EventType.RUN_STARTED, "the engine begins", {"tools": [t.name for t in tools]})
        result = self._engine.run(
            AgentRunRequest(
                context=self._context,
                prompt=self._prompt,
                system_prompt=system_prompt,
                tools=tools,
                timeout_seconds=runtime.timeout_seconds,
                max_steps=runtime.max_steps,
                stream=runtime.stream,
                cancellation_token=self._cancellation,
                event_callback=self._event_callback,
            )
        )
        return _outcome(result)

    def _open(self) -> None:
        context, config = self._context, self._context.config
        self._emit(EventType.RUN_CREATED, f"run {context.run_id}", context.core_fields())
        self._save()
        clean = context.records.redactor.text
        written = dump_config(config, origin=self._config_path, clean=clean)
        put_file(self._root / CONFIG_FILE, written)
        put_file(self._root / PROMPT_FILE, clean(self._prompt))
        write_sandbox_manifest(self._root, self._manifest)
        write_artifact_manifest(self._root, config.deliverables.required, context.records.tools)
        self._emit(
            EventType.CONFIG_LOADED,
            f"profile {config.profile.id}",
            {"path": str(self._config_path), "fingerprint": context.config_fingerprint},
        )
        transcript = context.records.transcript
        facts = {**context.core_fields(), "engine": config.runtime.engine, "created": now()}
        transcript.append_section("Run", "\n".join(f"- {k}: {v}" for k, v in facts.items()))
        transcript.append_section("Prompt", quoted(self._prompt))
        transcript.append_section("Profile", f"- id: {config.profile.id}")
        transcript.append_section("Profile", quoted(config.profile.role))

    def _index_skills(self) -> list[SkillSummary]:
        index = self._skills.discover()
        listed = [{"id": skill.id, "name": skill.name} for skill in index]
        self._emit(EventType.SKILL_INDEXED, f"{len(index)} skills", {"skills": listed})
        lines = [f"- `{skill.id}`: {skill.description}" for skill in index] or ["(no skills)"]
        self._context.records.transcript.append_section("Skills", "\n".join(lines))
        self._manifest = self._manifest.model_copy(
            update={"readonly": [*self._manifest.readonly, *(str(f) for f in self._skills.folders)]}
        )
        write_sandbox_manifest(self._root, self._manifest)
        return index

    def _recall(self) -> str | None:
        """What is remembered about the prompt. A memory that fails costs the run nothing else."""
        transcript = self._context.records.transcript
        if not self._has_memory:
            transcript.append_section("Memory", "(no memory is connected)")
            return None
        scopes = self._context.config.memory.scopes or [""]
        self._emit(EventType.MEMORY_RECALL_STARTED, "recall begins", {"scopes": scopes})
        try:
            found = [
                item
                for scope in scopes
                for item in self._memory.recall_memory(self._prompt, scope, RECALLED)
            ]
        except Exception as error:  # noqa: BLE001 - somebody else's memory
            self._note_error(error_info(error, ErrorCategory.MEMORY))
            transcript.append_section("Memory", "(the memory could not be read)")
            return None
        self._emit(
            EventType.MEMORY_RECALL_COMPLETED, f"{len(found)} memories", {"count": len(found)}
        )
        lines = [f"- {' '.join(item.content.split())[:_MEMORY_CHARS]}" for item in found[:RECALLED]]
        text = "\n".join(lines)
        transcript.append_section("Memory", quoted(text) if text else "(nothing fits)")
        return text or None

    def _render(self, index: list[SkillSummary], memories: str | None) -> str:
        rules = sandbox_rules(self._context.config)
        prompt = render_system_prompt(self._context.config, index, memories, rules)
        clean = self._context.records.redactor.text(prompt)
        put_file(self._root / SYSTEM_PROMPT_FILE, clean)
        self._emit(
            EventType.PROMPT_RENDERED,
            f"system prompt of {len(prompt)} characters",
            {"characters": len(prompt), "file": SYSTEM_PROMPT_FILE},
        )
        return prompt

    # --- the end ----------------------------------------------------------------------------------

    def _finish(self, work: _Work) -> RunResult:
        if work.failure is not None:
            self._note_error(work.failure)
        check = self._check_deliverables()
        status, error = final_status(
            failure=work.failure, interruption=work.interruption, check=check
        )
        self._tell_transcript(work, check, status, error)
        event, severity = _CLOSING[status]
        data: dict[str, Any] = {}
        if error is not None:
            data["error"] = error.model_dump(mode="json", exclude_none=True)
            data["governance"] = verdict_on(error).value
        self._emit(event, str(error) if error else "the run is complete", data, severity=severity)
        self._close_books(work, check, status, error)
        return self._result(status, work, error=error, check=check)

    def _check_deliverables(self) -> DeliverableCheck:
        required = self._context.config.deliverables.required
        self._emit(
            EventType.DELIVERABLE_CHECK_STARTED,
            f"{len(required)} required deliverables",
            {"required": [one.path for one in required]},
            actor="governance",
        )
        check = check_deliverables(self._root, required)
        for path, reason in check.missing.items():
            self._emit(
                EventType.DELIVERABLE_MISSING,
                f"{path}: {reason}",
                {"path": path, "reason": reason},
                actor="governance",
                severity="warning",
            )
        self._emit(
            EventType.DELIVERABLE_CHECK_COMPLETED,
            check.summary,
            {"status": check.status.value, "found": check.found, "missing": check.missing},
            actor="governance",
        )
        return check

    def _tell_transcript(
        self, work: _Work, check: DeliverableCheck, status: RunStatus, error: ErrorInfo | None
    ) -> None:
        records = self._context.records
        for call in records.tools.calls:
            said = call.result_summary or ""
            line = f"- `{call.tool_name}` {call.status}, {call.duration_ms} ms: {said}"
            records.transcript.append_section("Tool Calls", line)
        for one in self._context.config.deliverables.required:
            line = f"- {one.path}: {check.missing.get(one.path, 'present')}"
            records.transcript.append_section("Deliverables", line)
        records.transcript.append_section("Result", f"Status: {status}")
        if error is not None:
            records.transcript.append_section("Result", quoted(str(error)))
        if work.text:
            records.transcript.append_section("Result", quoted(work.text))
        records.transcript.finalize(self._context)

    def _close_books(
        self, work: _Work, check: DeliverableCheck, status: RunStatus, error: ErrorInfo | None
    ) -> None:
        """Nothing is recorded after this: the manifests vouch for what the records say."""
        self._context.records.close()
        required = self._context.config.deliverables.required
        tools = self._context.records.tools
        self._enter(
            status,
            failure_reason=str(error) if error else None,
            error=error,
            ended_at=now(),
            usage=dict(work.usage or {}),
            found=check.found,
            missing=list(check.missing),
            manifests={
                ARTIFACT_MANIFEST: write_artifact_manifest(self._root, required, tools),
                SANDBOX_MANIFEST: write_sandbox_manifest(self._root, self._manifest, final=True),
            },
        )

    def _result(
        self,
        status: RunStatus,
        work: _Work,
        *,
        error: ErrorInfo | None,
        check: DeliverableCheck | None = None,
    ) -> RunResult:
        context = self._context
        return RunResult(
            session_id=context.session_id,
            task_id=context.task_id,
            run_id=context.run_id,
            status=status,
            sandbox_root=self._root,
            final_text=work.text,
            error=error,
            found=check.found if check else [],
            missing=list(check.missing) if check else [],
        )

    # --- writing down -----------------------------------------------------------------------------

    def _enter(self, status: RunStatus, **changes: Any) -> None:
        self._state = self._state.changed(status=status, **changes)
        self._save()

    def _save(self) -> None:
        clean = self._context.records.redactor.payload(self._state.model_dump(mode="json"))
        put_file(self._root / RUN_FILE, json.dumps(clean, indent=2, ensure_ascii=False) + "\n")

    def _emit(
        self,
        event: EventType,
        summary: str,
        data: Mapping[str, Any],
        *,
        actor: str = "runtime",
        severity: str = "info",
    ) -> None:
        self._context.records.events.emit(event, summary, data, actor=actor, severity=severity)

    def _note_error(self, error: ErrorInfo) -> None:
        self._context.records.errors.record(error)
        data = error.model_dump(mode="json", exclude_none=True)
        self._emit(EventType.ERROR, str(error), data, severity="error")


def _outcome(result: AgentResult) -> _Work:
    error = result.error
    match result.status:
        case EngineStatus.COMPLETED:
            return _Work(result.final_text, result.usage)
        case EngineStatus.INTERRUPTED:
            reason = error or ErrorInfo(
                code="cancelled", message="the run was stopped", category=ErrorCategory.ENGINE
            )
            return _Work(result.final_text, result.usage, interruption=reason)
        case EngineStatus.FAILED:
            failure = error or ErrorInfo(
                code="internal_error", message="the engine failed", category=ErrorCategory.ENGINE
            )
            return _Work(result.final_text, result.usage, failure=failure)
