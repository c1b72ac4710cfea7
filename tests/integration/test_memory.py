"""Memory in whole runtimes: looked through after runs, written as files, recalled in runs."""

import asyncio
import json
import re
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest

from agent_core import (
    AgentRuntime,
    ErrorCode,
    EventType,
    ModelConfig,
    ModelRequest,
    RunOptions,
    RunStatus,
)
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.scripted import Fails, Hangs, calls
from agent_core.runtime import background, memory_service
from agent_core.types import NodeType, utc_now
from isolation import Home
from memories import (
    OUTCOMES,
    WISH,
    Reply,
    answer,
    entry,
    files,
    purpose,
    remembers,
    said,
    split,
    told,
    until_scanned,
    user_ids,
)
from runtimes import CONFIG, ask, runtime
from sweeps import kept, sampled


async def test_a_wish_is_remembered_as_a_file_and_stands_in_the_next_prompt(
    home: Home, project: Path
) -> None:
    provider = split("Gladly.", memory_extraction=remembers)
    async with runtime(home, project, provider) as made:
        await ask(made, WISH)
        (event,) = await until_scanned(made)
        await ask(made, "Hello again", "s2")
        session = (await made.replay_session("s1")).session
    assert event.event_type is EventType.MEMORY_EXTRACTION_COMPLETED
    assert (event.agent_id, event.run_id) == (None, None)
    assert event.payload["reason"] == "explicit"
    assert event.payload["usage"]["total_tokens"] == 9
    (path,) = files(home)
    assert re.fullmatch(r"short-answers-\d{8}-mem_\w+\.md", path.name)
    assert path.parent.name == "user"
    text = path.read_text(encoding="utf-8")
    assert 'summary: "Likes short answers"' in text
    assert 'source_session_id: "s1"' in text
    assert text.endswith("---\n\nThe user wants short answers.\n")
    catalog = (home.path / "memory" / "MEMORY.md").read_text(encoding="utf-8")
    assert f"(user/{path.name}) user: Likes short answers [style]" in catalog
    last = [r for r in provider.requests if purpose(r) == "run"][-1]
    (block,) = [b for b in last.system if b.block_id == "memory_catalog"]
    assert "Likes short answers" in block.content
    assert session.metadata["background_usage"]["memory_extraction"]["total_tokens"] == 9


@pytest.mark.parametrize("form", ["string", "object"])
async def test_what_was_said_to_a_run_with_its_own_model_is_read_by_that_model_alone(
    home: Home, project: Path, form: str
) -> None:
    configured = split("Not mine.")
    mine = split("Gladly.", memory_extraction=remembers)
    made = runtime(home, project, configured)
    made.register_provider("mine", lambda _: mine)
    async with made:
        handle = await made.start(
            WISH, "s1", options=RunOptions(model="mine:own" if form == "string" else mine)
        )
        await handle.wait()
        await until_scanned(made)
    assert [purpose(request) for request in mine.requests] == ["run", "memory_extraction"]
    assert configured.requests == []


async def test_each_model_reads_what_was_said_to_itself_where_a_session_has_had_several(
    home: Home, project: Path
) -> None:
    models = {name: split("Yes.", memory_extraction=answer()) for name in ("mine", "a", "b")}
    configured = split("Yes.", memory_extraction=answer())
    made = runtime(home, project, configured)
    made.register_provider("mine", lambda _: models["mine"])
    asked: list[tuple[str, RunOptions]] = [
        ("My dog is called Rex.", RunOptions(model=models["a"])),
        ("My cat is called Tom.", RunOptions()),
        ("My cow is called Moo.", RunOptions(model="mine:own")),
        ("My hen is called Amy.", RunOptions(model=models["b"])),
        ("My pig is called Sam.", RunOptions(model=models["b"])),
        ("Remember: I like tea.", RunOptions(model=models["a"])),
    ]
    async with made:
        for text, options in asked:
            await (await made.start(text, "s1", options=options)).wait()
        await until_scanned(made, 5)
    names = ("Rex", "Tom", "Moo", "Amy", "Sam", "tea")
    read = {
        name: [
            [word for word in names if word in said(request)]
            for request in model.requests
            if purpose(request) == "memory_extraction"
        ]
        for name, model in (*models.items(), ("configured", configured))
    }
    assert read == {
        "a": [["Rex"], ["Rex", "tea"]],
        "configured": [["Tom"]],
        "mine": [["Moo"]],
        "b": [["Amy", "Sam"]],
    }


async def test_m6_the_extraction_has_its_own_model_and_is_no_agent(
    home: Home, project: Path
) -> None:
    seen: list[str] = []
    config = CONFIG + '[memory]\nextract_model_profile = { name = "small" }\n'
    home.write_config(config)
    made = AgentRuntime(project_dir=project, home_dir=home.path)
    provider = split("Gladly.", memory_extraction=remembers)

    def factory(model: ModelConfig) -> ProviderAdapter:
        seen.append(model.name)
        return provider

    made.register_provider("custom", factory)
    async with made:
        await ask(made, WISH)
        await until_scanned(made)
        page = await made.replay_session("s1")
    (request,) = [r for r in provider.requests if purpose(r) == "memory_extraction"]
    assert request.model == "small"
    assert seen == ["script", "small"]
    assert request.tools == []
    assert len(page.agents) == len(page.runs) == 1
    assert "run_id" not in request.metadata
    assert '"$ref"' not in request.system[0].content


@pytest.mark.parametrize(
    ("config", "texts", "reason"),
    sampled(
        [
            ("extract_every_messages = 2", ["one", "two"], "message_backlog"),
            ("extract_every_tokens = 10", ["word " * 20], "token_backlog"),
            ("idle_seconds = 1", ["one"], "idle"),
        ],
        keep=1,
    ),
)
async def test_a_session_is_looked_through_for_other_reasons_too(
    home: Home, project: Path, config: str, texts: list[str], reason: str
) -> None:
    provider = split("Yes.", memory_extraction=answer(explicit=False))
    async with runtime(home, project, provider, config=f"{CONFIG}[memory]\n{config}\n") as made:
        for text in texts:
            await ask(made, text)
        (event,) = await until_scanned(made)
    assert event.payload["reason"] == reason
    assert files(home) == []


@pytest.mark.sweep
async def test_a_new_run_cancels_the_wait_for_idleness(home: Home, project: Path) -> None:
    provider = split("Yes.", memory_extraction=answer())
    config = CONFIG + "[memory]\nidle_seconds = 1\n"
    async with runtime(home, project, provider, config=config) as made:
        for number in range(4):
            await ask(made, f"message {number}")
            await asyncio.sleep(0.4)
        assert await told(made, *OUTCOMES) == []
        (event,) = await until_scanned(made)
    assert event.payload["messages"] == 8


async def test_without_memory_nothing_is_scanned_listed_or_offered(
    home: Home, project: Path
) -> None:
    home.write("memory/MEMORY.md", "# Memory\n\n- [mem_1](user/x.md) user: x\n")
    provider = split("Yes.")
    config = CONFIG + "[memory]\nenabled = false\n"
    async with runtime(home, project, provider, config=config) as made:
        await ask(made, WISH)
    (request,) = provider.requests
    assert not [b for b in request.system if "memory" in b.block_id]
    assert "internal.recall_memory" not in {tool.name for tool in request.tools}


@pytest.mark.parametrize(
    "broken",
    kept(
        [
            "no json",
            answer(entry([])),
            answer(entry(["node_elsewhere"])),
            answer(entry(["node_elsewhere"], decision="ignore")),
            json.dumps({"explicit": True, "memories": [], "more": 1}),
        ],
        "no json",
        answer(entry([])),
    ),
)
async def test_m10_an_answer_without_provenance_writes_nothing_and_is_asked_for_again(
    home: Home, project: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = split("Yes.", memory_extraction=broken)
    async with runtime(home, project, provider) as made:
        await ask(made, WISH)
        (event,) = await until_scanned(made)
        session = (await made.replay_session("s1")).session
        assert event.event_type is EventType.MEMORY_EXTRACTION_FAILED
        assert event.payload["error"]["code"] == ErrorCode.SCHEMA_ERROR
        assert "memory_cursor" not in session.metadata
        later(monkeypatch, minutes=1)
        await ask(made, "and now something else")
        await until_scanned(made, 2)
    assert files(home) == []
    asked = [r for r in provider.requests if purpose(r) == "memory_extraction"]
    assert said(asked[1]) == said(asked[0])


def later(monkeypatch: pytest.MonkeyPatch, *, minutes: int) -> None:
    """Let time pass for the pauses before what has failed is tried again."""
    monkeypatch.setattr(background, "utc_now", lambda: utc_now() + timedelta(minutes=minutes))


async def test_what_fails_is_tried_with_pauses_and_does_not_grow_and_a_new_wish_does_not_wait(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = True

    def extraction(request: ModelRequest) -> Reply:
        if refuses:
            return "no json"
        text = re.findall(r"\[user node_\w+\]\n(.*)", said(request))[-1]
        return answer(entry(user_ids(request)[-1:], summary=text, content=text))

    provider = split("Yes.", memory_extraction=extraction)

    def asked() -> list[list[str]]:
        requests = [r for r in provider.requests if purpose(r) == "memory_extraction"]
        return [re.findall(r"\[user node_\w+\]\n(.*)", said(r)) for r in requests]

    tea, cake, rain = (f"Remember that I like {what}." for what in ("tea", "cake", "rain"))
    async with runtime(home, project, provider) as made:
        await ask(made, tea)
        await until_scanned(made)
        for number in range(10):
            await ask(made, f"message {number}")
        (wish,) = await made.finish_wishes()
        assert "not JSON" in wish.error
        assert asked() == [[tea]]
        later(monkeypatch, minutes=1)
        await ask(made, "once more")
        await until_scanned(made, 2)
        assert asked() == [[tea]] * 2
        between = [*(f"message {number}" for number in range(10)), "once more"]
        await ask(made, cake)
        await until_scanned(made, 3)
        assert asked()[2:] == [[*between, cake]]
        refuses = False
        await ask(made, rain)
        await until_scanned(made, 6)
        assert asked()[3:] == [[rain], [tea], [*between, cake]]
        done = [summary for wish in await made.finish_wishes() for summary in wish.remembered]
        assert done == [rain, tea, cake]
        await ask(made, "Remember that I like fog.")
        await until_scanned(made, 7)
        session = (await made.replay_session("s1")).session
    assert asked()[6:] == [["Remember that I like fog."]]
    assert not {"memory_spans", "memory_pause"} & session.metadata.keys()
    assert len(files(home)) == 4


@pytest.mark.sweep
async def test_a_pause_outlives_the_process_and_whoever_comes_after_it_tries_again(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = split("Yes.", memory_extraction="no json")
    for text in (WISH, "something else", "and more"):
        async with runtime(home, project, provider) as made:
            await ask(made, text)
    assert len([r for r in provider.requests if purpose(r) == "memory_extraction"]) == 1
    later(monkeypatch, minutes=5)
    provider = split("Yes.", memory_extraction=remembers)
    async with runtime(home, project, provider) as made:
        await ask(made, "Hello", "s3")
        told = await made.finish_wishes()
        await ask(made, "Hello again", "s3")
    assert [(wish.session_id, wish.remembered) for wish in told] == [
        ("s1", ["Likes short answers"])
    ]
    assert len(files(home)) == 1


@pytest.mark.parametrize("is_interrupted", [True, False])
async def test_a_program_leaves_a_wish_when_it_is_interrupted_or_says_so(
    home: Home, project: Path, is_interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_service, "_WISH_WAIT_S", 10_000)
    stuck = split("Yes.", memory_extraction=Hangs())
    with pytest.raises(asyncio.CancelledError) if is_interrupted else nullcontext():
        async with runtime(home, project, stuck) as made:
            await ask(made, WISH)
            if is_interrupted:
                raise asyncio.CancelledError
            made.leave_wishes()
            assert await made.finish_wishes() == []
    assert files(home) == []
    async with runtime(home, project, split("Yes.", memory_extraction=remembers)) as made:
        await ask(made, "Hello", "s2")
    assert len(files(home)) == 1


async def test_a_plan_in_a_running_program_carries_out_no_wish_and_says_so(
    home: Home, project: Path
) -> None:
    provider = split("Yes.", memory_extraction=remembers)
    config = CONFIG + "[memory]\nidle_seconds = 1\n"
    async with runtime(home, project, provider, config=config) as made:
        for text in (WISH, "and how?"):
            await made.run(text, session_id="s1", permission_mode="plan")
        (left,) = await made.finish_wishes()
        assert (left.session_id, left.is_left, left.remembered) == ("s1", True, [])
        await ask(made, "Hello", "s2")
        await until_scanned(made, session_id="s2")  # s1 has been idle for longer
        assert await told(made, *OUTCOMES) == []
        await ask(made, "go on")
        await made.finish_wishes()
        (event,) = await told(made, *OUTCOMES)
    assert event.payload["reason"] == "explicit"


async def test_a_memory_is_forgotten_when_the_user_says_so(home: Home, project: Path) -> None:
    home.write("memory/user/tea.md", "---\nid: mem_7\nsummary: Drinks tea\n---\nGreen.\n")

    def forgets(request: ModelRequest) -> Reply:
        return answer(entry(user_ids(request), decision="forget", memory_id="[mem_7](user/tea.md)"))

    provider = split("Yes.", memory_extraction=forgets)
    async with runtime(home, project, provider) as made:
        await ask(made, "Forget that I drink tea.")
        (wish,) = await made.finish_wishes()
        await ask(made, "Hello")
    assert (wish.forgotten, wish.remembered, wish.error) == (["Drinks tea"], [], "")
    assert files(home) == []
    assert not [b for b in provider.requests[-1].system if b.block_id == "memory_catalog"]


async def test_words_of_the_model_are_no_source_for_what_the_user_is(
    home: Home, project: Path
) -> None:
    def from_assistant(request: ModelRequest) -> Reply:
        ids = re.findall(r"\[assistant (node_\w+)\]", said(request))
        return answer(entry(ids))

    provider = split("Yes.", memory_extraction=from_assistant)
    async with runtime(home, project, provider) as made:
        await ask(made, WISH)
        (event,) = await until_scanned(made)
    assert event.event_type is EventType.MEMORY_EXTRACTION_FAILED
    assert files(home) == []


async def test_m7_a_name_that_leads_out_of_the_folder_is_refused(home: Home, project: Path) -> None:
    def out(request: ModelRequest) -> Reply:
        return answer(entry(user_ids(request), filename=f"../../..{project}/x.md"))

    async with runtime(home, project, split("Yes.", memory_extraction=out)) as made:
        await ask(made, WISH)
        (event,) = await until_scanned(made)
    assert event.event_type is EventType.MEMORY_EXTRACTION_FAILED
    assert list(project.iterdir()) == []
    assert files(home) == []


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("The token is ghp_" + "a1B2" * 9, "a1B2a1B2"),
        ("The database is postgres://app:hunter2@db/x", "hunter2"),
        ("origin is https://bot:s3cr3t@git.example.com/o/r.git", "s3cr3t"),
    ],
)
async def test_secrets_are_taken_out_of_what_is_remembered(
    home: Home, project: Path, text: str, secret: str
) -> None:
    def leaky(request: ModelRequest) -> Reply:
        return answer(entry(user_ids(request), content=text, summary=text))

    async with runtime(home, project, split("Yes.", memory_extraction=leaky)) as made:
        await ask(made, WISH)
        await until_scanned(made)
    (path,) = files(home)
    assert secret not in path.read_text(encoding="utf-8")


async def test_an_update_rewrites_the_file_in_place(home: Home, project: Path) -> None:
    steps = iter([remembers])

    def extraction(request: ModelRequest) -> Reply:
        for first in steps:
            return first(request)
        known = re.findall(r'"id": "(mem_\w+)"', said(request))
        change = {"decision": "update", "memory_id": known[0], "content": "One line answers."}
        return answer(entry(user_ids(request), **change))

    async with runtime(home, project, split("Yes.", memory_extraction=extraction)) as made:
        await ask(made, WISH)
        await until_scanned(made)
        (before,) = files(home)
        await ask(made, "Remember: one line is enough.")
        (_, event) = await until_scanned(made, 2)
    assert files(home) == [before]
    text = before.read_text(encoding="utf-8")
    assert text.endswith("One line answers.\n")
    assert len(re.findall(r"node_[0-9a-f]+", text)) == 2
    assert event.payload["updated"] == [before.stem.rpartition("-")[2]]


async def test_m8_a_run_recalls_what_is_remembered(home: Home, project: Path) -> None:
    def run(request: ModelRequest) -> Reply:
        recalled = [m for m in request.messages if m.metadata.get("source_type")]
        if "tabs?" in said(request) and not recalled:
            return calls("internal.recall_memory", query="tabs or spaces")
        if "again" in said(request) and request.messages[-1].role == "user":
            return calls("internal.recall_memory", query="tabs or spaces")
        return "Tabs."

    text = "---\nid: mem_7\nsummary: Prefers tabs\ntags: [style]\n---\nUse tabs in all code.\n"
    path = home.write("memory/user/tabs.md", text)
    home.write("memory/MEMORY.md", "- [mem_7](user/tabs.md) user: Prefers tabs\n")
    provider = split(run, memory_recall='Sure: {"memory_ids": ["mem_7", "mem_unknown"]}')
    async with runtime(home, project, provider) as made:
        handle = await ask(made, "tabs?")
        again = await ask(made, "tabs? again")
        page = await made.replay_session("s1")
    assert handle.status is again.status is RunStatus.COMPLETED
    (node,) = [node for node in page.nodes if node.node_type is NodeType.MEMORY_CONTEXT]
    assert node.metadata["ids"] == ["mem_7"]
    assert node.metadata["categories"] == ["user"]
    assert "Use tabs in all code." in node.text
    results = [result.content[0] for one in page.nodes for result in one.results]
    first, second = (block.data for block in results if block.type == "json")
    assert (first["memory_ids"], first["already_recalled"]) == (["mem_7"], False)
    assert second["already_recalled"] is True
    assert path.read_text(encoding="utf-8") == text
    assert '<memory ids="mem_7" categories="user">' in said(provider.requests[2])


@pytest.mark.parametrize("choice", [Fails(message="down"), "I would take the second one"])
async def test_words_choose_where_the_model_does_not(
    home: Home, project: Path, choice: Reply
) -> None:
    home.write("memory/user/tabs.md", "---\nid: mem_7\nsummary: Prefers tabs\n---\nTabs.\n")
    home.write("memory/user/tea.md", "---\nid: mem_8\nsummary: Drinks tea\n---\nGreen.\n")
    home.write("memory/MEMORY.md", "- [mem_7](user/tabs.md) user: Prefers tabs\n")

    def run(request: ModelRequest) -> Reply:
        if len(request.messages) == 1:
            return calls("internal.recall_memory", query="does the user want tabs?")
        return "Yes."

    async with runtime(home, project, split(run, memory_recall=choice)) as made:
        await ask(made)
        page = await made.replay_session("s1")
    (node,) = [node for node in page.nodes if node.node_type is NodeType.MEMORY_CONTEXT]
    assert node.metadata["ids"] == ["mem_7"]


async def test_a_runtime_that_is_closed_lets_an_extraction_end(home: Home, project: Path) -> None:
    provider = split("Yes.", memory_extraction=remembers)
    async with runtime(home, project, provider) as made:
        await ask(made, WISH)
    assert len(files(home)) == 1


async def test_m9_a_child_cannot_recall(home: Home, project: Path) -> None:
    home.write("memory/user/tabs.md", "---\nid: mem_7\nsummary: Prefers tabs\n---\nTabs.\n")
    home.write("memory/MEMORY.md", "- [mem_7](user/tabs.md) user: Prefers tabs\n")

    def run(request: ModelRequest) -> Reply:
        is_child = "find it out" in said(request)
        if is_child and len(request.messages) == 1:
            return calls("internal.recall_memory", query="tabs")
        if len(request.messages) == 1:
            return calls("agent.create_sub_agent", task="find it out")
        return "done"

    provider = split(run)
    async with runtime(home, project, provider) as made:
        await ask(made)
    main, child, after, _ = provider.requests
    assert "internal.recall_memory" in {tool.name for tool in main.tools}
    assert "internal.recall_memory" not in {tool.name for tool in child.tools}
    assert not [block for block in child.system if block.block_id == "memory_catalog"]
    assert "tool_not_available" in str(after.messages[-1])
