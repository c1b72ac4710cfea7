"""Undo, redo, switch and fork at the same time: each is decided on what the others have left."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentCoreError, AgentRuntime, SwitchResult
from agent_core.providers.scripted import calls
from isolation import Home
from runtimes import CONFIG, Asked, ask, runtime
from sweeps import kept, sampled

ON = f'{CONFIG}\n[workspace]\nsnapshots = "turn"\n\n[memory]\nenabled = false\n'
SOONG = str(Path(sys.executable).with_name("soong-agent"))
MESSAGES = 4


def recorded(home: Home, project: Path, *script: Any, config: str = ON) -> AgentRuntime:
    return runtime(home, project, script, config=config, permission_callback=Asked("allow_once"))


def writing() -> list[Any]:
    """Answers to some messages: each writes a file of its own, and one that all of them write."""
    return [
        reply
        for number in range(MESSAGES)
        for reply in (
            calls("code.run_command", argv=["sh", "-c", f"echo {number} | tee {number} > last"]),
            f"wrote {number}",
        )
    ]


def files_of(project: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in project.iterdir()}


def files_after(messages: int) -> dict[str, str]:
    """The files as that many messages leave them."""
    made = {str(number): f"{number}\n" for number in range(messages)}
    return {**made, "last": f"{messages - 1}\n"} if made else {}


async def messages_in(made: AgentRuntime, session_id: str = "s1") -> int:
    """Return the number of messages before the next one."""
    active = next(
        each.active_node_id for each in await made.list_sessions() if each.session_id == session_id
    )
    path = await made.get_node_path(active) if active else []
    return sum(node.text.startswith("message") for node in path)


async def said(made: AgentRuntime) -> None:
    for number in range(MESSAGES):
        await ask(made, f"message {number}")


async def at_once(*moves: Awaitable[SwitchResult]) -> list[SwitchResult]:
    """Make moves at the same time; returns what was done, without those that had nothing to do."""
    done = await asyncio.gather(*moves, return_exceptions=True)
    for each in done:
        if isinstance(each, BaseException):
            assert isinstance(each, AgentCoreError), each
            assert "there is nothing to" in each.message
    return [each for each in done if isinstance(each, SwitchResult)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "runtimes"),
    kept(list(product((2, MESSAGES, MESSAGES + 2), (1, 2))), (MESSAGES + 2, 2)),
)
async def test_undos_at_once_undo_one_message_each(
    home: Home, project: Path, count: int, runtimes: int
) -> None:
    async with recorded(home, project, *writing()) as made, recorded(home, project) as other:
        await said(made)
        each = [made, other][:runtimes]
        undone = await at_once(*(each[number % runtimes].undo("s1") for number in range(count)))
        left = max(0, MESSAGES - count)
        assert len(undone) == MESSAGES - left
        assert sorted(str(one.message) for one in undone) == [
            f"message {number}" for number in range(left, MESSAGES)
        ]
        assert await messages_in(made) == left
        assert files_of(project) == files_after(left)
        redone = await at_once(*(each[number % runtimes].redo("s1") for number in range(count)))
        assert len(redone) == MESSAGES - left
        assert await messages_in(made) == MESSAGES
        assert files_of(project) == files_after(MESSAGES)


async def test_undos_at_once_without_snapshots(home: Home, project: Path) -> None:
    replies = [f"answer {number}" for number in range(MESSAGES)]
    async with (
        recorded(home, project, *replies, config=CONFIG) as made,
        recorded(home, project, config=CONFIG) as other,
    ):
        await said(made)
        assert len(await at_once(made.undo("s1"), other.undo("s1"), made.undo("s1"))) == 3
        assert await messages_in(made) == MESSAGES - 3
        assert len(await at_once(made.redo("s1"), other.redo("s1"), made.redo("s1"))) == 3
        assert await messages_in(made) == MESSAGES


@pytest.mark.long
async def test_two_programs_undo_two_messages(home: Home, project: Path) -> None:
    async with recorded(home, project, *writing()) as made:
        await said(made)
    begun = [
        subprocess.Popen(  # noqa: S603, ASYNC220 - our own program
            [SOONG, "undo", "s1", "--path", str(project)],
            env=home.env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ended = [await asyncio.to_thread(process.communicate) for process in begun]
    assert [process.returncode for process in begun] == [0, 0], ended
    texts = sorted(line for _, err in ended for line in err.splitlines() if "taken back" in line)
    assert texts == ["taken back: message 2", "taken back: message 3"]
    assert files_of(project) == files_after(MESSAGES - 2)


def mixed(made: AgentRuntime, other: AgentRuntime, nodes: list[str]) -> dict[str, list[Any]]:
    return {
        "undo and redo": [made.undo("s1"), other.redo("s1")],
        "undo and switch": [
            made.undo("s1"),
            other.switch_node("s1", nodes[1], restore_files=True),
        ],
        "switch and switch": [
            made.switch_node("s1", nodes[0], restore_files=True),
            other.switch_node("s1", nodes[2], restore_files=True),
        ],
        "redo and switch": [
            made.redo("s1"),
            other.switch_node("s1", nodes[0], restore_files=True),
        ],
    }


@pytest.mark.parametrize(
    "name",
    sampled(
        [
            "undo and redo",
            "undo and switch",
            *(
                pytest.param(f"{one} and switch", marks=pytest.mark.sweep)
                for one in ("switch", "redo")
            ),
        ],
        keep=1,
    ),
)
async def test_moves_of_all_kinds_agree_with_the_files(
    home: Home, project: Path, name: str
) -> None:
    async with recorded(home, project, *writing()) as made, recorded(home, project) as other:
        nodes: list[str] = []
        for number in range(MESSAGES):
            await ask(made, f"message {number}")
            nodes.append(str((await made.list_sessions())[0].active_node_id))
        await made.undo("s1")
        for _ in range(3):
            moves = mixed(made, other, nodes)
            wanted = moves.pop(name)
            for coroutine in (each for rest in moves.values() for each in rest):
                coroutine.close()
            await at_once(*wanted)
            assert files_of(project) == files_after(await messages_in(made))


@pytest.mark.long
async def test_a_fork_has_the_files_of_its_conversation(home: Home, project: Path) -> None:
    async with recorded(home, project, *writing()) as made, recorded(home, project) as other:
        await said(made)
        for number in range(3):
            into = project.with_name(f"{project.name}-fork-{number}")
            undoing = asyncio.create_task(other.undo("s1"))
            forked = await made.fork("s1", into=into)
            await undoing
            assert files_of(into) == files_after(await messages_in(made, forked.session_id))


@pytest.mark.long
async def test_a_plain_switch_during_an_undo_is_not_lost(home: Home, project: Path) -> None:
    async with recorded(home, project, *writing()) as made, recorded(home, project) as other:
        nodes: list[str] = []
        for number in range(MESSAGES):
            await ask(made, f"message {number}")
            nodes.append(str((await made.list_sessions())[0].active_node_id))
        await asyncio.gather(made.undo("s1"), other.switch_node("s1", nodes[1]))
        assert await messages_in(made) in {1, 2}, "one undo, before or after the switch"
