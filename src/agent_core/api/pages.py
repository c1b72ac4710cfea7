"""`runtime.pages`: lists that are read page by page."""

import asyncio
import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from agent_core.api.arguments import checks_arguments
from agent_core.errors import AgentCoreError, ArgumentError
from agent_core.runtime.options import project_folder
from agent_core.storage.costs import CostPlace, place_costs
from agent_core.storage.rows import storable
from agent_core.storage.spending import microseconds
from agent_core.tasks.model import SessionTask
from agent_core.types import (
    ApprovalRecord,
    CostSummary,
    CostUnit,
    Page,
    RunStatus,
    SessionMatch,
    SessionPage,
    SessionSummary,
)
from agent_core.types.workers import QueuedRun, WorkerRecord

if TYPE_CHECKING:
    from agent_core.api.tasks import Tasks
    from agent_core.runtime.services import Services

Item = TypeVar("Item")

MOST = 200
"""Largest number of items of a page."""

_LARGEST = 2**62
_BY_TEXT = {"costs by day", "tasks", "workers"}
"""Lists whose places are texts."""
_PARTS = ("nodes", "runs", "artifacts")


@checks_arguments()
class Pages:
    """Lists of a runtime, page by page, the newest items first.

    Each method takes `limit`, the largest number of items, from 1 to 200, and `cursor`, the
    `next_cursor` of the page before; None is the first page. Items that are added meanwhile do
    not shift later pages. `tenant` is for a runtime that is bound to none: only sessions of this
    tenant.

    Every method raises `AgentCoreError` (`validation_error`) for a limit out of range, and for a
    cursor that it has not returned.
    """

    def __init__(
        self,
        reading: "Callable[[str | None], Awaitable[Services]]",
        tasks: "Callable[[], Tasks]",
    ) -> None:
        self._reading = reading
        self._tasks = tasks

    async def sessions(
        self,
        limit: int = 50,
        cursor: str | None = None,
        *,
        project: str | Path | None = None,
        query: str | None = None,
        status: RunStatus | str | None = None,
        tenant: str | None = None,
    ) -> Page[SessionSummary]:
        """Return sessions with their titles, states and costs, the last used first.

        Args:
            limit: as for every list.
            cursor: as for every list.
            project: only sessions that work in this folder.
            query: words that title, folder and id must contain, in any order, ignoring case.
            status: only sessions whose last run has this status.
            tenant: as for every list.
        """
        most, (before,) = _checked(limit), _numbers("sessions", cursor, 1)
        wanted = None if status is None else _status(status)
        services = await self._reading(tenant)
        found = await services.sessions.page_of_summaries(
            before=before,
            limit=most + 1,
            project=await asyncio.to_thread(project_folder, project),
            query=query,
            status=wanted,
        )
        return _page("sessions", found, most)

    async def matches(
        self,
        query: str,
        limit: int = 50,
        cursor: str | None = None,
        *,
        project: str | Path | None = None,
        tenant: str | None = None,
    ) -> Page[SessionMatch]:
        """Find messages, tool calls and results with every word, as `search_sessions` does.

        Raises:
            ArgumentError: an argument is invalid, also if the query has no words, or too many.
        """
        most, (before,) = _checked(limit), _numbers("matches", cursor, 1)
        services = await self._reading(tenant)
        folder = await asyncio.to_thread(project_folder, project)
        found = await services.sessions.search(query, limit=most + 1, project=folder, before=before)
        return _page("matches", found, most)

    async def session(
        self,
        session_id: str,
        limit: int = 50,
        cursor: str | None = None,
        *,
        tenant: str | None = None,
    ) -> SessionPage:
        """Return the newest part of a session's history, without strings that look like secrets.

        Each page has at most `limit` nodes, as many runs and as many artifacts.

        Raises:
            StorageError: `session_not_found`.
        """
        most, places = _checked(limit), _numbers("session", cursor, len(_PARTS))
        before = {
            part: place for part, place in zip(_PARTS, places, strict=True) if place is not None
        }
        services = await self._reading(tenant)
        page, below = await services.sessions.page_of_history(session_id, before=before, limit=most)
        if not any(below.values()):
            return page
        following = _cursor("session", [below[part] for part in _PARTS])
        return page.model_copy(update={"next_cursor": following})

    async def approvals(
        self,
        limit: int = 50,
        cursor: str | None = None,
        *,
        session_id: str | None = None,
        is_open: bool = True,
        tenant: str | None = None,
    ) -> Page[ApprovalRecord]:
        """Return questions about calls, from every process that shares the home.

        Args:
            limit: as for every list.
            cursor: as for every list.
            session_id: only questions of this session.
            is_open: only questions that wait for an answer.
            tenant: as for every list.
        """
        from agent_core.storage.pages import page_approvals  # noqa: PLC0415 - for few programs

        most, (before,) = _checked(limit), _numbers("approvals", cursor, 1)
        services = await self._reading(tenant)
        items, last = await services.store.reader.read(
            lambda c: page_approvals(
                c, before=before, limit=most, session_id=session_id, is_open=is_open
            )
        )
        following = None if last is None else _cursor("approvals", [last])
        return Page(items=items, next_cursor=following)

    async def costs(
        self,
        by: CostUnit = "all",
        limit: int = 50,
        cursor: str | None = None,
        *,
        since: datetime | None = None,
        project: str | Path | None = None,
        tenant: str | None = None,
    ) -> Page[CostSummary]:
        """Return the cost of the stored sessions, as `AgentRuntime.costs` does.

        Args:
            by: `day`, `model`, `project` or `session`; `all` is one sum.
            limit: as for every list.
            cursor: as for every list.
            since: only runs started then or later, without background work; an aware time.
            project: only sessions that work in this folder.
            tenant: as for every list.

        Raises:
            ArgumentError: an argument is invalid, also if `since` has no time zone.
        """
        if since is not None and since.tzinfo is None:
            raise ArgumentError("since needs a time zone, as in datetime.now(UTC)", "since")
        most, before = _checked(limit), _place(f"costs by {by}", cursor)
        services = await self._reading(tenant)
        folder = await asyncio.to_thread(project_folder, project)
        found = await services.store.reader.read(
            lambda c: place_costs(
                c,
                by,
                since=None if since is None else microseconds(since),
                project=None if folder is None else storable(folder),
                limit=most + 1,
                before=before,
            )
        )
        return _page(f"costs by {by}", found, most)

    async def tasks(
        self,
        limit: int = 50,
        cursor: str | None = None,
        *,
        session_id: str | None = None,
        tenant: str | None = None,
    ) -> Page[SessionTask]:
        """Return Tasks with their steps, of a session or of the 200 sessions used last.

        Args:
            limit: as for every list.
            cursor: as for every list.
            session_id: the session; without one, sessions of other folders, and logs that cannot be
                read, are left out.
            tenant: as for every list.

        Raises:
            StorageError: `session_not_found`, `session_elsewhere`.
        """
        most, before = _checked(limit), _place("tasks", cursor)
        if session_id is not None:
            await (await self._reading(tenant)).sessions.replay_session(session_id, to_seq=0)
            tasks = await self._tasks_of(session_id)
        else:
            tasks = await self._last_tasks(tenant)
        placed = {
            f"{_order(each.created_at)} {each.session_id} {each.task_id}": each for each in tasks
        }
        return _page("tasks", _below(placed, before), most)

    async def _tasks_of(self, session_id: str) -> list[SessionTask]:
        found = await self._tasks().list(session_id, include_terminal=True)
        return [SessionTask(session_id=session_id, **dict(each)) for each in found]

    async def _last_tasks(self, tenant: str | None) -> list[SessionTask]:
        found: list[SessionTask] = []
        for session in (await self.sessions(MOST, tenant=tenant)).items:
            with suppress(AgentCoreError):
                found += await self._tasks_of(session.session_id)
        return found

    async def queue(
        self, limit: int = 50, cursor: str | None = None, *, tenant: str | None = None
    ) -> Page[QueuedRun]:
        """Return runs that wait for a worker, and runs that workers execute.

        Without a Postgres database there are none.
        """
        most, (before,) = _checked(limit), _numbers("queue", cursor, 1)
        services = await self._reading(tenant)
        if services.workers is None:
            return Page[QueuedRun]()
        return _page("queue", await services.workers.newest(before, most + 1), most)

    async def workers(
        self, limit: int = 50, cursor: str | None = None, *, tenant: str | None = None
    ) -> Page[WorkerRecord]:
        """Return the workers of the database, as of their last heartbeats, the last begun first.

        Without a Postgres database there are none.
        """
        most, before = _checked(limit), _place("workers", cursor)
        services = await self._reading(tenant)
        if services.workers is None:
            return Page[WorkerRecord]()
        workers = await services.workers.listed()
        placed = {f"{_order(each.started_at)} {each.worker_id}": each for each in workers}
        return _page("workers", _below(placed, before), most)


def _order(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"


def _below(placed: Mapping[str, Item], before: CostPlace) -> list[tuple[CostPlace, Item]]:
    """Return the items below a place, the last one first."""
    places = sorted(placed, reverse=True)
    return [(each, placed[each]) for each in places if before is None or each < str(before)]


def _page(name: str, found: Sequence[tuple[CostPlace, Item]], most: int) -> Page[Item]:
    """Return a page of numbered items, of which one more was read than the page has."""
    following = _cursor(name, [found[most - 1][0]]) if len(found) > most else None
    return Page(items=[item for _, item in found[:most]], next_cursor=following)


def _cursor(name: str, places: Sequence[CostPlace]) -> str:
    text = json.dumps([name, *places], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _places(name: str, cursor: str) -> list[Any]:
    """Return the contents of a cursor of this list.

    Raises:
        ArgumentError: it is no cursor of this list.
    """
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        read: Any = json.loads(base64.b64decode(padded, b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        read = None
    if not isinstance(read, list) or read[:1] != [name]:
        raise _unknown_cursor()
    return cast("list[Any]", read)[1:]


def _numbers(name: str, cursor: str | None, count: int) -> list[int | None]:
    if cursor is None:
        return [None] * count
    places = _places(name, cursor)
    if len(places) != count or not all(
        isinstance(each, int) and not isinstance(each, bool) and 0 <= each <= _LARGEST
        for each in places
    ):
        raise _unknown_cursor()
    return places


def _place(name: str, cursor: str | None) -> CostPlace:
    if cursor is None:
        return None
    match _places(name, cursor):
        case [str() as place] if name in _BY_TEXT:
            return place
        case [int() as place] if name not in _BY_TEXT and abs(place) <= _LARGEST:
            return place
        case _:
            raise _unknown_cursor()


def _checked(limit: int) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST:  # pyright: ignore[reportUnnecessaryIsInstance] - from a request, perhaps
        raise ArgumentError(f"limit must be a number from 1 to {MOST}", "limit")
    return limit


def _status(status: RunStatus | str) -> RunStatus:
    try:
        return RunStatus(status)
    except ValueError:
        message = f"there is no status {status!r}; there are: {', '.join(RunStatus)}"
        raise ArgumentError(message, "status") from None


def _unknown_cursor() -> AgentCoreError:
    return ArgumentError("unknown cursor; pass the next_cursor of a page of this list", "cursor")
