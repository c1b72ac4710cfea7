"""What a person types in a chat is neither lost nor taken for something else."""

import os
import re
import sys
import termios
import time
from pathlib import Path

import pytest

from agent_core.providers.scripted import Calls, Fails, Hangs, ScriptedCall, calls
from captures import Key, Shown, open_terminal
from chats import (
    AT_REST,
    CTRL_C,
    CTRL_D,
    ENTER,
    ESCAPE,
    READY,
    TAB,
    UP,
    configure,
    converse,
    open_chat,
    pasted,
    sent,
)
from isolation import Home
from model_server import ModelServer

pytestmark = pytest.mark.timeout(90)

CLEAR, CLEARED, ERASE = CTRL_C + "~", "~", "\x7f"
"""Clears the line and types a letter, which shows when the line is drawn again."""


@pytest.mark.sweep
def test_a_large_paste_is_recalled_whole_in_this_and_in_another_conversation(
    home: Home, project: Path
) -> None:
    first, second = ("\n".join(f"{word} {n}" for n in range(30)) for word in ("one", "two"))
    for text in (first, second):
        with ModelServer.in_thread(["The answer.", "Another answer."]) as server:
            keys = [
                Key(READY, "see " + pasted(text)),
                Key("30 lines]", ENTER),
                Key(AT_REST, UP),
                Key("30 lines]", ENTER),
                Key(AT_REST, CTRL_D),
            ]
            converse(home, project, server, keys)
            assert f"see {text}" in sent(server, 0)
            assert f"see {text}" in sent(server, 1)
    with ModelServer.in_thread(["The answer."]) as server:
        keys = [
            Key(READY, pasted("mine\n" * 30)),
            Key("pasted text 1", CLEAR),
            Key(CLEARED, ERASE + UP + UP + UP),
            Key("earlier paste 2", ENTER),
            Key(AT_REST, CTRL_D),
        ]
        converse(home, project, server, keys)
        assert f"see {first}" in sent(server)


NOT_TAKEN = [
    "/undo the print statement you added",
    "/undo don't keep it",
    "/undo --froce",
    "/new idea",
    "/redo it",
    "/last one",
    "/context please",
    "/quit smoking",
    "/tree house",
    "/model one two",
    "/undoo the last",
]
NO_COMMANDS = [
    "/tmp is nearly full",  # noqa: S108 - a message
    "/login redirects twice",
    "/etc/hosts is wrong",
    "/index.html",
    "/api/v1/users",
    "/v2 answers 404",
    "/: not found",
    " /undo is missing in the help",
]


@pytest.mark.sweep
def test_a_command_with_words_that_it_does_not_take_does_nothing(home: Home, project: Path) -> None:
    script = [calls("code.write_file", path="a.txt", content="a"), "The answer."]
    refused = re.compile("error: (?:not understood: |there is no command )")
    with ModelServer.in_thread(script) as server:
        keys = [
            Key(READY, "write" + ENTER),
            Key("? help", "y"),
            *(Key(refused if at else AT_REST, line + ENTER) for at, line in enumerate(NOT_TAKEN)),
            Key(refused, CTRL_D),
        ]
        scene = converse(home, project, server, keys)
        assert scene.code == 0
        assert len(server.requests) == 2
    assert " ".join(scene.text.split()).count("a blank before the / makes the line a message") == 11
    assert (project / "a.txt").read_text() == "a"


@pytest.mark.sweep
def test_a_message_may_begin_with_a_path_or_a_route(home: Home, project: Path) -> None:
    answers = [f"Number {at}." for at, _ in enumerate(NO_COMMANDS)]
    with ModelServer.in_thread(answers) as server:
        before = [READY, *(re.compile(rf"{answer}[\s\S]*sandbox off") for answer in answers)]
        typed = [*(line + ENTER for line in NO_COMMANDS), CTRL_D]
        keys = [Key(after, line) for after, line in zip(before, typed, strict=True)]
        converse(home, project, server, keys)
        said = [sent(server, at) for at, _ in enumerate(NO_COMMANDS)]
        assert said == [line.strip() for line in NO_COMMANDS]


@pytest.mark.sweep
def test_a_file_beside_other_letters_is_attached_and_a_missing_one_is_named(
    home: Home, project: Path
) -> None:
    (project / "lamp.py").write_text("VOLTS = 230\n")
    with ModelServer.in_thread(["The answer."]) as server:
        keys = [
            Key(READY, "请检查@lamp.py的单位(@gone.py)" + ENTER),
            Key("not attached: gone.py, there is no such file", CTRL_D),
        ]
        scene = converse(home, project, server, keys)
        assert "attached: lamp.py" in scene.text
        assert "\nVOLTS = 230\n" in sent(server)


@pytest.mark.sweep
def test_a_file_is_completed_beside_other_letters_and_taken_with_enter(
    home: Home, project: Path
) -> None:
    (project / "lamp.py").write_text("VOLTS = 230\n")
    (project / "lampshade.py").write_text("RED\n")
    with ModelServer.in_thread(["The answer."]) as server:
        keys = [
            Key(READY, "请检查@lam"),
            Key(" lampshade.py", ENTER),
            Key("p.py", "的单位"),
            Key("的单位", ENTER),
            Key(AT_REST, CTRL_D),
        ]
        converse(home, project, server, keys)
        assert sent(server).startswith("请检查@lamp.py的单位")
        assert "\nVOLTS = 230\n" in sent(server)
        assert len(server.requests) == 1


def test_enter_takes_the_selected_entry_and_escape_closes_the_list(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread([]) as server:
        keys = [
            Key(READY, "/mod"),
            Key("the model of the next", "\x1b[B" + ENTER + ENTER),
            Key("mode ask: asks before", "/mod"),
            Key("the model of the next", ENTER + ENTER),
            Key("Enter takes", ESCAPE),
            Key(READY, "/mode"),
            Key("the model of the next", ENTER),
            Key("mode ask: asks before", "/mod"),
            Key("the model of the next", ESCAPE),
            Key("sandbox off", ENTER),
            Key("there is no command /mod (did you mean /mod", CTRL_D),
        ]
        scene = converse(home, project, server, keys)
        assert scene.code == 0


@pytest.mark.sweep
def test_enter_adds_no_word_to_a_command_that_was_not_begun(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["The answer."]) as server:
        keys = [
            Key(READY, "hello" + ENTER),
            Key(AT_REST, "/undo "),
            Key("replace what others", ENTER),
            Key("taken back: hello", "/mode "),
            Key("answers with a plan", "\t"),
            Key("plan", ENTER),
            Key("mode plan", CTRL_C + CTRL_D),
        ]
        scene = converse(home, project, server, keys)
        assert scene.code == 0
        assert "--force " not in scene.text.partition("taken back")[2]


@pytest.mark.sweep
def test_tab_leaves_room_for_the_words_of_a_command(home: Home, project: Path) -> None:
    home.write("commands/review.md", "Review $ARGUMENTS.")
    with ModelServer.in_thread(["The answer.", "A second answer."]) as server:
        keys = [
            Key(READY, "/revi"),
            Key("Review ", TAB + "lamp.py" + ENTER),
            Key(AT_REST, "/revi"),
            Key("Review ", TAB + " cart.py" + ENTER),
            Key("second answer.", CTRL_D),
        ]
        scene = converse(home, project, server, keys)
        assert scene.code == 0
        assert [sent(server, 0), sent(server, 1)] == ["Review lamp.py.", "Review cart.py."]
    assert "> /review cart.py\n" in scene.text


def test_a_mention_in_a_pasted_text_is_text(home: Home, project: Path) -> None:
    (project / "lamp.py").write_text("VOLTS = 230\n")
    with ModelServer.in_thread(["The answer."]) as server:
        keys = [
            Key(READY, pasted("see @lamp.py")),
            Key("see @lamp.py", " now" + ENTER),
            Key(AT_REST, CTRL_D),
        ]
        converse(home, project, server, keys)
        assert sent(server) == "see @lamp.py now"


def test_a_cleared_draft_comes_back_with_up(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["The answer."]) as server:
        keys = [
            Key(READY, "half a thought"),
            Key("half a thought", CLEAR),
            Key(CLEARED, ERASE + UP),
            Key("half a thought", " and the rest" + ENTER),
            Key(AT_REST, CTRL_D),
        ]
        scene = converse(home, project, server, keys)
        assert scene.code == 0
        assert sent(server) == "half a thought and the rest"


@pytest.mark.sweep
def test_ctrl_c_over_a_draft_never_leaves(home: Home, project: Path) -> None:
    with ModelServer.in_thread([Hangs(), "The answer."]) as server:
        keys = [
            Key(READY, "first" + ENTER),
            Key("waiting for the model", "a draft"),
            Key("a draft", CTRL_C + CLEAR),
            Key(re.compile(r"cancelled[\s\S]*sandbox off"), ERASE + UP),
            Key("draft", ENTER),
            Key(AT_REST, CTRL_D),
        ]
        scene = converse(home, project, server, keys)
        assert scene.code == 0
        assert sent(server) == "a draft"


@pytest.mark.sweep
def test_a_cancelled_run_leaves_one_line(home: Home, project: Path) -> None:
    with open_chat(home, project, replies=[Hangs(text="It begins and")]) as chat:
        chat.type("tell" + ENTER, shows="It begins")
        chat.type(ESCAPE, shows=Shown(r"\ncancelled +\n>"))
        lines = [line for line in chat.screen.splitlines() if line.strip()]
        assert [line for line in lines if line.startswith("cancel")] == ["cancelled"]
        assert lines[lines.index("cancelled") - 1] == "It begins and"


@pytest.mark.sweep
def test_enter_with_a_modifier_is_a_new_line(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["The answer."]) as server:
        keys = [
            Key(READY, "one\x1b[13;2u\x00two\x1b[27;5;13~"),
            Key("two", "\x1b[99;99;99Zthree\x1b\rfour" + ENTER),
            Key(AT_REST, CTRL_D),
        ]
        converse(home, project, server, keys)
        assert sent(server) == "one\ntwo\nthree\nfour"


def test_many_ctrl_c_in_one_read_leave_the_terminal_as_it_was(home: Home, project: Path) -> None:
    with ModelServer.in_thread([]) as server:
        configure(home, server)
        command = [sys.executable, "-m", "agent_core.cli", "chat"]
        ours, child = open_terminal(command, env=home.env(), cwd=project)
        try:
            before = termios.tcgetattr(ours)
            shown = b""
            while READY.encode() not in shown:
                shown += os.read(ours, 4096)
            assert termios.tcgetattr(ours) != before
            os.write(ours, 9 * CTRL_C.encode())
            code, ends_at = None, time.monotonic() + 60
            while code is None and time.monotonic() < ends_at:
                code = child.poll()
                time.sleep(0.02)
            assert code == 0
            assert termios.tcgetattr(ours) == before
        finally:
            child.kill()
            child.wait()
            os.close(ours)


@pytest.mark.sweep
def test_a_failed_run_does_not_repeat_what_it_has_said(home: Home, project: Path) -> None:
    (project / "lamp.py").write_text("VOLTS = 230\n")
    call = ScriptedCall(name="code.read_file", arguments={"path": "lamp.py"})
    script = [Calls(text="Let me look at the lamp.", calls=[call]), Fails(message="out of order")]
    with ModelServer.in_thread(script) as server:
        keys = [Key(READY, "look" + ENTER), Key("out of order", CTRL_D)]
        scene = converse(home, project, server, keys)
        assert scene.text.count("Let me look at the lamp.") == 1


@pytest.mark.sweep
def test_a_message_is_shown_with_the_joiners_of_its_script(home: Home, project: Path) -> None:
    text = "\U0001f469\u200d\U0001f467 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"
    with ModelServer.in_thread(["The answer."]) as server:
        keys = [Key(READY, text + ENTER), Key(AT_REST, CTRL_D)]
        scene = converse(home, project, server, keys)
        assert sent(server) == text
    shown = scene.raw.decode()
    assert f"> {text}" in shown
    assert "u200" not in shown
