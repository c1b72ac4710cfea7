"""The door: lets requests in, and turns errors into responses."""

import inspect
import logging
from typing import Protocol

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_core.errors import AgentCoreError
from agent_core.serve.principals import Auth, Principal
from agent_core.serve.problems import Problem
from agent_core.serve.refusals import refuse
from agent_core.serve.visits import Console, Visit

logger = logging.getLogger(__name__)


class Access(Protocol):
    """Decides whose request this is."""

    async def principal_of(self, request: Request) -> Principal | None:
        """Return the sender; None if it is not known, and the request needs none.

        Raises:
            Problem: the request is refused.
        """
        ...


class AuthAccess:
    """Access to an application inside another one, which knows its users."""

    def __init__(self, auth: Auth | None) -> None:
        self._auth = auth

    async def principal_of(self, request: Request) -> Principal:
        """Return the sender as the program knows it.

        Raises:
            Problem: 401.
        """
        found = self._auth(request) if self._auth is not None else None
        if inspect.isawaitable(found):
            found = await found
        if found is None:
            raise Problem(401, "who sends this request is not known")
        return found


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
        is_begun = False

        async def sent(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        try:
            principal = await self._access.principal_of(Request(scope, receive))
            if principal is not None:
                scope["agent_core.visit"] = Visit(self._console, principal)
            await self._inside(scope, receive, sent)
        except Problem as problem:
            response = refuse(problem, scope)
        except AgentCoreError as error:
            response = refuse(Problem.of(error), scope)
        except HTTPException as error:
            problem = Problem(error.status_code, error.detail, headers=error.headers)
            response = refuse(problem, scope)
        else:
            return
        if is_begun:  # the status has been sent: the stream just ends
            logger.warning("a response was cut: its handler failed")
            return
        await self._answer(response, scope, receive, send)

    async def _answer(self, response: Response, scope: Scope, receive: Receive, send: Send) -> None:
        await response(scope, receive, send)
