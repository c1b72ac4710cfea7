"""Bodies of requests: JSON objects, read within their limits."""

import asyncio
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request

from agent_core.errors import ErrorCode
from agent_core.providers import jsontext
from agent_core.serve.problems import HttpProblem
from agent_core.text.json_text import tables
from agent_core.tools.schema import json_path

T = TypeVar("T")

SMALL = 1_000_000
"""Bytes of a body without images: 1 MB."""

LARGE = 20 * SMALL
"""Bytes of a body with images: 20 MB."""

_READ_S = 60.0
"""Seconds that a sender may take for its body."""

_ASIDE = 2**17
"""Bytes from which a body is read in another thread."""

_FORM = 2**14
"""Bytes of a form."""

_FIELDS = 100
_SHOWN = 20


class Body(BaseModel):
    """A JSON object that a request brings; it has no other fields than these."""

    model_config = ConfigDict(extra="forbid", frozen=True)


async def read_json(
    request: Request, model: type[T], *, holds_image: Callable[[T], bool] | None = None
) -> T:
    """Return the body of a request.

    An empty body counts as an object without fields.

    Args:
        request: the request.
        model: the type of the body; a `Body`, if it is to refuse unknown fields.
        holds_image: returns whether a body holds an image; such bodies may have 20 MB, all others
            1 MB.

    Raises:
        HttpProblem: 400: it is not such an object; 413: it is too large; 415: it is not
            `application/json`; 408: it does not arrive.
    """
    raw = await read_raw(request, SMALL if holds_image is None else LARGE)
    if raw:
        _require_json(request)
    if len(raw) < _ASIDE:
        body = parse_body(raw or b"{}", model)
    else:
        body = await asyncio.to_thread(parse_body, raw, model)
    if len(raw) > SMALL and holds_image is not None and not holds_image(body):
        raise _too_large(SMALL)
    return body


async def read_form(request: Request, limit: int = _FORM) -> dict[str, str]:
    """Return the fields of a form without files; the last one of each name.

    Args:
        request: the request.
        limit: the largest number of bytes.

    Raises:
        HttpProblem: 400: it is no form; 413: it is too large; 415: it is of another type.
    """
    raw = await read_raw(request, limit)
    if _kind(request)[0] != "application/x-www-form-urlencoded":
        raise HttpProblem(415, "send the form as application/x-www-form-urlencoded")
    try:
        fields = parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=_FIELDS)
    except ValueError:
        raise _invalid("the body is not a form") from None
    return dict(fields)


def parse_body(raw: bytes, model: type[T]) -> T:
    """Read JSON as a value of this type; nothing is converted.

    Raises:
        HttpProblem: 400: it is not JSON, or not such a value; `details.errors` has the paths.
    """
    try:
        jsontext.parse_strictly(raw)
        return _adapter(model).validate_json(raw, strict=True)
    except ValidationError as error:
        raise misfit(error) from None
    except ValueError as error:
        raise _invalid(f"the body is not JSON that can be stored: {error}") from None


def misfit(error: ValidationError) -> HttpProblem:
    """Return the refusal of a value, with the paths at which it is wrong."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    errors = [{"path": json_path(each["loc"]), "message": each["msg"]} for each in found[:_SHOWN]]
    first = errors[0]
    return _invalid(f"{first['path']}: {first['message']}", errors=errors)


def _invalid(detail: str, **details: Any) -> HttpProblem:
    return HttpProblem(400, detail, code=ErrorCode.VALIDATION_ERROR, details=details)


@lru_cache(maxsize=64)
def _adapter(model: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def _kind(request: Request) -> tuple[str, str]:
    """Return the type of a body, and its parameters."""
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    return kind.strip().lower(), parameters.strip().lower()


def _require_json(request: Request) -> None:
    kind, parameters = _kind(request)
    charset = parameters.removeprefix("charset=").strip('"')
    if kind != "application/json" or charset not in {"", "utf-8"}:
        raise HttpProblem(415, "send the body as Content-Type: application/json")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HttpProblem(415, "send the body without Content-Encoding")


async def read_raw(request: Request, limit: int) -> bytes:
    """Return the body of a request as it is.

    Raises:
        HttpProblem: 408: it does not arrive; 413: it is longer than the limit, in bytes.
    """
    if _announced(request) > limit:
        raise _too_large(limit)
    parts, size = list[bytes](), 0
    try:
        async with asyncio.timeout(_READ_S):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                parts.append(part)
    except TimeoutError:
        raise HttpProblem(408, "the body did not arrive in time") from None
    except ClientDisconnect:
        raise HttpProblem(400, "the body is shorter than its length says") from None
    return b"".join(parts)


def _announced(request: Request) -> int:
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() and length.isascii() else 0


def _too_large(limit: int) -> HttpProblem:
    most = f"{limit // SMALL} MB" if limit >= SMALL else f"{limit} bytes"
    detail = f"a body may have {most} here, and {LARGE // SMALL} MB only with an image"
    return HttpProblem(413, detail, headers={"Connection": "close"})


def holds_part(messages: object, kinds: Collection[str]) -> bool:
    """Return whether the content of a message has a part of one of these types.

    Args:
        messages: the messages of a body, as they were sent.
        kinds: the types of parts that bring an image or a file.
    """
    return any(
        part.get("type") in kinds
        for message in tables(messages)
        for part in tables(message.get("content"))
    )
