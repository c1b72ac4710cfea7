"""Pages without a frame, for senders who have not been let in: no navigation, and no scripts."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import HTMLResponse

from agent_core.serve.pages.assets import asset_address
from agent_core.serve.problems import HttpProblem
from agent_core.text.languages import Language, language_of
from agent_core.text.pages import plain

_TITLES = {
    400: "This cannot be used",
    401: "This is not allowed",
    403: "This is not allowed",
    404: "Not found",
    409: "This is no longer possible",
    503: "This cannot be answered now",
}
_VARIES = "Accept-Language, Accept"


def reads_pages(request: Request) -> bool:
    """Return whether a person sends the request: a browser that opens an address."""
    return "text/html" in request.headers.get("accept", "")


def refusal_title(problem: HttpProblem, say: Language) -> str:
    """Return the heading of the page of a refusal."""
    return say(_TITLES.get(problem.status, "This did not work"))


def refusal_page(request: Request, problem: HttpProblem) -> HTMLResponse:
    """Return the page of a request that is refused before its sender is known."""
    say = language_of(request.headers.get("accept-language", ""))
    title = refusal_title(problem, say)
    body = f'<h1>{title}</h1>\n<p class="notice bad">{plain(say(problem.detail))}</p>'
    return bare_page(request, title, body, status=problem.status, headers=problem.headers)


def bare_page(
    request: Request,
    title: str,
    body: str,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> HTMLResponse:
    """Return a page in the reader's language.

    Args:
        request: asks for it, or is refused with it.
        title: the title as plain text.
        body: HTML, with the heading of the page.
        status: of the response.
        headers: further headers of the response.
    """
    say = language_of(request.headers.get("accept-language", ""))
    root = plain(str(request.scope.get("root_path", "")))
    # A browser that sends no referrer sends `Origin: null` with a form, which is refused.
    page = (
        f'<!doctype html>\n<html lang="{say.code}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="same-origin">'
        f"<title>{plain(title)} · soong-agent</title>"
        f'<link rel="icon" href="{root}{asset_address("icon.svg")}">'
        f'<link rel="stylesheet" href="{root}{asset_address("console.css")}">'
        f'</head>\n<body><main id="main">{body}</main></body></html>\n'
    )
    given = {"Content-Language": say.code, "Vary": _VARIES, **(headers or {})}
    return HTMLResponse(page, status, given)
