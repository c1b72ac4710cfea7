"""The patterns that choose stored texts for a search: no text with the word may be missed."""

import json
import sqlite3
import sys
from collections.abc import Iterable

import orjson
from hypothesis import given, strategies as st

from agent_core.runtime.search import _pattern, _snippet

FOLDED = [
    char
    for char in map(chr, range(0x80, sys.maxunicode + 1))
    if not "\ud800" <= char <= "\udfff" and char.casefold() != char
]
LETTERS = [*'afhijklnstwykK \n"\\%_^é', "İ", "ß", "\u017f", "ﬀ", "ﬁ", "ﬃ", "ﬆ", "ŉ", "ẚ", "ǰ"]


def missed(cases: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the words and texts whose stored forms do not match, as SQLite compares them."""
    found: list[tuple[str, str]] = []
    connection = sqlite3.connect(":memory:")
    try:
        for word, text in cases:
            for stored in (json.dumps([text]), orjson.dumps([text]).decode()):
                row = connection.execute("SELECT ? LIKE ? ESCAPE '^'", (stored, _pattern(word)))
                if row.fetchone() == (0,):
                    found.append((word, text))
    finally:
        connection.close()
    return found


def test_every_letter_that_folds_is_found_by_each_part_of_its_folded_form() -> None:
    assert len(FOLDED) > 1000
    parts = (
        (f"{before}{folded[start:end]}{after}", f"ab{char}cd")
        for char in FOLDED
        for folded in (char.casefold(),)
        for start in range(len(folded))
        for end in range(start + 1, len(folded) + 1)
        for before in ("", *(("b", "ab") if start == 0 else ()))
        for after in ("", *(("c", "cd") if end == len(folded) else ()))
    )
    assert missed(parts) == []


@given(st.lists(st.sampled_from(LETTERS), min_size=1, max_size=8), st.data())
def test_every_part_of_a_text_is_found(letters: list[str], data: st.DataObject) -> None:
    text = "".join(letters)
    folded = text.casefold()
    start = data.draw(st.integers(0, len(folded) - 1))
    word = folded[start : data.draw(st.integers(start + 1, len(folded)))]
    assert missed([(word, text)]) == []
    assert _snippet(text, [word]) is not None


def test_the_words_of_a_pattern_still_choose_texts() -> None:
    assert missed([("border", "bo the rder")]) == [("border", "bo the rder")] * 2
    assert missed([("100%", "100 percent")]) == [("100%", "100 percent")] * 2


def test_a_snippet_is_cut_around_the_word_in_the_text_itself() -> None:
    found = _snippet("İß" * 200 + " the needle " + "ß" * 300, ["needle"])
    assert found is not None
    assert "needle" in found
    assert found.index("needle") <= 61
