"""Conversations as values: given to a run, imported as a session, and given back."""

import asyncio
import base64
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

import summarising
from agent_core import (
    AgentCoreError,
    AgentRuntime,
    JsonBlock,
    ModelRequest,
    Role,
    RunStatus,
    StorageError,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    UserMessage,
    Worker,
)
from agent_core.cli.export.lines import session_lines
from agent_core.context.given_messages import read_history
from agent_core.runtime.conversations import MessageFormat
from agent_core.testing import Hangs, ScriptedProvider, calls
from agent_core.types import NodeType, ReasoningBlock
from isolation import Home
from memories import WISH, purpose, remembers, split, user_ids
from runtimes import CONFIG, collect, runtime
from sweeps import kept, sampled

KEEP_LITTLE = """
[memory]
enabled = false

[compact]
keep_recent_tokens = 400
"""


def png() -> str:
    """The smallest picture that is whole."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return len(data).to_bytes(4) + body + zlib.crc32(body).to_bytes(4)

    head = (1).to_bytes(4) * 2 + b"\x08\0\0\0\0"
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(b"\0\0")), chunk(b"IEND", b"")]
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


def call(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments, separators=(",", ":"))}
    return {"id": call_id, "type": "function", "function": function}


OPENAI: list[dict[str, Any]] = [
    {"role": "system", "content": "Answer in one sentence."},
    {"role": "developer", "content": [{"type": "text", "text": "Metric units."}]},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "Which city is this?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png()}"}},
        ],
    },
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [call("c1", "find", place="a"), call("c2", "mcp__map__at", place="b")],
    },
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "Oslo"}]},
    {"role": "tool", "tool_call_id": "c1", "content": "Rome"},
    {"role": "assistant", "content": "Rome or Oslo."},
]

ANTHROPIC: list[dict[str, Any]] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "Which city is this?"},
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": png()},
            },
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Look at the map.", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "aGlkZGVu"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"place": "a"}},
            {"type": "tool_use", "id": "toolu_2", "name": "find", "input": {"place": "b"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rome"},
            {
                "type": "tool_result",
                "tool_use_id": "toolu_2",
                "content": "no map",
                "is_error": True,
            },
        ],
    },
    {"role": "assistant", "content": "Rome."},
]


def seen(request: ModelRequest) -> list[tuple[Role, str]]:
    return [(message.role, said(message.content)) for message in request.messages]


def said(content: Sequence[Any]) -> str:
    """Texts, calls and results of a message in a line."""
    parts: list[str] = []
    for block in content:
        match block:
            case TextBlock(text=text):
                parts.append(text)
            case JsonBlock(data=data):
                parts.append(json.dumps(data, separators=(",", ":")))
            case ToolCallBlock(name=name, arguments=arguments):
                parts.append(f"{name}({', '.join(map(str, arguments.values()))})")
            case ToolResultBlock(is_error=is_error, content=result):
                parts.append(f"{'!' if is_error else '='}{said(result)}")
            case _:
                parts.append(f"[{block.type}]")
    return " ".join(parts)


async def test_a_run_continues_a_conversation_of_openai(home: Home, project: Path) -> None:
    model = ScriptedProvider(["Rome."])
    async with runtime(home, project, model) as made:
        result = await made.run("Sure?", history=OPENAI, instructions="Be kind.")
    (request,) = model.requests
    assert seen(request) == [
        (Role.USER, "Which city is this? [image]"),
        (Role.ASSISTANT, "I look. find(a) mcp.map.at(b)"),
        (Role.TOOL, "=Rome =Oslo"),  # in the order of the calls
        (Role.ASSISTANT, "Rome or Oslo."),
        (Role.USER, "Sure?"),
    ]
    own = [block.content for block in request.system if block.source == "caller"]
    assert own == ["Answer in one sentence.\n\nMetric units.\n\nBe kind."]
    assert result.text == "Rome."


async def test_a_session_that_began_so_continues_in_another_process(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, ["Rome."]) as made:
        first = await made.run("Sure?", history=OPENAI)
    model = ScriptedProvider(["Yes."])
    async with runtime(home, project, model) as made:
        await made.run("Really?", session_id=first.session_id)
        (replayed,) = (await made.list_sessions(),)
        assert replayed[0].title == "Sure?"
        undone = await made.undo(first.session_id)
        assert said((await made.get_node_path(undone.node_id or ""))[-1].content) == "Rome."
        undone = await made.undo(first.session_id)
        assert said((await made.get_node_path(undone.node_id or ""))[-1].content) == "Rome or Oslo."
        assert (await made.undo(first.session_id)).node_id is None  # the message that was given
    assert [text for _, text in seen(model.requests[0])][-3:] == ["Sure?", "Rome.", "Really?"]


@pytest.mark.parametrize("form", kept(["soong", "openai", "anthropic"], "soong"))
async def test_what_a_session_gives_back_begins_another_one(
    form: Any, home: Home, project: Path
) -> None:
    script = [calls("code.list_dir", path="."), "Empty.", "Again.", "Again."]
    model = ScriptedProvider(script)
    async with runtime(home, project, model) as made:
        result = await made.run("What is here?", history=OPENAI)
        value = await made.session(result.session_id).messages(form)
        value = json.loads(json.dumps(value))
        again = await made.run("And now?", history=value)
        once_more = await made.session(again.session_id).messages(form)
    assert [_plain(each) for each in once_more[: len(value)]] == [_plain(each) for each in value]
    before, after = seen(model.requests[1]), seen(model.requests[2])
    assert after[: len(before)] == before
    assert [text for _, text in after[len(before) :]] == ["Empty.", "And now?"]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what is fresh in every session."""
    fresh = ("node_id", "session_id", "parent_id", "agent_id", "run_id", "node_seq")
    return {key: value for key, value in message.items() if key not in fresh}


async def test_round_trips_change_nothing(home: Home, project: Path) -> None:
    async with runtime(home, project) as made:
        await made.import_session(OPENAI, session_id="openai")
        await made.import_session(ANTHROPIC, session_id="anthropic")
        given = await made.session("openai").messages("openai")
        assert given[0] == {
            "role": "system",
            "content": "Answer in one sentence.\n\nMetric units.",
        }
        ordered = [*OPENAI[2:4], OPENAI[5], {**OPENAI[4], "content": "Oslo"}, OPENAI[6]]
        assert given[1:] == ordered
        assert await made.session("anthropic").messages("anthropic") == ANTHROPIC
        nodes = await made.session("anthropic").messages()
        await made.import_session(nodes, session_id="copy")
        copies = await made.session("copy").messages()
        assert list(map(_plain, copies)) == list(map(_plain, nodes))


async def test_the_services_own_packages_take_what_is_given_back(home: Home, project: Path) -> None:
    types: Any = pytest.importorskip("openai.types.chat")
    message = TypeAdapter[Any](types.ChatCompletionMessageParam)
    async with runtime(home, project, [calls("code.list_dir", path="."), "Empty."]) as made:
        result = await made.run("What is here?", history=OPENAI)
        given = await made.session(result.session_id).messages("openai")
    assert [message.validate_python(each)["role"] for each in given] == [
        *("user", "assistant", "tool", "tool", "assistant"),
        *("user", "assistant", "tool", "assistant"),
    ]
    reply = types.ChatCompletionMessage(
        role="assistant",
        content=None,
        tool_calls=[types.ChatCompletionMessageFunctionToolCall(**call("c9", "find", place="c"))],
    )
    history = read_history([{"role": "user", "content": "Where?"}, reply])
    assert [said(message.content) for message in history.messages] == ["Where?", "find(c)", "!"]


async def test_anthropics_package_takes_what_is_given_back(home: Home, project: Path) -> None:
    why = "the package anthropic is not installed"
    types: Any = pytest.importorskip("anthropic.types", reason=why)
    message = TypeAdapter[Any](types.MessageParam)
    async with runtime(home, project, [calls("code.list_dir", path="."), "Empty."]) as made:
        result = await made.run("What is here?", history=ANTHROPIC)
        given = await made.session(result.session_id).messages("anthropic")
    assert len([message.validate_python(each) for each in given]) == 8
    reply = types.Message(
        id="msg_1",
        content=[
            types.ThinkingBlock(type="thinking", thinking="Look.", signature="c2ln"),
            types.ToolUseBlock(type="tool_use", id="t", name="find", input={"place": "c"}),
        ],
        model="claude",
        role="assistant",
        type="message",
        stop_reason="tool_use",
        stop_sequence=None,
        usage=types.Usage(input_tokens=1, output_tokens=1),
    )
    history = read_history([{"role": "user", "content": "Where?"}, reply])
    assert [said(each.content) for each in history.messages] == [
        *("Where?", "[reasoning] find(c)", "!")
    ]


async def test_thoughts_go_back_to_the_service_that_signed_them(home: Home, project: Path) -> None:
    model = ScriptedProvider(["Rome."])
    async with runtime(home, project, model) as made:
        await made.run("Sure?", history=ANTHROPIC)
    thought = model.requests[0].messages[1].content[0]
    assert isinstance(thought, ReasoningBlock)
    assert (thought.text, thought.signature) == ("Look at the map.", "c2ln")
    assert thought.metadata["provider"] == "anthropic"


async def test_calls_without_a_result_are_answered(home: Home, project: Path) -> None:
    model = ScriptedProvider(["I look again."])
    history = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "tool_calls": [call("c", "find", n=1), call("d", "find", n=2)]},
        {"role": "tool", "tool_call_id": "d", "content": "Oslo"},
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "tool_calls": [call("c", "find", n=3)]},  # an id once more
    ]
    async with runtime(home, project, model) as made:
        result = await made.run("Go on.", history=history)
        given = await made.session(result.session_id).messages()
    assert [text for _, text in seen(model.requests[0])] == [
        *("Where?", "find(1) find(2)", "! =Oslo", "Well?", "find(3)", "!", "Go on.")
    ]
    ids = [block["tool_call_id"] for each in given for block in each["content"] if "name" in block]
    assert ids == ["c", "d", "c-2"]
    answers = [each for each in given if each["metadata"].get("reason")]
    assert [each["metadata"]["reason"] for each in answers] == ["interrupted_effect_unknown"] * 2
    assert "its effect is unknown" in answers[0]["content"][0]["error"]["message"]


def test_items_of_responses_are_messages() -> None:
    history = read_history(
        [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "I look."}],
            },
            {"type": "function_call", "call_id": "a", "name": "find", "arguments": '{"n": 1}'},
            {"type": "function_call", "call_id": "b", "name": "find", "arguments": "{n"},
            {"type": "function_call_output", "call_id": "a", "output": "Rome"},
            {"type": "function_call_output", "call_id": "b", "output": "bad"},
        ]
    )
    assert [said(message.content) for message in history.messages] == [
        *("hi", "[reasoning] I look. find(1) find()", "=Rome", "=bad")
    ]
    invalid = history.messages[1].content[-1]
    assert isinstance(invalid, ToolCallBlock)
    assert invalid.metadata["invalid_arguments"] == "{n"


async def test_objects_of_ours_are_messages(home: Home, project: Path) -> None:
    model = ScriptedProvider([calls("code.list_dir", path="."), "Empty.", "Yes."])
    async with runtime(home, project, model) as made:
        first = await made.run("What is here?")
        session = (await made.replay_session(first.session_id)).session
        nodes = await made.get_node_path(session.active_node_id or "")
        await made.run("Sure?", history=[UserMessage(content="Hello."), *nodes])
    texts = [text for _, text in seen(model.requests[2])]
    assert (texts[0], *texts[-2:]) == ("Hello.", "Empty.", "Sure?")


async def test_a_summary_keeps_its_place(home: Home, project: Path) -> None:
    """In our form a conversation that was summarised is summarised; in the others it is whole."""
    model = summarising.model()
    async with runtime(home, project, model, config=f"{CONFIG}\n{KEEP_LITTLE}") as made:
        session = made.session()
        for number in range(4):
            await session.run(f"question {number} {'x' * 4000}")
        handle = await made.compact_session(session.session_id)
        await handle.result()
        value = await session.messages()
        assert any(each["node_type"] == NodeType.COMPACTION for each in value)
        await made.run("And?", history=value)
        assert "what was said before" in str(seen(model.requests[-1])[0])
        assert len(model.requests[-1].messages) < 8
        await made.run("And?", history=await session.messages("openai"))
        assert len(model.requests[-1].messages) == 9
        assert "what was said before" not in str(seen(model.requests[-1]))


WRONG: dict[str, tuple[Any, int, str]] = {
    "no message": ([{"role": "user", "content": "hi"}, 7], 1, "of the type int"),
    "no role": ([{"content": "hi"}], 0, "no role; there are system"),
    "another role": ([{"role": "human", "content": "hi"}], 0, "the role 'human'"),
    "former role": ([{"role": "function", "name": "f", "content": "x"}], 0, "tool_call_id"),
    "parts": ([{"id": "m", "parts": []}], 0, "convert it to OpenAI's messages"),
    "no call": ([{"role": "tool", "tool_call_id": "c", "content": "x"}], 0, "no message before"),
    "no id": ([{"role": "tool", "content": "x"}], 0, "lacks tool_call_id"),
    "an address": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b"}}]}],
        0,
        "data:…;base64",
    ),
    "no picture": (
        [
            {"role": "user", "content": "hi"},
            {
                "role": "user",
                "content": [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "?"},
                    }
                ],
            },
        ],
        1,
        "not base64",
    ),
    "a sound": ([{"role": "user", "content": [{"type": "input_audio"}]}], 0, "transcript"),
    "another block": ([{"role": "user", "content": [{"type": "video"}]}], 0, "known are"),
    "a call of the user": (
        [
            {
                "role": "user",
                "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}],
            }
        ],
        0,
        "which a model makes",
    ),
    "two results": (
        [
            {"role": "assistant", "tool_calls": [call("c", "f")]},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
            {"role": "tool", "tool_call_id": "c", "content": "y"},
        ],
        2,
        "another result",
    ),
    "two calls of one id": (
        [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "tool_calls": [call("c", "f"), call("c", "g")]},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ],
        1,
        "the second call with the id 'c'",
    ),
    "two calls of one id in items": (
        [
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        ],
        1,
        "the second call with the id 'c'",
    ),
    "another tool": (
        [{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {}}]}],
        0,
        "'custom'",
    ),
    "no text": ([{"role": "user", "content": [{"type": "text"}]}], 0, "lacks text"),
    "no block of ours": (
        [{"role": "user", "content": [{"type": "json"}]}],
        0,
        "a json that is not whole: data",
    ),
}


@pytest.mark.parametrize("name", sampled(WRONG, keep=3))
async def test_what_cannot_be_read_is_named_with_its_place(
    name: str, home: Home, project: Path
) -> None:
    history, index, words = WRONG[name]
    async with runtime(home, project) as made:
        for refused in (made.run("hi", history=history), made.import_session(history)):
            with pytest.raises(AgentCoreError, match=words.replace("(", r"\(")) as caught:
                await refused
            assert caught.value.code == "validation_error"
            assert caught.value.details.get("index", -1) == index
        assert await made.list_sessions() == []


async def test_one_message_is_no_conversation(home: Home, project: Path) -> None:
    async with runtime(home, project) as made:
        with pytest.raises(AgentCoreError, match="history must be a list of messages, not a str"):
            await made.run("hi", history="hello")
        with pytest.raises(
            AgentCoreError, match="source must be a text, a path or a list, not a dict"
        ):
            await made.import_session({"role": "user", "content": "hi"})  # type: ignore[arg-type]
        with pytest.raises(AgentCoreError) as caught:
            await made.import_session(project / "missing.jsonl")
        assert caught.value.code == "file_not_found"
        with pytest.raises(AgentCoreError, match=r"cannot be read: [A-Z][a-z ]+$"):
            await made.import_session(project)
        with pytest.raises(AgentCoreError, match="title must be a text or None, not an int"):
            await made.import_session(OPENAI, title=5)  # type: ignore[arg-type]
        assert await made.list_sessions() == []


async def test_a_conversation_never_replaces_a_session(home: Home, project: Path) -> None:
    async with runtime(home, project, ["One.", "Two."]) as made:
        await made.run("hi", session_id="s")
        for refused in (
            made.run("hi", session_id="s", history=OPENAI),
            made.import_session(OPENAI, session_id="s"),
        ):
            with pytest.raises(StorageError) as caught:
                await refused
            assert caught.value.details["reason"] == "session_exists"
        results = await asyncio.gather(
            *(made.import_session(OPENAI, session_id="t") for _ in range(5)),
            return_exceptions=True,
        )
        assert sum(isinstance(each, StorageError) for each in results) == 4
        assert len(await made.session("s").messages()) == 2
        assert len(await made.list_sessions()) == 2


async def test_a_run_that_waits_for_its_turn_keeps_its_history(home: Home, project: Path) -> None:
    model = ScriptedProvider(
        lambda request: Hangs() if seen(request)[-1][1] == "hi" else "Rome.",
    )
    config = f"{CONFIG}\n[runtime]\nmax_concurrent_runs = 1\n"
    async with runtime(home, project, model, config=config) as made:
        first = await made.start("hi")
        second = await made.start("Sure?", history=ANTHROPIC)
        await first.cancel()
        assert (await second.result()).text == "Rome."
    assert seen(model.requests[-1])[-2:] == [(Role.ASSISTANT, "Rome."), (Role.USER, "Sure?")]


async def test_a_worker_has_the_history_of_a_run(
    home: Home, project: Path, database_url: str
) -> None:
    model = ScriptedProvider(["Rome.", "Rome, again."])
    home.write_config(CONFIG)
    async with AgentRuntime(project, model=model, database_url=database_url) as made:
        result = await made.run("Sure?", history=ANTHROPIC, here=True)
        assert len(await made.session(result.session_id).messages("anthropic")) == 6
        record = await made.import_session(OPENAI, session_id="imported")
        assert record.place is not None
        queued = await made.start("Really?", history=ANTHROPIC)
        assert queued.is_for_workers
        with pytest.raises(StorageError, match="its own history"):
            await made.start("Really?", queued.session_id, history=ANTHROPIC)
        worker = Worker(model=model, home_dir=home.path, database_url=database_url)
        working = asyncio.create_task(worker.run())
        assert await queued.wait() is RunStatus.COMPLETED
        worker.drain()
        await working
    for request, said in zip(model.requests, ("Sure?", "Really?"), strict=True):
        assert seen(request)[-2:] == [(Role.ASSISTANT, "Rome."), (Role.USER, said)]


async def test_an_export_becomes_a_session_again(home: Home, project: Path, tmp_path: Path) -> None:
    script = [calls("code.list_dir", path="."), "Empty.", "Other.", "Yes."]
    model = ScriptedProvider(script)
    file = tmp_path / "session.jsonl"
    async with runtime(home, project, model) as made:
        await made.import_session(OPENAI[:3], session_id="s")
        await made.run("What is here?", session_id="s")
        await made.run("Another branch", session_id="s")
        await made.undo("s")
        await made.rename_session("s", "Cities")
        lines = [line async for line in session_lines(made, "s", clean=str)]
        await asyncio.to_thread(file.write_text, "\n".join(lines), encoding="utf-8")
        before = await made.session("s").messages()
    async with AgentRuntime(project, model=model, persist=False) as other:
        imported = await other.import_session(file)
        assert imported.title == "Cities"
        again = await other.import_session([json.loads(line) for line in lines], title="Again")
        assert (again.title, again.session_id == imported.session_id) == ("Again", False)
        after = await other.session(imported.session_id).messages()
        assert list(map(_plain, after)) == list(map(_plain, before))
        await other.run("Sure?", session_id=imported.session_id)
    request = model.requests[-1]
    assert "Answer in one sentence." in str([block.content for block in request.system])
    assert [text for _, text in seen(request)][-2:] == ["Empty.", "Sure?"]


async def test_instructions_of_an_imported_session_stay_with_it(home: Home, project: Path) -> None:
    model = ScriptedProvider(["One.", "Two.", "Three."])
    async with runtime(home, project, model) as made:
        await made.import_session(OPENAI, session_id="s")
        await made.run("hi", session_id="s", instructions="Be kind.")
    async with runtime(home, project, model) as made:
        await made.run("hi", session_id="s")
        forked = await made.session("s").fork_at(
            (await made.session("s").messages())[-1]["node_id"]
        )
        await forked.run("hi")
    for request, own in zip(model.requests, (["Be kind."], [], []), strict=True):
        texts = [block.content for block in request.system if block.source == "caller"]
        assert texts == ["Answer in one sentence.\n\nMetric units.", *own]


async def test_a_conversation_branches_at_a_message(home: Home, project: Path) -> None:
    model = ScriptedProvider(["One.", "Two.", "Three."])
    async with runtime(home, project, model) as made:
        session = made.session()
        await session.run("first")
        await session.run("second")
        place = (await session.messages())[1]["node_id"]
        forked = await session.fork_at(place)
        await forked.run("other")
        assert [text for _, text in seen(model.requests[-1])] == ["first", "One.", "other"]
        assert len(await session.messages()) == 4
        with pytest.raises(StorageError, match="no node"):
            await session.fork_at("node_0")
        with pytest.raises(AgentCoreError, match="node_id must be a text, not None"):
            await session.fork_at(None)  # type: ignore[arg-type]
        with pytest.raises(AgentCoreError, match="there are: soong, openai, anthropic"):
            await session.messages("gemini")  # type: ignore[arg-type]
        with pytest.raises(StorageError, match="no session"):
            await made.session("unknown").messages()


async def test_a_service_without_a_store_has_its_state_in_the_messages(project: Path) -> None:
    """Each request brings the conversation, and takes it away again; nothing stays behind."""
    model = ScriptedProvider(["One.", "Two.", "Three."])
    conversation: list[dict[str, Any]] = []
    async with AgentRuntime(project, model=model, persist=False) as made:
        for text in ("first", "second", "third"):
            result = await made.run(text, history=conversation)
            given = await made.session(result.session_id).messages("openai")
            conversation = json.loads(json.dumps(given))
            await made.delete_session(result.session_id)
        assert await made.list_sessions() == []
    assert [each["content"] for each in conversation] == [
        *("first", "One.", "second", "Two.", "third", "Three.")
    ]


async def test_messages_of_a_conversation_are_events_of_its_session(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, ["Rome."]) as made:
        handle = await made.start("Sure?", history=ANTHROPIC)
        shown = await collect(handle)
        replay = await made.replay_session(handle.session_id)
    created = [event for event in replay.events if event.event_type == "message_created"]
    assert len(created) == len(replay.nodes) - 1 == 6  # the answer has an event of its own
    assert [event.seq for event in replay.events] == [*range(1, len(replay.events) + 1)]
    assert min(event.run_seq for event in shown if event.run_seq) == 1


@pytest.mark.sweep
async def test_what_was_given_is_not_searched_for_memories(home: Home, project: Path) -> None:
    """A client that brings its conversation with each request would have it searched each time."""
    history = [{"role": "user", "content": WISH}, {"role": "assistant", "content": "Gladly."}]
    model = split("Yes.", memory_extraction=remembers)
    async with runtime(home, project, model) as made:
        await made.run("Did you?", history=history)
        await made.import_session(history, session_id="imported")
        await made.run("Did you?", session_id="imported")
    assert [purpose(request) for request in model.requests] == ["run", "run"]
    async with runtime(home, project, model) as made:
        await made.run(WISH, session_id="imported")
    asked = [request for request in model.requests if purpose(request) == "memory_extraction"]
    assert len(asked) == 1
    assert len(user_ids(asked[0])) == 2  # what was said since, not what was given


@pytest.mark.parametrize("form", kept(["soong", "openai", "anthropic"], "soong"))
@pytest.mark.parametrize("persist", [True, False])
def test_a_program_of_threads_reads_its_conversation(
    home: Home, project: Path, form: MessageFormat, persist: bool
) -> None:
    model = ScriptedProvider(["blue", "again"])
    made = AgentRuntime(project, home_dir=home.path, model=model, persist=persist)
    made.run_sync("Which color?", "s1")
    value = made.session("s1").messages_sync(form)
    assert "blue" in str(value[-1])
    made.run_sync("And?", history=value)
    said = [str(message.content) for message in model.requests[-1].messages]
    assert "Which color?" in said[-3]
    assert "blue" in said[-2]
    with made:
        assert made.session("s1").messages_sync(form) == value
    with pytest.raises(StorageError) as caught:
        made.session("none").messages_sync(form)
    assert caught.value.code == "session_not_found"


async def test_reading_that_would_block_an_event_loop_is_refused(home: Home, project: Path) -> None:
    async with runtime(home, project) as made:
        with pytest.raises(AgentCoreError, match=r"messages_sync .*await session.messages\(\)"):
            made.session("s1").messages_sync()
        with pytest.raises(AgentCoreError) as caught:
            await asyncio.to_thread(made.session("s1").messages_sync)
        assert caught.value.code == "session_not_found"
