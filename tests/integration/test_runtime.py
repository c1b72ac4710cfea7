"""The whole runtime: sessions, queues, replay and branches on a real database."""

import asyncio
import base64
import os
import random
import re
import sqlite3
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from agent_core import (
    AgentCoreError,
    AgentRuntime,
    ConfigError,
    ErrorCode,
    EventType,
    ImageBlock,
    ModelConfig,
    ProviderRegistry,
    ReasoningBlock,
    RunStatus,
    StorageError,
    TextBlock,
    ToolCallBlock,
    ToolContext,
    ToolDefinition,
    ToolRegistry,
    ToolResultBlock,
    UserMessage,
    tool,
)
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.scripted import Fails, Hangs, Says, ScriptedProvider, calls
from agent_core.types import Batch, Node, Position, ToolPermission
from isolation import Home
from loop_parts import spoken
from runtimes import CONFIG, ask, collect, runtime
from sweeps import sampled


async def test_b1_a_missing_config_is_an_error_and_is_not_created(
    home: Home, project: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        async with AgentRuntime(project_dir=project):
            pass
    assert caught.value.code is ErrorCode.CONFIG_ERROR
    assert str(home.path / "config.toml") in caught.value.message
    assert list(home.path.iterdir()) == []


async def test_b3_a_config_that_does_not_fit_creates_no_database(home: Home, project: Path) -> None:
    home.write_config('[model]\nname = "x"\n')
    with pytest.raises(ConfigError, match=r"model\.provider"):
        async with AgentRuntime(project_dir=project):
            pass
    assert not (home.path / "sessions.sqlite").exists()


async def test_b9_a_config_in_the_project_is_not_read(home: Home, project: Path) -> None:
    (project / ".soong-agent").mkdir()
    (project / ".soong-agent" / "config.toml").write_text("broken = [", encoding="utf-8")
    async with runtime(home, project, ["hi"]) as made:
        assert (await ask(made)).result_text == "hi"


async def test_c1_a_custom_provider_gets_the_resolved_model(home: Home, project: Path) -> None:
    seen: list[ModelConfig] = []

    def factory(model: ModelConfig) -> ProviderAdapter:
        seen.append(model)
        return ScriptedProvider(["hi"])

    home.write_config(CONFIG)
    registry = ProviderRegistry()
    registry.register("custom", factory)
    async with AgentRuntime(project_dir=project, provider_registry=registry) as made:
        await ask(made)
    assert [(model.name, model.context_window) for model in seen] == [("script", 32_000)]


async def test_a_tool_registry_that_is_filled_later_is_used(home: Home, project: Path) -> None:
    @tool(permission="readonly")
    async def late() -> str:
        """Come late."""
        return "late"

    home.write_config(CONFIG)
    provider, registry = ScriptedProvider(["hi"]), ToolRegistry()
    made = AgentRuntime(project_dir=project, home_dir=home.path, tool_registry=registry)
    registry.register(late)
    made.register_provider("custom", lambda _: provider)
    async with made:
        await ask(made)
    assert "late" in {each.name for each in provider.requests[0].tools}


async def test_c2_a_provider_that_refuses_tools_fails_the_run(home: Home, project: Path) -> None:
    provider = ScriptedProvider(["never"], takes_tools=False)
    async with runtime(home, project, provider) as made:
        handle = await ask(made)
    assert handle.status is RunStatus.FAILED
    assert handle.error is not None
    assert handle.error.code is ErrorCode.UNSUPPORTED_CAPABILITY
    assert "[tools] disabled" in handle.error.message


async def test_a_model_without_tools_works_with_the_list_in_the_documents(
    home: Home, project: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "providers.md").read_text(encoding="utf-8")
    listed = re.search(r"^```toml\n(\[tools\]\n.+?)^```$", page, re.S | re.M)
    assert listed is not None
    provider = ScriptedProvider(["hi"], takes_tools=False)
    async with runtime(home, project, provider, config=CONFIG + listed[1]) as made:
        handle = await ask(made)
    assert handle.result_text == "hi", handle.error


async def test_an_unknown_provider_is_a_config_error_of_the_first_start(
    home: Home, project: Path
) -> None:
    home.write_config('[model]\nprovider = "nobody"\nname = "x"\n')
    async with AgentRuntime(project_dir=project) as made:
        with pytest.raises(ConfigError, match=r"(?s)nobody.*register_provider before start"):
            await made.start("hi")
        assert await made.list_sessions() == []


async def test_a_provider_factory_must_be_callable(home: Home, project: Path) -> None:
    not_a_factory: Any = ScriptedProvider(["hi"])
    home.write_config(CONFIG)
    async with AgentRuntime(project_dir=project) as made:
        with pytest.raises(ConfigError, match=r"'custom'.*ScriptedProvider.*takes a ModelConfig"):
            made.register_provider("custom", not_a_factory)


def factory_that_fails(_: ModelConfig) -> Any:
    raise OSError("no licence")


def factory_of_nothing(_: ModelConfig) -> Any:
    return None


async def factory_that_is_async(_: ModelConfig) -> Any:
    return ScriptedProvider(["hi"])


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (factory_that_fails, "OSError: no licence"),
        (factory_of_nothing, "NoneType.*not an adapter"),
        (factory_that_is_async, "coroutine.*not an async one"),
    ],
)
async def test_a_factory_without_an_adapter_is_a_config_error_of_start(
    home: Home, project: Path, factory: Any, message: str
) -> None:
    home.write_config(CONFIG)
    async with AgentRuntime(project_dir=project) as made:
        made.register_provider("custom", factory)
        with pytest.raises(ConfigError, match=f"'custom'.*{message}") as caught:
            await made.start("hi")
        assert caught.value.details == {"provider": "custom"}
        assert await made.list_sessions() == []


async def test_a_missing_key_variable_is_a_config_error_of_start_that_names_it(
    home: Home, project: Path
) -> None:
    home.write_config(
        '[model]\nprovider = "openai"\nname = "x"\napi_key_env = "NO_SUCH_KEY"\n'
        'base_url = "http://127.0.0.1:9"\n'
    )
    async with AgentRuntime(project_dir=project) as made:
        with pytest.raises(ConfigError, match=r"NO_SUCH_KEY is not set.*api_key_env"):
            await made.start("hi")
        assert await made.list_sessions() == []


async def test_d1_the_stream_of_a_run_ends_with_its_end(home: Home, project: Path) -> None:
    async with runtime(home, project, [Says(text="hi there", chunks=1)]) as made:
        handle = await made.start("hello")
        events = await collect(handle)
        assert handle.status is RunStatus.COMPLETED
    # How many deltas carry the text depends on how soon it is read.
    assert [kind for kind, _ in groupby(event.event_type for event in events)] == [
        EventType.LOOP_STARTED,
        EventType.MESSAGE_CREATED,
        EventType.CONTEXT_BUILT,
        EventType.MODEL_STARTED,
        EventType.MODEL_TEXT_DELTA,
        EventType.MODEL_COMPLETED,
        EventType.MESSAGE_COMPLETED,
        EventType.LOOP_COMPLETED,
        EventType.RUN_COMPLETED,
    ]


async def test_d3_a_second_run_of_a_session_waits_its_turn(home: Home, project: Path) -> None:
    script = [Hangs(text="thinking "), "second answer"]
    async with runtime(home, project, script) as made:
        first = await made.start("one", session_id="s1")
        async for event in first.events():
            if event.event_type is EventType.MODEL_TEXT_DELTA:
                break
        second = await made.start("two", session_id="s1")
        assert second.status is RunStatus.QUEUED
        watching = asyncio.create_task(collect(second))
        await first.cancel()
        events = await watching
    assert [event.event_type for event in events[:2]] == [
        EventType.RUN_QUEUED,
        EventType.LOOP_STARTED,
    ]
    assert second.result_text == "second answer"


async def test_d4_a_cancelled_queued_run_asks_no_model(home: Home, project: Path) -> None:
    provider = ScriptedProvider([Hangs()])
    async with runtime(home, project, provider) as made:
        first = await made.start("one", session_id="s1")
        second = await made.start("two", session_id="s1")
        result = await second.cancel()
        assert result.status is RunStatus.CANCELLED
        types = [event.event_type for event in (await made.replay_run(second.run_id)).events]
        await first.cancel()
    assert types == [EventType.RUN_QUEUED, EventType.RUN_DEQUEUED, EventType.RUN_CANCELLED]
    assert len(provider.requests) <= 1


async def test_a_start_that_is_cancelled_in_the_queue_gives_its_place_back(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runtime(home, project, [Hangs(), "here"]) as made:
        first = await made.start("hang", session_id="s1")
        async for event in first.events():
            if event.event_type is EventType.MODEL_STARTED:
                break
        store = (await made._home.services()).store
        stored = store.append

        def append(batch: Batch) -> asyncio.Future[Position]:
            if any(event.draft.event_type is EventType.RUN_QUEUED for event in batch.events):
                starting.cancel()
            return stored(batch)

        monkeypatch.setattr(store, "append", append)
        starting = asyncio.create_task(made.start("given up", session_id="s1"))
        await asyncio.wait([starting])
        assert starting.cancelled()
        monkeypatch.undo()
        await first.cancel()
        async with asyncio.timeout(50):
            assert (await ask(made, "after")).result_text == "here"
        replay = await made.replay_session("s1")
    assert [run.status for run in replay.runs] == [
        RunStatus.CANCELLED,
        RunStatus.CANCELLED,
        RunStatus.COMPLETED,
    ]


async def test_e1_the_database_has_its_tables_and_its_version(home: Home, project: Path) -> None:
    async with runtime(home, project):
        pass
    with sqlite3.connect(home.path / "sessions.sqlite") as db:
        names = {row[0] for row in db.execute("select name from sqlite_master where type='table'")}
        versions = db.execute("select version from schema_migrations").fetchall()
    db.close()
    wanted = {"schema_migrations", "sessions", "agents", "runs", "nodes", "events", "artifacts"}
    assert wanted <= names
    assert versions


async def test_e2_replay_gives_nodes_and_events_in_order_without_secrets(
    home: Home, project: Path
) -> None:
    key = "sk-" + "a1b2c3d4" * 4
    async with runtime(home, project, ["fine"]) as made:
        await ask(made, f"my key is {key}")
        clean = await made.replay_session("s1")
        full = await made.replay_session("s1", include_sensitive=True)
        path = await _active_path(made)
    assert key not in clean.model_dump_json()
    assert key not in "".join(node.model_dump_json() for node in path)
    assert key in full.model_dump_json()
    assert key not in "".join(event.model_dump_json() for event in full.events)
    assert [event.seq for event in clean.events] == list(range(1, len(clean.events) + 1))
    assert [node.node_seq for node in clean.nodes] == [1, 2]
    assert clean.next_seq is None


async def test_e3_replay_of_a_run_has_only_that_run(home: Home, project: Path) -> None:
    async with runtime(home, project, ["one", "two"]) as made:
        await ask(made, "first")
        second = await ask(made, "second")
        replay = await made.replay_run(second.run_id)
    assert {event.run_id for event in replay.events} == {second.run_id}
    assert spoken(replay.nodes) == ["user: second", "assistant: two"]


async def test_e4_a_session_with_a_run_cannot_be_deleted(home: Home, project: Path) -> None:
    async with runtime(home, project, [Hangs()]) as made:
        handle = await made.start("one", session_id="s1")
        with pytest.raises(StorageError) as caught:
            await made.delete_session("s1")
        assert caught.value.code is ErrorCode.SESSION_ACTIVE
        await handle.cancel()
        assert (await made.delete_session("s1")).deleted
        with pytest.raises(StorageError) as gone:
            await made.replay_session("s1")
        assert gone.value.code is ErrorCode.SESSION_NOT_FOUND


async def test_after_a_failure_the_next_message_continues_from_the_users_words(
    home: Home, project: Path
) -> None:
    provider = ScriptedProvider([Fails(text="half "), "whole"])
    async with runtime(home, project, provider) as made:
        assert (await ask(made, "first")).status is RunStatus.FAILED
        await ask(made, "second")
        path = await _active_path(made)
    assert spoken(path) == ["user: first", "user: second", "assistant: whole"]


async def test_switching_to_an_older_message_makes_a_branch(home: Home, project: Path) -> None:
    provider = ScriptedProvider(["one", "two", "three"])
    async with runtime(home, project, provider) as made:
        await ask(made, "first")
        fork = (await _active_path(made))[-1]
        await ask(made, "second")
        await made.switch_node("s1", fork.node_id)
        await ask(made, "other second")
        path = await _active_path(made)
        everything = await made.replay_session("s1")
    assert spoken(path) == [
        "user: first",
        "assistant: one",
        "user: other second",
        "assistant: three",
    ]
    assert len(everything.nodes) == 6
    assert "two" not in provider.requests[-1].model_dump_json()


async def test_only_a_message_can_be_switched_to(home: Home, project: Path) -> None:
    async with runtime(home, project, [calls("code.list_dir", path="."), "done"]) as made:
        await ask(made)
        path = await _active_path(made)
        for node in path[1:3]:  # the call and its result
            with pytest.raises(AgentCoreError) as caught:
                await made.switch_node("s1", node.node_id)
            assert caught.value.code is ErrorCode.VALIDATION_ERROR
        with pytest.raises(StorageError) as unknown:
            await made.switch_node("s1", "node_nobody")
        assert unknown.value.code is ErrorCode.NODE_NOT_FOUND


@pytest.mark.parametrize(
    "session_id", sampled(["", "a b", "x" * 65, "../up", "ä", "a\n", 7], keep=3)
)
async def test_a_session_id_that_is_none_is_refused(
    home: Home, project: Path, session_id: Any
) -> None:
    async with runtime(home, project) as made:
        with pytest.raises(AgentCoreError) as caught:
            await made.start("hi", session_id=session_id)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


async def test_sessions_are_listed_the_latest_first(home: Home, project: Path) -> None:
    async with runtime(home, project, ["a", "b", "c"]) as made:
        for name in ("one", "two", "one"):
            await ask(made, session_id=name)
        assert [session.session_id for session in await made.list_sessions()] == ["one", "two"]
        assert len(await made.list_sessions(limit=1, offset=1)) == 1


async def test_an_image_reaches_the_model_and_comes_back_from_the_database(
    home: Home, project: Path
) -> None:
    image = ImageBlock(mime_type="image/png", data="aGVsbG8=")
    provider = ScriptedProvider(["a cat", "still a cat"])
    async with runtime(home, project, provider) as made:
        message = UserMessage(content=[TextBlock(text="what is this?"), image])
        await (await made.start(message, session_id="s1")).wait()
        await ask(made, "sure?")
    assert image in provider.requests[0].messages[0].content
    assert image in provider.requests[1].messages[0].content


async def test_an_image_can_be_named_by_its_artifact(home: Home, project: Path) -> None:
    async def paint(arguments: dict[str, Any], context: ToolContext) -> str:
        return await context.artifact(b"pixels", filename="a.png", mime_type="image/png")

    paints = ToolDefinition(name="paint", description="paints", permission=ToolPermission.READONLY)
    provider = ScriptedProvider([calls("paint"), "painted", "a cat"])
    async with runtime(home, project, provider) as made:
        made.register_tool(paints, paint)
        await ask(made)
        (artifact,) = (await made.replay_session("s1")).artifacts
        image = ImageBlock(mime_type="image/png", artifact_id=artifact.artifact_id)
        await (await made.start(UserMessage(content=[image]), session_id="s1")).wait()
        missing = ImageBlock(mime_type="image/png", artifact_id="art_nobody")
        with pytest.raises(StorageError) as caught:
            await made.start(UserMessage(content=[missing]), session_id="s1")
    assert caught.value.code is ErrorCode.ARTIFACT_NOT_FOUND
    (sent,) = provider.requests[-1].messages[-1].content
    assert sent == ImageBlock(mime_type="image/png", data="cGl4ZWxz")


@pytest.mark.parametrize(
    ("mime_type", "data", "why"),
    [
        ("image/svg+xml", base64.b64encode(b"<svg/>").decode(), "neither an image"),
        ("image/png", "%%%", "not base64"),
        ("image/png", "", "empty"),
        ("image/png", base64.b64encode(b"x" * 5000).decode(), "5000 bytes"),
    ],
)
async def test_an_image_that_no_model_takes_is_refused_and_nothing_is_stored(
    home: Home, project: Path, mime_type: str, data: str, why: str
) -> None:
    small = CONFIG + "max_image_bytes = 4000\n"
    async with runtime(home, project, ["hi"], config=small) as made:
        image = ImageBlock(mime_type=mime_type, data=data)
        with pytest.raises(AgentCoreError, match=why) as caught:
            await made.start(UserMessage(content=[image]), session_id="s1")
        assert caught.value.code is ErrorCode.VALIDATION_ERROR
        assert await made.list_sessions() == []


async def test_an_image_is_what_its_bytes_say_and_fits_the_limit(home: Home, project: Path) -> None:
    raw = BytesIO()
    noise = random.Random(7).randbytes(300 * 200 * 3)  # noqa: S311 - a drawing
    Image.frombytes("RGB", (300, 200), noise).save(raw, "PNG")
    image = ImageBlock(mime_type="image/gif", data=base64.b64encode(raw.getvalue()).decode())
    provider = ScriptedProvider(["noise"])
    small = CONFIG + "max_image_bytes = 4000\n"
    async with runtime(home, project, provider, config=small) as made:
        await (await made.start(UserMessage(content=[image]))).wait()
    (sent,) = provider.requests[0].messages[-1].content
    assert isinstance(sent, ImageBlock)
    assert sent.mime_type == "image/jpeg"
    assert len(base64.b64decode(sent.data or "")) <= 4000


async def test_a_result_larger_than_a_small_window_does_not_end_the_run(
    home: Home, project: Path
) -> None:
    (project / "large.txt").write_text("a line of some words\n" * 3000, encoding="utf-8")
    provider = ScriptedProvider([calls("code.read_file", path="large.txt", max_lines=1000), "ok"])
    small = CONFIG.replace("32000", "8192")
    async with runtime(home, project, provider, config=small) as made:
        handle = await ask(made)
    assert handle.status is RunStatus.COMPLETED
    assert "does not fit the context window" in provider.requests[-1].model_dump_json()


async def test_a_message_needs_no_session_and_gets_one(home: Home, project: Path) -> None:
    async with runtime(home, project, ["hi"]) as made:
        handle = await made.start("hello")
        await handle.wait()
        assert [s.session_id for s in await made.list_sessions()] == [handle.session_id]


async def test_a_session_of_another_living_runtime_is_refused(home: Home, project: Path) -> None:
    async with runtime(home, project, [Hangs()]) as one, runtime(home, project, ["mine"]) as two:
        handle = await one.start("hello", session_id="s1")
        with pytest.raises(StorageError) as caught:
            await two.start("hello", session_id="s1")
        assert caught.value.code is ErrorCode.SESSION_ACTIVE
        await handle.cancel()
        assert (await ask(two)).result_text == "mine"


async def test_closing_twice_and_with_a_running_run_leaves_it_cancelled(
    home: Home, project: Path
) -> None:
    made = runtime(home, project, [Hangs(text="half")])
    async with made:
        handle = await made.start("hello", session_id="s1")
        async for event in handle.events():
            if event.event_type is EventType.MODEL_TEXT_DELTA:
                break
    await made.close()
    assert handle.status is RunStatus.CANCELLED


async def test_a_close_that_is_cancelled_still_ends_the_work_beside_the_runs(
    home: Home, project: Path
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def insist(arguments: dict[str, Any], context: Any) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.5)
        raise AssertionError("nothing ends this wait but a cancellation")

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    made = runtime(home, project, [calls("insist"), "never"])
    definition = ToolDefinition(
        name="insist",
        description="insists",
        input_schema={"type": "object"},
        permission=ToolPermission.READONLY,
    )
    made.register_tool(definition, insist)
    async with made:
        await made.start("hello", session_id="s1")
        await begun.wait()
        runs = (await made._home.services()).runs
        runs.jobs.start("s1", background(), name="idle", then=lambda: None, is_patient=True)
        closing = asyncio.create_task(made.close())
        await asyncio.sleep(0.1)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert ended.is_set()


async def test_first_calls_that_come_at_once_share_one_opening(home: Home, project: Path) -> None:
    made = runtime(home, project, ["a", "b", "c"])
    handles = await asyncio.gather(*(made.start("hello", session_id="s1") for _ in range(3)))
    assert [await handle.wait() for handle in handles] == [RunStatus.COMPLETED] * 3
    await made.close()


async def test_a_closed_runtime_says_so_until_it_is_entered_again(
    home: Home, project: Path
) -> None:
    made = runtime(home, project, ["one", "two"])
    async with made:
        await ask(made)
    with pytest.raises(AgentCoreError, match="closed") as caught:
        await made.start("more")
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    async with made:
        assert (await ask(made)).result_text == "two"


@pytest.mark.parametrize(
    "message",
    [
        None,
        7,
        UserMessage(content=[ToolCallBlock(tool_call_id="call_1", name="code.list_dir")]),
        UserMessage(content=[ToolResultBlock(tool_call_id="call_1")]),
        UserMessage(content=[ReasoningBlock(text="hm")]),
    ],
    ids=repr,
)
async def test_what_a_user_cannot_say_is_refused_before_there_is_a_session(
    home: Home, project: Path, message: Any
) -> None:
    async with runtime(home, project, ["never"]) as made:
        with pytest.raises(AgentCoreError) as caught:
            await made.start(message)
        assert caught.value.code is ErrorCode.VALIDATION_ERROR
        assert await made.list_sessions() == []


async def test_a_duplicate_tool_is_refused(home: Home, project: Path) -> None:
    async def nothing(arguments: dict[str, Any], context: Any) -> None:
        pass

    made = runtime(home, project)
    definition = ToolDefinition(name="mine", description="does nothing")
    made.register_tool(definition, nothing)
    with pytest.raises(ConfigError):
        made.register_tool(definition, nothing)


async def test_many_sessions_at_once_keep_apart(home: Home, project: Path) -> None:
    def echo(request: Any) -> Says:
        return Says(text=request.messages[-1].content[0].text)

    async with runtime(home, project, ScriptedProvider(echo)) as made:
        handles = [await made.start(f"message {n}", session_id=f"s{n}") for n in range(50)]
        await asyncio.gather(*(handle.wait() for handle in handles))
    assert [handle.result_text for handle in handles] == [f"message {n}" for n in range(50)]


async def _active_path(made: AgentRuntime, session_id: str = "s1") -> list[Node]:
    (session,) = [s for s in await made.list_sessions() if s.session_id == session_id]
    return await made.get_node_path(session.active_node_id) if session.active_node_id else []


@pytest.mark.parametrize("message", ["", " \n", UserMessage(content=[]), UserMessage(content="\t")])
async def test_a_message_that_says_nothing_is_refused_before_anything_is_stored(
    home: Home, project: Path, message: str | UserMessage
) -> None:
    provider = ScriptedProvider(["never asked"])
    async with runtime(home, project, provider) as made:
        with pytest.raises(AgentCoreError, match="the message is empty") as refused:
            await made.start(message, session_id="s1")
        assert await made.list_sessions() == []
    assert refused.value.code is ErrorCode.VALIDATION_ERROR
    assert provider.requests == []


async def test_what_a_run_leaves_can_be_written_as_json_whatever_text_it_met(
    home: Home, project: Path
) -> None:
    odd = Path(os.fsdecode(os.fsencode(project / "caf") + b"\xe9"))
    odd.mkdir()
    (odd / "AGENTS.md").write_text("Be kind.", encoding="utf-8")
    message = UserMessage(content="a\ud800b", metadata={"from": "\udfff"})
    script = [calls("no\ud800tool", x=1), calls("code.list_dir", path="."), "done"]
    provider = ScriptedProvider(script)
    async with runtime(home, odd, provider) as made:
        handle = await made.start(message, session_id="s1")
        shown = await collect(handle, debug=True)
        replay = await made.replay_session("s1")
    assert handle.status is RunStatus.COMPLETED
    replay.model_dump_json().encode()
    for event in shown:
        event.model_dump_json().encode()
    for request in provider.requests:
        request.model_dump_json().encode()
    assert replay.nodes[0].text == "a\ufffdb"
    assert replay.nodes[0].metadata["from"] == "\ufffd"
