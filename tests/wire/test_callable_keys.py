"""Keys that a program gives as a callable: asked for, kept, renewed, and never shown."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson
import pytest

from agent_core import AgentRuntime
from agent_core.config.load import resolve_model
from agent_core.config.models import Config, ModelConfig, RetryConfig
from agent_core.errors import ErrorCode
from agent_core.providers.base import ProviderAdapter, ProviderRegistry, RawExchange, Traceable
from agent_core.providers.failures import Called, CallError
from agent_core.providers.keys import HeldKey, KeyCommand
from agent_core.types import (
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    ModelRetry,
    Role,
    TextBlock,
)
from isolation import Home
from model_server import Answer, ModelServer, Received, Reply, Status
from tables import together

REFUSED = Status(401, orjson.dumps({"error": {"message": "expired"}}))


class AccessToken(NamedTuple):
    """A token as the packages of a cloud return it."""

    token: str
    expires_on: int


class Tokens:
    """A program's callable: `token-1`, `token-2`, …"""

    def __init__(self, make: Callable[[str], Any] = lambda token: token) -> None:
        self.asked = 0
        self._make = make

    def __call__(self) -> Any:
        self.asked += 1
        return self._make(f"token-{self.asked}")


def request() -> ModelRequest:
    hello = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
    return ModelRequest(model="m", messages=[hello])


@asynccontextmanager
async def opened(
    source: Callable[[], Any], replies: Sequence[Reply | Answer], **config: Any
) -> AsyncGenerator[tuple[ProviderAdapter, ModelServer]]:
    async with ModelServer(replies) as server:
        fields = {"provider": "openai", "name": "m", "base_url": f"{server.url}/v1", **config}
        retry = RetryConfig(max_attempts=1)
        adapter = ProviderRegistry().create(ModelConfig(**fields, api_key=source, retry=retry))
        try:
            yield adapter, server
        finally:
            await adapter.close()


async def called(adapter: ProviderAdapter) -> list[ModelEvent]:
    return [event async for event in adapter.stream(request())]


def sent(server: ModelServer) -> list[str]:
    return [each.headers["authorization"].removeprefix("Bearer ") for each in server.requests]


async def test_a_key_without_an_expiry_is_asked_for_each_time() -> None:
    async with opened(Tokens(), ["one", "two"]) as (adapter, server):
        await called(adapter)
        await called(adapter)

    assert sent(server) == ["token-1", "token-2"]


@together(
    "expiry",
    [
        lambda: time.time() + 3600,
        lambda: int(time.time()) + 3600,
        lambda: datetime.fromtimestamp(time.time() + 3600, tz=UTC),
    ],
)
async def test_a_key_with_an_expiry_is_kept_until_then(expiry: Callable[[], Any]) -> None:
    tokens = Tokens(lambda token: (token, expiry()))
    async with opened(tokens, ["one", "two"]) as (adapter, server):
        await called(adapter)
        await called(adapter)

    assert sent(server) == ["token-1", "token-1"]
    assert tokens.asked == 1


@pytest.mark.parametrize("left_s", [-5, 0])
async def test_a_key_is_renewed_before_it_expires(left_s: int) -> None:
    tokens = Tokens(lambda token: AccessToken(token, int(time.time()) + left_s))
    async with opened(tokens, ["one", "two"]) as (adapter, server):
        await called(adapter)
        await called(adapter)

    assert sent(server) == ["token-1", "token-2"]


async def test_an_async_callable_is_awaited_and_shared_by_calls_at_the_same_time() -> None:
    tokens = Tokens(lambda token: (token, time.time() + 3600))
    both = asyncio.Barrier(2)

    async def ask() -> Any:
        await both.wait()
        return tokens()

    async with opened(ask, ["one", "two", "three"]) as (adapter, server):
        waiting = [asyncio.create_task(called(adapter)) for _ in range(2)]
        await both.wait()
        await asyncio.gather(*waiting)

    assert sent(server) == ["token-1", "token-1"]


async def test_a_callable_that_blocks_does_not_stop_the_loop() -> None:
    loop = asyncio.get_running_loop()
    ticked = asyncio.Event()

    def ask() -> str:
        asyncio.run_coroutine_threadsafe(tick(), loop).result(timeout=30)
        return "token-1"

    async def tick() -> None:
        ticked.set()

    async with opened(ask, ["one"]) as (adapter, _):
        assert isinstance((await called(adapter))[-1], ModelCompleted)
    assert ticked.is_set()


async def test_a_refused_key_is_renewed_once() -> None:
    tokens = Tokens(lambda token: (token, time.time() + 3600))
    async with opened(tokens, [REFUSED, "one"]) as (adapter, server):
        found = await called(adapter)
        assert isinstance(found[-1], ModelCompleted)
        assert sum(isinstance(event, ModelRetry) for event in found) == 1
        assert sent(server) == ["token-1", "token-2"]

    async with opened(tokens, [REFUSED, REFUSED, "never asked for"]) as (adapter, server):
        last = (await called(adapter))[-1]
        assert isinstance(last, ModelFailed)
        assert last.error.code is ErrorCode.PROVIDER_AUTH_FAILED
        assert sent(server) == ["token-3", "token-4"]


def fails() -> str:
    raise OSError("the directory is down")


@together(
    ("source", "words"),
    [
        (fails, "the directory is down"),
        (lambda: None, "must return a string"),
        (lambda: ("a", "b", "c"), "must return a string"),
        (lambda: ("a", "tomorrow"), "the time when the key expires"),
        (lambda: "two\nlines", "cannot be a key"),
        (lambda: "", "cannot be a key"),
    ],
)
async def test_a_callable_that_fails_is_named(source: Callable[[], Any], words: str) -> None:
    async with opened(source, []) as (adapter, server):
        last = (await called(adapter))[-1]

    assert isinstance(last, ModelFailed)
    assert last.error.code is ErrorCode.PROVIDER_AUTH_FAILED
    assert words in last.error.message
    assert server.requests == []


async def test_a_key_at_hand_is_used_while_it_cannot_be_renewed() -> None:
    asked = 0

    def ask() -> tuple[str, float]:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise OSError("down")
        return "token-1", expires_at

    async with opened(ask, ["one", "two", "three"]) as (adapter, server):
        expires_at = time.time() + 1e-3  # renewed for the next call, and expired by then
        await called(adapter)
        await asyncio.to_thread(_until, expires_at)
        last = (await called(adapter))[-1]
        assert isinstance(last, ModelFailed)
    assert sent(server) == ["token-1"]


def _until(moment: float) -> None:
    while time.time() <= moment:
        time.sleep(0.001)


def echoes(received: Received) -> Status:
    words = f"bad key {received.headers['authorization']}"
    return Status(400, orjson.dumps({"error": {"message": words}}))


async def test_a_key_that_a_service_repeats_is_not_shown_or_stored() -> None:
    traffic: list[RawExchange] = []

    async def keep(_: ModelRequest, exchange: RawExchange) -> None:
        traffic.append(exchange)

    async with opened(Tokens(), [echoes]) as (adapter, _):
        assert isinstance(adapter, Traceable)
        adapter.trace(keep)
        found = await called(adapter)

    assert "token-1" not in repr(found)
    assert "token-1" not in repr(traffic)
    assert b"[redacted]" in traffic[0].response


async def test_a_key_of_a_letter_leaves_the_words_of_a_failure_whole() -> None:
    async with opened(lambda: "a", [Status(500, b"a bad day")]) as (adapter, _):
        (failed,) = [each for each in await called(adapter) if isinstance(each, ModelFailed)]
    assert "a bad day" in failed.error.message


async def test_a_run_uses_the_callable_of_its_model(home: Home) -> None:
    async with ModelServer(["one", "two"]) as server:
        fields = {"provider": "openai", "base_url": f"{server.url}/v1"}
        models = [ModelConfig(**fields, name="m", api_key=lambda key=key: key) for key in "ab"]
        async with AgentRuntime(home.path, model=models[0]) as runtime:
            for model in (None, models[1]):
                handle = await runtime.start("hello", model=model)
                await handle.wait()
                assert handle.error is None
        assert sent(server) == ["a", "b"]


def printing(text: str) -> list[str]:
    return [sys.executable, "-S", "-c", f"print({text!r})"]


@together(
    "printed",
    [
        "token-1",
        '{"accessToken": "token-1", "expiresOn": "2999-01-01 00:00:00.000000", "expires_on": 4e9}',
        '{"token": "token-1", "expiry": "2999-01-01T00:00:00Z"}',
        '{"credential": {"access_token": "token-1", "token_expiry": "2999-01-01T00:00:00Z"}}',
    ],
)
async def test_a_command_prints_the_key_and_is_run_again_when_it_expires(printed: str) -> None:
    async with ModelServer(["one", REFUSED, "two"]) as server:
        config = ModelConfig(
            provider="openai",
            name="m",
            base_url=f"{server.url}/v1",
            api_key_command=printing(printed),
        )
        adapter = ProviderRegistry().create(config)
        await called(adapter)
        found = await called(adapter)
        await adapter.close()

    assert sent(server) == ["token-1"] * 3
    assert isinstance(found[-1], ModelCompleted)


@together(
    ("argv", "words"),
    [
        ([sys.executable, "-S", "-c", "raise SystemExit('not signed in')"], "not signed in"),
        (["/no/such/program"], "No such file"),
        (printing("{}"), "JSON without accessToken"),
        (printing("{"), "broken JSON"),
        (printing(""), "cannot be a key"),
    ],
)
async def test_a_command_that_prints_no_key_is_named(argv: list[str], words: str) -> None:
    config = ModelConfig(
        provider="openai", name="m", base_url="http://127.0.0.1:1", api_key_command=argv
    )
    adapter = ProviderRegistry().create(config)
    last = (await called(adapter))[-1]
    await adapter.close()

    assert isinstance(last, ModelFailed)
    assert last.error.code is ErrorCode.PROVIDER_AUTH_FAILED
    assert words in last.error.message


async def test_what_a_failed_command_printed_is_not_repeated_from_its_errors() -> None:
    program = "echo a-secret-key; echo refused: a-secret-key >&2; exit 1"
    held = HeldKey(KeyCommand(["/bin/sh", "-c", program]))
    with pytest.raises(CallError, match=r"sh ended with 1: refused: \[redacted\]"):
        await held.get(Called("openai", "m"))


@together(
    "source",
    [
        KeyCommand(["/bin/sh", "-c", "sleep 600 & sleep 600"]),
        KeyCommand(["/bin/sh", "-c", "sleep 600 & echo a-key"]),
        asyncio.Event().wait,
    ],
    ids=["a command", "its child has its output open", "a callable"],
)
async def test_a_source_that_hangs_is_not_waited_for_for_ever(source: Callable[[], Any]) -> None:
    held = HeldKey(source, longest_s=0.2)
    with pytest.raises(CallError, match=r"it took longer than 0\.2 s"):
        await held.get(Called("openai", "m"))


def test_a_command_stays_with_its_server_and_replaces_a_variable() -> None:
    model = ModelConfig(provider="groq", name="m", api_key_command=["print-key"])
    config = Config(model=model)

    assert model.api_key_env is None
    assert resolve_model(config, {"name": "other"}).api_key_command == ["print-key"]
    other = resolve_model(config, {"base_url": "https://b.io"})
    assert (other.api_key_command, other.api_key_env) == (None, None)
    named = resolve_model(config, {"api_key_env": "OTHER_KEY"})
    assert (named.api_key_command, named.api_key_env) == (None, "OTHER_KEY")
    plain = Config(model=ModelConfig(provider="groq", name="m"))
    again = resolve_model(plain, {"api_key_command": ["print-key"]})
    assert (again.api_key_command, again.api_key_env) == (["print-key"], None)


def test_a_callable_is_not_part_of_the_settings_and_stays_with_its_server() -> None:
    source = Tokens()
    model = ModelConfig(provider="openai", name="m", base_url="https://a.io", api_key=source)
    config = Config(model=model)

    assert "api_key" not in model.model_dump()
    assert not ModelConfig(provider="groq", name="m", api_key=source).api_key_env
    assert not resolve_model(config, "openai:gpt-5@https://a.io").api_key_env
    assert "Tokens" not in repr(model)
    assert resolve_model(config, {"name": "other"}).key_source is source
    assert resolve_model(config, {"base_url": "https://b.io"}).key_source is None
    assert resolve_model(config, {"api_key_env": "OTHER_KEY"}).key_source is None


def test_a_key_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="api_key"):
        ModelConfig(provider="openai", name="m", api_key="sk-123")  # pyright: ignore[reportArgumentType]
