"""Questions that appear while a person types: no letter of a text answers one."""

import os
import signal
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_core.providers.scripted import Pauses, calls
from captures import Session, open_terminal
from isolation import Home
from model_server import ModelServer

pytestmark = pytest.mark.timeout(90)

READY, ENTER, CTRL_C, CTRL_D = "sandbox off", "\r", "\x03", "\x04"
WAITS = "has a question, which waits"
WRITES = [calls("code.write_file", path="b.txt", content="new\n"), "Written.", "Done."]
PAUSE_S = 0.15


@contextmanager
def terminal(home: Home, project: Path, server: ModelServer, *argv: str) -> Generator[Session]:
    """A command in a terminal, which is ended at the end."""
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        "context_window = 32000\n[memory]\nenabled = false\n"
    )
    command = [sys.executable, "-m", "agent_core.cli", *argv]
    ours, child = open_terminal(command, env=home.env(), cwd=project)
    try:
        yield Session(ours, child, columns=80, rows=40, ends_at=time.monotonic() + 60)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
        child.wait()
        os.close(ours)


def texts(server: ModelServer) -> str:
    """The last message of the last request."""
    return str(server.requests[-1].body["messages"][-1]["content"])


def type_slowly(session: Session, text: str) -> None:
    for letter in text:
        session.type(letter)
        time.sleep(PAUSE_S)  # a person's pace is what is tested


@pytest.mark.parametrize("options", [(), ("--plain",)], ids=["edited", "plain"])
def test_letters_typed_while_a_question_appears_stay_on_the_line(
    home: Home, project: Path, options: Sequence[str]
) -> None:
    with (
        ModelServer.in_thread([Pauses(seconds=1.0), *WRITES]) as server,
        terminal(home, project, server, "chat", *options) as session,
    ):
        session.wait_for("> " if options else READY)
        session.type(f"write{ENTER}")
        session.wait_for("write")
        type_slowly(session, "then say why y y")
        session.wait_for("y once")
        assert WAITS.encode() in session.recording().raw
        assert not (project / "b.txt").exists()
        session.type(f"n{ENTER}" if options else "n")
        session.wait_for("denied")
        session.wait_for("Written.")
        session.type(ENTER)
        session.wait_for("Done.")
        session.type(CTRL_D)
        session.wait_for_end()
    assert not (project / "b.txt").exists()
    assert texts(server) == "then say why y y"


def test_enter_opens_a_question_and_keeps_the_draft(home: Home, project: Path) -> None:
    with (
        ModelServer.in_thread([Pauses(seconds=1.0), *WRITES]) as server,
        terminal(home, project, server, "chat") as session,
    ):
        session.wait_for(READY)
        session.type(f"write{ENTER}")
        session.wait_for("> write")
        session.type("half a")
        session.wait_for(WAITS)
        session.type(ENTER)
        session.wait_for("y once")
        session.type("y")
        session.wait_for("Written.")
        session.type(f" message{ENTER}")
        session.wait_for("Done.")
        session.type(CTRL_D)
        session.wait_for_end()
    assert (project / "b.txt").read_text() == "new\n"
    assert texts(server) == "half a message"


def test_a_text_that_goes_on_after_a_pause_answers_nothing(home: Home, project: Path) -> None:
    with (
        ModelServer.in_thread([Pauses(seconds=1.0), *WRITES]) as server,
        terminal(home, project, server, "chat") as session,
    ):
        session.wait_for(READY)
        session.type(f"write{ENTER}")
        session.wait_for("> write")
        session.type("then ")
        session.wait_for("y once")  # its author has paused
        type_slowly(session, "yes")
        session.wait_for(WAITS)
        session.wait_for("y once")
        session.type("n")
        session.wait_for("denied")
        session.wait_for("Written.")
        session.type(ENTER)
        session.wait_for("Done.")
        session.type(CTRL_D)
        session.wait_for_end()
    assert not (project / "b.txt").exists()
    assert texts(server) == "then yes"


def test_what_is_typed_during_a_run_answers_no_question(home: Home, project: Path) -> None:
    with (
        ModelServer.in_thread([Pauses(seconds=1.0), *WRITES]) as server,
        terminal(home, project, server, "run", "write") as session,
    ):
        session.wait_for("waiting for the model")
        session.type("y")  # before there is a question, and on while it waits
        session.wait_for(WAITS)
        type_slowly(session, "yy y")
        session.wait_for("y once")
        assert not (project / "b.txt").exists()
        session.type("n")
        session.wait_for("denied")
        session.wait_for_end()
    assert not (project / "b.txt").exists()


def test_a_question_that_waits_goes_away_with_its_run(home: Home, project: Path) -> None:
    with (
        ModelServer.in_thread([Pauses(seconds=1.0), *WRITES]) as server,
        terminal(home, project, server, "chat") as session,
    ):
        session.wait_for(READY)
        session.type(f"write{ENTER}")
        session.wait_for("> write")
        session.type("half a message")
        session.wait_for(WAITS)
        session.type(CTRL_C)
        session.wait_for("cancelled")
        session.type("\x15" + CTRL_D)
        session.wait_for_end()
    assert not (project / "b.txt").exists()
