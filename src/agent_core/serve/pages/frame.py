"""The frame of every page: its head, its navigation, and the answers to forms."""

import functools
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import cast
from urllib.parse import quote, urlencode

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.serve.bodies import SMALL, read_form
from agent_core.serve.pages.assets import asset_address
from agent_core.serve.pages.bare import refusal_title
from agent_core.serve.principals import Right
from agent_core.serve.problems import HttpProblem
from agent_core.serve.streams import RETRY_MS, EventResponse, ServerEvent
from agent_core.serve.visits import Visit, visit_of
from agent_core.text.languages import Language, language_of
from agent_core.text.pages import plain

_SCRIPTS = ("htmx.min.js", "hx-sse.min.js", "console.js")

_HTMX = (
    '{"includeIndicatorCSS":false,"history":false,"transitions":false,'
    f'"sse":{{"reconnectDelay":{RETRY_MS},"reconnectMaxDelay":10000}}}}'
)
_MOST_NOTICES = 256
_LANGUAGES = {"Vary": "Accept-Language"}


class Notice(Struct, frozen=True):
    """The outcome of a form, shown once on the page that follows.

    Attributes:
        reader: the principal who has sent the form.
        body: HTML.
    """

    reader: str
    body: str


class _Notices:
    """The outcomes of the forms that were sent last, by keys that cannot be guessed."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Notice] = OrderedDict()

    def keep(self, notice: Notice) -> str:
        """Keep an outcome, and return its key."""
        key = secrets.token_urlsafe(12)
        self._kept[key] = notice
        while len(self._kept) > _MOST_NOTICES:
            self._kept.popitem(last=False)
        return key

    def take(self, key: str, reader: str) -> str:
        """Return an outcome as HTML; empty if there is none of this reader."""
        found = self._kept.get(key)
        return found.body if found is not None and found.reader == reader else ""


_NOTICES = _Notices()


class Frame:
    """One request for a page.

    Attributes:
        request: the request.
        visit: its sender, and the runtimes.
        say: the language of the reader.
        fields: the fields of the form that was sent, once it is read.

    Args:
        request: likewise.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.visit: Visit = visit_of(request)
        self.say: Language = language_of(request.headers.get("accept-language", ""))
        self.fields: dict[str, str] = {}

    async def read_form(self, right: Right) -> dict[str, str]:
        """Return the fields of the form that was sent.

        Raises:
            HttpProblem: 403: the reader may not do this; 400, 413, 415: it is no form.
        """
        self.visit.require(right)
        self.fields = await read_form(self.request, SMALL)
        return self.fields

    def may(self, right: Right) -> bool:
        """Return whether the reader may do something here; what they may not is not offered."""
        if right in {"run", "answer"} and self.visit.console.read_only:
            return False
        return right in self.visit.principal.may

    def address(self, *parts: str, **query: str | int | None) -> str:
        """Return the address of a page, as HTML, wherever the application is mounted."""
        return plain(self.url(*parts, **query))

    def url(self, *parts: str, **query: str | int | None) -> str:
        """Return the address of a page, or of a part of one."""
        root = str(self.request.scope.get("root_path", ""))
        path = "/".join(quote(part, safe="") for part in parts)
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{root}/{path}{f'?{urlencode(given)}' if given else ''}"

    def asset(self, name: str) -> str:
        """Return the address of an asset, as HTML."""
        return plain(f"{self.request.scope.get('root_path', '')}{asset_address(name)}")

    def moment(self, moment: datetime) -> str:
        """Return a time as HTML: in UTC, until a script writes it in the reader's zone."""
        utc = moment.astimezone(UTC)
        return f'<time datetime="{utc:%Y-%m-%dT%H:%M:%SZ}">{utc:%Y-%m-%d %H:%M} UTC</time>'

    def page(self, title: str, main: str, *, status: int = 200) -> Response:
        """Return a page.

        Args:
            title: the title as plain text; the heading of the page is a part of `main`.
            main: HTML.
            status: of the response.
        """
        notice = _NOTICES.take(self.request.query_params.get("done", ""), self._reader)
        lost = self.say("The connection to the console is lost. This page reconnects by itself.")
        # htmx starts when the document is complete only if it runs before that: a deferred script
        # would start without the extensions that arrive after it.
        scripts = "".join(f'<script src="{self.asset(name)}"></script>' for name in _SCRIPTS)
        body = (
            f'<!doctype html>\n<html lang="{self.say.code}"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            '<meta name="referrer" content="same-origin">'
            f"<meta name=\"htmx-config\" content='{_HTMX}'>"
            f"<title>{plain(title)} · soong-agent</title>"
            f'<link rel="icon" href="{self.asset("icon.svg")}">'
            f'<link rel="stylesheet" href="{self.asset("console.css")}">'
            f'</head>\n<body><a class="skip" href="#main">{self.say("Skip to the content")}</a>\n'
            f"<header>{self._navigation()}</header>\n"
            f'<p id="lost" class="notice fair" role="status" hidden>{lost}</p>\n'
            f'<main id="main" tabindex="-1">\n{notice}{main}\n</main>\n'
            f"<footer><p>soong-agent</p></footer>\n{scripts}</body></html>\n"
        )
        return HTMLResponse(body, status, {"Content-Language": self.say.code, **_LANGUAGES})

    def fragment(self, body: str) -> Response:
        """Return a part of a page."""
        return HTMLResponse(body, headers=_LANGUAGES)

    def stream(self, begin: Callable[[], Awaitable[AsyncGenerator[ServerEvent]]]) -> Response:
        """Return the stream that keeps a page up to date: `begin` as for `EventResponse`."""
        request, console = self.request, self.visit.console
        names = [*request.headers.getlist("cookie"), *request.headers.getlist("user-agent")]
        names.append(request.client.host if request.client else "")
        browser = hashlib.sha256("\n".join(names).encode("utf-8", "surrogateescape")).hexdigest()
        response = EventResponse(console.streams, self.visit.principal, begin, browser=browser)
        return cast("Response", response)

    def see(self, *parts: str, notice: str = "", anchor: str = "") -> Response:
        """Return the answer to a form: the page to go to, which shows a notice (HTML) once."""
        done = _NOTICES.keep(Notice(self._reader, notice)) if notice else None
        url = self.url(*parts, done=done)
        return RedirectResponse(f"{url}#{anchor}" if anchor else url, 303)

    def reload_hint(self) -> str:
        """Return what a reader without scripts can do on a live page."""
        url = plain(self.request.url.path)
        link = f'<a href="{url}">{self.say("Reload this page to see what is new.")}</a>'
        return f"<noscript><p>{link}</p></noscript>"

    def form(
        self, target: str, label: str, *, hidden: Mapping[str, str] | None = None, kind: str = ""
    ) -> str:
        """Return a form of one button.

        Args:
            target: the address that it is sent to, as HTML.
            label: of the button, in the reader's language.
            hidden: further fields.
            kind: the class of the button.
        """
        fields = "".join(
            f'<input type="hidden" name="{plain(name)}" value="{plain(value)}">'
            for name, value in (hidden or {}).items()
        )
        style = f' class="{kind}"' if kind else ""
        return (
            f'<form method="post" action="{target}">{fields}'
            f"<button{style}>{plain(label)}</button></form>"
        )

    @property
    def _reader(self) -> str:
        return f"{self.visit.tenant}/{self.visit.principal.name}"

    def _navigation(self) -> str:
        say = self.say
        pages = [("", say("Sessions"))]
        if self.may("admin"):
            pages += [("workers", say("Workers")), ("settings", say("Settings"))]
        here = self.request.url.path.rstrip("/")
        items: list[str] = []
        for name, label in pages:
            url = self.url(name)
            current = ' aria-current="page"' if url.rstrip("/") == here else ""
            items.append(f'<li><a href="{plain(url)}"{current}>{label}</a></li>')
        who = plain(self.visit.principal.name)
        if self.visit.console.read_only:
            who += f" · {say('read only')}"
        leave = ""
        if self.visit.console.signs_out:
            leave = self.form(self.address("logout"), say("Sign out"))
        return (
            f'<nav class="bar" aria-label="{say("Pages")}"><ul>{"".join(items)}</ul>'
            f'<span class="who muted">{who}</span>{leave}</nav>'
        )


Handler = Callable[[Frame], Awaitable[Response]]


def framed(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of requests for a page; what it refuses is shown as a page, too."""

    @functools.wraps(handler)
    async def handle(request: Request) -> Response:
        frame = Frame(request)
        try:
            return await handler(frame)
        except HttpProblem as problem:
            return problem_page(frame, problem)
        except AgentCoreError as error:
            return problem_page(frame, HttpProblem.of(error))
        except HTTPException as error:
            return problem_page(frame, HttpProblem(error.status_code, error.detail))

    return handle


def problem_page(frame: Frame, problem: HttpProblem) -> Response:
    """Return the page of a refused request."""
    say = frame.say
    title = refusal_title(problem, say)
    detail = say.error(say(problem.detail), problem.code)
    parts = [f"<h1>{title}</h1>", f'<p class="notice bad">{plain(detail)}</p>']
    details = problem.details or {}
    for name in ("paths", "reasons"):
        if lines := _lines(details.get(name)):
            items = "".join(f"<li>{plain(line)}</li>" for line in lines)
            parts.append(f"<ul>{items}</ul>")
    if problem.code == ErrorCode.PATH_CONFLICT and frame.request.method == "POST":
        parts.append(f"<p>{say('Nothing was changed.')}</p>")
        again = plain(f"{frame.request.url.path}")
        hidden = {**frame.fields, "force": "1"}
        parts.append(frame.form(again, say("Replace these files"), hidden=hidden, kind="bad"))
    links = [f'<a href="{frame.address("")}">{say("All sessions")}</a>']
    session_id = frame.request.path_params.get("session_id")
    if session_id and problem.status != 404:
        url = frame.address("sessions", session_id)
        links.insert(0, f'<a href="{url}">{say("The whole session")}</a>')
    parts.append(f"<p>{' · '.join(links)}</p>")
    response = frame.page(title, "\n".join(parts), status=problem.status)
    response.headers.update(problem.headers or {})
    return response


def _lines(value: object) -> Sequence[str]:
    if isinstance(value, Mapping):
        found = cast("Mapping[object, object]", value)
        return [f"{name}: {why}" for name, why in found.items()]
    return [str(each) for each in cast("list[object]", value)] if isinstance(value, list) else []


def positive(text: str | None) -> int | None:
    """Return a positive number of an address; None for anything else."""
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > 18:
        return None
    return int(text) or None
