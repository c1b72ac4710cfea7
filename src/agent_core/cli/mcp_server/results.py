"""Runs, questions and sessions in the form in which clients get them."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from agent_core.api import AgentRuntime, RunHandle
from agent_core.cli.mcp_server.questions import decisions_of, words_of_question
from agent_core.cli.mcp_server.runs import ServedRun
from agent_core.cli.sheet import status_of, title_of
from agent_core.history.reading import CallEntry, Exchange, MessageEntry, read_history, spoken
from agent_core.history.words import outcome_word
from agent_core.text import shortened
from agent_core.types import ApprovalRecord, NodeType, RunStatus, SessionSummary

Facts = Mapping[str, Any]
"""The structured content of a result."""
_LONGEST_TEXT = 20_000
_LONGEST_STORY = 200_000
"""Characters of messages that one result shows."""


class ErrorFacts(TypedDict):
    """An error in a result."""

    code: str
    message: str


class ApprovalFacts(TypedDict):
    """An open question in a result."""

    approval_id: str
    session_id: str
    run_id: str
    tool: str
    question: str
    decisions: list[str]
    asked_at: str


class ServedResult(TypedDict):
    """The result of a run; what is empty is left out."""

    session_id: str
    run_id: str
    status: str
    text: str
    usage: dict[str, int]
    end_reason: NotRequired[str]
    cost_usd: NotRequired[float]
    denied: NotRequired[list[str]]
    approvals: NotRequired[list[ApprovalFacts]]
    error: NotRequired[ErrorFacts]


def run_facts(
    run: ServedRun, handle: RunHandle[Any], approvals: Sequence[ApprovalRecord]
) -> ServedResult:
    """Return the result of a run that has ended, or waits for an answer."""
    waits = handle.status is RunStatus.WAITING
    usage = handle.usage
    facts: ServedResult = {
        "session_id": handle.session_id,
        "run_id": handle.run_id,
        "status": "waiting_permission" if waits else str(handle.status),
        "text": handle.result_text or "",
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
        },
    }
    if run.end_reason:
        facts["end_reason"] = str(run.end_reason)
    if usage.cost:
        facts["cost_usd"] = usage.cost
    if run.denials:
        facts["denied"] = run.denials
    if approvals:
        facts["approvals"] = [approval_facts(each) for each in approvals]
    if (error := handle.error) is not None:
        facts["error"] = {"code": str(error.code), "message": error.message}
    return facts


def run_text(facts: ServedResult, *, has_tool: bool) -> list[str]:
    """Return the texts of the result of a run: the answer, then what else is to be known."""
    texts = [facts["text"]] if facts["text"] else []
    remarks: list[str] = []
    if (error := facts.get("error")) is not None:
        remarks.append(f"error: {error['code']}: {error['message']}")
    elif facts["status"] != "completed":
        remarks.append(f"status: {facts['status']}")
    remarks += [f"denied: {each}" for each in facts.get("denied", ())]
    for each in facts.get("approvals", ()):
        request_id = each["approval_id"]
        how = f"soong-agent approvals answer {request_id} allow|deny"
        if has_tool:
            how = f"call approval_answer with approval_id {request_id}"
        remarks.append(f"waits for permission, {request_id}:\n{each['question']}\nto answer: {how}")
    return [*texts, "\n".join([*remarks, f"session_id: {facts['session_id']}"])]


def approval_facts(question: ApprovalRecord) -> ApprovalFacts:
    """Return the facts of an open question."""
    return {
        "approval_id": question.request_id,
        "session_id": question.session_id,
        "run_id": question.root_run_id,
        "tool": question.tool_name,
        "question": words_of_question(question.request),
        "decisions": [str(each) for each in decisions_of(question.request)],
        "asked_at": question.asked_at.isoformat(),
    }


def session_facts(summary: SessionSummary) -> Facts:
    """Return the entry of a session in a list."""
    return {
        "session_id": summary.session_id,
        "title": title_of(summary),
        "project": summary.cwd,
        "status": status_of(summary),
        "turns": summary.turns,
        "updated_at": summary.updated_at.isoformat(),
    }


async def session_story(runtime: AgentRuntime, session_id: str, *, last: int) -> Facts:
    """Return what was said and done in the last runs of a session, as much as fits.

    Raises:
        StorageError: `session_not_found`.
    """
    history = await read_history(runtime, session_id, last=last)
    runs: list[Facts] = []
    room, is_cut = _LONGEST_STORY, False
    for exchange in reversed(history.exchanges):
        facts, size = _exchange_facts(exchange)
        room -= size
        if room < 0 and runs:
            is_cut = True
            break
        runs.insert(0, facts)
    session = history.session
    return {
        "session_id": session.session_id,
        "title": title_of(session),
        "project": session.cwd,
        "runs": runs,
        "is_cut": is_cut,
    }


def _exchange_facts(exchange: Exchange) -> tuple[Facts, int]:
    """Return a run with its messages and calls, and the characters of these."""
    entries: list[Facts] = []
    if (prompt := exchange.unseen_prompt) is not None:
        entries.append({"role": "user", "text": shortened(prompt, _LONGEST_TEXT)})
    for entry in exchange.entries:
        match entry:
            case MessageEntry(node=node) if node.node_type is NodeType.MESSAGE:
                if text := spoken(node).strip():
                    said = shortened(text, _LONGEST_TEXT)
                    entries.append({"role": str(node.role), "text": said})
            case CallEntry(call=call):
                summary = shortened(call.summary, 500)
                done = {"tool": call.name, "summary": summary, "outcome": outcome_word(call)}
                entries.append(done)
            case _:
                pass
    facts: Facts = {"entries": entries}
    if (run := exchange.run) is not None:
        facts = {"run_id": run.run_id, "status": str(run.status), **facts}
    if exchange.failure:
        facts["error"] = exchange.failure
    size = sum(len(str(value)) for entry in entries for value in entry.values())
    return facts, size
