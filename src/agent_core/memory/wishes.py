r"""Tell from a user's words whether something is to be remembered or forgotten.

A sentence counts if it *begins* as an instruction or a preference of its writer does: with
"remember", with "always" and a bare verb, with "I prefer". A statement about the work ("the loop
never ends") begins with its subject, and a question counts only if it asks for this very thing
("can you remember …?"). A wish that is missed here is found by a later scan; `wish_words`
therefore lists how wishes begin, and nothing else.
"""

import re
from collections.abc import Iterator
from functools import cache

from msgspec import Struct

from agent_core.memory.wish_words import FORGETTING, LANGUAGES
from agent_core.text.quotes import without_quotes

_MOST_SEARCHED = 16_384
"""Characters searched at either end of a message."""

_LONGEST_SENTENCE = 600
_CODE = r"`[^`\n]*`|(?<!\w)\w{1,64}+\.[a-z]{1,5}\b"
"""Code, and names of files."""
_END = r"(?<=[.!?;:])\s+|(?<=[。！？；：])|\s+[-–—]\s+|[\r\n]+"
_CHINESE_COMMA = r"(?<=[，、])"
_LIST_MARK = r"\A\s*(?:[-*+•]|\d{1,3}[.)、])?\s*[\"'“„«(]*"
_QUESTION = r"[?？]\W*\Z|[吗呢嗎][。.\s]*\Z"


class _Patterns(Struct, frozen=True):
    """The compiled patterns of one language."""

    opening: re.Pattern[str]
    asked: re.Pattern[str]
    wish: re.Pattern[str]
    later: re.Pattern[str]


def is_explicit_request(text: str) -> bool:
    """Return whether a user explicitly asks for something to be remembered or forgotten.

    Only the beginning and the end of a long text are searched; code and quotations are no request.
    """
    if len(text) > 2 * _MOST_SEARCHED:
        text = f"{text[:_MOST_SEARCHED]}\n{text[-_MOST_SEARCHED:]}"
    lower = text.lower()
    likely: list[int] = []
    for number, language in enumerate(LANGUAGES):
        for mark in language.marks:
            if mark in lower:
                likely.append(number)
                break
    if not likely:
        return False
    sentences = list(_sentences(text))
    return any(_is_wish(sentence, _patterns(number)) for number in likely for sentence in sentences)


@cache
def _patterns(number: int) -> _Patterns:
    """Compile the patterns of a language when it is first met."""
    language = LANGUAGES[number]
    wishes = "|".join((*language.wishes, *language.later))
    return _Patterns(
        opening=re.compile(rf"{language.opening}[\s,!.:\-–—]*", re.IGNORECASE),
        asked=re.compile(rf"(?:{language.asked or '(?!)'})[\s,]*", re.IGNORECASE),
        wish=re.compile(wishes, re.IGNORECASE),
        later=re.compile("|".join(language.later) or "(?!)", re.IGNORECASE),
    )


def may_ask_to_forget(text: str) -> bool:
    """Return whether a user's words can ask for something to be forgotten.

    This is generous: it only keeps a model from forgetting something that was not mentioned.
    """
    words = without_quotes(text).lower()
    return any(mark in words for mark in FORGETTING)


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a message, without code, quotations and the marks of lists."""
    text = re.sub(_CODE, " x ", without_quotes(text))
    for sentence in re.split(_END, text):
        sentence = re.sub(_LIST_MARK, "", sentence)[:_LONGEST_SENTENCE].rstrip()
        if sentence:
            yield sentence


def _is_wish(sentence: str, patterns: _Patterns) -> bool:
    is_question = re.search(_QUESTION, sentence) is not None
    starts = list(_starts(sentence, 0, patterns))
    if asked := patterns.asked.match(sentence, starts[-1]):
        starts = list(_starts(sentence, asked.end(), patterns))
    elif is_question:
        return False
    if any(patterns.wish.match(sentence, start) for start in starts):
        return True
    parts = re.split(_CHINESE_COMMA, sentence)
    if len(parts) > 1:
        return any(_is_wish(part, patterns) for part in parts)
    behind = (found.end() for found in re.finditer(r"[,(]\s+|,\s*and\s+", sentence))
    starts = [start for at in behind for start in _starts(sentence, at, patterns)]
    return any(patterns.later.match(sentence, start) for start in starts)


def _starts(sentence: str, start: int, patterns: _Patterns) -> Iterator[int]:
    """Yield where a sentence begins: at `start`, and behind each word of its opening."""
    yield start
    while (found := patterns.opening.match(sentence, start)) and _is_whole_word(sentence, found):
        start = found.end()
        yield start


def _is_whole_word(sentence: str, found: re.Match[str]) -> bool:
    """Return whether a match in letters of an alphabet does not end within a word."""
    end = found.end()
    if end == found.start():
        return False
    last, following = sentence[end - 1], sentence[end : end + 1]
    return not (last.isalpha() and following.isalpha() and ord(last) < 0x2E80)
