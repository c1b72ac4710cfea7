"""Titles: the first words of a message, however long it is."""

import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest

from agent_core.text import bounded_line, first_words


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("  fix\tthe \n tests ", "fix the tests"),
        ("fix\x00the\x1b[31m tests\u200b!", "fix the [31m tests !"),
        ("\x00" * 4000 + "fix", "fix"),
        ("löse das — 解決", "löse das — 解決"),
        ("word " * 900, f"{'word ' * 15}word…"),
        ("", ""),
    ],
)
def test_a_title_is_one_line_of_printable_words(text: str, title: str) -> None:
    assert first_words(text) == title


def test_long_text_takes_no_more_steps_than_short() -> None:
    assert _steps("word " * 800) == _steps("word")


def _steps(text: str) -> int:
    called: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        called[event] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        first_words(text)
        bounded_line(text)
    finally:
        sys.setprofile(before)
    return called["call"]
