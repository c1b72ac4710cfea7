"""A POST with an `Idempotency-Key` is carried out once, however often it is sent."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, Router

from agent_core import AgentRuntime
from agent_core.providers.scripted import ScriptedProvider
from agent_core.serve import Principal
from agent_core.serve.access import AuthAccess
from agent_core.serve.door import Door
from agent_core.serve.places import OnePlace
from agent_core.serve.problems import HttpProblem
from agent_core.serve.visits import Console
from consoles import served
from isolation import Home

Post = Callable[..., Coroutine[Any, Any, tuple[int, Any, Any]]]


class Work:
    """Handlers that count how often they are called."""

    def __init__(self) -> None:
        self.count = 0
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def make(self, request: Request) -> Response:
        self.count += 1
        await self.go_on.wait()
        body = await request.json()
        if status := body.get("status"):
            raise HttpProblem(status, "as you like")
        headers = {"Location": f"/made/{self.count}"}
        return JSONResponse({"number": self.count, "got": body}, 201, headers)

    async def stream(self, _: Request) -> Response:
        self.count += 1

        async def parts() -> AsyncGenerator[bytes]:
            for number in range(3):
                yield f"data: {self.count}.{number}\n\n".encode()

        return StreamingResponse(parts(), media_type="text/event-stream")

    async def long(self, _: Request) -> Response:
        self.count += 1
        return Response(b"x" * (3 * 2**20))

    async def break_(self, _: Request) -> Response:
        self.count += 1
        raise RuntimeError("a bug")


def _auth(request: Request) -> Principal:
    return Principal(request.headers.get("x-user", "somebody"), may={"run", "read"})


@asynccontextmanager
async def doing(work: Work, runtime: AgentRuntime) -> AsyncGenerator[Post]:
    """Serve the handlers, and yield a function that posts to them."""
    routes = [
        Route("/make", work.make, methods=["POST"]),
        Route("/make/{more}", work.make, methods=["POST"]),
        Route("/stream", work.stream, methods=["POST"]),
        Route("/long", work.long, methods=["POST"]),
        Route("/break", work.break_, methods=["POST"]),
    ]
    door = Door(Router(routes), Console(OnePlace(runtime)), AuthAccess(_auth))
    async with served(door) as address, aiohttp.ClientSession() as client:

        async def post(
            path: str, json: Any = None, key: str | None = "k", user: str = "somebody"
        ) -> tuple[int, Any, Any]:
            headers = {"X-User": user} | ({} if key is None else {"Idempotency-Key": key})
            async with client.post(address + path, json=json, headers=headers) as response:
                return response.status, await response.read(), response.headers

        yield post


@pytest.fixture
def work() -> Work:
    return Work()


def opened(home: Home, project: Path) -> AgentRuntime:
    return AgentRuntime(project, home_dir=home.path, model=ScriptedProvider([]))


async def test_a_repeated_request_gets_the_first_answer_also_after_a_restart(
    home: Home, project: Path, work: Work
) -> None:
    async with opened(home, project) as runtime, doing(work, runtime) as post:
        first = await post("/make", {"a": 1})
        again = await post("/make", {"a": 1})
        other = await post("/make", {"a": 1}, "another")
        without = await post("/make", {"a": 1}, None)
    async with opened(home, project) as runtime, doing(work, runtime) as post:
        late = await post("/make", {"a": 1})
    assert first[0] == again[0] == late[0] == 201
    assert first[1] == again[1] == late[1]
    assert first[2]["Location"] == again[2]["Location"] == late[2]["Location"] == "/made/1"
    assert [each[2].get("Idempotent-Replayed") for each in (first, again)] == [None, "true"]
    assert again[2].getall("Content-Security-Policy") == first[2].getall("Content-Security-Policy")
    assert (other[2]["Location"], without[2]["Location"], work.count) == ("/made/2", "/made/3", 3)


async def test_a_key_is_for_one_request_of_one_sender(
    home: Home, project: Path, work: Work
) -> None:
    async with opened(home, project) as runtime, doing(work, runtime) as post:
        await post("/make", {"a": 1})
        statuses = [
            (await post("/make", {"a": 2}))[0],
            (await post("/make/more", {"a": 1}))[0],
            (await post("/make?b=1", {"a": 1}))[0],
            (await post("/make", {"a": 2}, user="somebody else"))[0],
        ]
    assert (statuses, work.count) == ([422, 422, 422, 201], 2)


async def test_a_request_that_is_being_carried_out_is_a_conflict(
    home: Home, project: Path, work: Work
) -> None:
    work.go_on.clear()
    async with (
        opened(home, project) as runtime,
        opened(home, project) as other,
        doing(work, runtime) as post,
        doing(work, other) as post_elsewhere,
    ):
        first = asyncio.create_task(post("/make", {"a": 1}))
        while not work.count:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.01)
        conflicts = [await post("/make", {"a": 1}), await post_elsewhere("/make", {"a": 1})]
        unfit = await post("/make", {"a": 2})
        work.go_on.set()
        done = await first
        again = await post_elsewhere("/make", {"a": 1})
    assert [(status, bool(headers["Retry-After"])) for status, _, headers in conflicts] == [
        (409, True),
        (409, True),
    ]
    assert (unfit[0], done[0], again[1] == done[1], work.count) == (422, 201, True, 1)


@pytest.mark.parametrize("key", ["", " ", "a\tb", "x" * 256, "ä"])
async def test_a_key_that_cannot_be_used_is_refused(
    home: Home, project: Path, work: Work, key: str
) -> None:
    async with opened(home, project) as runtime, doing(work, runtime) as post:
        status, _, _ = await post("/make", {}, key)
    assert (status, work.count) == (400, 0)


@pytest.mark.parametrize(
    ("status", "is_kept"), [(400, True), (404, True), (500, True), (409, False), (429, False)]
)
async def test_a_refusal_is_kept_unless_the_next_time_may_differ(
    home: Home, project: Path, work: Work, status: int, is_kept: bool
) -> None:
    async with opened(home, project) as runtime, doing(work, runtime) as post:
        answers = [await post("/make", {"status": status}) for _ in range(2)]
    assert [each[0] for each in answers] == [status, status]
    assert work.count == (1 if is_kept else 2)


async def test_a_stream_is_sent_again_as_it_was(home: Home, project: Path, work: Work) -> None:
    async with opened(home, project) as runtime, doing(work, runtime) as post:
        first, again = await post("/stream"), await post("/stream")
    assert first[1] == again[1] == b"data: 1.0\n\ndata: 1.1\n\ndata: 1.2\n\n"
    assert again[2]["Content-Type"] == first[2]["Content-Type"]


async def test_an_answer_that_is_too_long_is_not_kept(
    home: Home, project: Path, work: Work
) -> None:
    async with opened(home, project) as runtime, doing(work, runtime) as post:
        assert [(await post("/long"))[0] for _ in range(2)] == [200, 200]
    assert work.count == 2


async def test_a_bug_is_answered_and_kept(home: Home, project: Path, work: Work) -> None:
    async with opened(home, project) as runtime, doing(work, runtime) as post:
        first, again = await post("/break"), await post("/break")
    assert (first[0], again[0], first[1] == again[1], work.count) == (500, 500, True, 1)
    assert b"a bug" not in first[1]
