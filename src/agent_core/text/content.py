"""Versions of texts, and content that a message has beside its sender's own words."""

import hashlib
import re

_MARK = re.compile(r'<content from="[^"\n]*" boundary="([0-9a-f]+)">\n')


def content_hash(content: bytes) -> str:
    """Return a hash that identifies a version of a text."""
    return hashlib.sha256(content).hexdigest()


def mark_content(text: str, source: str) -> str:
    """Return `text` as a marked block of a message, which are not the sender's own words.

    The boundary is derived from the text and does not occur in it, so that no text can end its
    block.
    """
    boundary, number = "", 0
    while not boundary or boundary in text:
        seed = f"{number}\n{text}".encode("utf-8", "surrogatepass")
        boundary, number = content_hash(seed)[:16], number + 1
    source = source.replace('"', "'").replace("\n", " ")
    end = "" if text.endswith("\n") else "\n"
    head = f'<content from="{source}" boundary="{boundary}">'
    return f'{head}\n{text}{end}</content boundary="{boundary}">'


def without_content(text: str) -> str:
    """Return `text` without its marked blocks; one that was cut off extends to the end."""
    if "<content from=" not in text:
        return text
    kept: list[str] = []
    start = 0
    while found := _MARK.search(text, start):
        closing = f'</content boundary="{found[1]}">'
        end = text.find(closing, found.end())
        kept.append(text[start : found.start()])
        if end < 0:
            return "".join(kept)
        start = end + len(closing)
    return "".join([*kept, text[start:]])
