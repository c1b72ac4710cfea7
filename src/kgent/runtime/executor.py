"""One run in its folder: prepare it, run the engine, check the result, write the manifests."""

import asyncio
import logging
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

from agent_core.aio import stop_if_cancelled
from agent_core.errors import ErrorCode
from agent_core.text import readable_name, visible
from agent_core.text.json_text import JsonObject
from agent_core.tools.results import in_own_thread
from kgent.config.loader import dump_config
from kgent.config.models import KgentConfig
from kgent.config.portable import KEPT_MODEL, KEPT_SKILLS, read_script, relocated
from kgent.config.prompts import render_sandbox_rules, render_system_prompt
from kgent.engine.base import (
    AgentResult,
    AgentRunRequest,
    EngineStatus,
    EventCallback,
    RedactingCallback,
    run_engine,
)
from kgent.errors import ErrorCategory, ErrorInfo, KgentError, engine_error, error_info
from kgent.governance.checks import run_checks
from kgent.governance.deliverables import validate_required_deliverables
from kgent.governance.policy import final_status, governance_status, judge, render_nudge
from kgent.governance.results import CheckResult, DeliverableCheck
from kgent.memory.client import NoMemory
from kgent.memory.contract import MemoryClient, MemoryItem
from kgent.records.conversation import INTERRUPTED
from kgent.records.events import RunEventType
from kgent.records.lines import plain_name
from kgent.records.transcript import quoted
from kgent.runtime.blocking import finish_in_thread
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
from kgent.runtime.task import Continuation, FolderTask, Means, start_texts
from kgent.sandbox.attempts import draft_deliverables, is_own_entry, keep_attempt, set_aside
from kgent.sandbox.files import PRIVATE_FILE, PRIVATE_FOLDER
from kgent.sandbox.inputs import INPUTS, copy_inputs
from kgent.sandbox.manifest import SandboxManifest, write_artifact_manifest
from kgent.sandbox.workspace import (
    ARTIFACT_MANIFEST,
    CONFIG_FILE,
    FILES,
    SANDBOX_MANIFEST,
    SYSTEM_PROMPT_FILE,
    WRITABLE,
)
from kgent.skills.loader import list_skill_files
from kgent.skills.models import SkillSummary
from kgent.skills.registry import SkillRegistry
from kgent.tools.mcp import open_servers
from kgent.tools.registry import ToolDefinition, build_toolsets

logger = logging.getLogger(__name__)

RECALLED = 5
_MEMORY_CHARS = 500
_SEVERITIES = {RunStatus.completed: "info", RunStatus.failed: "error"}
"""Severities of closing events; of any other a warning."""
_SUMMARIES = {
    RunStatus.completed: "the run is complete",
    RunStatus.review_required: "the run waits for a review",
    RunStatus.revision_required: "the run waits for a revision",
}


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of a run so far: text and usage of the engine, and errors."""

    text: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict[str, int])
    cost: float | None = None
    usage_is_estimated: bool = False
    failure: ErrorInfo | None = None
    interruption: ErrorInfo | None = None
    answered_by: str | None = None
    check: DeliverableCheck | None = None


class FolderRun:
    """One attempt at a run, in its folder; only this class writes its `run.json`."""

    def __init__(
        self,
        context: RunContext,
        task: FolderTask,
        means: Means | None = None,
        event_callback: EventCallback | None = None,
    ) -> None:
        self._context = context
        self._task = task
        self._records = context.records
        self._files = context.records.files
        self._redactor = context.records.redactor
        self._cancellation = context.cancellation
        self._nudges = 0
        self._results: list[CheckResult] | None = None
        self._is_outdated = False
        self._means = means
        self._callback = (
            RedactingCallback(event_callback, self._redactor) if event_callback else None
        )
        self._skills = SkillRegistry([])
        self._state, self._earlier = task.state, task.continuation
        self._manifest = SandboxManifest.of(context.sandbox_root)
        if self._earlier is not None:
            self._manifest = self._earlier.manifest

    async def run(self) -> RunResult:
        """Do the whole attempt, and leave a folder whose `run.json` has the final status.

        It does so even if it is cancelled; the caller raises that cancellation.
        """
        work = self._work if self._verdict is None else self._review
        outcome = await self._guard(_Outcome(), work)
        outcome = await self._guard(outcome, partial(self._run_own_checks, outcome))
        return await finish_in_thread(partial(self._finish, outcome))

    async def _guard(self, outcome: _Outcome, step: Callable[[], Awaitable[_Outcome]]) -> _Outcome:
        """Do a step of the run; an error or an interruption ends the run with `outcome`."""
        try:
            return await step()
        except (asyncio.CancelledError, KeyboardInterrupt):
            return self._interrupt(outcome)
        except BaseException as error:  # noqa: BLE001 - every error ends the run
            is_cancelled = isinstance(error, KgentError) and error.code is ErrorCode.CANCELLED
            if self._cancellation.reason and is_cancelled:
                return self._interrupt(outcome)
            failure = self._error_info(error, ErrorCategory.INTERNAL)
            return replace(outcome, failure=outcome.failure or failure)

    def _finish(self, outcome: _Outcome) -> RunResult:
        """Check and close the records."""
        try:
            return self._close(self._check(outcome))
        except KeyboardInterrupt:  # interrupted while closing the records: close all of them anyway
            return self._close(self._check(self._interrupt(outcome)))
        finally:
            self._records.close()

    def close_lost(self) -> RunState:
        """Close an attempt whose process has died, and return the state of the run."""
        lost = ErrorInfo(
            code=INTERRUPTED,
            message="the process of the run ended before the run did",
            category=ErrorCategory.INTERNAL,
        )
        try:
            last = self._state.attempt
            spent = _Outcome(
                interruption=lost,
                usage=last.usage,
                cost=last.cost,
                usage_is_estimated=bool(last.usage),  # the service does not say what was cut off
            )
            self._close(self._check(spent), is_lost=True)
        finally:
            self._records.close()
        return self._state

    @property
    def _memory(self) -> MemoryClient | None:
        return self._means.memory if self._means else None

    @property
    def _verdict(self) -> RunStatus | None:
        return self._earlier.verdict if self._earlier else None

    async def _review(self) -> _Outcome:
        """Take over what the last attempt left."""
        assert self._earlier is not None  # noqa: S101 - a review has one
        await finish_in_thread(self._open)
        self._results = list(self._earlier.checks)
        return _Outcome(text=self._earlier.text)

    def _end_of(self, outcome: _Outcome) -> tuple[RunStatus, ErrorInfo | None]:
        """Return the final status of the run, and the error that explains it."""
        if self._verdict is not None and not (outcome.failure or outcome.interruption):
            return self._verdict, None
        return final_status(
            failure=outcome.failure,
            interruption=outcome.interruption,
            check=outcome.check,
            is_reviewed=self._context.config.deliverables.review,
        )

    def _interrupt(self, outcome: _Outcome) -> _Outcome:
        self._cancellation.cancel("the run was interrupted")
        return replace(outcome, interruption=self._cancellation.reason)

    def _error_info(self, error: BaseException, category: ErrorCategory) -> ErrorInfo:
        return error_info(error, category).redacted(self._redactor)

    # --- before the engine ------------------------------------------------------------------------

    def _prepare(self) -> list[SkillSummary]:
        """Write the records that are known before the engine begins, and return the skills."""
        self._open()
        self._skills = SkillRegistry.of(self._context.config)
        if self._earlier is None or not self._earlier.is_prepared:
            self._take_inputs()
            self._keep_sources()
        return self._index_skills()

    def _open(self) -> None:
        context, records, config = self._context, self._records, self._context.config
        fields, emit = context.core_fields(), records.events.emit
        if self._earlier is None:
            self._files.expect_empty(name for name in FILES if name != RUN_FILE)
            records.hold()
            emit("run.created", f"run {context.run_id}", fields)
            self._save()
        else:
            self._open_again(self._earlier)
        if self._earlier is None or not self._earlier.is_prepared:
            self._write_config(relocated(self._task.profile, context.sandbox_root))
        options = self._task.options if self._earlier is None else None
        texts = start_texts(
            self._state, self._task.prompt, options=options, prompt_at=self._prompt_at
        )
        for name, text in texts.items():
            self._files.put(name, self._redactor.text(text))
        self._manifest.write(self._files)
        write_artifact_manifest(
            records, config.deliverables.required, is_left_out=self._is_own_entry
        )
        data = {"path": self._state.config_path, "fingerprint": context.config_fingerprint}
        emit("config.loaded", f"profile {config.profile.id}", data)
        facts = {**fields, "engine": config.runtime.engine, "created": self._state.created_at}
        if self._earlier is not None:
            attempt = self._state.attempt
            why = f": {attempt.reason}" if attempt.reason else ""
            facts["attempt"] = f"{attempt.number}, {attempt.cause}{why}"
        listed = "\n".join(
            f"- {name}: {visible(value, one_line=True)}" for name, value in facts.items()
        )
        append = records.transcript.append_section
        append("Run", listed)
        append("Prompt", quoted(self._task.prompt))
        append("Profile", f"- id: {config.profile.id}")
        append("Profile", quoted(config.profile.role))

    def _open_again(self, earlier: Continuation) -> None:
        """Begin another attempt; from now on a process that is killed leaves one to be closed."""
        root, last = self._context.sandbox_root, self._state.attempts[-2]
        emit = self._records.events.emit
        self._save()
        if edits := draft_deliverables(root, last.path):
            self._state = self._state.edited(edits)
            self._save()
        set_aside(root, last.path)
        for name in WRITABLE:  # one may have been removed
            with suppress(FileExistsError):
                (root / name).mkdir(mode=PRIVATE_FOLDER)
        attempt = self._state.attempt
        self._records.hold()
        summary = f"attempt {attempt.number} of {self._state.run_id}: {attempt.cause}"
        data: JsonObject = attempt.model_dump(mode="json", exclude={"usage", "cost"})
        data["changes"] = list(earlier.changes)
        emit("attempt.created", summary, data, severity="warning" if earlier.changes else "info")
        ended = last.ended_at or ""
        for one in self._state.requests:
            if one.answered_at is not None and one.answered_at >= ended:
                data = one.model_dump(mode="json", exclude={"arguments"})
                call_id, said = one.tool_call_id, f"{one.request_id}: {one.answer}"
                emit("user.answered", said, data, actor="user", correlation_id=call_id)

    @property
    def _prompt_at(self) -> int:
        return self._earlier.prompt_at if self._earlier else 0

    def _is_own_entry(self, name: str) -> bool:
        return is_own_entry(name, self._state)

    def _take_inputs(self) -> None:
        """Copy the inputs of the run, and record the copies."""
        inputs, token = self._task.inputs, self._cancellation
        if inputs:
            root = self._context.sandbox_root
            records = copy_inputs(inputs, root, is_cancelled=lambda: token.is_cancelled)
            self._manifest = self._manifest.model_copy(update={"inputs": records})
            self._manifest.write(self._files)
            names = [f"{INPUTS}/{one.name}" for one in inputs]
            data = {"inputs": names, "bytes": sum(one.bytes or 0 for one in records)}
            self._records.events.emit("inputs.copied", f"inputs: {len(names)}", data)

    def _write_config(self, config: KgentConfig) -> None:
        clean = self._redactor.text
        self._files.put(
            CONFIG_FILE, dump_config(config, origin=self._state.config_path, clean=clean)
        )

    def _keep_sources(self) -> None:
        """Copy skills and script into the run folder, and make its profile refer to the copies."""
        config, root, places = self._context.config, self._context.sandbox_root, dict[str, Path]()
        for number, skill in enumerate(self._skills.discover(), 1):
            folder = f"{KEPT_SKILLS}/{number:03}-{plain_name(skill.id)}"
            for file in list_skill_files(skill.path):
                mode = PRIVATE_FOLDER if file.is_executable else PRIVATE_FILE
                content = self._redactor.raw(file.content)
                self._files.put(f"{folder}/{file.name}", content, mode=mode)
            places[skill.id] = root / folder
        script, kept = read_script(config, config.model), None
        if script is not None and config.model.path is not None:
            kept = f"{KEPT_MODEL}/{Path(config.model.path).name}"
            self._files.put(kept, script)
        self._write_config(relocated(self._task.profile, root, script=kept, skills=True))
        self._skills = self._skills.copied(places)

    def _index_skills(self) -> list[SkillSummary]:
        index, root = self._skills.discover(), self._context.sandbox_root
        listed = [
            {"id": one.id, "name": one.name, "folder": str(one.path.relative_to(root))}
            for one in index
        ]
        self._records.events.emit(
            "skill.indexed", f"skills found: {len(index)}", {"skills": listed}
        )
        lines = [f"- `{skill.id}`: {skill.description}" for skill in index] or ["(no skills)"]
        self._records.transcript.append_section("Skills", "\n".join(lines))
        folders = (readable_name(str(folder)) for folder in self._skills.folders)
        readonly = [*self._manifest.readonly, *folders]
        self._manifest = self._manifest.model_copy(update={"readonly": readonly})
        self._manifest.write(self._files)
        return index

    async def _recall(self) -> str | None:
        """Return memories that match the prompt; if the memory fails, the run continues without."""
        emit, append = self._records.events.emit, self._records.transcript.append_section
        memory, prompt = self._memory, self._task.prompt
        if memory is None:
            append("Memory", "(no memory is connected)")
            return None
        scopes = self._context.config.memory.scopes or [""]
        emit("memory.recall.started", "recall begins", {"scopes": scopes})

        def recall() -> list[MemoryItem]:
            return [
                one for scope in scopes for one in memory.recall_memory(prompt, scope, RECALLED)
            ]

        try:
            found = await in_own_thread(recall)
        except Exception as error:  # noqa: BLE001 - the memory's own code
            self._record_error(self._error_info(error, ErrorCategory.MEMORY))
            append("Memory", "(the memory could not be read)")
            return None
        emit("memory.recall.completed", f"memories found: {len(found)}", {"count": len(found)})
        best = sorted(found, key=lambda item: -(item.score or 0))[:RECALLED]
        text = "\n".join(f"- {' '.join(item.content.split())[:_MEMORY_CHARS]}" for item in best)
        append("Memory", quoted(text) if text else "(nothing fits)")
        return text or None

    # --- the engine -------------------------------------------------------------------------------

    async def _work(self) -> _Outcome:
        """Prepare the run, and do the engine's part of it."""
        skills = await finish_in_thread(self._prepare)
        stop_if_cancelled()
        system_prompt = self._render_prompt(skills, await self._recall())
        tools = build_toolsets(self._context, self._skills, self._memory or NoMemory())
        async with open_servers(self._context) as served:
            return await self._run_engine(system_prompt, [*tools, *served])

    def _render_prompt(self, index: Sequence[SkillSummary], memories: str | None) -> str:
        config = self._context.config
        rules = render_sandbox_rules(config, [f"{INPUTS}/{one.name}" for one in self._task.inputs])
        prompt = render_system_prompt(config, index, memories, rules)
        self._files.put(SYSTEM_PROMPT_FILE, self._redactor.text(prompt))
        data = {"characters": len(prompt), "file": SYSTEM_PROMPT_FILE}
        summary = f"system prompt of {len(prompt)} characters"
        self._records.events.emit("prompt.rendered", summary, data)
        return prompt

    async def _run_engine(self, system_prompt: str, tools: list[ToolDefinition]) -> _Outcome:
        runtime, when = self._context.config.runtime, self._records.now()
        conversation, earlier = self._records.conversation, self._earlier
        if earlier is not None and earlier.answers:
            conversation.add(*earlier.answers)
        begun = self._state.started_at or when
        self._state = self._state.changed(when=when, status=RunStatus.running, started_at=begun)
        self._save()
        names = [tool.name for tool in tools]
        self._records.events.emit("run.started", "the engine begins", {"tools": names})
        request = AgentRunRequest(
            context=self._context,
            prompt=self._task.prompt,
            system_prompt=system_prompt,
            tools=tools,
            timeout_seconds=runtime.timeout_seconds,
            max_steps=runtime.max_steps,
            stream=runtime.stream,
            cancellation_token=self._cancellation,
            event_callback=self._callback,
            history=conversation.messages,
            continues=earlier is not None and not earlier.has_new_prompt,
            prompt_at=self._prompt_at,
            ask_further=self._nudge,
            on_spent=self._note_spent,
        )
        assert self._means is not None  # noqa: S101 - only a review has none
        result = await run_engine(self._means.engine, request)
        if self._callback is not None:
            self._callback.finish()
        return self._read_result(result)

    def _note_spent(
        self, usage: Mapping[str, int], cost: float | None = None, *, is_estimated: bool = False
    ) -> None:
        """Write to `run.json` what the attempt has spent so far, in case its process is killed."""
        if usage == self._state.attempt.usage:
            return
        with suppress(
            Exception
        ):  # whatever is wrong with the folder, the end of the run reports it
            if self._files.find_changed(RUN_FILE):
                return
            self._state = self._state.changed(
                when=self._records.now(),
                usage=dict(usage),
                cost=cost,
                usage_is_estimated=is_estimated or self._state.usage_is_estimated,
            )
            self._save()

    def _read_result(self, result: AgentResult) -> _Outcome:
        text = self._redactor.text(result.final_text) if result.final_text else None
        outcome = _Outcome(
            text,
            result.usage,
            result.cost,
            result.usage_is_estimated,
            answered_by=result.answered_by,
        )
        if result.status is EngineStatus.COMPLETED:
            return outcome
        unknown = f"the engine ended with {result.status} and gave no reason"
        error = result.error or engine_error(ErrorCode.INTERNAL_ERROR, unknown)
        error = error.redacted(self._redactor)
        if result.status is EngineStatus.INTERRUPTED:
            return replace(outcome, interruption=error)
        return replace(outcome, failure=error)

    async def _nudge(self) -> str | None:
        """Return a text about unfinished work if the model may be asked to continue."""
        config, root = self._context.config, self._context.sandbox_root
        if self._nudges >= config.runtime.nudges:
            return None
        required = config.deliverables.required
        check = await asyncio.to_thread(validate_required_deliverables, root, required)
        results = await run_checks(self._context, config.checks)
        text = render_nudge(check.model_copy(update={"checks": results}))
        self._results, self._is_outdated = results, text is not None
        if text is None:
            return None
        self._nudges += 1
        summary = f"the model is asked to continue, {self._nudges} of {config.runtime.nudges} times"
        data = {"nudge": self._nudges, "text": text}
        self._records.events.emit("nudge.sent", summary, data)
        self._records.transcript.append_section("Prompt", quoted(text))
        return text

    # --- after the engine -------------------------------------------------------------------------

    async def _run_own_checks(self, outcome: _Outcome) -> _Outcome:
        """Begin the check of the deliverables: run the profile's checks if the engine has ended.

        They are programs that may change files, so they run before everything is compared.
        """
        required = self._context.config.deliverables.required
        data = {"required": [one.path for one in required]}
        summary = f"required deliverables: {len(required)}"
        self._records.events.emit("deliverable.check.started", summary, data, actor="governance")
        is_ended = outcome.failure is None and outcome.interruption is None
        if is_ended and (self._results is None or self._is_outdated):
            self._results = []
            with self._cancellation.stopping_task():
                self._results = await run_checks(self._context, self._context.config.checks)
        return outcome

    def _check(self, outcome: _Outcome) -> _Outcome:
        """Check the records for changes by others, and check the deliverables."""
        failures = [outcome.failure] if outcome.failure is not None else []
        check: DeliverableCheck | None = None
        try:
            emit, actor = self._records.events.emit, "governance"
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
            required = self._context.config.deliverables.required
            found = validate_required_deliverables(self._context.sandbox_root, required)
            check = judge(found, self._results or [])
            for path, reason in check.missing.items():
                data: JsonObject = {"path": path, "reason": reason}
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
        self._records.errors.record(error)
        data = error.model_dump(mode="json", exclude_none=True)
        self._records.events.emit("error", str(error), data, severity="error")

    def _close(self, outcome: _Outcome, *, is_lost: bool = False) -> RunResult:
        """Write the final records, even if some of them fail; `run.json` is written last."""
        manifests = dict[str, str]()

        def write_manifests() -> None:
            required = self._context.config.deliverables.required
            produced = write_artifact_manifest(
                self._records, required, is_left_out=self._is_own_entry
            )
            sandbox = self._manifest.write(self._files, final=True)
            manifests[ARTIFACT_MANIFEST] = produced.sha256
            manifests[SANDBOX_MANIFEST] = sandbox.sha256

        def emit_end() -> None:
            status, error = self._end_of(announced)
            event = cast("RunEventType", f"run.{status}")
            severity = _SEVERITIES.get(status, "warning")
            data: JsonObject = {RUN_FILE_HASH: state_hash(state.content(self._redactor))}
            if error is not None:
                data["error"] = error.model_dump(mode="json", exclude_none=True)
                data["governance"] = governance_status(error).value
            summary = str(error) if error else _SUMMARIES.get(status, f"the run is {status}")
            self._records.events.emit(event, summary, data, severity=severity)

        def save() -> None:
            nonlocal is_saved
            self._save()
            is_saved = True

        outcome = self._attempt(outcome, lambda: self._end_transcript(outcome, is_lost=is_lost))
        outcome = announced = self._attempt(outcome, self._files.restore)
        counts = self._records.counts
        counts["events"] += 1  # the closing event
        state = self._build_end_state(announced, counts)
        outcome = self._attempt(outcome, emit_end)
        outcome = self._attempt(outcome, write_manifests)
        outcome = self._attempt(outcome, lambda: keep_attempt(self._files, self._state))
        if outcome is not announced:  # `verify` will report that the closing event differs
            state = self._build_end_state(outcome, counts)
        self._state, is_saved = state.model_copy(update={"manifests": manifests}), False
        outcome = self._attempt(outcome, save)
        if not is_saved:
            self._save_over(outcome)
        self._records.close()
        names = (RUN_FILE, ARTIFACT_MANIFEST, SANDBOX_MANIFEST)
        hashes = {name: record.sha256 for name in names if (record := self._files.record(name))}
        is_whole = self._state.manifests and len(hashes) == len(names)
        seal = compute_seal(hashes) if is_whole else None
        root = self._context.sandbox_root
        return RunResult.of(self._state, root, final_text=outcome.text, seal=seal)

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

    def _end_transcript(self, outcome: _Outcome, *, is_lost: bool) -> None:
        append, (status, error) = self._records.transcript.append_section, self._end_of(outcome)
        missing = {**outcome.check.missing, **outcome.check.invalid} if outcome.check else {}
        for call in self._records.tools.calls:
            summary = call.result_summary or ""
            line = f"- `{call.tool_name}` {call.status}, {call.duration_ms} ms: {summary}"
            append("Tool Calls", visible(line, one_line=True))
        for one in self._context.config.deliverables.required:
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
        if not is_lost:  # this process has not written the rest of it
            self._records.transcript.finalize(self._context)

    def _build_end_state(self, outcome: _Outcome, counts: Mapping[str, int]) -> RunState:
        (status, error), check, when = self._end_of(outcome), outcome.check, self._records.now()
        model = self._state.model
        if outcome.answered_by is not None:
            model = {**model, "answered_by": outcome.answered_by}
        return self._state.changed(
            when=when,
            status=status,
            model=model,
            requests=self._context.questions.all,
            failure_reason=str(error) if error else None,
            error=error,
            ended_at=when,
            usage=dict(outcome.usage),
            cost=outcome.cost,
            usage_is_estimated=outcome.usage_is_estimated or self._state.usage_is_estimated,
            counts=dict(counts),
            found=check.found if check else [],
            missing=list(check.missing) if check else [],
            invalid=check.invalid if check else {},
            checks=check.checks if check else [],
        )

    def _save(self) -> None:
        """Write `run.json`: the end of an attempt to its own folder first."""
        text = state_text(self._state.content(self._redactor))
        if not self._state.status.is_active:
            self._files.put(f"{self._state.attempt.path}/{RUN_FILE}", text)
        self._files.put(RUN_FILE, text)

    def _save_over(self, outcome: _Outcome) -> None:
        """Write a short `run.json` over the existing one."""
        status, error = self._end_of(outcome)
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
