"""A key that is typed the moment a question begins to show is an answer to it."""

import asyncio
import io
import os
import pty
import select
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any, TextIO, cast

import pytest

from agent_core.cli.elicitation import TerminalElicitation
from agent_core.cli.lines import InputLines
from agent_core.cli.prompt import TerminalPrompt
from agent_core.cli.terminal import Terminal
from agent_core.types import ElicitationRequest, PermissionRequest, ToolPermission
from sweeps import sampled

Step = tuple[str, str]
"""A text that shows, and the keys that are typed at once."""
PATCH = "".join(f"+line {number}\n" for number in range(200))
RULE = '[[permissions.rules]]\ndecision = "allow"\ntool = "x"\n'


class Screen(io.TextIOBase):
    """A screen before which a person types without waiting for the end of the text."""

    def __init__(self, person: int, steps: Sequence[Step]) -> None:
        self.person = person
        self._steps = [*steps]
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self.text += text
        if self._steps and self._steps[0][0] in text:
            os.write(self.person, self._steps.pop(0)[1].encode())
        return len(text)


@contextmanager
def screen(steps: Sequence[Step], term: str) -> Generator[tuple[Screen, Terminal, InputLines]]:
    person, descriptor = pty.openpty()
    try:
        os.write(person, b"y")  # typed before the question: no answer
        shown = Screen(person, steps)
        terminal = Terminal(StringIO(), cast("TextIO", shown), environ={"TERM": term})
        yield shown, terminal, InputLines(descriptor)
    finally:
        os.close(person)
        os.close(descriptor)


def request(**metadata: Any) -> PermissionRequest:
    return PermissionRequest(
        request_id="req_1",
        session_id="sess_1",
        agent_id="agent_1",
        run_id="run_1",
        agent_role="main",
        tool_name="x",
        permission=ToolPermission.WRITE,
        args_summary="the arguments",
        cwd="/p",
        metadata=metadata,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("steps", "decision"),
    [
        ([("the arguments", "n")], "deny"),
        ([("the arguments", "?"), ("tool: x", "n")], "deny"),
        ([("the arguments", "z"), ("not one of the keys", "n")], "deny"),
        ([("the arguments", "w"), ("+++ rules.toml", "y")], "allow_once"),
        ([("the arguments", "w"), ("+++ rules.toml", "n"), ("y once", "n")], "deny"),
        ([("more lines not shown", "v"), ("+line 0", "q"), ("y once", "n")], "deny"),
        ([("more lines not shown", "v"), ("+line 0", "q"), ("y once", "a")], "allow_for_session"),
    ],
)
@pytest.mark.parametrize("term", sampled(["dumb", "xterm"], 1))
async def test_a_permission_question_listens_before_it_shows(
    steps: Sequence[Step], decision: str, term: str
) -> None:
    typed = [(text, keys if term == "xterm" else f"{keys}\n") for text, keys in steps]
    with screen(typed, term) as (_, terminal, lines):
        prompt = TerminalPrompt(terminal, lines, echoes=False)
        async with asyncio.timeout(50):
            answer = await prompt(request(rule=RULE, diff=PATCH))
    assert answer.decision == decision


@pytest.mark.parametrize("purpose", ["login", "question"])
async def test_an_address_of_a_server_can_be_declined_as_soon_as_it_shows(purpose: Any) -> None:
    asked = ElicitationRequest(
        server_id="shop",
        mode="url",
        purpose=purpose,
        message="Pay.",
        url="https://pay.example/x",
        host="pay.example",
    )
    with screen([("host: ", "n\n")], "xterm") as (_, terminal, lines):
        turn, descriptor = asyncio.Lock(), lines.descriptor
        ask = TerminalElicitation(terminal, lines, turn=turn, descriptor=descriptor)
        async with asyncio.timeout(50):
            assert (await ask(asked)).action == "decline"


async def test_a_secret_that_is_typed_as_soon_as_it_is_asked_for_is_not_seen() -> None:
    asked = ElicitationRequest(
        server_id="shop",
        mode="form",
        message="Well?",
        requested_schema={"type": "object", "properties": {"password": {"type": "string"}}},
    )
    with screen([("password (", "hush-hush\n")], "xterm") as (shown, terminal, lines):
        turn, descriptor = asyncio.Lock(), lines.descriptor
        ask = TerminalElicitation(terminal, lines, turn=turn, descriptor=descriptor)
        async with asyncio.timeout(50):
            assert (await ask(asked)).content == {"password": "hush-hush"}
        echoed = select.select([shown.person], [], [], 0)[0]
        assert not echoed or b"hush" not in os.read(shown.person, 4096)


async def test_a_list_can_be_refused_before_it_is_shown_whole() -> None:
    listed = [f"  session {number}" for number in range(20)]
    with screen([("session 0", "n\n")], "xterm") as (shown, terminal, lines):
        async with asyncio.timeout(50):
            assert not await terminal.confirm(lines, "Delete 20? [y/N] ", "delete", listed)
    assert "session 19\n" in shown.text
