"""A plan says how it is carried out, and nothing does so unasked."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from captures import Key, Shown, record
from chats import AT_REST, CTRL_D, ENTER, READY, TAB, configure, converse, sent
from isolation import Home
from model_server import ModelServer
from sweeps import kept

pytestmark = pytest.mark.timeout(120)

OFFER = "to carry out this plan: "
AT_OFFER = re.compile(rf"{OFFER}[\s\S]*{READY}")


@pytest.mark.sweep
@pytest.mark.parametrize("colours", kept([{}, {"NO_COLOR": "1"}], {}))
def test_tab_writes_the_command_and_enter_sends_it(
    home: Home, project: Path, colours: dict[str, str]
) -> None:
    with ModelServer.in_thread(["A plan.", "A last answer."]) as server:
        keys = [
            Key(READY, f"plan it{ENTER}"),
            Key(AT_OFFER, TAB),
            Key("/mode ask Carry out the plan.", " Quickly" + ENTER),
            Key(AT_REST, f"/mode{ENTER}"),
            Key("mode ask", CTRL_D),
        ]
        scene = converse(home, project, server, keys, "--mode", "plan", env=colours)
        assert sent(server) == "Carry out the plan. Quickly"
        assert len(server.requests) == 2
    assert scene.text.count(OFFER) == 1, "an answer in another mode is no plan"


def test_commands_name_the_model_where_no_configuration_does(home: Home, project: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "agent_core.cli", *words],
            env=home.env(),
            cwd=project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )

    with ModelServer.in_thread(["A plan.", "Done.", "The answer."]) as server:
        model = f"openai:m@{server.base_url('openai')}"
        planned = run("run", "--model", model, "--mode", "plan", "plan it")
        *_, last = planned.stderr.splitlines()
        assert planned.stdout == "A plan.\n"
        assert last.startswith(OFFER)
        assert f" --model {model} " in last
        program, *words = shlex.split(last.removeprefix(OFFER))
        done = run(*words)
        assert (program, sent(server)) == ("soong-agent", "Carry out the plan.")
        assert done.stdout == "Done.\n"
        assert OFFER not in done.stderr, "the run it starts has a mode that may change something"
        scene = record(
            [sys.executable, "-m", "agent_core.cli", "--model", model],
            env=home.env(),
            cwd=project,
            keys=[Key(READY, f"hello{ENTER}"), Key(AT_REST, CTRL_D)],
            columns=200,
        )
    continued = rf"continue: soong-agent chat --session-id sess_\w+ --model {model}"
    assert re.search(continued, scene.text)


@pytest.mark.sweep
def test_what_is_typed_instead_is_sent_in_plan_mode(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["A plan.", "A better plan."]) as server:
        keys = [
            Key(READY, f"plan it{ENTER}"),
            Key(AT_OFFER, f"shorter{ENTER}"),
            Key(Shown(rf"A better plan\.\s+{OFFER}[\s\S]*m . plan"), CTRL_D),
        ]
        converse(home, project, server, keys, "--mode", "plan")
        assert sent(server) == "shorter"


@pytest.mark.sweep
def test_plain_lines_name_the_command(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["A plan.", "A last answer."]) as server:
        keys = [
            Key("> ", f"plan it{ENTER}"),
            Key(re.compile(rf"{OFFER}[\s\S]*> "), f"/mode ask Carry out the plan.{ENTER}"),
            Key(re.compile(r"answer\.[\s\S]*> "), CTRL_D),
        ]
        scene = converse(home, project, server, keys, "--mode", "plan", "--plain")
        assert sent(server) == "Carry out the plan."
    assert f"{OFFER}/mode ask Carry out the plan." in scene.lines


@pytest.mark.long
def test_a_run_names_the_command_that_carries_its_plan_out(home: Home, project: Path) -> None:
    elsewhere = project.parent
    with ModelServer.in_thread(["A plan.", "Done."]) as server:
        configure(home, server)

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(  # noqa: S603 - our own command
                [sys.executable, "-m", "agent_core.cli", *words],
                env=home.env(),
                cwd=elsewhere,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
            )

        planned = run("run", "--mode", "plan", "--path", str(project), "plan it")
        *_, last = planned.stderr.splitlines()
        assert planned.stdout == "A plan.\n"
        assert last.startswith(OFFER)
        program, *command = shlex.split(last.removeprefix(OFFER))
        done = run(*command)
        assert (program, sent(server)) == ("soong-agent", "Carry out the plan.")
        assert OFFER not in done.stderr, "the run it starts has a mode that may change something"
