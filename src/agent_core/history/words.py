"""Sentences about events, messages and calls: the same in every view, story and export."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from signal import Signals
from typing import TYPE_CHECKING

from msgspec import Struct

from agent_core.errors import describe_error
from agent_core.events.projection import Call, PlacedEvent
from agent_core.text import Clean, plural, visible
from agent_core.text.languages import ENGLISH, Language
from agent_core.types import EventLevel, EventType, Role, RunStatus
from agent_core.types.event_details import (
    ModelAsked,
    ModelRetried,
    PermissionDecided,
    RunQueued,
    ToolDenied,
)

if TYPE_CHECKING:
    from agent_core.types import DamagedRow, RunRecord

NOT_ACTIVE = "not on the active path"
SUMMARY = "summary of what came before"
UNSEEN = "no model has seen it"
SENT = "a message was sent meanwhile; the model reads it below"
TAKEN_BACK = "a message was sent meanwhile, and taken back"
UNDELIVERED = "sent meanwhile, and not delivered"
EFFECT_UNKNOWN = "the process died while it ran: its effect is unknown"
MOST_NAMED = 20
"""Most unreadable rows that are named."""
CARRY_OUT = "Carry out the plan."
"""The message that follows a plan, in a mode that may change something."""


class Meaning(Struct, frozen=True, kw_only=True):
    """The meaning of a kind of event for people.

    Attributes:
        now: its line while the run is watched.
        later: its line in the story of a session.
        silence: the reason for the silence of a run after it.
        spender: the user of the tokens that it reports, which the run's own do not contain.
        is_implied: another event or the end of the run says the same.
        is_in_story: a story says it in another place; a view does not.
        is_remark: an editor shows it between the words of the model.
    """

    now: str = ""
    later: str = ""
    silence: str = ""
    spender: str = ""
    is_implied: bool = False
    is_in_story: bool = False
    is_remark: bool = False


_SUMMARISING = "summarising the conversation"
_MODEL = "waiting for the model"
_CHILDREN = "child agents"
_SUMMARIES = "summaries"
SPENDERS = (_CHILDREN, _SUMMARIES)
_IMPLIED = Meaning(is_implied=True, is_in_story=True)
_NOTHING = Meaning()

_MEANINGS: Mapping[EventType, Meaning] = {
    EventType.AGENT_CHANGED: Meaning(
        now="another agent continues", later="another agent continued"
    ),
    EventType.CANCEL_TIMEOUT: Meaning(now="still cleaning up"),
    EventType.CHILD_AGENT_CANCELLED: Meaning(spender=_CHILDREN),
    EventType.CHILD_AGENT_COMPLETED: Meaning(now="child agent finished", spender=_CHILDREN),
    EventType.CHILD_AGENT_CREATED: Meaning(now="child agent started"),
    EventType.CHILD_AGENT_FAILED: Meaning(spender=_CHILDREN, is_in_story=True),
    EventType.COMPACT_COMPLETED: Meaning(
        later="the conversation was summarised", spender=_SUMMARIES
    ),
    EventType.COMPACT_FAILED: Meaning(spender=_SUMMARIES, is_remark=True),
    EventType.COMPACT_STARTED: Meaning(now=_SUMMARISING, later=_SUMMARISING, silence=_SUMMARISING),
    EventType.CONTEXT_BUILT: Meaning(silence=_MODEL),
    EventType.GUARD_REPLACED: Meaning(later="a guard replaced content"),
    EventType.HOOK_DENIED: Meaning(later="a hook refused"),
    EventType.HOOK_FAILED: Meaning(is_remark=True),
    EventType.LOOP_ABORTED: _IMPLIED,
    EventType.LOOP_FAILED: _IMPLIED,
    EventType.LOOP_STARTED: Meaning(silence=_MODEL),
    EventType.MCP_SERVER_FAILED: Meaning(is_remark=True),
    EventType.MODEL_RETRY: Meaning(silence="waiting to try again", is_remark=True),
    EventType.MODEL_STARTED: Meaning(silence=_MODEL),
    EventType.PERMISSION_FAILED: _IMPLIED,  # a tool_denied follows
    EventType.PROVIDER_TOOL_DENIED: Meaning(is_remark=True),
    EventType.RUN_CANCELLED: _IMPLIED,
    EventType.RUN_FAILED: _IMPLIED,
    EventType.RUN_QUEUED: Meaning(later="waited for its turn", silence="waiting for its turn"),
    EventType.RUN_TAKEN_OVER: Meaning(
        now="another process continues the run", later="another process continued the run"
    ),
    EventType.SESSION_MOVED: Meaning(later="the session moved to another folder"),
    EventType.STOP_HOOK_PREVENTED: Meaning(is_in_story=True),  # its node follows
    EventType.TOOL_TIMEOUT: _IMPLIED,  # a tool_failed follows
    EventType.WORKER_DISPATCHED: Meaning(now="worker started", later="a worker was started"),
}

_ENDS = {
    "aborted_streaming": "while the model answered",
    "aborted_tools": "during a tool call",
    "owner_lost": "its process ended before it did",
}
"""How a run ended, by the word that is stored."""
_SPEAKERS = {Role.USER: "User", Role.ASSISTANT: "Agent"}


def meaning_of(kind: EventType) -> Meaning:
    """Return what a kind of event means to people."""
    return _MEANINGS.get(kind, _NOTHING)


def ending_of_run(run: "RunRecord") -> str:
    """Return how a run that has no error was cancelled, or failed; empty if it was neither."""
    is_failed = run.status is RunStatus.FAILED
    reason = str((is_failed and run.metadata.get("reason")) or run.end_reason or "")
    words = _ENDS.get(reason, reason.replace("_", " "))
    if is_failed:
        return f"failed: {words or 'no reason is known'}"
    if run.status in {RunStatus.CANCELLED, RunStatus.ABORTED}:
        return f"cancelled {words}".rstrip()
    return ""


def kind_in_words(kind: EventType) -> str:
    """Return the name of a kind of event as words."""
    return kind.replace("_", " ")


def is_trouble(placed: PlacedEvent) -> bool:
    """Return whether an event warns of something."""
    return placed.event.level in {EventLevel.WARNING, EventLevel.ERROR}


def story_words(placed: PlacedEvent) -> str:
    """Return the words for an event in the story of a session; empty if it is not in it."""
    meaning, details = meaning_of(placed.kind), placed.details
    if isinstance(details, ModelAsked):
        return left_out_line(details)
    is_silent = isinstance(details, RunQueued) and details.runs_in_front == 0
    if meaning.is_in_story or is_silent or not (meaning.later or is_trouble(placed)):
        return ""
    return meaning.later or kind_in_words(placed.kind)


def event_line(words: str, subject: str, why: str) -> str:
    """Return a line about an event; a reason that names the subject is a sentence, and enough."""
    if subject and f"'{subject}'" in why:
        return why
    return ": ".join(part for part in (words, subject, why) if part)


def queue_line(details: RunQueued) -> str:
    """Return the place of a run in the queue; empty if only its own process has to take it."""
    if count := len(details.taken_over):
        come = "comes 1 message that was" if count == 1 else f"come {count} messages that were"
        return f"first {come} queued when a process of this session died"
    if in_front := details.runs_in_front:
        those = "the run" if in_front == 1 else f"the {in_front} runs"
        return f"waiting for {those} of this session ahead of it"
    return "waiting for a worker" if details.queue is not None else ""


def left_out_line(details: ModelAsked) -> str:
    """Return the line about tools that the model does not get; empty if it gets all."""
    named = (f"{name} ({why})" for name, why in details.left_out.items())
    return visible(f"left out: {', '.join(named)}", one_line=True) if details.left_out else ""


def retry_line(details: ModelRetried, because: str) -> str:
    """Return the line of an attempt that failed: why, and what follows."""
    follows = f"the next one in {details.delay_ms / 1000:.1f} s"
    if model := details.next_model:
        follows = f"now calling {visible(model, one_line=True)}"
        if lost := details.lost_tools:
            follows += (
                f", which has no {' or '.join(visible(each, one_line=True) for each in lost)}"
            )
    return f"attempt {details.attempt} failed{because}; {follows}"


def remark_line(placed: PlacedEvent) -> str:
    """Return the line of an event that an editor shows between the words of the model."""
    details = placed.details
    return event_line(kind_in_words(placed.kind), details.server_id or "", details.cause)


def objection_line(objection: str) -> str:
    """Return the line of a run that has ended although a hook or an extension objected."""
    return f"completed against an objection: {visible(objection)}"


def verdict(answer: PermissionDecided, say: Language = ENGLISH) -> str:
    """Return who answered a question about a call, the decision and the reason."""
    from agent_core.permissions.answers import describe_answer  # noqa: PLC0415 - for stories only

    return describe_answer(answer.decision, answer.decided_by, answer.decider, answer.reason, say)


def denial(call: Call, say: Language = ENGLISH) -> tuple[str, str]:
    """Return that a call was denied, by whom or what, and what more there is to say about it.

    The message is for the model: where it says no more than who has refused the call, it is not
    shown to people.
    """
    from agent_core.permissions.answers import NOBODY, THE_USER  # noqa: PLC0415 - few are denied

    message = call.end.message or ""
    match call.end:
        case ToolDenied(denied_by=by) if by == THE_USER:
            is_here = any(answer.decided_by == "terminal" for answer in call.answers)
            _, _, reason = message.partition(f"{THE_USER} denied {call.name}")
            who = say("you") if is_here else say(by)
            return say("denied by {who}", who=who), reason.removeprefix(": ")
        case ToolDenied(denied_by=by) if by == NOBODY:
            return say("denied: nobody could be asked"), ""
        case ToolDenied(denied_by=by) if by:
            return say("denied by {who}", who=by), "" if by in message else message
        case _:
            return say("denied"), message


def remarks(call: Call, say: Language = ENGLISH) -> list[tuple[str, bool]]:
    """Return what there is to say about the outcome of a call, and whether it is bad."""
    said = [(verdict(answer, say), answer.decision == "deny") for answer in call.answers]
    is_told = any(is_denial for _, is_denial in said)
    if call.outcome == "denied" and not is_told:
        said.append((": ".join(filter(None, denial(call, say))), True))
    elif call.outcome == "failed" and call.end.cause:
        said.append((describe_error(call.end.cause, ""), True))
    if call.outcome == "interrupted":
        said.append((say(EFFECT_UNKNOWN), True))
    return said


def outcome_word(call: Call, say: Language = ENGLISH) -> str:
    """Return the outcome of a call in a word or two."""
    match call.outcome:
        case "completed" if code := call.end.exit_code:
            return say("exit {code}", code=code)
        case "completed":
            return say("ok")
        case "interrupted":
            return say("unknown")
        case "failed" | "denied" if call.end.code == "cancelled":
            return say("cancelled")
        case outcome:
            return say(outcome)


def speaker(role: Role) -> str:
    """Return the name of the author of a message."""
    return _SPEAKERS.get(role, str(role))


def ending_of(code: int) -> str:
    """Return how a program ended: its exit code, or the signal, whose number is negative."""
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"signal {Signals(-code).name}"
    return f"signal {-code}"


def damage_lines(damaged: "Sequence[DamagedRow]", clean: Clean) -> list[str]:
    """Return a line about the damage, and one for each row; empty without damage."""
    if not damaged:
        return []
    count = plural(len(damaged), "row")
    verb = "is" if len(damaged) == 1 else "are"
    state = f"{verb} missing or not read whole; nothing was changed; a backup may have them"
    lines = [f"{count} of the database {state}:"]
    lines += [f"  {visible(clean(str(row)), one_line=True)}" for row in damaged[:MOST_NAMED]]
    if len(damaged) > MOST_NAMED:
        lines.append(f"  and {len(damaged) - MOST_NAMED:,} more")
    return lines
