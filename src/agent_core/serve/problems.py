"""Errors as `application/problem+json` (RFC 9457)."""

from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import Response

from agent_core.errors import AgentCoreError, ErrorCode, PortableError
from agent_core.providers import jsontext
from agent_core.text.json_text import JsonObject, JsonValue

_STATUS: Mapping[ErrorCode, int] = {
    ErrorCode.VALIDATION_ERROR: 400,
    ErrorCode.PERMISSION_DENIED: 403,
    ErrorCode.SESSION_NOT_FOUND: 404,
    ErrorCode.RUN_NOT_FOUND: 404,
    ErrorCode.NODE_NOT_FOUND: 404,
    ErrorCode.ARTIFACT_NOT_FOUND: 404,
    ErrorCode.APPROVAL_NOT_FOUND: 404,
    ErrorCode.FILE_NOT_FOUND: 404,
    ErrorCode.TASK_NOT_FOUND: 404,
    ErrorCode.ALREADY_ANSWERED: 409,
    ErrorCode.SESSION_ACTIVE: 409,
    ErrorCode.SESSION_ELSEWHERE: 409,
    ErrorCode.PATH_CONFLICT: 409,
}


_UNAVAILABLE = 503
_AGAIN_S = "5"
"""Seconds after which a request is to be sent again that found no database."""


class HttpProblem(PortableError):  # noqa: N818 - the noun of RFC 9457
    """The refusal of a request.

    Args:
        status: the HTTP status.
        detail: what is wrong, for people.
        code: the error code, if there is one.
        details: more about it, as JSON data.
        headers: further headers of the response.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        code: str | None = None,
        details: Mapping[str, JsonValue] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail
        self.code = code
        self.details = details
        self.headers = headers

    def __str__(self) -> str:
        return self.detail

    @classmethod
    def of(cls, error: AgentCoreError) -> "HttpProblem":
        """Return the refusal that an error of the runtime means."""
        status = _STATUS.get(error.code, _UNAVAILABLE if error.retryable else 500)
        headers = {"Retry-After": "1"} if status == _UNAVAILABLE else None
        details = error.details or None
        return cls(status, error.message, code=str(error.code), details=details, headers=headers)

    def response(self) -> Response:
        """Return the response, as a program reads it."""
        body: JsonObject = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        if self.code is not None:
            body["code"] = self.code
        if self.details:
            body["details"] = dict(self.details)
        return Response(
            jsontext.dump_text(body),
            self.status,
            headers=self.headers,
            media_type="application/problem+json",
        )


class DatabaseProblem(HttpProblem):
    """The refusal of a request because the database does not respond; nothing was done.

    Args:
        is_change: the request changes something; otherwise a browser sends it again by itself.
    """

    def __init__(self, *, is_change: bool = False) -> None:
        detail = "the database does not respond; wait a few seconds"
        headers = {"Retry-After": _AGAIN_S}
        if is_change:
            detail = "the database does not respond; nothing was done, send this again later"
        else:
            headers["Refresh"] = _AGAIN_S
        super().__init__(_UNAVAILABLE, detail, code=ErrorCode.STORAGE_ERROR, headers=headers)
