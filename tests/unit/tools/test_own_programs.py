"""Programs of the project's own environment, and the rule for every command."""

import os
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_core.config.load import read_setup
from agent_core.permissions.saved_rules import SavedRules
from agent_core.redaction.redactor import Redactor
from agent_core.runtime.permission_rules import load_rules
from agent_core.tools.workspace import PathPolicy
from agent_core.types import ToolDefinition
from command_lines import RUN, CommandLines, Judged, make_program


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A project with a virtual environment, as `venv` makes it."""
    for name in ("project/.venv/bin", "project/src", "home", "bin", "user"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("python3.11", "dash", "bash", "timeout", "rm", "make", "sudo", "env", "ls"):
        make_program(tmp_path / "bin" / name)
    (tmp_path / "bin" / "sh").symlink_to("dash")
    (tmp_path / "bin" / "python3").symlink_to("python3.11")
    own = tmp_path / "project" / ".venv"
    (own / "pyvenv.cfg").write_text("home = /usr/bin\n", encoding="utf-8")
    (own / "bin" / "python").symlink_to(tmp_path / "bin" / "python3.11")
    (own / "bin" / "python3").symlink_to("python")
    (own / "bin" / "rm").symlink_to(tmp_path / "bin" / "rm")
    make_program(own / "bin" / "pytest")
    return tmp_path


def lines(
    place: Path, rules: Sequence[Mapping[str, Any]] = (), *, path: Sequence[str] = ("bin",)
) -> CommandLines:
    folders = os.pathsep.join(str(place / folder) for folder in path)
    environ = {"PATH": folders, "HOME": str(place / "user")}
    return CommandLines(place / "project", place / "home", rules=rules, environ=environ)


async def judge(
    place: Path, line: str, *commands: object, path: Sequence[str] = ("bin",)
) -> Judged:
    rules = [{"decision": "allow", "command": command} for command in commands]
    return await lines(place, rules, path=path).judge(shlex.split(line))


PYTHON = [".venv/bin/python", "-m", "pytest", "*"]
LINES = [
    ".venv/bin/python -m pytest -q",
    "./.venv/bin/python -m pytest",
    "sh -c '.venv/bin/python -m pytest -x'",
    "bash -c './.venv/bin/python -m pytest | ls'",
    "timeout 60 .venv/bin/python -m pytest",
    "env .venv/bin/python -m pytest",
]


@pytest.mark.parametrize("line", LINES)
async def test_the_interpreter_of_the_project_is_allowed_by_a_rule_and_by_an_answer(
    place: Path, line: str
) -> None:
    judged = await judge(place, line)
    assert judged.decision == "ask"
    assert judged.action is not None
    assert judged.action.access.reason is None  # so that an answer for the session is kept
    assert (await judge(place, line, PYTHON, ["ls"])).decision == "allow"


@pytest.mark.parametrize("line", ["python -m pytest", "sh -c 'python -m pytest'", "pytest -q"])
async def test_an_activated_environment_is_allowed_by_its_path(place: Path, line: str) -> None:
    path = ("project/.venv/bin", "bin")
    rules = (PYTHON, [".venv/bin/pytest", "*"])
    assert (await judge(place, line, *rules, path=path)).decision == "allow"
    bare = (["python", "*"], ["pytest", "*"], ["python3", "*"])
    assert (await judge(place, line, *bare, path=path)).decision == "ask"


@pytest.mark.parametrize(
    "command", [["python", "*"], ["python3", "*"], ["python3.11", "*"], ["{bin}/python3.11", "*"]]
)
async def test_the_interpreter_of_the_project_is_not_the_systems(
    place: Path, command: list[str]
) -> None:
    words = [word.format(bin=place / "bin") for word in command]
    for line in (".venv/bin/python -c 1", f"{place}/project/.venv/bin/python3 -c 1"):
        assert (await judge(place, line, words)).decision == "ask"


@pytest.mark.parametrize("line", [".venv/bin/python -m pytest", "python -m pytest"])
async def test_a_saved_rule_names_the_interpreter_of_the_project(place: Path, line: str) -> None:
    path = ("project/.venv/bin", "bin")
    judged = await judge(place, line, path=path)
    assert judged.action is not None
    environ = {"PATH": os.pathsep.join(str(place / folder) for folder in path)}
    setup = read_setup(place / "project", home_dir=place / "home")
    rules = load_rules(setup, PathPolicy.of(setup), environ=environ)
    definition = ToolDefinition(name="code.run_command", description="")
    saved = SavedRules(place / "home", rules, Redactor({}))
    rule = saved.propose(definition, judged.action.access, RUN, None)
    assert rule is not None
    command = tomllib.loads(rule)["permissions"]["rules"][0]["command"]
    assert command == [str(place / "project/.venv/bin/python"), "-m", "pytest"]
    assert (await judge(place, line, command, path=path)).decision == "allow"


async def test_another_link_of_the_environment_is_in_doubt(place: Path) -> None:
    judged = await judge(place, ".venv/bin/rm -r src", [".venv/bin/rm", "*"])
    assert (judged.decision, "a link that tools can change" in judged.because) == ("ask", True)
    (place / "project" / ".venv" / "pyvenv.cfg").unlink()
    assert (await judge(place, LINES[0], PYTHON)).decision == "ask"


@pytest.mark.long
@pytest.mark.parametrize(
    "line",
    [
        "make",
        "nice",
        "rm -r src",
        "sudo ls",
        "env X=1 make",
        "sh -c 'X=1; make $X'",
        "sh -c 'ls *.py; $(make)'",
        "bash -c 'source .venv/bin/activate && python -m pytest'",
        "bash -c '[[ -f x ]] && make'",
        "bash -c 'cd src && ./run > out'",
        ".venv/bin/rm -r src",
    ],
)
async def test_a_rule_with_a_star_is_every_command(place: Path, line: str) -> None:
    make_program(place / "bin" / "nice")
    assert (await judge(place, line, ["*"])).decision == "allow"
    assert (await judge(place, line, "*")).decision == "allow"


@pytest.mark.parametrize("line", ["ls /etc", "rm .env", "sh -c 'X=1; ls /etc'", "ls ~/.ssh"])
async def test_a_rule_with_a_star_covers_no_reason_of_its_own(place: Path, line: str) -> None:
    assert (await judge(place, line, ["*"])).decision == "ask"


async def test_what_is_in_doubt_may_be_a_command_that_is_denied(place: Path) -> None:
    rules = [
        {"decision": "allow", "command": ["*"]},
        {"decision": "deny", "command": ["rm", "*"]},
    ]
    for line, expected in (("make", "allow"), ("rm x", "deny"), ("sh -c '$X y'", "ask")):
        assert (await lines(place, rules).judge(shlex.split(line))).decision == expected
