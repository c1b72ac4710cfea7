"""What the result has of a reply that broke off, however the run is asked for."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime, RunError, RunStatus
from isolation import Home
from model_server import Ending, ModelServer, Reply, Sends, Status, sse
from tables import together

CONFIG = """
[model]
provider = "openai"
name = "m"
base_url = "{url}"
[model.retry]
max_attempts = 1
[memory]
enabled = false
"""


def chunk(text: str, finish: str | None = None, **delta: Any) -> bytes:
    return sse({"choices": [{"delta": {"content": text, **delta}, "finish_reason": finish}]})


LOOK = {"name": "code__list_dir", "arguments": '{"path": "."}'}
LOOKS = Sends(
    chunk("I will look.", "tool_calls", tool_calls=[{"index": 0, "id": "one", "function": LOOK}])
)
LONG = Sends(chunk("The beginning, ", "length"))
HALF = Sends(chunk("half an answer"), ending=Ending.CLOSE)
BROKEN: dict[str, tuple[Sequence[Reply], str]] = {
    "the first reply": ([HALF], "half an answer"),
    "the reply after a call": ([LOOKS, HALF], "half an answer"),
    "the rest of a long reply": ([LONG, HALF], "The beginning, half an answer"),
    "nothing after a call": ([LOOKS, Status(400)], "I will look."),
    "nothing": ([Status(400)], ""),
}


def opened(home: Home, project: Path, server: ModelServer) -> AgentRuntime:
    home.write_config(CONFIG.format(url=server.base_url("openai")))
    return AgentRuntime(project_dir=project, home_dir=home.path)


@pytest.mark.long
@together(("replies", "expected"), BROKEN.values(), ids=BROKEN)
async def test_what_has_come_is_in_the_result(
    home: Home, project: Path, replies: Sequence[Reply], expected: str
) -> None:
    async with ModelServer([*replies] * 3) as server:
        async with opened(home, project, server) as made:
            with pytest.raises(RunError) as caught:
                await made.run("go")
            assert caught.value.result.text == expected

            handle = await made.start("go")
            parts = [part async for part in handle.partial_output()]
            assert await handle.wait() is RunStatus.FAILED
            assert handle.result_text == expected
            assert parts[-1:] == [expected[-len(parts[-1]) :]] if parts else not expected
            assert (await made.run_report(handle.run_id)).text == expected

        async with opened(home, project, server) as later:
            assert (await later.attach(handle.run_id)).result_text == expected

        def run() -> str:
            with opened(home, project, server) as made, pytest.raises(RunError) as failed:
                made.run_sync("go")
            return failed.value.result.text

        assert await asyncio.to_thread(run) == expected


async def test_what_has_come_before_a_cancel_is_in_the_result(home: Home, project: Path) -> None:
    hanging = Sends(chunk("half an answer"), ending=Ending.HANG)
    async with ModelServer([hanging]) as server, opened(home, project, server) as made:
        handle = await made.start("go")
        async for part in handle.partial_output():
            assert "half an answer".startswith(part)
            await handle.cancel()
        assert await handle.wait() is RunStatus.CANCELLED
        with pytest.raises(RunError) as caught:
            await handle.result()
    assert caught.value.result.text == "half an answer"


async def test_what_has_come_is_not_in_the_next_answer(home: Home, project: Path) -> None:
    async with ModelServer([HALF, "whole"]) as server, opened(home, project, server) as made:
        with pytest.raises(RunError):
            await made.run("go", session_id="s1")
        assert (await made.run("again", session_id="s1")).text == "whole"
    assert "half" not in server.requests[1].text
