"""The report on a child for its parent: one structured result."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NotRequired, TypedDict, cast

from pydantic_core import to_jsonable_python

from agent_core.agents.child_runs import ChildCancelReason, ChildRun
from agent_core.context.messages import artifact_ids
from agent_core.errors import ErrorCode, ToolError
from agent_core.loop.context import RunStats
from agent_core.storage.store import SessionStore
from agent_core.text.json_text import JsonObject, table
from agent_core.tools.results import parse_answer
from agent_core.types import (
    EFFECT_UNKNOWN,
    HELD_ANSWER,
    EndReason,
    ErrorPayload,
    EventLevel,
    EventType,
    JsonBlock,
    Node,
    Role,
    RunIdentity,
    RunRecord,
    RunStatus,
    ToolResult,
    Usage,
)

_LISTS = ("findings", "proposed_actions")


class ChildReport(TypedDict):
    """The report on a child: its answer in fields, and the facts of its run."""

    status: str
    summary: str
    findings: list[Any]
    proposed_actions: list[Any]
    artifacts: list[str]
    step_id: NotRequired[str]
    metadata: JsonObject


class WorkerHandle(TypedDict):
    """The ids of a worker's run, and why this worker was chosen."""

    worker_agent_id: str
    child_run_id: str
    stream_id: str
    selection_reason: str | None
    status: NotRequired[str]


async def build_report(
    store: SessionStore,
    session_id: str,
    nodes: Sequence[Node],
    *,
    answer: str | None,
    status: str,
    step_id: str | None = None,
    output: Any = None,
    metadata: Mapping[str, Any],
) -> ChildReport:
    """Build the report of a child.

    An answer that is a JSON object is split into the fields of the report; everything that they do
    not take stays in `summary`, as does any other answer. Without a summary of its own, the whole
    answer is the summary. `artifacts` names only artifacts of the session: the ones in the answer,
    and the ones that the child's tools have kept.

    Args:
        store: has the session's artifacts.
        session_id: id of the session.
        nodes: the child's own nodes.
        answer: its last answer; None if it was cut off: its report then has every text it wrote.
        status: status of its run.
        step_id: id of the step that it has claimed.
        output: the value of its answer, if a shape was expected.
        metadata: ids and usage.
    """
    value = _read_object(answer or "") if output is None else output
    given = table(value)
    named = _as_list(given.get("artifacts"))
    made = [each for node in nodes for result in node.results for each in artifact_ids(result)]
    wanted = list(dict.fromkeys(each for each in [*named, *made] if isinstance(each, str)))
    known = await store.find_artifacts(session_id, wanted) if wanted else frozenset[str]()
    taken: dict[str, Any] = {"status": status, "step_id": step_id}
    if isinstance(summary := given.get("summary"), str):
        taken["summary"] = summary
    taken |= {name: given[name] for name in _LISTS if name in given}
    rest = {name: each for name, each in given.items() if name not in taken or taken[name] != each}
    rest.pop("artifacts", None)
    if unknown := [each for each in named if not (isinstance(each, str) and each in known)]:
        rest["artifacts"] = unknown
    words = taken.get("summary", "").strip()
    if words and rest and output is None:
        words = f"{words}\n\n{json.dumps(rest, ensure_ascii=False, indent=1)}"
    candidates = (words, answer or "", "\n\n".join(_texts(nodes)))
    step = {} if step_id is None else {"step_id": step_id}
    fields: dict[str, Any] = {
        "status": status,
        "summary": next(filter(str.strip, candidates), ""),
        **{name: _as_list(given.get(name)) for name in _LISTS},
        "artifacts": [each for each in wanted if each in known],
        **step,
        "metadata": {**metadata} if output is None else {**metadata, "output": output},
    }
    report = cast("ChildReport", fields)
    if answer is None:
        report["summary"] = _describe_cut(nodes)
        report["metadata"]["cut"] = True
    return report


async def report_child(store: SessionStore, child: ChildRun, *, step_id: str | None) -> ChildReport:
    """Build the report on a child that has ended here, or did not stop in time."""
    outcome, run = child.outcome, child.run
    facts = _describe_run(run, outcome.end_reason, outcome.turns, outcome.usage)
    return await build_report(
        store,
        run.session_id,
        [node for node in child.ctx.journal.path if node.run_id == run.run_id],
        answer=outcome.text if outcome.status is RunStatus.COMPLETED else None,
        status=outcome.status.value,
        step_id=step_id,
        output=to_jsonable_python(outcome.output, fallback=str)
        if child.spec.expected is not None
        else None,
        metadata={
            **facts,
            "agent_definition_id": child.spec.definition.agent_definition_id,
            **outcome.metadata,
        },
    )


def find_failure(child: ChildRun) -> ErrorPayload | None:
    """Return the error of a child that did not complete its task."""
    outcome, cause = child.outcome, child.outcome.error
    if outcome.status is RunStatus.COMPLETED:
        return None
    if cause is not None and cause.code is ErrorCode.OUTPUT_INVALID:
        event, wrong = EventType.CHILD_RESULT_SCHEMA_VALIDATION_FAILED, cause.details["errors"]
        faults = [f"{each['path']}: {each['message']}" for each in wrong]
        child.note_parent(event, EventLevel.WARNING, faults=faults)
        code = ErrorCode.SCHEMA_ERROR
        what = f"its answer does not have the expected shape: {'; '.join(faults)}"
        details: JsonObject = {"reason": event.value}
    elif outcome.status is RunStatus.FAILED:
        code = cause.code if cause else ErrorCode.INTERNAL_ERROR
        what = f"it failed: {cause.message if cause else 'the cause is unknown'}"
        details = cause.details if cause else {}
    elif child.stop_reason is ChildCancelReason.TIMEOUT:
        code, details = ErrorCode.TIMEOUT, {}
        what = "it did not finish in time and was stopped"
    else:
        code, what = ErrorCode.CANCELLED, "it was stopped"
        reason = child.stop_reason or ChildCancelReason.RUNTIME_CLOSED
        details = {"reason": reason.value}
    run_id = child.run.run_id
    message, facts = f"the child agent's run {run_id}: {what}", {"child_run_id": run_id}
    return ErrorPayload.of(ToolError(code, message, details={**details, **facts}))


async def report_stored_run(store: SessionStore, run: RunRecord) -> ToolResult:
    """Return the stored texts of a child whose parent's call was cut off.

    It is an error of the call, also if the child had completed.
    """
    nodes = await store.run_nodes(run.run_id)
    is_complete = run.status is RunStatus.COMPLETED
    stats = RunStats.of_stored(run, nodes)
    status, end_reason = run.status, run.end_reason
    if status is RunStatus.WAITING:  # it is cancelled with its parent
        status, end_reason = RunStatus.CANCELLED, EndReason.ABORTED_TOOLS
    facts = _describe_run(run, end_reason, run.turn_count, run.usage)
    report = await build_report(
        store,
        run.session_id,
        nodes,
        answer="".join(stats.answer) if is_complete else None,
        status=status.value,
        metadata={**facts, "agent_definition_id": run.metadata.get("agent_definition_id")},
    )
    data: dict[str, Any] = {**report}
    if "worker_id" in run.metadata:
        handle = build_handle(run, run.metadata)
        data = {**handle, "status": status.value, "worker_result": report}
    state = "had completed" if is_complete else "was cut off"
    error = ToolError(
        ErrorCode.CANCELLED,
        f"this call was cut off; the child agent's run {run.run_id} {state}, and its texts are in "
        "the answer. Look at the current state before doing it again",
        details={"reason": EFFECT_UNKNOWN, "child_run_id": run.run_id},
    )
    return ToolResult(content=[JsonBlock(data=data)], is_error=True, error=ErrorPayload.of(error))


def build_handle(run: RunIdentity | RunRecord, facts: Mapping[str, Any]) -> WorkerHandle:
    """Return the ids of a worker's run, and why this worker was chosen, from its stored facts."""
    return {
        "worker_agent_id": run.agent_id,
        "child_run_id": run.run_id,
        "stream_id": run.run_id,
        "selection_reason": facts.get("selection_reason"),
    }


async def view_stored_worker(store: SessionStore, run: RunRecord) -> JsonObject:
    """Return the entry of a worker's run, which this process does not have, in a list of runs."""
    result = await report_stored_run(store, run)
    (block,) = result.content
    view: JsonObject = block.data if isinstance(block, JsonBlock) else {}
    if run.status is not RunStatus.COMPLETED and result.error is not None:
        view["error"] = result.error.model_dump(mode="json", exclude_none=True)
    return view


async def report_stored_workers(store: SessionStore, runs: Sequence[RunRecord]) -> ToolResult:
    """Return what is known of workers if the call that waited for them was cut off."""
    workers = [await view_stored_worker(store, run) for run in runs]
    data = {"workers": workers, "running_run_ids": []}
    return ToolResult(content=[JsonBlock(data=data)], is_error=True)


def _describe_run(
    run: RunIdentity | RunRecord, end_reason: EndReason | None, turns: int, usage: Usage
) -> JsonObject:
    return {
        "child_run_id": run.run_id,
        "child_agent_id": run.agent_id,
        "end_reason": end_reason and end_reason.value,
        "turns": turns,
        "usage": usage.model_dump(exclude={"raw_usage"}),
    }


def _read_object(text: str) -> Any:
    """Return the value of an answer that is JSON and has no name twice, which would lose a value.

    None for any other answer.
    """
    with suppress(ValueError):
        return parse_answer(text, is_strict=True)
    return None


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _describe_cut(nodes: Iterable[Node]) -> str:
    texts = _texts(nodes)
    if not texts:
        return "[cut off before it wrote anything]"
    return "\n\n".join(["[cut off before its answer; every text that it wrote, in order:]", *texts])


def _texts(nodes: Iterable[Node]) -> list[str]:
    """Return the texts that a run wrote, in order; a text that was broken off says so."""
    texts: list[str] = []
    for node in nodes:
        if node.role is not Role.ASSISTANT:
            continue
        said = (node.text, node.metadata.get(HELD_ANSWER, ""))
        text = "\n\n".join(filter(str.strip, said))
        if not text:
            continue
        if node.is_partial:
            text += " [cut off here]"
        if "truncated" in node.metadata:
            text += f" [of {node.metadata['characters']} characters, the others were not kept]"
        texts.append(text)
    return texts
