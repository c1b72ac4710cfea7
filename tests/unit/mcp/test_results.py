"""From a server's answer to content blocks."""

import base64
import json
from typing import Any

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from agent_core.errors import ErrorCode, StorageError
from agent_core.mcp.results import MAX_FILES, tool_result
from agent_core.types import ArtifactRefBlock, ImageBlock, JsonBlock, TextBlock
from tables import together
from tool_facts import Kept

BYTES = base64.b64encode(b"\x00\x01\x02").decode()


async def test_every_kind_of_content_has_a_place() -> None:
    kept = Kept()
    answer = CallToolResult(
        content=[
            TextContent(text="words"),
            ImageContent(data=BYTES, mime_type="image/png"),
            AudioContent(data=BYTES, mime_type="audio/wav"),
            ResourceLink(uri="file:///plan", name="plan", mime_type="text/plain"),
            EmbeddedResource(resource=TextResourceContents(uri="memo://1", text="a memo")),
            EmbeddedResource(
                resource=BlobResourceContents(uri="memo://2", blob=BYTES, mime_type="x/y")
            ),
            EmbeddedResource(
                resource=BlobResourceContents(uri="memo://3", blob=BYTES, mime_type="image/gif")
            ),
        ]
    )
    result = await tool_result(answer, kept)
    assert result.content == [
        TextBlock(text="words"),
        ImageBlock(mime_type="image/png", data=BYTES),
        ArtifactRefBlock(artifact_id="art_0", mime_type="audio/wav", summary="audio/wav, 3 bytes"),
        JsonBlock(
            data={"uri": "file:///plan", "name": "plan", "mime_type": "text/plain"},
            summary="a link to file:///plan",
        ),
        TextBlock(text="[memo://1]\na memo"),
        ArtifactRefBlock(
            artifact_id="art_1", mime_type="x/y", summary="x/y, 3 bytes, from memo://2"
        ),
        ImageBlock(mime_type="image/gif", data=BYTES),
    ]
    assert kept.artifacts == {"art_0": b"\x00\x01\x02", "art_1": b"\x00\x01\x02"}
    assert not result.is_error


@together(
    ("text", "structured", "expected"),
    [
        (json.dumps({"a": 1}, indent=2), {"a": 1}, [JsonBlock(data={"a": 1})]),
        ("said", {"result": "said"}, [TextBlock(text="said")]),
        ("5", {"result": 5}, [TextBlock(text="5")]),
        ("5", {"result": 6}, [TextBlock(text="5"), JsonBlock(data={"result": 6})]),
        ("one a", {"a": 1}, [TextBlock(text="one a"), JsonBlock(data={"a": 1})]),
        ("[" * 100_000, {"a": 1}, [TextBlock(text="[" * 100_000), JsonBlock(data={"a": 1})]),
    ],
)
async def test_repeated_content_is_passed_on_once(
    text: str, structured: dict[str, Any], expected: list[Any]
) -> None:
    answer = CallToolResult(content=[TextContent(text=text)], structured_content=structured)
    assert (await tool_result(answer, Kept())).content == expected


async def test_the_items_of_a_list_are_passed_on_once() -> None:
    content = [TextContent(text="milk"), TextContent(text='{"a": 1}')]
    answer = CallToolResult(content=[*content], structured_content={"result": ["milk", {"a": 1}]})
    blocks = (await tool_result(answer, Kept())).content
    assert blocks == [TextBlock(text="milk"), TextBlock(text='{"a": 1}')]


async def test_a_failure_has_the_text_of_the_server() -> None:
    answer = CallToolResult(content=[TextContent(text="no " * 1000)], is_error=True)
    result = await tool_result(answer, Kept())
    assert result.is_error
    assert result.error is not None
    assert result.error.code is ErrorCode.TOOL_ERROR
    assert result.error.message.startswith("no no")
    assert len(result.error.message) < 1100
    assert result.content == [TextBlock(text="no " * 1000)]


async def test_a_failure_without_words_is_one_all_the_same() -> None:
    result = await tool_result(CallToolResult(content=[], is_error=True), Kept())
    assert result.error is not None
    assert "without saying why" in result.error.message


async def test_bytes_that_are_not_base64_are_named_not_passed_on() -> None:
    answer = CallToolResult(content=[AudioContent(data="%%%", mime_type="audio/wav")])
    (block,) = (await tool_result(answer, Kept())).content
    assert block == TextBlock(text="[the server sent audio/wav data that is not base64]")


async def test_many_binary_parts_are_few_files() -> None:
    kept = Kept()
    sounds = [AudioContent(data=BYTES, mime_type="audio/" + "w" * 10_000) for _ in range(3_000)]
    result = await tool_result(CallToolResult(content=[*sounds]), kept)
    assert len(kept.artifacts) == len(result.content) == MAX_FILES + 1
    (*_, rest) = kept.artifacts.values()
    assert len(json.loads(rest)) == 3_000 - MAX_FILES
    assert all(len(block.model_dump_json()) < 2_000 for block in result.content)


async def test_what_cannot_be_kept_is_named_and_the_rest_stays() -> None:
    async def full(data: object, **_: object) -> str:
        raise StorageError(ErrorCode.STORAGE_ERROR, "the disk is full")

    sounds = [AudioContent(data=BYTES, mime_type="audio/wav") for _ in range(MAX_FILES + 3)]
    result = await tool_result(CallToolResult(content=[TextContent(text="words"), *sounds]), full)
    assert not result.is_error
    texts = [block.text for block in result.content if isinstance(block, TextBlock)]
    assert texts[:2] == ["words", "[audio/wav, 3 bytes; it could not be kept: the disk is full]"]
    assert texts[-1] == "[3 more parts, in base64; it could not be kept: the disk is full]"
    assert len(texts) == len(result.content) == MAX_FILES + 2
