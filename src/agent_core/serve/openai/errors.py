"""Errors as OpenAI's clients read them."""

import re
from collections.abc import Mapping

from starlette.responses import Response

from agent_core.providers import jsontext
from agent_core.serve.problems import HttpProblem
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.types import ErrorPayload

_SERVER = 500
_TYPES: Mapping[int, str] = {401: "authentication_error", 403: "permission_error"}
_CODES: Mapping[int, str] = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
_TOO_MANY = 429
_NO_RETRY: Mapping[str, str] = {"x-should-retry": "false"}
"""Keeps OpenAI's clients from starting a failed run again by themselves."""


def error_body(
    message: str, *, kind: str = "server_error", param: str | None = None, code: str | None = None
) -> JsonObject:
    """Return an error as OpenAI's interfaces write it.

    Args:
        message: what is wrong, for people.
        kind: its `type`.
        param: the field of the request that is wrong.
        code: the error code.
    """
    return {"message": message, "type": kind, "param": param, "code": code}


def run_error(error: ErrorPayload | None) -> JsonObject:
    """Return the error of a run that did not complete."""
    if error is None:
        return error_body("the run was cancelled", code="cancelled")
    return error_body(error.message, code=str(error.code))


def failed_run(error: ErrorPayload | None) -> Response:
    """Return the response to a request whose run did not complete."""
    return _response(_SERVER, run_error(error), _NO_RETRY)


def error_response(problem: HttpProblem) -> Response:
    """Return the response to a refused request."""
    status, details = problem.status, problem.details or {}
    if status >= _SERVER:
        kind = "server_error"
    else:
        kind = "requests" if status == _TOO_MANY else _TYPES.get(status, "invalid_request_error")
    body = error_body(
        problem.detail,
        kind=kind,
        param=_param_of(details),
        code=problem.code or _CODES.get(status),
    )
    return _response(status, body, problem.headers)


def refused(param: str, message: str, *, code: str | None = None, status: int = 400) -> HttpProblem:
    """Return the refusal of a request because of one of its fields."""
    return HttpProblem(status, message, code=code, details={"param": param})


def _response(status: int, body: JsonObject, headers: Mapping[str, str] | None) -> Response:
    written = jsontext.dump_text({"error": body})
    return Response(written, status, headers=headers, media_type="application/json")


def _param_of(details: Mapping[str, JsonValue]) -> str | None:
    match details:
        case {"param": str(param)} | {"option": str(param)}:
            return param
        case {"errors": [{"path": str(path)}, *_]}:
            return re.sub(r"^\$\.?", "", path) or None
        case _:
            return None
