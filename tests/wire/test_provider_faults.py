"""What services, networks and configurations do wrong, and what becomes of the call."""

import asyncio
import copy
import functools
import gc
import json
import socket
import ssl
import warnings
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import orjson
import pytest

import sweeps
from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.errors import ConfigError, ErrorCode
from agent_core.providers.base import ProviderAdapter, ProviderRegistry, RawExchange, Traceable
from agent_core.providers.decoding import Decoder, EventDecoder, FrameDecoder, JsonLineDecoder
from agent_core.providers.scripted import Calls, Fails, Hangs, Says, ScriptedCall
from agent_core.types import (
    ImageBlock,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    ModelRetry,
    ModelStarted,
    ModelTextDelta,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolCallDelta,
    ToolDefinition,
    ToolResultBlock,
)
from model_server import Answer, Ending, ModelServer, Reply, Sends, Silence, Status
from model_server_wire import Protocol, events as wire_events, frame
from sweeps import paired, turned
from tables import together

PROTOCOLS = ["openai", "anthropic", "ollama", "gemini", "bedrock"]
QUICK = RetryConfig(max_attempts=3, initial_backoff_ms=1, max_backoff_ms=2)
ONCE = RetryConfig(max_attempts=1)
LEFT_OUT = object()
DECODERS: dict[str, type[Decoder]] = {"ollama": JsonLineDecoder, "bedrock": FrameDecoder}
REPLY = Calls(
    text="Grüße 🌍",
    reasoning="hm",
    calls=[ScriptedCall(name="code.list_dir", arguments={"path": "ä"}, tool_call_id="one")],
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "protocol" in metafunc.fixturenames and "protocol" not in str(chosen):
        metafunc.parametrize("protocol", turned(PROTOCOLS, metafunc.function.__name__))


@pytest.fixture
def is_whole() -> bool:
    """Whether everything is tried, or a sample."""
    return sweeps.is_whole()


@asynccontextmanager
async def opened(
    protocol: str, replies: Sequence[Reply | Answer], **config: Any
) -> AsyncGenerator[tuple[ProviderAdapter, ModelServer]]:
    async with ModelServer(replies) as server:
        fields: dict[str, Any] = {"base_url": server.base_url(protocol), "retry": QUICK, **config}
        adapter = ProviderRegistry().create(ModelConfig(provider=protocol, name="m", **fields))
        try:
            yield adapter, server
        finally:
            await adapter.close()


def asked(**more: Any) -> ModelRequest:
    hello = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
    return ModelRequest(model="m", messages=[hello], **more)


async def played(
    protocol: str, *replies: Reply | Answer, request: ModelRequest | None = None, **config: Any
) -> list[ModelEvent]:
    async with opened(protocol, replies, **config) as (adapter, _):
        return [event async for event in adapter.stream(request or asked())]


def failure(found: Sequence[ModelEvent]) -> ModelFailed:
    last = found[-1]
    assert isinstance(last, ModelFailed), last
    return last


def reply(found: Sequence[ModelEvent]) -> ModelCompleted:
    last = found[-1]
    assert isinstance(last, ModelCompleted), last
    return last


def shown(found: Sequence[ModelEvent]) -> str:
    return "".join(event.text for event in found if isinstance(event, ModelTextDelta))


# Retries


@together("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_what_may_pass_is_tried_again(protocol: str, status: int) -> None:
    found = await played(protocol, Status(status), Status(status), "done")

    assert [type(event) for event in found[:3]] == [ModelStarted, ModelRetry, ModelRetry]
    assert [event.attempt for event in found if isinstance(event, ModelRetry)] == [1, 2]
    assert shown(found) == "done"


@together("status", [400, 401, 403, 404, 413, 422])
async def test_what_will_not_pass_is_not_tried_again(protocol: str, status: int) -> None:
    found = await played(protocol, Status(status), "never sent")

    assert [type(event) for event in found] == [ModelStarted, ModelFailed]
    assert failure(found).error.details["status"] == status
    assert not failure(found).error.retryable


def asked_about_a_picture() -> ModelRequest:
    """A history with a tool's picture in it."""
    call = ToolCallBlock(tool_call_id="one", name="draw")
    picture = ImageBlock(mime_type="image/png", data="iVBORw0KGgo=")
    result = ToolResultBlock(tool_call_id="one", content=[picture])
    return asked().model_copy(
        update={
            "messages": [
                *asked().messages,
                ModelMessage(role=Role.ASSISTANT, content=[call]),
                ModelMessage(role=Role.TOOL, content=[result]),
            ]
        }
    )


NO_IMAGES = Status(400, b'{"error": {"message": "this model does not support image input"}}')


@together("refusal", [NO_IMAGES, Status(400), Status(413), Status(422)])
async def test_a_service_that_refuses_a_tools_picture_is_given_words_from_then_on(
    protocol: str, refusal: Status
) -> None:
    async with opened(protocol, [refusal, "done", "again"]) as (adapter, server):
        found = [event async for event in adapter.stream(asked_about_a_picture())]
        again = [event async for event in adapter.stream(asked_about_a_picture())]

    assert [type(event) for event in found[:2]] == [ModelStarted, ModelRetry]
    assert (shown(found), shown(again)) == ("done", "again")
    assert ["iVBORw0KGgo=" in each.text for each in server.requests] == [True, False, False]
    assert all("was not shown it" in each.text for each in server.requests[1:])


async def test_a_refusal_that_is_not_for_the_picture_changes_nothing(protocol: str) -> None:
    replies = [Status(400), Status(400), "done"]
    async with opened(protocol, replies) as (adapter, server):
        refused = [event async for event in adapter.stream(asked_about_a_picture())]
        found = [event async for event in adapter.stream(asked_about_a_picture())]

    assert failure(refused).error.details["status"] == 400
    assert shown(found) == "done"
    assert ["iVBORw0KGgo=" in each.text for each in server.requests] == [True, False, True]


@together(
    ("status", "is_doubted"), [(404, True), (405, True), (410, True), (400, False), (401, False)]
)
async def test_a_refusal_names_the_address_and_doubts_it_where_that_may_help(
    protocol: str, status: int, *, is_doubted: bool
) -> None:
    async with opened(protocol, [Status(status)]) as (adapter, server):
        found = [event async for event in adapter.stream(asked())]

    message = failure(found).error.message
    first, _, second = message.partition("\n")
    assert f"answered with status {status} (model m)" in first
    assert second.startswith(f"{server.url}/")
    assert ("check [model] base_url" in first) == is_doubted


async def test_attempts_are_counted_and_the_last_failure_is_told(protocol: str) -> None:
    found = await played(protocol, *[Status(503)] * 3)

    assert len(found) == 4
    assert failure(found).error.code is ErrorCode.PROVIDER_ERROR
    assert failure(found).error.retryable


async def test_the_service_is_given_the_time_it_asks_for(protocol: str) -> None:
    found = await played(protocol, Status(429, headers={"Retry-After": "1"}), "done")

    [retry] = [event for event in found if isinstance(event, ModelRetry)]
    assert retry.delay_ms == 1000
    assert retry.error.code is ErrorCode.PROVIDER_RATE_LIMITED
    assert shown(found) == "done"


async def test_nobody_waits_for_an_hour(protocol: str) -> None:
    found = await played(protocol, Status(429, headers={"Retry-After": "3600"}), "never")

    assert [type(event) for event in found] == [ModelStarted, ModelFailed]
    assert failure(found).error.code is ErrorCode.PROVIDER_RATE_LIMITED
    assert failure(found).error.retryable
    assert failure(found).error.details["retry_after_s"] == 3600


async def test_after_the_first_delta_there_is_no_second_attempt(protocol: str) -> None:
    broken = Sends(Hangs(text="half an answer"), ending=Ending.RESET)

    found = await played(protocol, broken, "never sent")

    assert shown(found) == "half an answer"
    assert not any(isinstance(event, ModelRetry) for event in found)
    assert failure(found).error.code is ErrorCode.PROVIDER_ERROR


@together("ending", [Ending.CLOSE, Ending.RESET])
async def test_a_connection_lost_before_the_first_delta_is_opened_again(
    protocol: str, ending: Ending
) -> None:
    found = await played(protocol, Sends(b"", ending=ending), "done")

    assert sum(isinstance(event, ModelRetry) for event in found) == 1
    assert shown(found) == "done"


async def test_a_service_that_is_not_there_is_a_retryable_failure(protocol: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        found = await played(protocol, base_url=url)

    assert sum(isinstance(event, ModelRetry) for event in found) == 2
    assert url in failure(found).error.message
    message = failure(found).error.message
    assert "refused" in message
    assert "[model] base_url" in message
    assert ("start Ollama" in message) == (protocol == "ollama")


async def test_an_address_that_does_not_speak_tls_is_not_tried_again(protocol: str) -> None:
    def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found = await played(protocol, base_url=url)

    assert len(found) == 2
    assert url in failure(found).error.message


@pytest.mark.long
async def test_a_certificate_nobody_signed_is_not_trusted(protocol: str, tls_server: str) -> None:
    found = await played(protocol, base_url=tls_server)

    assert len(found) == 2
    assert "certificate" in failure(found).error.message.lower()


# Timeouts


async def test_silence_before_the_answer_is_a_timeout(protocol: str) -> None:
    found = await played(protocol, Silence(), retry=ONCE, timeout_ms=100)

    assert failure(found).error.code is ErrorCode.PROVIDER_TIMEOUT
    assert failure(found).error.retryable


async def test_the_limit_of_the_first_byte_is_named(protocol: str) -> None:
    found = await played(protocol, Silence(), retry=ONCE, first_byte_ms=100)
    limited = await played(protocol, Silence(), retry=ONCE, timeout_ms=100)

    assert failure(found).error.code is ErrorCode.PROVIDER_TIMEOUT
    assert "[model] first_byte_ms" in failure(found).error.message
    assert "[model] timeout_ms" in failure(limited).error.message


@together("limit", [0, 60_000])
@together("first", [b"", b": ping\n\n", b'data: {"choices": []}\n\n'])
async def test_a_model_may_think_for_longer_than_the_time_between_chunks(
    limit: int, first: bytes
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    answer = b"".join(wire_events(Protocol.OPENAI, Says(text="done"), serial=1))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + first)
        await asyncio.sleep(0.4)  # four times as long as allowed between chunks
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    limits: dict[str, Any] = {"timeout_ms": 100, "first_byte_ms": limit}
    config = ModelConfig(provider="openai", name="m", base_url=url, retry=ONCE, **limits)
    async with server:
        adapter = ProviderRegistry().create(config)
        found = [event async for event in adapter.stream(asked())]
        await adapter.close()

    assert shown(found) == "done"


async def test_ollamas_variable_names_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ModelServer(["hello"]) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url.removeprefix("http://"))
        adapter = ProviderRegistry().create(ModelConfig(provider="ollama", name="m"))
        found = [event async for event in adapter.stream(asked())]
        await adapter.close()

    assert shown(found) == "hello"
    assert server.requests[0].path == "/api/chat"


@together("host", ["ftp://models", "me:secret@models:1", "models:1/?a=b"])
def test_an_unusable_variable_is_named_and_not_shown(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    with pytest.raises(ConfigError, match=r"^\$OLLAMA_HOST must be") as caught:
        ProviderRegistry().create(ModelConfig(provider="ollama", name="m"))
    assert "secret" not in str(caught.value)


async def test_silence_in_the_middle_is_a_timeout_that_keeps_the_text(protocol: str) -> None:
    found = await played(protocol, Hangs(text="so far"), timeout_ms=100)

    assert shown(found) == "so far"
    assert failure(found).error.code is ErrorCode.PROVIDER_TIMEOUT


async def test_a_slow_answer_takes_as_long_as_it_keeps_coming(protocol: str) -> None:
    slow = Sends(Says(text="abcdefghij", chunks=10), pause_s=0.12)

    found = await played(protocol, slow, timeout_ms=1000)

    assert shown(found) == "abcdefghij"
    assert reply(found)


@pytest.mark.parametrize(
    ("protocol", "sign"),
    [
        ("openai", b": still here\n\n"),
        ("anthropic", b'event: ping\ndata: {"type": "ping"}\n\n'),
        ("ollama", b"\n"),
    ],
)
async def test_signs_of_life_alone_do_not_hold_a_call_open_for_ever(
    protocol: str, sign: bytes
) -> None:
    endless = Sends([sign] * 500, pause_s=0.01)

    found = await played(protocol, endless, timeout_ms=40, retry=ONCE)

    assert failure(found).error.code is ErrorCode.PROVIDER_TIMEOUT


# Streams


async def test_a_reply_is_the_same_however_its_bytes_are_split(protocol: str) -> None:
    whole = Sends(REPLY)
    sizes = [1, 2, 3, 7, 64]
    async with opened(protocol, [whole, *(replace(whole, piece=size) for size in sizes)]) as opn:
        adapter, _ = opn
        first, *others = [
            [event async for event in adapter.stream(asked())] for _ in range(len(sizes) + 1)
        ]

    assert shown(first) == "Grüße 🌍"
    for other in others:
        assert shown(other) == shown(first)
        assert reply(other).content == reply(first).content


@together("split", [0, 1])
async def test_a_compressed_reply_is_read(protocol: str, split: int) -> None:
    found = await played(protocol, Sends(REPLY, gzipped=True, piece=1 if split else None))

    assert shown(found) == "Grüße 🌍"
    assert len(reply(found).tool_calls) == 1


@pytest.mark.long
@pytest.mark.faults("streams cut at a byte")
@pytest.mark.parametrize("ending", [Ending.CLOSE, Ending.RESET])
async def test_a_stream_cut_at_any_byte_is_never_a_finished_reply(
    protocol: str, ending: Ending, is_whole: bool
) -> None:
    parts = wire_events(Protocol(protocol), REPLY, serial=1)
    body = b"".join(parts)
    stop = body.index(STOPS[protocol])
    cuts = sorted(
        {*range(stop - 3, min(stop + 20, len(body))), *range(0, len(body), 1 if is_whole else 11)}
        if ending is Ending.CLOSE
        else range(0, len(body), 29)
    )
    replies = [Sends(body, cut=cut, ending=ending) for cut in cuts]

    async with opened(protocol, replies, retry=ONCE) as (adapter, _):
        for cut in cuts:
            found = [event async for event in adapter.stream(asked())]
            finished = isinstance(found[-1], ModelCompleted)
            assert not finished or cut > stop, cut
            if finished:
                assert len(reply(found).tool_calls) == 1
            else:
                assert failure(found).error.code is ErrorCode.PROVIDER_ERROR
            assert "Grüße 🌍".startswith(shown(found))


ODD = [None, "", -1, True, 10**19, 1.5, [], {}, ["x"], [None], {"a": 1}, "\ud83d", LEFT_OUT]


@pytest.mark.faults("fields of a reply spoilt")
@pytest.mark.parametrize(
    ("odd", "service"),
    paired(ODD, [*PROTOCOLS, "responses"]),
    ids=lambda each: "left out" if each is LEFT_OUT else repr(each),
)
async def test_a_field_of_any_kind_ends_in_a_reply_or_a_failure(
    service: str, odd: object, is_whole: bool
) -> None:
    """Every field of a reply in turn has a value that no service should send.

    Of the sample, every field has three or four of the values, and every value a quarter of the
    fields.
    """
    decoder = DECODERS.get(service, EventDecoder)()
    body = b"".join(wire_events(Protocol(service), REPLY, serial=1))
    events = [orjson.loads(raw) for raw in decoder.feed(body) if raw != b"[DONE]"]
    spoilt = [
        Sends([written(service, event) for event in whole])
        for number, whole in enumerate(spoilt_by(events, odd))
        if is_whole or number % 4 == ODD.index(odd) % 4
    ]
    provider = "openai" if service == "responses" else service
    more = {"api": "responses"} if service == "responses" else {}

    async with opened(provider, spoilt, retry=ONCE, **more) as (adapter, _):
        for _ in spoilt:
            last = [event async for event in adapter.stream(asked())][-1]
            assert isinstance(last, ModelCompleted | ModelFailed)
            kept = type(last).model_validate_json(last.model_dump_json())
            if isinstance(kept, ModelCompleted):
                assert all(type(count) is not int or count < 2**60 for _, count in kept.usage)


def spoilt_by(events: list[Any], odd: object) -> Iterator[list[Any]]:
    """The events once for every field of theirs, with `odd` in its place."""
    for number, event in enumerate(events):
        for path in paths_in(event):
            other = copy.deepcopy(event)
            *way, key = path
            place = functools.reduce(lambda inner, step: inner[step], way, other)
            if odd is LEFT_OUT:
                del place[key]
            else:
                place[key] = odd
            yield [*events[:number], other, *events[number + 1 :]]


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    pairs: Any = ()
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        pairs = enumerate(cast("list[Any]", value))
    for key, inner in pairs:
        yield (*path, key)
        yield from paths_in(inner, (*path, key))


def written(service: str, event: Any) -> bytes:
    """The event as the service sends it."""
    match service:
        case "bedrock":
            return b"".join(frame(kind, body) for kind, body in event.items())
        case "ollama":
            return json.dumps(event).encode() + b"\n"
        case _:
            return b"data: " + json.dumps(event).encode() + b"\n\n"


STOPS = {
    "openai": b'"finish_reason":"tool_calls"',
    "anthropic": b'"stop_reason":"tool_use"',
    "ollama": b'"done":true',
    "gemini": b'"finishReason":"STOP"',
    "bedrock": b'"stopReason":"tool_use"',
}


async def test_an_end_without_a_stop_reason_is_a_failure(protocol: str) -> None:
    parts = wire_events(Protocol(protocol), Hangs(text="that is"), serial=1)

    found = await played(protocol, Sends(parts))

    assert shown(found) == "that is"
    assert "without a stop reason" in failure(found).error.message


@together("chunk", [b"{", b"[]", b'"x"', b"\xff", b"nonsense", b"[" * 100_000])
async def test_a_chunk_that_is_no_object_is_a_failure_that_keeps_the_text(
    protocol: str, chunk: bytes
) -> None:
    parts = wire_events(Protocol(protocol), Hangs(text="before"), serial=1)
    bad = chunk + b"\n" if protocol == "ollama" else b"data: " + chunk + b"\n\n"

    found = await played(protocol, Sends([b"".join(parts) + bad]), "never sent")

    assert shown(found) == "before"
    assert failure(found).error.code is ErrorCode.PROVIDER_ERROR


async def test_an_error_event_before_the_text_is_tried_again(protocol: str) -> None:
    event = wire_events(Protocol(protocol), Fails(message="overloaded"), serial=1)[-1:]

    found = await played(protocol, Sends(event), "done")

    [retry] = [event for event in found if isinstance(event, ModelRetry)]
    assert "overloaded" in retry.error.message
    assert shown(found) == "done"


@pytest.mark.long
async def test_twenty_megabytes_in_one_event_arrive(protocol: str) -> None:
    text = "x" * (20 * 1024 * 1024)

    found = await played(protocol, Says(text=text, chunks=1))

    assert shown(found) == text


async def test_many_chunks_of_one_read_are_one_delta(protocol: str) -> None:
    body = b"".join(wire_events(Protocol(protocol), Says(text="x" * 500, chunks=500), serial=1))

    found = await played(protocol, Sends(body, piece=len(body)))

    assert shown(found) == "x" * 500
    assert sum(isinstance(event, ModelTextDelta) for event in found) < 20


async def test_a_body_that_ends_with_its_connection_is_read(protocol: str) -> None:
    found = await played(protocol, Sends("done", chunked=False))

    assert shown(found) == "done"
    assert reply(found)


async def test_a_body_of_another_length_than_announced_is_no_finished_reply(protocol: str) -> None:
    wrong = Sends(
        Hangs(text="abc"),
        chunked=False,
        headers={"Content-Length": "100000"},
        ending=Ending.CLOSE,
    )

    found = await played(protocol, wrong)

    assert shown(found) == "abc"
    assert failure(found)


async def test_a_web_page_instead_of_an_answer_is_named(protocol: str) -> None:
    page = b"<html><head><title>502\x1b[31m\n Bad gateway</title></head>" + b"x" * 10_000_000

    for status in (200, 404):
        found = await played(protocol, Status(status, page, content_type="text/html"))

        message = failure(found).error.message
        assert "a web page titled '502 [31m Bad gateway'" in message
        assert len(message) < 500


# Meaning of refusals


@together(
    "text",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
        "request (5030 tokens) exceeds the available context size (2048 tokens)",
        "prompt is too long: 208310 tokens > 200000 maximum",
        "the input length exceeds the context length",
        "input length and `max_tokens` exceed context limit: 1 + 2 > 2",
    ],
)
@together("status", [400, 500])
async def test_a_prompt_that_is_too_long_is_recognised(status: int, text: str) -> None:
    body = b'{"error": {"message": "%b"}}' % text.encode()

    found = await played("openai", Status(status, body), "never sent")

    assert failure(found).error.code is ErrorCode.PROMPT_TOO_LONG
    assert len(found) == 2


@together(
    ("text", "capability"),
    [
        ("registry.ollama.ai/library/gemma:2b does not support tools", "tools"),
        ('"auto" tool choice requires --enable-auto-tool-choice', "tools"),
        ("tools param requires --jinja flag", "tools"),
        ("No endpoints found that support tool use", "tools"),
        ("Invalid schema for function 'x': None is not of type 'object'", "tool_schema"),
        ("tools.0.custom.input_schema.type: Field required", "tool_schema"),
        ("image input is not supported - hint: mmproj", "images"),
        ('"gemma" does not support thinking', "thinking"),
    ],
)
async def test_c2_a_refused_capability_is_named(text: str, capability: str) -> None:
    body = '{"error": "%s"}' % text.replace('"', "'")  # noqa: UP031
    tools = [ToolDefinition(name="code.list_dir", description="")]

    found = await played("ollama", Status(400, body.encode()), request=asked(tools=tools))

    error = failure(found).error
    assert error.code is ErrorCode.UNSUPPORTED_CAPABILITY
    expected = {"provider": "ollama", "model": "m", "capability": capability}
    assert error.details == {**expected, "status": 400}


async def test_a_redirect_is_not_followed(protocol: str) -> None:
    async with ModelServer() as elsewhere:
        away = Status(307, b"", headers={"Location": elsewhere.url})

        found = await played(protocol, away)

        assert "redirects" in failure(found).error.message
        assert elsewhere.requests == []


# Keys and addresses


KEY_HEADERS = {"anthropic": "x-api-key", "gemini": "x-goog-api-key"}


async def test_the_key_is_read_when_it_is_needed_and_never_repeated(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def echo(_: object) -> Reply:
        return Status(401, b'{"error": {"message": "Incorrect API key: sk-very-secret"}}')

    async with opened(protocol, [echo], api_key_env="SOME_KEY") as (adapter, server):
        monkeypatch.setenv("SOME_KEY", " sk-very-secret\n")
        found = [event async for event in adapter.stream(asked())]

    headers = server.requests[0].headers
    sent = headers[KEY_HEADERS.get(protocol, "authorization")]
    assert sent.removeprefix("Bearer ") == "sk-very-secret"
    assert failure(found).error.code is ErrorCode.PROVIDER_AUTH_FAILED
    assert "sk-very-secret" not in failure(found).error.model_dump_json()


async def test_a_missing_key_names_the_variable_and_who_needs_it(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)

    async with opened(protocol, [], api_key_env="SOME_KEY") as (adapter, server):
        with pytest.raises(ConfigError) as caught:
            [event async for event in adapter.stream(asked())]

    assert caught.value.code is ErrorCode.CONFIG_ERROR
    for word in ("SOME_KEY", "[model] api_key_env", protocol):
        assert word in caught.value.message
    assert server.requests == []


async def test_a_key_that_could_smuggle_headers_is_refused(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "a\r\nX-Evil: 1")

    with pytest.raises(ConfigError, match="SOME_KEY"):
        await played(protocol, "hi", api_key_env="SOME_KEY")


@together("name", ["", None])
async def test_no_key_is_sent_when_none_is_configured(protocol: str, name: str | None) -> None:
    async with opened(protocol, ["hi"], api_key_env=name) as (adapter, server):
        assert reply([event async for event in adapter.stream(asked())])

    headers = server.requests[0].headers
    if protocol == "bedrock":  # signed instead, by a key that is not sent
        assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
    else:
        assert not {"authorization", *KEY_HEADERS.values()} & headers.keys()


@together(
    "url", ["127.0.0.1:1", "ftp://x", "http://", "http://name:word@host", "https://h/v1?key=x"]
)
def test_an_address_that_is_not_plain_http_is_a_configuration_error(
    protocol: str, url: str
) -> None:
    with pytest.raises(ConfigError, match="base_url") as caught:
        ProviderRegistry().create(ModelConfig(provider=protocol, name="m", base_url=url))
    assert "word" not in caught.value.message.replace("password", "")


# Lifetime


async def test_connections_are_used_again(protocol: str) -> None:
    async with opened(protocol, ["one", "two", "three"]) as (adapter, server):
        for _ in range(3):
            assert reply([event async for event in adapter.stream(asked())])

    assert server.connections == 1


async def test_closing_the_stream_hangs_up_at_once(protocol: str) -> None:
    async with opened(protocol, [Hangs(text="so far")]) as (adapter, server):
        stream = cast("AsyncGenerator[ModelEvent]", adapter.stream(asked()))
        while not isinstance(await anext(stream), ModelTextDelta):
            pass
        await stream.aclose()
        await asyncio.wait_for(server.disconnected.wait(), 1)


@together("waits", [Silence(), Status(503, headers={"Retry-After": "30"})])
async def test_a_call_is_cancelled_wherever_it_waits(protocol: str, waits: Reply) -> None:
    async with opened(protocol, [waits]) as (adapter, server):

        async def call() -> None:
            [event async for event in adapter.stream(asked())]

        task = asyncio.create_task(call())
        await server.requested.wait()
        await asyncio.sleep(0.02)
        task.cancel()
        async with asyncio.timeout(1):
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_an_adapter_that_was_closed_fails_instead_of_opening_again(protocol: str) -> None:
    async with opened(protocol, ["one"]) as (adapter, server):
        await adapter.close()
        found = [event async for event in adapter.stream(asked())]

    assert failure(found)
    assert server.requests == []


async def test_nothing_is_left_open(protocol: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reply(await played(protocol, "hi"))
        gc.collect()


async def test_raw_traffic_can_be_looked_at(protocol: str) -> None:
    seen: list[RawExchange] = []

    async def sink(request: ModelRequest, exchange: RawExchange) -> None:
        assert request.model == exchange.model
        seen.append(exchange)

    async with opened(protocol, [Status(503), "hi there"]) as (adapter, server):
        assert isinstance(adapter, Traceable)
        adapter.trace(sink)
        assert reply([event async for event in adapter.stream(asked())])

    assert [exchange.status for exchange in seen] == [503, 200]
    assert seen[1].request == server.requests[1].raw
    assert b"hi " in seen[1].response


async def test_fragments_of_arguments_are_shown_as_they_come() -> None:
    found = await played("openai", Sends(REPLY, pause_s=0.002))

    fragments = [event.arguments_fragment for event in found if isinstance(event, ToolCallDelta)]
    assert "".join(fragments) == '{"path":"ä"}'
    assert len(fragments) > 1


@pytest.fixture
async def tls_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[str]:
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    openssl = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    assert await openssl.wait() == 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context) as server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
