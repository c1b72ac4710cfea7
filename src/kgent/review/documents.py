"""A file of a run folder as inert HTML, which can neither run code nor load anything."""

import base64
import csv
import json
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from agent_core.text.pages import plain, preformatted, render_markdown, table

MAX_SHOWN_BYTES = 200_000
MAX_IMAGE_BYTES = 5_000_000


_MAX_ROWS, _MAX_COLUMNS = 200, 40
_IMAGES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".svg": "image/svg+xml",
}


def is_image(path: str) -> bool:
    """Return whether a file with this name is shown as an image."""
    return _suffix(path) in _IMAGES


def render_document(path: str, content: bytes) -> str:
    """Return the content of a file as HTML in the format of its ending, or else as text."""
    suffix = _suffix(path)
    if suffix in _IMAGES:
        encoded = base64.b64encode(content).decode()
        return f'<img alt="{plain(path)}" src="data:{_IMAGES[suffix]};base64,{encoded}">'
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "<p>It is no text, and no image that is shown here.</p>"
    render = _RENDERERS.get(suffix, preformatted)
    return render(text) or "<p>It is empty.</p>"


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _render_json(text: str) -> str:
    try:
        return preformatted(json.dumps(json.loads(text), indent=2, ensure_ascii=False))
    except (ValueError, RecursionError):
        return preformatted(text)


def _render_table(delimiter: str) -> Callable[[str], str]:
    def render(text: str) -> str:
        try:
            rows = list(_read_rows(text, delimiter))
        except csv.Error:
            return preformatted(text)
        if not rows:
            return ""
        head, *body = rows
        shown = [[plain(cell) for cell in row[:_MAX_COLUMNS]] for row in body[:_MAX_ROWS]]
        more = len(body) - len(shown)
        note = f"<p>The first {len(shown)} rows are shown.</p>" if more else ""
        return table(head[:_MAX_COLUMNS], shown or [[""]]) + note

    return render


def _read_rows(text: str, delimiter: str) -> Iterator[list[str]]:
    for number, row in enumerate(csv.reader(text.splitlines(), delimiter=delimiter)):
        if number > _MAX_ROWS + 1:
            return
        yield row


_RENDERERS: dict[str, Callable[[str], str]] = {
    ".md": render_markdown,
    ".markdown": render_markdown,
    ".json": _render_json,
    ".csv": _render_table(","),
    ".tsv": _render_table("\t"),
}
