r"""Makes text safe to look at: what would act on a terminal or deceive the eye is spelled out.

Escape sequences, carriage returns and C1 controls act on a terminal; bidirectional controls and
tag characters make a text read differently from what it says. Each becomes its escape, `\x1b` or
`\u202e`: nothing is hidden, and nothing happens.
"""

import re

_ACTS = r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
_DECEIVES = (
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls
    r"\u2028\u2029\u206a-\u206f\ufff9-\ufffb"  # separators, deprecated and annotation controls
    r"\ud800-\udfff"  # lone surrogates: no encoding can write them
    r"\U000e0000-\U000e01ef"  # tags and further variation selectors: invisible text
)
_HIDES = (
    r"\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # soft hyphen, joiners, fillers
    r"\u200b-\u200d\u2060-\u2064\u3164\ufeff\uffa0"  # zero width
)
_TERMINAL = re.compile(f"[{_ACTS}{_DECEIVES}]")
_EVERYTHING = re.compile(f"[{_ACTS}{_DECEIVES}{_HIDES}]")
_ONE_LINE = re.compile(rf"[\n\t{_ACTS}{_DECEIVES}{_HIDES}]")
_SHORT = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}


def visible(text: str, *, zero_width: bool = True, one_line: bool = False) -> str:
    r"""`text` with every deceiving character spelled out; the same object if there is none.

    Args:
        text: anything; `\r\n` counts as a newline.
        zero_width: spell out invisible characters too. Leave them in prose: some scripts and
            emoji need joiners.
        one_line: spell out tabs and newlines too.
    """
    if "\r\n" in text and not one_line:
        text = text.replace("\r\n", "\n")
    pattern = _ONE_LINE if one_line else _EVERYTHING if zero_width else _TERMINAL
    return pattern.sub(_escape, text) if pattern.search(text) else text


def shortened(text: str, limit: int) -> str:
    """`text` if it has at most `limit` characters, else its beginning and how much is missing."""
    cut = len(text) - limit
    return text if cut <= 0 else f"{text[:limit]}… (+{cut} characters)"


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
