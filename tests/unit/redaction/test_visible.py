"""What acts on a terminal or deceives the eye is spelled out; everything else is left alone."""

import sys
import unicodedata

from agent_core.text import shortened, visible
from tables import together


@together(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]52;c;ZXZpbA==\x07", r"\x1b]52;c;ZXZpbA==\x07"),
        ("\x9b2J\x85\x7f\0", r"\x9b2J\x85\x7f\x00"),
        ("real\rfake", r"real\rfake"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("a\u202eb\u2066c\u200f", r"a\u202eb\u2066c\u200f"),
        ("tag\U000e0041\U000e007f", r"tag\U000e0041\U000e007f"),
        ("line\u2028sep", r"line\u2028sep"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("\udcff", r"\udcff"),
    ],
)
def test_tricks_are_spelled_out(text: str, expected: str) -> None:
    assert visible(text) == expected


def test_ordinary_text_is_the_same_object() -> None:
    text = "tab\t newline\n Ünïcödé 日本語 עברית 👍🏽"
    assert visible(text) is text


def test_prose_keeps_the_joiners_that_scripts_need() -> None:
    text = "می‌خواهم 👩‍👩‍👧"
    assert visible(text, zero_width=False) is text
    assert visible("a\u202eb", zero_width=False) == r"a\u202eb"


def test_one_line_has_no_newlines() -> None:
    assert visible("a\nb\tc\r\nd", one_line=True) == r"a\nb\tc\r\nd"


def test_no_control_format_or_surrogate_character_gets_through() -> None:
    leaks = [
        hex(code)
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
        and visible(chr(code)) == chr(code)
        and chr(code) not in "\n\t"
        # Visible signs of Arabic, Syriac, Kaithi, hieroglyphs, shorthand and musical notation.
        and not (0x600 <= code <= 0x8E2 or 0x110BD <= code <= 0x1D17A)
    ]
    assert leaks == []


def test_what_is_cut_off_is_counted() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("abcd", 3) == "abc… (+1 character)"
