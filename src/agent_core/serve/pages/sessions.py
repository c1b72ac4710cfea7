"""The page of a session, its live part, and what can be done with it."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.history.page import session_page
from agent_core.history.reading import read_history
from agent_core.serve.pages.conversation import ConversationParts, open_questions
from agent_core.serve.pages.forms import chosen_mode, message_form, options_of
from agent_core.serve.pages.frame import Frame, framed, positive
from agent_core.serve.pages.live import MOST_QUEUED, Live, stream_session
from agent_core.serve.pages.reading import Part, other_parts, read_part
from agent_core.serve.pages.tasks import task_graphs
from agent_core.serve.problems import HttpProblem
from agent_core.serve.streams import ServerEvent
from agent_core.text.pages import facts_list, fold, plain, section, table
from agent_core.types import ContextReport, SwitchResult, UserMessage

_MOST_PATHS = 200


@framed
async def show_session(frame: Frame) -> Response:
    """Return the page of a session: the last events first, older ones on demand."""
    frame.visit.require("read")
    query, session_id = frame.request.query_params, frame.request.path_params["session_id"]
    await frame.visit.session(session_id)
    to_seq = positive(query.get("to"))
    part = await read_part(frame.visit, session_id, to_seq=to_seq, at=query.get("at"))
    parts = ConversationParts(frame, part.history)
    say, session = frame.say, part.history.session
    title = session.title or say("A session")
    is_last = to_seq is None
    earlier = other_parts(frame, part, ("sessions", session_id))
    conversation = await asyncio.to_thread(_conversation, parts, part)
    asked = await open_questions(frame, session_id) if is_last else ()
    sections = [
        _head(frame, parts, part, await parts.moves(), is_asked=bool(asked)),
        '<div id="moved" role="status"></div>',
        section(say("Conversation"), earlier + conversation, key="talk"),
        _live(frame, part) if is_last else "",
        parts.question_place(asked) if is_last else "",
        _writing(frame, parts, session_id) if is_last else "",
        section(say("Messages"), f'<div id="tree">{parts.tree()}</div>', key="messages"),
        await _of_folder(frame, session_id),
        section(say("Usage and cost"), f'<div id="costs">{parts.usage()}</div>', key="usage"),
    ]
    return frame.page(title, "\n".join(each for each in sections if each))


def _conversation(parts: ConversationParts, part: Part) -> str:
    blocks = [
        parts.exchange(exchange, str(number))
        for number, exchange in enumerate(part.history.exchanges, 1)
    ]
    return f'<div id="conversation">{"".join(blocks)}</div>'


def _head(frame: Frame, parts: ConversationParts, part: Part, moves: str, *, is_asked: bool) -> str:
    session, say = part.history.session, frame.say
    export = frame.address("sessions", session.session_id, "export")
    origin = session.parent_session_id
    facts = {
        say("Project"): session.cwd,
        say("Session"): session.session_id,
    }
    forked = ""
    if origin:
        forked = (
            f'<p class="muted">{say("Forked from")}'
            f' <a href="{frame.address("sessions", origin)}">{plain(origin)}</a></p>'
        )
    times = (
        f'<p class="muted">{say("Begun")} {frame.moment(session.created_at)} ·'
        f" {say('Last used')} {frame.moment(session.updated_at)}</p>"
    )
    return (
        f'<div id="status">{parts.status(is_asked=is_asked)}</div>'
        f"<h1>{plain(session.title or say('A session'))}</h1>{facts_list(facts)}{forked}{times}"
        f'<div class="acts"><div id="moves">{moves}</div>'
        f'<a href="{export}" download>{say("Export as one HTML file")}</a></div>'
    )


def _live(frame: Frame, part: Part) -> str:
    session_id = part.history.session.session_id
    waiting = [each.run_id or "" for each in part.history.exchanges if not each.entries]
    queued = ",".join(waiting)  # they are on the page, and have no events yet
    url = frame.address("sessions", session_id, "stream", after=part.last_seq, queued=queued)
    label = frame.say("The answer as it is written")
    return (
        f'<div id="now" class="now" role="log" aria-live="polite" aria-label="{label}"></div>'
        f"{frame.reload_hint()}"
        f'<div hx-sse:connect="{url}" hx-swap="none" hidden></div>'
    )


def _writing(frame: Frame, parts: ConversationParts, session_id: str) -> str:
    if not frame.may("run"):
        return ""
    form = message_form(frame, frame.address("sessions", session_id, "runs"))
    body = f'<div id="stop">{parts.stop()}</div>{form}'
    return section(frame.say("Next message"), body, key="next")


async def _of_folder(frame: Frame, session_id: str) -> str:
    """Return what the settings and the files of the session's folder tell; empty without them."""
    say, tasks, context = frame.say, "", ""
    with suppress(AgentCoreError):  # the folder is gone, or its settings cannot be used
        runtime = await frame.visit.acting(session_id)
        with suppress(AgentCoreError):
            tasks = await task_graphs(frame, runtime, session_id)
        context = _context_table(frame, await runtime.context_report(session_id))
    return section(say("Tasks"), tasks, key="tasks") + section(
        say("Context"), context, key="context"
    )


def _context_table(frame: Frame, report: ContextReport) -> str:
    say, window = frame.say, max(report.window, 1)
    rows = [(each.name, each.tokens) for each in report.segments if each.tokens]
    rows += [("kept free for the answer", report.reserve), ("free", report.free)]
    cells = [
        (plain(say(name)), f"#{tokens:,}", _meter(say(name), tokens, window))
        for name, tokens in rows
    ]
    head = (say("Part"), say("Tokens"), say("Share of the window"))
    shown = table(head, cells, say=say).replace("<td>#", '<td class="number">')
    window_line = say(
        "{model} has a window of {count} tokens.", model=report.model, count=f"{report.window:,}"
    )
    label = say("{count} tokens used", count=f"{report.used:,}")
    return fold(plain(label), f'<p>{plain(window_line)}</p><div class="parts">{shown}</div>')


def _meter(label: str, tokens: int, window: int) -> str:
    return (
        f'<meter min="0" max="{window}" value="{min(tokens, window)}"'
        f' aria-label="{plain(label)}">{tokens / window:.0%}</meter>'
    )


async def stream(request: Request) -> Response:
    """Return the stream of a session's live parts."""
    frame = Frame(request)
    frame.visit.require("read")
    session_id = request.path_params["session_id"]
    await frame.visit.session(session_id)
    given = request.headers.get("last-event-id") or request.query_params.get("after")
    after = positive(given) or 0
    queued = request.query_params.get("queued", "").split(",")[:MOST_QUEUED]

    async def begin() -> AsyncGenerator[ServerEvent]:
        part = await read_part(frame.visit, session_id, to_seq=after)
        live = Live(frame, part.reader, part.history)
        live.show_queued(queued)
        return stream_session(live, session_id, after)

    return frame.stream(begin)


@framed
async def send_message(frame: Frame) -> Response:
    """Start a run of a session with the message of a form."""
    fields = await frame.read_form("run")
    session_id = frame.request.path_params["session_id"]
    await frame.visit.session(session_id)
    message = UserMessage(content=fields.get("message", ""))
    mode, options = chosen_mode(fields), options_of(fields)
    await frame.visit.start(message, session_id, mode, options=options)
    return frame.see("sessions", session_id, anchor="now")


@framed
async def undo(frame: Frame) -> Response:
    """Revert the last message of a session."""
    fields, session_id = await _change(frame)
    runtime = await frame.visit.acting(session_id)
    done = await runtime.undo(session_id, force=_is_set(fields, "force"))
    return frame.see("sessions", session_id, notice=_moved_notice(frame, "Undone.", done))


@framed
async def redo(frame: Frame) -> Response:
    """Return to the state before the last undo."""
    fields, session_id = await _change(frame)
    runtime = await frame.visit.acting(session_id)
    done = await runtime.redo(session_id, force=_is_set(fields, "force"))
    return frame.see("sessions", session_id, notice=_moved_notice(frame, "Redone.", done))


@framed
async def switch(frame: Frame) -> Response:
    """Let a session continue from a node."""
    fields, session_id = await _change(frame)
    runtime = await frame.visit.acting(session_id)
    done = await runtime.switch_node(
        session_id,
        _required(fields, "node_id"),
        restore_files=_is_set(fields, "restore_files"),
        force=_is_set(fields, "force"),
    )
    said = "The session continues from there."
    return frame.see("sessions", session_id, notice=_moved_notice(frame, said, done))


@framed
async def fork(frame: Frame) -> Response:
    """Start another session with a conversation up to a node."""
    fields, session_id = await _change(frame)
    runtime = await frame.visit.acting(session_id)
    done = await runtime.fork(session_id, fields.get("node_id") or None)
    notice = _moved_notice(frame, "This is the fork.", done)
    return frame.see("sessions", done.session.session_id, notice=notice)


@framed
async def export(frame: Frame) -> Response:
    """Return a session as one self-contained file."""
    frame.visit.require("read")
    session_id = frame.request.path_params["session_id"]
    await frame.visit.session(session_id)
    history = await read_history(frame.visit.runtime, session_id, tenant=frame.visit.tenant)
    page = await asyncio.to_thread(session_page, history, str, frame.say)
    headers = {"Content-Disposition": f'attachment; filename="{session_id}.html"'}
    return Response(page, headers=headers, media_type="text/html; charset=utf-8")


async def _change(frame: Frame) -> tuple[dict[str, str], str]:
    fields = await frame.read_form("run")
    session_id: str = frame.request.path_params["session_id"]
    await frame.visit.session(session_id)
    return fields, session_id


def _is_set(fields: dict[str, str], name: str) -> bool:
    return fields.get(name, "") == "1"


def _required(fields: dict[str, str], name: str) -> str:
    if not fields.get(name):
        raise HttpProblem(400, f"the field {name} is missing", code=ErrorCode.VALIDATION_ERROR)
    return fields[name]


def _moved_notice(frame: Frame, said: str, done: SwitchResult) -> str:
    """Return where a session continues now, and what became of the files, as HTML.

    Args:
        frame: the request.
        said: what was done, in English.
        done: the outcome.
    """
    say = frame.say
    lists: Sequence[tuple[str, Sequence[str]]] = (
        ("Files written", done.restored),
        ("Files removed", done.deleted),
        ("Files that were not changed", done.refused),
        ("Files that no snapshot holds", done.left_out),
        ("Files moved aside", done.moved_aside),
    )
    parts = [f"<p>{plain(say(said))}</p>"]
    for label, paths in lists:
        if paths:
            items = "".join(f"<li><code>{plain(path)}</code></li>" for path in paths[:_MOST_PATHS])
            title = f"{say(label)}: {len(paths):,}"
            parts.append(fold(plain(title), f"<ul>{items}</ul>", is_open=len(paths) <= 10))
    parts += [f"<p>{plain(remark)}</p>" for remark in done.remarks]
    return f'<div class="notice good" role="status">{"".join(parts)}</div>'
