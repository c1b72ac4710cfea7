"""Text files as they are: what encoding, what byte-order mark, what line ends.

A file that is shown may be approximate, one that is changed may not: what an edit does not touch
keeps every byte.
"""

import codecs
from dataclasses import dataclass

from agent_core.errors import ErrorCode, ToolError
from agent_core.tools.encodings import guess_encoding

SAMPLE_BYTES = 65_536
"""How much of a file decides what it is."""

_MARKS = (  # the longer ones first: UTF-32's begins with UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\r\f\b\v\x1b")
_MAX_CONTROLS = 0.01


@dataclass(frozen=True, slots=True)
class Encoding:
    """A codec's name, and the byte-order mark that stands before the text."""

    name: str
    mark: bytes = b""


def encoding_of(sample: bytes, *, complete: bool) -> Encoding | None:
    """What encoding a file's beginning is in; None if it is no text.

    Args:
        sample: at least `SAMPLE_BYTES`, or all there is.
        complete: it is all there is, so that it cannot end within a character.
    """
    for mark, name in _MARKS:
        if sample.startswith(mark):
            body = sample[len(mark) :]
            return Encoding(name, mark) if _is_text(body, name, complete=complete) else None
    if b"\0" in sample:
        return None
    if _is_text(sample, "utf-8", complete=complete):
        return Encoding("utf-8")
    if sum(byte in _CONTROLS for byte in sample) > _MAX_CONTROLS * len(sample):
        return None
    return Encoding("utf-8") if _is_nearly_utf8(sample) else _guess(sample, complete=complete)


@dataclass(frozen=True, slots=True)
class DecodedText:
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
            if read.encode(read.text) == content:
                return read
        except UnicodeError:
            pass
        message = f"{shown} is not clean {encoding.name} text: an edit could damage the rest of it"
        raise ToolError(ErrorCode.PATCH_APPLY_FAILED, message)

    @property
    def newline(self) -> str:
        """The line end that most of its lines have."""
        ends = self.text.count("\r\n")
        return "\r\n" if ends * 2 > self.text.count("\n") else "\n"

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


def _is_text(body: bytes, name: str, *, complete: bool) -> bool:
    try:
        text = codecs.getincrementaldecoder(name)().decode(body, complete)
    except UnicodeError:
        return False
    return "\0" not in text


def _is_nearly_utf8(sample: bytes) -> bool:
    """A text with a few broken places: any other encoding would spoil all the others."""
    text = sample.decode("utf-8", "replace")
    broken = text.count("\ufffd")
    return sum(not sign.isascii() for sign in text) > 4 * broken


def _guess(content: bytes, *, complete: bool) -> Encoding | None:
    if name := guess_encoding(content, complete=complete):
        return Encoding(name)
    from charset_normalizer import from_bytes  # noqa: PLC0415 - slow to import, seldom needed

    best = from_bytes(content[:SAMPLE_BYTES]).best()
    return None if best is None else Encoding(best.encoding)
