"""Writes down what a run is and how it ends: state, profile, prompt, transcript, manifests."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgent.config.loader import dump_config
from kgent.errors import ErrorCategory, ErrorInfo, error_info
from kgent.governance.policy import verdict_on
from kgent.governance.results import DeliverableCheck
from kgent.records.events import EventType
from kgent.records.names import readable_name
from kgent.records.transcript import quoted
from kgent.runtime.context import RunContext
from kgent.runtime.state import (
    RUN_FILE,
    VOUCHER,
    RunState,
    RunStatus,
    content_of,
    now,
    seal_of,
    state_hash,
    state_text,
)
from kgent.sandbox.manifest import (
    new_sandbox_manifest,
    write_artifact_manifest,
    write_sandbox_manifest,
)
from kgent.sandbox.workspace import (
    ARTIFACT_MANIFEST,
    CONFIG_FILE,
    FILES,
    PROMPT_FILE,
    SANDBOX_MANIFEST,
    SYSTEM_PROMPT_FILE,
)

logger = logging.getLogger(__name__)

_CLOSING = {
    RunStatus.COMPLETED: (EventType.RUN_COMPLETED, "info"),
    RunStatus.INCOMPLETE: (EventType.RUN_INCOMPLETE, "warning"),
    RunStatus.FAILED: (EventType.RUN_FAILED, "error"),
}


@dataclass(frozen=True, slots=True)
class Closing:
    """How a run ended, for its records."""

    status: RunStatus
    check: DeliverableCheck | None
    error: ErrorInfo | None
    text: str | None
    usage: Mapping[str, int]


class RunFolderWriter:
    """The only writer of `run.json`, and of everything that is written as a whole."""

    def __init__(self, context: RunContext, *, config_path: Path) -> None:
        self._context = context
        self._files = context.records.files
        self._config_path = config_path
        self._manifest = new_sandbox_manifest(context.sandbox_root)
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
        self._files.expect_empty(name for name in FILES if name != RUN_FILE)
        context.records.hold()
        self.emit(EventType.RUN_CREATED, f"run {context.run_id}", context.core_fields())
        self._save()
        clean = context.records.redactor.text
        self._files.put(CONFIG_FILE, dump_config(config, origin=self._config_path, clean=clean))
        self._files.put(PROMPT_FILE, clean(prompt))
        write_sandbox_manifest(self._files, self._manifest)
        write_artifact_manifest(self._files, config.deliverables.required, context.records.tools)
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
        readonly = [*self._manifest.readonly, *(readable_name(str(one)) for one in folders)]
        self._manifest = self._manifest.model_copy(update={"readonly": readonly})
        write_sandbox_manifest(self._files, self._manifest)

    def keep_system_prompt(self, text: str) -> None:
        """Write the prompt that the engine gets."""
        self._files.put(SYSTEM_PROMPT_FILE, self._context.records.redactor.text(text))
        self.emit(
            EventType.PROMPT_RENDERED,
            f"system prompt of {len(text)} characters",
            {"characters": len(text), "file": SYSTEM_PROMPT_FILE},
        )

    def start(self, tools: Sequence[str]) -> None:
        """The engine begins."""
        self._state = self._state.changed(status=RunStatus.RUNNING, started_at=now())
        self._save()
        self.emit(EventType.RUN_STARTED, "the engine begins", {"tools": list(tools)})

    def find_changed_records(self) -> ErrorInfo | None:
        """The error of a run whose records were changed by something else; None if none was."""
        changed = self._files.find_changed()
        if not changed:
            return None
        listed = ", ".join(f"{name} ({problem})" for name, problem in sorted(changed.items()))
        return ErrorInfo(
            code="records_changed",
            message=f"something other than the run changed its records: {listed}",
            category=ErrorCategory.INTERNAL,
            details={"changed": changed},
        )

    def close(self, closing: Closing) -> Closing:
        """Write down the end, whatever breaks on the way. The last thing written is `run.json`.

        Returns:
            How the run ended: as it was given, or failed with the first error of writing it down.
        """
        closing = self._attempt(closing, lambda: self._end_transcript(closing))
        closing = self._attempt(closing, self._files.restore)
        state = self._ended(closing)
        vouched = self._attempt(closing, lambda: self._emit_end(closing, self._content(state)))
        records, manifests = self._context.records, dict[str, str]()

        def write_manifests() -> None:
            required = self._context.config.deliverables.required
            artifacts = write_artifact_manifest(self._files, required, records.tools)
            boundaries = write_sandbox_manifest(self._files, self._manifest, final=True)
            manifests[ARTIFACT_MANIFEST] = artifacts.sha256
            manifests[SANDBOX_MANIFEST] = boundaries.sha256

        last = self._attempt(vouched, write_manifests)
        if last is not closing:  # the closing event says otherwise: `verify` will report it
            state = self._ended(last)
        self._state = state.model_copy(update={"manifests": manifests})
        is_saved = False

        def save() -> None:
            nonlocal is_saved
            self._save()
            is_saved = True

        saved = self._attempt(last, save)
        if not is_saved:
            self._save_over(saved)
        records.close()
        return saved

    def seal(self) -> str | None:
        """SHA-256 over `run.json` and the manifests as they were written; None if they were not."""
        names = (RUN_FILE, ARTIFACT_MANIFEST, SANDBOX_MANIFEST)
        hashes = {name: record.sha256 for name in names if (record := self._files.record(name))}
        return seal_of(hashes) if self._state.manifests and len(hashes) == len(names) else None

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

    def _end_transcript(self, closing: Closing) -> None:
        records, missing = self._context.records, closing.check.missing if closing.check else {}
        for call in records.tools.calls:
            said = call.result_summary or ""
            line = f"- `{call.tool_name}` {call.status}, {call.duration_ms} ms: {said}"
            self.tell("Tool Calls", line)
        for one in self._context.config.deliverables.required:
            self.tell("Deliverables", f"- {one.path}: {missing.get(one.path, 'present')}")
        self.tell("Result", f"Status: {closing.status}")
        if closing.error is not None:
            self.tell("Result", quoted(str(closing.error)))
        if closing.text:
            self.tell("Result", quoted(closing.text))
        records.transcript.finalize(self._context)

    def _emit_end(self, closing: Closing, content: Mapping[str, Any]) -> None:
        event, severity = _CLOSING[closing.status]
        data: dict[str, Any] = {VOUCHER: state_hash(content)}
        if closing.error is not None:
            data["error"] = closing.error.model_dump(mode="json", exclude_none=True)
            data["governance"] = verdict_on(closing.error).value
        summary = str(closing.error) if closing.error else "the run is complete"
        self.emit(event, summary, data, severity=severity)

    def _ended(self, closing: Closing) -> RunState:
        return self._state.changed(
            status=closing.status,
            failure_reason=str(closing.error) if closing.error else None,
            error=closing.error,
            ended_at=now(),
            usage=dict(closing.usage),
            found=closing.check.found if closing.check else [],
            missing=list(closing.check.missing) if closing.check else [],
        )

    def _attempt(self, closing: Closing, step: Callable[[], object]) -> Closing:
        """Do one step of closing; a run whose records cannot be completed has failed."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the next steps are done all the same
            logger.warning("the run's records are not complete: %s", type(error).__name__)
            if closing.error is not None and closing.error.category is ErrorCategory.INTERNAL:
                return closing
            return self._broken(closing, error)
        return closing

    def _broken(self, closing: Closing, error: Exception) -> Closing:
        info = error_info(error, ErrorCategory.INTERNAL)
        message = f"the records of the run could not be completed: {info.message}"
        info = info.model_copy(update={"message": message, "category": ErrorCategory.INTERNAL})
        clean = self._context.records.redactor.payload(info.model_dump(mode="json"))
        failed = ErrorInfo.model_validate(clean)
        return Closing(RunStatus.FAILED, closing.check, failed, closing.text, closing.usage)

    def _save_over(self, closing: Closing) -> None:
        """Write a short `run.json` over the one that is there."""
        error = closing.error
        if error is not None:
            error = error.model_copy(update={"message": error.message[:200], "details": None})
        self._state = self._state.model_copy(
            update={
                "status": closing.status,
                "error": error,
                "failure_reason": str(error) if error else None,
                "found": [],
                "missing": [],
                "manifests": {},
            }
        )
        try:
            self._files.overwrite(RUN_FILE, self._text())
        except OSError as problem:
            logger.error("run.json could not be written: %s", problem)  # noqa: TRY400

    def _content(self, state: RunState) -> dict[str, Any]:
        return content_of(state, self._context.records.redactor)

    def _text(self) -> str:
        return state_text(self._content(self._state))

    def _save(self) -> None:
        self._files.put(RUN_FILE, self._text())
