"""One turn's tool calls: readers concurrently, writers alone; every call is answered."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from time import perf_counter
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field

from agent_core.aio import end_uncancelled, finish_uncancelled, is_cancelled, stop_if_cancelled
from agent_core.errors import (
    REFUSALS,
    RETRY,
    AgentCoreError,
    CallChangedError,
    ErrorCode,
    ParkedError,
    ToolError,
)
from agent_core.events import Journal
from agent_core.extensions import BrokenExtensionError, JudgedCall
from agent_core.loop.context import RunContext
from agent_core.redaction import log_failure
from agent_core.text import gist_of_arguments, plural, shorten_text
from agent_core.tools.base import (
    Action,
    CutCallError,
    Tool,
    ToolContext,
    batches,
    changes_nothing,
    not_run,
    run_in_time,
    stops_changes,
)
from agent_core.tools.limits import BoundedResult
from agent_core.tools.results import OpenCall, failure_of
from agent_core.types import (
    CHANGED,
    EFFECT_UNKNOWN,
    NEVER_BEGAN,
    NO_FLAGS,
    Access,
    Draft,
    ErrorPayload,
    EventLevel,
    EventType,
    NodeFlags,
    Role,
    ToolCall,
    ToolResult,
    ToolResultBlock,
    new_id,
)

logger = logging.getLogger(__name__)

_ABORTED = NodeFlags(partial=True, aborted=True, abort_reason="run_cancelled")
_HANDED_OVER = NodeFlags(abort_reason="run_cancelled")
_NOT_RUN = NodeFlags(reason="previous_write_failed")
_NOT_MADE = NodeFlags(reason="interrupted_before_start")
_RUN_FAILED = NodeFlags(reason="run_failed")
_RAN = "the run was cancelled while this call ran; it may have had part of its effect"
_FIRST_CHANGE = r"^@@ -\d+(?:,\d+)? \+(\d+)"
_WITH_DETAILS = frozenset({"execute", "read", "search"})
"""Kinds of calls whose end events have details of the result."""
_AFTER_CANCEL_S = 5.0
"""Seconds that extensions have for a call that was cancelled."""


_LONGEST_FAULT = 2_000


class _CallProgress(Struct):
    """Progress of a call.

    Attributes:
        call: the call, with the arguments that are used.
        received: time of its arrival, as from `perf_counter`.
        judged: time at which permission was asked for, if it was.
        access: what the call would touch, known from then on.
        tool: the tool; like the following fields, known once the permission is given.
        waited_s: seconds that people took to answer; None if they were not asked.
        began: time at which its action began.
        fault: what the program is told, and the model is not.
    """

    call: ToolCall
    received: float = field(default_factory=perf_counter)
    judged: float | None = None
    access: Access | None = None
    tool: Tool | None = None
    waited_s: float | None = None
    began: float | None = None
    fault: str | None = None

    def begin(self, tool: Tool, access: Access) -> dict[str, Any]:
        """Return the facts of a call that is about to run: its kind, and the files it names."""
        self.tool = tool
        facts: dict[str, Any] = {"kind": tool.kind}
        if access.confined and tool.kind == "execute":
            facts["confined"] = access.confined
        if access.paths and tool.kind != "execute":  # a command only mentions them
            change = re.search(_FIRST_CHANGE, access.diff, re.MULTILINE) if access.diff else None
            line = int(change[1]) if change else access.line
            facts["paths"] = [
                {"path": path, "line": line} if line else {"path": path} for path in access.paths
            ]
        return facts

    def end(self, result: ToolResult, journal: Journal) -> dict[str, Any]:
        """Return the facts of an ended call: its duration, and details of a command or change."""
        start, end = self.began, perf_counter()
        if start is None:  # it never began: the time until this was known, without the question
            start, end = self.received, self.judged or end
        facts: dict[str, Any] = {"duration_ms": round((end - start) * 1e3)}
        if self.waited_s is not None:
            facts["waited_ms"] = round(self.waited_s * 1e3)
        access = self.access
        if self.began is None and access is not None and access.summary:
            facts["summary"] = access.summary
        kind = self.tool.kind if self.tool is not None else "other"
        has_details = access is not None and (kind in _WITH_DETAILS or access.diff)
        if self.began is None or access is None or not has_details:
            return facts
        from agent_core.tools import facts as known  # noqa: PLC0415 - not before the first call

        if kind == "execute":
            facts |= known.command_facts(result, journal.clean)
        elif access.diff and not result.is_error:
            facts |= known.shown_diff(access.diff, journal.clean)
        elif kind in {"read", "search"} and not result.is_error:
            facts |= known.found_facts(result)
        return facts


async def run_tools(ctx: RunContext, calls: Sequence[ToolCall]) -> None:
    """Answer every call. After a failed write, only the remaining calls that read are run.

    Raises:
        asyncio.CancelledError: the run was cancelled; every call has its answer all the same.
        AgentCoreError: an extension has ended the run after a call; every call has its answer.
        ParkedError: the run waits for the user; calls without an answer have had no effect.
    """
    waiting = list(calls)
    adds: list[Draft] = []
    parked: dict[str, ParkedError] = {}
    has_failed = False
    try:
        for concurrency, batch in batches(calls, ctx.toolbox.concurrency):
            stop_if_cancelled()
            if ctx.journal.failure is not None:
                raise ctx.journal.failure  # these calls follow from a reply that is not stored
            if has_failed and not changes_nothing(concurrency):
                for call in batch:  # they rely on the one that failed
                    _answer(ctx.journal, call, not_run(call), flags=_NOT_RUN)
                await ctx.extensions.calls_dropped(batch)
                del waiting[: len(batch)]
                continue
            is_alone = len(batch) == 1
            done = (
                [await run_tool(ctx, batch[0], waiting[1:])]
                if is_alone
                else await _run_all(ctx, batch, adds, parked, waiting[len(batch) :])
            )
            del waiting[: len(batch)]
            for bounded in done:
                adds.extend(bounded.adds)
            has_failed |= stops_changes(concurrency, done[0].result)
    except ParkedError:
        for draft in adds:
            ctx.journal.add(draft, EventType.MESSAGE_CREATED)
        raise
    except BaseException as ended:  # cancelled, or an extension has ended the run after a call
        is_cancelled = isinstance(ended, asyncio.CancelledError)
        await _answer_rest(ctx, waiting, parked, is_cancelled=is_cancelled)
        raise
    for draft in adds:
        ctx.journal.add(draft, EventType.MESSAGE_CREATED)


async def _answer_rest(
    ctx: RunContext,
    waiting: Sequence[ToolCall],
    parked: Mapping[str, ParkedError],
    *,
    is_cancelled: bool,
) -> None:
    """Answer the calls of a turn that were not made, or wait for the user, because the run ends."""
    journal = ctx.journal
    tail = journal.path[-len(waiting) - 1 :]
    answered = {result.tool_call_id for node in tail for result in node.results}
    for call in waiting:
        if call.tool_call_id in answered:
            continue
        found = parked.get(call.tool_call_id)
        if found is not None and found.cut is not None:
            _answer(journal, call, await _cut_parked(ctx, call, found.cut), flags=_HANDED_OVER)
        elif is_cancelled:
            _answer(journal, call, _aborted(call, NEVER_BEGAN), flags=_NOT_MADE)
        else:
            _answer(journal, call, not_run(call, "run_failed"), flags=_RUN_FAILED)


async def _cut_parked(
    ctx: RunContext, call: ToolCall, cut: Callable[[], Coroutine[Any, Any, ToolResult]]
) -> ToolResult:
    """Return the answer to a call that began and waits for the user; `cut` builds its result."""

    async def build() -> ToolResult:
        return (await ctx.results.limit(await cut(), ctx.run, call)).result

    result = _aborted(call, _RAN)
    try:
        return _cut(result, await end_uncancelled(build()))
    except AgentCoreError as error:
        log_failure(logger, f"{call.name} has no result", error=error, clean=ctx.journal.clean)
        return result


async def finish_turn(ctx: RunContext, open_calls: Sequence[ToolCall]) -> None:
    """Run the remaining calls of an interrupted turn; after a failed write only those that read.

    A call whose process died during it has not failed: its effect is unknown, and the next call is
    run.

    Raises:
        asyncio.CancelledError: the run was cancelled.
        ParkedError: the run waits for the user.
    """
    path, waiting = ctx.journal.path, {call.tool_call_id for call in open_calls}
    results = {result.tool_call_id: result for node in path for result in node.results}
    asked = [node.calls for node in path if node.calls]
    turns = [calls for calls in asked if any(call.tool_call_id in waiting for call in calls)]
    order = [call for calls in turns for call in calls]
    later: set[str] = set()
    for place, call in enumerate(order):
        result = results.get(call.tool_call_id)
        if result is None or result.metadata.get("reason") == EFFECT_UNKNOWN:
            continue
        if stops_changes(ctx.toolbox.concurrency(call), result):
            later = {
                after.tool_call_id
                for after in order[place:]
                if not changes_nothing(ctx.toolbox.concurrency(after))
            }
            break
    dropped = [call for call in open_calls if call.tool_call_id in later]
    for call in dropped:
        _answer(ctx.journal, call, not_run(call), flags=_NOT_RUN)
    if dropped:
        await ctx.extensions.calls_dropped(dropped)
    await run_tools(ctx, [call for call in open_calls if call.tool_call_id not in later])


async def _run_all(
    ctx: RunContext,
    batch: Sequence[ToolCall],
    adds: list[Draft],
    parked: dict[str, ParkedError],
    later: Sequence[ToolCall],
) -> list[BoundedResult]:
    """Run calls concurrently; `parked` gets the calls that wait for the user."""

    async def run(call: ToolCall) -> BoundedResult:
        try:
            if ctx.toolbox.limits_retries:
                async with _within_retries(ctx, call):
                    return await run_tool(ctx, call, later)
            return await run_tool(ctx, call, later)
        except ParkedError as error:
            parked[call.tool_call_id] = error
            raise

    done = await asyncio.gather(*map(run, batch), return_exceptions=True)
    for result in done:
        if isinstance(result, BaseException) and not isinstance(result, ParkedError):
            raise result  # cancelled: every call has its answer
    results = [result for result in done if isinstance(result, BoundedResult)]
    if parked:
        ctx.extensions.require_going()  # a run that is stopped asks no more questions
        adds.extend(draft for bounded in results for draft in bounded.adds)
        waits = (each for each in done if isinstance(each, ParkedError))
        ids = [request_id for each in waits for request_id in each.request_ids]
        raise ParkedError(*dict.fromkeys(ids))
    return results


async def run_tool(
    ctx: RunContext, call: ToolCall, later: Sequence[ToolCall] = ()
) -> BoundedResult:
    """Run one call and add its answer to the journal; failures are answers to the model.

    `later` are the calls of the same reply that follow.
    """
    course = _CallProgress(changed_call(ctx.toolbox.unwrap(call)))
    try:
        try:
            with _open_call(ctx, course.call) as open_call:
                tool, action = await _admit(ctx, course, open_call, later)
                call = course.call
                written = _canonical(call.arguments).encode(errors="surrogatepass")
                payload = {
                    "tool_name": call.name,
                    "arguments_hash": sha256(written).hexdigest(),  # ties it to the request
                    "summary": action.access.summary,
                    **course.begin(tool, action.access),
                }
                ctx.journal.note(EventType.TOOL_STARTED, payload, tool_call_id=call.tool_call_id)
                if not tool.is_side_effect_free:
                    await ctx.journal.commit()  # an effect must be on record before it can happen
                course.began = perf_counter()  # a call that has not begun has had no effect
                run = action.run
                if tool.timeout_s is not None:
                    run = partial(run_in_time, tool, action.run)
                returned = await ctx.extensions.run_tool(call, run)
            bounded = await ctx.results.limit(returned, ctx.run, call, tool=tool)
        except ParkedError:
            raise
        except BaseException as error:  # an exception meant to end the program ends only this call
            if isinstance(error, asyncio.CancelledError) and is_cancelled(asyncio.current_task()):
                raise
            fault = failure_of(course.call.name, _fault_of(ctx, course, error))
            bounded = await ctx.results.limit_failure(fault, ctx.run, course.call)
    except asyncio.CancelledError as cancelled:
        has_begun = course.began is not None
        result = _aborted(course.call, _RAN if has_begun else NEVER_BEGAN)
        flags = _ABORTED if has_begun else _NOT_MADE
        if isinstance(cancelled, CutCallError) and course.tool is not None:
            limited = ctx.results.limit(cancelled.result, ctx.run, course.call, tool=course.tool)
            result = _cut(result, (await end_uncancelled(limited)).result)
            flags = _HANDED_OVER
        stored = _answer(ctx.journal, course.call, result, course=course, flags=flags)
        if has_begun:
            await _show_cancelled(ctx, course.call, stored)
        if isinstance(cancelled, CutCallError):  # the timeouts of asyncio know no other kind
            raise asyncio.CancelledError from cancelled
        raise
    stored = _answer(ctx.journal, course.call, bounded.result, course=course)
    await ctx.extensions.after_tool_call(course.call, stored)
    return bounded


def _fault_of(ctx: RunContext, course: _CallProgress, error: BaseException) -> BaseException:
    """Log an exception that no tool means to raise, and return what the model reads of it."""
    if isinstance(error, BrokenExtensionError):
        what = f"the extension {error.details['extension']} broke at {course.call.name}"
        log_failure(logger, what, error=error.__cause__ or error, clean=ctx.journal.clean)
        course.fault = shorten_text(error.message, _LONGEST_FAULT)
        return error.for_model(has_begun=course.began is not None)
    if not isinstance(error, AgentCoreError):
        what = f"tool {course.call.name} broke"
        log_failure(logger, what, error=error, clean=ctx.journal.clean)
    return error


async def _show_cancelled(ctx: RunContext, call: ToolCall, result: ToolResult) -> None:
    """Show a call that was cancelled to the extensions, for a short time.

    Their failures are logged: the run is cancelled all the same.
    """
    try:
        async with asyncio.timeout(_AFTER_CANCEL_S):
            await ctx.extensions.after_tool_call(call, result)
    except TimeoutError:
        pass
    except Exception as error:  # noqa: BLE001 - as described
        what = f"an extension failed after {call.name} was cancelled"
        log_failure(logger, what, error=error, clean=ctx.journal.clean)


async def _admit(
    ctx: RunContext, course: _CallProgress, opened: OpenCall, later: Sequence[ToolCall]
) -> tuple[Tool, Action]:
    """Find out what a call would do, and return once it is allowed.

    A call that is allowed with other arguments is judged again, with the new ones.

    Raises:
        AgentCoreError: the call cannot be made, or is not allowed.
        ParkedError: the run waits for the user.
    """
    while True:
        call = course.call
        if ctx.toolbox.limits_retries:
            _require_retries_left(ctx, call)
        tool, arguments = ctx.toolbox.resolve(call)
        hook_summary = await ctx.extensions.before_tool_call(call, tool.definition)
        action = await tool.prepare(arguments, _context_of(ctx, call, opened))
        access = action.access
        if hook_summary is not None:
            access = replace(access, hook_summary=hook_summary)
        asked = course.judged = perf_counter()
        course.access = access
        try:
            find_later = partial(_find_later, ctx, later)
            judged = JudgedCall(call, tool.definition, access, ctx.journal, find_later)
            waited = await ctx.extensions.admit_tool_call(judged)
        except CallChangedError as changed:
            course.waited_s = perf_counter() - asked
            course.call = changed_call(call, changed.request_id, changed.arguments)
            continue
        if waited is not None:
            course.waited_s = waited + (course.waited_s or 0.0)
        return tool, action


async def _find_later(ctx: RunContext, calls: Sequence[ToolCall]) -> list[JudgedCall]:
    """Return what these calls would do if they were made now, as far as that is known."""
    found: list[JudgedCall] = []
    for call in map(ctx.toolbox.unwrap, calls):
        with suppress(Exception):  # a call may need what an earlier one does
            with _open_call(ctx, call) as opened:
                tool, arguments = ctx.toolbox.resolve(call)
                action = await tool.prepare(arguments, _context_of(ctx, call, opened))
            found.append(JudgedCall(call, tool.definition, action.access, ctx.journal))
    return found


def _context_of(ctx: RunContext, call: ToolCall, opened: OpenCall) -> ToolContext:
    return ToolContext(
        run=ctx.run,
        tool_call_id=call.tool_call_id,
        project_dir=ctx.project_dir,
        progress=opened.progress,
        artifact=opened.artifact,
        is_cancelled=opened.is_cancelled,
        show_output=partial(ctx.journal.show_output, call),
        deps=ctx.toolbox.deps,
        ask_agent=ctx.toolbox.ask_agent,
    )


@asynccontextmanager
async def _within_retries(ctx: RunContext, call: ToolCall) -> AsyncGenerator[None]:
    """Hold a call back while it and those at work could fail more often than its tool allows."""
    tool = ctx.toolbox.get(ctx.toolbox.unwrap(call).name)
    if tool is None or tool.max_retries is None:
        yield
        return
    name, most, at_work = tool.name, tool.max_retries, ctx.toolbox.at_work
    changed = ctx.toolbox.work_changed

    def may_begin() -> bool:
        failed = _failed_calls(ctx, name)
        return failed > most or not at_work[name] or failed + at_work[name] <= most

    async with changed:
        await changed.wait_for(may_begin)
        at_work[name] += 1
    try:
        yield
    finally:
        at_work[name] -= 1
        await finish_uncancelled(_notify(changed))


async def _notify(changed: asyncio.Condition) -> None:
    async with changed:
        changed.notify_all()


def _require_retries_left(ctx: RunContext, call: ToolCall) -> None:
    """Refuse a call of a tool that this run has called too often in a way it could not use.

    Raises:
        ToolError: `tool_not_available`.
    """
    tool = ctx.toolbox.get(call.name)
    if tool is None or tool.max_retries is None:
        return
    failed = _failed_calls(ctx, tool.name)
    if failed > tool.max_retries:
        message = (
            f"{tool.name} was called {plural(failed, 'time')} in a way that it could not use, and"
            " cannot be called again in this run; answer without it"
        )
        details = {"tool_name": tool.name, "max_retries": tool.max_retries}
        raise ToolError(ErrorCode.TOOL_NOT_AVAILABLE, message, details=details)


def _failed_calls(ctx: RunContext, name: str) -> int:
    """Return how often this run has called a tool in a way it could not use."""
    return sum(
        _is_retry(result, name)
        for node in ctx.journal.path
        if node.run_id == ctx.run.run_id
        for result in node.results
    )


def _is_retry(result: ToolResultBlock, tool_name: str) -> bool:
    """Return whether a call failed because of its arguments, or asked for another one."""
    error = result.error
    if error is None or result.metadata.get("tool_name") != tool_name:
        return False
    is_misfit = error.code is ErrorCode.VALIDATION_ERROR and "path" in error.details
    return is_misfit or error.details.get("reason") == RETRY


def changed_call(
    call: ToolCall, request_id: str = "", arguments: Mapping[str, Any] | None = None
) -> ToolCall:
    """Return the call with the arguments it was allowed with; by default those in its metadata.

    Args:
        call: the call as the model made it, or as it was read back.
        request_id: id of the question that was answered with other arguments.
        arguments: the changed arguments.
    """
    if arguments is not None:
        change = {"request_id": request_id, "arguments": dict(arguments)}
        return call.model_copy(
            update={"arguments": dict(arguments), "metadata": {**call.metadata, CHANGED: change}}
        )
    change = call.metadata.get(CHANGED)
    return call if change is None else call.model_copy(update={"arguments": change["arguments"]})


def abort_open_calls(
    journal: Journal, cut: Mapping[str, ToolResult] = MappingProxyType({})
) -> None:
    """Answer the calls that a cancelled run leaves open.

    `cut` has what is known of calls that had begun, by the ids of the calls.
    """
    answered = {result.tool_call_id for node in journal.path for result in node.results}
    mine = (node for node in journal.path if node.run_id == journal.run.run_id)
    blocks = (call for node in mine if not node.is_partial for call in node.calls)
    for block in [block for block in blocks if block.tool_call_id not in answered]:
        call = ToolCall(**block.model_dump(exclude={"type"}))
        if (known := cut.get(call.tool_call_id)) is not None:
            _answer(journal, call, _cut(_aborted(call, _RAN), known), flags=_HANDED_OVER)
        else:
            _answer(journal, call, _aborted(call, NEVER_BEGAN), flags=_NOT_MADE)


def _open_call(ctx: RunContext, call: ToolCall) -> OpenCall:
    def show(text: str) -> None:
        payload = {"tool_name": call.name, "text": text}
        ctx.journal.note(EventType.TOOL_PROGRESS, payload, tool_call_id=call.tool_call_id)

    task = asyncio.current_task()
    return OpenCall(show, ctx.results.writer(ctx.run, call), lambda: is_cancelled(task))


@contextmanager
def open_answer(ctx: RunContext, name: str) -> Generator[ToolContext]:
    """Yield the context of an output function, which is called like a tool, but is no call."""
    call = ToolCall(tool_call_id=new_id("call"), name=name)
    with _open_call(ctx, call) as opened:
        yield _context_of(ctx, call, opened)


def _answer(
    journal: Journal,
    call: ToolCall,
    result: ToolResult,
    *,
    course: _CallProgress | None = None,
    flags: NodeFlags = NO_FLAGS,
) -> ToolResult:
    """Add the call's one answer and its event to the journal; return it without secrets.

    `flags` are set by the loop alone: metadata written by a tool is data, and hides nothing.
    """
    payload: dict[str, object] = {"tool_name": call.name, "is_error": result.is_error}
    if course is None or course.began is None:  # no event has described it
        payload["summary"] = gist_of_arguments(call.arguments)
    if course is not None:
        payload |= course.end(result, journal)
    event, level = EventType.TOOL_COMPLETED, EventLevel.INFO
    if result.is_error:
        event, level = EventType.TOOL_FAILED, EventLevel.WARNING
    if error := result.error:
        fault = None if course is None else course.fault
        payload |= {"code": error.code, "message": fault or error.message}
        if error.code in REFUSALS:
            event = EventType.TOOL_DENIED
            if denied_by := error.details.get("denied_by"):
                payload["denied_by"] = denied_by
        elif error.code is ErrorCode.TIMEOUT:
            journal.note(
                EventType.TOOL_TIMEOUT, payload, level=level, tool_call_id=call.tool_call_id
            )
        if hook_summary := error.details.get("hook_summary"):
            payload["hook_summary"] = hook_summary
    block = ToolResultBlock.of_checked(
        type="tool_result",
        tool_call_id=call.tool_call_id,
        is_error=result.is_error,
        content=result.content,
        error=result.error,
        metadata={**result.metadata, "tool_name": call.name},
    )
    facts: dict[str, Any] = {"tool_name": call.name}
    if CHANGED in call.metadata:
        facts[CHANGED] = call.arguments  # the arguments that the model sees from now on
    draft = Draft(Role.TOOL, [block], metadata=facts, flags=flags)
    node = journal.add(draft, event, payload=payload, level=level, tool_call_id=call.tool_call_id)
    (clean,) = node.results
    metadata = {key: clean.metadata[key] for key in result.metadata} if result.metadata else {}
    return result.model_copy(
        update={"content": clean.content, "error": clean.error, "metadata": metadata}
    )


def _aborted(call: ToolCall, message: str) -> ToolResult:
    error = ToolError(ErrorCode.CANCELLED, message, details={"reason": "run_cancelled"})
    return ToolResult(
        tool_call_id=call.tool_call_id,
        tool_name=call.name,
        is_error=True,
        error=ErrorPayload.of(error),
        metadata=_ABORTED.as_metadata(),
    )


def _cut(aborted: ToolResult, known: ToolResult) -> ToolResult:
    """Return the answer to a cancelled call that hands over what is known of it."""
    changes: dict[str, Any] = {
        "content": known.content,
        "error": known.error or aborted.error,
        "metadata": {**known.metadata, **aborted.metadata},
    }
    return aborted.model_copy(update=changes)


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str).encode
