"""Questions of servers to the user: put to the program's callback, checked, never left open."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from agent_core.callbacks import result_of
from agent_core.errors import ToolError
from agent_core.redaction import log_failure
from agent_core.secret_shapes import kind_of_name
from agent_core.text import Clean, shortened
from agent_core.text.json_text import JsonSchema, JsonValue
from agent_core.tools.schema_check import SchemaCheck
from agent_core.types import ElicitationAnswer, ElicitationRequest

ElicitationCallback = Callable[
    [ElicitationRequest], Awaitable[ElicitationAnswer] | ElicitationAnswer
]
"""Puts one question to the user; a function that is not async runs in a thread. An exception, or a
value of another type, cancels the question."""

MAX_MESSAGE_CHARS = 4000
MAX_URL_CHARS = 8000
MAX_FIELDS = 50
_CANCELLED = ElicitationAnswer(action="cancel")

logger = logging.getLogger(__name__)


def form_request(server_id: str, message: str, schema: JsonSchema) -> ElicitationRequest:
    """Build a question for the fields of a form.

    Raises:
        ValueError: no form can be made of the schema.
    """
    given: object = schema.get("properties")
    fields = cast("dict[str, object]", given) if isinstance(given, dict) else None
    if fields is None or not all(isinstance(field, dict) for field in fields.values()):
        raise ValueError("its schema has no fields")
    if len(fields) > MAX_FIELDS:
        raise ValueError(f"it has more than {MAX_FIELDS} fields")
    try:
        SchemaCheck("form", schema).compile()
    except ToolError as error:
        raise ValueError(error.message) from None
    text = shortened(message, MAX_MESSAGE_CHARS)
    return ElicitationRequest(
        server_id=server_id, mode="form", message=text, requested_schema=dict(schema)
    )


def url_request(server_id: str, message: str, url: str, **facts: Any) -> ElicitationRequest:
    """Build a question that asks to open an address in a browser.

    Raises:
        ValueError: a browser should not be sent to this address.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or len(url) > MAX_URL_CHARS:
        raise ValueError("it is not an http or https address")
    if not url.isascii() or not url.isprintable():
        raise ValueError("it has characters that no address has")
    text = shortened(message, MAX_MESSAGE_CHARS)
    return ElicitationRequest(
        server_id=server_id, mode="url", message=text, url=url, host=parts.netloc, **facts
    )


def is_secret_field(name: str, schema: Mapping[str, JsonValue]) -> bool:
    """Return whether a field of a form is declared or named as a secret."""
    return (
        schema.get("format") == "password"
        or schema.get("writeOnly") is True
        or kind_of_name(name) is not None
    )


def secret_answers(request: ElicitationRequest, answer: ElicitationAnswer) -> dict[str, str]:
    """Return the values of an answer that must not be stored or shown, by kind."""
    fields = (request.requested_schema or {}).get("properties", {})
    return {
        f"{request.server_id}_{name}": value
        for name, value in (answer.content or {}).items()
        if isinstance(value, str) and is_secret_field(name, fields.get(name, {}))
    }


async def put_question(
    callback: ElicitationCallback | None, request: ElicitationRequest, clean: Clean
) -> ElicitationAnswer:
    """Ask the user; an accepted form fits its schema. Without a callback it is declined.

    `clean` takes secrets out of what is logged of a callback that fails.
    """
    if callback is None:
        return ElicitationAnswer(action="decline")
    try:
        answer = await result_of(callback, request)
    except asyncio.CancelledError:
        raise
    except Exception as error:  # noqa: BLE001 - the server gets an answer, whatever it is
        what = f"the question of {request.server_id} could not be put to the user"
        log_failure(logger, what, error=error, clean=clean)
        return _CANCELLED
    if not isinstance(answer, ElicitationAnswer):
        logger.warning("a question was answered with a %s", type(answer).__name__)
        return _CANCELLED
    if request.requested_schema is None or answer.action != "accept":
        return answer
    try:
        content = SchemaCheck("form", request.requested_schema)(answer.content or {})
    except ToolError as error:
        paths = [each["path"] for each in error.details.get("errors", ())]
        logger.warning("an answer to %s does not fit at %s", request.server_id, paths)
        return _CANCELLED
    return ElicitationAnswer(action="accept", content=content)
