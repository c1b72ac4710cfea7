"""The page of a question: what would be done, what each answer covers, and the form for it."""

from typing import Any, cast

from starlette.responses import Response

from agent_core.errors import AgentCoreError, ErrorCode, StorageError
from agent_core.history.page import diff_block
from agent_core.history.questions import request_facts
from agent_core.permissions.answers import describe_answer
from agent_core.permissions.request import THIS_CALL_ONLY, UNTIL_END, wide_of
from agent_core.providers import jsontext
from agent_core.serve.pages.frame import Frame, framed, problem_page
from agent_core.serve.problems import HttpProblem
from agent_core.text.json_text import shown_json
from agent_core.text.pages import fold, plain, preformatted, section
from agent_core.types import ApprovalRecord, Decision

_ROWS = 16


async def _record_of(frame: Frame) -> ApprovalRecord:
    """Return the question of the address.

    Raises:
        StorageError: `approval_not_found`: there is none, or it is not the reader's.
    """
    visit, request_id = frame.visit, frame.request.path_params["request_id"]
    record = await visit.runtime.approval(request_id, tenant=visit.tenant)
    try:
        await visit.session(record.session_id)
    except StorageError:
        message = f"there is no question {request_id}"
        raise StorageError(ErrorCode.APPROVAL_NOT_FOUND, message) from None
    return record


@framed
async def show_question(frame: Frame) -> Response:
    """Return the page of a question."""
    frame.visit.require("read")
    record = await _record_of(frame)
    return frame.page(_title(frame, record), _body(frame, record))


def _title(frame: Frame, record: ApprovalRecord) -> str:
    if record.decision is not None or record.state != "open":
        return frame.say("{tool} asked for permission", tool=record.tool_name)
    return frame.say("{tool} asks for permission", tool=record.tool_name)


def _body(frame: Frame, record: ApprovalRecord, given: str | None = None) -> str:
    """Return the page of a question, with the arguments that a refused form had."""
    say, request = frame.say, record.request
    session_url = frame.address("sessions", record.session_id)
    link = f'<a href="{session_url}">{say("The whole session")}</a>'
    parts = [
        f"<h1>{plain(_title(frame, record))}</h1>",
        f'<p class="muted">{link} · {frame.moment(record.asked_at)}</p>',
        section(say("What it would do"), _facts(frame, record), key="facts"),
    ]
    if diff := str(request.metadata.get("diff") or ""):
        parts.append(section(say("Changes"), diff_block(diff), key="diff"))
    if record.arguments is not None:
        shown = preformatted(shown_json(record.arguments, indent=1))
        parts.append(fold(say("The whole call"), shown, is_open=not diff))
    if record.decision is not None or record.state != "open":
        parts.append(section(say("Answer"), _answer(frame, record), key="answer"))
    elif frame.may("answer"):
        parts.append(section(say("Answer"), _form(frame, record, given), key="answer"))
    return "\n".join(parts)


def _facts(frame: Frame, record: ApprovalRecord) -> str:
    rows = "".join(
        f"<dt>{plain(name)}</dt><dd>{_value(value)}</dd>"
        for name, value in request_facts(record.request, frame.say)
    )
    return f'<dl class="facts">{rows}</dl>'


def _value(value: str) -> str:
    return preformatted(value) if "\n" in value else plain(value)


def _answer(frame: Frame, record: ApprovalRecord) -> str:
    if record.decision is None:
        return f"<p>{frame.say('The question was withdrawn: nobody waits for an answer.')}</p>"
    by, who, why = record.decided_by, record.decider, record.reason
    said = describe_answer(record.decision, by, who, why, frame.say)
    when = f" · {frame.moment(record.decided_at)}" if record.decided_at is not None else ""
    changed = ""
    if record.changed_arguments is not None:
        label = frame.say("It was allowed with these arguments instead:")
        changed = f"<p>{label}</p>{preformatted(shown_json(record.changed_arguments, indent=1))}"
    return f"<p>{plain(said)}{when}</p>{changed}"


def _form(frame: Frame, record: ApprovalRecord, given: str | None) -> str:
    """Return the forms of the answers: Enter in the reason denies, and allows nothing."""
    say = frame.say
    url = frame.address("approvals", record.request_id)
    answers = "".join(
        _button(decision, label, covers, kind)
        for decision, label, covers, kind in _answers(frame, record)
    )
    edited = ""
    if record.arguments is not None:
        text = plain(given or shown_json(record.arguments, indent=1))
        hint = say("Allow once runs the call with these arguments; the model sees them, too.")
        edited = (
            f"<details{' open' if given else ''}><summary>{say('Change the arguments')}</summary>"
            f'<div class="field"><label for="arguments">{say("Arguments, as JSON")}</label>'
            f'<textarea class="code" id="arguments" name="arguments" rows="{_ROWS}"'
            f' spellcheck="false" aria-describedby="about-arguments">{text}</textarea></div>'
            f'<p class="hint" id="about-arguments">{hint}</p></details>'
        )
    denied = say("The call is not made; the model continues without it.")
    reason = (
        f'<div class="field"><label for="reason">{say("Reason")}</label>'
        '<input type="text" id="reason" name="reason" aria-describedby="about-reason">'
        f'<p class="hint" id="about-reason">{say("The model reads it if the call is denied.")}</p>'
        "</div>"
    )
    deny = _button(str(Decision.DENY), say("Deny"), denied, ' class="bad"')
    return (
        f'<form method="post" action="{url}">{edited}{answers}</form>'
        f'<form method="post" action="{url}">{reason}{deny}</form>'
    )


def _button(decision: str, label: str, covers: str, kind: str) -> str:
    return (
        f'<div class="answer"><button name="decision" value="{decision}"{kind}>{plain(label)}'
        f'</button><p class="hint">{plain(covers)}</p></div>'
    )


def _answers(frame: Frame, record: ApprovalRecord) -> list[tuple[str, str, str, str]]:
    """Return the answers that allow a call: decision, label, coverage, attributes."""
    say, request = frame.say, record.request
    once = say("Only this call.")
    answers = [(str(Decision.ALLOW_ONCE), say("Allow once"), once, ' class="main"')]
    scope = request.target_scope or THIS_CALL_ONLY
    if scope != THIS_CALL_ONLY:
        covers = say("Until the session ends: {what}", what=scope)
        answers.append((str(Decision.ALLOW_FOR_SESSION), say("Allow for the session"), covers, ""))
    if wide := wide_of(request):
        decision, what = wide
        label = say("Allow all edits" if decision is Decision.ALLOW_EDITS else "Allow all reads")
        covers = say("Until the session ends: {what}", what=what.removesuffix(UNTIL_END))
        answers.append((str(decision), label, covers, ""))
    return answers


@framed
async def answer(frame: Frame) -> Response:
    """Answer a question with the form of its page."""
    fields = await frame.read_form("answer")
    record = await _record_of(frame)
    try:
        arguments = _changed(record, fields.get("arguments"))
        runtime = await frame.visit.acting(record.session_id)
        await frame.visit.answer(
            runtime,
            record.request_id,
            fields.get("decision", ""),
            fields.get("reason") or None,
            arguments,
        )
    except (HttpProblem, AgentCoreError) as error:
        problem = error if isinstance(error, HttpProblem) else HttpProblem.of(error)
        if problem.status != 400:
            return problem_page(frame, problem)
        notice = f'<p class="notice bad" role="alert">{plain(problem.detail)}</p>'
        body = notice + _body(frame, record, fields.get("arguments"))
        return frame.page(_title(frame, record), body, status=400)
    return frame.see("sessions", record.session_id, anchor="now")


def _changed(record: ApprovalRecord, text: str | None) -> dict[str, Any] | None:
    """Return the arguments of the form if they differ from the call's.

    Raises:
        HttpProblem: 400: they are no JSON object.
    """
    if text is None or record.arguments is None:
        return None
    try:
        given = jsontext.parse_strictly(text.encode())
    except ValueError as error:
        detail = f"the arguments are not JSON: {error}"
        raise HttpProblem(400, detail, code=ErrorCode.VALIDATION_ERROR) from None
    if not isinstance(given, dict):
        raise HttpProblem(400, "the arguments are a JSON object", code=ErrorCode.VALIDATION_ERROR)
    found = cast("dict[str, Any]", given)
    return None if found == record.arguments else found
