"""Pictures in whole sessions: models that take none, and tools that make some."""

import base64
import random
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from agent_core import AgentRuntime, ErrorCode, RunStatus, UserMessage, tool
from agent_core.providers.scripted import calls
from agent_core.types import ImageBlock, TextBlock
from isolation import Home
from model_server import ModelServer, Reply, Status

REFUSAL = Status(400, b'{"error":{"message":"image input is not supported"}}')


def drawing(side: int) -> bytes:
    raw = BytesIO()
    noise = random.Random(7).randbytes(side * side)  # noqa: S311 - a drawing
    Image.frombytes("L", (side, side), noise).save(raw, "PNG")
    return raw.getvalue()


def block(content: bytes) -> ImageBlock:
    return ImageBlock(mime_type="image/png", data=base64.b64encode(content).decode())


def opened(home: Home, project: Path, server: ModelServer, more: str = "") -> AgentRuntime:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        f"retry = {{ max_attempts = 1 }}\ncontext_window = 32000\n{more}\n"
    )
    return AgentRuntime(home_dir=home.path, project_dir=project)


async def said(
    runtime: AgentRuntime, *content: TextBlock | ImageBlock
) -> tuple[RunStatus, ErrorCode | None]:
    handle = await runtime.start(UserMessage(content=list(content)), session_id="s1")
    await handle.wait()
    return handle.status, handle.error.code if handle.error else None


async def test_a_session_goes_on_after_a_model_has_refused_a_picture(
    home: Home, project: Path
) -> None:
    shown, words = block(drawing(8)), TextBlock(text="and now?")
    async with ModelServer([REFUSAL, "I am sorry.", "again"]) as server:
        async with opened(home, project, server) as runtime:
            refused = (RunStatus.FAILED, ErrorCode.UNSUPPORTED_CAPABILITY)
            assert await said(runtime, TextBlock(text="see"), shown) == refused
            assert await said(runtime, words) == (RunStatus.COMPLETED, None)
            assert await said(runtime, shown) == refused
            assert len(server.requests) == 2
            assert await said(runtime, words) == (RunStatus.COMPLETED, None)
        assert shown.data
        assert shown.data not in server.requests[-1].text
        assert "this model was not shown it" in server.requests[-1].text


@pytest.mark.parametrize("limit", [3000, 3_750_000])
async def test_a_large_picture_of_a_tool_is_shown_smaller_and_kept_whole(
    home: Home, project: Path, limit: int
) -> None:
    content = drawing(300)
    script: list[Reply] = [calls("draw"), "drawn"]
    async with ModelServer(script) as server:
        made = opened(home, project, server, f"max_image_bytes = {limit}")

        @made.register_tool
        @tool(permission="readonly")
        async def draw() -> ImageBlock:
            """Draw."""
            return block(content)

        async with made as runtime:
            assert await said(runtime, TextBlock(text="draw")) == (RunStatus.COMPLETED, None)
            (kept,) = (await runtime.replay_session("s1")).artifacts
    assert kept.size_bytes == len(content)
    [part] = [
        part
        for part in server.requests[1].body["messages"][-1]["content"]
        if part["type"] == "image_url"
    ]
    head, _, data = part["image_url"]["url"].partition(",")
    sent = base64.b64decode(data)
    assert len(sent) <= limit
    assert (sent == content) is (limit > 3000)
    assert head == ("data:image/png;base64" if sent == content else "data:image/jpeg;base64")
