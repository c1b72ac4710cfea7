"""Replies with nothing in them, and replies that a service has withheld, in whole runtimes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from agcore.agent import Agent, AgentError
from agent_core import AgentRuntime, EventType, RunHandle, RunStatus
from agent_core.config.models import ModelConfig
from agent_core.errors import ErrorCode
from agent_core.providers.failures import Called
from agent_core.providers.scripted import Calls, Says, ScriptedCall
from agent_core.types import StopReason, Usage
from isolation import Home
from model_server import ModelServer, Reply, Sends, Status, sse
from model_server_wire import frame
from runtimes import ask
from sweeps import paired, sampled

PROTOCOLS = ["openai", "responses", "anthropic", "ollama", "gemini", "bedrock"]
FILTERING = [each for each in PROTOCOLS if each != "ollama"]
"""The protocols that have a word for a filter."""
USED = Usage(input_tokens=30, output_tokens=7, total_tokens=37)
NOTHING: dict[str, Reply] = {
    "nothing": Says(text="", usage=USED),
    "blanks": Says(text=" \n", usage=USED),
    "a thought alone": Says(text="", reasoning="I have answered in my mind.", usage=USED),
}


def opened(home: Home, project: Path, server: ModelServer, protocol: str) -> AgentRuntime:
    settings = {**server.settings(protocol), "name": "m", "context_window": 32_000}
    settings |= {"api_key_env": "SOME_KEY"} if protocol != "ollama" else {}
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    home.write_config("\n".join(["[model]", *lines, "[memory]", "enabled = false"]))
    return AgentRuntime(project_dir=project, home_dir=home.path)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "a-key")


def failure_of(handle: RunHandle) -> tuple[ErrorCode, str]:
    assert handle.status is RunStatus.FAILED
    assert handle.error is not None
    return handle.error.code, handle.error.message


@pytest.mark.parametrize(
    ("protocol", "empty"), sampled(paired(PROTOCOLS, NOTHING.values()), keep=2)
)
async def test_a_model_that_says_nothing_is_asked_once_more(
    home: Home, project: Path, protocol: str, empty: Reply
) -> None:
    async with (
        ModelServer([empty, "Here I am."]) as server,
        opened(home, project, server, protocol) as made,
    ):
        handle = await ask(made)
        assert handle.status is RunStatus.COMPLETED, handle.error
        result = await handle.result()
        page = await made.replay_session("s1")
    assert result.text == "Here I am."
    assert "Your last reply was empty." in server.requests[1].text
    assert "in my mind" not in server.requests[1].text
    known = [e for e in page.events if e.event_type is EventType.MODEL_COMPLETED]
    assert known[0].payload["usage"]["output_tokens"] == 7


@pytest.mark.parametrize("protocol", sampled(PROTOCOLS, keep=1))
async def test_a_model_that_says_nothing_twice_fails_the_run(
    home: Home, project: Path, protocol: str
) -> None:
    empty = Says(text="", reasoning="Hm.", usage=USED)
    async with (
        ModelServer([empty, empty, "Fine."]) as server,
        opened(home, project, server, protocol) as made,
    ):
        handle = await ask(made)
        assert failure_of(handle)[0] is ErrorCode.EMPTY_REPLY
        assert handle.usage.output_tokens == 14
        assert (await ask(made, "again")).status is RunStatus.COMPLETED


async def test_nothing_after_the_results_of_tools_is_nothing(home: Home, project: Path) -> None:
    (project / "a.txt").write_text("hello", encoding="utf-8")
    read = Calls(calls=[ScriptedCall(name="code.read_file", arguments={"path": "a.txt"})])
    async with (
        ModelServer([read, Says(text=""), read, Says(text=""), "Done."]) as server,
        opened(home, project, server, "openai") as made,
    ):
        handle = await ask(made)
        assert handle.status is RunStatus.COMPLETED, handle.error
        server.assert_complete()


async def test_an_answer_that_was_cut_off_at_its_very_end_is_complete(
    home: Home, project: Path
) -> None:
    cut = Says(text="All of it.", stop_reason=StopReason.MAX_TOKENS)
    async with (
        ModelServer([cut, Says(text="")]) as server,
        opened(home, project, server, "openai") as made,
    ):
        handle = await ask(made)
        assert handle.status is RunStatus.COMPLETED, handle.error
        assert (await handle.result()).text == "All of it."


@pytest.mark.parametrize(
    ("protocol", "text"), sampled(paired(FILTERING, ["", "I cannot help with this."]), keep=2)
)
async def test_a_filtered_reply_fails_the_run_and_is_not_asked_for_again(
    home: Home, project: Path, protocol: str, text: str
) -> None:
    filtered = Says(text=text, stop_reason=StopReason.CONTENT_FILTER, usage=USED)
    async with (
        ModelServer([filtered, "Fine."]) as server,
        opened(home, project, server, protocol) as made,
    ):
        handle = await ask(made)
        code, message = failure_of(handle)
        assert code is ErrorCode.CONTENT_FILTERED
        assert text in message
        assert len(server.requests) == 1
        assert handle.usage.output_tokens == 7
        assert (await ask(made, "again")).status is RunStatus.COMPLETED


BLOCKED = {"blockReason": "SAFETY", "blockReasonMessage": "The prompt names a weapon."}
WHY = {"category": "cyber", "explanation": "The prompt names a weapon."}
REFUSED = {"type": "message_delta", "delta": {"stop_reason": "refusal", "stop_details": WHY}}
CUT = {"finishReason": "RECITATION", "finishMessage": "The prompt names a weapon."}
WORDS: dict[str, tuple[str, Any]] = {
    "a blocked prompt": ("gemini", Sends(sse({"promptFeedback": BLOCKED}))),
    "a blocked reply": ("gemini", Sends(sse({"candidates": [CUT]}))),
    "a refusal": ("anthropic", Sends(sse(REFUSED, {"type": "message_stop"}))),
    "a guardrail": (
        "bedrock",
        Sends(
            [
                frame("contentBlockDelta", {"delta": {"text": "The prompt names a weapon."}}),
                frame("messageStop", {"stopReason": "guardrail_intervened"}),
                frame("metadata", {"usage": {}}),
            ]
        ),
    ),
}


@pytest.mark.parametrize(
    ("protocol", "reply"), sampled(WORDS.values(), keep=2), ids=sampled(WORDS, keep=2)
)
async def test_the_service_explains_what_it_has_withheld(
    home: Home, project: Path, protocol: str, reply: Reply
) -> None:
    async with ModelServer([reply]) as server, opened(home, project, server, protocol) as made:
        code, message = failure_of(await ask(made))
    assert code is ErrorCode.CONTENT_FILTERED
    assert "The prompt names a weapon." in message


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "Output blocked by content filtering policy"),
        (400, "The prompt triggered Azure OpenAI's content management policy. (content_filter)"),
        (400, "Content Exists Risk"),
        (400, "Output data may contain inappropriate content. (data_inspection_failed)"),
        (400, "The request was rejected because it was considered high risk"),
        (400, "Invalid prompt: your prompt was flagged as potentially violating our usage policy."),
        (400, "Your request was rejected by our safety system. (content_policy_violation)"),
        (400, "input new_sensitive (1026)"),
        (400, "系统检测到输入或生成内容可能包含不安全或敏感内容 (1301)"),
        (403, "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO"),
        (403, 'm requires moderation on OpenRouter. Your input was flagged for "hate".'),
        # Not quoted from any service:
        (400, "Your prompt was blocked by our safety system"),
        (400, "The model refused to answer for safety reasons"),
        (400, "Prompt blocked: PROHIBITED_CONTENT"),
        (400, "Guardrail intervened"),
        (422, "The content violates policy"),
        (400, "unsafe content detected"),
        (400, "sensitive words detected"),
        (451, "Content blocked for legal reasons"),
        (403, "The request was denied by content safety"),
        (400, "input contains prohibited content"),
        (400, "Blocked by Llama Guard"),
    ],
)
def test_a_refusal_of_the_words_is_no_other_failure(status: int, words: str) -> None:
    failure = Called("openai", "m").refused(status, words)
    assert failure.code is ErrorCode.CONTENT_FILTERED
    assert not failure.retryable


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "messages: content is required"),
        (400, "content violates the schema: field required"),
        (400, "Invalid content type. image_url is only supported by certain models."),
        (403, "your account violates the terms"),
        (403, "Request is prohibited by organization's policy"),
        (400, "The guardrail identifier or version is invalid"),
        (400, "Invalid value at 'safety_settings[0].threshold'"),
        (429, "content filter is overloaded"),
    ],
)
def test_other_words_about_content_are_no_filter(status: int, words: str) -> None:
    assert Called("openai", "m").refused(status, words).code is not ErrorCode.CONTENT_FILTERED


async def test_a_refused_prompt_is_not_shortened(home: Home, project: Path) -> None:
    refusal = Status(400, orjson.dumps({"error": {"message": "Content Exists Risk"}}))
    async with (
        ModelServer(["Yes.", refusal]) as server,
        opened(home, project, server, "openai") as made,
    ):
        await ask(made)
        assert failure_of(await ask(made, "more"))[0] is ErrorCode.CONTENT_FILTERED
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("replies", "code"),
    [
        ([Says(text=""), Says(text="")], "empty_reply"),
        ([Says(text="No.", stop_reason=StopReason.CONTENT_FILTER)], "content_filtered"),
    ],
)
def test_the_command_ends_with_1_and_says_so(
    home: Home, project: Path, replies: list[Reply], code: str
) -> None:
    with ModelServer.in_thread(replies) as server:
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
            "[memory]\nenabled = false\n"
        )
        done = subprocess.run(
            [sys.executable, "-m", "agent_core.cli", "run", "hi"],
            env=home.env(),
            cwd=project,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert code in done.stderr


@pytest.mark.parametrize(
    ("replies", "code"),
    [
        ([Says(text=""), Says(text="")], ErrorCode.EMPTY_REPLY),
        ([Says(text="No.", stop_reason=StopReason.CONTENT_FILTER)], ErrorCode.CONTENT_FILTERED),
    ],
)
async def test_an_agent_of_the_toolkit_fails_with_the_same_code(
    replies: list[Reply], code: ErrorCode
) -> None:
    async with ModelServer(replies) as server:
        model = ModelConfig(**server.settings("openai"), name="m")
        with pytest.raises(AgentError) as caught:
            await Agent("helper", "You help.", model=model).run("Hi")
    assert caught.value.code is code
