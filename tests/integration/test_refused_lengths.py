"""Requests that a service finds too long, with few words or none, in whole runtimes."""

from pathlib import Path

import orjson
import pytest

from agent_core import AgentRuntime, EventType, RunStatus
from agent_core.errors import ErrorCode
from isolation import Home
from model_server import ModelServer, Received, Reply, Status
from runtimes import ask
from sweeps import sampled

CONFIG = """
[model]
provider = "openai"
name = "m"
base_url = "{url}"
context_window = {window}
max_output_tokens = 8192

[memory]
enabled = false

[compact]
keep_recent_tokens = 400
auto_background = false
"""
SUMMARY = '{"summary": "The user has told a long story, part by part, about many words."}'
NO_WORDS = [
    (400, b""),
    (400, b"{}"),
    (400, b'{"error": {"message": "Bad Request"}}'),
    (413, b""),
    (413, b"<html><title>413 Request Entity Too Large</title></html>"),
]


class Service:
    """Answers requests up to a number of bytes, and refuses larger ones in its own way."""

    def __init__(self, most: int, status: int, body: bytes) -> None:
        self.most = most
        self.refusal = Status(status, body)
        self.refused = 0
        self.summaries = 0

    def __call__(self, asked: Received) -> Reply:
        if "<summary_so_far>" in asked.text:
            self.summaries += 1
            return SUMMARY
        if len(asked.raw) > self.most:
            self.refused += 1
            return self.refusal
        return "Yes. " * 100


def opened(home: Home, project: Path, server: ModelServer, window: int) -> AgentRuntime:
    home.write_config(CONFIG.format(url=server.base_url("openai"), window=window))
    return AgentRuntime(project_dir=project, home_dir=home.path)


async def windows(made: AgentRuntime) -> list[int]:
    page = await made.replay_session("s1")
    built = [e for e in page.events if e.event_type is EventType.CONTEXT_BUILT]
    return [event.payload["budget"]["window"] for event in built]


@pytest.mark.long
@pytest.mark.parametrize(("status", "body"), sampled(NO_WORDS, keep=1))
async def test_a_session_outlives_refusals_without_words(
    home: Home, project: Path, status: int, body: bytes
) -> None:
    service = Service(60_000, status, body)
    async with ModelServer(service) as server:
        async with opened(home, project, server, 200_000) as made:
            for number in range(12):
                handle = await ask(made, f"part {number}: " + "word " * 1500)
                assert handle.status is RunStatus.COMPLETED, handle.error
            known = await windows(made)
        assert known[0] == 200_000
        assert known[-1] < 20_000
        assert service.refused == 1  # the window is known from then on
        assert service.summaries > 0
        async with opened(home, project, server, 200_000) as made:
            await ask(made, "and now?")
            assert (await windows(made))[-1] == known[-1]
            await ask(made, "hi", "another")
            page = await made.replay_session("another")
            built = [e for e in page.events if e.event_type is EventType.CONTEXT_BUILT]
            assert built[-1].payload["budget"]["window"] == 200_000


@pytest.mark.sweep
async def test_words_without_a_number_lower_the_window_as_well(home: Home, project: Path) -> None:
    words = orjson.dumps({"error": {"message": "Input is too long for requested model."}})
    service = Service(60_000, 400, words)
    async with ModelServer(service) as server, opened(home, project, server, 200_000) as made:
        for number in range(12):
            handle = await ask(made, f"part {number}: " + "word " * 1500)
            assert handle.status is RunStatus.COMPLETED, handle.error
        assert (await windows(made))[-1] < 20_000
    assert service.refused == 1


async def test_a_refusal_with_another_reason_ends_the_run_and_changes_no_window(
    home: Home, project: Path
) -> None:
    """The shorter request is refused, too: the reason was another one."""
    service = Service(60_000, 400, b'{"error": {"message": "seed is unknown"}}')
    async with ModelServer(service) as server, opened(home, project, server, 200_000) as made:
        assert (await ask(made, "word " * 1500)).status is RunStatus.COMPLETED
        service.most = 0
        handle = await ask(made, "word " * 1500)
        assert handle.status is RunStatus.FAILED
        assert handle.error is not None
        assert handle.error.code is ErrorCode.PROVIDER_ERROR
        assert "seed is unknown" in handle.error.message
        assert service.refused == 2
        service.most = 60_000
        assert (await ask(made, "again")).status is RunStatus.COMPLETED
        assert (await windows(made))[-1] == 200_000


async def test_the_first_small_request_of_a_session_is_not_shortened(
    home: Home, project: Path
) -> None:
    service = Service(0, 400, b'{"error": {"message": "seed is unknown"}}')
    async with ModelServer(service) as server, opened(home, project, server, 200_000) as made:
        handle = await ask(made, "hi")
    assert handle.status is RunStatus.FAILED
    assert (service.refused, service.summaries) == (1, 0)


async def test_an_answer_limit_that_does_not_fit_beside_the_prompt_shrinks_alone(
    home: Home, project: Path
) -> None:
    """vLLM counts the limit of the answer into the window; nothing has to be summarised."""

    def answer(asked: Received) -> Reply:
        limit = asked.body["max_tokens"]
        if limit > 6_000:
            words = (
                f"'max_tokens' or 'max_completion_tokens' is too large: {limit}. This model's "
                "maximum context length is 16384 tokens and your request has 11000 input tokens."
            )
            return Status(400, orjson.dumps({"error": {"message": words}}))
        return "Yes."

    async with ModelServer(answer) as server, opened(home, project, server, 200_000) as made:
        handle = await ask(made, "hi")
        assert handle.status is RunStatus.COMPLETED, handle.error
        assert (await windows(made))[-1] == 16_384
    assert len(server.requests) == 2
