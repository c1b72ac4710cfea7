"""The door: lets requests in, and turns errors into responses."""

import logging

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_core.errors import AgentCoreError
from agent_core.serve.access import Access
from agent_core.serve.headers import with_headers
from agent_core.serve.problems import Problem
from agent_core.serve.refusals import refuse
from agent_core.serve.visits import Console, Visit

logger = logging.getLogger(__name__)

_OPEN = {"/healthz", "/login"}
_ASSETS = "/assets/"
_MISSING, _NOT_FOUND = 404, "there is nothing at this address"
_CLOSE = {"Connection": "close"}


class Door:
    """Lets requests in to the handlers of an application."""

    def __init__(self, inside: ASGIApp, console: Console, access: Access) -> None:
        self._inside = inside
        self._console = console
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._inside(scope, receive, send)
            return
        scope = {**scope, "app": self}  # so that the router raises for what it does not know
        path = _path_of(scope)
        send = with_headers(send, is_asset=path.startswith(_ASSETS))
        is_begun = False

        async def sent(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        response = await self._handle(path, scope, receive, sent)
        if response is None:
            return
        if is_begun:  # the status has been sent: the stream just ends
            logger.warning("a response was cut: its handler failed")
            return
        await response(scope, receive, send)

    async def _handle(
        self, path: str, scope: Scope, receive: Receive, send: Send
    ) -> Response | None:
        """Have a request answered, and return the response in place of one that was refused."""
        request = Request(scope, receive)
        visit: Visit | None = None
        try:
            await self._admit(path, request)
            if not _is_open(path):
                visit = Visit(self._console, await self._access.principal_of(request))
                scope["agent_core.visit"] = visit
                if self._console.read_only and request.method == "POST":
                    raise Problem(403, "this console is read-only")
            await self._inside(scope, receive, send)
        except Problem as problem:
            return refuse(problem, scope)
        except AgentCoreError as error:
            return refuse(Problem.of(error), scope)
        except HTTPException as error:
            detail = _NOT_FOUND if error.status_code == _MISSING else error.detail
            return refuse(Problem(error.status_code, detail, headers=error.headers), scope)
        except ClientDisconnect:
            return refuse(Problem(400, "the sender has left"), scope)
        except Exception as error:  # logged and answered: one request ends no server
            kind = type(error).__name__
            logger.exception("%s of %s hit a bug: %s", request.method, _route_of(scope), kind)
            detail = f"internal error ({kind}); the log has the details"
            return refuse(Problem(500, detail), scope)
        finally:
            if visit is not None:
                visit.leave()
        return None

    async def _admit(self, path: str, request: Request) -> None:
        """Refuse a request that nobody may send.

        Raises:
            Problem: 400, 403, 404; 503: the server stops.
        """
        if "content-length" in request.headers and "transfer-encoding" in request.headers:
            raise Problem(400, "a request has one length", headers=_CLOSE)
        self._access.check(request)
        if self._console.is_stopping:
            raise Problem(503, "the server stops", headers={"Retry-After": "5", **_CLOSE})
        if "\0" in path:
            raise Problem(_MISSING, _NOT_FOUND)
        if b"%00" in request.scope["query_string"]:
            raise Problem(400, "a query holds no NUL")


def _path_of(scope: Scope) -> str:
    """Return the path below the place at which the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


def _is_open(path: str) -> bool:
    return path in _OPEN or path.startswith(_ASSETS)


def _route_of(scope: Scope) -> str:
    """Return the pattern of a request's address, without what its sender has put there."""
    return getattr(scope.get("route"), "path", "an address")
