"""Repeated requests: a POST with an `Idempotency-Key` is carried out once."""

import base64
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from agent_core.aio import finish_uncancelled
from agent_core.api.repeats import RepeatedRequests
from agent_core.errors import StorageError
from agent_core.serve.bodies import LARGE, read_raw
from agent_core.serve.problems import HttpProblem
from agent_core.serve.visits import Visit

logger = logging.getLogger(__name__)

_HEADER = "idempotency-key"
_KEY = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?")
_MOST = 2_000_000
"""Bytes of an answer that is kept; a longer one is sent once."""

_NOT_KEPT = frozenset({401, 403, 408, 409, 413, 415, 429, 503})
"""Answers to requests that did nothing, and that may be answered otherwise the next time."""

_OWN_HEADERS = {b"date", b"server", b"set-cookie", b"connection", b"transfer-encoding"}

Handle = Callable[[Scope, Receive, Send], Awaitable[None]]


async def handle_once(handle: Handle, visit: Visit, request: Request, send: Send) -> None:
    """Handle a request, or send the answer to it again.

    Args:
        handle: answers the request, in any case.
        visit: its sender, whose keys are its own.
        request: the request.
        send: sends the answer.

    Raises:
        HttpProblem: 400: the key cannot be used; 409: the request is being carried out; 422: the
            key was used for another request.
    """
    keys = request.headers.getlist(_HEADER)
    if request.method != "POST" or not keys:
        await handle(request.scope, request.receive, send)
        return
    if len(keys) != 1 or _KEY.fullmatch(keys[0]) is None:
        raise HttpProblem(400, "an Idempotency-Key must have 1 to 255 printable ASCII characters")
    principal, repeats = visit.principal, visit.runtime.repeats
    key = _digest(principal.tenant, principal.name, keys[0])
    body = await read_raw(request, LARGE)
    target = [request.scope["path"], request.scope["query_string"].decode("latin-1")]
    digest = _digest(*target, request.headers.get("content-type"), hashlib.sha256(body).hexdigest())
    if (before := await repeats.begin(key, digest)) is not None:
        await _send_again(before.digest, before.answer, digest, request, send)
        return

    async def end(answer: str | None) -> None:
        session_id = visit.sessions[-1] if visit.sessions else None
        await finish_uncancelled(_end(repeats, key, answer, session_id))

    recorder = _Recorder(send, end)
    try:
        await handle(request.scope, _received(body, request.receive), recorder)
    finally:
        await recorder.close()


async def _send_again(
    known: str, answer: str | None, digest: str, request: Request, send: Send
) -> None:
    if known not in {"", digest}:
        raise HttpProblem(422, "this Idempotency-Key was used for another request")
    if answer is None:
        detail = "the first request with this Idempotency-Key is still being processed"
        raise HttpProblem(409, detail, headers={"Retry-After": "1"})
    first = json.loads(answer)
    response = Response(base64.b64decode(first["body"]), first["status"])
    response.raw_headers = [
        (name.encode("latin-1"), value.encode("latin-1")) for name, value in first["headers"]
    ]
    response.raw_headers.append((b"idempotent-replayed", b"true"))
    await response(request.scope, request.receive, send)


async def _end(
    repeats: RepeatedRequests, key: str, answer: str | None, session_id: str | None
) -> None:
    try:
        if answer is None:
            await repeats.drop(key)
        else:
            await repeats.keep(key, answer, session_id)
    except StorageError as error:
        logger.warning("the answer to a request could not be kept: %s", error.message)


class _Recorder:
    """Sends a response, and hands over a copy before its last part, so that it can be repeated."""

    def __init__(self, send: Send, end: Callable[[str | None], Awaitable[None]]) -> None:
        self._send = send
        self._end = end
        self._is_closed = False
        self._start: Message | None = None
        self._body = bytearray()
        self._is_whole = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body":
            body: bytes = message.get("body", b"")
            if len(self._body) <= _MOST:
                self._body += body
            self._is_whole = not message.get("more_body", False)
        if self._is_whole:
            await self.close()
        await self._send(message)

    async def close(self) -> None:
        """Hand over the response, once; None if it is not to be kept, or not whole."""
        if not self._is_closed:
            self._is_closed = True
            await self._end(self._answer())

    def _answer(self) -> str | None:
        """Return the response as text, if it is one to be kept, and whole."""
        start = self._start
        is_kept = self._is_whole and len(self._body) <= _MOST
        if start is None or not is_kept or start["status"] in _NOT_KEPT:
            return None
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in start["headers"]
            if name.lower() not in _OWN_HEADERS
        ]
        body = base64.b64encode(self._body).decode()
        return json.dumps({"status": start["status"], "headers": headers, "body": body})


def _received(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body that was read already."""
    is_given = False

    async def given() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return given


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
