"""What looking for pictures costs: once for each message, however many turns a run has."""

from collections.abc import Iterator
from typing import Any

from agent_core.providers.images import ImageRules
from agent_core.types import (
    ImageBlock,
    ModelMessage,
    ModelRequest,
    Role,
    TextBlock,
    ToolResultBlock,
)


class Content(list[Any]):
    looks = 0

    def __iter__(self) -> Iterator[Any]:
        Content.looks += 1
        return super().__iter__()


def a_request(messages: list[ModelMessage]) -> ModelRequest:
    return ModelRequest(model="m", messages=messages)


def test_a_long_history_without_pictures_is_looked_at_once() -> None:
    rules = ImageRules(supports_images=None, shows_results=False)
    messages = [
        ModelMessage.of_checked(
            role=Role.USER, content=Content([TextBlock(text=str(number))]), metadata={}
        )
        for number in range(50)
    ]
    rules.apply(a_request(messages))
    seen = Content.looks
    for _ in range(10):
        request = a_request(messages)
        before = Content.looks  # what making a request looks at is not counted
        assert rules.apply(request) is request
        assert Content.looks == before
    assert seen >= 50


def test_a_picture_in_a_result_becomes_words_for_a_service_that_shows_none() -> None:
    rules = ImageRules(supports_images=None, shows_results=False)
    picture = ImageBlock(mime_type="image/png", data="aGk=")
    result = ToolResultBlock(tool_call_id="c", content=[picture])
    shown = rules.apply(a_request([ModelMessage(role=Role.TOOL, content=[result])]))
    (block,) = shown.messages[0].content
    assert isinstance(block, ToolResultBlock)
    assert isinstance(block.content[0], TextBlock)
