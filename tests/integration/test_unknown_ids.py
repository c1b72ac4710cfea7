"""A command that is given an id that nothing has says so, and does not do less in silence."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_core.cli.arguments import build_parser
from agent_core.cli.command import execute
from isolation import Home
from runtimes import CONFIG, runtime

CarryOut = Callable[[str], tuple[int, str, str]]

OF_SESSIONS = (
    "approvals list --session-id no-such",
    "permissions explain --session-id no-such -- ls",
    "permissions list --session-id no-such",
    "redo --session-id no-such",
    "redo no-such",
    "sessions delete no-such --yes",
    "sessions export no-such --html -",
    "sessions fork no-such",
    "sessions rename no-such x",
    "sessions show no-such",
    "sessions tree no-such",
    "tasks list --session-id no-such",
    "tasks show t1 --session-id no-such",
    "undo --session-id no-such",
    "undo no-such",
)
OF_OTHERS = (
    "approvals answer no-such allow",
    "attach no-such",
    "cancel no-such",
    "config get no-such",
    "config show no-such",
    "mcp remove no-such",
    "mcp test no-such",
    "memory forget no-such --yes",
    "memory show no-such",
    "permissions forget no-such",
    "sessions show tidy --run no-such",
    "tasks show no-such",
)
BEGINNING = {"run", "chat"}
"""Commands that begin a session under an id that there is not."""


@pytest.fixture
def carried_out(
    home: Home, project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[CarryOut]:
    """Carries out a command in a home with one session, and returns its code and both outputs."""
    for name, value in home.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(project)

    async def begin() -> None:
        async with runtime(home, project, ["Done."], config=CONFIG) as made:
            await made.run("go", session_id="tidy")

    asyncio.run(begin())

    def carry_out(line: str) -> tuple[int, str, str]:
        code = execute(line.split())
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    with Path(os.devnull).open(encoding="utf-8") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield carry_out


def test_an_id_that_nothing_has_is_an_error(carried_out: CarryOut) -> None:
    wrong: list[str] = []
    for line in (*OF_SESSIONS, *OF_OTHERS):
        code, out, err = carried_out(line)
        codes = {2} if line in OF_SESSIONS else {1, 2}
        if code not in codes or "no-such" not in err or out:
            wrong.append(f"{line}: {code}, {out}, {err}")
    assert wrong == []


def test_every_command_that_takes_a_session_is_tried() -> None:
    tried = {tuple(line.split()[:2]) for line in OF_SESSIONS}
    for name, parser in build_parser().commands.items():
        for action, each in parser.commands.items() or [("", parser)]:
            takes = any("--session-id" in option.option_strings for option in each.options)
            if takes and name not in BEGINNING:
                own = {words for words in tried if words[0] == name}
                assert (name, action) in own or not action, (name, action)
                assert own, name


def test_a_session_in_place_of_a_run_is_named(carried_out: CarryOut) -> None:
    for name in ("attach", "cancel"):
        code, _, err = carried_out(f"{name} tidy")
        assert code == 1
        assert "tidy is a session" in err
        assert "soong-agent sessions show tidy" in err


def test_the_tasks_of_a_session_are_chosen_by_its_beginning(carried_out: CarryOut) -> None:
    code, out, err = carried_out("tasks list --session-id tid")
    assert (code, out) == (0, "")
    assert "in session tidy" in err
