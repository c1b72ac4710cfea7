"""Sessions and models are chosen from lists, in a real terminal."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import chats
from agent_core.providers.scripted import Pauses, calls
from captures import Key, Recording
from chats import CTRL_C, CTRL_D, ENTER, ESCAPE, READY, UP
from isolation import Home
from model_server import ModelServer
from runtimes import ask, runtime
from session_stories import soong

pytestmark = pytest.mark.timeout(120)

OTHER_MODEL = '[model_overrides.quick]\nname = "small"\n'


def converse(
    home: Home, project: Path, server: ModelServer, keys: Sequence[Key], *words: str, **more: Any
) -> Recording:
    return chats.converse(home, project, server, keys, *words, config=OTHER_MODEL, **more)


def hold(home: Home, project: Path, *messages: str) -> None:
    """Sessions that have begun with these messages; the last one is the newest."""

    async def talk() -> None:
        async with runtime(home, project, ["**An** answer."] * len(messages)) as made:
            for number, message in enumerate(messages):
                await ask(made, message, session_id=f"s{number}")

    asyncio.run(talk())


def test_a_session_is_found_by_its_title_and_continued(home: Home, project: Path) -> None:
    hold(home, project, "fix the lamp", "paint the wall", "sweep the floor")
    with ModelServer.in_thread(["The answer."]) as server:
        keys = [
            Key(READY, "/resume" + ENTER),
            Key("Enter takes", UP + "LAMP" + ENTER),
            Key("An answer", "and now?" + ENTER),
            Key("The answer.", CTRL_D),
        ]
        scene = converse(home, project, server, keys, columns=40)
        said = [each["content"] for each in server.requests[0].body["messages"]]
    assert scene.code == 0
    assert "fix the lamp" in said
    assert "**An**" not in scene.text


@pytest.mark.sweep
def test_a_list_that_is_left_changes_nothing_and_a_deleted_session_is_named(
    home: Home, project: Path
) -> None:
    hold(home, project, "fix the lamp", "sweep the floor")

    def delete() -> None:
        assert soong(home, project, "delete", "s1", "--yes").returncode == 0

    with ModelServer.in_thread(["The answer."]) as server:
        keys = [
            Key(READY, "/resume" + ENTER),
            Key("Enter takes", ESCAPE),
            Key(READY, "/sessions" + ENTER),
            Key("Enter takes", CTRL_C),
            Key(READY, "/sessions" + ENTER),
            Key("Enter takes", delete),
            Key("", ENTER),
            Key("there is no session s1", "hello" + ENTER),
            Key("The answer.", CTRL_D),
        ]
        scene = converse(home, project, server, keys)
        assert scene.code == 0
        said = [each["content"] for each in server.requests[0].body["messages"]]
    assert "sweep the floor" not in said


def test_a_model_is_chosen_while_a_run_works_and_its_question_is_answered(
    home: Home, project: Path
) -> None:
    script = [calls("code.write_file", path="b.txt", content="new\n"), "Written.", "Done."]
    with ModelServer.in_thread([Pauses(seconds=2.0), *script]) as server:
        server.facts |= {"/v1/models": {"data": [{"id": "m"}, {"id": "served"}]}}
        keys = [
            Key(READY, "write" + ENTER),
            Key("> write", "/model" + ENTER),
            Key("y once", "y"),
            Key("openai:served", "serv" + ENTER),
            Key("messages go to openai:served", "again" + ENTER),
            Key("Done.", CTRL_D),
        ]
        converse(home, project, server, keys)
        assert (project / "b.txt").read_text() == "new\n"
        assert server.requests[-1].body["model"] == "served"


@pytest.mark.sweep
def test_a_terminal_that_draws_nothing_lists_numbers(home: Home, project: Path) -> None:
    hold(home, project, "fix the lamp", "paint the wall", "sweep the floor")
    with ModelServer.in_thread(["The answer."]) as server:
        keys = [
            Key("> ", "/resume" + ENTER),
            Key("Enter leaves> ", ENTER),
            Key("> ", "/model" + ENTER),
            Key("Enter leaves> ", "quick" + ENTER),
            Key("messages go to quick", "/resume" + ENTER),
            Key("Enter leaves> ", "wall" + ENTER),
            Key("1  now", "1" + ENTER),
            Key("session s1: paint the wall", "and now?" + ENTER),
            Key("The answer.", CTRL_D),
        ]
        scene = converse(home, project, server, keys, "--plain")
        assert scene.code == 0
        assert server.requests[0].body["model"] == "small"
        assert "\x1b" not in scene.raw.decode()
