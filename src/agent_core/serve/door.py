"""The door: lets requests in, and turns errors into responses."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_core.api.database import Database
from agent_core.errors import AgentCoreError
from agent_core.redaction import log_failure
from agent_core.serve.access import AuthAccess, ServerAccess, SignInProblem
from agent_core.serve.headers import with_headers
from agent_core.serve.openai.errors import error_response
from agent_core.serve.pages.bare import reads_pages, refusal_page
from agent_core.serve.pages.frame import Frame, problem_page
from agent_core.serve.pages.login import login_page
from agent_core.serve.problems import DatabaseProblem, HttpProblem
from agent_core.serve.repeating import handle_once
from agent_core.serve.visits import Console, Visit, has_visit

logger = logging.getLogger(__name__)

_LIVE = "/livez"
_OPEN = {"/healthz", _LIVE, "/login"}
_LOGOUT = "/logout"
_ASSETS = "/assets/"
_FOR_PROGRAMS = {"api", "ag-ui", "healthz", "livez"}
_READING = {"GET", "HEAD"}
_SLOW_S = 2.0
"""Seconds after which the database is asked whether it responds, while a request waits."""

_MOST_HEADERS, _LONGEST_HEADERS = 200, 2**16
_MISSING, _NOT_FOUND = 404, "there is nothing at this address"
_CLOSE = {"Connection": "close"}


class Door:
    """Lets requests in to the handlers of an application."""

    def __init__(
        self, inside: ASGIApp, console: Console, access: AuthAccess | ServerAccess
    ) -> None:
        self._inside = inside
        self._console = console
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._inside(scope, receive, send)
            return
        # With an app, the router raises for what it does not know.
        scope = {**scope, "app": self, "path": _whole_path(scope)}
        path = _path_of(scope)
        send = with_headers(send, is_asset=path.startswith(_ASSETS))
        await _answer(self._let_in, scope, receive, send)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a request handled, if its sender may send it.

        Raises:
            HttpProblem: it is refused.
        """
        request, path = Request(scope, receive), _path_of(scope)
        self._admit(path, request)
        if _is_open(path):
            await self._inside(scope, receive, send)
            return
        principal = await self._access.principal_of(request)
        visit = scope["agent_core.visit"] = Visit(self._console, principal)
        if self._console.read_only and request.method == "POST" and path != _LOGOUT:
            raise HttpProblem(403, "this console is read-only")
        handle = partial(_answer, self._inside)
        database = visit.runtime.database
        try:
            if request.method in _READING:
                async with _while_it_responds(database, send) as sending:
                    await handle_once(handle, visit, request, sending)
                return
            # Nothing has begun, so that it can be sent again.
            if path != _LOGOUT and not await database.responds(to_writes=True):
                raise DatabaseProblem(is_change=True)
            await handle_once(handle, visit, request, send)
        finally:
            visit.leave()

    def _admit(self, path: str, request: Request) -> None:
        """Refuse a request that is not allowed for any sender.

        Raises:
            HttpProblem: 400, 403, 404, 431; 503: the server stops.
        """
        if "content-length" in request.headers and "transfer-encoding" in request.headers:
            raise HttpProblem(400, "a request must have exactly one length", headers=_CLOSE)
        headers = request.scope["headers"]
        if len(headers) > _MOST_HEADERS or sum(map(_size_of, headers)) > _LONGEST_HEADERS:
            raise HttpProblem(431, "the request has too many headers", headers=_CLOSE)
        self._access.check(request)
        if self._console.is_stopping and path != _LIVE:
            raise HttpProblem(503, "the server is stopping", headers={"Retry-After": "5", **_CLOSE})
        if "\0" in path:
            raise HttpProblem(_MISSING, _NOT_FOUND)
        if b"%00" in request.scope["query_string"]:
            raise HttpProblem(400, "a query must not contain a NUL")


@asynccontextmanager
async def _while_it_responds(database: Database, send: Send) -> AsyncGenerator[Send]:
    """Refuse a request that reads, if it waits for a database that does not respond.

    What takes long for another reason continues, and so does a response that has begun.

    Raises:
        DatabaseProblem: the database does not respond.
    """
    if database.is_silent:
        raise DatabaseProblem()
    loop = asyncio.get_running_loop()

    async def watch() -> None:
        while True:
            await asyncio.sleep(_SLOW_S)
            if not await database.responds():
                limit.reschedule(loop.time())
                return

    async def sent(message: Message) -> None:
        watching.cancel()
        await send(message)

    limit = asyncio.timeout(None)
    try:
        async with limit:
            watching = asyncio.create_task(watch())
            try:
                yield sent
            finally:
                watching.cancel()
    except TimeoutError:
        if not limit.expired():
            raise
        raise DatabaseProblem() from None


async def _answer(handle: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Have a request handled; what is raised becomes the response, unless that has begun."""
    is_begun = False

    async def sent(message: Message) -> None:
        nonlocal is_begun
        is_begun = True
        await send(message)

    try:
        await handle(scope, receive, sent)
    except Exception as error:  # noqa: BLE001 - logged and answered: one request ends no server
        problem = _problem_of(error, scope)
    else:
        return
    if is_begun:  # the status has been sent: the stream just ends
        logger.warning("a response was cut: %s", problem.detail)
        return
    await _refuse(problem, scope)(scope, receive, send)


def _problem_of(error: Exception, scope: Scope) -> HttpProblem:
    """Return the refusal that an error of a handler means."""
    match error:
        case HttpProblem():
            return error
        case AgentCoreError():
            return HttpProblem.of(error)
        case HTTPException():
            detail = _NOT_FOUND if error.status_code == _MISSING else error.detail
            return HttpProblem(error.status_code, detail, headers=error.headers)
        case ClientDisconnect():
            return HttpProblem(400, "the client has disconnected")
        case _:
            kind, method = type(error).__name__, scope["method"]
            log_failure(logger, f"{method} of {_route_of(scope)} hit a bug: {kind}", error=error)
            return HttpProblem(500, f"internal error ({kind}); the log has the details")


def _whole_path(scope: Scope) -> str:
    """Return the path with all of `root_path`, of which a proxy may have cut off the beginning."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if path == root or path.startswith(f"{root}/"):
        return path
    cut_off: str = scope.get("app_root_path", root)  # without what Starlette's mounts have added
    return f"{cut_off}{path}"


def _path_of(scope: Scope) -> str:
    """Return the path below the place at which the application is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _size_of(header: tuple[bytes, bytes]) -> int:
    name, value = header
    return len(name) + len(value)


def _is_open(path: str) -> bool:
    return path in _OPEN or path.startswith(_ASSETS)


def _route_of(scope: Scope) -> str:
    """Return the pattern of a request's address, without what its sender has put there."""
    return getattr(scope.get("route"), "path", "an address")


def _refuse(problem: HttpProblem, scope: Scope) -> Response:
    """Return the response to a refused request, in the form that its client reads."""
    path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
    first = path.removeprefix("/").split("/", 1)[0]
    if first == "v1":
        return error_response(problem)
    request = Request(scope)
    if not reads_pages(request):
        return problem.response()
    if isinstance(problem, SignInProblem):
        return login_page(
            request,
            takes_token=problem.takes_token,
            status=problem.status,
            is_wrong=problem.is_wrong,
            headers=problem.headers,
        )
    if first in _FOR_PROGRAMS:
        return problem.response()
    if has_visit(request):
        return problem_page(Frame(request), problem)
    return refusal_page(request, problem)
