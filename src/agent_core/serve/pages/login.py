"""The page to sign in: a form that works without scripts."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import HTMLResponse

from agent_core.serve.pages.bare import bare_page
from agent_core.text.languages import Language, language_of
from agent_core.text.pages import plain


def login_page(
    request: Request,
    *,
    takes_token: bool,
    code: str = "",
    status: int = 200,
    is_wrong: bool = False,
    headers: Mapping[str, str] | None = None,
) -> HTMLResponse:
    """Return the page in the reader's language.

    Args:
        request: asks for it, or is refused with it.
        takes_token: the server has a token, for which the page asks if there is no code.
        code: from the link.
        status: of the response.
        is_wrong: say that the last try did not sign in.
        headers: further headers of the response.
    """
    say = language_of(request.headers.get("accept-language", ""))
    root = plain(str(request.scope.get("root_path", "")))
    title = say("Sign in")
    wrong = say("The link was used, or is older than ten minutes.")
    if takes_token:
        wrong = say("The token is wrong, or the link was used or is older than ten minutes.")
    notice = f'<p class="notice bad" role="alert">{wrong}</p>'
    body = f"<h1>{title}</h1>\n{notice if is_wrong else ''}"
    if code or takes_token:
        body += (
            f'<form method="post" action="{root}/login">{_fields(say, code)}'
            f'<button class="main">{title}</button></form>'
        )
    else:
        hint = say("Open the link that this server printed when it started, or start it again.")
        body += f"<p>{hint}</p>"
    return bare_page(request, title, body, status=status, headers=headers)


def _fields(say: Language, code: str) -> str:
    if code:
        hidden = f'<input type="hidden" name="code" value="{plain(code)}">'
        return f"<p>{say('This link signs this browser in, for 30 days.')}</p>{hidden}"
    hint = say("The token of this server. Or open the link that it printed when it started.")
    return (
        f'<div class="field"><label for="token">{say("Token")}</label>'
        '<input id="token" name="token" type="password" autocomplete="current-password" required'
        f' aria-describedby="hint"><p id="hint" class="muted">{hint}</p></div>'
    )
