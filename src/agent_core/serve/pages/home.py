"""The first page: open questions, runs in progress, sessions, the search, and the cost."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from starlette.requests import Request
from starlette.responses import Response

from agent_core.history.figures import format_cost, format_dollars, format_tokens
from agent_core.history.page import COLOURS
from agent_core.serve.pages.conversation import question_list
from agent_core.serve.pages.forms import message_form
from agent_core.serve.pages.frame import Frame, framed
from agent_core.serve.streams import ServerEvent
from agent_core.text.pages import plain, section
from agent_core.types import (
    ApprovalRecord,
    CostSummary,
    Page,
    RunStatus,
    SessionMatch,
    SessionSummary,
)

_SESSIONS = 30
_MATCHES = 30
_QUESTIONS = 50
_LOOK_S = 2.0
"""Seconds between two looks for questions and runs."""

_IN_PROGRESS = (RunStatus.RUNNING, RunStatus.WAITING, RunStatus.QUEUED)


@framed
async def show_home(frame: Frame) -> Response:
    """Return the first page, or the result of a search."""
    frame.visit.require("read")
    say, query = frame.say, frame.request.query_params
    words = query.get("query", "").strip()
    title = say("Sessions")
    if words:
        found = await _found(frame, words, query.get("cursor"))
        return frame.page(title, f"<h1>{title}</h1>{_search(frame, words)}{found}")
    page = await _sessions(frame, cursor=query.get("cursor"))
    sections = [f"<h1>{title}</h1>"]
    if query.get("cursor") is None:
        sections += [
            f'<div id="news" aria-live="polite">{await _news(frame)}</div>',
            f'<div hx-sse:connect="{frame.address("news")}" hx-swap="none" hidden></div>',
            _start(frame),
            await _costs(frame, "UTC"),
        ]
    sections += [
        _search(frame, ""),
        section(say("Recent sessions"), _list(frame, page), key="recent"),
    ]
    return frame.page(title, "\n".join(each for each in sections if each))


async def _sessions(
    frame: Frame,
    *,
    cursor: str | None = None,
    words: str | None = None,
    status: RunStatus | None = None,
) -> Page[SessionSummary]:
    visit = frame.visit
    return await visit.runtime.pages.sessions(
        _SESSIONS, cursor, query=words, status=status, tenant=visit.tenant
    )


# --- questions and runs ---------------------------------------------------------------------------


async def _news(frame: Frame) -> str:
    """Return the open questions of all sessions, and the runs in progress."""
    say = frame.say
    questions, working = await asyncio.gather(_questions(frame), _working(frame))
    nothing = f"<p>{say('Nothing waits for an answer.')}</p>"
    runs = "".join(f"<li>{_line(frame, each)}</li>" for each in working)
    running = f'<ul class="list">{runs}</ul>' if runs else ""
    asked = question_list(frame, questions) or nothing
    return section(say("Open questions"), asked, key="questions") + section(
        say("Runs in progress"), running, key="runs"
    )


async def _questions(frame: Frame) -> Sequence[ApprovalRecord]:
    visit = frame.visit
    return await visit.runtime.approvals(limit=_QUESTIONS, tenant=visit.tenant)


async def _working(frame: Frame) -> Sequence[SessionSummary]:
    pages = [await _sessions(frame, status=status) for status in _IN_PROGRESS]
    return [each for page in pages for each in page.items]


async def stream_news(request: Request) -> Response:
    """Return the stream of the first page's questions and runs."""
    frame = Frame(request)
    frame.visit.require("read")

    async def begin() -> AsyncGenerator[ServerEvent]:
        return _changes(frame)

    return frame.stream(begin)


async def _changes(frame: Frame) -> AsyncGenerator[ServerEvent]:
    shown = await _news(frame)
    while True:
        await asyncio.sleep(_LOOK_S)
        if (body := await _news(frame)) != shown:
            shown = body
            fragment = f'<hx-partial hx-target="#news" hx-swap="innerHTML">{body}</hx-partial>'
            yield ServerEvent(fragment)


# --- sessions -------------------------------------------------------------------------------------


def _line(frame: Frame, session: SessionSummary) -> str:
    """Return a session in a list."""
    say = frame.say
    url = frame.address("sessions", session.session_id)
    status = session.status or "new"
    shown = say("waits for an answer") if session.is_waiting else say(status)
    colour = COLOURS.get(status, "busy")
    facts = (
        f"{say.count(session.turns, 'turn')} ·"
        f" {say('{count} tokens', count=format_tokens(session.usage.total_tokens))} ·"
        f" {say(format_cost(session.usage))}"
    )
    return (
        f'<a href="{url}">{plain(session.title or say("A session"))}</a>'
        f' <span class="{colour}">{plain(shown)}</span>'
        f'<br><span class="muted">{plain(session.cwd)} · {plain(facts)} ·'
        f" {frame.moment(session.updated_at)}</span>"
    )


def _list(frame: Frame, page: Page[SessionSummary], words: str = "") -> str:
    say = frame.say
    items = "".join(f"<li>{_line(frame, each)}</li>" for each in page.items)
    parts = [f'<ul class="list">{items}</ul>' if items else f"<p>{say('There are none.')}</p>"]
    if page.next_cursor is not None:
        url = frame.address("", query=words, cursor=page.next_cursor)
        parts.append(f'<p><a href="{url}" rel="next">{say("Older sessions")}</a></p>')
    return "".join(parts)


# --- the search -----------------------------------------------------------------------------------


def _search(frame: Frame, words: str) -> str:
    say = frame.say
    return (
        f'<form method="get" action="{frame.address("")}" role="search"><div class="row">'
        f'<div class="field"><label for="query">{say("Search sessions and messages")}</label>'
        f'<input type="search" id="query" name="query" value="{plain(words)}"></div>'
        f"<button>{say('Search')}</button></div></form>"
    )


async def _found(frame: Frame, words: str, cursor: str | None) -> str:
    say, visit = frame.say, frame.visit
    page = await _sessions(frame, words=words, cursor=cursor)
    parts = [section(say("Sessions"), _list(frame, page, words), key="sessions")]
    if cursor is None:
        matches = await visit.runtime.search_sessions(words, _MATCHES, tenant=visit.tenant)
        items = "".join(f"<li>{_match(frame, each)}</li>" for each in matches)
        body = f'<ul class="list">{items}</ul>' if items else f"<p>{say('There are none.')}</p>"
        parts.append(section(say("Messages"), body, key="messages"))
    return "".join(parts)


def _match(frame: Frame, match: SessionMatch) -> str:
    parts = ("runs", match.run_id) if match.run_id else ("sessions", match.session_id)
    url = f"{frame.address(*parts)}#{plain(match.node_id)}"
    title = match.title or frame.say("A session")
    return f'<a href="{url}">{plain(title)}</a><br><span>{plain(match.snippet)}</span>'


# --- a new session --------------------------------------------------------------------------------


def _start(frame: Frame) -> str:
    if not frame.may("run"):
        return ""
    say, projects = frame.say, frame.visit.console.places.projects
    choice, folder = "", ""
    if len(projects) == 1:
        folder = f'<p class="hint muted">{say("Project")}: {plain(projects[0])}</p>'
    if len(projects) > 1:
        options = "".join(f"<option>{plain(each)}</option>" for each in projects)
        choice = (
            f'<div class="field"><label for="project">{say("Project")}</label>'
            f'<select id="project" name="project">{options}</select></div>'
        )
    form = message_form(frame, frame.address("runs"), extra=choice)
    return section(say("New session"), folder + form, key="new")


# --- the cost -------------------------------------------------------------------------------------


@framed
async def show_costs(frame: Frame) -> Response:
    """Return the cost of today and this week, whose days begin in the zone of the reader."""
    frame.visit.require("read")
    return frame.fragment(await _costs(frame, frame.request.query_params.get("zone", "UTC")))


async def _costs(frame: Frame, name: str) -> str:
    say = frame.say
    zone = await asyncio.to_thread(_zone, name)
    today = datetime.now(zone).replace(hour=0, minute=0, second=0, microsecond=0)
    monday = today - timedelta(days=today.weekday())
    visit = frame.visit
    items: list[str] = []
    for label, since in (("Today", today), ("This week", monday)):
        found = await visit.runtime.costs(since=since, tenant=visit.tenant)
        items.append(f"<dt>{say(label)}</dt><dd>{plain(_sum(frame, found))}</dd>")
    hint = say("Days begin at midnight in {zone}.", zone=str(zone))
    return (
        f'<section id="days" data-from="{frame.address("costs")}" aria-labelledby="cost">'
        f'<h2 id="cost">{say("Cost")}</h2><dl class="facts">{"".join(items)}</dl>'
        f'<p class="hint muted">{plain(hint)}</p></section>'
    )


def _sum(frame: Frame, found: Sequence[CostSummary]) -> str:
    say = frame.say
    if not found:
        return "$0"
    total = found[0]
    runs = say.count(total.runs, "run")
    tokens = say("{count} tokens", count=format_tokens(total.usage.total_tokens))
    cost = format_cost(total.usage).removeprefix("cost ")
    if total.usage.cost is None and total.known_cost:
        cost = say("at least {cost}", cost=format_dollars(total.known_cost))
    return f"{say(cost)} · {runs} · {tokens}"


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name[:100])
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return ZoneInfo("UTC")
