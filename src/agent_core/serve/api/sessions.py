"""Sessions: lists, searches and histories."""

from agent_core.serve.operations import ApiCall, Operation, Paging
from agent_core.types import Page, RunStatus, SessionMatch, SessionPage, SessionSummary


class SessionsQuery(Paging):
    """Selects sessions of a list."""

    query: str | None = None
    project: str | None = None
    status: RunStatus | None = None


class SearchQuery(Paging):
    """Selects messages by their words."""

    query: str = ""
    project: str | None = None


async def _sessions(call: ApiCall[SessionsQuery, None]) -> Page[SessionSummary]:
    visit, asked = call.visit, call.query
    return await visit.runtime.pages.sessions(
        asked.limit,
        asked.cursor,
        project=asked.project,
        query=asked.query,
        status=asked.status,
        tenant=visit.tenant,
    )


async def _search(call: ApiCall[SearchQuery, None]) -> Page[SessionMatch]:
    visit, asked = call.visit, call.query
    return await visit.runtime.pages.matches(
        asked.query, asked.limit, asked.cursor, project=asked.project, tenant=visit.tenant
    )


async def _session(call: ApiCall[Paging, None]) -> SessionPage:
    visit, session_id = call.visit, call.path("session_id")
    await visit.session(session_id)
    return await visit.runtime.pages.session(
        session_id, call.query.limit, call.query.cursor, tenant=visit.tenant
    )


OPERATIONS = [
    Operation(
        method="GET",
        path="/api/sessions",
        summary="List sessions, the last used first",
        handler=_sessions,
        answer=Page[SessionSummary],
        query=SessionsQuery,
    ),
    Operation(
        method="GET",
        path="/api/search",
        summary="Find messages, tool calls and results with every word",
        handler=_search,
        answer=Page[SessionMatch],
        query=SearchQuery,
    ),
    Operation(
        method="GET",
        path="/api/sessions/{session_id}",
        summary="Read the history of a session, from its newest part",
        handler=_session,
        answer=SessionPage,
        query=Paging,
        refusals=[404],
    ),
]
