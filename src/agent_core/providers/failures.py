"""Failures of a model call: what a refusal means, and whether another attempt can help."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from agent_core.errors import ErrorCode, ProviderError
from agent_core.providers import jsontext

MAX_EXPLANATION = 500
_RETRYABLE = frozenset({408, 409, 429, 529, *range(500, 529), *range(530, 600)})

_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|request_too_large|maximum context length"
    r"|(prompt|input) is too long|input length exceeds|input token count.{0,80}exceeds"
    r"|exceeds? (the |this )?(model'?s )?(available |maximum )?context"
    r"|longer than the (maximum )?(model|context)|reduce the length of the (messages|prompt)",
    re.IGNORECASE,
)
_NO_TOOLS = re.compile(
    r"does ?n[o']t support (tools?|function)|not support (tools?|function)|support tool use"
    r"|(tools?|tool.calling|tool.use|function.calling)\W{1,3}(is|are) not (supported|enabled)"
    r"|enable-auto-tool-choice|tools param requires",
    re.IGNORECASE,
)
_NO_SUCH_SCHEMA = re.compile(
    r"invalid_function_parameters|invalid schema for (function|tool)|input_schema"
    r"|schema conversion failed|failed to parse (tools|grammar)",
    re.IGNORECASE,
)
_NO_IMAGES = re.compile(
    r"(image|vision)( input)?s? (is|are) not supported|support (images?|vision)",
    re.IGNORECASE,
)
_NO_THINKING = re.compile(r"does not support thinking", re.IGNORECASE)

_STATUS_OF_KIND: Mapping[str, int] = {
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "invalid_request_error": 400,
    "exceed_context_size_error": 400,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""What an error event inside a stream would have been as a status."""


class CallError(ProviderError):
    """One attempt failed; `retryable` says whether the next one may succeed.

    Args:
        retry_after_s: how long the service asked to be left alone, in seconds.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        retryable: bool = False,
        details: Mapping[str, Any] | None = None,
        *,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(code, message, retryable, details)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Called:
    """Who was asked for what: what every failure says about its call."""

    provider: str
    model: str
    offers_tools: bool = False

    def refused(
        self,
        status: int,
        explanation: str,
        *,
        url: str | None = None,
        retry_after_s: float | None = None,
    ) -> CallError:
        """The failure that a refusal with this HTTP status and explanation is.

        `url` is the address that was asked, where there is one.
        """
        details: dict[str, Any] = {**self.details, "status": status}
        if retry_after_s is not None:
            details["retry_after_s"] = retry_after_s
        capability = self._missing_capability(status, explanation)
        if capability:
            details["capability"] = capability
        code = ErrorCode.UNSUPPORTED_CAPABILITY if capability else _code(status, explanation)
        origin, cure = "", ""
        if url is not None:
            origin = f" from {url}"
            if code is ErrorCode.PROVIDER_ERROR and _may_be_the_wrong_place(status):
                cure = "; check [model] base_url and [model] name"
        return CallError(
            code,
            f"{self.provider} failed the call of {self.model} (status {status}{origin}): "
            f"{explanation}{cure}",
            not capability and status in _RETRYABLE and not _overflows(status, explanation),
            details,
            retry_after_s=retry_after_s,
        )

    def broke(self, what: str, *, code: ErrorCode = ErrorCode.PROVIDER_ERROR) -> CallError:
        """The connection failed or was lost: another attempt may succeed."""
        message = f"{self.provider} {what} (model {self.model})"
        return CallError(code, message, retryable=True, details=self.details)

    def unreachable(self, url: str, why: str) -> CallError:
        """Nothing answers at this address: what is there may be starting."""
        cure = "start Ollama, or check" if self.provider == "ollama" else "check"
        return self.broke(f"cannot be reached at {url}: {why}; {cure} [model] base_url")

    def protocol_error(self, what: str) -> CallError:
        """The service sent something that cannot be understood: it would do so again."""
        message = f"{self.provider} {what} (model {self.model})"
        return CallError(ErrorCode.PROVIDER_ERROR, message, details=self.details)

    def unsupported(self, capability: str, why: str) -> ProviderError:
        """A request that this provider has no form for; found before anything is sent."""
        return ProviderError(
            ErrorCode.UNSUPPORTED_CAPABILITY,
            f"provider {self.provider} (model {self.model}): {why}",
            details={**self.details, "capability": capability},
        )

    @property
    def details(self) -> dict[str, Any]:
        """Provider and model, for programs."""
        return {"provider": self.provider, "model": self.model}

    def _missing_capability(self, status: int, explanation: str) -> str | None:
        if status in {401, 403, 429}:
            return None
        if self.offers_tools and _NO_TOOLS.search(explanation):
            return "tools"
        if self.offers_tools and _NO_SUCH_SCHEMA.search(explanation):
            return "tool_schema"
        if _NO_IMAGES.search(explanation):
            return "images"
        return "thinking" if _NO_THINKING.search(explanation) else None


def explanation_of(body: bytes, content_type: str) -> str:
    """What the body of a refusal says, as one bounded line without control characters."""
    text = body.decode("utf-8", "replace")
    if "html" in content_type or text.lstrip()[:1] == "<":
        title = re.search(r"<title[^>]*>(.{0,200}?)</title>", text, re.IGNORECASE | re.DOTALL)
        return f"a web page titled {one_line(title[1])!r}" if title else "a web page"
    try:
        return explanation_in(jsontext.parse(body))
    except ValueError:
        return one_line(text) or "no explanation"


def explanation_in(document: Any) -> str:
    """The message and the kind of error in a service's JSON, wherever that service puts them."""
    if isinstance(document, list) and document:
        document = cast("list[Any]", document)[0]
    if not isinstance(document, dict):
        return one_line(jsontext.dump_text(document))
    fields = cast("dict[str, Any]", document)
    error = fields.get("error", fields)
    if isinstance(error, str):
        return one_line(error)
    if not isinstance(error, dict):
        return one_line(jsontext.dump_text(fields))
    error = cast("dict[str, Any]", error)
    message = error.get("message") or error.get("detail") or fields.get("message") or error
    text = one_line(message if isinstance(message, str) else jsontext.dump_text(message))
    kinds = [kind for kind in _kinds(error) if kind not in text]
    return f"{text} ({', '.join(kinds)})" if kinds else text


def status_in(document: Any) -> int:
    """The HTTP status that an error event inside a stream stands for; 500 if it does not say."""
    error = cast("dict[str, Any]", document).get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return 500
    error = cast("dict[str, Any]", error)
    for key in ("status", "code"):
        status = error.get(key)
        if isinstance(status, str) and status.isdecimal() and len(status) == 3:
            status = int(status)
        if isinstance(status, int) and 400 <= status < 600:
            return status
    return next((_STATUS_OF_KIND[kind] for kind in _kinds(error) if kind in _STATUS_OF_KIND), 500)


def one_line(text: str) -> str:
    """Bounded, on one line, nothing in it that a terminal would obey."""
    cut = text[: MAX_EXPLANATION * 4]
    line = " ".join("".join(char if char.isprintable() else " " for char in cut).split())
    return line if len(line) <= MAX_EXPLANATION else f"{line[:MAX_EXPLANATION]}…"


def _kinds(error: Mapping[str, Any]) -> list[str]:
    found = [error.get("type"), error.get("code")]
    return [one_line(kind)[:80] for kind in found if isinstance(kind, str) and kind]


def _overflows(status: int, explanation: str) -> bool:
    return status == 413 or (
        status not in {401, 403, 429} and _OVERFLOW.search(explanation) is not None
    )


def _may_be_the_wrong_place(status: int) -> bool:
    """A client error that says nothing about the request: not a bad one, not one to repeat."""
    return 400 < status < 500 and status != 422 and status not in _RETRYABLE


def _code(status: int, explanation: str) -> ErrorCode:
    if status in {401, 403}:
        return ErrorCode.PROVIDER_AUTH_FAILED
    if status == 429:
        return ErrorCode.PROVIDER_RATE_LIMITED
    if _overflows(status, explanation):
        return ErrorCode.PROMPT_TOO_LONG
    return ErrorCode.PROVIDER_TIMEOUT if status in {408, 504} else ErrorCode.PROVIDER_ERROR
