"""Text files as they are: their encoding, their byte-order mark, their line ends.

A file that is shown may be approximate, one that is changed may not: text that an edit does not
touch keeps every byte.

A text in an old encoding is read with the encoding that makes its words look like a language. Each
candidate reads the text; its score is the share of letters beyond ASCII that belong to one alphabet
and are placed in words as letters are. For scripts with thousands of characters it is the share of
common ones. Of equal scores the earlier candidate wins, so a text that may be Western counts as
Western.
"""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from agent_core.errors import ErrorCode, ToolError
from agent_core.text import common_start

SAMPLE_BYTES = 65_536
"""Bytes at the beginning of a file that decide its encoding."""

_MARKS = (  # the longer ones first: UTF-32's begins with UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\r\f\b\v\x1b")
_MAX_CONTROLS = 0.01

_LEAST_UNITS, _LATIN_SHARE = 3, 0.7
_MOST_COMPARED = 1_000

_GUESSED_BYTES = 16_384
_LEAST_SHARE = 0.6
"""Below that no encoding is taken."""
_UPPER_SHARE = 0.95
"""A word in capitals counts less: one encoding's small letters are another one's capitals."""
_FREQUENT, _FREQUENT_SHARE = frozenset("оеаинтсрвл"), 0.6
"""Letters that make up as much of any Cyrillic text; between its encodings nothing else tells."""
_KANA_SHARE = 0.3
_STRONG = 0.05
"""So much better a reading must be than an earlier candidate's."""

_LINE = rb"[^\n]*[\x80-\xff][^\n]*"
_WORD = r"[^\W\d_]+"
_NEUTRAL = frozenset(
    "\u2018\u2019\u201a\u201c\u201d\u201e\u2013\u2014\u2026\u2022\u20ac\u2122\xa0«»°§©®£·\xd7½€№\xb5"
)
"""Characters that may be anywhere; the micro sign passes for a letter."""
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
_CENTRAL = ("ąćęłńóśźż", "áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "áéíóöőúüű", "čćđšž", "ăâîşţ")
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


class Encoding(Struct, frozen=True):
    """A codec's name, and the byte-order mark before the text."""

    name: str
    mark: bytes = b""

    @property
    def shown(self) -> str:
        """Name of the codec that reads the whole file: `utf-8-sig` for UTF-8 with a mark."""
        return "utf-8-sig" if self.name == "utf-8" and self.mark else self.name


def encoding_of(sample: bytes, *, complete: bool) -> Encoding | None:
    """Return the encoding of a file's beginning; None if it is not text.

    Args:
        sample: at least `SAMPLE_BYTES`, or all there is.
        complete: it is all there is, so that it cannot end within a character.
    """
    for mark, name in _MARKS:
        if sample.startswith(mark):
            body = sample[len(mark) :]
            is_text = _is_text(body, name, complete=complete)
            is_text = is_text or (name == "utf-8" and _is_nearly_utf_8(body))
            return Encoding(name, mark) if is_text else None
    if b"\0" in sample:
        return _unmarked_utf_16(sample, complete=complete)
    if _is_text(sample, "utf-8", complete=complete):
        return Encoding("utf-8")
    if sum(byte in _CONTROLS for byte in sample) > _MAX_CONTROLS * len(sample):
        return None
    if _is_nearly_utf_8(sample):
        return Encoding("utf-8")  # any other encoding would garble valid text
    if name := guess_encoding(sample, complete=complete):
        return Encoding(name)
    from charset_normalizer import from_bytes  # noqa: PLC0415 - slow to import, seldom needed

    best = from_bytes(sample[:SAMPLE_BYTES]).best()
    return None if best is None else Encoding(best.encoding)


def decode_text(content: bytes, *, complete: bool = True) -> str:
    """Return a file, or its beginning, as text in its encoding, without its mark and NULs.

    Characters that cannot be read become replacement characters.
    """
    decoded = DecodedText.approximate(content, complete=complete)
    text = decoded.text if decoded else content.decode("utf-8", "replace")
    return text.replace("\0", "")


class DecodedText(Struct, frozen=True):
    """A file's text without its mark, and how to write it back."""

    text: str
    encoding: Encoding

    @classmethod
    def decode(cls, content: bytes, *, shown: str) -> "DecodedText":
        """Read all of a file.

        Raises:
            ToolError: `patch_apply_failed`; it is no text, or could not be written back exactly.
        """
        encoding = encoding_of(content, complete=True)
        if encoding is None:
            raise ToolError(ErrorCode.PATCH_APPLY_FAILED, f"{shown} is a binary file")
        try:
            read = cls(content[len(encoding.mark) :].decode(encoding.name), encoding)
        except UnicodeError:
            pass
        else:
            if read.stands_for(content):
                return read
        message = f"{shown} is not clean {encoding.name} text: an edit could damage the rest of it"
        raise ToolError(ErrorCode.PATCH_APPLY_FAILED, message)

    @classmethod
    def approximate(cls, content: bytes, *, complete: bool = True) -> "DecodedText | None":
        """Read a file, or its beginning, with a mark for every character that cannot be read.

        Returns None if it is not text. Meant for display, and for a text that replaces the file.
        """
        encoding = encoding_of(content, complete=complete)
        if encoding is None:
            return None
        body = content[len(encoding.mark) :]
        decoder = codecs.getincrementaldecoder(encoding.name)(errors="replace")
        return cls(decoder.decode(body, complete), encoding)

    def stands_for(self, content: bytes | None) -> bool:
        """Return whether writing the text back makes exactly these bytes."""
        try:
            return self.encode(self.text) == content
        except UnicodeError:
            return False

    @property
    def newline(self) -> str:
        """The line end that most of its lines have."""
        if "\n" not in self.text and "\r" in self.text:
            return "\r"
        ends = self.text.count("\r\n")
        return "\r\n" if ends * 2 > self.text.count("\n") else "\n"

    def adapt(self, text: str) -> str:
        """Return another text with the line ends of this one, and without a mark of its own.

        If the line ends are mixed, a line that both texts have keeps its own.
        """
        text = text.removeprefix("\ufeff") if self.encoding.mark else text
        if "\n" not in self.text and "\r" not in self.text:
            return text
        plain = text.replace("\r\n", "\n")
        if 0 < self.text.count("\r\n") < self.text.count("\n"):
            return "".join(self._with_own_ends(lines_of(plain)))
        return plain.replace("\n", self.newline)

    def _with_own_ends(self, lines: list[str]) -> Iterator[str]:
        """Yield lines with the ends that the same lines have in this text, or else the usual one.

        Lines are compared as far as that is quick; the unchanged ones at both ends always are.
        """
        mine = [(line.removesuffix("\n").removesuffix("\r"), line) for line in lines_of(self.text)]
        old, new = [bare for bare, _ in mine], [line.removesuffix("\n") for line in lines]
        same: dict[int, int] = {}  # maps the number of a new line to its old one
        start = common_start(old, new)
        end = common_start(old[start:][::-1], new[start:][::-1])
        same |= {at: at for at in range(start)}
        same |= {len(new) - at: len(old) - at for at in range(1, end + 1)}
        old, new = old[start : len(old) - end], new[start : len(new) - end]
        if max(len(old), len(new)) <= _MOST_COMPARED:
            from difflib import SequenceMatcher  # noqa: PLC0415 - for mixed line ends only

            for i, j, size in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
                same |= {start + j + at: start + i + at for at in range(size)}
        for number, line in enumerate(lines):
            own = mine[same[number]][1] if number in same else ""
            if not line.endswith("\n"):
                yield line
            else:
                yield own if own.endswith("\n") else line.removesuffix("\n") + self.newline

    def encode(self, text: str) -> bytes:
        """Another text in the same encoding, with the same mark.

        Raises:
            UnicodeError: the encoding has no such character.
        """
        return self.encoding.mark + text.encode(self.encoding.name)


def lines_of(text: str) -> list[str]:
    """The lines with their ends. Only a newline ends one, as in editors and diffs."""
    *lines, rest = text.split("\n")
    return [f"{line}\n" for line in lines] + ([rest] if rest else [])


def _is_nearly_utf_8(body: bytes) -> bool:
    """Return whether it is UTF-8 with a few broken places."""
    text = body.decode("utf-8", "replace")
    is_broken = sum(not sign.isascii() for sign in text) <= 4 * text.count("\ufffd")
    return not is_broken and b"\0" not in body


def _unmarked_utf_16(sample: bytes, *, complete: bool) -> Encoding | None:
    """Return the encoding of UTF-16 without a mark: mostly Latin letters, one byte of each is 0."""
    units = len(sample) // 2
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if units < _LEAST_UNITS or min(even, odd) or max(even, odd) < _LATIN_SHARE * units:
        return None
    name = "utf-16-le" if odd else "utf-16-be"
    try:
        text = codecs.getincrementaldecoder(name)().decode(sample, complete)
    except UnicodeError:
        return None
    return Encoding(name) if all(map(_is_written, text)) else None


def _is_written(sign: str) -> bool:
    return sign.isprintable() or sign in "\t\n\r\f"


def _is_text(body: bytes, name: str, *, complete: bool) -> bool:
    try:
        text = codecs.getincrementaldecoder(name)().decode(body, complete)
    except UnicodeError:
        return False
    return "\0" not in text


def guess_encoding(content: bytes, *, complete: bool = True) -> str | None:
    """Return the name of the encoding that reads `content` best; None if no known one does.

    Args:
        content: text with bytes beyond ASCII that is no UTF-8.
        complete: it cannot end within a character.
    """
    lines: list[bytes] = []  # the lines that are not plain ASCII
    room = _GUESSED_BYTES
    for match in re.finditer(_LINE, content):
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
        if share >= _LEAST_SHARE and share > best + (_STRONG if found else 0):
            best, found = share, name
    return found


def _by_alphabet(text: str, name: str) -> float:
    """Return the highest share of letters beyond ASCII in one alphabet; odd signs reduce it."""
    odd = sum(_is_odd(text, at) for at, sign in enumerate(text) if not sign.isascii())
    words = (match[0] for match in re.finditer(_WORD, text) if not match[0].isascii())
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
    """Return whether a sign never occurs in text, or not beside the letter it is next to."""
    sign, before, after = text[at], text[max(at - 1, 0) : at], text[at + 1 : at + 2]
    if sign.isalpha() or sign in _NEUTRAL:
        return False
    if sign in _OPENING:
        return before.isalpha()
    return before.isalpha() or after.isalpha() or not sign.isprintable() or sign >= "\u2500"


def _by_rows(rows: Iterable[range], *, kana: bool = False) -> Callable[[str, str], float]:
    """Return a function for the share of characters with a first byte of the common rows."""
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
