"""The ASGI application of the console."""

from collections.abc import Iterable
from importlib import import_module

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp

from agent_core.api import AgentRuntime
from agent_core.serve.access import AuthAccess, ServerAccess
from agent_core.serve.door import Door
from agent_core.serve.places import OnePlace
from agent_core.serve.principals import Auth
from agent_core.serve.problems import DatabaseProblem
from agent_core.serve.visits import Console

_PARTS = (
    *("api", "openapi", "pages"),
    *("ag_ui", "openai.models", "openai.chat", "openai.responses"),
)
"""The modules with `ROUTES`, in order."""


def app(runtime: AgentRuntime, *, auth: Auth | None = None, read_only: bool = False) -> ASGIApp:
    """Return the console of a runtime as an ASGI application, to mount under any prefix.

    It needs no lifespan: the program opens and closes the runtime.

    Args:
        runtime: reads and acts; its settings decide what happens to questions.
        auth: returns the sender of a request; without it every request is refused.
        read_only: refuse everything that would change something.
    """
    return build(Console(OnePlace(runtime), read_only), AuthAccess(auth))


def build(console: Console, access: AuthAccess | ServerAccess) -> ASGIApp:
    """Return an application with this access."""

    async def ready(_: Request) -> Response:
        if not await console.places.reader.database.responds():
            raise DatabaseProblem()
        return JSONResponse({"status": "ok"})

    health = [
        Route("/healthz", ready, methods=["GET"]),
        Route("/livez", _live, methods=["GET"]),
    ]
    routes = [*health, *access.routes, *_routes(_PARTS)]
    inside = Router(routes, redirect_slashes=False)
    return Door(inside, console, access)


def _routes(parts: Iterable[str]) -> Iterable[BaseRoute]:
    for part in parts:
        yield from import_module(f"agent_core.serve.{part}").ROUTES


async def _live(_: Request) -> Response:
    return JSONResponse({"status": "ok"})
