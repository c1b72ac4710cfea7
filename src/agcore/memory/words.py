"""The words of a text, by which pages and queries are compared.

A stored index holds the results of these functions. A change to them must raise the version of the
stores' files, so that pages are indexed again.
"""

import re
import unicodedata
from collections.abc import Set as AbstractSet
from functools import lru_cache
from importlib import import_module
from typing import Any

Words = frozenset[str]

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
_RUN = re.compile(rf"(?P<cjk>[{_CJK}]+)|[^\W_{_CJK}]+")
_LONGEST_STEMMED = 40

_ENGLISH = frozenset(
    re.findall(
        r"\w+",
        """
        a about after all also am an and any are as at be because been before being but by can
        could did do does doing don for from had has have having he her here him his how i if in
        into is it its just me my no nor not of off on or our out over own s she should so some
        such t than that the their them then there these they this those through to too under up
        us very was we were what when where which while who whom why will with would you your
        """,
    )
)
_CHINESE = re.compile(
    "因为|所以|但是|可是|如果|以及|或者|并且|而且|什么|怎么|怎样|如何|哪些|哪个|这个|那个|这些|那些"
    "|我们|你们|他们|她们|它们|一个|一些|可以|没有|不是|就是|还是|关于|请问"
    "|[的了是在和与及或也都就而且着过吗呢吧啊呀我你他她它这那有个把被让给对从向到于之其]"
)


def words_of(text: str) -> Words:
    """Return the stems of a text's words, without stop words; two Chinese characters are one."""
    words: set[str] = set()
    for run in _RUN.finditer(unicodedata.normalize("NFKC", text).casefold()):
        word = run[0]
        if run["cjk"] is None:
            if word not in _ENGLISH:
                words.add(_stem(word) if word.isascii() and word.isalpha() else word)
            continue
        for part in filter(None, _CHINESE.split(word)):
            words |= {part[place : place + 2] for place in range(max(len(part) - 1, 1))}
    return frozenset(words)


def dice(one: AbstractSet[str], other: AbstractSet[str]) -> float:
    """Return the Dice coefficient of two sets: 0 if they share nothing, 1 if they are equal."""
    if not one or not other:
        return 0.0
    return 2 * len(one & other) / (len(one) + len(other))


@lru_cache(maxsize=32_768)
def _stem(word: str) -> str:
    """Return the stem of an English word: `copi` for copy, copies and copied."""
    if len(word) > _LONGEST_STEMMED:
        return word
    # Imported when needed, because it loads 30 languages; it has no types.
    english: Any = import_module("snowballstemmer.english_stemmer")
    # A new one for each word: a stemmer has state, which threads would share.
    return str(english.EnglishStemmer().stemWord(word))
