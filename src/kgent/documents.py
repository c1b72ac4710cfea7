"""A file of a run folder as inert HTML: what is in it can neither act nor fetch anything."""

import base64
import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from agent_core.text import visible

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
_SCHEMES = {"http", "https", "mailto"}
_HEADINGS_BEGIN_AT = 4
"""The headings of a document stand below those of the page around it."""


def plain(value: object) -> str:
    """Text as HTML: nothing in it is markup, and nothing in it acts."""
    return escape(visible(str(value), zero_width=False))


def preformatted(text: str) -> str:
    """Text as it is, line by line."""
    return f"<pre>{plain(text)}</pre>" if text.strip() else ""


def is_image(path: str) -> bool:
    """Whether a file of that name is shown as an image."""
    return _suffix(path) in _IMAGES


def render_document(path: str, content: bytes) -> str:
    """The content of a file by the ending of its name; text where it has no other."""
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


def render_markdown(text: str) -> str:
    """Markdown as HTML: no markup of its own, no images, links to the web and to mail only."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    markdown.validateLink = _is_harmless
    markdown.add_render_rule("image", _render_image)
    tokens = markdown.parse(visible(text, zero_width=False))
    for token in tokens:
        if side := str(token.attrs.pop("style", "")).removeprefix("text-align:"):
            token.attrSet("class", side)
        if token.type in {"heading_open", "heading_close"}:
            token.tag = f"h{min(6, int(token.tag[1]) + _HEADINGS_BEGIN_AT - 1)}"
        for child in token.children or []:
            if child.type == "link_open":
                child.attrSet("rel", "noopener noreferrer")
    body: str = markdown.renderer.render(tokens, markdown.options, {})
    body = body.replace("<table>", f"<div {SCROLLS}><table>").replace("</table>", "</table></div>")
    return f'<div class="document">{body}</div>' if body.strip() else ""


SCROLLS = 'class="scrolls" role="region" tabindex="0" aria-label="table"'
"""Attributes of what may be wider than the page."""


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, classes: Iterable[str] = ()
) -> str:
    """A table of cells that are HTML already; empty without rows."""
    kinds = iter(classes)
    lines: list[str] = []
    for row in rows:
        kind = next(kinds, "")
        cells = "".join(f"<td>{cell}</td>" for cell in row)
        lines.append(f'<tr class="{plain(kind)}">{cells}</tr>' if kind else f"<tr>{cells}</tr>")
    if not lines:
        return ""
    titles = "".join(f'<th scope="col">{plain(title)}</th>' for title in head)
    body = f"<thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f"<div {SCROLLS}><table>{body}</table></div>"


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _is_harmless(url: str) -> bool:
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return False
    return parts.scheme.lower() in _SCHEMES


def _render_image(_: RendererHTML, tokens: Sequence[Token], index: int, *__: object) -> str:
    return f"[image: {plain(tokens[index].content)}]"


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
