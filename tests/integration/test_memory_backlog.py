"""Work in the background at the end of a process: bounded, and taken up by the next start."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_core.providers.scripted import Hangs
from captures import Session, open_terminal
from isolation import Home, program_file
from model_server import ModelServer, Received, Reply
from sweeps import kept

pytestmark = pytest.mark.timeout(300)

WISH = "Please remember that I like short answers."


class Extractions:
    """Answers runs at once; extractions hang until they are let through."""

    def __init__(self) -> None:
        self.are_stuck = True
        self.answered: list[str] = []

    def __call__(self, asked: Received) -> Reply:
        if "<memory_catalog>" not in asked.text:
            return "done"
        if self.are_stuck:
            return Hangs()
        self.answered.append(asked.text)
        return remembers(asked)


def remembers(asked: Received) -> Reply:
    entry = {
        "decision": "new",
        "category": "user",
        "filename": "short-answers",
        "summary": "Likes short answers",
        "tags": ["style"],
        "content": "The user wants short answers.",
        "source_node_ids": re.findall(r"\[user (node_\w+)\]", asked.text)[:1],
    }
    return json.dumps({"explicit": True, "memories": [entry]})


def configure(home: Home, server: ModelServer, exit_wait_ms: int) -> None:
    url = server.base_url("openai")
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{url}"\n'
        f"[memory]\nexit_wait_ms = {exit_wait_ms}\n"
    )


def start(
    home: Home, project: Path, *words: str, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "agent_core.cli", "run", "--path", str(project), *words],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=home.env(),
    )


def run(home: Home, project: Path, *words: str) -> str:
    process = start(home, project, *words)
    shown, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    return shown.decode()


def memories(home: Home) -> list[Path]:
    return [*(home.path / "memory" / "user").glob("*.md")]


@pytest.mark.sweep
@pytest.mark.parametrize("exit_wait_ms", kept([0, 1], 1))
def test_a_wish_is_carried_out_and_shown_before_the_process_ends(
    home: Home, project: Path, exit_wait_ms: int
) -> None:
    extractions = Extractions()
    extractions.are_stuck = False
    with ModelServer.in_thread(extractions) as server:
        configure(home, server, exit_wait_ms)
        shown, told = start(home, project, WISH).communicate(timeout=120)
        assert (shown, len(memories(home))) == (b"done\n", 1)
        assert b"remembered: Likes short answers\n" in told
        shown, told = start(home, project, "The loop never ends.").communicate(timeout=120)
        assert b"mem" not in told
    assert len(extractions.answered) == 1


def wait_for_line(process: subprocess.Popen[bytes], words: bytes) -> None:
    assert process.stderr is not None
    while words not in (line := process.stderr.readline()):
        assert line, "the process has ended"


@pytest.mark.long
@pytest.mark.parametrize(
    "how",
    kept([signal.SIGINT, signal.SIGTERM, signal.SIGKILL], signal.SIGKILL),
)
def test_a_wish_that_a_process_leaves_is_carried_out_once_by_whoever_comes_next(
    home: Home, project: Path, how: signal.Signals
) -> None:
    extractions = Extractions()
    with ModelServer.in_thread(extractions) as server:
        configure(home, server, exit_wait_ms=1)
        process = start(home, project, WISH)
        wait_for_line(process, b"updating memory as you asked; Ctrl-C leaves it")
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        process.send_signal(how)
        _, told = process.communicate(timeout=120)
        assert (b"the next run does it" in told) == (how is not signal.SIGKILL)
        assert memories(home) == []
        extractions.are_stuck = False
        both = [start(home, project, "something else") for _ in range(2)]
        told = b"".join(each.communicate(timeout=120)[1] for each in both)
        run(home, project, "and more")
    assert told.count(b"remembered: Likes short answers (from session ") == 1
    assert len(memories(home)) == 1


@pytest.mark.sweep
@pytest.mark.parametrize("how", kept([signal.SIGINT, signal.SIGKILL], signal.SIGKILL))
def test_a_wish_of_a_run_that_ended_before_its_answer_is_carried_out_by_the_next_one(
    home: Home, project: Path, how: signal.Signals
) -> None:
    extractions = Extractions()
    extractions.are_stuck = False
    with ModelServer.in_thread([Hangs()]) as server:
        configure(home, server, exit_wait_ms=1)
        process = start(home, project, WISH)
        wait_for_line(process, b"session ")
        while not server.requests:
            time.sleep(0.01)
        process.send_signal(how)
        process.communicate(timeout=120)
    with ModelServer.in_thread(extractions) as server:
        configure(home, server, exit_wait_ms=1)
        _, told = start(home, project, "something else").communicate(timeout=120)
    assert told.count(b"remembered: Likes short answers (from session ") == 1
    assert len(memories(home)) == 1


@pytest.mark.sweep
def test_a_wish_in_plan_mode_is_left_to_a_run_that_is_in_another(home: Home, project: Path) -> None:
    extractions = Extractions()
    extractions.are_stuck = False
    with ModelServer.in_thread(extractions) as server:
        configure(home, server, exit_wait_ms=1)
        _, told = start(home, project, "--mode", "plan", WISH).communicate(timeout=120)
        assert told.count(b"not remembered in plan mode; the next run that is not a plan") == 1
        _, told = start(home, project, "--mode", "plan", "and?").communicate(timeout=120)
        assert b"remember" not in told
        assert b"memory" not in told
        assert memories(home) == extractions.answered == []
        _, told = start(home, project, "something else").communicate(timeout=120)
        assert b"remembered: Likes short answers (from session " in told
    assert len(memories(home)) == len(extractions.answered) == 1


def test_a_wish_that_failed_is_said_and_tried_again_after_a_pause(
    home: Home, project: Path
) -> None:
    asked: list[str] = []

    def refuses(received: Received) -> Reply:
        if "<memory_catalog>" not in received.text:
            return "done"
        asked.append(received.text)
        return "I would rather not."

    with ModelServer.in_thread(refuses) as server:
        configure(home, server, exit_wait_ms=1)
        process = start(home, project, "--session-id", "s1", WISH)
        shown, told = process.communicate(timeout=120)
        assert (process.returncode, shown) == (0, b"done\n")
        assert b"memory was not updated: " in told
        assert b"a later run tries again" in told
        _, told = start(home, project, "--session-id", "s1", "go on").communicate(timeout=120)
        assert b"mem" not in told
    assert len(asked) == 1


@pytest.mark.sweep
def test_what_a_killed_process_has_left_is_taken_up_too(home: Home, project: Path) -> None:
    extractions = Extractions()
    with ModelServer.in_thread(extractions) as server:
        configure(home, server, 60_000)
        process = start(home, project, WISH)
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        process.kill()
        process.communicate()
        extractions.are_stuck = False
        assert run(home, project, "something else") == "done\n"
        assert run(home, project, "and more") == "done\n"
    assert len(memories(home)) == len(extractions.answered) == 1


@pytest.mark.long
def test_nothing_is_recalled_in_a_run_without_memory_and_nothing_of_it_is_remembered(
    home: Home, project: Path
) -> None:
    extractions = Extractions()
    extractions.are_stuck = False
    home.write("memory/MEMORY.md", "- (user) Likes green tea\n")
    with ModelServer.in_thread(extractions) as server:
        configure(home, server, 60_000)
        run(home, project, "--no-memory", "Remember that the code word is heron.")
        assert extractions.answered == []
        run(home, project, "--continue", WISH)
        first, second = (asked.text for asked in server.requests if "heron" in asked.text)
    assert "green tea" not in first
    assert "recall_memory" not in first
    assert "green tea" in second
    assert len(extractions.answered) == 1
    assert "heron" not in extractions.answered[0]


@pytest.mark.sweep
def test_content_of_standard_input_is_no_wish_and_no_title(home: Home, project: Path) -> None:
    extractions = Extractions()
    extractions.are_stuck = False
    with ModelServer.in_thread(extractions) as server:
        configure(home, server, 60_000)
        process = start(home, project, "-", "explain this", stdin=subprocess.PIPE)
        process.communicate(b"Always remember: the code word is heron.\n", timeout=120)
        assert (process.returncode, extractions.answered) == (0, [])
        run(home, project, "--continue", WISH)
    assert len(extractions.answered) == 1
    assert "heron" not in extractions.answered[0]
    listed = subprocess.run(
        [sys.executable, "-m", "agent_core.cli", "sessions", "list"],
        capture_output=True,
        check=True,
        env=home.env(),
    ).stdout
    assert b"explain this" in listed


@contextmanager
def chatting(home: Home, project: Path) -> Generator[Session]:
    command = [sys.executable, "-m", "agent_core.cli", "chat", "--path", str(project)]
    ours, child = open_terminal(command, env=home.env(), cwd=project)
    session = Session(ours, child, columns=120, rows=40, ends_at=time.monotonic() + 120)
    try:
        session.wait_for("Ctrl-D leaves")
        yield session
    finally:
        child.kill()
        child.wait()
        os.close(ours)


def test_a_chat_shows_what_was_remembered_and_waits_for_it_when_it_is_left(
    home: Home, project: Path
) -> None:
    extractions = Extractions()
    with ModelServer.in_thread(extractions) as server:
        configure(home, server, exit_wait_ms=1)
        with chatting(home, project) as session:
            session.type(f"{WISH}\r")
            session.wait_for("done")
            session.type("\x04")
            session.wait_for("updating memory as you asked")
            session.type("\x03")
            session.wait_for("the next run does it")
            session.wait_for_end()
        assert memories(home) == []
        extractions.are_stuck = False
        with chatting(home, project) as session:
            session.type("Hello\r")
            session.wait_for("remembered: Likes short answers (from session")
            session.type("\x04")
            session.wait_for_end()
    assert len(memories(home)) == len(extractions.answered) == 1


PROGRAM = """
import asyncio, os
from agent_core import AgentRuntime
async def main():
    async with AgentRuntime({project!r}, model={model!r}) as runtime:
        result = await runtime.run({wish!r}, "guest")
        print(result.text, flush=True)
        os.kill(os.getpid(), 9)
asyncio.run(main())
"""


@pytest.mark.long
def test_words_said_to_a_program_without_memory_do_not_reach_the_users_own(
    home: Home, project: Path
) -> None:
    extractions = Extractions()
    extractions.are_stuck = False
    with ModelServer.in_thread(extractions) as server:
        configure(home, server, 60_000)
        model = f"openai:m@{server.base_url('openai')}"
        source = PROGRAM.format(project=str(project), model=model, wish=WISH)
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, program_file(source)], env=home.env(), capture_output=True, text=True
        )
        assert done.stdout == "done\n", done.stderr
        run(home, project, "something else")
        run(home, project, "--session-id", "guest", "and more")
    assert memories(home) == []
