"""Reads what services and gateways answer in place of a reply: JSON of any shape, words, pages."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import urljoin, urlsplit

from agent_core.providers import jsontext
from agent_core.text import bounded_line
from agent_core.text.json_text import array, table

_SHOWN_PROBLEMS = 5
_SHOWN_KIND = 80
_MOST_READ = 64 * 1024
_SECONDS = r"\d{1,9}(\.\d{1,9})?"

_STATUS_OF_KIND: Mapping[str, int] = {
    "authentication_error": 401,
    "invalid_api_key": 401,
    "unauthenticated": 401,
    "unauthorized": 401,
    "billing_error": 402,
    "payment_required": 402,
    "permission_denied": 403,
    "permission_error": 403,
    "not_found": 404,
    "not_found_error": 404,
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "bad_request": 400,
    "context_length_exceeded": 400,
    "exceed_context_size_error": 400,
    "failed_precondition": 400,
    "invalid_argument": 400,
    "request_too_large": 413,
    "billing_hard_limit_reached": 429,
    "insufficient_quota": 429,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "resource_exhausted": 429,
    "too_many_requests": 429,
    "api_error": 500,
    "internal": 500,
    "server_error": 500,
    "bad_gateway": 502,
    "unavailable": 503,
    "deadline_exceeded": 504,
    "timeout_error": 504,
    "overloaded_error": 529,
    "modelstreamerrorexception": 502,
    "modeltimeoutexception": 408,
    "serviceunavailableexception": 503,
    "throttlingexception": 429,
    "validationexception": 400,
}
"""HTTP status for an error event inside a stream, by its kind in lower case."""

_OF_THE_REQUEST = (
    *("bio_", "data_residency_", "empty_", "failed_to_download_", "image_", "invalid_"),
    *("misalignment_", "unsupported_"),
)
"""Beginnings of other kinds of errors in the request: the next attempt would fail too."""


def foreign_line(text: str, limit: int = 500) -> str:
    """Return the beginning of a service's words on one line, with `…` where it is cut.

    Tokens are taken out before the cut: half of one would no longer be recognised.
    """
    if len(text) > limit:
        from agent_core.redaction import Redactor  # noqa: PLC0415 - for long answers only

        text = Redactor({}).text(text[:_MOST_READ])
    line = bounded_line(text)
    return line if len(line) <= limit else f"{line[:limit]}…"


class HtmlAnswer(str):
    """The description of a web page that answered in place of an API."""

    __slots__ = ()


def document_of(body: bytes) -> Any:
    """Parse the JSON of an answer; otherwise return its text, or the `HtmlAnswer` that it is."""
    try:
        return jsontext.parse(body)
    except ValueError:
        text = body.decode("utf-8", "replace")
    if text.lstrip("\ufeff \t\r\n")[:1] == "<":
        title = re.search(r"<title[^>]*>(.{0,200}?)</title>", text, re.IGNORECASE | re.DOTALL)
        return HtmlAnswer(
            f"a web page titled {bounded_line(title[1])!r}" if title else "a web page"
        )
    return text if text.strip() else "no explanation"


def is_error(document: Any) -> bool:
    """Return whether this JSON reports a failure."""
    if document.__class__ is not dict:
        return False
    return bool(document.get("error")) or document.get("object") == "error"


def explanation_in(document: Any) -> str:
    """Return the message and the kind of error in a service's JSON, wherever they are."""
    error = error_in(document)
    if not isinstance(error, dict):
        return foreign_line(_in_words(error))
    fields = cast("dict[str, Any]", error)
    text = foreign_line(_in_words(fields if _message_in(fields) else document))
    raw = table(fields.get("metadata")).get("raw")  # OpenRouter: the words of the model's host
    if raw:
        text = foreign_line(f"{text}: {_in_words(raw)}")
    if isinstance(size := fields.get("n_ctx"), int):  # llama.cpp: beside its words
        text = f"{text} (n_ctx {size})"
    kinds = [kind for kind in _kinds(fields) if kind not in text]
    return f"{text} ({', '.join(kinds)})" if kinds else text


def status_in(document: Any) -> int:
    """Return the HTTP status for an error event inside a stream; 500 if it does not say."""
    if named := named_status(document):
        return named
    kinds = [kind.lower() for kind in _kinds(table(error_in(document)))]
    is_of_request = any(kind.startswith(_OF_THE_REQUEST) for kind in kinds)
    unknown = 400 if is_of_request else 500
    return next((_STATUS_OF_KIND[kind] for kind in kinds if kind in _STATUS_OF_KIND), unknown)


def named_status(document: Any) -> int | None:
    """Return the HTTP status that an error has as a number."""
    fields = table(error_in(document))
    for key in ("status", "code", "status_code", "http_code"):
        status = fields.get(key)
        if isinstance(status, str) and status.isdecimal() and len(status) == 3:
            status = int(status)
        if isinstance(status, int) and 400 <= status < 600:
            return status
    return None


def shown_address(location: str, base: str) -> str:
    """Return where a redirect leads: scheme, host and path, without credentials or a query.

    Args:
        location: the header; may be relative, and empty.
        base: the address that was requested.
    """
    try:
        parts = urlsplit(urljoin(base, location.strip())) if location.strip() else None
    except ValueError:
        return ""
    if parts is None or parts.scheme not in {"http", "https"}:
        return ""
    host = parts.netloc.rpartition("@")[2]
    return foreign_line(f"{parts.scheme}://{host}{parts.path}")


def retry_delay_in(document: Any) -> float | None:
    """Return the seconds Google asks to wait: `{"retryDelay": "34s"}` among the details."""
    for detail in array(table(error_in(document)).get("details")):
        delay = table(detail).get("retryDelay")
        if isinstance(delay, str) and re.fullmatch(_SECONDS, delay.removesuffix("s")):
            return float(delay.removesuffix("s"))
    return None


_MESSAGE_FIELDS = (
    "message",
    "detail",
    "msg",
    "error_message",
    "error_description",
    "Message",
    "errors",
    "title",
    "error",
)
"""Fields in which services and gateways put a refusal's words; the first present one counts."""


def error_in(document: Any) -> Any:
    """Return the part of a service's JSON that describes the error."""
    first = next(iter(array(document)), document)
    return table(table(first).get("error")) or first


def _message_in(fields: Mapping[str, Any]) -> Any:
    return next((fields[key] for key in _MESSAGE_FIELDS if fields.get(key)), None)


def _in_words(said: Any) -> str:
    """Convert a message to text; a validator's problems each come with their place."""
    if isinstance(said, str):
        return said
    if isinstance(said, list) and said:
        return "; ".join(map(_in_words, cast("list[Any]", said)[:_SHOWN_PROBLEMS]))
    fields = table(said)
    message = _message_in(fields)
    if message is None:
        return jsontext.dump_text(said)
    where = ".".join(map(str, array(fields.get("loc"))))
    return f"{where}: {_in_words(message)}" if where else _in_words(message)


def _kinds(error: Mapping[str, Any]) -> list[str]:
    found = [error.get(key) for key in ("type", "code", "status", "param")]
    for detail in array(error.get("details")):  # Google: the exceeded quota
        violations = array(table(detail).get("violations"))
        found.extend(table(violation).get("quotaId") for violation in violations)
    kinds = [foreign_line(kind, _SHOWN_KIND) for kind in found if isinstance(kind, str) and kind]
    return list(dict.fromkeys(kinds))[:_SHOWN_PROBLEMS]


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in the `Retry-After` header; None if it has no usable value.

    A date is compared with the service's own clock, if it sent one, not with ours.
    """
    milliseconds = headers.get("Retry-After-Ms", "").strip()
    if re.fullmatch(_SECONDS, milliseconds):  # OpenAI and Azure, beside the whole seconds
        return float(milliseconds) / 1000
    value = headers.get("Retry-After", "").strip()
    if re.fullmatch(_SECONDS, value):
        return float(value)
    until = _date(value)
    if until is None:
        return None
    now = _date(headers.get("Date", "")) or datetime.now(UTC)
    return max(0.0, (until - now).total_seconds())


def _date(value: str) -> datetime | None:
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - rarely needed

    try:
        date = parsedate_to_datetime(value)
        return date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
