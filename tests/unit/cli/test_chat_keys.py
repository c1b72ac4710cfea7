"""Keys are read alike however a terminal reports them, and wherever its reports are cut."""

from prompt_toolkit.key_binding import KeyPress

from agent_core.cli.chat.keys import KeyParser
from tables import together

NEW_LINE = ["escape", "c-m"]
PASTED = "\x1b[200~a\x1b[13;2u\x00b\x1b[201~"


def keys(*pieces: str) -> list[str]:
    read: list[KeyPress] = []
    parser = KeyParser(read.append)
    for piece in pieces:
        parser.feed(piece)
    parser.flush()
    return [getattr(press.key, "value", press.key) for press in read]


CASES = [
    *((f"\x1b[13;{modifiers}u", NEW_LINE) for modifiers in (2, 3, 5, 6, 7, 8)),
    *((f"\x1b[27;{modifiers};13~", NEW_LINE) for modifiers in (2, 3, 5, 6)),
    ("\x1b[13;2:1u", NEW_LINE),
    ("\x1b\r", NEW_LINE),
    ("\r", ["c-m"]),
    ("\x1b[13u", ["c-m"]),
    ("\x1bOM", ["c-m"]),
    ("\x1bOq", ["1"]),
    ("\x1b[99;5u", ["c-c"]),
    ("\x1b[27;5;114~", ["c-r"]),
    ("\x1b[97;2u", ["A"]),
    ("\x1b[97;65u", ["A"]),
    ("\x1b[59:58;2u", [":"]),
    ("\x1b[97;2;65u", ["A"]),
    ("\x1b[97;129u", ["a"]),
    ("\x1b[97;1:2u", ["a"]),
    ("\x1b[97;1:3ub", ["b"]),
    ("\x1b[118;9ub", ["b"]),
    ("\x1b[127;5u", ["escape", "c-h"]),
    ("\x1b[13;129u", ["c-m"]),
    ("\x1b[57414u\x1b[57400u", ["c-m", "1"]),
    ("\x1b[1;129D\x1b[1;1:2D\x1b[1;1:3D", ["left", "left"]),
    ("\x1b[1;133D\x1b[3;129~", ["c-left", "delete"]),
    ("\x1b[9;2u", ["s-tab"]),
    ("\x1b[27u", ["s-escape"]),
    ("\x1b[27;1u", ["s-escape"]),
    ("\x1b", ["s-escape"]),
    ("\x1b\x1b", ["s-escape", "s-escape"]),
    ("a\x1b", ["a", "s-escape"]),
    ("\x9ba", ["a"]),
    ("\x1bb", ["escape", "b"]),
    ("\x1b[A\x1b[1;5C", ["up", "c-right"]),
    ("\x1b\x1b[A", ["escape", "up"]),
    ("\x1b[12;3R", ["<cursor-position-response>"]),
    ("\x00a", ["a"]),
    ("\x1b[32;5ua", ["a"]),
    ("\x1b[1;9Za", ["a"]),
    ("\x1b[99~a", ["a"]),
    ("\x1b[?62;4ca", ["a"]),
    ("\x1b[Ia\x1b[Ob", ["a", "b"]),
    ("\x1b[57441ua", ["a"]),
    ("\x1b]11;rgb:0000/0000/0000\x07a\x1b]52;c;\x1b\\\\b".replace("\\\\", "\\"), ["a", "b"]),
    ("\x1bP1$r0m\x1b\\a", ["a"]),
    ("a" + PASTED + "b", ["a", "<bracketed-paste>", "b"]),
]


@together(("typed", "read"), CASES)
def test_a_key_is_read_whole_and_nothing_else_is_typed(typed: str, read: list[str]) -> None:
    assert keys(typed) == read
    assert keys(*typed) == read
    for at in range(1, len(typed)):
        assert keys(typed[:at], typed[at:]) == read


def test_a_paste_is_taken_as_it_is() -> None:
    read: list[KeyPress] = []
    KeyParser(read.append).feed(PASTED + "x")
    assert [press.data for press in read] == ["a\x1b[13;2u\x00b", "x"]


def test_a_report_that_is_never_finished_types_nothing() -> None:
    assert keys("a\x1b]11;rgb:00") == ["a"]
    assert keys("a\x1b[27;5") == ["a"]
    assert keys("\x1b[") == ["escape", "["]
