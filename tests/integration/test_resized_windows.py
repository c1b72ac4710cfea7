"""Windows change their size: no copy of anything is left, nothing that was shown is lost."""

import asyncio
import itertools
import re
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import calls
from isolation import Home
from model_server import ModelServer, Sends, sse
from runtimes import ask, runtime
from sweeps import kept, paired, sampled
from windows import Window, open_window

pytestmark = pytest.mark.timeout(120)

WIDTHS = sampled([(120, 40, 80), (80, 120, 40)], 1)
TERMINALS = pytest.mark.parametrize(
    "reflows", kept([True, False], True), ids=lambda each: "reflows" if each else "cuts"
)
PROGRAMS = pytest.mark.parametrize(
    ("program", "reflows"),
    sampled(paired(["chat", "run"], [True, False]), keep=1),
    ids=lambda each: each if isinstance(each, str) else "reflows" if each else "cuts",
)
READY = "openai:m [·|] ask"
ENTER, CTRL_D, ESCAPE = "\r", "\x04", "\x1b"
LINES = [f"line {number:02} of the code" for number in range(40)]
WORDS = (
    "a sentence of many words that is as long as the window is wide, at any of the widths used; "
)


@contextmanager
def conversing(
    home: Home, project: Path, script: Sequence[Any], *, reflows: bool, columns: int, words: Any
) -> Generator[Window]:
    with ModelServer.in_thread(script) as server:
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
            "context_window = 32000\n[memory]\nenabled = false\n"
        )
        command = [sys.executable, "-m", "agent_core.cli", *words]
        with open_window(
            command, env=home.env(), cwd=project, reflows=reflows, columns=columns
        ) as window:
            yield window


def streamed(text: str) -> Sends:
    """Return a reply that takes some seconds."""
    size = max(len(text) // 30, 1)
    parts = [text[start : start + size] for start in range(0, len(text), size)]
    deltas = [sse({"choices": [{"index": 0, "delta": {"content": part}}]}) for part in parts]
    end = sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return Sends([*deltas, end, b"data: [DONE]\n\n"], pause_s=0.12)


def resize(window: Window, widths: Sequence[int]) -> None:
    for columns in widths:
        window.resize(columns)
        window.settle()


def count(window: Window, text: str) -> int:
    """Return how often a text is in the window and above it, wherever its lines are wrapped."""
    return "".join(line.ljust(1) for line in window.lines).count(text)


@pytest.mark.sweep
@TERMINALS
@pytest.mark.parametrize("widths", WIDTHS)
def test_a_draft_at_the_prompt(
    home: Home, project: Path, *, widths: Sequence[int], reflows: bool
) -> None:
    first, *others = widths
    draft = "".join(f"w{number:02} " for number in range(60))
    with conversing(home, project, [], reflows=reflows, columns=first, words=["chat"]) as window:
        window.wait_until(READY)
        window.type(draft)
        window.wait_until("w59")
        for columns in others:
            window.resize(columns)
            window.settle()
            assert "".join(window.lines).replace(" ", "").count(draft.replace(" ", "")) == 1
            assert "".join(window.lines).count("w3") == 10
            assert sum(bool(re.match(READY, line)) for line in window.lines) == 1
            assert sum("/help lists" in line for line in window.lines) == 1


@PROGRAMS
@pytest.mark.parametrize("widths", WIDTHS)
def test_an_answer_that_streams(
    home: Home, project: Path, *, program: str, widths: Sequence[int], reflows: bool
) -> None:
    first, *others = widths
    code = "\n".join(LINES)
    answer = streamed(f"Begin.\n\n```\n{code}\n```\n\nEnd.\n")
    with conversing(
        home, project, [answer], reflows=reflows, columns=first, words=[program, "go"]
    ) as window:
        steps = itertools.count(6, 8)
        for columns in others:
            window.wait_until(f"line {next(steps):02}")
            window.resize(columns)
        window.wait_until("End[.]")
        if program == "chat":
            window.settle()
            window.type(CTRL_D)
        window.wait_for_end()
        shown = [line for line in window.lines if re.match("line|Begin|End", line)]
        assert shown == ["Begin.", *LINES, "End."]


@pytest.mark.sweep
@PROGRAMS
@pytest.mark.parametrize("widths", WIDTHS)
def test_a_long_paragraph_and_a_spinner(
    home: Home, project: Path, *, program: str, widths: Sequence[int], reflows: bool
) -> None:
    first, *others = widths
    text = "".join(f"{number:02} {WORDS}" for number in range(12)) + "finis."
    answer = streamed(text)
    with conversing(
        home, project, [answer], reflows=reflows, columns=first, words=[program, "go"]
    ) as window:
        for columns, number in zip(others, itertools.count(3, 2), strict=False):
            window.wait_until(f"{number:02} a sentence")
            window.resize(columns)
        if program == "chat":
            window.wait_until("finis[.]")
            window.settle()
            window.type(CTRL_D)
        window.wait_for_end()
        shown = "".join("".join(window.lines).split())
        numbers = re.findall(r"(\d\d)asen", shown)
        assert numbers == sorted({*numbers})
        if reflows:  # else the terminal has cut off what did not fit
            assert shown.count("".join(text.split())) == 1


@pytest.mark.sweep
@TERMINALS
@pytest.mark.parametrize("widths", WIDTHS)
def test_a_list_to_choose_from(
    home: Home, project: Path, *, widths: Sequence[int], reflows: bool
) -> None:
    titles = [f"fix lamp {number} {WORDS}"[:70] for number in range(6)]

    async def talk() -> None:
        async with runtime(home, project, ["An answer."] * len(titles)) as made:
            for number, title in enumerate(titles):
                await ask(made, title, session_id=f"s{number}")

    asyncio.run(talk())
    first, *others = widths
    with conversing(home, project, [], reflows=reflows, columns=first, words=["chat"]) as window:
        window.wait_until(READY)
        window.type(f"/resume{ENTER}")
        window.wait_until("Enter takes")
        for columns in others:
            window.resize(columns)
            window.settle()
            for number in range(6):
                assert sum(f"fix lamp {number}" in line for line in window.lines) == 1
            assert sum(line.startswith("find:") for line in window.lines) == 1
            assert sum("/help lists" in line for line in window.lines) == 1
            assert sum(line.startswith("> /resume") for line in window.lines) == 1


@PROGRAMS
@pytest.mark.parametrize("widths", WIDTHS)
def test_an_open_question(
    home: Home, project: Path, *, program: str, widths: Sequence[int], reflows: bool
) -> None:
    first, *others = widths
    script = [calls("code.run_command", argv=["touch", "a" * 30, "b" * 30]), "All done."]
    with conversing(
        home, project, script, reflows=reflows, columns=first, words=[program, "go"]
    ) as window:
        window.wait_until("help >")
        for columns in others:
            window.resize(columns, is_still=True)
        window.type("n")
        window.wait_until("All done[.]")
        if program == "chat":
            window.settle()
            window.type(CTRL_D)
        window.wait_for_end()
        assert sum(line.startswith("Run: touch") for line in window.lines) == 1
        assert not any("y once" in line for line in window.lines), "its keys are gone"
        assert count(window, "All done.") == 1


@TERMINALS
@pytest.mark.parametrize("widths", WIDTHS)
def test_a_command_that_runs(
    home: Home, project: Path, *, widths: Sequence[int], reflows: bool
) -> None:
    slow = project / "slow"
    slow.write_text(
        "#!/bin/sh\nfor i in 1 2 3; do echo a line of output that is $i of three, and long enough"
        " to be wrapped in a narrow window; done; until [ -e end ]; do sleep 0.05; done\n"
    )
    slow.chmod(0o700)
    first, *others = widths
    script = [calls("code.run_command", argv=["./slow"]), "All done."]
    with conversing(
        home, project, script, reflows=reflows, columns=first, words=["chat", "go"]
    ) as window:
        window.wait_until("help >")
        window.type("y")
        window.wait_until("is 3")
        for columns in others:
            window.resize(columns)
            window.settle()
        (project / "end").touch()
        window.wait_until("All done[.]")
        window.settle()
        window.type(CTRL_D)
        window.wait_for_end()
        assert (
            sum(f"that is {number}" in line for line in window.lines for number in (1, 2, 3)) == 3
        )
        assert count(window, "All done.") == 1
