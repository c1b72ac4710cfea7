"""Access: whose request this is, to `soong-agent serve` and to a mounted application."""

import inspect
from collections.abc import Sequence

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from agent_core.serve.bodies import read_form
from agent_core.serve.origins import changes, check_host, check_origin
from agent_core.serve.pages.login import login_page
from agent_core.serve.principals import Auth, Principal
from agent_core.serve.problems import HttpProblem
from agent_core.serve.sign_in import LASTS_S, SignIn

_SCHEMES = ("http", "https")
_CHALLENGE = {"WWW-Authenticate": "Bearer"}
_LINK = "sign in with the link that the server has printed"
_EITHER_WAY = "sign in with the token, or with the link that the server has printed"
_LONGEST = 4096


class AuthAccess:
    """Access to an application inside another one, which knows its users."""

    routes: Sequence[BaseRoute] = ()

    def __init__(self, auth: Auth | None) -> None:
        self._auth = auth

    def check(self, request: Request) -> None:
        """Refuse a change that the page of another origin asks for; `Host` is the program's."""
        check_origin(request, _SCHEMES)

    async def principal_of(self, request: Request) -> Principal:
        """Return the sender as the program knows it.

        Raises:
            HttpProblem: 401.
        """
        found = self._auth(request) if self._auth is not None else None
        if inspect.isawaitable(found):
            found = await found
        if found is None:
            raise HttpProblem(401, "the sender of this request is unknown", headers=_CHALLENGE)
        return found


class Names(Struct, frozen=True):
    """The names by which a server is reached.

    Attributes:
        hosts: accepted `Host`s; None: any, because others reach the server by its name.
        schemes: the schemes of its pages; a reverse proxy may add TLS.
    """

    hosts: frozenset[str] | None
    schemes: Sequence[str]


class ServerAccess:
    """Access to `soong-agent serve`, for the user who has started it.

    Args:
        sign_in: knows who is signed in.
        names: the names of the server.
        principal: the user.

    Attributes:
        routes: pages to sign in, which everybody may open.
    """

    def __init__(self, sign_in: SignIn, names: Names, principal: Principal) -> None:
        self._sign_in = sign_in
        self._names = names
        self._principal = principal
        self.routes: Sequence[BaseRoute] = (
            Route("/login", self._log_in, methods=["GET", "POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
        )

    def check(self, request: Request) -> None:
        """Refuse a request that comes by a wrong name, or from the page of another origin."""
        check_host(request, self._names.hosts)
        check_origin(request, self._names.schemes)

    async def principal_of(self, request: Request) -> Principal:
        """Return the user, if the request has the token or the cookie.

        Raises:
            HttpProblem: 401; 403: a change with the cookie does not say where it comes from; 429.
        """
        given = request.headers.getlist("authorization")
        kind, _, token = given[0].strip().partition(" ") if len(given) == 1 else ("", "", "")
        if kind.lower() == "bearer" or len(given) > 1:
            if len(given) == 1 and await self._sign_in.take_token(_bytes(token.strip())):
                return self._principal
            raise self._unknown()
        if not self._is_signed_in(request):
            raise self._unknown()
        if changes(request) and "origin" not in request.headers:
            raise HttpProblem(403, "a change with the cookie must have an Origin")
        return self._principal

    def _is_signed_in(self, request: Request) -> bool:
        return self._sign_in.knows(_cookies(request, self._sign_in.cookie))

    def _unknown(self) -> "SignInProblem":
        takes_token = self._sign_in.takes_token
        return SignInProblem(_EITHER_WAY if takes_token else _LINK, takes_token=takes_token)

    async def _log_in(self, request: Request) -> Response:
        takes_token = self._sign_in.takes_token
        is_signed_in = self._is_signed_in(request)
        if request.method != "POST" and not is_signed_in:
            code = request.query_params.get("code", "")[:_LONGEST]
            return login_page(request, code=code, takes_token=takes_token)
        fields = await read_form(request) if request.method == "POST" else {}
        if is_signed_in:  # a code or a token adds nothing
            return _lead(request, "/")
        if code := fields.get("code"):
            is_known = await self._sign_in.take_code(_bytes(code))
        else:
            is_known = await self._sign_in.take_token(_bytes(fields.get("token", "").strip()))
        if not is_known:
            raise SignInProblem(
                "this code or token does not sign in", takes_token=takes_token, is_wrong=True
            )
        return self._back(request, self._sign_in.make_cookie(), LASTS_S, "/")

    async def _log_out(self, request: Request) -> Response:
        return self._back(request, "", 0, "/login")

    def _back(self, request: Request, value: str, lasts_s: int, path: str) -> Response:
        """Return the response that sets the cookie, and leads on."""
        response = _lead(request, path)
        origin = request.headers.get("origin", "")
        parts = [f"{self._sign_in.cookie}={value}", f"Max-Age={lasts_s}"]
        parts += ["HttpOnly", "SameSite=Strict", "Path=/"]
        if request.scope["scheme"] == "https" or origin.lower().startswith("https:"):
            parts.append("Secure")  # the page has come over TLS, here or to a reverse proxy
        response.headers["Set-Cookie"] = "; ".join(parts)
        return response


def _lead(request: Request, path: str) -> RedirectResponse:
    """Return the response that leads to a page of this application."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}{path}", 303)


class SignInProblem(HttpProblem):
    """The refusal of a request that is not signed in; a browser gets the page to sign in.

    Args:
        detail: what is wrong.
        takes_token: the server has a token that signs in.
        is_wrong: the request has tried to sign in.
    """

    def __init__(self, detail: str, *, takes_token: bool, is_wrong: bool = False) -> None:
        super().__init__(401, detail, headers=_CHALLENGE)
        self.takes_token = takes_token
        self.is_wrong = is_wrong


def _cookies(request: Request, name: str) -> Sequence[str]:
    """Return every value that a request has for a cookie."""
    pairs = ";".join(request.headers.getlist("cookie")).split(";")
    split = (pair.partition("=") for pair in pairs)
    return [value.strip() for found, _, value in split if found.strip() == name]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
