"""The last exchanges of a session that is continued: what the screen shows of them."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from agent_core import AgentRuntime
from agent_core.cli.chat.recap import RecapWriter, read_recap
from agent_core.cli.terminal import Terminal
from agent_core.errors import StorageError
from agent_core.history.reading import read_recent
from agent_core.providers.scripted import Fails, calls
from agent_core.types import RunStatus
from isolation import Home
from runtimes import ask, runtime
from tables import together

pytestmark = pytest.mark.timeout(60)


class Screen(StringIO):
    """Both streams of a terminal that draws."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


async def recap(made: AgentRuntime, session_id: str = "s1", term: str = "xterm") -> str:
    screen = Screen()
    terminal = Terminal(screen, screen, environ={"TERM": term, "NO_COLOR": "1"})
    RecapWriter(terminal, str).write(await read_recap(made, session_id), session_id)
    return screen.getvalue()


async def test_answers_are_laid_out_and_calls_are_folded(home: Home, project: Path) -> None:
    (project / "a.txt").write_text("one\n", encoding="utf-8")
    looks = [calls("code.read_file", path="a.txt") for _ in range(9)]
    script = [*looks, "# Found\n\n- **one** line\n\n```\ncode\n```\n"]
    async with runtime(home, project, script) as made:
        await ask(made, "what is in it?")
        shown = await recap(made)
        dumb = await recap(made, term="dumb")
    assert "> what is in it?" in shown
    assert "earlier messages" not in shown
    assert "… 3 earlier steps" in shown
    assert shown.count("code.read_file a.txt") == 6
    assert "**" not in shown
    assert "```" not in shown
    assert "# Found" not in shown
    assert "Found" in shown
    assert "**one** line" in dumb
    assert "\x1b" not in dumb


async def test_only_the_last_exchanges_are_shown_and_what_is_above_is_named(
    home: Home, project: Path
) -> None:
    script = [f"answer {number}" for number in range(8)]
    async with runtime(home, project, script) as made:
        for number in range(8):
            await ask(made, f"message {number}")
        shown = await recap(made)
    for number in range(8):
        assert (f"> message {number}" in shown) == (number > 4)
        assert (f"answer {number}" in shown) == (number > 4)
    assert "earlier messages: soong-agent sessions show s1" in shown


async def test_only_the_end_of_a_long_session_is_read(home: Home, project: Path) -> None:
    async with runtime(home, project, ["an answer"] * 12) as made:
        for number in range(12):
            await ask(made, f"message {number}")
        history = await read_recent(made, "s1", most_events=20)
        assert sum(len(each.entries) for each in history.exchanges) <= 20
        assert "message 11" in [each.prompt for each in history.exchanges]
        assert "message 2" not in [each.prompt for each in history.exchanges]


async def test_a_failure_is_named_and_an_older_branch_is_shown_as_it_is(
    home: Home, project: Path
) -> None:
    script = ["the first answer", "the second answer", Fails(message="no such key")]
    async with runtime(home, project, script) as made:
        await ask(made, "first")
        answered = (await made.replay_session("s1")).session.active_node_id
        await ask(made, "second")
        await ask(made, "third")
        failed = await recap(made)
        await made.switch_node("s1", str(answered))
        older = await recap(made)
    assert "no such key" in failed
    assert "the first answer" in older
    assert "the second answer" not in older


@together(
    ("ended", "shown"),
    [
        (
            {"status": RunStatus.FAILED, "metadata": {"reason": "owner_lost"}},
            "failed: its process ended before it did",
        ),
        ({"status": RunStatus.FAILED, "end_reason": None}, "failed: no reason is known"),
        (
            {"status": RunStatus.CANCELLED, "end_reason": "aborted_tools"},
            "cancelled during a tool call",
        ),
    ],
)
async def test_an_end_without_an_error_has_its_reason(
    ended: dict[str, Any], shown: str, home: Home, project: Path
) -> None:
    async with runtime(home, project, ["an answer"]) as made:
        await ask(made, "hello")
        found = await read_recap(made, "s1")
    exchange = found.exchanges[-1]
    assert exchange.run is not None
    lost = structs.replace(exchange, run=exchange.run.model_copy(update=ended))
    screen = Screen()
    terminal = Terminal(screen, screen, environ={"TERM": "xterm", "NO_COLOR": "1"})
    RecapWriter(terminal, str).write(structs.replace(found, exchanges=[lost]), "s1")
    assert screen.getvalue().endswith(f"{shown}\n")


async def test_a_session_without_messages_and_one_that_is_not_there(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, ["an answer"]) as made:
        await ask(made, "hello")
        await made.undo("s1")
        assert "an answer" not in await recap(made)
        with pytest.raises(StorageError):
            await recap(made, "gone")
