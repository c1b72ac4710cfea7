"""`GET /v1/models`: the agents."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent_core.serve.openai.errors import refused
from agent_core.serve.visits import Visit, visit_of
from agent_core.text.json_text import JsonObject

MAIN = "soong-agent"
"""The model that is the main agent."""

_CREATED = 1_767_225_600


async def require_model(visit: Visit, model: str) -> None:
    """Refuse a model that is no agent.

    Raises:
        HttpProblem: 404.
    """
    if model not in await _ids(visit):
        message = f"the model {model!r} does not exist; GET /v1/models lists those that do"
        raise refused("model", message, code="model_not_found", status=404)


async def list_models(request: Request) -> Response:
    """Return every agent as a model."""
    visit = visit_of(request)
    visit.require("read")
    found = [_model(each) for each in await _ids(visit)]
    return JSONResponse({"object": "list", "data": found})


async def read_model(request: Request) -> Response:
    """Return an agent as a model."""
    visit, model = visit_of(request), str(request.path_params["model"])
    visit.require("read")
    await require_model(visit, model)
    return JSONResponse(_model(model))


ROUTES = [
    Route("/v1/models", list_models, methods=["GET"]),
    Route("/v1/models/{model:path}", read_model, methods=["GET"]),
]


async def _ids(visit: Visit) -> list[str]:
    runtime = await visit.acting_in(None)
    found = [each.agent_definition_id for each in await runtime.agent_definitions()]
    return list(dict.fromkeys([MAIN, *found]))


def _model(model: str) -> JsonObject:
    return {"id": model, "object": "model", "created": _CREATED, "owned_by": MAIN}
