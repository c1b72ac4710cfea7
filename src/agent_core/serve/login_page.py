"""The page to sign in: a form that works without scripts."""

from collections.abc import Mapping
from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse

from agent_core.serve.headers import FORM_REFERRER

_TEXTS = {
    "en": {
        "title": "Sign in",
        "code": "This link signs this browser in for 30 days.",
        "token": "Token",
        "hint": "The token of this server, or open the link that it printed when it started.",
        "send": "Sign in",
        "wrong": "That did not sign in: the token is wrong, or the link is used up or older than"
        " ten minutes.",
    },
    "zh": {
        "title": "登录",
        "code": "此链接让这个浏览器登录 30 天。",
        "token": "令牌",
        "hint": "输入此服务器的令牌，或打开它启动时打印的链接。",  # noqa: RUF001
        "send": "登录",
        "wrong": "登录失败：令牌不正确，或链接已用过，或已超过十分钟。",  # noqa: RUF001
    },
}
_PAGE = """<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{referrer}
<title>{title} · soong-agent</title>
</head>
<body>
<main>
<h1>{title}</h1>
{wrong}
<form method="post" action="{action}">
{fields}
<p><button type="submit">{send}</button></p>
</form>
</main>
</body>
</html>
"""


def login_page(
    request: Request,
    *,
    code: str = "",
    status: int = 200,
    is_wrong: bool = False,
    headers: Mapping[str, str] | None = None,
) -> HTMLResponse:
    """Return the page in the reader's language.

    Args:
        request: asks for it, or is refused with it.
        code: from the link; without one the page asks for the token.
        status: of the response.
        is_wrong: say that the last try did not sign in.
        headers: further headers of the response.
    """
    language = language_of(request)
    texts = _TEXTS[language]
    root = request.scope.get("root_path", "")
    page = _PAGE.format(
        language=language,
        referrer=FORM_REFERRER,
        title=texts["title"],
        wrong=f'<p role="alert">{texts["wrong"]}</p>' if is_wrong else "",
        action=escape(f"{root}/login"),
        fields=_fields(texts, code),
        send=texts["send"],
    )
    vary = {"Content-Language": language, "Vary": "Accept-Language, Accept"}
    return HTMLResponse(page, status, {**vary, **(headers or {})})


def _fields(texts: Mapping[str, str], code: str) -> str:
    if code:
        hidden = f'<input type="hidden" name="code" value="{escape(code)}">'
        return f"<p>{texts['code']}</p>\n{hidden}"
    return (
        f'<p><label for="token">{texts["token"]}</label>\n'
        '<input id="token" name="token" type="password" autocomplete="current-password" required'
        ' aria-describedby="hint"></p>\n'
        f'<p id="hint">{texts["hint"]}</p>'
    )


def language_of(request: Request) -> str:
    """Return `zh` if the reader likes Chinese better than English, otherwise `en`."""
    weights = {"en": 0.0, "zh": 0.0}
    for part in request.headers.get("accept-language", "").split(","):
        tag, _, parameters = part.partition(";")
        name = tag.strip().lower().partition("-")[0]
        if name in weights:
            weights[name] = max(weights[name], _weight(parameters))
    return "zh" if weights["zh"] > weights["en"] else "en"


def _weight(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return min(max(float(value), 0.0), 1.0)
    except ValueError:
        return 0.0
