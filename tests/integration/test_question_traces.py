"""A question is taken off the screen when it is answered, and Escape in it goes back one step."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import Calls, Pauses, calls
from captures import Key, Shown
from chats import BACKSPACE, CTRL_C, CTRL_D, ENTER, ESCAPE, LEFT, READY, converse, open_chat, sent
from isolation import Home
from mcp_bench import SERVERS
from model_server import ModelServer
from sweeps import kept, paired, sampled

pytestmark = pytest.mark.timeout(120)

WRITES = calls("code.write_file", path="b.txt", content="new\n")
KEYS = "y once"


def rows(text: str, start: str) -> list[str]:
    """Return the rows of a screen that begin like this."""
    return [line for line in text.splitlines() if line.startswith(start)]


@pytest.mark.parametrize(
    ("command", "answer"),
    sampled(
        paired(
            [("chat", "write"), ("run", "write")],
            [("y", "allowed once"), ("n", "denied"), ("a", "allowed for the session")],
        ),
        keep=1,
    ),
    ids=lambda each: each[0],
)
def test_an_answered_question_leaves_one_line(
    home: Home, project: Path, command: tuple[str, str], answer: tuple[str, str]
) -> None:
    key, said = answer
    with ModelServer.in_thread([WRITES, "Written."]) as server:
        keys = [Key("? help > ", key)]
        keys += (
            [Key(re.compile(rf"Written\.[\s\S]*{READY}"), CTRL_D)] if command[0] == "chat" else []
        )
        scene = converse(home, project, server, keys, command=command)
    assert rows(scene.text, "Write: ") == [f"Write: b.txt  {said}"]
    assert KEYS not in scene.text
    assert (project / "b.txt").exists() is (key != "n")
    assert ("1 + new" in scene.text) is (key != "n")


@pytest.mark.sweep
def test_looking_at_all_of_a_question_leaves_one_line_too(home: Home, project: Path) -> None:
    with ModelServer.in_thread([WRITES, "Written."]) as server:
        keys = [
            Key("? help > ", "?"),
            Key("deny it, with a reason", "x"),
            Key("not one of the keys", "w"),
            Key("goes back > ", ESCAPE),
            Key("? help > ", "y"),
        ]
        scene = converse(home, project, server, keys, command=("run", "write"), rows=80)
    assert rows(scene.text, "Write: ") == ["Write: b.txt  allowed once"]
    assert "deny it" not in scene.text
    assert "goes back" not in scene.text


def test_a_question_that_is_taller_than_the_window_loses_its_keys(
    home: Home, project: Path
) -> None:
    text = "".join(f"row {number}\n" for number in range(60))
    long = calls("code.write_file", path="b.txt", content=text)
    with ModelServer.in_thread([long, "Written."]) as server:
        keys = [
            Key("? help > ", "v"),
            Key("any other key continues > ", " "),
            Key("any other key continues > ", " "),
            Key("? help > ", "y"),
        ]
        scene = converse(home, project, server, keys, command=("run", "write"), rows=24)
    assert rows(scene.text, "Write: ")[-1] == "Write: b.txt  allowed once"
    assert len(rows(scene.text, "y once")) == 1  # of the question that has scrolled off


@pytest.mark.sweep
def test_a_line_that_is_typed_meanwhile_asks_once(home: Home, project: Path) -> None:
    with open_chat(home, project, replies=[Pauses(seconds=1.0), WRITES, "Done.", "2."]) as chat:
        chat.type(f"write{ENTER}", shows="> write")
        chat.type("then ", shows=KEYS)  # its author has paused
        for letter in "yes, rather":
            chat.type(letter)
            chat.pause()
        chat.type("", shows=Shown(r"Enter, or no key[^\0]*> then yes, rather"))
        chat.type("", shows=KEYS)
        chat.type("n", shows=Shown(rf"Done\.\s+> then yes, rather *\n.*{READY}"))
        assert rows(chat.screen, "Write: ") == ["Write: b.txt  denied"]
        assert KEYS not in chat.screen
        chat.pause()
        chat.type(CTRL_C, shows=Shown(rf"> *\n.*{READY}"))
        chat.pause()


def test_escape_at_the_reason_goes_back_to_the_question(home: Home, project: Path) -> None:
    with ModelServer.in_thread([WRITES, "Understood."]) as server:
        keys = [
            Key("? help > ", "e"),
            Key("why not? ", f"half a{LEFT} reas"),
            Key("half a reas", ESCAPE),
            Key("? help > ", "e"),
            Key("why not? ", "no\x7f\x7fnot 中文x"),
            Key("not 中文x", "\x7f now"),
            Key(" now", ENTER),
            Key(re.compile(rf"Understood\.[\s\S]*{READY}"), CTRL_D),
        ]
        scene = converse(home, project, server, keys, "write")
        assert "not 中文 now" in sent(server)
        assert "half" not in sent(server)
    assert rows(scene.text, "Write: ") == ["Write: b.txt  denied"]
    assert "why not" not in scene.text
    assert "cancel" not in scene.text


@pytest.mark.sweep
def test_a_reason_that_wraps_is_erased_across_its_rows(home: Home, project: Path) -> None:
    with open_chat(home, project, replies=[WRITES, "Understood."], columns=40) as chat:
        chat.type(f"write{ENTER}", shows="? help > ")
        chat.pause()
        chat.type("e", shows="why not? ")
        chat.pause()
        chat.type(
            "a reason that is wider than the window is",
            shows=Shown(r"wider th?a?n?\s[^>]*window is"),
        )
        chat.pause()
        chat.type(BACKSPACE * 25, shows=Shown(r"why not\? a reason that is *\n *(\n|\Z)"))
        chat.pause()
        chat.type(
            f" short{ENTER}", shows=Shown(r"b.txt  denied *\n[^\0]*a reason that is short *\n")
        )
        chat.type("", shows=Shown(r"Understood\.\s+> *\n"))
        chat.pause()
    assert "a reason that is short" in sent(chat.server)
    assert "why not" not in chat.screen


FIELDS = {
    "drink": {"type": "string"},
    "cups": {"type": "integer"},
    "password": {"type": "string"},
}


def _ask(home: Home, fields: dict[str, Any], required: list[str]) -> Calls:
    shop = {"command": sys.executable, "args": [str(SERVERS / "plain.py")]}
    (home.path / "mcp.json").write_text(json.dumps({"mcpServers": {"shop": shop}}))
    schema = {"type": "object", "properties": fields, "required": required}
    params = {"message": "What may it be?", "requestedSchema": schema}
    return calls("mcp.shop.ask", method="elicitation/create", params=params)


@pytest.mark.sweep
def test_escape_in_a_form_goes_back_one_field(home: Home, project: Path) -> None:
    asks = _ask(home, FIELDS, [*FIELDS])
    with ModelServer.in_thread([asks, "Served."]) as server:
        keys = [
            Key(re.compile(r"cups \(integer, required\)\s+> "), f"2{ENTER}"),
            Key("drink (string, required)", f"coffee{ENTER}"),
            Key("password (string, required)", f"half{ESCAPE}"),
            Key("drink (string, required)", ESCAPE),
            Key(re.compile(r"cups \(integer, required\)\s+> "), f"3{ENTER}"),
            Key("drink (string, required)", f"tea{ENTER}"),
            Key("password (string, required)", f"se~cret{ENTER}"),
            Key(re.compile(rf"Served\.[\s\S]*{READY}"), CTRL_D),
        ]
        scene = converse(home, project, server, keys, "order")
        told = sent(server)
    assert "tea" in told
    assert "3" in told
    assert "coffee" not in told
    assert "half" not in told
    assert "se~cret" not in scene.raw.decode()
    asked = "MCP server shop: What may it be?  answered"
    assert rows(scene.text, "MCP server") == [asked]


@pytest.mark.sweep
@pytest.mark.parametrize(
    "fields", kept([FIELDS, {}], FIELDS), ids=kept(["form", "consent"], "form")
)
def test_escape_at_the_first_step_answers_nothing_and_ends_no_run(
    home: Home, project: Path, fields: dict[str, Any]
) -> None:
    asks = _ask(home, fields, [])
    with ModelServer.in_thread([asks, "Nothing then."]) as server:
        keys = [
            Key(re.compile(r"asks you[\s\S]* > $"), f"te{ESCAPE}"),
            Key(re.compile(rf"Nothing then\.[\s\S]*{READY}"), CTRL_D),
        ]
        scene = converse(home, project, server, keys, "order")
        assert "cancel" in sent(server)
    assert scene.code == 0
    assert rows(scene.text, "MCP server") == ["MCP server shop: What may it be?  not answered"]
    assert "cancelled" not in scene.text


@pytest.mark.sweep
def test_the_line_that_says_that_a_question_waits_goes_away(home: Home, project: Path) -> None:
    with ModelServer.in_thread([Pauses(seconds=1.0), WRITES, "Written."]) as server:
        keys = [
            Key("waiting for the model", "typed too early"),
            Key("for a second, opens", ""),
            Key("? help > ", "y"),
        ]
        scene = converse(home, project, server, keys, command=("run", "write"))
    assert "for a second, opens" not in scene.text
    assert rows(scene.text, "Write: ") == ["Write: b.txt  allowed once"]
