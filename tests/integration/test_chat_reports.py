"""What users of terminal agents have reported, as one line of a table for each report.

A row says what the user did and what has to hold. Many rows share a conversation: the rows of a
table are typed one after the other, and what the model was sent is compared.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_core.providers.scripted import Pauses, calls
from captures import Key
from chats import (
    BACKSPACE,
    CTRL_D,
    DOWN,
    ENTER,
    LEFT,
    RIGHT,
    UP,
    OpenChat,
    converse,
    open_chat,
    pasted,
    sent,
    words,
)
from isolation import Home
from model_server import ModelServer
from session_stories import soong
from sweeps import sampled

pytestmark = pytest.mark.timeout(120)

ALT_ENTER, ALT_BACKSPACE = "\x1b\r", "\x1b\x7f"
FAMILY, FLAG, THUMB = "👨\u200d👩\u200d👧", "🇩🇪", "👍🏽"


@dataclass(frozen=True)
class Report:
    """A report.

    Attributes:
        says: what was reported, and what has to hold.
        typed: the keys, without the final Enter.
        sent: the message that the model is sent.
    """

    says: str
    typed: str
    sent: str


NEW_LINES = [
    Report("Shift-Enter sends: xterm's form", "a\x1b[27;2;13~b", "a\nb"),
    Report("Shift-Enter sends: kitty's form", "a\x1b[13;2ub", "a\nb"),
    Report("Ctrl-Enter prints its escape sequence", "a\x1b[27;5;13~b", "a\nb"),
    Report("Shift-Enter while Num Lock is on sends", "a\x1b[13;130ub", "a\nb"),
    Report("Alt-Enter sends over ssh", f"a{ALT_ENTER}b", "a\nb"),
    Report("a backslash before Enter is sent as text", "a\\\rb", "a\nb"),
    Report("lines pasted in a terminal without bracketed paste", "a\rb\rc", "a\nb\nc"),
]
MOVING = [
    Report("Backspace leaves half of an emoji", f"hi {FAMILY}{BACKSPACE}!", "hi !"),
    Report("Backspace takes only the skin tone", f"ok {THUMB}{BACKSPACE}!", "ok !"),
    Report("Backspace halves a flag", f"go {FLAG}{BACKSPACE}!", "go !"),
    Report("Backspace takes the accent and leaves the letter", f"cafe\u0301{BACKSPACE}!", "caf!"),
    Report("Hangul typed as letters is deleted in parts", f"\u1112\u1161\u11ab{BACKSPACE}x", "x"),
    Report("the cursor stops inside an emoji", f"{FAMILY}{LEFT}a", f"a{FAMILY}"),
    Report("Right stops inside a flag", f"{FLAG}b\x01{RIGHT}a", f"{FLAG}ab"),
    Report("Delete at an emoji leaves its parts", f"{FAMILY}b\x01\x1b[3~", "b"),
    Report("Left stops at the beginning of a line", f"one{ALT_ENTER}{LEFT}!", "one!"),
    Report(
        "Up in a draft of two lines recalls the history", f"one{ALT_ENTER}two{UP}!", "one!\ntwo"
    ),
    Report("Down does not return to the last line", f"a{ALT_ENTER}b{UP}x{DOWN}y", "ax\nby"),
    Report("Home and End move to the ends of the draft", f"a{ALT_ENTER}b\x1b[Hx\x1b[Fy", "a\nxby"),
    Report("Home and End of other terminals do nothing", "ab\x1b[1~x\x1b[4~y", "xaby"),
    Report("Home and End in application mode do nothing", "ab\x1bOHx\x1bOFy", "xaby"),
    Report("Alt-Left and Ctrl-Left print letters", "one two\x1b[1;3Dx\x1b[1;5Dy", "one yxtwo"),
    Report("Alt-B does not move by a word", "one two\x1bbx", "one xtwo"),
    Report("Alt-F goes beyond the end of the word", "one two\x01\x1bfx", "onex two"),
    Report("Alt-Backspace deletes in the wrong direction", f"one two{ALT_BACKSPACE}x", "one x"),
    Report("Ctrl-Backspace does nothing in kitty", "one two\x1b[127;5ux", "one x"),
    Report("Alt-D deletes the blank behind the word, too", "one two\x01\x1bdx", "x two"),
    Report("Ctrl-W deletes across Chinese words", "你好 世界\x17x", "你好 x"),
    Report("Ctrl-U clears all lines of the draft", f"a{ALT_ENTER}b\x15x", "a\nx"),
    Report("what Ctrl-K has cut cannot be put back", "one two\x01\x0bx\x19", "xone two"),
    Report("a deletion cannot be undone", "one two\x17\x1f", "one two"),
    Report("Ctrl-D with text leaves", "abc\x01\x04", "bc"),
    Report("Ctrl-L takes the draft away", "abc\x0cd", "abcd"),
    Report("Ctrl-T inserts a letter", "ab\x14", "ba"),
    Report("Hebrew is turned around", "שלום עולם", "שלום עולם"),
    Report("Chinese typed with an input method is doubled", "你好世界", "你好世界"),
]
NOISE = [
    Report("a change of the window's focus types [I and [O", "a\x1b[Ib\x1b[Oc", "abc"),
    Report("the answer about a colour lands in the draft", "a\x1b]11;rgb:1e/1e/1e\x1b\\b", "ab"),
    Report("the same, ended by a bell", "a\x1b]11;rgb:1e/1e/1e\x07b", "ab"),
    Report("the answer about the device lands in the draft", "a\x1b[?62;22cb", "ab"),
    Report("the answer about the version does", "a\x1bP>|tmux 3.4\x1b\\b", "ab"),
    Report("the answer about the theme does", "a\x1b[?997;1nb", "ab"),
    Report("the position of the cursor does", "a\x1b[12;5Rb", "ab"),
    Report("the mouse types numbers", "a\x1b[<0;10;20Mb\x1b[<0;10;20mc", "abc"),
    Report("an old mouse report does", "a\x1b[M !!b", "ab"),
    Report("each key comes twice, once for its release", "a\x1b[98;1:1u\x1b[98;1:3uc", "abc"),
    Report("letters come in lower case only", "a\x1b[98:66;2uc\x1b[100;65u", "aBcD"),
    Report("Num Lock turns arrows off", "ac\x1b[1;129Db", "abc"),
    Report("an arrow moves again when it is released", "ab\x1b[1;1:3Dc", "abc"),
    Report("the keypad types nothing", "a\x1b[57400u\x1bOrb", "a12b"),
    Report("Command-V types a v", "a\x1b[118;9ub", "ab"),
    Report("function keys type letters", "a\x1bOPb\x1b[15~c\x1b[2~d", "abcd"),
    Report("Ctrl-Space makes the draft vanish", "a\x00b", "ab"),
]
PASTES = [
    Report("line ends of Windows come doubled", pasted("a\r\nb\r\n") + "c", "a\nb\nc"),
    Report("indentation by tabs is lost", pasted("if x:\n\treturn 1"), "if x:\n\treturn 1"),
    Report("a pasted path is taken for a command", pasted("/usr/lib"), "/usr/lib"),
    Report("a pasted command acts", pasted("/undo"), "/undo"),
    Report("a pasted shell command is run", pasted("!touch made"), "!touch made"),
    Report("a paste with colours breaks off", pasted("\x1b[31mred\x1b[0m"), "\x1b[31mred\x1b[0m"),
    Report("keys inside a paste act", pasted("a\x03\x04b"), "a\x03\x04b"),
    Report("two pastes come in each other's place", pasted("one") + pasted(" two"), "one two"),
    Report("text typed before and behind a paste is lost", f"a {pasted('b')} c", "a b c"),
    Report("a paste into the middle goes to the end", f"ac{LEFT}{pasted('b')}", "abc"),
    Report(
        "a long line is cut: 1,400 letters are sent whole",
        pasted("x" * 1400),
        "x" * 1400,
    ),
    Report("a large paste is sent as its name", pasted("y\n" * 40), ("y\n" * 40).strip()),
]


def hold(chat: OpenChat, reports: Sequence[Report]) -> None:
    for report in reports:
        assert chat.send(report.typed) == report.sent, report.says


@pytest.mark.sweep
def test_reports_of_new_lines(home: Home, project: Path) -> None:
    with open_chat(home, project) as chat:
        for report in NEW_LINES:
            chat.type(report.typed, shows=re.compile(report.sent[-1]))
            chat.pause()
            assert chat.send("") == report.sent, report.says
        chat.type("a", shows="a")
        chat.pause()
        chat.type("\n")
        chat.pause()
        assert chat.send("b") == "a\nb", "Ctrl-J, or Ctrl-Enter as some terminals send it, sends"


def test_reports_of_moving_and_deleting_and_of_what_terminals_send_unasked(
    home: Home, project: Path
) -> None:
    with open_chat(home, project) as chat:
        hold(chat, [*sampled(MOVING, keep=10), *sampled(NOISE, keep=10)])


@pytest.mark.sweep
def test_reports_of_pastes(home: Home, project: Path) -> None:
    with open_chat(home, project) as chat:
        hold(chat, PASTES)
    assert not (project / "made").exists()


MENTIONS: Sequence[tuple[str, str, list[str]]] = [
    ("a file in brackets is not attached", "look (@lamp.py)", ["lamp.py"]),
    ("a file in quotation marks is not attached", 'look "@lamp.py"', ["lamp.py"]),
    ("a possessive belongs to the name", "@lamp.py's unit", ["lamp.py"]),
    ("a comma and a full stop belong to the name", "@lamp.py, @src/x.py.", ["lamp.py", "src/x.py"]),
    ("a line number belongs to the name", "@lamp.py:1-9 is wrong", ["lamp.py"]),
    ("beside Chinese nothing is attached", "看@lamp.py的单位", ["lamp.py"]),
    ("in Chinese brackets nothing is attached", "见「@lamp.py」", ["lamp.py"]),
    ("a Chinese name is not found", "见@说明.md里的", ["说明.md"]),
    ("a hidden folder cannot be named", "@.github/ci.yml", [".github/ci.yml"]),
    ("an ignored file cannot be named", "@local.txt", ["local.txt"]),
    ("./ before the name finds nothing", "@./lamp.py", ["./lamp.py"]),
    ("a name with blanks is cut", 'read @"my notes.txt" now', ["my notes.txt"]),
    ("a folder is not listed", "what is in @src/", ["src/"]),
    ("the same file is sent twice", "@lamp.py and @lamp.py", ["lamp.py"]),
    ("an address is taken for a file", "write to me@lamp.py.org", []),
    ("an empty file is an error", "@empty.txt", ["empty.txt"]),
]


@pytest.mark.sweep
def test_reports_of_named_files(home: Home, project: Path) -> None:
    names = ["lamp.py", "src/x.py", "说明.md", ".github/ci.yml", "local.txt", "my notes.txt"]
    for name in names:
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(f"of {name}\n")
    (project / "empty.txt").touch()
    (project / ".gitignore").write_text("local.txt\n")
    with open_chat(home, project) as chat:
        for says, typed, named in MENTIONS:
            said = chat.send(f"{typed} ")
            found = re.findall(r'from="the (?:file|folder) ([^"]*)"', said)
            assert (found, said.startswith(typed)) == (named, True), says


@pytest.mark.sweep
def test_a_plain_line_says_that_a_message_is_queued(home: Home, project: Path) -> None:
    (project / "lamp.py").write_text("VOLTS = 230\n")
    read = calls("code.read_file", path="lamp.py")
    with ModelServer.in_thread([read, Pauses(seconds=1.0), "First.", "The answer."]) as server:
        keys = [
            Key("> ", f"look{ENTER}"),
            Key("code.read_file", f"/queue and then{ENTER}"),
            Key("queued: this is sent when the run has ended"),
            Key(re.compile(r"First\.[\s\S]*The answer\."), CTRL_D),
        ]
        converse(home, project, server, keys, "--plain")
        assert sent(server) == "and then"


@pytest.mark.sweep
def test_a_message_to_a_run_is_said_to_be_delivered_and_is_in_the_story(
    home: Home, project: Path
) -> None:
    (project / "lamp.py").write_text("VOLTS = 230\n")
    script = [Pauses(seconds=1.0), calls("code.read_file", path="lamp.py"), "The answer."]
    with ModelServer.in_thread(script) as server:
        keys = [
            Key("> ", f"look{ENTER}"),
            Key("look", f"and the unit{ENTER}"),
            Key(re.compile(r"delivered: and the unit[\s\S]*The answer\."), CTRL_D),
        ]
        scene = converse(home, project, server, keys, "--plain")
        assert sent(server) == "and the unit"
    assert "waiting: the run reads this after its next step" in words(scene)
    session = re.search(r"--session-id (\S+)", scene.text)
    assert session is not None
    shown = soong(home, project, "show", session[1]).stdout
    document = soong(home, project, "export", session[1], "--markdown").stdout
    for story in (shown, document):
        assert story.index("look") < story.index("and the unit") < story.index("The answer.")


HELD_ELSEWHERE = {
    "a recalled paste sends its placeholder": (
        "test_a_large_paste_is_recalled_whole_in_this_and_in_another_conversation"
    ),
    "/undo with words reverts files": (
        "test_a_command_with_words_that_it_does_not_take_does_nothing"
    ),
    "a path as the first word is an unknown command": (
        "test_a_message_may_begin_with_a_path_or_a_route"
    ),
    "a cleared draft is lost": "test_a_cleared_draft_comes_back_with_up",
    "Ctrl-C twice in haste leaves": "test_ctrl_c_over_a_draft_never_leaves",
    "leaving keeps the terminal raw": ("test_many_ctrl_c_in_one_read_leave_the_terminal_as_it_was"),
    "messages are lost with Escape": "test_what_waits_is_shown_taken_back_and_sent",
    "sessions vanish with a renamed folder": "test_a_session_follows_its_renamed_folder",
    "$EDITOR with options does not start": (
        "test_the_draft_is_edited_with_its_pastes_and_comes_back_whole"
    ),
    "a dropped image with blanks in its name is text": (
        "test_a_dropped_image_is_sent_unless_its_name_is_deleted"
    ),
    "a question takes keys meant for the line": "test_typing_at_questions.py",
    "a closed terminal leaves a process": "test_a_signal_ends_the_run_in_order",
}


def test_reports_that_other_tests_hold() -> None:
    files = [*Path(__file__).parent.glob("test_*.py")]
    held = "\n".join([*(file.name for file in files), *(file.read_text() for file in files)])
    for says, name in HELD_ELSEWHERE.items():
        assert f"def {name}(" in held or name in held.split("\n"), says
