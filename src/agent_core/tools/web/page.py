"""The readable text of a page: HTML as Markdown, other texts as they are, nothing else."""

import asyncio
import codecs
import html
import re

from msgspec import Struct

from agent_core.errors import ErrorCode, ToolError
from agent_core.tools.text import DecodedText
from agent_core.tools.values import storable_text
from agent_core.tools.web.conversion import to_markdown
from agent_core.tools.web.network import Answer

_HTML = frozenset({"text/html", "application/xhtml+xml"})
_TEXTS = re.compile(
    r"text/.*|application/(.*\+)?(json|xml|yaml)"
    r"|application/(ecmascript|javascript|jsonlines|ld\+json|ndjson|rtf|sql|toml|x-httpd-php"
    r"|x-javascript|x-ndjson|x-python|x-sh|x-tex|x-yaml)|message/.*|image/svg\+xml|"
)
_UNNAMED = frozenset({"", "application/octet-stream", "binary/octet-stream"})
"""Types that say nothing: the content decides."""
_SNIFFED = 1024
_LOOKS_LIKE_HTML = re.compile(
    rb"\s*(<\?xml[^>]*>\s*)?(<!--(?:(?!-->).)*-->\s*)*<(!doctype\s+html|html)\b", re.I | re.S
)
"""A comment ends at its first end, so that there is one way to divide a page into comments."""
_META = re.compile(rb"<meta\s[^>]*?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_XML = re.compile(rb"\s*<\?xml\s[^>]*?encoding\s*=\s*[\"']([\w.:-]{1,40})", re.IGNORECASE)
_TITLE = re.compile(r"<title\b[^<>]*>([^<]{0,2000})", re.IGNORECASE)
_MAX_TITLE = 300
_WEB_CODECS = frozenset(
    {
        *("utf-8", "utf-16", "utf-16-le", "utf-16-be", "ascii", "iso8859-1"),
        *(f"iso8859-{n}" for n in (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16)),
        *(f"cp{n}" for n in (866, 874, 932, 949, 950, *range(1250, 1259))),
        *("koi8-r", "koi8-u", "mac-roman", "mac-cyrillic", "gb2312", "gbk", "gb18030"),
        *("big5", "big5hkscs", "euc_jp", "euc_kr", "shift_jis", "iso2022_jp", "tis-620"),
    }
)
"""The codecs of the encodings that pages have; Python knows others, which are no text."""
_WIDER = {"ascii": "cp1252", "iso8859-1": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"}
"""What browsers read for encodings that pages name and do not keep to."""


class WebPage(Struct, frozen=True):
    """A page as text. `url` is its address, after redirects; `is_cut`: its end is missing."""

    url: str
    content_type: str
    title: str
    text: str
    is_cut: bool


def check_type(url: str, content_type: str) -> None:
    """Check that content of this media type may be text.

    Raises:
        ToolError: `tool_error`: it is not.
    """
    if content_type not in _UNNAMED and not _TEXTS.fullmatch(content_type):
        raise _binary(url, content_type)


async def read_page(answer: Answer, *, max_chars: int, seconds: float) -> WebPage:
    """Return the text of an answer, at most `max_chars` of it.

    Raises:
        ToolError: `tool_error`: it is no text, or cannot be converted; `timeout`.
    """
    is_html = answer.content_type in _HTML or (
        answer.content_type in _UNNAMED and bool(_LOOKS_LIKE_HTML.match(answer.body[:_SNIFFED]))
    )
    text = await asyncio.to_thread(_decode, answer, is_html=is_html)
    title = ""
    if is_html:
        if found := _TITLE.search(text):
            title = " ".join(html.unescape(found[1]).split())[:_MAX_TITLE]
        text = await to_markdown(text, answer.url, max_chars=max_chars, seconds=seconds)
    is_cut = answer.is_cut or len(text) > max_chars
    text = storable_text(text[:max_chars].replace("\r\n", "\n").strip("\n"))
    return WebPage(answer.url, answer.content_type, storable_text(title), text, is_cut)


def _decode(answer: Answer, *, is_html: bool) -> str:
    """Return the text of a page, which takes a while for a large one.

    Raises:
        ToolError: `tool_error`: it is no text.
    """
    text = _decoded(answer, is_html=is_html)
    if "\0" in text:
        raise _binary(answer.url, answer.content_type)
    return text


def _decoded(answer: Answer, *, is_html: bool) -> str:
    """Decode a page: a mark at its beginning counts first, then its header, then its own words."""
    body, head = answer.body, answer.body[:_SNIFFED]
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ):
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace")
    own = (_XML.match(head) or (_META.search(head) if is_html else None)) if body else None
    for named in (answer.charset, own[1].decode("ascii") if own else ""):
        if codec := _codec(named):
            return body.decode(codec, "replace")
    decoded = DecodedText.approximate(body, complete=not answer.is_cut)
    if decoded is None:
        raise _binary(answer.url, answer.content_type)
    return decoded.text


def _codec(named: str) -> str | None:
    """Return the codec for the name of an encoding; None if pages have no such encoding."""
    try:
        name = codecs.lookup(named).name if named else ""
    except (LookupError, ValueError):
        return None
    return _WIDER.get(name, name) if name in _WEB_CODECS else None


def _binary(url: str, content_type: str) -> ToolError:
    kind = content_type or "unknown"
    message = f"{url} has content of type {kind[:100]}, which is not text; it was not read"
    return ToolError(ErrorCode.TOOL_ERROR, message, details={"content_type": kind[:100]})
