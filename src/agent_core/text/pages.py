"""Parts of self-contained HTML pages; nothing shown in them can act or fetch anything."""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from agent_core.text import visible
from agent_core.text.languages import ENGLISH, Language

_SCHEMES = {"http", "https", "mailto"}
_HEADINGS_BEGIN_AT = 4
"""Level of a document's first headings, below the headings of the surrounding page."""

STYLE = """
:root{color-scheme:light dark;--page:#fff;--text:#1b1f24;--muted:#59636e;--line:#d1d9e0;
--soft:#f4f6f8;--link:#0757b8;--good:#1a6b33;--fair:#8a5300;--bad:#b3261e;--busy:#1f5fae}
@media(prefers-color-scheme:dark){:root{--page:#14181d;--text:#e6e9ed;--muted:#a3adb8;
--line:#39424d;--soft:#1e242b;--link:#7ab7ff;--good:#6fd08c;--fair:#f0b95c;--bad:#ff8f85;
--busy:#8abfff}}
*{box-sizing:border-box}
body{font:16px/1.55 system-ui,sans-serif;margin:0;background:var(--page);color:var(--text)}
header,main,footer{max-width:62rem;margin:0 auto;padding:0 clamp(1rem,4vw,2rem)}
header{padding-top:1.5rem}footer{padding-bottom:2rem;color:var(--muted);font-size:.875rem}
h1{font-size:1.5rem;line-height:1.25;margin:.25rem 0 .5rem;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:2rem 0 .6rem;padding-bottom:.25rem;border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1rem 0 .4rem;overflow-wrap:anywhere}
h4,h5,h6{font-size:1rem;margin:.9rem 0 .3rem}
a{color:var(--link)}p,ul,ol{margin:.4rem 0}li{overflow-wrap:anywhere}
.muted{color:var(--muted)}.good{color:var(--good)}.fair{color:var(--fair)}.bad{color:var(--bad)}
.busy{color:var(--busy)}
.status{display:inline-block;font-weight:700;border:2px solid;border-radius:2rem;
padding:.05rem .8rem}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:.6rem 0}
.facts dt{color:var(--muted)}.facts dd{margin:0;overflow-wrap:anywhere}
.notice{border-left:4px solid;padding:.4rem .8rem;margin:.8rem 0;background:var(--soft);
overflow-wrap:anywhere}
.card{border:1px solid var(--line);border-radius:.5rem;padding:.6rem .9rem;margin:.7rem 0}
.card>h3{margin-top:0}
.document{overflow-wrap:anywhere}
.scrolls{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem}
th,td{border:1px solid var(--line);padding:.3rem .55rem;text-align:left;vertical-align:top}
th.right,td.right{text-align:right}th.center,td.center{text-align:center}
th{background:var(--soft)}td{overflow-wrap:break-word;max-width:32rem}
tr.warning td:nth-child(3){color:var(--fair)}tr.error td:nth-child(3){color:var(--bad)}
pre{background:var(--soft);border-radius:.4rem;padding:.6rem .8rem;margin:.4rem 0;font-size:.85rem;
line-height:1.45;white-space:pre-wrap;overflow-wrap:anywhere}
code{font-size:.9em}img{max-width:100%;height:auto;background:#fff}
summary{cursor:pointer;overflow-wrap:anywhere;padding:.15rem 0}
details>details,details>pre{margin-left:.4rem}
h3 .muted{font-weight:400;font-size:.875rem}summary .muted{font-size:.875rem}
.message{border-left:3px solid var(--line);padding:0 0 0 .9rem;margin:.9rem 0}
.message.tool{margin:.15rem 0}.message.tool .who{display:none}
.message.assistant{border-color:var(--busy)}
.who{font-weight:600;font-size:.85rem;color:var(--muted)}
:focus-visible{outline:2px solid var(--link);outline-offset:2px}
@media(max-width:30rem){.facts{grid-template-columns:1fr;gap:0}.facts dd{margin-bottom:.4rem}}
@media print{:root{--page:#fff;--text:#000;--muted:#444;--line:#999;--soft:#f4f4f4;--link:#000;
--good:#1a6b33;--fair:#8a5300;--bad:#b3261e;--busy:#1f5fae}body{font-size:11pt}
header,main,footer{max-width:none;padding:0}.card,.message,pre,tr{break-inside:avoid}
h2,h3{break-after:avoid}.scrolls{overflow:visible}th,td{overflow-wrap:anywhere}}
"""
"""The rules of all pages."""


def whole_page(
    title: str,
    *,
    header: str,
    main: str,
    footer: str,
    style: str = "",
    say: Language = ENGLISH,
) -> str:
    """Return a self-contained page: no script runs in it, and nothing is fetched.

    Args:
        title: the title as plain text.
        header: HTML, like the next two.
        main: the main content.
        footer: the origin of the page.
        style: CSS rules in addition to the rules of all pages.
        say: the language of the page.
    """
    style = STYLE + style
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none';"
        " form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="' + say.code + '"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="referrer" content="no-referrer">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{plain(title)}</title>"
        f"<style>{style}</style></head>\n<body>\n"
        f"<header>{header}</header>\n"
        f"<main>\n{main}\n</main>\n"
        f"<footer>{footer}</footer>\n</body></html>\n"
    )


def section(title: str, body: str, *, key: str = "") -> str:
    """Return a section with a heading; empty if the body, which is HTML, is empty.

    Args:
        title: the heading.
        body: HTML.
        key: the id of the heading; made of the title without it.
    """
    if not body:
        return ""
    key = key or title.lower().replace(" ", "-")
    return f'<section aria-labelledby="{key}">\n<h2 id="{key}">{title}</h2>\n{body}\n</section>'


def facts_list(facts: Mapping[str, str]) -> str:
    """Return a list of names, which are HTML, and values; empty values are left out."""
    rows = (f"<dt>{name}</dt><dd>{plain(value)}</dd>" for name, value in facts.items() if value)
    return f'<dl class="facts">{"".join(rows)}</dl>'


def fold(label: str, body: str, *, is_open: bool = False) -> str:
    """Return a foldable block; `label` and `body` are HTML."""
    opened = " open" if is_open else ""
    return f"<details{opened}><summary>{label}</summary>{body}</details>" if body else ""


def plain(value: object) -> str:
    """Escape text for HTML, so that nothing in it is markup or acts."""
    return escape(visible(str(value), zero_width=False))


def preformatted(text: str) -> str:
    """Return text as preformatted HTML, line by line."""
    return f"<pre>{plain(text)}</pre>" if text.strip() else ""


def render_markdown(text: str, say: Language = ENGLISH) -> str:
    """Render Markdown as HTML: no raw markup, no images, links to the web and to mail only."""
    markdown = _markdown()
    tokens = markdown.parse(visible(text, zero_width=False))
    for token in tokens:
        if side := str(token.attrs.pop("style", "")).removeprefix("text-align:"):
            token.attrSet("class", side)
        if token.type in {"heading_open", "heading_close"}:
            token.tag = f"h{min(6, int(token.tag[1]) + _HEADINGS_BEGIN_AT - 1)}"
        for child in token.children or []:
            if child.type == "link_open":
                child.attrSet("rel", "noopener noreferrer")
    body: str = markdown.renderer.render(tokens, markdown.options, {"say": say})
    opened = f"<div {scrolls(say)}><table>"
    body = body.replace("<table>", opened).replace("</table>", "</table></div>")
    return f'<div class="document">{body}</div>' if body.strip() else ""


@cache
def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    markdown.validateLink = _is_harmless
    markdown.add_render_rule("image", _render_image)
    return markdown


def scrolls(say: Language = ENGLISH) -> str:
    """Return the attributes of an element that may be wider than the page."""
    return f'class="scrolls" role="group" tabindex="0" aria-label="{say("table")}"'


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    classes: Iterable[str] = (),
    say: Language = ENGLISH,
) -> str:
    """Return a table of cells that are HTML; empty without rows."""
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
    return f"<div {scrolls(say)}><table>{body}</table></div>"


def _is_harmless(url: str) -> bool:
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return False
    return parts.scheme.lower() in _SCHEMES


def _render_image(
    _: RendererHTML, tokens: Sequence[Token], index: int, __: object, env: Mapping[str, Language]
) -> str:
    return plain(env["say"]("[image: {what}]", what=tokens[index].content))
