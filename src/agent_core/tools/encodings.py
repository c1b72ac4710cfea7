"""Which of the old encodings a text is in: the one in which its words look like a language's.

Each candidate reads the text; what counts is the share of letters beyond ASCII that belong to one
alphabet and stand in words as letters do. For scripts with thousands of signs it is the share of
common ones. Equal shares go to the earlier candidate, so that a text that could be Western is.
"""

import codecs
import re
from collections.abc import Callable, Iterable

_SAMPLE_BYTES = 16_384
_BELIEVED = 0.6
"""The least share; below that nothing is said."""
_UPPER_SHARE = 0.95
"""A word in capitals counts less: one encoding's small letters are another one's capitals."""
_FREQUENT, _FREQUENT_SHARE = frozenset("оеаинтсрвл"), 0.6
"""Letters that make up as much of any Cyrillic text; between its encodings nothing else tells."""
_KANA_SHARE = 0.3
_STRONG = 0.05
"""So much better a reading must be than an earlier candidate's."""

_LINE = re.compile(rb"[^\n]*[\x80-\xff][^\n]*")
_WORD = re.compile(r"[^\W\d_]+")
_NEUTRAL = frozenset(
    "\u2018\u2019\u201a\u201c\u201d\u201e\u2013\u2014\u2026\u2022\u20ac\u2122\xa0«»°§©®£·\xd7½€№\xb5"
)
"""Signs that stand anywhere; the one for micro passes for a letter."""
_OPENING = frozenset("¿¡")
_WESTERN = (
    "àâæçéèêëîïôœùûüÿ",  # French
    "äöüß",
    "áéíñóúüçºª",  # Spanish
    "àáâãçéêíóôõúü",  # Portuguese
    "àèéìíîòóùú",  # Italian
    "åäöæøéüàè",  # the Nordic ones
    "àçèéíïòóúü",  # Catalan
    "áàâèéêëíïóôöúûü",  # Dutch
    "áéíóúýðþæö",  # Icelandic
    "äöõüšž",  # Estonian
)
_CENTRAL = (
    "ąćęłńóśźż",
    "áčďéěíňóřšťúůýž",
    "áäčďéíĺľňóôŕšťúýž",
    "áéíóöőúüű",
    "čćđšž",
    "ăâîşţ",
)
_CYRILLIC = (
    "абвгдеёжзийклмнопрстуфхцчшщъыьэюя",
    "абвгґдеєжзиіїйклмнопрстуфхцчшщьюя",
    "абвгдђежзијклљмнњопрстћуфхцчџш",
)
_TURKISH = ("çğıöşüâîû",)
_GREEK = ("αβγδεζηθικλμνξοπρστυφχψωςάέήίόύώϊϋΐΰ",)
_FINAL_SIGMA = "\u03c2"
_IN_ALPHABETS = {
    "cp1252": _WESTERN,
    "cp1250": _CENTRAL,
    "iso8859-2": _CENTRAL,
    "cp1251": _CYRILLIC,
    "koi8-r": _CYRILLIC[:1],
    "koi8-u": _CYRILLIC[1:2],
    "cp1254": _TURKISH,
    "cp1253": _GREEK,
}


def guess_encoding(content: bytes, *, complete: bool = True) -> str | None:
    """The name of the encoding that reads `content` best; None if none of the known ones does.

    Args:
        content: text with bytes beyond ASCII that is no UTF-8.
        complete: it cannot end within a character.
    """
    lines: list[bytes] = []  # those that are not plain ASCII
    room = _SAMPLE_BYTES
    for match in _LINE.finditer(content):
        lines.append(match[0][:room])
        room -= len(lines[-1]) + 1
        if room <= 0:
            break
    sample, is_complete = b"\n".join(lines), complete and room > 0
    best, found = 0.0, None
    for name, rate in _CANDIDATES.items():
        try:
            text = codecs.getincrementaldecoder(name)().decode(sample, is_complete)
        except UnicodeError:
            continue
        share = rate(text, name)
        if share >= _BELIEVED and share > best + (_STRONG if found else 0):
            best, found = share, name
    return found


def _by_alphabet(text: str, name: str) -> float:
    """The best share of letters beyond ASCII that one alphabet has; odd signs count against it."""
    odd = sum(_is_odd(text, at) for at, sign in enumerate(text) if not sign.isascii())
    words = (match[0] for match in _WORD.finditer(text) if not match[0].isascii())
    found = (
        (word, [sign for sign in word if not sign.isascii() and sign not in _NEUTRAL])
        for word in words
    )
    letters = [(word, signs) for word, signs in found if signs]
    total = odd + sum(len(signs) for _, signs in letters)
    if not total:
        return 1.0 if name == "cp1252" else 0.0  # nothing but typographic signs
    share = max(_share(letters, frozenset(each)) for each in _IN_ALPHABETS[name]) / total
    if "\u0430" not in _IN_ALPHABETS[name][0]:
        return share
    frequent = sum(sign.lower() in _FREQUENT for _, signs in letters for sign in signs)
    return share * min(frequent / total / _FREQUENT_SHARE, 1.0)


def _share(letters: Iterable[tuple[str, list[str]]], alphabet: frozenset[str]) -> float:
    share = 0.0
    for word, signs in letters:
        is_mixed = "\u0370" < signs[0].lower() < "\u0530" and any(s.isascii() for s in word)
        is_lower = word[1:].islower() or len(word) == 1
        if not is_mixed and (is_lower or word.isupper()) and _FINAL_SIGMA not in word[:-1]:
            weight = 1.0 if is_lower else _UPPER_SHARE
            share += weight * sum(sign.lower() in alphabet for sign in signs)
    return share


def _is_odd(text: str, at: int) -> bool:
    """A sign beside a letter that no text has there, or one that no text has at all."""
    sign, before, after = text[at], text[max(at - 1, 0) : at], text[at + 1 : at + 2]
    if sign.isalpha() or sign in _NEUTRAL:
        return False
    if sign in _OPENING:
        return before.isalpha()
    return before.isalpha() or after.isalpha() or not sign.isprintable() or sign >= "\u2500"


def _by_rows(rows: Iterable[range], *, kana: bool = False) -> Callable[[str, str], float]:
    """The share of signs in the rows (first bytes) in which the common ones stand."""
    common = frozenset(row for each in rows for row in each)

    def rate(text: str, name: str) -> float:
        beyond = [sign for sign in text if not sign.isascii()]
        raw = [sign.encode(name) for sign in beyond]
        has_kana = sum(map(_is_kana, beyond)) > _KANA_SHARE * len(beyond)
        good = sum(
            len(each) == 2
            and each[0] in common
            and (name != "gb18030" or each[1] > 0xA0)
            and (kana or not _is_kana(sign))
            for sign, each in zip(beyond, raw, strict=True)
        )
        return good / max(len(beyond), 1) + (2 * _STRONG if kana and has_kana else 0)

    return rate


def _is_kana(sign: str) -> bool:
    return "\u3040" <= sign <= "\u30ff"


def _korean(text: str, _: str) -> float:
    """A text of some length in nothing but syllables: the same rows are common in Chinese."""
    beyond = [sign for sign in text if not sign.isascii()]
    good = sum("\uac00" <= sign <= "\ud7a3" or sign in _NEUTRAL for sign in beyond)
    return 2.0 if len(beyond) >= 8 and good > 0.95 * len(beyond) else 0.0


_CANDIDATES: dict[str, Callable[[str, str], float]] = {
    **dict.fromkeys(_IN_ALPHABETS, _by_alphabet),
    "gb18030": _by_rows([range(0xA1, 0xA4), range(0xB0, 0xD8)]),
    "big5": _by_rows([range(0xA1, 0xC7)]),
    "shift_jis": _by_rows([range(0x81, 0x84), range(0x88, 0x98)], kana=True),
    "euc_jp": _by_rows([range(0xA1, 0xA6), range(0xB0, 0xD0)], kana=True),
    "euc_kr": _korean,
}
