"""Failures of a model call: what a refusal means, whether and when another attempt follows."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

from agent_core.config.models import RetryConfig
from agent_core.errors import ErrorCode, ProviderError
from agent_core.providers import jsontext

MAX_EXPLANATION = 500
MAX_RETRY_AFTER_S = 60.0
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?")
_random = random.SystemRandom()
_RETRYABLE = frozenset({408, 409, 429, 529, *range(500, 529), *range(530, 600)})

_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|request_too_large|maximum context length"
    r"|(prompt|input) is too long|input length exceeds|input token count.{0,80}exceeds"
    r"|exceeds? (the |this )?(model'?s )?(available |maximum )?context"
    r"|longer than the (maximum )?(model|context)|reduce the length of the (messages|prompt)",
    re.IGNORECASE,
)
_MISSING_CAPABILITIES = {
    "tools": re.compile(
        r"does ?n[o']t support (tools?|function)|not support (tools?|function)|support tool use"
        r"|(tools?|tool.calling|tool.use|function.calling)\W{1,3}(is|are) not (supported|enabled)"
        r"|enable-auto-tool-choice|tools param requires",
        re.IGNORECASE,
    ),
    "tool_schema": re.compile(
        r"invalid_function_parameters|invalid schema for (function|tool)|input_schema"
        r"|schema conversion failed|failed to parse (tools|grammar)",
        re.IGNORECASE,
    ),
    "images": re.compile(
        r"(image|vision)( input)?s? (is|are) not supported|support (images?|vision)",
        re.IGNORECASE,
    ),
    "thinking": re.compile(r"does not support thinking", re.IGNORECASE),
}
"""What a service writes when it refuses a part of the request; the first match counts."""
WITHOUT_TOOLS = "choose a model that takes tools, or name every tool in [tools] disabled"
"""What a user can do about a model that takes no tools."""
_ABOUT_THE_ACCOUNT = frozenset({401, 403, 429})
"""Refusals with these statuses are never about the content of the request."""

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
    """The provider and model of one call, which every failure of it names."""

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
        is_of_request = status not in _ABOUT_THE_ACCOUNT
        overflows = status == 413 or (is_of_request and bool(_OVERFLOW.search(explanation)))
        missing = (
            name
            for name, pattern in _MISSING_CAPABILITIES.items()
            if (self.offers_tools or not name.startswith("tool")) and pattern.search(explanation)
        )
        capability = next(missing, None) if is_of_request else None
        code, cure = ErrorCode.PROVIDER_ERROR, ""
        if capability:
            code = ErrorCode.UNSUPPORTED_CAPABILITY
            details["capability"] = capability
            cure = f"; {WITHOUT_TOOLS}" if capability == "tools" else ""
        elif status in {401, 403}:
            code = ErrorCode.PROVIDER_AUTH_FAILED
        elif status == 429:
            code = ErrorCode.PROVIDER_RATE_LIMITED
        elif overflows:
            code = ErrorCode.PROMPT_TOO_LONG
        elif status in {408, 504}:
            code = ErrorCode.PROVIDER_TIMEOUT
        elif url and 400 < status < 500 and status != 422 and status not in _RETRYABLE:
            # A client error that says nothing about the request: this may be the wrong address.
            cure = "; check [model] base_url and [model] name"
        origin = f" from {url}" if url is not None else ""
        return CallError(
            code,
            f"{self.provider} failed the call of {self.model} (status {status}{origin}): "
            f"{explanation}{cure}",
            not capability and status in _RETRYABLE and not overflows,
            details,
            retry_after_s=retry_after_s,
        )

    def broke(self, what: str, *, code: ErrorCode = ErrorCode.PROVIDER_ERROR) -> CallError:
        """The connection failed or was lost: another attempt may succeed."""
        message = f"{self.provider} {what} (model {self.model})"
        return CallError(code, message, retryable=True, details=self.details)

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


def explanation_of(body: bytes, content_type: str) -> str:
    """What the body of a refusal says, as one bounded line without control characters."""
    text = body.decode("utf-8", "replace")
    if "html" in content_type or text.lstrip()[:1] == "<":
        title = re.search(r"<title[^>]*>(.{0,200}?)</title>", text, re.IGNORECASE | re.DOTALL)
        return f"a web page titled {bounded_line(title[1])!r}" if title else "a web page"
    try:
        return explanation_in(jsontext.parse(body))
    except ValueError:
        return bounded_line(text) or "no explanation"


def explanation_in(document: Any) -> str:
    """The message and the kind of error in a service's JSON, wherever that service puts them."""
    if isinstance(document, list) and document:
        document = cast("list[Any]", document)[0]
    if not isinstance(document, dict):
        return bounded_line(jsontext.dump_text(document))
    fields = cast("dict[str, Any]", document)
    error = fields.get("error", fields)
    if isinstance(error, str):
        return bounded_line(error)
    if not isinstance(error, dict):
        return bounded_line(jsontext.dump_text(fields))
    error = cast("dict[str, Any]", error)
    message = error.get("message") or error.get("detail") or fields.get("message") or error
    text = bounded_line(message if isinstance(message, str) else jsontext.dump_text(message))
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


def bounded_line(text: str) -> str:
    """Bounded, on one line, without control characters."""
    cut = text[: MAX_EXPLANATION * 4]
    line = " ".join("".join(char if char.isprintable() else " " for char in cut).split())
    return line if len(line) <= MAX_EXPLANATION else f"{line[:MAX_EXPLANATION]}…"


def _kinds(error: Mapping[str, Any]) -> list[str]:
    found = [error.get("type"), error.get("code")]
    return [bounded_line(kind)[:80] for kind in found if isinstance(kind, str) and kind]


def pause_before_retry_s(config: RetryConfig, attempt: int, failure: CallError) -> float | None:
    """How long to wait after attempt number `attempt` (from 1); None: give up.

    The pause is drawn evenly from between the initial backoff and a ceiling that doubles with
    every attempt, so that many clients do not come back at once; it is never shorter than what
    the service asked for.
    """
    if not failure.retryable or attempt >= config.max_attempts:
        return None
    asked = failure.retry_after_s or 0.0
    if asked > MAX_RETRY_AFTER_S:
        return None
    longest = min(config.max_backoff_ms, config.initial_backoff_ms * 2 ** min(attempt, 30))
    shortest = min(config.initial_backoff_ms, longest)
    return max(asked, _random.uniform(shortest, longest) / 1000)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """What the `Retry-After` header says, in seconds from now; None if it says nothing usable.

    A date is measured against the service's own clock, if it sent one, not against ours.
    """
    value = headers.get("Retry-After", "").strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    until = _date(value)
    if until is None:
        return None
    now = _date(headers.get("Date", "")) or datetime.now(UTC)
    return max(0.0, (until - now).total_seconds())


def _date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
        return date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
