"""Writes down what a run is and how it ends: state, profile, prompt, transcript, manifests."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kgent.config.loader import dump_config
from kgent.errors import ErrorInfo
from kgent.governance.policy import verdict_on
from kgent.governance.results import DeliverableCheck
from kgent.records.events import EventType
from kgent.records.files import put_file
from kgent.records.transcript import quoted
from kgent.runtime.context import RunContext
from kgent.runtime.state import RUN_FILE, RunState, RunStatus, now
from kgent.sandbox.manifest import (
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
)

_CLOSING = {
    RunStatus.COMPLETED: (EventType.RUN_COMPLETED, "info"),
    RunStatus.INCOMPLETE: (EventType.RUN_INCOMPLETE, "warning"),
    RunStatus.FAILED: (EventType.RUN_FAILED, "error"),
}


class Scribe:
    """The only writer of `run.json`, and of everything that is written as a whole."""

    def __init__(self, context: RunContext, *, config_path: Path) -> None:
        self._context = context
        self._root = context.sandbox_root
        self._config_path = config_path
        self._manifest = new_sandbox_manifest(self._root)
        config, created = context.config, now()
        facts: dict[str, Any] = {
            **context.core_fields(),
            "config_path": str(config_path),
            "engine": config.runtime.engine,
            "model": {"provider": config.model.provider, "name": config.model.name},
            "created_at": created,
            "updated_at": created,
        }
        self._state = RunState.model_validate(facts)

    def open(self, prompt: str) -> None:
        """Write down what is known before anything is done.

        Raises:
            OSError: it could not be written.
        """
        context, config = self._context, self._context.config
        self.emit(EventType.RUN_CREATED, f"run {context.run_id}", context.core_fields())
        self._save()
        clean = context.records.redactor.text
        written = dump_config(config, origin=self._config_path, clean=clean)
        put_file(self._root / CONFIG_FILE, written)
        put_file(self._root / PROMPT_FILE, clean(prompt))
        write_sandbox_manifest(self._root, self._manifest)
        write_artifact_manifest(self._root, config.deliverables.required, context.records.tools)
        self.emit(
            EventType.CONFIG_LOADED,
            f"profile {config.profile.id}",
            {"path": str(self._config_path), "fingerprint": context.config_fingerprint},
        )
        facts = {**context.core_fields(), "engine": config.runtime.engine, "created": now()}
        self.tell("Run", "\n".join(f"- {name}: {value}" for name, value in facts.items()))
        self.tell("Prompt", quoted(prompt))
        self.tell("Profile", f"- id: {config.profile.id}")
        self.tell("Profile", quoted(config.profile.role))

    def add_readable(self, folders: Sequence[Path]) -> None:
        """Note in the manifest that these folders may be read as well."""
        readonly = [*self._manifest.readonly, *map(str, folders)]
        self._manifest = self._manifest.model_copy(update={"readonly": readonly})
        write_sandbox_manifest(self._root, self._manifest)

    def keep_system_prompt(self, text: str) -> None:
        """Write the prompt that the engine gets."""
        put_file(self._root / SYSTEM_PROMPT_FILE, self._context.records.redactor.text(text))
        self.emit(
            EventType.PROMPT_RENDERED,
            f"system prompt of {len(text)} characters",
            {"characters": len(text), "file": SYSTEM_PROMPT_FILE},
        )

    def start(self, tools: Sequence[str]) -> None:
        """The engine begins."""
        self._enter(RunStatus.RUNNING, started_at=now())
        self.emit(EventType.RUN_STARTED, "the engine begins", {"tools": list(tools)})

    def close(
        self,
        status: RunStatus,
        check: DeliverableCheck,
        *,
        error: ErrorInfo | None,
        text: str | None,
        usage: Mapping[str, int],
    ) -> None:
        """Write down the end. Nothing is recorded after it: the manifests vouch for the records.

        Raises:
            OSError: it could not be written.
        """
        self._end_transcript(status, check, error, text)
        event, severity = _CLOSING[status]
        data: dict[str, Any] = {}
        if error is not None:
            data["error"] = error.model_dump(mode="json", exclude_none=True)
            data["governance"] = verdict_on(error).value
        self.emit(event, str(error) if error else "the run is complete", data, severity=severity)
        records = self._context.records
        records.close()
        required = self._context.config.deliverables.required
        self._enter(
            status,
            failure_reason=str(error) if error else None,
            error=error,
            ended_at=now(),
            usage=dict(usage),
            found=check.found,
            missing=list(check.missing),
            manifests={
                ARTIFACT_MANIFEST: write_artifact_manifest(self._root, required, records.tools),
                SANDBOX_MANIFEST: write_sandbox_manifest(self._root, self._manifest, final=True),
            },
        )

    def emit(
        self,
        event: EventType,
        summary: str,
        data: Mapping[str, Any],
        *,
        actor: str = "runtime",
        severity: str = "info",
    ) -> None:
        """Record an event of the run itself."""
        self._context.records.events.emit(event, summary, data, actor=actor, severity=severity)

    def tell(self, section: str, text: str) -> None:
        """Add to the transcript."""
        self._context.records.transcript.append_section(section, text)

    def note_error(self, error: ErrorInfo) -> None:
        """Record an error of the run itself."""
        self._context.records.errors.record(error)
        data = error.model_dump(mode="json", exclude_none=True)
        self.emit(EventType.ERROR, str(error), data, severity="error")

    def _end_transcript(
        self, status: RunStatus, check: DeliverableCheck, error: ErrorInfo | None, text: str | None
    ) -> None:
        records = self._context.records
        for call in records.tools.calls:
            said = call.result_summary or ""
            line = f"- `{call.tool_name}` {call.status}, {call.duration_ms} ms: {said}"
            self.tell("Tool Calls", line)
        for one in self._context.config.deliverables.required:
            self.tell("Deliverables", f"- {one.path}: {check.missing.get(one.path, 'present')}")
        self.tell("Result", f"Status: {status}")
        if error is not None:
            self.tell("Result", quoted(str(error)))
        if text:
            self.tell("Result", quoted(text))
        records.transcript.finalize(self._context)

    def _enter(self, status: RunStatus, **changes: Any) -> None:
        self._state = self._state.changed(status=status, **changes)
        self._save()

    def _save(self) -> None:
        clean = self._context.records.redactor.payload(self._state.model_dump(mode="json"))
        put_file(self._root / RUN_FILE, json.dumps(clean, indent=2, ensure_ascii=False) + "\n")
