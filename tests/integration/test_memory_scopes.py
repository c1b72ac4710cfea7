"""Each run has the memory of its scope, and nothing of another one reaches it on any way."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    AgentCoreError,
    AgentRuntime,
    ErrorCode,
    ModelRequest,
    RunOptions,
    RunStatus,
)
from agent_core.providers.scripted import Hangs, ScriptedProvider, calls
from agent_core.types import EventType, NodeType
from isolation import Home, program_file
from memories import (
    OUTCOMES,
    WISH,
    Reply,
    answer,
    entry,
    purpose,
    remembers,
    said,
    split,
    told,
    until_scanned,
)
from model_server import ModelServer, Received
from runtimes import CONFIG
from sweeps import is_whole, kept
from worker_processes import URL_VARIABLE, workers, write_config

ANNA, BEN = "user:anna", "user:ben"
HERON = "The code word is heron."


@asynccontextmanager
async def service(
    home: Home, project: Path, provider: ScriptedProvider, *, config: str = CONFIG, **options: Any
) -> AsyncGenerator[AgentRuntime]:
    home.write_config(config)
    runtime = AgentRuntime(project, home_dir=home.path, **options)
    runtime.register_provider("custom", lambda model: provider)
    async with runtime:
        yield runtime


def stored(home: Home) -> list[str]:
    """Return the paths of the memories, below the memory folder."""
    root = home.path / "memory"
    return sorted(str(path.parent.relative_to(root)) for path in root.rglob("*-mem_*.md"))


def seen(request: ModelRequest) -> str:
    """All that a model is shown."""
    system = [block.content for block in request.system]
    return "\n".join([*system, request.model_dump_json(include={"messages"})])


def write_memory(home: Home, folder: str, text: str, memory_id: str = "mem_7") -> None:
    """Write a memory and its catalog below the memory folder, as an extraction would."""
    head = f"---\nid: {memory_id}\nsummary: About {text}\n---\n"
    home.write(f"memory/{folder}user/{text}.md", f"{head}It is {text}.\n")
    line = f"- [{memory_id}](user/{text}.md) user: About {text}\n"
    home.write(f"memory/{folder}MEMORY.md", line)


async def until_told(runtime: AgentRuntime, session_id: str) -> None:
    """Wait for the end of an extraction."""
    while not await told(runtime, *OUTCOMES, session_id=session_id):  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_what_one_user_said_stands_in_no_other_users_prompt(
    home: Home, project: Path
) -> None:
    provider = split("Gladly.", memory_extraction=remembers)
    async with service(home, project, provider) as runtime:
        await runtime.run(WISH, "s1", memory=ANNA)
        (event,) = await until_scanned(runtime)
        assert event.payload["memory"] == ANNA
        assert stored(home) == ["users/anna/user"]
        provider.requests.clear()
        for session, scope in (("s2", BEN), ("s3", "off"), ("s4", None), ("s5", "user:Anna")):
            await runtime.run("Hello", session, memory=scope)
        await runtime.run("Hello", "s6", memory=ANNA)
    texts = [seen(request) for request in provider.requests if purpose(request) == "run"]
    assert ["Likes short answers" in text for text in texts] == [False] * 4 + [True]


@pytest.mark.long
async def test_a_runtime_chooses_for_runs_that_name_no_scope(home: Home, project: Path) -> None:
    write_memory(home, "", "shared")
    write_memory(home, "users/anna/", "annas")
    shown: dict[str, list[str]] = {}
    for default in (None, True, "shared", ANNA, "off", False):
        provider = split("Yes.")
        async with service(home, project, provider, memory=default) as runtime:
            await runtime.run("Hello")
            await runtime.run("Hello", memory=ANNA)
            await runtime.run("Hello", options=RunOptions(memory="shared"))
            await runtime.run("Hello", memory="off")
        shown[str(default)] = [
            next((word for word in ("shared", "annas") if f"About {word}" in seen(one)), "-")
            for one in provider.requests
        ]
    rest = ["annas", "shared", "-"]
    assert shown == {
        "None": ["shared", *rest],
        "True": ["shared", *rest],
        "shared": ["shared", *rest],
        "user:anna": ["annas", *rest],
        "off": ["-", *rest],
        "False": ["-", *rest],
    }


async def test_a_session_object_chooses_for_its_runs(home: Home, project: Path) -> None:
    write_memory(home, "users/anna/", "annas")
    provider = split("Yes.")
    async with service(home, project, provider, memory="off") as runtime:
        async with runtime.session("s1", memory=ANNA) as session:
            await session.run("Hello")
            await session.run("Hello", options=RunOptions(instructions="Be short."))
            await session.run("Hello", memory=BEN)
            await session.run("Hello", options=RunOptions(memory="off"))
        with pytest.raises(AgentCoreError, match="memory names the user"):
            runtime.session("s2", memory="user:../x")
    found = ["About annas" in seen(request) for request in provider.requests]
    assert found == [True, True, False, False]


@pytest.mark.parametrize(
    "scope",
    kept(
        ["", "user:", "user:../x", "user:a/b", "user:" + "x" * 300, "tenant:acme", 3],
        "",
        "user:../x",
    ),
)
async def test_what_is_no_scope_is_refused_before_anything_is_stored(
    home: Home, project: Path, scope: Any
) -> None:
    with pytest.raises(AgentCoreError, match=r"^memory ") as caught:
        async with service(home, project, split("Yes."), memory=scope):
            pass
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    async with service(home, project, split("Yes.")) as runtime:
        with pytest.raises(AgentCoreError, match=r"^memory ") as caught:
            await runtime.start("Hello", "s1", memory=scope)
        assert caught.value.code is ErrorCode.VALIDATION_ERROR
        assert await runtime.list_sessions() == []
    assert not (home.path / "memory").exists()


async def test_an_id_that_cannot_be_stored_is_refused(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "heron-and-crane")
    config = f'{CONFIG}api_key_env = "THE_KEY"\n'
    async with service(home, project, split("Yes."), config=config) as runtime:
        with pytest.raises(AgentCoreError, match="names a user by a secret"):
            await runtime.start("Hello", "s1", memory="user:heron-and-crane")
        assert await runtime.list_sessions() == []
        for name in ("anna@example.com", "auth0|5f7c8ec7c33c6c004bbafe82", "1f0c2a64-8c77-4ad1"):
            await runtime.run("Hello", memory=f"user:{name}")


async def test_with_memory_off_nothing_is_shown_offered_looked_for_or_stored(
    home: Home, project: Path
) -> None:
    write_memory(home, "", "shared")
    before = sorted(home.path.joinpath("memory").rglob("*"))
    provider = split("Yes.", memory_extraction=remembers)
    async with service(home, project, provider, memory="off") as runtime:
        await runtime.run(WISH, "s1")
        assert await told(runtime, *OUTCOMES, EventType.MEMORY_EXTRACTION_STARTED) == []
    (request,) = provider.requests
    assert not [block for block in request.system if "memory" in block.block_id]
    assert "internal.recall_memory" not in {tool.name for tool in request.tools}
    assert sorted(home.path.joinpath("memory").rglob("*")) == before
    # A later process whose memory is on looks for nothing in what was said then.
    later = split("Yes.", memory_extraction=remembers)
    async with service(home, project, later) as runtime:
        await runtime.run("Remember: I drink tea.", "s1")
        await until_scanned(runtime)
    (asked,) = [request for request in later.requests if purpose(request) == "memory_extraction"]
    assert "short answers" not in said(asked)


def recalls(request: ModelRequest) -> Reply:
    """Recall once for each message of the user."""
    last = request.messages[-1]
    is_asked = last.role == "user" and not last.metadata.get("source_type")
    if is_asked and any(tool.name == "internal.recall_memory" for tool in request.tools):
        return calls("internal.recall_memory", query="code word")
    return "Noted."


async def test_a_later_message_with_another_memory_sees_nothing_that_was_recalled_before(
    home: Home, project: Path
) -> None:
    write_memory(home, "users/anna/", "heron")
    write_memory(home, "", "crane", "mem_8")
    provider = split(recalls, memory_recall='{"memory_ids": ["mem_7", "mem_8"]}')
    async with service(home, project, provider) as runtime:
        for scope in (ANNA, "shared", BEN, "off", ANNA):
            last = await runtime.run("What is the code word?", "s1", memory=scope)
        page = await runtime.replay_session("s1")
        report = await runtime.context_report("s1")
        again = await runtime.replay_run(last.run_id)
        run_ids = [run.run_id for run in page.runs]
        rebuilt = [await runtime.inspect_run(run_id) for run_id in run_ids]
    requests = [request for request in provider.requests if purpose(request) == "run"]
    by_run: dict[str, list[str]] = {}
    for request in requests:
        by_run.setdefault(str(request.metadata["run_id"]), []).append(seen(request))
    anna, shared, ben, off, last_of_anna = ("\n".join(texts) for texts in by_run.values())
    assert "heron" in anna
    assert "crane" in shared
    assert "heron" not in shared + ben + off
    assert "crane" not in anna + ben + off + last_of_anna
    assert "It is heron." in by_run[last.run_id][0]
    assert "another memory" in by_run[last.run_id][0]
    nodes = [node for node in page.nodes if node.node_type is NodeType.MEMORY_CONTEXT]
    assert [node.metadata.get("memory") for node in nodes] == [ANNA, None]
    assert report.memory == ANNA
    assert again.runs[0].options is not None
    assert again.runs[0].options.memory == ANNA
    exact = [request.metadata["exact"] for one in rebuilt for request in one.requests]
    assert exact == [True] * len(requests)


async def test_each_message_of_a_session_is_searched_for_its_own_memory_only(
    home: Home, project: Path
) -> None:
    provider = split("Yes.", memory_extraction=remembers)
    async with service(home, project, provider) as runtime:
        await runtime.run("My dog is called Rex.", "s1", memory=ANNA)
        await runtime.run("My cat is called Tom.", "s1", memory=BEN)
        await runtime.run("My cow is called Moo.", "s1", memory="off")
        await runtime.run("Remember this: I like tea.", "s1", memory=ANNA)
        found = await until_scanned(runtime, 3)
    assert [event.payload["memory"] for event in found] == [ANNA, BEN, ANNA]
    asked = [said(one) for one in provider.requests if purpose(one) == "memory_extraction"]
    words = [[word for word in ("Rex", "Tom", "Moo", "tea") if word in text] for text in asked]
    assert words == [["Rex"], ["Tom"], ["Rex", "tea"]]
    assert stored(home) == ["users/anna/user", "users/ben/user"]  # each has it once


async def test_a_summary_has_no_memory_in_it_and_attaches_none_of_another_scope(
    home: Home, project: Path
) -> None:
    write_memory(home, "users/anna/", "heron")
    provider = split(
        recalls,
        memory_recall='{"memory_ids": ["mem_7"]}',
        compact=lambda request: json.dumps({"summary": "## Goal\n" + "They talked a lot. " * 5}),
    )
    config = CONFIG + "[compact]\nkeep_recent_tokens = 20\n"
    async with service(home, project, provider, config=config) as runtime:
        for number in range(3):
            await runtime.run(f"Question {number} " + "word " * 60, "s1", memory=ANNA)
        await (await runtime.compact_session("s1")).result()
        await runtime.run("And now?", "s1", memory=BEN)
        await runtime.run("And now?", "s1", memory=ANNA)
    summaries = [seen(request) for request in provider.requests if purpose(request) == "compact"]
    assert "[call internal.recall_memory]" in summaries[0]
    assert "heron" not in "".join(summaries)
    runs = [seen(request) for request in provider.requests if purpose(request) == "run"]
    assert "They talked a lot." in runs[-2]
    assert "heron" not in runs[-3]
    assert "It is heron." in runs[-1]


async def test_a_fork_child_sees_what_its_parent_may_see(home: Home, project: Path) -> None:
    write_memory(home, "users/anna/", "heron")

    def run(request: ModelRequest) -> Reply:
        text = said(request)
        if "FORK" in text and "in the fork" not in text and request.messages[-1].role == "user":
            return calls("agent.fork_agent", task="Work in the fork.")
        return recalls(request) if "FORK" not in text else "done"

    provider = split(run, memory_recall='{"memory_ids": ["mem_7"]}')
    async with service(home, project, provider) as runtime:
        await runtime.run("What is it?", "s1", memory=ANNA)
        await runtime.run("FORK", "s1", memory=ANNA)
        await runtime.run("FORK again", "s1", memory=BEN)
    forks = [seen(one) for one in provider.requests if "in the fork" in said(one)]
    forks = [text for text in forks if "Work in the fork." in text]
    children = [text for text in forks if "heron" in text]
    assert children
    assert any("heron" not in text for text in forks)
    assert not [text for text in forks if "FORK again" in text and "heron" in text]


PARKS = CONFIG + '[permissions]\nunattended = "park"\n'


async def test_a_run_that_is_answered_in_another_process_keeps_its_memory(
    home: Home, project: Path
) -> None:
    write_memory(home, "users/anna/", "heron")
    write_memory(home, "", "crane")

    def run(request: ModelRequest) -> Reply:
        if len(request.messages) == 1:
            return calls("code.write_file", path="a.txt", content="a")
        return "done"

    provider = split(run, memory_extraction=remembers)
    async with service(home, project, provider, config=PARKS) as runtime:
        waiting = await runtime.run(WISH, "s1", memory=ANNA)
        assert waiting.status is RunStatus.WAITING
        (question,) = await runtime.approvals()
    for default in ("off",):
        other = split(run, memory_extraction=remembers)
        async with service(home, project, other, config=PARKS, memory=default) as runtime:
            handle = await runtime.answer(question.request_id, "allow_once")
            assert await handle.wait() is RunStatus.COMPLETED
            (event,) = await until_scanned(runtime)
        (request,) = [one for one in other.requests if purpose(one) == "run"]
        assert "About heron" in seen(request)
        assert "crane" not in seen(request)
        assert event.payload["memory"] == ANNA
    assert stored(home) == ["users/anna/user"]


async def test_what_a_process_leaves_is_remembered_by_another_one_where_it_belongs(
    home: Home, project: Path
) -> None:
    config = CONFIG + "[memory]\nexit_wait_ms = 0\n"
    stuck = split("Yes.", memory_extraction=Hangs())
    async with service(home, project, stuck, config=config, memory=ANNA) as runtime:
        await runtime.run(WISH, "s1")
        await runtime.run(WISH, "s2", memory=BEN)
        await runtime.run(WISH, "s3", memory="off")
    assert stored(home) == []
    later = split("Yes.", memory_extraction=remembers)
    async with service(home, project, later, memory="off") as runtime:
        await runtime.run("Hello", "s9", memory="user:carl")
        for session in ("s1", "s2"):
            await until_told(runtime, session)
    assert stored(home) == ["users/anna/user", "users/ben/user"]


async def test_a_service_leaves_what_its_owner_said_to_a_process_of_the_owner(
    home: Home, project: Path
) -> None:
    """The owner's words would go to the model of the service."""
    config = CONFIG + "[memory]\nexit_wait_ms = 0\n"
    stuck = split("Yes.", memory_extraction=Hangs())
    async with service(home, project, stuck, config=config) as runtime:
        await runtime.run(WISH, "s1")
        await runtime.run(WISH, "s2", memory=ANNA)
    other = split("Yes.", memory_extraction=remembers)
    async with service(home, project, other, memory="off") as runtime:
        await runtime.run("Hello", "s9", memory=BEN)
        await until_told(runtime, "s2")
    assert stored(home) == ["users/anna/user"]
    own = split("Yes.", memory_extraction=remembers)
    async with service(home, project, own) as runtime:
        await runtime.run("Hello", "s8")
        await until_told(runtime, "s1")
    assert stored(home) == ["user", "users/anna/user"]


SERVICE = """
import asyncio, os, signal
from agent_core import AgentRuntime

async def main():
    runtime = AgentRuntime({project!r}, home_dir={home!r}, memory="off")
    async with runtime:
        await runtime.run({wish!r}, "s1", memory="user:anna")
        await runtime.run({wish!r}, "s2")
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.long
def test_what_a_killed_service_leaves_reaches_no_other_memory(home: Home, project: Path) -> None:
    extracted: list[str] = []

    def reply(asked: Any) -> Any:
        if "<memory_catalog>" not in asked.text:
            return "done"
        if len(extracted) == 0 and is_stuck:
            return Hangs()
        extracted.append(asked.text)
        return answer(entry(re.findall(r"\[user (node_\w+)\]", asked.text)[:1]))

    is_stuck = True
    with ModelServer.in_thread(reply) as server:
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
            "[memory]\nexit_wait_ms = 60000\n"
        )
        source = SERVICE.format(project=str(project), home=str(home.path), wish=WISH)
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, program_file(source)],
            env=home.env(),
            capture_output=True,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        is_stuck = False
        subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "agent_core.cli", "run", "--path", str(project), "Hello"],
            env=home.env(),
            check=True,
            capture_output=True,
        )
    assert len(extracted) == 1
    assert stored(home) == ["users/anna/user"]


async def test_a_program_without_memory_does_not_look_at_what_others_have_left(
    home: Home, project: Path
) -> None:
    config = CONFIG + "[memory]\nexit_wait_ms = 0\n"
    stuck = split("Yes.", memory_extraction=Hangs())
    async with service(home, project, stuck, config=config) as runtime:
        await runtime.run(WISH, "s1", memory=ANNA)
    other = split("Yes.", memory_extraction=remembers)
    async with service(home, project, other, memory="off") as runtime:
        await runtime.run("Hello", "s2")
    assert [purpose(request) for request in other.requests] == ["run"]
    own = split("Yes.", memory_extraction=remembers)
    async with service(home, project, own) as runtime:
        await runtime.run("Hello", "s3", memory="off")
        await runtime.run("Hello", "s3")
        await until_told(runtime, "s1")
    assert stored(home) == ["users/anna/user"]


async def test_a_run_without_memory_only_interrupts_the_wait_of_those_before(
    home: Home, project: Path
) -> None:
    provider = split("Yes.", memory_extraction=answer(explicit=False))
    config = CONFIG + "[memory]\nidle_seconds = 1\n"
    async with service(home, project, provider, config=config) as runtime:
        await runtime.run("My dog is called Rex.", "s1", memory=ANNA)
        await runtime.run("My cow is called Moo.", "s1", memory="off")
        (event,) = await until_scanned(runtime)
    assert event.payload["reason"] == "idle"
    (asked,) = [said(one) for one in provider.requests if purpose(one) == "memory_extraction"]
    assert "Rex" in asked
    assert "Moo" not in asked


async def test_what_was_said_in_a_run_that_is_deleted_is_not_remembered_by_a_fork(
    home: Home, project: Path
) -> None:
    """Nobody knows any more for whom it was said."""
    provider = split("Yes.", memory_extraction=remembers)
    async with service(home, project, provider) as runtime:
        await runtime.run("My dog is called Rex.", "s1", memory="off")
        fork = await runtime.fork("s1")
        await runtime.delete_session("s1")
        await runtime.run("Remember that I like tea.", fork.session.session_id)
        await until_told(runtime, fork.session.session_id)
    (asked,) = [said(one) for one in provider.requests if purpose(one) == "memory_extraction"]
    assert "Rex" not in asked
    assert "tea" in asked


async def test_a_fork_does_not_remember_what_was_forgotten_after_it_was_said(
    home: Home, project: Path
) -> None:
    provider = split("Yes.", memory_extraction=remembers)
    async with service(home, project, provider) as runtime:
        await runtime.run("Hello.", "s1", memory="shared")
        await runtime.run("Remember that I like tea.", "s1", memory="shared")
        await runtime.finish_wishes()
        for file in (home.path / "memory").glob("*/*.md"):
            file.unlink()
        fork = await runtime.fork("s1")
        await runtime.run("Remember that I ski.", fork.session.session_id, memory="shared")
        await runtime.finish_wishes()
    asked = [said(one) for one in provider.requests if purpose(one) == "memory_extraction"]
    assert len(asked) == 2
    assert re.findall(r"\[user node_\w+\]\n(.*)", asked[1]) == ["Remember that I ski."]


async def test_a_run_looks_into_no_folder_of_another_user(home: Home, project: Path) -> None:
    users = 40 if is_whole() else 12
    for number in range(users):
        write_memory(home, f"users/u{number}/", "heron")
    looked: list[str] = []
    is_watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if is_watching and event in {"open", "os.listdir", "os.scandir"}:
            looked.append(os.fsdecode(arguments[0]) if isinstance(arguments[0], str) else "")

    sys.addaudithook(watch)
    provider = split(recalls, memory_recall='{"memory_ids": ["mem_7"]}')
    async with service(home, project, provider) as runtime:
        await runtime.run("What is it?", "s0", memory="user:u0")
        looked.clear()
        await runtime.run("What is it?", "s1", memory="user:u1")
        first = len([path for path in looked if path.startswith("u") or "users" in path])
        for number in range(2, users - 1):
            await runtime.run("What is it?", f"s{number}", memory=f"user:u{number}")
        looked.clear()
        await runtime.run("What is it?", "last", memory=f"user:u{users - 1}")
        last = [path for path in looked if path.startswith("u") or "users" in path]
    is_watching = False
    assert len(last) == first
    assert {path for path in last if path.startswith("u") and path[1:].isdigit()} == {
        f"u{users - 1}"
    }


async def test_a_program_without_a_home_has_a_memory_if_it_names_one(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOONG_AGENT_HOME", str(home.path))
    write_memory(home, "", "crane")
    provider = split("Yes.", memory_extraction=remembers)
    model: Any = provider
    async with AgentRuntime(project, model=model) as runtime:
        await runtime.run(WISH, "s1")
        assert "crane" not in seen(provider.requests[-1])
        await runtime.run(WISH, "s2", memory=ANNA)
        await until_told(runtime, "s2")
    assert stored(home) == ["users/anna/user"]


@pytest.mark.parametrize("persist", [True, False])
async def test_no_scope_turns_on_what_is_switched_off(
    home: Home, project: Path, persist: bool
) -> None:
    config = CONFIG + ("[memory]\nenabled = false\n" if persist else "")
    provider = split("Yes.", memory_extraction=remembers)
    async with service(
        home, project, provider, config=config, persist=persist, memory=ANNA
    ) as runtime:
        await runtime.run(WISH, "s1", memory=BEN)
    (request,) = provider.requests
    assert "internal.recall_memory" not in {tool.name for tool in request.tools}
    assert stored(home) == []


@pytest.mark.long
async def test_each_tenant_has_its_own_memory_and_users(
    home: Home, project: Path, database_url: str
) -> None:
    provider = split("Yes.", memory_extraction=remembers)
    said_where: list[tuple[str | None, dict[str, Any], str, str]] = [
        ("acme", {}, "s1", "tenants/acme/user"),
        ("acme", {"memory": ANNA}, "s2", "tenants/acme/users/anna/user"),
        ("Acme", {"memory": ANNA}, "s3", "tenants/_41cme/users/anna/user"),
        (None, {}, "s4", "user"),
        (None, {"tenant": "acme", "memory": BEN}, "s5", "tenants/acme/users/ben/user"),
    ]
    known: list[str] = []
    async with AsyncExitStack() as opened:
        runtimes = {
            tenant: await opened.enter_async_context(
                service(home, project, provider, database_url=database_url, tenant=tenant)
            )
            for tenant in ("acme", "Acme", None)
        }
        for tenant, options, session, folder in said_where:
            await runtimes[tenant].run(WISH, session, here=True, **options)
            await until_told(runtimes[tenant], session)
            known = sorted([*known, folder])
            assert stored(home) == known
        provider.requests.clear()
        for tenant, options, _, _ in said_where:
            await runtimes[tenant].run("Hello", here=True, **options)
            carls: dict[str, Any] = {**options, "memory": "user:carl"}
            await runtimes[tenant].run("Hello", here=True, **carls)
    texts = [seen(request) for request in provider.requests if purpose(request) == "run"]
    assert ["Likes short answers" in text for text in texts] == [True, False] * len(said_where)


@pytest.mark.long
async def test_a_worker_and_who_takes_its_run_over_have_the_memory_of_the_run(
    home: Home, project: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_memory(home, "tenants/acme/users/anna/", "heron")
    for folder in ("", "users/anna/", "tenants/acme/"):
        write_memory(home, folder, "crane")
    monkeypatch.setenv(URL_VARIABLE, database_url)
    asked: list[str] = []

    def reply(request: Received) -> Any:
        if "<memory_catalog>" in request.text and "<conversation>" in request.text:
            return answer(entry(re.findall(r"\[user (node_\w+)\]", request.text)[:1]))
        asked.append(request.text)
        return Hangs() if len(asked) == 1 else "done"

    with ModelServer.in_thread(reply) as server, workers(home, database_url) as crew:
        write_config(home, server)
        config = home.path / "config.toml"
        config.write_text(config.read_text().replace("enabled = false", "enabled = true"))
        worker = await asyncio.to_thread(crew.start)
        async with AgentRuntime(project, home_dir=home.path, tenant="acme") as runtime:
            handle = await runtime.start(WISH, "s1", memory=ANNA)
            while not asked:  # noqa: ASYNC110 - the server is in a thread
                await asyncio.sleep(0.02)
            worker.signal(signal.SIGKILL)
            await asyncio.to_thread(crew.start)
            assert await (await runtime.attach(handle.run_id)).wait() is RunStatus.COMPLETED
            await until_told(runtime, "s1")
    assert len(asked) == 2
    assert all("About heron" in text and "crane" not in text for text in asked)
    assert stored(home) == ["tenants/acme/users/anna/user"]
