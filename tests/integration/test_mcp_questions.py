"""Questions of a server of the 2025 protocol, which sends them while a call runs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent_core.config.models import ToolsConfig
from agent_core.mcp import Host
from agent_core.redaction import Redactor
from agent_core.types import ElicitationAnswer, ElicitationRequest
from mcp_bench import Bench, bench, plain
from tables import together

FORM = {
    "message": "What may it be?",
    "requestedSchema": {
        "type": "object",
        "properties": {"drink": {"type": "string"}, "password": {"type": "string"}},
        "required": ["drink"],
    },
}
PAGE = {
    "mode": "url",
    "elicitationId": "e1",
    "message": "Pay.",
    "url": "https://pay.example/x?id=7",
}


class User:
    """Answers every question in the same way, after a while."""

    def __init__(self, answer: ElicitationAnswer, seconds: float = 0) -> None:
        self.requests: list[ElicitationRequest] = []
        self.withdrawn = asyncio.Event()
        self._answer = answer
        self._seconds = seconds

    async def __call__(self, request: ElicitationRequest) -> ElicitationAnswer:
        self.requests.append(request)
        try:
            await asyncio.sleep(self._seconds)
        except asyncio.CancelledError:
            self.withdrawn.set()
            raise
        return self._answer


async def answered(made: Bench, params: dict[str, Any]) -> dict[str, Any]:
    asked = {"method": "elicitation/create", "params": params}
    return json.loads(await made.text("mcp.shop.ask", **asked))


async def put(tmp_path: Path, user: User, params: dict[str, Any]) -> dict[str, Any]:
    diary = tmp_path / "diary"
    async with bench(diary, {"shop": plain(diary)}, host=Host(elicit=user)) as made:
        return await answered(made, params)


async def test_a_form_is_filled_in(tmp_path: Path) -> None:
    user = User(ElicitationAnswer(action="accept", content={"drink": "tea"}))
    assert await put(tmp_path, user, FORM) == {"action": "accept", "content": {"drink": "tea"}}
    (request,) = user.requests
    assert (request.server_id, request.mode, request.message) == ("shop", "form", "What may it be?")


async def test_an_address_is_shown_with_its_host_and_nothing_is_sent_back_with_it(
    tmp_path: Path,
) -> None:
    user = User(ElicitationAnswer(action="accept", content={"left": "out"}))
    assert await put(tmp_path, user, PAGE) == {"action": "accept"}
    (request,) = user.requests
    assert (request.mode, request.url, request.host) == ("url", PAGE["url"], "pay.example")


@together(
    "url",
    [
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https:///x",
        "https://p\u0430y.example/",
        "",
        "//x",
    ],
)
async def test_an_address_that_no_browser_should_see_is_declined_unasked(
    tmp_path: Path, url: str
) -> None:
    user = User(ElicitationAnswer(action="accept"))
    assert await put(tmp_path, user, PAGE | {"url": url}) == {"action": "decline"}
    assert user.requests == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "nonsense"}}},
        {"type": "object", "properties": {f"f{n}": {"type": "string"} for n in range(51)}},
    ],
    ids=["broken", "too large"],
)
async def test_a_form_that_cannot_be_filled_in_is_no_question(
    tmp_path: Path, schema: dict[str, Any]
) -> None:
    user = User(ElicitationAnswer(action="accept", content={}))
    reply = await put(tmp_path, user, FORM | {"requestedSchema": schema})
    assert reply == {"action": "decline"} or reply["code"] < 0
    assert user.requests == []


@together("content", [{}, {"drink": 1}, {"drink": "tea", "more": "x"}, None])
async def test_an_answer_that_does_not_fit_is_no_answer(
    tmp_path: Path, content: dict[str, Any] | None
) -> None:
    user = User(ElicitationAnswer(action="accept", content=content))
    assert await put(tmp_path, user, FORM) == {"action": "cancel"}


async def test_the_clock_of_a_call_stands_still_while_the_user_thinks(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    user = User(ElicitationAnswer(action="decline"), seconds=1.5)
    config = ToolsConfig(default_timeout_ms=1000, max_timeout_ms=1000)
    host = Host(elicit=user)
    async with bench(diary, {"shop": plain(diary)}, host=host, config=config) as made:
        assert await answered(made, FORM) == {"action": "decline"}


async def test_a_question_of_a_call_that_is_cancelled_is_withdrawn(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    user = User(ElicitationAnswer(action="accept"), seconds=30)
    async with bench(diary, {"shop": plain(diary)}, host=Host(elicit=user)) as made:
        call = asyncio.create_task(answered(made, FORM))
        while not user.requests:  # noqa: ASYNC110 - the server asks when it likes
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(50):
            await user.withdrawn.wait()


async def test_a_secret_in_an_answer_is_known_to_redaction(tmp_path: Path) -> None:
    known: dict[str, str] = {}
    content = {"drink": "tea", "password": "typed-by-hand"}
    user = User(ElicitationAnswer(action="accept", content=content))
    diary = tmp_path / "diary"
    host = Host(elicit=user, learn=known.update)
    async with bench(diary, {"shop": plain(diary)}, host=host) as made:
        await answered(made, FORM)
    assert known == {"shop_password": "typed-by-hand"}


async def test_the_log_has_no_secret_of_a_callback_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(_request: ElicitationRequest) -> ElicitationAnswer:
        raise OSError("no terminal for my-own-secret, postgres://ada:hunter2@db/shop")

    redactor = Redactor({"own": "my-own-secret"})
    diary = tmp_path / "diary"
    host = Host(elicit=ask, clean=redactor.text)
    async with bench(diary, {"shop": plain(diary)}, host=host) as made:
        assert await answered(made, FORM) == {"action": "cancel"}
    assert "no terminal for [redacted:own]" in caplog.text
    assert "hunter2" not in caplog.text
