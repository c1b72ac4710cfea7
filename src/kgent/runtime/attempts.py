"""Attempts after the first one: `resume`, `revise`, `answer` and `review` a run in its folder.

A run rests between its attempts, sealed. Each of these commands takes the lock of the folder,
closes an attempt whose process has died, checks that the folder is as the last attempt left it, and
begins the next attempt.
"""

import json
import os
import pwd
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal, cast, get_args

from typing_extensions import Unpack

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.opening import open_descriptor, read_bytes, read_text
from agent_core.process import Launcher
from agent_core.redaction import Redactor
from agent_core.text import quoted, shortened
from kgent.config.loader import apply_cli_overrides, fingerprint_config, load_config
from kgent.config.models import KgentConfig
from kgent.config.parameters import fill_config
from kgent.errors import (
    ErrorCategory,
    ErrorInfo,
    config_error,
    expand_home,
    require,
    sandbox_error,
)
from kgent.records.archive import ARCHIVE
from kgent.records.context import RunRecords
from kgent.records.conversation import (
    CONVERSATION_FILE,
    INTERRUPTED,
    ArchivedMessage,
    blocks_of,
    in_call_order,
    message,
    open_calls,
    result_block,
)
from kgent.records.errors import ERRORS_FILE, ErrorRecord
from kgent.records.events import EVENTS_FILE, Event, RunEventType, lock_events
from kgent.records.lines import now
from kgent.records.logs import TOOLS_FILE, ToolCallRecord
from kgent.records.transcript import TRANSCRIPT_FILE
from kgent.review.consistency import read_seal
from kgent.review.report import each_record, read_answer, read_report, read_state
from kgent.review.verification import verify
from kgent.runtime.blocking import run_blocking
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.context import RunContext
from kgent.runtime.executor import FolderRun
from kgent.runtime.ids import RunIds
from kgent.runtime.options import RunResult
from kgent.runtime.questions import WAITING, AttemptQuestions
from kgent.runtime.runner import AttemptParts, open_means, require_parts
from kgent.runtime.state import SCHEMA_VERSION, Cause, RunState, RunStatus
from kgent.runtime.task import Continuation, FolderTask, read_options, read_prompt_at
from kgent.sandbox.attempts import read_sandbox_manifest
from kgent.sandbox.files import RunFiles
from kgent.sandbox.inputs import find_inputs, remove_inputs
from kgent.sandbox.manifest import SandboxManifest, list_entries
from kgent.sandbox.workspace import CONFIG_FILE, LOGS, PROMPT_FILE, RECORDS, WRITABLE

Answer = Literal["allow", "deny"]
Verdict = Literal["accept", "revise", "cancel"]

_S = RunStatus
VERDICTS: dict[Verdict, tuple[RunStatus, tuple[RunStatus, ...]]] = {
    "accept": (_S.completed, (_S.review_required,)),
    "revise": (_S.revision_required, (_S.review_required,)),
    "cancel": (
        _S.cancelled,
        (_S.incomplete, _S.failed, _S.waiting_for_user, _S.review_required, _S.revision_required),
    ),
}
"""The status that each verdict of a review gives, and the states in which it can be given."""

_REVISABLE = (_S.completed, _S.incomplete, _S.failed, _S.review_required, _S.revision_required)
_CURES = {
    _S.completed: "it is completed: `kgent revise` asks for changes",
    _S.waiting_for_user: "it waits for an answer: `kgent answer`",
    _S.review_required: "it waits for a review: `kgent review` or `kgent revise`",
    _S.revision_required: "a review has asked for changes: `kgent revise`",
    _S.cancelled: "it is cancelled for good: `kgent rerun` begins a new run",
    _S.incomplete: "it is incomplete: `kgent resume` continues it",
    _S.failed: "it has failed: `kgent resume` continues it",
}
_SHOWN_PROBLEMS = 5


def resume(root: Path | str, **parts: Unpack[AttemptParts]) -> RunResult:
    """Continue a run that was interrupted, has failed, or whose process was killed.

    A run that waits for an answer stays as it is: the result says what it waits for.

    Raises:
        KgentError: the run cannot be resumed; nothing has been changed.
    """
    with _opened(root) as folder:
        if folder.state.status is RunStatus.waiting_for_user:
            text, seal = read_answer(read_report(folder.root)), read_seal(folder.root)
            return RunResult.of(folder.state, folder.root, final_text=text, seal=seal)
        _require(folder, "resumed", (_S.incomplete, _S.failed))
        return _work(folder, "resume", parts)


def revise(root: Path | str, prompt: str | None = None, **parts: Unpack[AttemptParts]) -> RunResult:
    """Begin a new attempt with another prompt, in the same conversation and on the same files.

    The model also reads the reason of a review that has asked for the revision; then the prompt may
    be left out.

    Raises:
        KgentError: the run cannot be revised; nothing has been changed.
    """
    require("prompt", prompt, (str, NoneType), "a text or None")
    if prompt is not None and not prompt.strip():
        raise sandbox_error("the prompt is empty")
    with _opened(root) as folder:
        _require(folder, "revised", _REVISABLE)
        asked = folder.state.attempt.reason if folder.state.status is _S.revision_required else None
        reason = (asked or "").partition(": ")[2].strip()
        if prompt is None and not reason:
            raise sandbox_error(
                "there is no prompt, and no reason of a review that asks for a revision"
            )
        said = reason and f"A review asks for a revision: {reason}"
        prompt = "\n\n".join(one for one in (prompt, said) if one)
        return _work(folder, "revise", parts, prompt=prompt)


def answer(
    root: Path | str,
    request_id: str,
    verdict: Answer,
    *,
    by: str | None = None,
    reason: str | None = None,
    **parts: Unpack[AttemptParts],
) -> RunResult:
    """Answer a question of a waiting run, and carry the run on.

    `by` names the person; by default the user of this process.

    Raises:
        KgentError: there is no such question, or it has an answer; nothing has been changed.
    """
    require("request_id", request_id, str, "a text")
    _require_one_of("verdict", verdict, get_args(Answer))
    require("reason", reason, (str, NoneType), "a text or None")
    by = _person(by)
    with _opened(root) as folder:
        state = folder.state
        asked = next((one for one in state.requests if one.request_id == request_id), None)
        if asked is None:
            known = ", ".join(one.request_id for one in state.open_requests) or "none"
            raise sandbox_error(f"{root} has no request {quoted(request_id)}; open are: {known}")
        if asked.answer is not None:
            raise sandbox_error(f"{request_id} was answered before: {asked.answer}")
        _require(folder, "answered", (_S.waiting_for_user,))
        changes = {"answer": verdict, "by": by, "reason": reason, "answered_at": now()}
        requests = [
            one.model_copy(update=changes) if one is asked else one for one in state.requests
        ]
        folder.state = state.model_copy(update={"requests": requests})
        said = f"{verdict} {request_id}{f': {reason}' if reason else ''}"
        return _work(folder, "answer", parts, by=by, reason=said)


def review(
    root: Path | str, verdict: Verdict, *, by: str | None = None, reason: str | None = None
) -> RunResult:
    """Decide about a run: accept its result, ask for a revision, or cancel the run for good.

    `by` names the person; by default the user of this process.

    Raises:
        KgentError: the run is in no state for this verdict; nothing has been changed.
    """
    _require_one_of("verdict", verdict, get_args(Verdict))
    require("reason", reason, (str, NoneType), "a text or None")
    (status, states), by = VERDICTS[verdict], _person(by)
    with _opened(root) as folder, ExitStack() as stack:
        _require(folder, "reviewed like this", states)
        folder.refuse_changes()
        report, state = read_report(folder.root), folder.state
        profile = load_config(folder.root / CONFIG_FILE)
        said = f"{verdict}{f': {reason}' if reason else ''}"
        config, questions = fill_config(profile), AttemptQuestions(earlier=state.requests)
        context = folder.open_context(stack, config, Redactor({}), questions)
        with suppress(OSError):
            earlier = read_bytes(folder.root / TRANSCRIPT_FILE)
            context.records.transcript.continue_from(earlier.decode("utf-8", "replace"))
        continuation = Continuation(
            manifest=folder.manifest(),
            prompt_at=read_prompt_at(folder.root),
            verdict=status,
            text=read_answer(report),
            checks=state.checks,
        )
        task = FolderTask(
            state=_begin(folder, "review", by, said, context.records),
            profile=profile,
            prompt=folder.prompt(),
            continuation=continuation,
        )
        return run_blocking(FolderRun(context, task).run)


def _require_one_of(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        message = (
            f"{name} must be {' or '.join(map(repr, choices))}, not {shortened(repr(value), 80)}"
        )
        raise config_error(message, ErrorCode.VALIDATION_ERROR)


def _person(name: str | None) -> str:
    """Return who decides: the given name, or the user of this process."""
    require("by", name, (str, NoneType), "a text or None")
    if name is not None:
        if not name.strip():
            raise sandbox_error("the name of the person is empty")
        return name
    user = os.geteuid()
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # as in a container
        return f"user {user}"


# --- the folder of a run --------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Folder:
    """A run folder whose lock this process has, and the run as it rests in it.

    `is_recovered`: its last attempt was closed just now, because its process had died.
    """

    root: Path
    lock: int
    state: RunState
    is_recovered: bool = False
    changes: list[str] = field(default_factory=list[str])

    @property
    def ids(self) -> RunIds:
        """Return the ids of the run."""
        return RunIds(self.state.session_id, self.state.task_id, self.state.run_id)

    def prompt(self) -> str:
        """Return the prompt of the last attempt."""
        return read_bytes(self.root / PROMPT_FILE).decode("utf-8", "replace")

    def manifest(self) -> SandboxManifest:
        """Return the sandbox manifest of the last attempt; a new one if it was killed too early."""
        with suppress(OSError, ValueError):
            return read_sandbox_manifest(self.root).model_copy(update={"files": [], "modes": {}})
        return SandboxManifest.of(self.root)

    def messages(self) -> list[ArchivedMessage]:
        """Return the conversation so far."""
        try:
            lines = read_text(self.root / CONVERSATION_FILE).split("\n")
        except FileNotFoundError:
            return []
        try:
            return in_call_order(json.loads(line) for line in lines if line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise sandbox_error(f"the conversation in {self.root} is damaged") from error

    def refuse_changes(self, *allowed: str) -> None:
        """Refuse a folder that differs from what the last attempt left.

        Differences below the `allowed` folders are only noted, and so is that one is gone.

        Raises:
            KgentError: category `sandbox`; it differs.
        """
        if self.is_recovered:  # what a killed process has left is not known
            return
        problems = verify(self.root).problems
        places = tuple(
            start for name in allowed for start in (f"{name}/", f"{name} (folder) is missing")
        )
        self.changes = [one for one in problems if places and one.startswith(places)]
        wrong = [one for one in problems if one not in self.changes]
        if wrong:
            shown = "; ".join(wrong[:_SHOWN_PROBLEMS])
            raise sandbox_error(f"{self.root} is not as its last attempt left it: {shown}")

    def records(self, redactor: Redactor) -> RunRecords:
        """Return the records of the run, to be continued."""
        root, records = self.root, RunRecords(self.root, self.ids, redactor=redactor)
        records.files.lock(EVENTS_FILE, os.dup(self.lock))
        archived = [
            entry.name
            for entry in list_entries(root)
            if entry.kind == "file" and entry.name.startswith(f"{ARCHIVE}/")
        ]
        for name in (*RECORDS, *archived):
            with suppress(OSError, AgentCoreError):  # noted as changed, if it matters
                records.files.adopt(name)
        records.continue_from(
            [event for event in each_record(root / EVENTS_FILE, Event) if event is not None],
            calls=each_record(root / TOOLS_FILE, ToolCallRecord),
            errors=sum(1 for _ in each_record(root / ERRORS_FILE, ErrorRecord)),
            messages=self.messages(),
            archived=archived,
        )
        return records

    def open_context(
        self,
        stack: ExitStack | AsyncExitStack,
        config: KgentConfig,
        redactor: Redactor,
        questions: AttemptQuestions,
        *,
        cancellation: Cancellation | None = None,
    ) -> RunContext:
        """Return the context of the next attempt; the stack closes it."""
        return RunContext(
            **self.ids._asdict(),
            profile_id=self.state.profile_id,
            config_fingerprint=self.state.config_fingerprint,
            sandbox_root=self.root,
            config=config,
            records=stack.enter_context(closing(self.records(redactor))),
            launcher=stack.enter_context(closing(Launcher())),
            cancellation=cancellation or Cancellation(),
            questions=questions,
        )


@contextmanager
def _opened(root: Path | str) -> Generator[_Folder]:
    """Lock a run folder, and close its last attempt if the process of that has died.

    Raises:
        KgentError: category `sandbox`; it is no run folder, a process works on it, or a release
          without attempts made it.
    """
    root = expand_home(root, "root").resolve()
    if read_state(root).schema_version < SCHEMA_VERSION:
        raise sandbox_error(
            f"an earlier release of kgent made {root}, without what an attempt needs:"
            " `kgent rerun` begins a new run"
        )
    try:
        lock = lock_events(root)
    except OSError as error:
        raise sandbox_error(f"{root / EVENTS_FILE} cannot be opened: {error.strerror}") from error
    if lock is None:
        raise sandbox_error(f"another process works on {root}: wait for it to end, or stop it")
    try:
        RunFiles(root).unfinished.clear()  # files that a killed process has not finished
        folder = _Folder(root=root, lock=lock, state=read_state(root))
        if folder.state.status.is_active:
            _recover(folder)
        yield folder
    finally:
        os.close(lock)


def _require(folder: _Folder, what: str, states: Sequence[RunStatus]) -> None:
    status = folder.state.status
    if status not in states:
        cure = _CURES.get(status, f"it is {status}")
        raise sandbox_error(f"{folder.root} cannot be {what}: {cure}")


# --- an attempt whose process has died ------------------------------------------------------------


def _recover(folder: _Folder) -> None:
    """Close the last attempt as its process would have: with what is on disk."""
    root, state = folder.root, folder.state
    for name in (*LOGS, CONVERSATION_FILE):
        _cut_torn_line(root / name)
    _cut_closing_event(root, state)
    with ExitStack() as stack:
        profile = load_config(root / CONFIG_FILE)
        questions = AttemptQuestions(earlier=state.requests)
        context = folder.open_context(stack, fill_config(profile), Redactor({}), questions)
        _complete_events(root, state, context)
        task = FolderTask(
            state=state,
            profile=profile,
            prompt=folder.prompt(),
            continuation=Continuation(manifest=folder.manifest()),
        )
        folder.state = FolderRun(context, task).close_lost()
        folder.is_recovered = True


def _cut_torn_line(path: Path) -> None:
    """Remove the last line of a file if it was not written to its end."""
    with suppress(FileNotFoundError):
        _cut(path, read_bytes(path).rfind(b"\n") + 1)


def _cut_closing_event(root: Path, state: RunState) -> None:
    """Remove the end that the attempt announced, because it was not reached."""
    ends = {f"run.{status}" for status in RunStatus if not status.is_active}
    events = each_record(root / EVENTS_FILE, Event)
    closed = sum(event is not None and event.type in ends for event in events)
    if closed == len(state.attempts):
        path = root / EVENTS_FILE
        _cut(path, read_bytes(path).rstrip(b"\n").rfind(b"\n") + 1)


def _cut(path: Path, size: int) -> None:
    descriptor = open_descriptor(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def _complete_events(root: Path, state: RunState, context: RunContext) -> None:
    """Record what the process had begun to record: the attempt, and the ends of calls."""
    found = [event for event in each_record(root / EVENTS_FILE, Event) if event is not None]
    begun = sum(event.type in {"run.created", "attempt.created"} for event in found)
    emit = context.records.events.emit
    if begun < len(state.attempts):
        kind: RunEventType = "attempt.created" if begun else "run.created"
        emit(kind, f"run {state.run_id}", context.core_fields())
    ended = Counter((event.correlation_id, event.type) for event in found)
    for call in list(each_record(root / TOOLS_FILE, ToolCallRecord)):
        if call is None:
            continue
        event = cast("RunEventType", f"tool.{call.status}")
        if ended[call.call_id, event] > 0:
            ended[call.call_id, event] -= 1
            continue
        summary = f"{call.tool_name}: {call.result_summary or ''}"
        data: dict[str, Any] = {"tool": call.tool_name}
        if call.error is not None:
            data["error"] = call.error.model_dump(mode="json", exclude_none=True)
        emit(event, summary, data, correlation_id=call.call_id)


# --- an attempt that works ------------------------------------------------------------------------


def _begin(
    folder: _Folder, cause: Cause, by: str | None, reason: str | None, records: RunRecords
) -> RunState:
    """Return the state of the run with another attempt begun."""
    here = folder.state.model_copy(update={"sandbox_root": str(folder.root)})  # it may have moved
    seal = read_seal(folder.root)
    return here.begun(cause, when=records.now(), seal=seal, by=by, reason=reason)


def _work(
    folder: _Folder,
    cause: Cause,
    parts: AttemptParts,
    *,
    prompt: str | None = None,
    by: str | None = None,
    reason: str | None = None,
) -> RunResult:
    """Begin an attempt with the engine, and do it."""
    require_parts(**parts)
    folder.refuse_changes(*WRITABLE)
    begin = partial(_begin, folder, cause, by, reason)
    return run_blocking(partial(_work_async, folder, parts, prompt, begin))


async def _work_async(
    folder: _Folder,
    parts: AttemptParts,
    prompt: str | None,
    begin: Callable[[RunRecords], RunState],
) -> RunResult:
    root, state = folder.root, folder.state
    async with AsyncExitStack() as stack:
        is_prepared = state.started_at is not None
        profile = load_config(root / CONFIG_FILE) if is_prepared else _load_original(folder)
        config = fill_config(profile)
        engine, memory = parts.get("engine"), parts.get("memory")
        means = await open_means(stack, config, engine=engine, memory=memory)
        inputs = find_inputs(config)
        messages = folder.messages()
        last, prompt_at = folder.prompt(), read_prompt_at(root)
        is_sent = prompt is None and _has_prompt(messages[prompt_at:], last)
        answers = _answer_open_calls(root, messages, has_new_prompt=not is_sent)
        waiting = {call["tool_call_id"] for call in open_calls([*messages, *answers])}
        questions = AttemptQuestions(
            parks=config.runtime.unattended == "park",
            attempt=len(state.attempts) + 1,
            earlier=state.requests,
            open_calls=waiting,
        )
        cancellation = parts.get("cancellation") or Cancellation()
        context = folder.open_context(
            stack, config, Redactor(means.secrets), questions, cancellation=cancellation
        )
        if not is_prepared:
            remove_inputs(root)
        continuation = Continuation(
            manifest=folder.manifest(),
            is_prepared=is_prepared,
            has_new_prompt=not is_sent,
            prompt_at=prompt_at if is_sent else len(messages) + len(answers),
            answers=answers,
            changes=folder.changes,
        )
        task = FolderTask(
            state=begin(context.records),
            profile=profile,
            prompt=last if prompt is None else prompt,
            inputs=inputs,
            continuation=continuation,
        )
        return await FolderRun(context, task, means, parts.get("event_callback")).run()


def _load_original(folder: _Folder) -> KgentConfig:
    """Load the profile of a run whose engine never began, from where it was.

    Raises:
        KgentError: it cannot be used, or is another one now.
    """
    state = folder.state
    profile = apply_cli_overrides(load_config(state.config_path), read_options(folder.root))
    if fingerprint_config(profile) != state.config_fingerprint:
        raise sandbox_error(
            f"the run ended before it had copied what its profile names, and the profile"
            f" {state.config_path} has changed since: `kgent run` begins a new run"
        )
    return profile


def _has_prompt(messages: Sequence[ArchivedMessage], prompt: str) -> bool:
    asked = (one for one in messages if one["role"] == "user")
    texts = (block["text"] for block in blocks_of(asked, "text"))
    return any(text.encode("utf-8", "replace").decode() == prompt for text in texts)


def _answer_open_calls(
    root: Path, messages: Sequence[ArchivedMessage], *, has_new_prompt: bool
) -> list[ArchivedMessage]:
    """Return answers to the calls that must not be made again, because they had begun.

    Before a new prompt every call gets an answer.
    """
    ends: dict[str, Event] = {}
    for event in each_record(root / EVENTS_FILE, Event):
        if event is not None and event.correlation_id and event.type.startswith("tool."):
            ends[event.correlation_id] = event
    answers: list[ArchivedMessage] = []
    for call in open_calls(messages):
        call_id = call["tool_call_id"]
        last = ends.get(call_id)
        if last is None or last.data.get("error", {}).get("code") == WAITING:
            if not has_new_prompt:
                continue
            text = "the call was not made"
        elif last.type == "tool.started":
            text = "the process ended during this call; whether it had an effect is not known"
        else:
            text = f"the process ended before the result was stored; its record: {last.summary}"
        error = ErrorInfo(code=INTERRUPTED, message=text, category=ErrorCategory.TOOL)
        content: dict[str, Any] = {
            "ok": False,
            "summary": text,
            "artifacts": [],
            "error": error.model_dump(mode="json", exclude_none=True),
        }
        block = result_block(call_id, call["name"], content, is_error=True)
        answers.append(message("tool", now(), block))
    return answers
