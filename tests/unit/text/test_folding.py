"""Words are found however a text writes them: no stored text with the word may be missed."""

import json
import re
import sys
from collections.abc import Iterable
from functools import cache, partial
from unicodedata import normalize

import orjson
import psycopg
import pytest
from hypothesis import given, strategies as st

from agent_core.storage.connections import open_in_memory
from agent_core.text.folding import find_folded, fold, fold_json, pattern_in_json

LETTERS = [
    *'afhijklnstwykK \n"\\%_^[]é\u0301\u0302\u0323',
    *("İ", "ß", "\u017f", "ﬀ", "ﬁ", "ﬃ", "ﬆ", "ŉ", "ẚ", "ǰ", "Å", "각", "ậ", "\U00010400"),
]


@cache
def folded_letters() -> list[str]:
    """Return all letters that are not what they are folded to."""
    return [
        char
        for char in map(chr, range(0x80, sys.maxunicode + 1))
        if not "\ud800" <= char <= "\udfff" and fold(normalize("NFD", char)) != char
    ]


def cases_of(letters: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Return folded words, each with a text that has it, for every part of a letter's form."""
    for char in letters:
        folded = fold(char)
        for start in range(len(folded)):
            for end in range(start + 1, len(folded) + 1):
                for before in ("", *(("b", "ab") if start == 0 else ())):
                    for after in ("", *(("c", "cd") if end == len(folded) else ())):
                        word = f"{before}{folded[start:end]}{after}"
                        yield word, f"ab{char}cd"
                        yield word, f"ab{normalize('NFD', char)}cd"


def missed(cases: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the words and texts whose stored forms do not match, as SQLite compares them."""
    connection = open_in_memory()
    try:
        return [
            (word, text)
            for word, text in cases
            for stored in (orjson.dumps([text]).decode(), json.dumps([text]))
            if connection.execute(
                "SELECT folded(?) LIKE ? ESCAPE '^'", (stored, pattern_in_json(word))
            ).fetchone()[0]
            == 0
        ]
    finally:
        connection.close()


@pytest.mark.long
def test_every_letter_that_folds_is_found_by_each_part_of_its_folded_form() -> None:
    assert len(folded_letters()) > 1000
    cased = [char for char in folded_letters() if char.casefold() != char]
    assert missed(cases_of(cased)) == []
    assert missed(cases_of(folded_letters()[::29])) == []


def test_a_server_folds_as_python_does(database_url: str) -> None:
    texts = [
        *(
            form(f"a{sign}b")
            for sign in folded_letters()
            for form in (str, partial(normalize, "NFD"))
        ),
        *(f"{one}{other}" for one in LETTERS for other in LETTERS),
        "plain TEXT",
        "",
        "Die STRAßE nach İstanbul " * 500,
    ]
    stored = [
        text for each in texts for text in (orjson.dumps([each]).decode(), json.dumps([each]))
    ]
    with psycopg.connect(database_url) as connection:
        found = connection.execute(
            "SELECT given, folded(given) FROM unnest(%s::text[]) AS given", [stored]
        ).fetchall()
    different = [(given, folded) for given, folded in found if folded != fold_json(given)]
    assert [each for each in different if not re.search(r"\\ud[89a-f]", each[0])] == []


@given(st.lists(st.sampled_from(LETTERS), min_size=1, max_size=8), st.data())
def test_every_part_of_a_text_is_found(letters: list[str], data: st.DataObject) -> None:
    text = "".join(letters)
    folded = fold(text)
    start = data.draw(st.integers(0, len(folded) - 1))
    word = folded[start : data.draw(st.integers(start + 1, len(folded)))]
    if fold(word) == word:
        assert missed([(word, text)]) == []
        assert find_folded(text, [word]) is not None


def test_a_word_that_a_text_lacks_is_not_found() -> None:
    assert missed([("border", "bo the rder")]) == [("border", "bo the rder")] * 2
    assert missed([("100%", "100 percent")]) == [("100%", "100 percent")] * 2
    assert missed([("cafe", "ein café!")]) == [("cafe", "ein café!")] * 2
    assert find_folded("Die Straße", ["die", "strasze"]) is None


def test_the_place_of_a_word_is_in_the_text_as_it_is_written() -> None:
    for text in ("İß" * 200, "u\u0308" * 100, "ﬃ각" * 7, "ᾳ\u0323 ", "plain "):
        written = f"{text} the needle in it"
        assert find_folded(written, ["needle"]) == written.index("needle")
        assert find_folded(written, ["needle", "the"]) == written.index("the")


def test_folding_is_that_of_python_on_composed_letters() -> None:
    for char in folded_letters():
        for text in (char, f"{char}\u0323", f"a{char}"):
            expected = normalize("NFC", normalize("NFD", text).casefold())
            assert fold(text) == fold(expected) == expected, ascii(text)
