"""A live text is redacted as the whole text would be, wherever it is cut, and hardly waits."""

import re
import time

import pytest
from hypothesis import example, given, settings, strategies as st

from agent_core.redaction.redactor import Redactor
from agent_core.secret_shapes import (
    ADDRESS_LEADS,
    KEY_LEAD,
    KEYWORDS,
    TOKEN_LEADS,
    Hit,
    judge,
)
from sweeps import examples, is_whole, sampled
from tables import together

REDACTOR = Redactor({"A": "abcabcabd", "B": "abcd", "C": "toktoken=", "D": 'sk-abc"d'})

PIECES = st.sampled_from(
    [
        *TOKEN_LEADS,
        KEY_LEAD,
        *KEYWORDS,
        *ADDRESS_LEADS,
        *("@", "/", ":p@", "u:", "8080", "@sha256:", "$", "p" * 3000),
        *("RSA PRIVATE KEY-----", "PGP PRIVATE KEY BLOCK-----", "-----END ", "PRIVATE KEY-----"),
        *("abc", "abcabcabd", "toktoken=", "A1b2C3d4E5", "x" * 40, "0" * 70, "_access_key", "key"),
        *(":", "=", " ", "\t", "\n", '"', "'", "`", "\\", '\\"', ".", "-", "_", "(", "[", "<", "]"),
        *("Bearer ", "Basic ", "word ", "é", "İ", "\u212a", "\udc80", "\0", ": ", " = ", "=="),
        "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n",
    ]
)


@st.composite
def cut_texts(draw: st.DrawFn) -> list[str]:
    """A text full of secrets and near-secrets, cut anywhere, also inside them."""
    text = "".join(draw(st.lists(PIECES | st.text(max_size=3), max_size=14)))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def streamed(pieces: list[str]) -> str:
    stream = REDACTOR.stream()
    return "".join([*map(stream.feed, pieces), stream.finish()])


@pytest.mark.long
@given(cut_texts())
@settings(max_examples=examples(600), deadline=None)
@example(["password", "=hunter2"])
@example(["abcabcab", "cd"])
@example(['secret="a\\', '"b" c'])
def test_any_cut_gives_the_redaction_of_the_whole(pieces: list[str]) -> None:
    assert streamed(pieces) == REDACTOR.text("".join(pieces))


@given(cut_texts())
@settings(max_examples=examples(200), deadline=None)
def test_one_character_at_a_time_gives_the_redaction_of_the_whole(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert streamed(list(text)) == REDACTOR.text(text)


@given(cut_texts())
@settings(max_examples=examples(200), deadline=None)
def test_bytes_are_redacted_alike_for_any_cut(pieces: list[str]) -> None:
    data = "".join(pieces).encode(errors="surrogatepass")
    stream = REDACTOR.raw_stream()
    cut = len(pieces[0])
    assert stream.feed(data[:cut]) + stream.feed(data[cut:]) + stream.finish() == REDACTOR.raw(data)


def test_ordinary_words_are_shown_at_once() -> None:
    stream = REDACTOR.stream()
    words = ["The", "answer", "is", "quite", "long,", "and", "one", "more", "word:", "done."]
    behind = 0
    text = shown = ""
    for word in words:
        text += word + " "
        shown += stream.feed(word + " ")
        behind = max(behind, len(text) - len(shown))
    assert behind == 0


def test_the_beginning_of_a_secret_waits_and_nothing_else_does() -> None:
    stream = REDACTOR.stream()
    assert stream.feed("see abcab") == "see "
    assert stream.feed("!") == "abcab!"
    assert stream.feed(" password") == " "
    assert stream.feed("s are good!") == "passwords are good!"
    assert stream.finish() == ""


def test_a_secret_without_end_is_not_kept_in_memory() -> None:
    stream = REDACTOR.stream()
    out = stream.feed("password=") + "".join(stream.feed("x" * 1000) for _ in range(1000))
    assert out == "password=[redacted:password]"
    assert len(stream._shapes._text) < 10
    assert stream.feed(" end") == " end"


def test_what_only_looks_unfinished_is_released_after_a_bounded_stretch() -> None:
    for beginning in (
        "eyJ",
        "-----BEGIN PRIVATE KEY-----",
        'token="',
        "token: ",
        "secret_",
        "://a:",
    ):
        stream = REDACTOR.stream()
        stream.feed(beginning)
        for _ in range(300):
            stream.feed("a b+" * 25)
        assert len(stream._shapes._text) + len(stream._held) < 20_000


SIZE = 1_000_000 if is_whole() else 250_000

HOSTILE = {
    "pairs": "password=" * 110_000,
    "calls": "token:(token:(" * 70_000,
    "quotes": 'token="' * 140_000,
    "escapes": 'token="' + '\\"' * 500_000,
    "spaces": "password" + " " * 1_000_000 + "=",
    "leads": "-sk-" * 250_000,
    "web tokens": " eyJaaaaaaaa" * 90_000,
    "one web token": "eyJ" + "a" * 1_000_000,
    "key headers": "-----BEGIN PRIVATE KEY-----" * 38_000,
    "half headers": "-----BEGIN " * 90_000,
    "key bodies": ("-----BEGIN PRIVATE KEY-----\n" + "a b " * 2000) * 120,
    "bearers": "bearer " * 140_000,
    "dashes": "-" * 1_000_000,
    "names": "secret-access-key" * 60_000,
    "values": "abcabcab" * 125_000,
    "dotted web tokens": "eyJaaaa." * 125_000,
    "addresses": "://a:b" * 170_000,
    "paths": "://a:b/" * 150_000,
    "signs": "://a:" + "b@" * 500_000,
    "one address": "://" + "a" * 1_000_000,
}


@pytest.mark.long
@pytest.mark.parametrize("name", sampled(HOSTILE, keep=7))
def test_a_hostile_text_takes_linear_time(name: str) -> None:
    text = HOSTILE[name][:SIZE]
    start = time.process_time()
    whole = REDACTOR.text(text)
    stream = REDACTOR.stream()
    pieces = [stream.feed(text[at : at + 4099]) for at in range(0, len(text), 4099)]
    assert "".join([*pieces, stream.finish()]) == whole
    assert time.process_time() - start < SIZE * 40e-6


def test_ordinary_text_costs_microseconds() -> None:
    text = "the quick brown fox jumps over a lazy dog and sees: nothing, at all-or so " * 13_000
    start = time.process_time()
    assert REDACTOR.text(text) is text
    assert time.process_time() - start < 10


@pytest.mark.long
@together("lead", [*TOKEN_LEADS, KEY_LEAD, "bearer", "password", "api_key"])
def test_a_text_of_beginnings_costs_a_moment(lead: str) -> None:
    text = f"{lead} " * (SIZE // (len(lead) + 1))
    start = time.process_time()
    assert REDACTOR.text(text) is not None
    stream = REDACTOR.stream()
    shown = [stream.feed(text[at : at + 1000]) for at in range(0, len(text), 1000)]
    assert "".join([*shown, stream.finish()]) == REDACTOR.text(text)
    assert time.process_time() - start < SIZE * 15e-6


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        ("-----BEGIN PRIVATE KEY-----\n" + "A" * 8000 + "\n") * 5,
        "-----BEGIN PRIVATE KEY-----\n" + "ab c \n" * 1300,
        ("eyJ" + "a" * 2040 + " ") * 20,
        ("://a:" + "b" * 2040 + " ") * 20,
    ],
    ids=["keys", "an open key", "web tokens", "addresses"],
)
def test_what_waits_for_a_decision_does_not_make_a_small_piece_dear(text: str) -> None:
    stream = REDACTOR.stream()
    start = time.process_time()
    shown = [stream.feed(text[at : at + 4]) for at in range(0, len(text), 4)]
    shown.append(stream.finish())
    assert time.process_time() - start < 5
    assert "".join(shown) == REDACTOR.text(text)


def judged_everywhere(text: str) -> str:
    """The rules of `shapes`, asked at every place where a lead stands."""
    out, at = "", 0
    lower = text.replace("\u0130", "I").lower()
    while at < len(text):
        hits = [
            verdict
            for lead in (*TOKEN_LEADS, KEY_LEAD, *ADDRESS_LEADS, *KEYWORDS)
            if (lower if lead in KEYWORDS else text).startswith(lead, at)
            and not (lead in TOKEN_LEADS and re.match(r"[A-Za-z0-9_-]", text[at - 1 : at]))
            and isinstance(verdict := judge(text, at, lead, final=True), Hit)
        ]
        if not hits:
            out, at = out + text[at], at + 1
            continue
        out += text[at : hits[0].start] + f"[redacted:{hits[0].kind}]"
        at = hits[0].end
        if hits[0].more and (rest := hits[0].more.match(text, at)):
            at = rest.end()
    return out


@given(st.lists(PIECES, max_size=12).map("".join))
@settings(max_examples=examples(500))
def test_no_place_that_the_rules_would_redact_is_passed_over(text: str) -> None:
    assert Redactor({}).text(text) == judged_everywhere(text)
