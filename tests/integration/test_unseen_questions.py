"""Nobody is asked where the question cannot be seen: a terminal or none, for each stream."""

import os
import pty
import shlex
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from agent_core.providers.scripted import calls
from captures import Key, record
from isolation import Home
from model_server import ModelServer

pytestmark = pytest.mark.timeout(90)

SCRIPT = [calls("code.write_file", path="b.txt", content="new\n"), "It is done."]
RUN = [sys.executable, "-m", "agent_core.cli", "run", "write"]


def configure(home: Home, server: ModelServer) -> None:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        "context_window = 32000\n[memory]\nenabled = false\n"
    )


REDIRECTIONS = ("2>err", "2>&-", ">out 2>err", "2>&1 >out | cat >err")


@pytest.mark.long
@pytest.mark.parametrize(
    ("redirection", "key"),
    [
        ("2>err", "n"),
        *(
            pytest.param(each, key, marks=pytest.mark.sweep)
            for each, key in product(REDIRECTIONS, "yn")
            if (each, key) != ("2>err", "n")
        ),
    ],
)
def test_a_person_who_does_not_see_standard_error_is_asked_on_the_terminal(
    home: Home, project: Path, redirection: str, key: str
) -> None:
    with ModelServer.in_thread(SCRIPT) as server:
        configure(home, server)
        scene = record(
            ["sh", "-c", f"{shlex.join(RUN)} {redirection}"],
            env=home.env(),
            cwd=project,
            keys=[Key("y once", key), Key("denied" if key == "n" else "allowed once")],
            seconds=60,
        )
    assert "Write: b.txt" in scene.text
    assert (project / "b.txt").exists() is (key == "y")


@pytest.mark.long
@pytest.mark.parametrize(
    ("redirection", "is_made"),
    [
        pytest.param("</dev/null", False, marks=pytest.mark.sweep),
        pytest.param("</dev/null 2>err", False, marks=pytest.mark.sweep),
        pytest.param("</dev/null >out 2>err", False, marks=pytest.mark.sweep),
        pytest.param("<answers", True, marks=pytest.mark.sweep),
        pytest.param("<answers 2>err", True, marks=pytest.mark.sweep),
        ("<answers >out 2>err", True),
        pytest.param("--answers answers 2>err", True, marks=pytest.mark.sweep),
    ],
)
def test_lines_that_are_no_terminal_answer_whatever_is_seen(
    home: Home, project: Path, redirection: str, *, is_made: bool
) -> None:
    (project / "answers").write_text("1\n", encoding="utf-8")
    with ModelServer.in_thread(SCRIPT) as server:
        configure(home, server)
        command = ["sh", "-c", f"{shlex.join(RUN)} {redirection}"]
        record(command, env=home.env(), cwd=project, seconds=60)
    assert (project / "b.txt").exists() is is_made


def test_without_a_controlling_terminal_nobody_is_asked(home: Home, project: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        with (
            ModelServer.in_thread(SCRIPT) as server,
            (project / "err").open("wb") as err,
        ):
            configure(home, server)
            os.write(ours, b"y\n")
            done = subprocess.run(  # noqa: S603 - our own command
                RUN,
                stdin=theirs,
                stdout=theirs,
                stderr=err,
                env=home.env(),
                cwd=project,
                start_new_session=True,
                timeout=60,
                check=False,
            )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0
    assert not (project / "b.txt").exists()
    assert "nobody answered" in (project / "err").read_text(encoding="utf-8")
