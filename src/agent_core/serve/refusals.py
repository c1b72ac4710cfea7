"""Refusals, in the form that the client of an address reads."""

from starlette.responses import Response
from starlette.types import Scope

from agent_core.serve.openai.errors import error_response
from agent_core.serve.problems import HttpProblem


def refuse(problem: HttpProblem, scope: Scope) -> Response:
    """Return the response to a refused request."""
    path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
    if path == "/v1" or path.startswith("/v1/"):
        return error_response(problem)
    return problem.response()
