"""Refusals, in the form that the client of an address reads."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from agent_core.serve.openai.errors import error_response
from agent_core.serve.pages.frame import Frame, problem_page
from agent_core.serve.problems import HttpProblem
from agent_core.serve.visits import has_visit

_FOR_PROGRAMS = {"api", "ag-ui", "healthz"}


def refuse(problem: HttpProblem, scope: Scope) -> Response:
    """Return the response to a refused request."""
    path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
    first = path.removeprefix("/").split("/", 1)[0]
    if first == "v1":
        return error_response(problem)
    request = Request(scope)
    is_page = first not in _FOR_PROGRAMS and "text/html" in request.headers.get("accept", "")
    if is_page and has_visit(request):
        return problem_page(Frame(request), problem)
    return problem.response()
