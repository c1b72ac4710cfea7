"""Models that are sent pictures and documents, and those that take none."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.errors import ErrorCode, ProviderError
from agent_core.providers.base import ProviderAdapter, ProviderRegistry
from agent_core.types import (
    ContentBlock,
    ImageBlock,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    ModelRetry,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from model_server import ModelServer, Reply, Status
from sweeps import turned
from tables import together

PNG = ImageBlock(mime_type="image/png", data="iVBORw0KGgo=")
PDF = ImageBlock(mime_type="application/pdf", data="JVBERi0=")
REFUSALS = {
    "responses": b'{"error":{"message":"Model m does not support image inputs.","param":"input"}}',
    "openai": b'{"error":{"message":"image input is not supported - hint: --mmproj","code":500}}',
    "anthropic": b'{"error":{"message":"it does not support images"}}',
    "ollama": b'{"error":"this model is missing data required for image input"}',
    "gemini": b'{"error":{"code":400,"message":"Image input modality is not enabled for gemma"}}',
    "bedrock": b'{"message":"This model doesn\'t support the image content block"}',
}
BAD = Status(400, b'{"error":{"message":"Could not process it"},"message":"Could not process it"}')


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "protocol" in metafunc.fixturenames:
        test = metafunc.function
        knows_words = test is test_a_model_that_takes_no_pictures_is_asked_once
        names = [*REFUSALS] if knows_words else turned(REFUSALS, test.__name__)
        metafunc.parametrize("protocol", names)


def said(*content: ContentBlock, role: Role = Role.USER) -> ModelMessage:
    return ModelMessage(role=role, content=list(content))


ANSWER = said(TextBlock(text="I see."), role=Role.ASSISTANT)
SHOWN = said(TextBlock(text="What is this?"), PNG)
NEXT = said(TextBlock(text="And now?"))
DRAWN = [
    NEXT,
    said(ToolCallBlock(tool_call_id="a", name="draw"), role=Role.ASSISTANT),
    said(ToolResultBlock(tool_call_id="a", content=[PNG]), role=Role.TOOL),
]


class Talk:
    def __init__(self, server: ModelServer, adapter: ProviderAdapter) -> None:
        self.server = server
        self.adapter = adapter

    async def say(self, *messages: ModelMessage) -> list[ModelEvent]:
        request = ModelRequest(model="m", messages=list(messages))
        return [event async for event in self.adapter.stream(request)]

    def sent(self, data: str | None) -> bool:
        return (data or "") in self.server.requests[-1].text


@asynccontextmanager
async def talk(protocol: str, replies: Sequence[Reply], **config: Any) -> AsyncGenerator[Talk]:
    async with ModelServer(replies) as server:
        fields: dict[str, Any] = {"retry": RetryConfig(max_attempts=1), **config}
        adapter = ProviderRegistry().create(
            ModelConfig(name="m", **server.settings(protocol), **fields)
        )
        try:
            yield Talk(server, adapter)
        finally:
            await adapter.close()
        server.assert_complete()


@pytest.mark.long
async def test_a_model_that_takes_no_pictures_is_asked_once(protocol: str) -> None:
    refusal = Status(400, REFUSALS[protocol])
    async with talk(protocol, [refusal, "words", "more"]) as it:
        [*_, failed] = await it.say(SHOWN)
        assert isinstance(failed, ModelFailed)
        assert failed.error.code is ErrorCode.UNSUPPORTED_CAPABILITY
        assert failed.error.details["capability"] == "images"

        # The session is not lost, and the model knows that something was there.
        [*_, answered] = await it.say(SHOWN, NEXT)
        assert isinstance(answered, ModelCompleted)
        assert not it.sent(PNG.data)
        assert it.sent("this model was not shown it")

        with pytest.raises(ProviderError) as caught:
            await it.say(SHOWN, NEXT, ANSWER, SHOWN)
        assert caught.value.code is ErrorCode.UNSUPPORTED_CAPABILITY

        await it.say(*DRAWN)
        assert not it.sent(PNG.data)


async def test_pictures_in_results_give_way_to_words(protocol: str) -> None:
    async with talk(protocol, [Status(400, REFUSALS[protocol]), "words"]) as it:
        events = await it.say(*DRAWN)

        assert isinstance(events[-1], ModelCompleted)
        assert any(isinstance(event, ModelRetry) for event in events)
        assert not it.sent(PNG.data)


async def test_a_picture_that_cannot_be_read_does_not_spoil_the_session(protocol: str) -> None:
    async with talk(protocol, [BAD, BAD, "words", "seen"]) as it:
        [*_, failed] = await it.say(SHOWN)
        assert isinstance(failed, ModelFailed)
        assert failed.error.code is ErrorCode.PROVIDER_ERROR

        [*_, answered] = await it.say(SHOWN, ANSWER, NEXT)
        assert isinstance(answered, ModelCompleted)

        # Another picture is shown: it was that one, not all of them.
        [*_, answered] = await it.say(SHOWN, ANSWER, SHOWN.model_copy())
        assert isinstance(answered, ModelCompleted)
        assert it.server.requests[-1].text.count(PNG.data or "") == 1


async def test_a_model_that_is_known_to_take_none_is_never_sent_any(protocol: str) -> None:
    async with talk(protocol, ["words"], supports_images=False) as it:
        with pytest.raises(ProviderError) as caught:
            await it.say(SHOWN)
        assert caught.value.details["capability"] == "images"
        await it.say(SHOWN, ANSWER, NEXT)
        assert not it.sent(PNG.data)


async def test_a_model_that_is_known_to_take_pictures_is_asked_again(protocol: str) -> None:
    refusal = Status(400, REFUSALS[protocol])
    async with talk(protocol, [refusal, "seen"], supports_images=True) as it:
        await it.say(SHOWN)
        await it.say(SHOWN)
        assert it.sent(PNG.data)


DOCUMENTS: dict[str, Any] = {
    "openai": {
        "type": "file",
        "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,JVBERi0="},
    },
    "anthropic": {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
    },
    "responses": {
        "type": "input_file",
        "filename": "document.pdf",
        "file_data": "data:application/pdf;base64,JVBERi0=",
    },
    "gemini": {"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0="}},
}


@together("protocol", DOCUMENTS)
async def test_a_document_is_sent_in_the_form_of_the_service(protocol: str) -> None:
    async with talk(protocol, ["read"]) as it:
        await it.say(said(TextBlock(text="Read."), PDF))

        body = it.server.requests[0].body
        message = body[{"gemini": "contents", "responses": "input"}.get(protocol, "messages")][0]
        part = message["parts" if protocol == "gemini" else "content"][1]
        part.pop("cache_control", None)
        assert orjson.loads(orjson.dumps(part)) == DOCUMENTS[protocol]


async def test_a_service_without_a_form_for_documents_is_sent_none() -> None:
    async with talk("ollama", ["words"]) as it:
        with pytest.raises(ProviderError) as caught:
            await it.say(said(TextBlock(text="Read."), PDF))
        assert caught.value.details["capability"] == "documents"

        await it.say(said(TextBlock(text="Read."), PDF), ANSWER, SHOWN)
        assert it.sent(PNG.data)
        assert it.sent("[a document, application/pdf; this model was not shown it]")
