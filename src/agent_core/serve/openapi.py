"""The description of the API: OpenAPI 3.1 at `/openapi.json`, made from the operations."""

from collections.abc import Iterable, Mapping
from functools import cache, partial
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter
from starlette.responses import Response
from starlette.routing import Route

from agent_core.loading import installed_version
from agent_core.serve.api import OPERATIONS
from agent_core.serve.operations import (
    EVENTS,
    FILE,
    JSON,
    ApiCall,
    Operation,
    Query,
    path_names,
    routes,
)
from agent_core.text.json_text import JsonObject, JsonSchema
from agent_core.types import RuntimeEvent

_REF = "#/components/schemas/{model}"
_PROBLEM = "application/problem+json"
_OPENAI = "/v1/"
"""Below it, requests, answers and errors have OpenAI's form."""
_STREAMED = frozenset({"/v1/chat/completions", "/v1/responses"})
"""Paths below it that stream their answer if the request says so."""

_TITLES: Mapping[int, str] = {
    400: "The request is not valid",
    401: "The sender is not known",
    403: "The sender may not do this",
    404: "It is unknown",
    408: "The body has not arrived in time",
    409: "It conflicts with the present state",
    413: "The body is too large",
    415: "The body is not JSON",
    422: "The idempotency key was used with another body",
    429: "There are too many; Retry-After says when to try again",
    503: "It cannot be answered now; Retry-After says when to try again",
}

_DONE: Mapping[int, str] = {200: "The answer", 201: "It was made; Location is its address"}


class ProblemBody(BaseModel):
    """A refusal, as RFC 9457 has it; `code` is an error code of the runtime."""

    type: str
    title: str
    status: int
    detail: str
    code: str | None = None
    details: JsonObject | None = None


class OpenAiError(BaseModel):
    """A refusal, as OpenAI's clients read it."""

    error: JsonObject


class Health(BaseModel):
    """The state of the server."""

    status: str


class OpenApi(BaseModel):
    """A description of an API."""

    openapi: str
    info: JsonObject
    servers: list[JsonObject]
    security: list[JsonObject]
    paths: dict[str, JsonObject]
    components: JsonObject


async def _described(call: ApiCall[Query, None]) -> OpenApi:
    scope = call.request.scope
    port = (scope.get("server") or ("", None))[1]
    return describe(call.address("") or "/", f"soong-agent-{port}")


async def _elsewhere(_: ApiCall[Query, None]) -> Response:
    raise AssertionError("this operation is only described here: another module serves it")


_OWN = [
    Operation(
        method="GET",
        path="/openapi.json",
        summary="Describe this API",
        handler=_described,
        answer=OpenApi,
    )
]


def _of_openai() -> list[Operation]:
    """Return the operations with OpenAI's requests, answers and errors."""
    read = partial(Operation, method="GET", handler=_elsewhere, answer=JsonObject)
    start = partial(
        Operation,
        method="POST",
        handler=_elsewhere,
        answer=JsonObject,
        right="run",
        refusals=[404, 409, 413, 415, 429, 500],
    )
    chat, answers = "/v1/chat/completions", "/v1/responses"
    one = f"{answers}/{{response_id}}"
    return [
        read(path="/v1/models", summary="List the agents as models"),
        read(path="/v1/models/{model}", summary="Read an agent as a model", refusals=[404]),
        start(path=chat, summary="Run an agent as a chat completion", body=JsonObject),
        start(path=answers, summary="Run an agent as a response", body=JsonObject),
        read(path=one, summary="Read a response", refusals=[404]),
        start(path=f"{one}/cancel", summary="Cancel the run of a response"),
    ]


_OTHERS = [
    Operation(
        method="GET",
        path="/healthz",
        summary="Tell whether requests are answered",
        handler=_elsewhere,
        answer=Health,
        right=None,
        refusals=[503],
    ),
    Operation(
        method="GET",
        path="/livez",
        summary="Tell whether the process is alive",
        handler=_elsewhere,
        answer=Health,
        right=None,
    ),
    Operation(
        method="POST",
        path="/ag-ui",
        summary="Run an agent for a client of AG-UI",
        handler=_elsewhere,
        body=JsonObject,
        right="run",
        media=EVENTS,
        refusals=[404, 409, 413, 415, 429],
    ),
    *_of_openai(),
]
"""Operations that other modules serve."""

ROUTES: list[Route] = routes(_OWN)


def described_operations() -> list[Operation]:
    """Return every operation that the description has."""
    return [*OPERATIONS, *_OWN, *_OTHERS]


def describe(server: str, cookie: str) -> OpenApi:
    """Return the description.

    Args:
        server: the address at which the application is mounted.
        cookie: the name of the cookie that signs a browser in.
    """
    schemes = {
        "token": {"type": "http", "scheme": "bearer"},
        "cookie": {"type": "apiKey", "in": "cookie", "name": cookie},
    }
    paths, schemas = _contents()
    return OpenApi(
        openapi="3.1.0",
        info={"title": "soong-agent", "version": installed_version() or "0"},
        servers=[{"url": server}],
        security=[{name: []} for name in schemes],
        paths=paths,
        components={"schemas": schemas, "securitySchemes": schemes},
    )


@cache
def _contents() -> tuple[dict[str, JsonObject], JsonSchema]:
    """Return the paths, and the schemas that they refer to."""
    operations = described_operations()
    kinds = [(("answer", each.answer), "serialization") for each in operations if each.answer]
    kinds += [(("body", each.body), "validation") for each in operations if each.body is not None]
    kinds += [(("query", each.query), "validation") for each in operations]
    others = (ProblemBody, OpenAiError, RuntimeEvent)
    kinds += [(("answer", kind), "serialization") for kind in others]
    inputs = [(key, mode, TypeAdapter(key[1])) for key, mode in dict(kinds).items()]
    found, definitions = TypeAdapter.json_schemas(cast("Any", inputs), ref_template=_REF)
    schemas: JsonSchema = definitions.get("$defs", {})
    known = {key: schema for (key, _), schema in found.items()}
    paths: dict[str, JsonObject] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(
            operation, cast("Any", known), schemas
        )
    for query in {each.query for each in operations}:
        schemas.pop(query.__name__, None)
    return paths, schemas


def _operation(
    operation: Operation, known: Mapping[tuple[str, Any], JsonSchema], schemas: JsonSchema
) -> JsonObject:
    described: JsonObject = {
        "summary": operation.summary,
        "operationId": _id_of(operation),
        "parameters": [
            *_path_parameters(operation),
            *_query_parameters(_resolved(known["query", operation.query], schemas)),
            *_headers(operation),
        ],
        "responses": _responses(operation, known),
    }
    if operation.right is None:
        described["security"] = []
    else:
        described["x-right"] = operation.right
    if operation.body is not None:
        schema = known["body", operation.body]
        described["requestBody"] = {
            "required": bool(_resolved(schema, schemas).get("required")),
            "content": {JSON: {"schema": schema}},
        }
    return described


def _responses(operation: Operation, known: Mapping[tuple[str, Any], JsonSchema]) -> JsonObject:
    responses: JsonObject = {str(operation.status): _done(operation, known)}
    if operation.media == EVENTS and operation.method == "GET":
        responses["204"] = {"description": "The run has ended, and no event is left"}
    refusals = {400, 503, *operation.refusals}
    if operation.right is not None:
        refusals |= {401, 403, 429}
    if operation.method == "POST":
        refusals |= {408, 409, 422}
    content = {_PROBLEM: {"schema": known["answer", ProblemBody]}}
    if operation.path.startswith(_OPENAI):
        content = {JSON: {"schema": known["answer", OpenAiError]}}
    for status in sorted(refusals):
        title = _TITLES.get(status, "It has failed")
        responses[str(status)] = {"description": title, "content": content}
    return responses


def _done(operation: Operation, known: Mapping[tuple[str, Any], JsonSchema]) -> JsonObject:
    content: JsonObject = {JSON: {}}
    if operation.answer is not None:
        content = {JSON: {"schema": known["answer", operation.answer]}}
        if operation.path in _STREAMED:
            content[EVENTS] = {"schema": _event(operation, known)}
    elif operation.media == EVENTS:
        content = {EVENTS: {"schema": _event(operation, known)}}
    elif operation.media == FILE:
        kinds = (FILE, "image/gif", "image/jpeg", "image/png", "image/webp")
        content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in kinds}
    done: JsonObject = {"description": _DONE[operation.status], "content": content}
    if operation.status == 201:
        done["headers"] = {"Location": {"required": True, "schema": {"type": "string"}}}
    return done


def _event(operation: Operation, known: Mapping[tuple[str, Any], JsonSchema]) -> JsonSchema:
    """Return the schema of each event of a stream."""
    data: JsonSchema = {"type": "string", "contentMediaType": JSON}
    if operation.method != "GET":
        return {"type": "object", "properties": {"data": data}, "required": ["data"]}
    data["contentSchema"] = known["answer", RuntimeEvent]
    fields = {"id": {"type": "string"}, "event": {"type": "string"}, "data": data}
    return {"type": "object", "properties": fields, "required": ["event", "data"]}


def _path_parameters(operation: Operation) -> Iterable[JsonObject]:
    for name in path_names(operation.path):
        schema = {"type": "string", "minLength": 1}
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameters(schema: JsonSchema) -> Iterable[JsonObject]:
    required = schema.get("required", ())
    for name, each in schema.get("properties", {}).items():
        choices = [one for one in each.get("anyOf", [each]) if one.get("type") != "null"]
        plain = {key: value for key, value in choices[0].items() if key != "title"}
        if plain.keys() & {"enum", "$ref"}:  # an empty one counts as left out
            plain = {"anyOf": [plain, {"const": ""}]}
        if each.get("default") is not None:
            plain["default"] = each["default"]
        yield {"name": name, "in": "query", "required": name in required, "schema": plain}


def _headers(operation: Operation) -> Iterable[JsonObject]:
    if operation.method == "POST":
        schema: JsonSchema = {"type": "string", "minLength": 1, "maxLength": 255}
        yield {"name": "Idempotency-Key", "in": "header", "required": False, "schema": schema}
    elif operation.media == EVENTS:
        schema = {"type": "string", "pattern": "^[0-9]{1,18}$"}
        yield {"name": "Last-Event-ID", "in": "header", "required": False, "schema": schema}


def _resolved(schema: JsonSchema, schemas: JsonSchema) -> JsonSchema:
    return schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _id_of(operation: Operation) -> str:
    words = [part.strip("{}") for part in operation.path.split("/") if part]
    return "_".join([operation.method.lower(), *words]).replace(".", "_").replace("-", "_")
