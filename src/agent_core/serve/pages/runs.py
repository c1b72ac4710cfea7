"""The page of one run: live while it works, with its files afterwards."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from agent_core.errors import ErrorCode, StorageError
from agent_core.history.page import diff_block
from agent_core.serve.pages.conversation import ConversationParts, is_over, open_questions
from agent_core.serve.pages.forms import chosen_mode, options_of
from agent_core.serve.pages.frame import Frame, framed, positive
from agent_core.serve.pages.live import Live, stream_run
from agent_core.serve.pages.reading import other_parts, read_run
from agent_core.serve.principals import Right
from agent_core.serve.streams import ServerEvent
from agent_core.text import short_line
from agent_core.text.pages import facts_list, plain, preformatted, section
from agent_core.types import ApprovalRecord, RunRecord, RunReport, UserMessage, WorkspaceDiff

_GIST = 120


async def _report_of(frame: Frame, right: Right = "read") -> RunReport:
    """Return the state of the run of the address.

    Raises:
        StorageError: `run_not_found`: there is none, or it is not the reader's.
    """
    visit, run_id = frame.visit, frame.request.path_params["run_id"]
    visit.require(right)
    report = await visit.runtime.run_report(run_id, tenant=visit.tenant)
    try:
        await visit.session(report.session_id)
    except StorageError:
        raise StorageError(ErrorCode.RUN_NOT_FOUND, f"there is no run {run_id}") from None
    return report


@framed
async def show_run(frame: Frame) -> Response:
    """Return the page of a run."""
    report = await _report_of(frame)
    to_seq = positive(frame.request.query_params.get("to"))
    part = await read_run(frame.visit, report.run_id, to_seq=to_seq)
    exchange = part.history.exchanges[0]
    run = exchange.run
    if run is None:
        raise StorageError(ErrorCode.RUN_NOT_FOUND, f"there is no run {report.run_id}")
    parts, say = ConversationParts(frame, part.history), frame.say
    gist = short_line(exchange.prompt, _GIST) or say("A run")
    session_url = frame.address("sessions", run.session_id)
    body = await asyncio.to_thread(parts.exchange, exchange)
    asked = () if is_over(run) or to_seq else await open_questions(frame, run.session_id)
    status = parts.status(is_asked=bool(asked))
    sections = [
        f'<div id="status">{status}</div><h1>{plain(gist)}</h1>',
        f'<p><a href="{session_url}">{say("The whole session")}</a></p>',
        facts_list({say("Run"): run.run_id, say("Session"): run.session_id}),
        other_parts(frame, part, ("runs", run.run_id)),
        f'<div id="conversation">{body}</div>',
        _live(frame, parts, run, part.last_seq, asked) if to_seq is None else "",
        section(say("Usage and cost"), f'<div id="costs">{parts.usage()}</div>', key="usage"),
    ]
    return frame.page(gist, "\n".join(each for each in sections if each))


def _live(
    frame: Frame,
    parts: ConversationParts,
    run: RunRecord,
    after: int,
    asked: Sequence[ApprovalRecord],
) -> str:
    if is_over(run):
        return ""
    say = frame.say
    url = frame.address("runs", run.run_id, "stream", after=after)
    label = say("The answer as it is written")
    return (
        f'<div id="now" class="now" role="log" aria-live="polite" aria-label="{label}"></div>'
        f"{frame.reload_hint()}"
        f'<div hx-sse:connect="{url}" hx-sse:close="end" hx-swap="none" hidden></div>'
        f'{parts.question_place(asked)}<div id="stop">{parts.stop()}</div>'
    )


async def stream(request: Request) -> Response:
    """Return the stream of a run's live parts."""
    frame = Frame(request)
    report = await _report_of(frame)
    given = request.headers.get("last-event-id") or request.query_params.get("after")
    after = positive(given) or 0
    visit, run_id = frame.visit, report.run_id

    async def begin() -> AsyncGenerator[ServerEvent]:
        part = await read_run(visit, run_id, to_seq=after)
        live = Live(frame, part.reader, part.history)
        events = await visit.runtime.run_events(run_id, after, tenant=visit.tenant)
        return stream_run(live, run_id, events)

    return frame.stream(begin)


@framed
async def start(frame: Frame) -> Response:
    """Start a run of a new session with the message of a form."""
    fields = await frame.read_form("run")
    message = UserMessage(content=fields.get("message", ""))
    mode, options = chosen_mode(fields), options_of(fields)
    project = fields.get("project") or None
    handle = await frame.visit.start(message, None, mode, options=options, project=project)
    return frame.see("sessions", handle.session_id, anchor="now")


@framed
async def cancel(frame: Frame) -> Response:
    """Cancel a run."""
    await frame.read_form("run")
    report = await _report_of(frame, "run")
    runtime = await frame.visit.acting(report.session_id)
    handle = await runtime.attach(report.run_id)
    await handle.cancel()
    return frame.see("sessions", report.session_id, anchor=report.run_id)


@framed
async def show_changes(frame: Frame) -> Response:
    """Return the page of the files that a run has changed."""
    report, say = await _report_of(frame), frame.say
    title = say("Changes of a run")
    found = await _changes(frame, report)
    body = f"<p>{say('No snapshots were taken, so only the calls say what was changed.')}</p>"
    if found is not None:
        body = await asyncio.to_thread(_diffs, frame, found)
    url = frame.address("sessions", report.session_id)
    link = f'<p><a href="{url}#{plain(report.run_id)}">{say("The whole session")}</a></p>'
    return frame.page(title, f"<h1>{title}</h1>{link}{body}")


async def _changes(frame: Frame, report: RunReport) -> WorkspaceDiff | None:
    """Return what a run has changed; None if that is not recorded, or not any more."""
    visit = frame.visit
    with suppress(StorageError):
        return await visit.runtime.diff_session(
            report.session_id, report.run_id, tenant=visit.tenant
        )
    return None


def _diffs(frame: Frame, found: WorkspaceDiff) -> str:
    say = frame.say
    blocks: list[str] = []
    for change in found.changes:
        body = diff_block(change.diff) if change.diff else preformatted(change.note)
        heading = f"<h2><code>{plain(change.path)}</code></h2>"
        blocks.append(f'{heading}<p class="muted">{plain(say(change.kind))}</p>{body}')
    if found.git:
        blocks.append(preformatted("\n".join(found.git)))
    return "".join(blocks) or f"<p>{say('No file was changed.')}</p>"
