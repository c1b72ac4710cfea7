import asyncio
import json
from pathlib import Path

import pytest

from agent_core.config.models import ModelConfig
from agent_core.errors import ConfigError, ErrorCode, ProviderError
from agent_core.providers.base import ProviderRegistry
from agent_core.providers.scripted import (
    Calls,
    Fails,
    Hangs,
    Pauses,
    Says,
    ScriptedCall,
    ScriptedProvider,
    calls,
)
from agent_core.types import (
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    ModelStarted,
    ModelTextDelta,
    Role,
    StopReason,
    TextBlock,
    ToolDefinition,
)
from tables import together


def request(**more: object) -> ModelRequest:
    hello = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
    return ModelRequest.model_validate({"model": "m", "messages": [hello], **more})


async def events(provider: ScriptedProvider) -> list[ModelEvent]:
    return [event async for event in provider.stream(request())]


async def test_text_arrives_in_several_deltas_and_then_whole() -> None:
    provider = ScriptedProvider(["one two three"])

    started, *deltas, completed = await events(provider)

    assert started == ModelStarted(provider="scripted", model="m")
    assert [type(delta) for delta in deltas] == [ModelTextDelta] * 3
    assert isinstance(completed, ModelCompleted)
    assert completed.content == [TextBlock(text="one two three")]
    assert completed.stop_reason is StopReason.END_TURN
    provider.assert_complete()


async def test_a_call_has_an_id_and_its_arguments() -> None:
    provider = ScriptedProvider([calls("code.read_file", path="a.txt")])

    completed = (await events(provider))[-1]

    assert isinstance(completed, ModelCompleted)
    [call] = completed.tool_calls
    assert (call.name, call.arguments) == ("code.read_file", {"path": "a.txt"})
    assert call.tool_call_id.startswith("call_")
    assert completed.stop_reason is StopReason.TOOL_USE


async def test_a_call_may_be_scripted_with_broken_arguments() -> None:
    broken = Calls(calls=[ScriptedCall(name="code.read_file", arguments='{"path": ')])

    completed = (await events(ScriptedProvider([broken])))[-1]

    assert isinstance(completed, ModelCompleted)
    assert completed.tool_calls[0].arguments == {}
    assert completed.tool_calls[0].metadata["invalid_arguments"] == '{"path": '


async def test_a_failure_keeps_the_text_before_it() -> None:
    fails = Fails(message="gone", code=ErrorCode.PROVIDER_TIMEOUT, text="half")

    *_, delta, failed = await events(ScriptedProvider([fails]))

    assert delta == ModelTextDelta(text="half")
    assert isinstance(failed, ModelFailed)
    assert (failed.error.code, failed.error.message) == (ErrorCode.PROVIDER_TIMEOUT, "gone")


async def test_an_exhausted_script_is_a_failure_that_says_so() -> None:
    failed = (await events(ScriptedProvider([])))[-1]

    assert isinstance(failed, ModelFailed)
    assert "0 replies" in failed.error.message


async def test_unused_replies_are_complained_about() -> None:
    provider = ScriptedProvider(["one", "two"])
    await events(provider)

    with pytest.raises(AssertionError, match="1 of 2"):
        provider.assert_complete()


async def test_a_function_that_only_pauses_stands_before_a_reply() -> None:
    provider = ScriptedProvider([lambda _: Pauses(seconds=0), calls("look"), "late"])
    kinds = [[type(event).__name__ async for event in provider.stream(request())] for _ in range(2)]
    assert [kind[-1] for kind in kinds] == ["ModelCompleted"] * 2
    assert "ToolCallDelta" in kinds[0]
    provider.assert_complete()


async def test_a_pause_delays_the_reply_after_it() -> None:
    provider = ScriptedProvider([Pauses(seconds=0.05), "late"])
    clock = asyncio.get_running_loop().time
    begun = clock()

    await events(provider)

    assert clock() - begun >= 0.05


async def test_a_hanging_reply_ends_when_it_is_cancelled() -> None:
    stream = ScriptedProvider([Hangs(text="so far")]).stream(request())
    await anext(stream)

    assert await anext(stream) == ModelTextDelta(text="so far")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.02)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_function_answers_what_was_asked() -> None:
    provider = ScriptedProvider(lambda asked: f"{len(asked.messages)} messages")

    for _ in range(2):
        completed = (await events(provider))[-1]
        assert isinstance(completed, ModelCompleted)
        assert completed.content == [TextBlock(text="1 messages")]
    assert len(provider.requests) == 2


async def test_c2_tools_are_refused_and_never_dropped() -> None:
    provider = ScriptedProvider(["prose"], takes_tools=False)
    tools = [ToolDefinition(name="code.read_file", description="")]

    with pytest.raises(ProviderError) as caught:
        await anext(provider.stream(request(tools=tools)))

    assert caught.value.code is ErrorCode.UNSUPPORTED_CAPABILITY
    assert caught.value.details == {"provider": "scripted", "model": "m", "capability": "tools"}


async def test_a_script_is_read_from_the_file_the_configuration_names(tmp_path: Path) -> None:
    script = tmp_path / "replies.json"
    told = Says(text="hi", reasoning="hm").model_dump(mode="json")
    script.write_text(json.dumps(["first", told]), encoding="utf-8")
    config = ModelConfig(provider="scripted", name="m", path=str(script))

    provider = ProviderRegistry().create(config)
    first = [event async for event in provider.stream(request())]

    assert isinstance(first[-1], ModelCompleted)
    assert first[-1].content == [TextBlock(text="first")]


@together(
    ("text", "place"),
    [
        ("{}", "the whole file"),
        ('[{"type": "says"}]', "0.says.text"),
        ("[", "the whole file"),
        ('["a", {"tool": "x", "args": {}}]', 'at 1: it has no "type" of says, calls'),
        ('[{"type": "call"}]', 'at 0: it has no "type" of says, calls'),
        ("[3]", "at 0: Input should be an object"),
    ],
)
def test_a_broken_script_names_the_file_and_the_place(
    tmp_path: Path, text: str, place: str
) -> None:
    script = tmp_path / "replies.json"
    script.write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError) as caught:
        ScriptedProvider.from_file(script)

    assert str(script) in caught.value.message
    assert place in caught.value.message


def test_a_missing_script_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        ScriptedProvider.from_file(tmp_path / "none.json")
    with pytest.raises(ConfigError, match=r"path = "):
        ProviderRegistry().create(ModelConfig(provider="scripted", name="m"))


def test_the_script_on_the_page_about_providers_can_be_played(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "providers.md").read_text(encoding="utf-8")
    shown = page.split("```json\n")[1].split("```")[0]
    script = tmp_path / "replies.json"
    script.write_text(shown, encoding="utf-8")
    with pytest.raises(AssertionError, match="not used: 6 of 6 scripted replies"):
        ScriptedProvider.from_file(script).assert_complete()
    assert {entry["type"] for entry in json.loads(shown) if isinstance(entry, dict)} == {
        "says",
        "calls",
        "fails",
        "hangs",
        "pauses",
    }
