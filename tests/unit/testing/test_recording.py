"""Recordings: what is in them, what they answer, and how they refuse other requests."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from agent_core import AgentRuntime, Budget, ConfigError, ProviderError, RunError, Usage, tool
from agent_core.testing import (
    Calls,
    Says,
    ScriptedCall,
    ScriptedProvider,
    ScriptedRuntime,
    calls,
    record,
    replay,
)
from agent_core.testing.recording import _LOADER, _Dumper
from tables import together


@tool(permission="readonly")
def stock(item: str) -> dict[str, Any]:
    """How many of an item are left.

    Args:
        item: its name.
    """
    return {"item": item, "left": 12, "at": "2026-11-22T10:00:00+00:00"}


@tool(permission="readonly", name="stock")
def changed_stock(item: str) -> int:
    """How many of an item there are.

    Args:
        item: its name.
    """
    return 12 if item else 0


SCRIPT = [
    calls("stock", item="lamp"),
    Says(text="Twelve,\nin two rooms.", reasoning="easy", usage=Usage.from_input_output(9, 4)),
    "Yes.",
]


def runtime(script: Any, project: Path, a_tool: Any = stock) -> ScriptedRuntime:
    made = ScriptedRuntime(script, project_dir=project)
    made.register_tool(a_tool)
    return made


async def converse(made: AgentRuntime, *messages: str) -> list[str]:
    async with made, made.session("lamps") as session:
        return [(await session.run(message)).text for message in messages]


@pytest.fixture
async def recording(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    made = runtime(SCRIPT, tmp_path / "here")
    async with made:
        async with made.session("lamps") as session:
            await session.run("How many lamps?")
            await session.run("Sure?")
        return await record(made.session("lamps"), tmp_path / "lamps" / "recorded.yaml")


async def test_a_recording_answers_as_the_session_went(recording: Path, tmp_path: Path) -> None:
    model = replay(recording, project_dir=tmp_path)
    made = runtime(model, tmp_path)
    answers = await converse(made, "How many lamps?", "Sure?")
    assert answers == ["Twelve,\nin two rooms.", "Yes."]
    model.assert_complete()


async def test_a_recording_can_be_read_and_holds_no_ids_and_no_paths(
    recording: Path, tmp_path: Path
) -> None:
    text = recording.read_text("utf-8")
    assert str(tmp_path) not in text
    assert not re.search(r"_[0-9a-f]{28}", text)
    assert "2026-11-22" not in text
    read = yaml.safe_load(text)
    assert read["recording"] == 1
    assert list(read["tools"]) == ["stock"]
    first, second, third = read["calls"]
    assert first["request"]["messages"] == [{"user": "How many lamps?"}]
    assert first["reply"]["content"][0]["call"] == "stock"
    assert second["request"].keys() == {"after", "messages"}
    assert second["request"]["messages"][1]["tool"][0]["result"] == "<call_1>"
    assert second["reply"]["usage"]["output_tokens"] == 4
    assert third["request"]["messages"][-1] == {"user": "Sure?"}
    assert "Twelve,\n" in text, "lines stand as lines"


async def test_another_message_fails_and_both_are_named(recording: Path, tmp_path: Path) -> None:
    model = replay(recording, project_dir=tmp_path)
    with pytest.raises(RunError) as caught:
        await converse(runtime(model, tmp_path), "How many chairs?")
    for part in ("messages[0].user", "'How many lamps?'", "'How many chairs?'", "from call 1"):
        assert part in str(caught.value)
    with pytest.raises(AssertionError, match="How many chairs"):
        model.assert_complete()


async def test_another_result_of_a_tool_is_found(recording: Path, tmp_path: Path) -> None:
    @tool(permission="readonly", name="stock")
    def fewer(item: str) -> dict[str, Any]:
        """How many of an item are left.

        Args:
            item: its name.
        """
        return {"item": item, "left": 11, "at": "2030-01-01T10:00:00+00:00"}

    model = replay(recording, project_dir=tmp_path)
    with pytest.raises(RunError, match=r"messages\[2\].*left: recorded 12, asked 11") as caught:
        await converse(runtime(model, tmp_path, fewer), "How many lamps?")
    assert "2030" not in str(caught.value), "points in time are not compared"


async def test_another_definition_of_a_tool_and_a_missing_one_are_found(
    recording: Path, tmp_path: Path
) -> None:
    model = replay(recording, project_dir=tmp_path)
    with pytest.raises(RunError, match=r"definition of stock\.description"):
        await converse(runtime(model, tmp_path, changed_stock), "How many lamps?")
    model = replay(recording, project_dir=tmp_path)
    with pytest.raises(RunError, match=r"tools.*stock"):
        await converse(ScriptedRuntime(model, project_dir=tmp_path), "How many lamps?")


async def test_a_conversation_that_goes_on_has_no_reply_left(
    recording: Path, tmp_path: Path
) -> None:
    model = replay(recording, project_dir=tmp_path)
    with pytest.raises(RunError, match="all are used"):
        await converse(runtime(model, tmp_path), "How many lamps?", "Sure?", "Really?")
    with pytest.raises(AssertionError, match="1 more than"):
        model.assert_complete()


async def test_a_recorded_failure_fails_again(tmp_path: Path) -> None:
    made = ScriptedRuntime(
        [ProviderError("provider_rate_limited", "slow down")], project_dir=tmp_path
    )
    async with made:
        with pytest.raises(RunError, match="slow down"):
            await made.run("hello", session_id="s")
        path = await record(made.session("s"), tmp_path / "r.yaml")
    model = replay(path, project_dir=tmp_path)
    with pytest.raises(RunError, match="slow down") as caught:
        await ScriptedRuntime(model, project_dir=tmp_path).run("hello")
    assert caught.value.code == "provider_rate_limited"
    model.assert_complete()


async def test_children_and_the_ids_in_their_reports_are_replayed(tmp_path: Path) -> None:
    script = [
        calls("agent.create_sub_agent", task="Look around."),
        calls("code.list_dir", path="."),
        "Nothing here.",
        "The child saw nothing.",
    ]
    (tmp_path / "here").mkdir()
    made = ScriptedRuntime(script, project_dir=tmp_path / "here")
    async with made:
        result = await made.run("Let a child look.", session_id="s")
        assert result.text == "The child saw nothing."
        path = await record(made.session("s"), tmp_path / "r.yaml")
    made.script.assert_complete()
    model = replay(path, project_dir=tmp_path / "here")
    async with ScriptedRuntime(model, project_dir=tmp_path / "here") as again:
        assert (await again.run("Let a child look.")).text == "The child saw nothing."
    model.assert_complete()


async def test_a_stored_session_is_replayed_in_memory(tmp_path: Path) -> None:
    project, home, fixture = tmp_path / "here", tmp_path / "home", tmp_path / "lamps.yaml"
    project.mkdir()
    (home / "memory" / "user").mkdir(parents=True)
    memory = "---\nid: mem_1\nsummary: likes green\n---\nThe user likes green.\n"
    (home / "memory" / "user" / "green.md").write_text(memory, encoding="utf-8")
    live = ScriptedProvider([calls("stock", item="lamp"), "Twelve."])
    async with AgentRuntime(project, model=live, home_dir=home) as made:
        made.register_tool(stock)
        async with made.session("lamps") as session:
            await session.run("How many lamps?")
        await record(made.session("lamps"), fixture)
    assert "memory_catalog" in [block.block_id for block in live.requests[0].system]
    model = replay(fixture, project_dir=project)
    assert await converse(runtime(model, project), "How many lamps?") == ["Twelve."]
    model.assert_complete()


async def test_a_call_with_arguments_that_are_no_json_is_made_again_as_it_was(
    tmp_path: Path,
) -> None:
    bad = Calls(calls=[ScriptedCall(name="stock", arguments='{"item": ')])
    async with runtime([bad, "Well."], tmp_path) as made:
        await made.run("How many?", session_id="lamps")
        fixture = await record(made.session("lamps"), tmp_path / "bad.yaml")
    model = replay(fixture, project_dir=tmp_path)
    assert await converse(runtime(model, tmp_path), "How many?") == ["Well."]
    model.assert_complete()


async def test_what_a_budget_has_refused_is_no_call(tmp_path: Path) -> None:
    budget = Budget(requests=1)
    async with runtime([calls("stock", item="lamp")], tmp_path) as made:
        with pytest.raises(RunError):
            await made.run("How many?", session_id="lamps", budget=budget)
        fixture = await record(made.session("lamps"), tmp_path / "spent.yaml")
    model = replay(fixture, project_dir=tmp_path)
    async with runtime(model, tmp_path) as made:
        with pytest.raises(RunError, match="budget"):
            await made.run("How many?", budget=budget)
    model.assert_complete()


async def test_ids_that_a_model_has_made_up_and_times_in_its_words_stay(tmp_path: Path) -> None:
    made_up = f"art_{'1' * 28}"
    script = [calls("stock", item=made_up), f"It was {made_up} at 2026-11-22T10:00:00Z."]
    made = runtime(script, tmp_path)
    async with made:
        said = await made.run("Look.", session_id="s")
        path = await record(made.session("s"), tmp_path / "r.yaml")
    model = replay(path, project_dir=tmp_path)
    async with runtime(model, tmp_path) as again:
        assert (await again.run("Look.")).text == said.text
    model.assert_complete()


@pytest.mark.long
async def test_a_long_session_is_recorded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ScriptedRuntime([f"answer {number}" for number in range(130)], project_dir=tmp_path)
    async with made, made.session("long") as session:
        for number in range(130):
            await session.run(f"message {number}", tools=())
        assert (await session.replay()).next_seq is not None, "more than one page"
        monkeypatch.chdir(tmp_path)
        path = await record(session)
    assert path == Path("long.yaml")
    calls_made = yaml.load(path.read_text("utf-8"), Loader=_LOADER)["calls"]  # noqa: S506
    assert [call["request"]["messages"][-1] for call in calls_made] == [
        {"user": f"message {number}"} for number in range(130)
    ]


async def test_what_looks_like_a_secret_is_not_recorded_and_does_not_matter(tmp_path: Path) -> None:
    key = "sk-" + "a1B2c3D4" * 5
    made = ScriptedRuntime(["Noted."], project_dir=tmp_path)
    async with made:
        await made.run(f"My key is {key}.", session_id="s")
        path = await record(made.session("s"), tmp_path / "r.yaml")
    assert key not in path.read_text("utf-8")
    model = replay(path, project_dir=tmp_path)
    async with ScriptedRuntime(model, project_dir=tmp_path) as again:
        assert (await again.run(f"My key is {key}.")).text == "Noted."


@together(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("a: [", "is not YAML"),
        ("- 1", "is not a recording of format 1"),
        ("recording: 2", "`recording: 2`"),
        ("recording: 1\ncalls: [7]\ntools: {}", "is damaged"),
        ("recording: 1\ncalls: 7\ntools: {}", "is damaged"),
        ("recording: 1", "is damaged"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(
    text: str | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "r.yaml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        replay(path)
    assert "r.yaml" in caught.value.message


@given(
    st.text(st.characters(exclude_categories=["Cs"])), st.lists(st.text(" \n\t#:-'\"|>a\x85\u2028"))
)
def test_every_text_is_read_as_it_was_written(text: str, others: list[str]) -> None:
    value = {"text": text, "others": others, "yes": "1e3"}
    written = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    assert yaml.load(written, Loader=_LOADER) == value  # noqa: S506
