"""Operations of the API: each is described once, for its requests and for `/openapi.json`."""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import Struct
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_core.errors import ErrorCode
from agent_core.providers import jsontext
from agent_core.serve.bodies import Body, misfit, read_json
from agent_core.serve.principals import Right
from agent_core.serve.problems import HttpProblem
from agent_core.serve.visits import Visit, visit_of

Q = TypeVar("Q", bound=Body)
B = TypeVar("B")

EVENTS = "text/event-stream"
FILE = "application/octet-stream"
JSON = "application/json"

_NEVER_EMPTY = {"limit", "after", "since"}
"""Parameters that an address gives with a value, or not at all."""

_IGNORED = {"access_token", "token"}
"""Parameters of addresses that mean nothing: no address signs anybody in."""


def _number(given: object) -> object:
    if isinstance(given, str) and not re.fullmatch(r"[0-9]{1,18}", given):
        raise ValueError("must be digits")
    return int(given) if isinstance(given, str) else given


Number = Annotated[int, Field(ge=0, lt=10**18), BeforeValidator(_number)]
"""A number in an address."""


class Query(Body):
    """The parameters of an address; there are no others than these."""


class Paging(Query):
    """The parameters of a list."""

    limit: Annotated[int, Field(ge=1, le=200), BeforeValidator(_number)] = 50
    cursor: str | None = None


class ApiCall(Struct, Generic[Q, B], frozen=True):
    """A request that has been read.

    Attributes:
        visit: whose request it is.
        request: the request; its body is read.
        query: the parameters of its address.
        body: its body; None for an operation without one.
    """

    visit: Visit
    request: Request
    query: Q
    body: B

    def path(self, name: str) -> str:
        """Return a part of the address."""
        return str(self.request.path_params[name])

    def address(self, path: str) -> str:
        """Return the address of a path of this application."""
        return f"{self.request.scope.get('root_path', '')}{path}"


class Created(Struct, frozen=True):
    """The answer to a request that has made something, and the path of what it made."""

    value: Any
    location: str


Handler = Callable[[Any], Awaitable[Any]]


class Operation(Struct, frozen=True, kw_only=True):
    """One method of one path.

    Attributes:
        method, path: as in `GET /api/runs/{run_id}`.
        summary: what it does, in one line.
        handler: returns the answer: a value of the type `answer`, a `Created`, or a response.
        answer: the type of the answer; None: it is no JSON.
        right: what the principal has to have; None: anybody may.
        query: the type of the parameters.
        body: the type of the body; None for no body.
        holds_image: returns whether a body holds an image, and may be large.
        status: the status of an answer.
        media: the type of the content of an answer.
        refusals: statuses of refusals that not every operation has.
    """

    method: Literal["GET", "POST"]
    path: str
    summary: str
    handler: Handler
    answer: Any = None
    right: Right | None = "read"
    query: type[Query] = Query
    body: Any = None
    holds_image: Callable[[Any], bool] | None = None
    status: int = 200
    media: str = JSON
    refusals: Sequence[int] = ()

    async def answered(self, request: Request) -> Response:
        """Answer a request.

        Raises:
            HttpProblem: it is refused.
            AgentCoreError: it cannot be carried out.
        """
        visit = visit_of(request)
        if self.right is not None:
            visit.require(self.right)
        query = read_query(request, self.query)
        body = None
        if self.body is not None:
            body = await read_json(request, self.body, holds_image=self.holds_image)
        value = await self.handler(ApiCall(visit, request, query, body))
        headers: dict[str, str] = {}
        if isinstance(value, Created):
            location = f"{request.scope.get('root_path', '')}{value.location}"
            value, headers["Location"] = value.value, location
        if isinstance(value, Response) or self.answer is None:
            return value
        return Response(
            json_bytes(value, self.answer), self.status, headers=headers, media_type=self.media
        )


def json_bytes(value: Any, kind: Any) -> bytes:
    """Return a value of this type as JSON that every reader accepts."""
    return jsontext.dump(_adapter(kind).dump_python(value, mode="json"))


def read_query(request: Request, model: type[Q]) -> Q:
    """Return the parameters of an address; an empty one, but a number or time, is left out.

    Raises:
        HttpProblem: 400: one is unknown, given twice, or wrong.
    """
    given: dict[str, str] = {}
    seen = set[str]()
    for name, value in request.query_params.multi_items():
        if name in _IGNORED and name not in model.model_fields:
            continue
        if name in seen:
            raise HttpProblem(400, f"{name} is given twice", code=ErrorCode.VALIDATION_ERROR)
        seen.add(name)
        if value or name in _NEVER_EMPTY or name not in model.model_fields:
            given[name] = value
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise misfit(error) from None


def routes(operations: Iterable[Operation]) -> list[Route]:
    """Return the routes of operations: one for each path."""
    paths: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = operation
    return [_route(path, methods) for path, methods in paths.items()]


def _route(path: str, methods: Mapping[str, Operation]) -> Route:
    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await methods[method].answered(request)

    pattern = path.replace("{path}", "{path:path}")
    return Route(pattern, endpoint, methods=[*methods])


@lru_cache(maxsize=64)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def path_names(path: str) -> Collection[str]:
    """Return the names of the variable parts of a path."""
    return re.findall(r"{(\w+)}", path)
