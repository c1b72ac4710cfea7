"""A person who has left the window is called back: a bell or a notification, and the title."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_core.providers.scripted import calls
from captures import Session, open_terminal
from isolation import Home
from model_server import ModelServer
from sweeps import kept, paired, sampled

pytestmark = pytest.mark.timeout(90)

BELL, SAVE, RESTORE = b"\x07", b"\x1b[22;2t", b"\x1b[23;2t"
WRITES = [calls("code.write_file", path="b.txt", content="new\n"), "Written."]
NOWHERE = {"TERM_PROGRAM": "", "TMUX": "", "STY": "", "ZELLIJ": "", "TERM": "xterm-256color"}


def configure(home: Home, server: ModelServer, after_s: float = 0, *, notify: bool = True) -> None:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        "context_window = 32000\n[memory]\nenabled = false\n"
        f"[terminal]\nnotify_after_s = {after_s}\nnotify = {str(notify).lower()}\n"
    )


@contextmanager
def terminal(
    home: Home, project: Path, *argv: str, environ: Mapping[str, str] | None = None
) -> Generator[tuple[Session, "subprocess.Popen[bytes]"]]:
    """A command in a terminal, which is ended at the end."""
    command = [sys.executable, "-m", "agent_core.cli", *argv]
    env = home.env(**{**NOWHERE, **(environ or {})})
    ours, child = open_terminal(command, env=env, cwd=project)
    try:
        yield Session(ours, child, columns=80, rows=40, ends_at=time.monotonic() + 60), child
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
        child.wait()
        os.close(ours)


def written(
    home: Home,
    project: Path,
    *argv: str,
    environ: Mapping[str, str] | None = None,
    calls_back: Sequence[str] = (),
) -> bytes:
    """Return what a command writes whose question is answered, and which then ends.

    `calls_back` is what the question writes that calls, and what the end does.
    """
    with terminal(home, project, *argv, environ=environ) as (session, _):
        session.wait_for("y once")
        for text in calls_back[:1]:
            session.wait_for(text)
        session.type("y\r" if "--plain" in argv else "y")
        session.wait_for("Written.")
        for text in calls_back[1:]:
            session.wait_for(text)
        if "chat" in argv:
            session.wait_for("sandbox off" if "--plain" not in argv else "> ")
            session.type("\x04")
        session.wait_for_end()
        return session.recording().raw


TITLES = ("has a question", "finished")


CALLED: dict[str, tuple[dict[str, str], bytes]] = {
    "bell": ({}, BELL),
    "program": ({"TERM_PROGRAM": "WezTerm"}, b"\x1b]9;soong-agent: "),
    "kitty": ({"TERM": "xterm-kitty"}, b"\x1b]9;soong-agent: "),
    "foot": ({"TERM": "foot"}, b"\x1b]777;notify;soong-agent;soong-agent: "),
}


@pytest.mark.parametrize(("command", "terminal"), sampled(paired(["chat", "run"], CALLED), keep=1))
def test_a_question_and_the_end_call_and_the_title_is_restored(
    home: Home, project: Path, command: str, terminal: str
) -> None:
    environ, called = CALLED[terminal]
    with ModelServer.in_thread(WRITES) as server:
        configure(home, server)
        raw = written(home, project, command, "write", environ=environ, calls_back=TITLES)
    assert raw.count(called) == 2
    question, _, end = raw.partition(b"allowed once")
    title = b"\x1b]2;soong-agent: "
    assert question.index(SAVE) < question.index(title)
    assert f"code.write_file has a question, in {project.name[:30]}".encode() in question
    assert end.index(RESTORE) < end.index(SAVE) < end.index(title) < end.rindex(RESTORE)
    assert raw.count(SAVE) == raw.count(RESTORE) == 2


@pytest.mark.parametrize("within", sampled(["TMUX", "STY", "ZELLIJ"], keep=1))
def test_a_multiplexer_gets_the_bell_alone(home: Home, project: Path, within: str) -> None:
    with ModelServer.in_thread(WRITES) as server:
        configure(home, server)
        environ = {within: "1", "TERM_PROGRAM": "WezTerm"}
        raw = written(home, project, "chat", "write", environ=environ, calls_back="\a\a")
    assert raw.count(BELL) == 2
    assert b"\x1b]" not in raw
    assert SAVE not in raw


@pytest.mark.long
@pytest.mark.parametrize(
    ("argv", "after_s", "notify", "environ"),
    kept(
        [
            (("chat", "write"), 0, False, {"TERM_PROGRAM": "WezTerm"}),
            pytest.param(("run", "write"), 0, False, {}, marks=pytest.mark.sweep),
            pytest.param(("chat", "write"), 3600, True, {}, marks=pytest.mark.sweep),
            (("run", "write"), 3600, True, {}),
            pytest.param(("chat", "--plain", "write"), 0, True, {}, marks=pytest.mark.sweep),
        ],
        (("chat", "write"), 0, False, {"TERM_PROGRAM": "WezTerm"}),
    ),
    ids=kept(["chat-off", "run-off", "chat-touched", "run-touched", "plain"], "chat-off"),
)
def test_nobody_is_called_who_is_there_or_does_not_want_it(
    home: Home,
    project: Path,
    argv: Sequence[str],
    after_s: float,
    notify: bool,
    environ: dict[str, str],
) -> None:
    with ModelServer.in_thread(WRITES) as server:
        configure(home, server, after_s, notify=notify)
        raw = written(home, project, *argv, environ=environ)
    assert not [each for each in (BELL, SAVE, RESTORE, b"\x1b]") if each in raw]


def test_nothing_is_written_where_there_is_no_terminal(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["Written."]) as server:
        configure(home, server)
        done = subprocess.run(
            [sys.executable, "-m", "agent_core.cli", "run", "write"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=home.env(**NOWHERE),
            cwd=project,
            timeout=60,
            check=True,
        )
    assert done.stdout == b"Written.\n"
    assert b"\x07" not in done.stderr
    assert b"\x1b" not in done.stderr


def test_the_name_of_a_folder_ends_no_sequence(home: Home, project: Path) -> None:
    folder = project / "a\x1b]0;x\x07;\u009cb"
    folder.mkdir()
    with ModelServer.in_thread(WRITES) as server:
        configure(home, server)
        raw = written(home, folder, "chat", "write", environ={"TERM": "foot"}, calls_back=TITLES)
    notes = [part.partition(b"\x1b\\")[0] for part in raw.split(b"\x1b]777;notify;soong-agent;")]
    assert len(notes) == 3
    for note in notes[1:]:
        assert all(chr(byte).isprintable() for byte in note)
        assert b";" not in note
    assert BELL not in raw


@pytest.mark.parametrize("times", kept([1, 2], 1))
@pytest.mark.parametrize("argv", kept([("chat", "write"), ("run", "write")], ("run", "write")))
def test_the_title_is_restored_when_a_signal_ends_the_process(
    home: Home, project: Path, argv: Sequence[str], times: int
) -> None:
    with (
        ModelServer.in_thread(WRITES) as server,
    ):
        configure(home, server)
        with terminal(home, project, *argv) as (session, child):
            session.wait_for("has a question")
            for _ in range(times):
                child.send_signal(signal.SIGTERM)
            session.wait_for_end()
            raw = session.recording().raw
    assert raw.count(SAVE) == raw.count(RESTORE) == 1
    assert child.returncode == 143


@pytest.mark.sweep
def test_the_title_is_restored_before_the_shell_gets_the_terminal(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread(WRITES) as server:
        configure(home, server)
        with terminal(home, project, "chat", "write") as (session, child):
            session.wait_for("has a question")
            session.type("\x1a")
            session.wait_for("[23;2t")
            child.send_signal(signal.SIGCONT)
            session.wait_for("y once")
            session.type("n")
            session.wait_for("Written.")
            session.type("\x04")
            session.wait_for_end()
