"""Questions that appear while a person types: no letter of a text answers one."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import Pauses, calls
from captures import Session, Shown, open_terminal
from isolation import Home
from model_server import ModelServer
from sweeps import kept

pytestmark = pytest.mark.timeout(90)

READY, ENTER, CTRL_C, CTRL_D = "sandbox off", "\r", "\x03", "\x04"
WAITS = "asks; Enter"
WRITES = [calls("code.write_file", path="b.txt", content="new\n"), "Written.", "Done."]
PAUSE_S = 0.15
FAST_S = 0.06


def configure(home: Home, server: ModelServer) -> None:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        'context_window = 32000\n[memory]\nenabled = false\n[permissions]\nunattended = "park"\n'
    )


@contextmanager
def terminal(home: Home, project: Path, server: ModelServer, *argv: str) -> Generator[Session]:
    """A command in a terminal, which is ended at the end."""
    configure(home, server)
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


@pytest.mark.long
@pytest.mark.parametrize(
    "options", kept([(), ("--plain",)], ()), ids=kept(["edited", "plain"], "edited")
)
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


def test_a_whole_line_behind_a_plain_draft_answers_no_question(home: Home, project: Path) -> None:
    with (
        ModelServer.in_thread([Pauses(seconds=1.0), *WRITES]) as server,
        terminal(home, project, server, "chat", "--plain") as session,
    ):
        session.wait_for("> ")
        session.type(f"write{ENTER}")
        session.wait_for("write")
        session.type("half a ")
        session.wait_for(WAITS)
        session.type("message\ny\n")  # the second line would be an answer, if it were read alone
        session.wait_for("y once")
        assert not (project / "b.txt").exists()
        session.type(f"n{ENTER}")
        session.wait_for("denied")
        session.wait_for("Written.")
        session.type(ENTER)
        session.wait_for("Done.")
        session.type(CTRL_D)
        session.wait_for_end()
    assert not (project / "b.txt").exists()
    assert texts(server) == "half a message y"


def test_a_plain_draft_can_be_erased_after_the_question(home: Home, project: Path) -> None:
    with (
        ModelServer.in_thread([Pauses(seconds=1.0), *WRITES]) as server,
        terminal(home, project, server, "chat", "--plain") as session,
    ):
        session.wait_for("> ")
        session.type(f"write{ENTER}")
        session.wait_for("write")
        session.type("half")
        session.wait_for("y once")
        session.type(f"n{ENTER}")
        session.wait_for(re.compile(r"denied(?s:.)*> half"))
        session.type("\x7f\x7flt")
        # The run may end meanwhile: the prompt is written anew then, with the whole draft.
        session.wait_for(re.compile(r"\x08 \x08(?s:.)*lt|> halt"))
        session.type(ENTER)
        session.wait_for(re.compile(r"Done\.(?s:.)*> "))
        session.type(CTRL_D)
        session.wait_for_end()
    assert texts(server) == "halt"


@pytest.mark.sweep
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


@pytest.mark.long
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


def test_a_message_begun_at_an_open_question_is_no_answer(home: Home, project: Path) -> None:
    with (
        ModelServer.in_thread([*WRITES]) as server,
        terminal(home, project, server, "chat") as session,
    ):
        session.wait_for(READY)
        session.type(f"write{ENTER}")
        session.wait_for("y once")  # the line is empty, and nothing has been typed since
        session.type("a")
        time.sleep(FAST_S)
        session.type("lso")
        session.wait_for(WAITS)
        session.wait_for("> also")
        session.wait_for("y once")
        session.type("n")
        session.wait_for("denied")
        session.wait_for("Written.")
        session.type(ENTER)
        session.wait_for("Done.")
        session.type(CTRL_D)
        session.wait_for_end()
    assert not (project / "b.txt").exists()
    assert texts(server) == "also"


@pytest.mark.long
@pytest.mark.parametrize(
    "command", kept([("run", "begin"), ("chat", "begin"), ("chat", "--plain")], ("chat", "begin"))
)
def test_a_key_typed_the_moment_a_question_shows_answers_it(
    home: Home, project: Path, command: Sequence[str]
) -> None:
    script = [calls("code.run_command", argv=["echo", f"number-{at}"]) for at in range(12)]
    is_plain = "--plain" in command
    with (
        ModelServer.in_thread([*script, "All done."]) as server,
        terminal(home, project, server, *command) as session,
    ):
        if is_plain:
            session.wait_for("> ")
            session.type(f"begin{ENTER}")
        for at in range(12):
            session.wait_for(f"echo number-{at}")
            session.type(f"n{ENTER}" if is_plain else "n")
            session.wait_for("denied")
        session.wait_for("All done.")
        if command[0] == "chat":
            session.type(CTRL_D)
        session.wait_for_end()


@pytest.mark.long
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


def refuse_at_rest(session: Session, project: Path) -> None:
    """Type while a question appears, and answer no once it is open."""
    session.wait_for(WAITS)
    type_slowly(session, "yy y")
    session.wait_for("y once")
    assert not (project / "b.txt").exists()
    session.type("n")
    session.wait_for("denied")
    session.wait_for_end()
    assert not (project / "b.txt").exists()


def parked(home: Home, project: Path, server: ModelServer) -> dict[str, Any]:
    """Return the question of a run that nobody could answer."""
    configure(home, server)
    words = [sys.executable, "-m", "agent_core.cli"]
    for more in (["run", "write"], ["approvals", "list", "--json"]):
        done = subprocess.run(  # noqa: S603 - our own command
            [*words, *more, "--path", str(project)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=home.env(),
            timeout=60,
            check=True,
        )
    return json.loads(done.stdout)


@pytest.mark.sweep
def test_a_question_that_another_answer_leads_to_waits_for_rest(home: Home, project: Path) -> None:
    first = calls("code.write_file", path="a.txt", content="new\n")
    with ModelServer.in_thread([first, Pauses(seconds=1.0), *WRITES]) as server:
        answer = ("approvals", "answer", parked(home, project, server)["request_id"], "allow")
        with terminal(home, project, server, *answer) as session:
            session.wait_for("waiting for the model")
            session.type("y")
            refuse_at_rest(session, project)
    assert (project / "a.txt").exists()


@pytest.mark.sweep
def test_a_question_at_an_attached_terminal_waits_for_rest(home: Home, project: Path) -> None:
    with ModelServer.in_thread([*WRITES]) as server:
        configure(home, server)
        config = (home.path / "config.toml").read_text("utf-8")
        home.write_config(config.replace('"park"', '"wait"'))
        words = [sys.executable, "-m", "agent_core.cli"]
        with subprocess.Popen(  # noqa: S603 - our own command
            [*words, "run", "write", "--path", str(project), "--events", str(project / "events")],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=home.env(),
        ) as run:
            while '"permission_requested"' not in _text_of(project / "events"):
                time.sleep(0.05)  # the file has no event
            run_id = json.loads(_text_of(project / "events").splitlines()[0])["run_id"]
            with terminal(home, project, server, "attach", run_id) as session:
                session.type("y")  # before the command has begun
                refuse_at_rest(session, project)
            assert run.wait(60) == 0


def _text_of(file: Path) -> str:
    return file.read_text("utf-8") if file.exists() else ""


@pytest.mark.sweep
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


def pasted(text: str) -> str:
    return f"\x1b[200~{text}\x1b[201~"


LINES = "".join(f"\r\nrow {number}" for number in range(20))


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        (pasted("!touch pwned"), "!touch pwned"),
        pytest.param(pasted("!touch pwned\n"), "!touch pwned", marks=pytest.mark.sweep),
        pytest.param(pasted(" !touch pwned"), "!touch pwned", marks=pytest.mark.sweep),
        pytest.param(
            pasted("!touch pwned" + LINES),
            ("!touch pwned" + LINES).replace("\r", ""),
            marks=pytest.mark.sweep,
        ),
        pytest.param(
            "!touch pwned\r!touch pwned\rmore\r",
            "!touch pwned\n!touch pwned\nmore",
            marks=pytest.mark.sweep,
        ),
        pytest.param(pasted("/quit"), "/quit", marks=pytest.mark.sweep),
        ("/quit\rmore\r", "/quit\nmore"),
        pytest.param(
            "x\x7f" + pasted("!!! warning\n    touch pwned"),
            "!!! warning\n    touch pwned",
            marks=pytest.mark.sweep,
        ),
    ],
)
def test_a_paste_is_a_message_whatever_it_begins_with(
    home: Home, project: Path, text: str, sent: str
) -> None:
    with (
        ModelServer.in_thread(["Read it.", "Again."]) as server,
        terminal(home, project, server, "chat") as session,
    ):
        session.wait_for(READY)
        session.type(text)
        time.sleep(0.3)  # a person looks at what was pasted
        session.type(ENTER)
        session.wait_for("Read it.")
        assert texts(server) == sent
        session.type("\x1b[A")  # from the history it is a message again
        session.wait_for("[pasted text 1" if len(sent) > 100 else sent.rpartition("\n")[2])
        time.sleep(0.3)
        session.type(ENTER)
        session.wait_for("Again.")
        session.type(CTRL_D)
        session.wait_for_end()
    assert texts(server) == sent
    assert not (project / "pwned").exists()


@pytest.mark.sweep
def test_the_shell_has_a_prompt_and_takes_one_line(home: Home, project: Path) -> None:
    with (
        ModelServer.in_thread([]) as server,
        terminal(home, project, server, "chat") as session,
    ):
        session.wait_for(READY)
        session.type("!")
        session.wait_for("shell> !")
        session.type("echo of-the-shell")
        time.sleep(0.3)
        session.type("\x1b\r")  # no second line
        session.type(pasted("; echo pasted\ntouch pwned\n"))
        session.wait_for("takes one line: 1 more line of the paste left out")
        session.type(ENTER)
        session.wait_for("with your next message")
        time.sleep(0.5)
        session.type("\x1b[A")
        session.wait_for("shell> !echo of-the-shell")
        session.type(ENTER)
        session.wait_for(Shown(rf"(of-the-shell\s+pasted[\s\S]*){{2}}> *\n.*{READY}"))
        session.type(CTRL_D)
        session.wait_for_end()
        shown = session.recording().text
    assert shown.count("\nof-the-shell\npasted") == 2
    assert not (project / "pwned").exists()


def test_a_line_that_the_terminal_has_cut_is_not_sent(home: Home, project: Path) -> None:
    with (
        ModelServer.in_thread(["One."]) as server,
        terminal(home, project, server, "chat", "--plain") as session,
    ):
        session.wait_for("> ")
        session.type("x" * 5000 + "\r")
        session.wait_for("not sent: the terminal cuts a line at 4,095 bytes")
        session.wait_for("> ")
        session.type("short\r")
        session.wait_for("One.")
        session.type(CTRL_D)
        session.wait_for_end()
    assert texts(server) == "short"


def test_pasted_lines_name_no_command_where_nothing_is_drawn(home: Home, project: Path) -> None:
    with (
        ModelServer.in_thread(["One.", "Two.", "Three."]) as server,
        terminal(home, project, server, "chat", "--plain") as session,
    ):
        session.wait_for("> ")
        session.type("!touch pwned\r!touch pwned\r")
        session.wait_for(re.compile(r"Two\.(?s:.)*\n> "))  # else the echo comes before the prompt
        session.type("!echo of-the-shell\r")
        session.wait_for("with your next message")
        session.type(CTRL_D)
        session.wait_for_end()
        assert "\nof-the-shell" in session.recording().text
    assert not (project / "pwned").exists()
    assert texts(server) == "!touch pwned"
