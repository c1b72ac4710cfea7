"""One run in its folder: prepare it, run the engine, check the result, write the manifests."""

import asyncio
import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from agent_core.errors import ErrorCode
from agent_core.redaction import Redactor
from agent_core.text import visible
from kgent.config.loader import dump_config
from kgent.config.models import KgentConfig
from kgent.config.portable import KEPT_MODEL, KEPT_SKILLS, read_script, relocated
from kgent.config.prompts import render_sandbox_rules, render_system_prompt
from kgent.engine.base import (
    AgentEngine,
    AgentRunRequest,
    EngineEvent,
    EngineEventKind,
    EngineStatus,
    EventCallback,
)
from kgent.errors import ErrorCategory, ErrorInfo, KgentError, engine_error, error_info
from kgent.governance.checks import run_checks
from kgent.governance.deliverables import check_deliverables
from kgent.governance.policy import final_status, governance_status, judge, render_nudge
from kgent.governance.results import CheckResult, DeliverableCheck
from kgent.memory.client import NoMemory
from kgent.memory.contract import MemoryClient
from kgent.records.context import plain_name
from kgent.records.events import RunEventType
from kgent.records.transcript import quoted
from kgent.runtime.cancellation import Cancellation, run_in_loop
from kgent.runtime.context import RunContext
from kgent.runtime.options import RunResult
from kgent.runtime.state import (
    RUN_FILE,
    RUN_FILE_HASH,
    RunState,
    RunStatus,
    compute_seal,
    state_hash,
    state_text,
)
from kgent.sandbox.files import PRIVATE_FILE, PRIVATE_FOLDER, readable_name
from kgent.sandbox.inputs import INPUTS, RunInput, copy_inputs
from kgent.sandbox.manifest import SandboxManifest, write_artifact_manifest
from kgent.sandbox.paths import SandboxPaths
from kgent.sandbox.workspace import (
    ARTIFACT_MANIFEST,
    CONFIG_FILE,
    FILES,
    PROMPT_FILE,
    SANDBOX_MANIFEST,
    SYSTEM_PROMPT_FILE,
)
from kgent.skills.loader import list_skill_files
from kgent.skills.models import SkillSummary
from kgent.skills.registry import SkillRegistry
from kgent.tools.calls import ToolCallScope
from kgent.tools.mcp import McpServers
from kgent.tools.registry import build_toolsets

logger = logging.getLogger(__name__)


RECALLED = 5


_MEMORY_CHARS = 500


_CLOSING_EVENTS: Mapping[RunStatus, tuple[RunEventType, str]] = {
    RunStatus.COMPLETED: ("run.completed", "info"),
    RunStatus.INCOMPLETE: ("run.incomplete", "warning"),
    RunStatus.FAILED: ("run.failed", "error"),
}


class RedactingCallback:
    """Passes events to a caller's callback, without secrets.

    Text that may be the beginning of a secret is held back until more of it is known. If the
    callback raises an error, it gets no more events, and the run continues.
    """

    def __init__(self, callback: EventCallback, redactor: Redactor) -> None:
        self._callback: EventCallback | None = callback
        self._streams = {
            kind: redactor.stream() for kind in (EngineEventKind.TEXT, EngineEventKind.REASONING)
        }

    def __call__(self, event: EngineEvent) -> None:
        """Pass an event to the callback."""
        stream = self._streams.get(event.kind)
        if stream is None:
            self.finish()
            self._pass_on(event)
        elif shown := stream.feed(event.text):
            self._pass_on(EngineEvent(kind=event.kind, text=shown))

    def finish(self) -> None:
        """Pass on the text that was held back, because the text is complete."""
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
class _Outcome:
    """The result of a run so far: text and usage of the engine, and errors."""

    text: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict[str, int])
    cost: float | None = None
    usage_is_estimated: bool = False
    failure: ErrorInfo | None = None
    interruption: ErrorInfo | None = None
    check: DeliverableCheck | None = None

    def end(self) -> tuple[RunStatus, ErrorInfo | None]:
        """Return the final status of the run, and the error that explains it."""
        return final_status(failure=self.failure, interruption=self.interruption, check=self.check)


@dataclass(frozen=True, kw_only=True)
class FolderTask:
    """The work of one run, as the caller and the profile state it.

    Attributes:
        profile: as it was loaded, with the caller's overrides.
        config_path: the file it was loaded from.
        prompt: the message to the model.
        inputs: the files that the run may read.
    """

    profile: KgentConfig
    config_path: Path
    prompt: str
    inputs: Sequence[RunInput]


class FolderRun:
    """One run in an existing folder; only this class writes its `run.json`."""

    def __init__(
        self,
        env: RunContext,
        task: FolderTask,
        *,
        engine: AgentEngine,
        memory: MemoryClient | None,
        cancellation: Cancellation,
        event_callback: EventCallback | None,
    ) -> None:
        self._env = env
        self._records = env.records
        self._files = env.records.files
        self._redactor = env.records.redactor
        self._profile = task.profile
        self._prompt = task.prompt
        self._nudges = 0
        self._results: list[CheckResult] | None = None
        self._is_outdated = False
        self._engine = engine
        self._inputs = task.inputs
        self._memory = memory
        self._config_path = task.config_path
        self._cancellation = cancellation
        self._callback = (
            RedactingCallback(event_callback, self._redactor) if event_callback else None
        )
        self._skills = SkillRegistry.of(env.config)
        self._manifest = SandboxManifest.of(env.sandbox_root)
        self._state = RunState.of(
            env.core_fields(), env.config, config_path=str(task.config_path), when=env.records.now()
        )

    def run(self) -> RunResult:
        """Do the whole run, and leave a folder whose `run.json` has the final status."""
        try:
            self._open()
            outcome = self._run_engine()
        except KeyboardInterrupt:
            outcome = self._interrupt(_Outcome())
        except BaseException as error:  # noqa: BLE001 - every error ends the run
            outcome = _Outcome(failure=self._error_info(error, ErrorCategory.INTERNAL))
            if isinstance(error, KgentError) and error.code is ErrorCode.CANCELLED:
                outcome = _Outcome(interruption=self._cancellation.reason)
        try:
            return self._close(self._check(outcome))
        except KeyboardInterrupt:  # interrupted while closing the records: close all of them anyway
            return self._close(self._check(self._interrupt(outcome)))
        finally:
            self._records.close()

    def _interrupt(self, outcome: _Outcome) -> _Outcome:
        self._cancellation.cancel("the run was interrupted")
        return replace(outcome, interruption=self._cancellation.reason)

    def _error_info(self, error: BaseException, category: ErrorCategory) -> ErrorInfo:
        return error_info(error, category).redacted(self._redactor)

    # --- before the engine ------------------------------------------------------------------------

    def _open(self) -> None:
        """Write the records that are known before the run starts."""
        env, records, config = self._env, self._records, self._env.config
        fields = env.core_fields()
        self._files.expect_empty(name for name in FILES if name != RUN_FILE)
        records.hold()
        records.emit("run.created", f"run {env.ids.run_id}", fields)
        self._save()
        self._write_config(relocated(self._profile, env.sandbox_root))
        self._files.put(PROMPT_FILE, self._redactor.text(self._prompt))
        self._manifest.write(self._files)
        write_artifact_manifest(records, config.deliverables.required)
        data = {"path": str(self._config_path), "fingerprint": env.config_fingerprint}
        records.emit("config.loaded", f"profile {config.profile.id}", data)
        facts = {**fields, "engine": config.runtime.engine, "created": self._state.created_at}
        listed = "\n".join(
            f"- {name}: {visible(value, one_line=True)}" for name, value in facts.items()
        )
        records.append_section("Run", listed)
        records.append_section("Prompt", quoted(self._prompt))
        records.append_section("Profile", f"- id: {config.profile.id}")
        records.append_section("Profile", quoted(config.profile.role))

    def _take_inputs(self) -> None:
        """Copy the inputs of the run, and record the copies."""
        root, token = self._env.sandbox_root, self._cancellation
        if self._inputs:
            records = copy_inputs(self._inputs, root, is_cancelled=lambda: token.is_cancelled)
            self._manifest = self._manifest.model_copy(update={"inputs": records})
            self._manifest.write(self._files)

    def _write_config(self, config: KgentConfig) -> None:
        clean = self._redactor.text
        self._files.put(CONFIG_FILE, dump_config(config, origin=self._config_path, clean=clean))

    def _keep_sources(self) -> None:
        """Copy skills and script into the run folder, and make its profile refer to the copies."""
        config, root, places = self._env.config, self._env.sandbox_root, dict[str, Path]()
        for number, skill in enumerate(self._skills.discover(), 1):
            folder = f"{KEPT_SKILLS}/{number:03}-{plain_name(skill.id)}"
            for file in list_skill_files(skill.path):
                mode = PRIVATE_FOLDER if file.is_executable else PRIVATE_FILE
                content = self._redactor.raw(file.content)
                self._files.put(f"{folder}/{file.name}", content, mode=mode)
            places[skill.id] = root / folder
        script, kept = read_script(config), None
        if script is not None and config.model.path is not None:
            kept = f"{KEPT_MODEL}/{Path(config.model.path).name}"
            self._files.put(kept, script)
        self._write_config(relocated(self._profile, root, script=kept, skills=True))
        self._skills = self._skills.copied(places)

    def _index_skills(self) -> list[SkillSummary]:
        index, root = self._skills.discover(), self._env.sandbox_root
        listed = [
            {"id": one.id, "name": one.name, "folder": str(one.path.relative_to(root))}
            for one in index
        ]
        self._records.emit("skill.indexed", f"skills found: {len(index)}", {"skills": listed})
        lines = [f"- `{skill.id}`: {skill.description}" for skill in index] or ["(no skills)"]
        self._records.append_section("Skills", "\n".join(lines))
        folders = (readable_name(str(folder)) for folder in self._skills.folders)
        readonly = [*self._manifest.readonly, *folders]
        self._manifest = self._manifest.model_copy(update={"readonly": readonly})
        self._manifest.write(self._files)
        return index

    def _recall(self) -> str | None:
        """Return memories that match the prompt; if the memory fails, the run continues without."""
        records, memory = self._records, self._memory
        if memory is None:
            records.append_section("Memory", "(no memory is connected)")
            return None
        scopes = self._env.config.memory.scopes or [""]
        records.emit("memory.recall.started", "recall begins", {"scopes": scopes})
        try:
            found = [
                item
                for scope in scopes
                for item in memory.recall_memory(self._prompt, scope, RECALLED)
            ]
        except Exception as error:  # noqa: BLE001 - the memory's own code
            self._record_error(self._error_info(error, ErrorCategory.MEMORY))
            records.append_section("Memory", "(the memory could not be read)")
            return None
        summary = f"memories found: {len(found)}"
        records.emit("memory.recall.completed", summary, {"count": len(found)})
        best = sorted(found, key=lambda item: -(item.score or 0))[:RECALLED]
        text = "\n".join(f"- {' '.join(item.content.split())[:_MEMORY_CHARS]}" for item in best)
        records.append_section("Memory", quoted(text) if text else "(nothing fits)")
        return text or None

    # --- the engine -------------------------------------------------------------------------------

    def _run_engine(self) -> _Outcome:
        with McpServers(self._env, self._cancellation) as servers:
            return self._run_with(servers)

    def _run_with(self, servers: McpServers) -> _Outcome:
        config, records, token = self._env.config, self._records, self._cancellation
        self._take_inputs()
        self._keep_sources()
        index, memories = self._index_skills(), self._recall()
        rules = render_sandbox_rules(config, [f"{INPUTS}/{one.name}" for one in self._inputs])
        prompt = render_system_prompt(config, index, memories, rules)
        self._files.put(SYSTEM_PROMPT_FILE, self._redactor.text(prompt))
        data = {"characters": len(prompt), "file": SYSTEM_PROMPT_FILE}
        records.emit("prompt.rendered", f"system prompt of {len(prompt)} characters", data)
        memory = self._memory or NoMemory()
        open_scope = partial(
            ToolCallScope, self._env, paths=SandboxPaths(self._env.sandbox_root), cancellation=token
        )
        tools = build_toolsets(self._env, self._skills, memory, cancellation=token)
        tools += servers.open_tools(open_scope=open_scope)
        when, status = records.now(), RunStatus.RUNNING
        self._state = self._state.changed(when=when, status=status, started_at=when)
        self._save()
        names = [tool.name for tool in tools]
        records.emit("run.started", "the engine begins", {"tools": names})
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
            ask_further=self._nudge,
        )
        result = self._engine.run(request)
        if self._callback is not None:
            self._callback.finish()
        text = self._redactor.text(result.final_text) if result.final_text else None
        outcome = _Outcome(text, result.usage, result.cost, result.usage_is_estimated)
        if result.status is EngineStatus.COMPLETED:
            return outcome
        unknown = f"the engine says {result.status} and not why"
        error = result.error or engine_error(ErrorCode.INTERNAL_ERROR, unknown)
        error = error.redacted(self._redactor)
        if result.status is EngineStatus.INTERRUPTED:
            return replace(outcome, interruption=error)
        return replace(outcome, failure=error)

    async def _nudge(self) -> str | None:
        """Return a text about unfinished work if the model may be asked to continue."""
        config, root = self._env.config, self._env.sandbox_root
        if self._nudges >= config.runtime.nudges:
            return None
        required = config.deliverables.required
        check = await asyncio.to_thread(check_deliverables, root, required)
        results = await run_checks(self._env, config.checks)
        text = render_nudge(check.model_copy(update={"checks": results}))
        self._results, self._is_outdated = results, text is not None
        if text is None:
            return None
        self._nudges += 1
        summary = f"the model is asked to go on, {self._nudges} of {config.runtime.nudges} times"
        self._records.emit("prompt.rendered", summary, {"nudge": self._nudges, "text": text})
        self._records.append_section("Prompt", quoted(text))
        return text

    # --- after the engine -------------------------------------------------------------------------

    def _check(self, outcome: _Outcome) -> _Outcome:
        """Check the records for changes by others, and check the deliverables."""
        failures = [outcome.failure] if outcome.failure is not None else []
        check: DeliverableCheck | None = None
        try:
            required, emit = self._env.config.deliverables.required, self._records.emit
            data: dict[str, object] = {"required": [one.path for one in required]}
            summary, actor = f"required deliverables: {len(required)}", "governance"
            emit("deliverable.check.started", summary, data, actor=actor)
            # These checks are programs that may change files, so they run before the comparison.
            results, outcome = self._run_own_checks(outcome)
            if changed := self._files.find_changed():
                listed = ", ".join(f"{name} ({why})" for name, why in sorted(changed.items()))
                error = ErrorInfo(
                    code="records_changed",
                    message=f"something other than the run changed its records: {listed}",
                    category=ErrorCategory.INTERNAL,
                    details={"changed": changed},
                )
                failures.append(error)
            for failure in failures:
                self._record_error(failure)
            check = judge(check_deliverables(self._env.sandbox_root, required), results)
            for path, reason in check.missing.items():
                data = {"path": path, "reason": reason}
                text = f"{path}: {reason}"
                emit("deliverable.missing", text, data, actor=actor, severity="warning")
            data = {"status": check.status.value, "found": check.found, "missing": check.missing}
            if check.invalid:
                data["invalid"] = check.invalid
            emit("deliverable.check.completed", check.summary, data, actor=actor)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the run ends in any case
            failures.append(self._error_info(error, ErrorCategory.INTERNAL))
        outcome = replace(outcome, failure=failures[0] if failures else None, check=check)
        return self._forget_failed_nudge(outcome)

    def _run_own_checks(self, outcome: _Outcome) -> tuple[list[CheckResult], _Outcome]:
        """Run the profile's checks, unless the engine has failed or was stopped."""
        results, token = self._results, self._cancellation
        if outcome.failure is not None or outcome.interruption is not None:
            return results or [], outcome
        if results is None or self._is_outdated:
            work = partial(run_checks, self._env, self._env.config.checks)
            try:
                results = run_in_loop(work, cancellation=token)
            except asyncio.CancelledError:
                return [], replace(outcome, interruption=token.reason)
        return results, outcome

    def _forget_failed_nudge(self, outcome: _Outcome) -> _Outcome:
        """End as `incomplete` if the model ended too early and asking it to continue failed."""
        ends = (outcome.failure, outcome.interruption)
        is_engine = all(
            one is None
            or (
                one.category is ErrorCategory.ENGINE and one.code != ErrorCode.BUDGET_EXCEEDED.value
            )
            for one in ends
        )
        is_engine = is_engine and not self._cancellation.reason
        if self._nudges and is_engine and outcome.check is not None and outcome.check.error:
            return replace(outcome, failure=None, interruption=None)
        return outcome

    def _record_error(self, error: ErrorInfo) -> None:
        self._records.record_error(error)
        data = error.model_dump(mode="json", exclude_none=True)
        self._records.emit("error", str(error), data, severity="error")

    def _close(self, outcome: _Outcome) -> RunResult:
        """Write the final records, even if some of them fail; `run.json` is written last."""
        manifests = dict[str, str]()

        def write_manifests() -> None:
            required = self._env.config.deliverables.required
            produced = write_artifact_manifest(self._records, required)
            sandbox = self._manifest.write(self._files, final=True)
            manifests[ARTIFACT_MANIFEST] = produced.sha256
            manifests[SANDBOX_MANIFEST] = sandbox.sha256

        def emit_end() -> None:
            status, error = announced.end()
            event, severity = _CLOSING_EVENTS[status]
            data: dict[str, object] = {RUN_FILE_HASH: state_hash(state.content(self._redactor))}
            if error is not None:
                data["error"] = error.model_dump(mode="json", exclude_none=True)
                data["governance"] = governance_status(error).value
            summary = str(error) if error else "the run is complete"
            self._records.emit(event, summary, data, severity=severity)

        def save() -> None:
            nonlocal is_saved
            self._save()
            is_saved = True

        outcome = self._attempt(outcome, lambda: self._end_transcript(outcome))
        outcome = announced = self._attempt(outcome, self._files.restore)
        counts = self._records.counts
        counts["events"] += 1  # the closing event
        state = self._build_end_state(announced, counts)
        outcome = self._attempt(outcome, emit_end)
        outcome = self._attempt(outcome, write_manifests)
        if outcome is not announced:  # `verify` will report that the closing event differs
            state = self._build_end_state(outcome, counts)
        self._state, is_saved = state.model_copy(update={"manifests": manifests}), False
        outcome = self._attempt(outcome, save)
        if not is_saved:
            self._save_over(outcome)
        self._records.close()
        (status, error), check = outcome.end(), outcome.check
        names = (RUN_FILE, ARTIFACT_MANIFEST, SANDBOX_MANIFEST)
        hashes = {name: record.sha256 for name in names if (record := self._files.record(name))}
        is_whole = self._state.manifests and len(hashes) == len(names)
        return RunResult(
            **asdict(self._env.ids),
            status=status,
            sandbox_root=self._env.sandbox_root,
            final_text=outcome.text,
            error=error,
            found=check.found if check else [],
            missing=list(check.missing) if check else [],
            invalid=check.invalid if check else {},
            checks=check.checks if check else [],
            usage=dict(outcome.usage),
            cost=outcome.cost,
            usage_is_estimated=outcome.usage_is_estimated,
            config_fingerprint=self._env.config_fingerprint,
            seal=compute_seal(hashes) if is_whole else None,
        )

    def _attempt(self, outcome: _Outcome, step: Callable[[], object]) -> _Outcome:
        """Do one step of closing; if it fails, the run has failed."""
        try:
            step()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the next steps are done in any case
            logger.warning("the run's records are not complete: %s", type(error).__name__)
            failure = outcome.failure
            if failure is not None and failure.category is ErrorCategory.INTERNAL:
                return outcome
            info = error_info(error, ErrorCategory.INTERNAL)
            message = f"the records of the run could not be completed: {info.message}"
            info = info.model_copy(update={"message": message, "category": ErrorCategory.INTERNAL})
            return replace(outcome, failure=info.redacted(self._redactor))
        return outcome

    def _end_transcript(self, outcome: _Outcome) -> None:
        append, (status, error) = self._records.append_section, outcome.end()
        missing = {**outcome.check.missing, **outcome.check.invalid} if outcome.check else {}
        for call in self._records.calls:
            summary = call.result_summary or ""
            line = f"- `{call.tool_name}` {call.status}, {call.duration_ms} ms: {summary}"
            append("Tool Calls", visible(line, one_line=True))
        for one in self._env.config.deliverables.required:
            line = f"- {one.path}: {missing.get(one.path, 'present')}"
            append("Deliverables", visible(line, one_line=True))
        for one in outcome.check.checks if outcome.check else []:
            line = f"- check `{shlex.join(one.argv)}`: {one.reason or 'passed'}"
            append("Deliverables", visible(line, one_line=True))
        append("Result", f"Status: {status}")
        if error is not None:
            append("Result", quoted(str(error)))
        if outcome.text:
            append("Result", quoted(outcome.text))
        self._records.finish_transcript()

    def _build_end_state(self, outcome: _Outcome, counts: Mapping[str, int]) -> RunState:
        (status, error), check, when = outcome.end(), outcome.check, self._records.now()
        return self._state.changed(
            when=when,
            status=status,
            failure_reason=str(error) if error else None,
            error=error,
            ended_at=when,
            usage=dict(outcome.usage),
            cost=outcome.cost,
            usage_is_estimated=outcome.usage_is_estimated,
            counts=dict(counts),
            found=check.found if check else [],
            missing=list(check.missing) if check else [],
            invalid=check.invalid if check else {},
            checks=check.checks if check else [],
        )

    def _save(self) -> None:
        self._files.put(RUN_FILE, state_text(self._state.content(self._redactor)))

    def _save_over(self, outcome: _Outcome) -> None:
        """Write a short `run.json` over the existing one."""
        status, error = outcome.end()
        if error is not None:
            error = error.model_copy(update={"message": error.message[:200], "details": None})
        changes: dict[str, object] = {"status": status, "error": error}
        changes["failure_reason"] = str(error) if error else None
        changes |= {"found": [], "missing": [], "invalid": {}, "checks": [], "manifests": {}}
        self._state = self._state.model_copy(update=changes)
        try:
            text = state_text(self._state.content(self._redactor))
            self._files.overwrite(RUN_FILE, text)
        except OSError as problem:
            logger.error("run.json could not be written: %s", problem)  # noqa: TRY400
