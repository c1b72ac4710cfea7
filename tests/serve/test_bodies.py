"""Which bodies of requests are read, and how others are refused."""

import asyncio
import json
from collections.abc import AsyncGenerator
from io import BytesIO

import aiohttp
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from agent_core.serve.bodies import LARGE, SMALL, Body, read_json
from agent_core.serve.problems import HttpProblem
from consoles import served
from tables import together


class Note(Body):
    """A body of a request."""

    text: str = ""
    count: int = 0
    image: str | None = None


def _holds_image(note: Note) -> bool:
    return note.image is not None


async def _note(request: Request) -> Response:
    holds_image = _holds_image if request.path_params["images"] else None
    try:
        note = await read_json(request, Note, holds_image=holds_image)
    except HttpProblem as problem:
        return problem.response()
    return JSONResponse({"length": len(note.text)})


NOTES = Router([Route("/{images:int}", _note, methods=["POST"])])


@together(
    ("body", "kind", "status"),
    [
        (b'{"text": "abc"}', "application/json", 200),
        (b'{"text": "abc"}', "application/json; charset=UTF-8", 200),
        (b"", "", 200),
        (b'{"text": "abc"}', "text/plain", 415),
        (b'{"text": "abc"}', "application/x-www-form-urlencoded", 415),
        (b'{"text": "abc"}', "", 415),
        (b'{"text": "abc"}', "application/json; charset=latin-1", 415),
        (b"[]", "application/json", 400),
        (b'{"text": 5}', "application/json", 400),
        (b'{"count": "5"}', "application/json", 400),
        (b'{"tekst": "abc"}', "application/json", 400),
        (b'{"text": "\\ud800"}', "application/json", 400),
        (b'{"text": "\xff"}', "application/json", 400),
        (b'{"count": NaN}', "application/json", 400),
        (b'{"text": ' + b"[" * 200 + b"]" * 200 + b"}", "application/json", 400),
        (b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "application/json", 400),
        (b"{", "application/json", 400),
    ],
)
async def test_only_json_objects_with_known_fields_are_read(
    body: bytes, kind: str, status: int
) -> None:
    async with (
        served(NOTES) as address,
        aiohttp.ClientSession(skip_auto_headers=["Content-Type"]) as client,
        client.post(f"{address}/0", data=body, headers={"Content-Type": kind}) as response,
    ):
        assert response.status == status


async def test_the_paths_of_wrong_fields_are_told_without_their_values() -> None:
    async with (
        served(NOTES) as address,
        aiohttp.ClientSession() as client,
        client.post(f"{address}/0", json={"count": "secret", "tekst": "secret"}) as response,
    ):
        problem = await response.json(content_type="application/problem+json")
    assert problem["code"] == "validation_error"
    assert [each["path"] for each in problem["details"]["errors"]] == ["$.count", "$.tekst"]
    assert "secret" not in str(problem)


@pytest.mark.parametrize(
    ("size", "image", "images", "status"),
    [
        (SMALL - 100, None, 0, 200),
        (SMALL + 1, None, 0, 413),
        (SMALL + 1, None, 1, 413),
        (SMALL + 1, "x", 1, 200),
        (LARGE + 1, "x", 1, 413),
    ],
)
async def test_a_body_has_a_limit_that_an_image_raises(
    size: int, image: str | None, images: int, status: int
) -> None:
    body = BytesIO(json.dumps({"text": "x" * size, "image": image}).encode())
    headers = {"Content-Type": "application/json"}
    async with (
        served(NOTES) as address,
        aiohttp.ClientSession() as client,
        client.post(f"{address}/{images}", data=body, headers=headers) as response,
    ):
        assert response.status == status


async def test_a_body_without_a_length_is_refused_before_it_is_read_whole() -> None:
    sent = 0

    async def parts() -> AsyncGenerator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 2**20
            yield b" " * 2**20
            await asyncio.sleep(0)

    headers = {"Content-Type": "application/json"}
    async with served(NOTES) as address, aiohttp.ClientSession() as client:
        try:
            async with client.post(f"{address}/1", data=parts(), headers=headers) as response:
                assert response.status == 413
        except aiohttp.ClientError:
            pass  # the connection was closed while the client was sending
    assert sent < 10 * LARGE
