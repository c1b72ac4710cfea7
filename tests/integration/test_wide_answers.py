"""One answer for everything that only reads, or for every edit, until the session ends."""

import asyncio
import json
import shlex
import sqlite3
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from agent_core import AgentCoreError, ErrorCode, PermissionDecision, PermissionRequest
from agent_core.providers.scripted import Calls, ScriptedCall, calls
from agent_core.types import Decision
from editors import Editor
from in_process import carry_out
from isolation import Home
from model_server import ModelServer
from runtimes import CONFIG, Asked, ask, runtime
from sweeps import kept


def command(*argv: str) -> Any:
    return calls("code.run_command", argv=[*argv])


READS: list[Any] = [
    command("ls"),
    command("cat", "a.txt"),
    command("grep", "-rn", "/api/v1", "a.txt"),
    command("sh", "-c", "cat a.txt | head -1"),
]
OTHERS: list[Any] = [
    command("touch", "b.txt"),
    command("cat", ".env"),
    command("sh", "-c", "cat a.txt > b.txt"),
]


@pytest.fixture
def files(project: Path) -> Path:
    (project / "a.txt").write_text("one\n", encoding="utf-8")
    (project / ".env").write_text("KEY=x\n", encoding="utf-8")
    return project


async def asked_targets(home: Home, project: Path, asked: Asked, config: str = CONFIG) -> list[str]:
    script = [*READS, *OTHERS, "done"]
    made = runtime(home, project, script, config=config, permission_callback=asked)
    async with made:
        await ask(made)
    return [str(request.metadata["target"]) for request in asked.requests]


async def test_one_answer_covers_commands_that_only_read(home: Home, files: Path) -> None:
    asked = Asked("allow_reads", "deny", "deny", "deny")
    targets = await asked_targets(home, files, asked)
    assert targets == ["ls", "touch b.txt", "cat .env", "sh -c 'cat a.txt > b.txt'"]
    wide = asked.requests[0].metadata["wide"]
    assert wide["decision"] == "allow_reads"
    assert wide["covers"].startswith("every command that only reads")
    assert str(files) in wide["covers"]
    assert all("wide" not in request.metadata for request in asked.requests[1:])


async def test_a_setting_lets_commands_that_only_read_pass(home: Home, files: Path) -> None:
    asked = Asked("deny", "deny", "deny")
    config = CONFIG + '[permissions]\nreaders = "allow"\n'
    targets = await asked_targets(home, files, asked, config)
    assert targets == ["touch b.txt", "cat .env", "sh -c 'cat a.txt > b.txt'"]


@pytest.mark.sweep
async def test_one_answer_covers_loops_and_pipes_of_readers(home: Home, files: Path) -> None:
    """Real programs run for the whole line, or nothing does."""
    lines = [
        "cat *.txt | head -n 1",
        'for f in *.txt; do wc -l "$f"; done',
        "find . -name '*.txt' -type f | sort | xargs grep -c .",
        'while read -r line; do echo "> $line"; done < a.txt',
        "for f in .e*; do cat $f; done",
        "for f in *.txt; do cat $f > copy; done",
    ]
    script = [calls("code.run_command", argv=["sh", "-c", line]) for line in lines]
    asked = Asked("allow_reads", "deny", "deny")
    made = runtime(home, files, [*script, "done"], config=CONFIG, permission_callback=asked)
    async with made:
        await ask(made)
        replay = await made.replay_session("s1", include_sensitive=True)
    asked_for = [shlex.split(request.metadata["target"])[-1] for request in asked.requests]
    assert asked_for == [lines[0], *lines[-2:]]
    results = [result for node in replay.nodes for result in node.results]
    content = [block.model_dump() for result in results[:4] for block in result.content]
    assert [block["data"]["exit_code"] for block in content] == [0] * 4
    assert not (files / "copy").exists()


async def test_one_answer_covers_ordinary_edits(home: Home, files: Path) -> None:
    paths = ["b.txt", "src/c.py", "AGENTS.md", ".env", "d.txt"]
    script = [calls("code.write_file", path=p, content="x", overwrite=True) for p in paths]
    asked = Asked("allow_edits", "deny", "deny")
    made = runtime(home, files, [*script, "done"], config=CONFIG, permission_callback=asked)
    async with made:
        await ask(made)
    targets = [Path(request.metadata["target"]).name for request in asked.requests]
    assert targets == ["b.txt", "AGENTS.md", ".env"]
    assert (files / "d.txt").exists()


async def test_an_answer_that_the_question_does_not_offer_allows_nothing(
    home: Home, files: Path
) -> None:
    asked = Asked("allow_reads")
    made = runtime(
        home,
        files,
        [command("touch", "b.txt"), "done"],
        config=CONFIG,
        permission_callback=asked,
    )
    async with made:
        await ask(made)
    assert not (files / "b.txt").exists()


async def test_an_answer_settles_the_open_questions_that_it_covers(home: Home, files: Path) -> None:
    asked: list[PermissionRequest] = []
    both, forever = asyncio.Event(), asyncio.Event()

    async def answer(request: PermissionRequest) -> PermissionDecision:
        asked.append(request)
        if len(asked) == 2:
            both.set()
            await forever.wait()  # nobody answers this one
        await both.wait()
        return PermissionDecision(decision=Decision.ALLOW_FOR_SESSION)

    read = ScriptedCall(name="code.read_file", arguments={"path": "a.txt"})
    config = CONFIG + '[permissions]\nreadonly_default = "ask"\n'
    script: list[Any] = [Calls(calls=[read, read]), "done"]
    made = runtime(home, files, script, config=config, permission_callback=cast("Asked", answer))
    async with made, asyncio.timeout(50):
        await ask(made)
        closed = await made.approvals("s1", is_open=False)
    assert len(asked) == 2
    assert {each.decision for each in closed} == {Decision.ALLOW_FOR_SESSION}
    assert {each.decided_by for each in closed} == {"callback", "session"}


@pytest.mark.parametrize("decision", [Decision.ALLOW_READS, Decision.ALLOW_EDITS])
async def test_an_answer_that_is_not_offered_leaves_a_stored_question_open(
    home: Home, files: Path, decision: Decision
) -> None:
    script = [command("touch", "b.txt"), "done"]
    config = CONFIG + '[permissions]\nunattended = "wait"\n'
    async with runtime(home, files, script, config=config) as made:
        handle = await made.start("go")
        while not (found := await made.approvals()):  # noqa: ASYNC110 - the run asks by itself
            await asyncio.sleep(0.02)
        with pytest.raises(AgentCoreError, match="takes allow_once") as caught:
            await made.answer(found[0].request_id, decision)
        assert caught.value.code is ErrorCode.VALIDATION_ERROR
        assert [each.request_id for each in await made.approvals()] == [found[0].request_id]
        await made.answer(found[0].request_id, "allow_once")
        assert (await handle.result()).text == "done"
    assert (files / "b.txt").exists()


FULL = """
CREATE TRIGGER full_{table} BEFORE {change} ON {table} WHEN {when}
BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END
"""


@pytest.mark.parametrize("scope", ["session", "session_stored"])
async def test_an_answer_counts_where_others_cannot_be_settled(
    home: Home, files: Path, scope: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []
    both, is_full = asyncio.Event(), asyncio.Event()

    async def answer(request: PermissionRequest) -> PermissionDecision:
        asked.append(request.request_id)
        if len(asked) == 2:
            both.set()
            await is_full.wait()
            while "stay open" not in caplog.text:  # noqa: ASYNC110 - a log has no event
                await asyncio.sleep(0.01)
            return PermissionDecision(decision=Decision.ALLOW_ONCE)
        await both.wait()
        with sqlite3.connect(home.path / "sessions.sqlite") as database:
            decided = {"change": "UPDATE", "when": "NEW.decided_by = 'session'"}
            database.execute(FULL.format(table="approvals", **decided))
            database.execute(FULL.format(table="grants", change="INSERT", when="1"))
        is_full.set()
        return PermissionDecision(decision=Decision.ALLOW_FOR_SESSION)

    read = ScriptedCall(name="code.read_file", arguments={"path": "a.txt"})
    config = CONFIG + f'[permissions]\nreadonly_default = "ask"\nremember_scope = "{scope}"\n'
    script: list[Any] = [Calls(calls=[read, read]), "done"]
    made = runtime(home, files, script, config=config, permission_callback=cast("Asked", answer))
    async with made, asyncio.timeout(50):
        handle = await ask(made)
        assert (await handle.result()).text == "done"
        closed = await made.approvals("s1", is_open=False)
    assert {each.decision for each in closed} == {Decision.ALLOW_FOR_SESSION, Decision.ALLOW_ONCE}
    assert ("is not remembered" in caplog.text) is (scope == "session_stored")


MORE = {
    "reads": [command("cat", "a.txt"), command("ls"), command("touch", "asked.txt")],
    "edits": [
        calls("code.write_file", path=path, content="x", overwrite=True)
        for path in ("b.txt", "src/c.py", "AGENTS.md")
    ],
}
"""Two calls that one answer covers, and one that it does not."""


def configured(home: Home, server: ModelServer, permissions: str = "") -> None:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        f"[memory]\nenabled = false\n[permissions]\n{permissions}\n"
    )


@pytest.mark.sweep
@pytest.mark.parametrize("what", kept(["reads", "edits"], "reads"))
def test_an_editor_gives_the_wide_answers(home: Home, files: Path, what: str) -> None:
    with ModelServer.in_thread([*MORE[what], "done"]) as server:
        configured(home, server)
        with Editor(home) as editor:
            editor.answers = [f"allow_{what}", "deny"]
            reply = editor.prompt(editor.open(files), "go")
            first, second = editor.asked
    assert reply.text == "done"
    options = {each["optionId"]: each for each in first["params"]["options"]}
    assert options[f"allow_{what}"]["kind"] == "allow_always"
    said = {"reads": "every command that only reads", "edits": "every edit of ordinary files"}
    assert said[what] in options[f"allow_{what}"]["name"]
    assert str(files) in options[f"allow_{what}"]["name"]
    assert f"allow_{what}" not in {each["optionId"] for each in second["params"]["options"]}


@pytest.mark.long
@pytest.mark.parametrize("what", kept(["reads", "edits"], "edits"))
def test_the_command_line_gives_the_wide_answers(home: Home, files: Path, what: str) -> None:
    def soong_agent(*arguments: str) -> subprocess.CompletedProcess[str]:
        return carry_out([*arguments, "--path", str(files)], home.env())

    with ModelServer.in_thread([*MORE[what], "done"]) as server:
        configured(home, server, 'unattended = "park"')
        soong_agent("run", "go")
        listed = soong_agent("approvals", "list").stdout
        assert f"{what} would cover: every " in listed
        request_id = listed.split()[0]
        other = {"reads": "edits", "edits": "reads"}[what]
        assert soong_agent("approvals", "answer", request_id, other).returncode == 2
        done = soong_agent("approvals", "answer", request_id, what)
        assert done.returncode == 0, done.stderr
        (left,) = [
            json.loads(line)
            for line in soong_agent("approvals", "list", "--json").stdout.split("\n")
            if line
        ]
    assert Path(left["request"]["metadata"]["target"]).name in {"touch asked.txt", "AGENTS.md"}
