"""Writes what a run is and how it ends: state, profile, prompt, transcript, manifests."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kgent.deliverables import DeliverableCheck, governance_status
from kgent.errors import ErrorCategory, ErrorInfo, error_info
from kgent.profile import dump_config
from kgent.records import RunEnvironment, RunEventType, quoted
from kgent.run_files import readable_name
from kgent.run_folder import (
    ARTIFACT_MANIFEST,
    CONFIG_FILE,
    FILES,
    PROMPT_FILE,
    SANDBOX_MANIFEST,
    SYSTEM_PROMPT_FILE,
    SandboxManifest,
    write_artifact_manifest,
)
from kgent.state import (
    RUN_FILE,
    RUN_FILE_HASH,
    RunFolderStatus,
    RunState,
    compute_seal,
    now,
    state_hash,
    state_text,
)

logger = logging.getLogger(__name__)

_CLOSING_EVENTS = {
    RunFolderStatus.COMPLETED: (RunEventType.RUN_COMPLETED, "info"),
    RunFolderStatus.INCOMPLETE: (RunEventType.RUN_INCOMPLETE, "warning"),
    RunFolderStatus.FAILED: (RunEventType.RUN_FAILED, "error"),
}


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended, for its records."""

    status: RunFolderStatus
    check: DeliverableCheck | None
    error: ErrorInfo | None
    text: str | None
    usage: Mapping[str, int]


class RunFolderWriter:
    """The only writer of `run.json`, and of everything that is written as a whole."""

    def __init__(self, env: RunEnvironment, *, config_path: Path) -> None:
        self._env = env
        self._records = env.records
        self._config_path = config_path
        self._manifest = SandboxManifest.of(env.sandbox_root)
        config, created = env.config, now()
        self._state = RunState.model_validate(
            {
                **env.core_fields(),
                "config_path": str(config_path),
                "engine": config.runtime.engine,
                "model": {"provider": config.model.provider, "name": config.model.name},
                "created_at": created,
                "updated_at": created,
            }
        )

    def open(self, prompt: str) -> None:
        """Write what is known before anything is done.

        Raises:
            OSError: it could not be written.
        """
        env, records, files = self._env, self._records, self._records.files
        config, fields = env.config, env.core_fields()
        files.expect_empty(name for name in FILES if name != RUN_FILE)
        records.hold()
        records.emit(RunEventType.RUN_CREATED, f"run {env.ids.run_id}", fields)
        self._save()
        clean = records.redactor.text
        files.put(CONFIG_FILE, dump_config(config, origin=self._config_path, clean=clean))
        files.put(PROMPT_FILE, clean(prompt))
        self._manifest.write(files)
        write_artifact_manifest(records, config.deliverables.required)
        data = {"path": str(self._config_path), "fingerprint": env.config_fingerprint}
        records.emit(RunEventType.CONFIG_LOADED, f"profile {config.profile.id}", data)
        facts = {**fields, "engine": config.runtime.engine, "created": now()}
        listed = "\n".join(f"- {name}: {value}" for name, value in facts.items())
        records.append_section("Run", listed)
        records.append_section("Prompt", quoted(prompt))
        records.append_section("Profile", f"- id: {config.profile.id}")
        records.append_section("Profile", quoted(config.profile.role))

    def add_readable(self, folders: Sequence[Path]) -> None:
        """Note in the manifest that these folders may be read as well."""
        readonly = [*self._manifest.readonly, *(readable_name(str(one)) for one in folders)]
        self._manifest = self._manifest.model_copy(update={"readonly": readonly})
        self._manifest.write(self._records.files)

    def keep_system_prompt(self, text: str) -> None:
        """Write the prompt that the engine gets."""
        self._records.files.put(SYSTEM_PROMPT_FILE, self._records.redactor.text(text))
        data = {"characters": len(text), "file": SYSTEM_PROMPT_FILE}
        summary = f"system prompt of {len(text)} characters"
        self._records.emit(RunEventType.PROMPT_RENDERED, summary, data)

    def start(self, tools: Sequence[str]) -> None:
        """Write that the engine begins."""
        self._state = self._state.changed(status=RunFolderStatus.RUNNING, started_at=now())
        self._save()
        data = {"tools": list(tools)}
        self._records.emit(RunEventType.RUN_STARTED, "the engine begins", data)

    def note_error(self, error: ErrorInfo) -> None:
        """Record an error of the run itself."""
        self._records.record_error(error)
        data = error.model_dump(mode="json", exclude_none=True)
        self._records.emit(RunEventType.ERROR, str(error), data, severity="error")

    def find_changed_records(self) -> ErrorInfo | None:
        """The error of a run whose records were changed by something else; None if none was."""
        changed = self._records.files.find_changed()
        if not changed:
            return None
        listed = ", ".join(f"{name} ({problem})" for name, problem in sorted(changed.items()))
        return ErrorInfo(
            code="records_changed",
            message=f"something other than the run changed its records: {listed}",
            category=ErrorCategory.INTERNAL,
            details={"changed": changed},
        )

    def close(self, end: RunEnd) -> RunEnd:
        """Write the end, whatever breaks on the way. The last thing written is `run.json`.

        Returns:
            How the run ended: as it was given, or failed with the first error of writing it down.
        """
        records, manifests = self._records, dict[str, str]()
        end = self._attempt(end, lambda: self._end_transcript(end))
        end = self._attempt(end, records.files.restore)
        state = self._ended(end)
        last = self._attempt(end, lambda: self._emit_end(end, state))

        def write_manifests() -> None:
            required = self._env.config.deliverables.required
            produced = write_artifact_manifest(records, required)
            sandbox = self._manifest.write(records.files, final=True)
            manifests.update({ARTIFACT_MANIFEST: produced.sha256, SANDBOX_MANIFEST: sandbox.sha256})

        last = self._attempt(last, write_manifests)
        if last is not end:  # the closing event says otherwise: `verify` will report it
            state = self._ended(last)
        self._state = state.model_copy(update={"manifests": manifests})
        has_saved = list[bool]()
        saved = self._attempt(last, lambda: has_saved.append(self._save()))
        if not has_saved:
            self._save_over(saved)
        records.close()
        return saved

    def seal(self) -> str | None:
        """SHA-256 over `run.json` and the manifests as they were written; None if they were not."""
        names, files = (RUN_FILE, ARTIFACT_MANIFEST, SANDBOX_MANIFEST), self._records.files
        hashes = {name: record.sha256 for name in names if (record := files.record(name))}
        is_whole = self._state.manifests and len(hashes) == len(names)
        return compute_seal(hashes) if is_whole else None

    def _end_transcript(self, end: RunEnd) -> None:
        tell, missing = self._records.append_section, end.check.missing if end.check else {}
        for call in self._records.calls:
            summary = call.result_summary or ""
            line = f"- `{call.tool_name}` {call.status}, {call.duration_ms} ms: {summary}"
            tell("Tool Calls", line)
        for one in self._env.config.deliverables.required:
            tell("Deliverables", f"- {one.path}: {missing.get(one.path, 'present')}")
        tell("Result", f"Status: {end.status}")
        if end.error is not None:
            tell("Result", quoted(str(end.error)))
        if end.text:
            tell("Result", quoted(end.text))
        self._records.finish_transcript()

    def _emit_end(self, end: RunEnd, state: RunState) -> None:
        event, severity = _CLOSING_EVENTS[end.status]
        data: dict[str, object] = {RUN_FILE_HASH: state_hash(state.content(self._records.redactor))}
        if end.error is not None:
            data["error"] = end.error.model_dump(mode="json", exclude_none=True)
            data["governance"] = governance_status(end.error).value
        summary = str(end.error) if end.error else "the run is complete"
        self._records.emit(event, summary, data, severity=severity)

    def _ended(self, end: RunEnd) -> RunState:
        return self._state.changed(
            status=end.status,
            failure_reason=str(end.error) if end.error else None,
            error=end.error,
            ended_at=now(),
            usage=dict(end.usage),
            found=end.check.found if end.check else [],
            missing=list(end.check.missing) if end.check else [],
        )

    def _attempt(self, end: RunEnd, step: Callable[[], object]) -> RunEnd:
        """Do one step of closing; a run whose records cannot be completed has failed."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the next steps are done all the same
            logger.warning("the run's records are not complete: %s", type(error).__name__)
            if end.error is not None and end.error.category is ErrorCategory.INTERNAL:
                return end
            info = error_info(error, ErrorCategory.INTERNAL)
            message = f"the records of the run could not be completed: {info.message}"
            info = info.model_copy(update={"message": message, "category": ErrorCategory.INTERNAL})
            info = info.redacted(self._records.redactor)
            return replace(end, status=RunFolderStatus.FAILED, error=info)
        return end

    def _save_over(self, end: RunEnd) -> None:
        """Write a short `run.json` over the one that is there."""
        error = end.error
        if error is not None:
            error = error.model_copy(update={"message": error.message[:200], "details": None})
        changes: dict[str, object] = {
            "status": end.status,
            "error": error,
            "failure_reason": str(error) if error else None,
            "found": [],
            "missing": [],
            "manifests": {},
        }
        self._state = self._state.model_copy(update=changes)
        try:
            self._records.files.overwrite(RUN_FILE, self._text())
        except OSError as problem:
            logger.error("run.json could not be written: %s", problem)  # noqa: TRY400

    def _text(self) -> str:
        return state_text(self._state.content(self._records.redactor))

    def _save(self) -> bool:
        self._records.files.put(RUN_FILE, self._text())
        return True
