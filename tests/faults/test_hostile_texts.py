"""Hostile arguments and texts in whole runs: an answer to the model or a clear error, always."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentCoreError, AgentRuntime, RunHandle, RunStatus, tool
from agent_core.providers.scripted import Calls, Says, ScriptedCall, ScriptedProvider, calls
from agent_core.types import ModelRequest, ReplayResult, ToolResultBlock
from casts import Cast, data_of, results
from faults.aftermath import check_database, unanswered
from faults.depth import Depth, Tally
from faults.homes import POOL
from faults.hostile_texts import INVALID, NAUGHTY, UNDECIDED, VALID
from isolation import Home
from runtimes import CONFIG, Asked, runtime

QUIET = f"{CONFIG}[memory]\nenabled = false\n"
pytestmark = pytest.mark.timeout(300)


SUMMARY = "The user wanted values to be taken, and the agent has taken each of them in turn."


class Taking:
    """A runtime with a tool that takes anything and says anything."""

    def __init__(self, home: Home, project: Path) -> None:
        self.taken: list[Any] = []
        self.says = "taken"
        self.script: list[str | Says | Calls] = []
        self.provider = ScriptedProvider(self._answer)
        self.runtime = runtime(home, project, self.provider, config=QUIET)

        @tool(permission="readonly")
        async def take(value: Any) -> str:
            """Take a value."""
            self.taken.append(value)
            return self.says

        self.runtime.register_tool(take)

    def _answer(self, request: ModelRequest) -> str | Says | Calls:
        return self.script.pop(0) if request.tools else SUMMARY  # a compaction has no tools

    async def call(self, arguments: str) -> ToolResultBlock:
        """The answer that the model gets for a call with these arguments, in a run of its own."""
        self.taken.clear()
        self.script = [Calls(calls=[ScriptedCall(name="take", arguments=arguments)]), "done"]
        return (await self.run("go"))[-1]

    async def run(self, prompt: str) -> list[ToolResultBlock]:
        """One more run of the session, which ends well; the results of its calls."""
        handle = await self.runtime.start(prompt, session_id="s1")
        assert await handle.wait() is RunStatus.COMPLETED, handle.error
        request = self.provider.requests[-1]
        assert unanswered(request.messages) == set()
        request.model_dump_json().encode()
        replay = await self.runtime.replay_run(handle.run_id)
        replay.model_dump_json().encode()
        return [result for node in replay.nodes for result in node.results]


ARGUMENTS = [
    *(("valid", name, text) for name, text in VALID.items()),
    *(("invalid", name, text) for name, text in INVALID.items()),
    *(("undecided", name, text) for name, text in UNDECIDED.items()),
]


@pytest.mark.long
@pytest.mark.faults("arguments of tool calls")
async def test_arguments_of_any_kind_get_an_answer(
    home: Home, project: Path, tally: Tally, depth: Depth
) -> None:
    taking = Taking(home, project)
    async with taking.runtime:
        for kind, name, text in depth.of(ARGUMENTS, 12):
            with tally.case(f"{kind}: {name}"):
                result = await taking.call(f'{{"value": {text}}}')
                if kind == "valid":
                    assert taking.taken == [json.loads(text)]
                    assert not result.is_error
                if kind == "invalid" or result.is_error:
                    assert result.error is not None
                    assert result.error.code == "validation_error"
                    assert len(result.error.message) < 2_000
                    assert taking.taken == []
            with tally.case(f"alone: {name}"):
                result = await taking.call(text)
                assert result.is_error is (taking.taken == [])
    check_database(home.path / "sessions.sqlite")
    tally.verdict()


@pytest.mark.long
@pytest.mark.faults("arguments of tool calls")
async def test_arguments_larger_than_the_window_end_the_run_and_not_the_session(
    home: Home, project: Path, tally: Tally
) -> None:
    taking = Taking(home, project)
    huge = json.dumps({"value": "a" * 1_000_000})
    async with taking.runtime:
        with tally.case("arguments"):
            taking.script = [Calls(calls=[ScriptedCall(name="take", arguments=huge)]), "done"]
            handle = await taking.runtime.start("go", session_id="s1")
            assert await handle.wait() is RunStatus.FAILED
            assert handle.error is not None
            assert handle.error.code == "prompt_too_long"
            assert not (await taking.call('{"value": 1}')).is_error
        with tally.case("a message"):
            handle = await taking.runtime.start("a" * 1_000_000, session_id="s2")
            assert await handle.wait() is RunStatus.FAILED
            taking.script = ["done"]
            handle = await taking.runtime.start("and now?", session_id="s2")
            assert await handle.wait() is RunStatus.COMPLETED, handle.error
    tally.verdict()


TEXTS = list(NAUGHTY.items())


@pytest.mark.long
@pytest.mark.faults("naughty strings")
async def test_prompts_and_results_of_any_text_are_kept_and_sent(
    home: Home, project: Path, tally: Tally, depth: Depth
) -> None:
    taking = Taking(home, project)
    async with taking.runtime:
        for name, text in depth.of(TEXTS, 10):
            with tally.case(f"prompt: {name}"):
                taking.script = ["done"]
                if not text.strip():
                    with pytest.raises(AgentCoreError, match="the message is empty"):
                        await taking.run(text)
                    continue
                await taking.run(text)
                last = taking.provider.requests[-1].messages[-1]
                assert words(last.content) == storable(text)
            with tally.case(f"result: {name}"):
                taking.says = text
                await taking.call('{"value": 1}')
            with tally.case(f"answer: {name}"):
                taking.script = [Says(text=text)] if text else ["done"]
                await taking.run("go")
            with tally.case(f"argument: {name}"):
                result = await taking.call(json.dumps({"value": text}))
                assert not result.is_error
                assert taking.taken in ([text], [storable(text)])
            with tally.case(f"tool: {name}"):
                taking.script = [calls(text, value=1), "done"]
                (result,) = await taking.run("go")
                assert result.is_error
    check_database(home.path / "sessions.sqlite")
    tally.verdict()


def words(content: Any) -> str:
    return "".join(block.text for block in content if block.type == "text")


def storable(text: str) -> str:
    """Surrogates that are no pair have no UTF-8: they become replacement characters."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@pytest.mark.faults("naughty strings")
async def test_session_ids_of_any_text_are_used_or_refused(
    home: Home, project: Path, tally: Tally, depth: Depth
) -> None:
    async with runtime(home, project, ScriptedProvider(lambda request: Says(text="ok"))) as made:
        for name, text in depth.of(TEXTS, 10):
            with tally.case(f"session: {name}"):
                attempts = (made.start("go", session_id=text), made.replay_session(text))
                refusals = [await refusal(attempt) for attempt in attempts]
                is_id = re.fullmatch(r"[A-Za-z0-9_-]{1,64}", text) is not None
                assert (refusals == [None, None]) is is_id, refusals
                assert set(refusals) <= {None, *REFUSALS}
    assert {path.name for path in (home.path / "sessions").iterdir()} <= {".owners"}
    tally.verdict()


REFUSALS = ("validation_error", "session_not_found", "storage_error")


async def refusal(attempt: Awaitable[object]) -> str | None:
    """The code of the error; None if there is none."""
    try:
        found = await attempt
    except AgentCoreError as error:
        return error.code
    if isinstance(found, RunHandle):
        await found.wait()
    return None


@pytest.mark.faults("naughty strings")
async def test_file_names_and_contents_of_any_text_are_written_as_given_or_refused(
    home: Home, project: Path, tally: Tally, depth: Depth
) -> None:
    inner = project / "inner"
    inner.mkdir()
    script: list[str | Calls] = []
    provider = ScriptedProvider(lambda request: script.pop(0))
    allow = Asked("allow_once")
    async with runtime(home, inner, provider, config=QUIET, permission_callback=allow) as made:
        for name, text in depth.of(TEXTS, 10):
            with tally.case(f"file: {name}"):
                script[:] = [
                    calls("code.write_file", path=f"d/{text}", content=text),
                    calls("code.read_file", path=f"d/{text}"),
                    calls("code.search", pattern="a", path=f"d/{text}"),
                    "done",
                ]
                handle = await made.start("go", session_id="s1")
                assert await handle.wait() is RunStatus.COMPLETED, handle.error
                replay = await made.replay_run(handle.run_id)
                replay.model_dump_json().encode()
                (written,) = results(replay, "code.write_file")
                if written.error is None:
                    # The user has allowed it, wherever it leads; it is where the question said.
                    place = os.path.normpath(f"{inner}/d/{storable(text)}")
                    assert Path(place).read_bytes() == storable(text).encode()
    assert list(project.iterdir()) == [inner]
    tally.verdict()


@pytest.mark.faults("naughty strings")
async def test_titles_of_tasks_of_any_text_are_read_back(
    home: Home, project: Path, tally: Tally, depth: Depth
) -> None:
    chosen = dict(enumerate(depth.of(TEXTS, 10)))
    create = {
        number: calls(
            "agent.task_create",
            task_id=f"t{number}",
            wal_name=f"w{number}",
            title=text,
            description=text,
            steps=[{"step_id": "s1", "title": text}],
        )
        for number, (_, text) in chosen.items()
    }
    look = [calls("agent.task_get", task_id=f"t{number}") for number in chosen]
    played = Cast({"make": [*create.values(), "made"], "look": [*look, "seen"]})
    config = f"{CONFIG}{POOL}[runtime]\nmax_turns = 100\n"
    async with runtime(home, project, played, config=config) as made:
        first = await replayed(made, "make")
    async with runtime(home, project, played, config=config) as made:
        second = await replayed(made, "look")
    made_tasks, seen = results(first, "agent.task_create"), results(second, "agent.task_get")
    for (name, text), was_made, found in zip(chosen.values(), made_tasks, seen, strict=True):
        with tally.case(f"task: {name}"):
            assert was_made.is_error is found.is_error
            if not found.is_error:
                task = data_of(found)
                assert task["title"] == storable(text)
                assert task["steps"][0]["title"] == storable(text)
    tally.verdict()


async def replayed(made: AgentRuntime, text: str) -> ReplayResult:
    handle = await made.start(text, session_id="s1", mode="orchestrator")
    assert await handle.wait() is RunStatus.COMPLETED, handle.error
    return await made.replay_run(handle.run_id)


@pytest.mark.faults("naughty strings")
async def test_the_command_line_takes_any_text(
    home: Home, project: Path, tally: Tally, depth: Depth
) -> None:
    replies = home.write("replies.json", json.dumps(["fine"] * 3))
    home.write_config(
        f'[model]\nprovider = "scripted"\nname = "s"\ncontext_window = 32000\npath = "{replies}"\n'
    )
    for name, text in depth.of([each for each in TEXTS if is_argument(each[1])], 2):
        with tally.case(f"command line: {name}"):
            command = [sys.executable, "-m", "agent_core.cli", "run", "--", text]
            done = await asyncio.to_thread(
                subprocess.run,
                command,
                cwd=project,
                env=home.env(),
                capture_output=True,
                timeout=60,
                check=False,
            )
            assert b"Traceback" not in done.stderr, done.stderr[-500:]
            assert done.returncode in {0, 2}, done.stderr[-500:]
            assert b"\x1b]52" not in done.stdout + done.stderr
    tally.verdict()


def is_argument(text: str) -> bool:
    """Whether the system can hand it to a program."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
