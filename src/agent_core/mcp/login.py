"""Logins at HTTP servers: OAuth by the SDK, in a browser on this machine or another one."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, ValidationError

from agent_core.errors import ToolError
from agent_core.mcp.config import HttpServer
from agent_core.mcp.discovery import server_failed
from agent_core.mcp.elicitation import url_request
from agent_core.mcp.tokens import StoredLogin, secrets_in
from agent_core.text import shortened
from agent_core.types import ElicitationAnswer, ElicitationRequest

LOGIN_SECONDS = 300.0
"""Seconds that a user may take in the browser."""

HTTP_UNAUTHORIZED = 401
_HOST = "127.0.0.1"
_MAX_REQUEST_BYTES = 16_384
_PAGE = "<!doctype html><meta charset=utf-8><title>soong-agent</title><p>{}"

Ask = Callable[[ElicitationRequest], Coroutine[Any, Any, ElicitationAnswer]]
Learn = Callable[[Mapping[str, str]], None]


class Login:
    """The login at one server, stored before or made in a browser.

    Args:
        server_id: for messages.
        server: the server; its `oauth` may name a client that is registered already.
        home: the folder where it is stored.
        persist: a new login is stored there.
        ask: puts the address to the user.
        learn: gets every token, which is secret from then on.

    Attributes:
        failure: the reason why the last attempt failed.
    """

    def __init__(
        self,
        server_id: str,
        server: HttpServer,
        home: Path,
        *,
        ask: Ask,
        learn: Learn,
        persist: bool = True,
    ) -> None:
        self.failure: ToolError | None = None
        self._server_id = server_id
        self._settings = server.oauth
        self._ask = ask
        self._learn = learn
        self._stored = StoredLogin(home, server.url, persist=persist)
        self._port = server.oauth.redirect_port or self._usual_port()
        self._address = ""
        self.authorization = _Renewing(
            server_url=server.url,
            client_metadata=OAuthClientMetadata(
                client_name="soong-agent",
                redirect_uris=[AnyUrl(self._redirect_url)],
                scope=server.oauth.scope,
            ),
            storage=self,
            redirect_handler=self._send_user_to,
            callback_handler=self._wait_for_user,
            client_metadata_url=server.oauth.client_metadata_url,
        )

        self.authorization.may_register = server.oauth.client_id is None

    @property
    def _redirect_url(self) -> str:
        return f"http://{_HOST}:{self._port}/callback"

    def _usual_port(self) -> int:
        """Return the port that the client was registered with, or a free one."""
        for url in self._stored.read().get("client", {}).get("redirect_uris") or ():
            with suppress(ValueError):
                if port := urlsplit(str(url)).port:
                    return port
        with socket.create_server((_HOST, 0)) as free:
            return free.getsockname()[1]

    # The SDK calls these four to load and to store a login.

    async def get_tokens(self) -> OAuthToken | None:
        """Return the stored tokens, and restore the metadata that refreshing them needs."""
        stored = await asyncio.to_thread(self._stored.read)
        self._learn(dict(secrets_in(stored)))
        context = self.authorization.context
        try:
            tokens = OAuthToken.model_validate(stored["tokens"])
            if metadata := stored.get("metadata"):
                context.oauth_metadata = OAuthMetadata.model_validate(metadata)
            if resource := stored.get("resource"):
                context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(
                    resource
                )
        except (KeyError, ValidationError):
            return None
        context.auth_server_url = stored.get("issuer")
        context.token_expiry_time = stored.get("expires_at")
        return tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store new tokens."""
        context = self.authorization.context
        given = tokens.model_dump(mode="json", exclude_none=True)
        self._learn(dict(secrets_in(given)))
        metadata, resource = context.oauth_metadata, context.protected_resource_metadata
        await asyncio.to_thread(
            self._stored.write,
            tokens=given,
            expires_at=context.token_expiry_time,
            issuer=context.auth_server_url,
            metadata=metadata.model_dump(mode="json", exclude_none=True) if metadata else None,
            resource=resource.model_dump(mode="json", exclude_none=True) if resource else None,
        )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the configured client, or else the one that was registered before."""
        if self._settings.client_id:
            secret = self._settings.client_secret
            return OAuthClientInformationFull(
                client_id=self._settings.client_id,
                client_secret=secret,
                redirect_uris=[AnyUrl(self._redirect_url)],
                token_endpoint_auth_method="client_secret_post" if secret else "none",
            )
        stored = (await asyncio.to_thread(self._stored.read)).get("client")
        with suppress(ValidationError):
            return OAuthClientInformationFull.model_validate(stored) if stored else None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store the client that was registered."""
        client = client_info.model_dump(mode="json", exclude_none=True)
        self._learn(dict(secrets_in(client)))
        await asyncio.to_thread(self._stored.write, client=client)

    # The SDK calls these two to send the user through the browser.

    async def _send_user_to(self, address: str) -> None:
        self._address = address

    async def _wait_for_user(self) -> AuthorizationCodeResult:
        state = parse_qs(urlsplit(self._address).query).get("state", [""])[0]
        arrived: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        try:
            question = url_request(
                self._server_id, "You have to log in.", self._address, purpose="login"
            )
            listener = await asyncio.start_server(
                lambda reader, writer: _receive(reader, writer, state, arrived), _HOST, self._port
            )
        except (ValueError, OSError) as error:
            raise self._failed(f"cannot be logged in to: {error}") from error
        asking = asyncio.create_task(self._ask(question))
        try:
            async with asyncio.timeout(LOGIN_SECONDS):
                await asyncio.wait({arrived, asking}, return_when=asyncio.FIRST_COMPLETED)
                if not arrived.done():
                    answer = asking.result()
                    if answer.action != "accept":
                        raise self._failed("wants you to log in")
                    pasted = (answer.content or {}).get("redirect_url")
                    if pasted:
                        return self._read_redirect(str(pasted))
                return self._read_redirect(await arrived)
        except TimeoutError:
            raise self._failed(f"waited {LOGIN_SECONDS:g} s for you to log in") from None
        finally:
            asking.cancel()
            listener.close()

    def _read_redirect(self, address: str) -> AuthorizationCodeResult:
        query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        if "code" not in query:
            reason = query.get("error_description") or query.get("error") or "it has no code"
            raise self._failed(f"did not let you in: {shortened(reason, 200)}")
        return AuthorizationCodeResult(
            code=query["code"], state=query.get("state"), iss=query.get("iss")
        )

    def _failed(self, reason: str) -> ToolError:
        cure = f"; log in with: soong-agent mcp login {self._server_id}"
        self.failure = server_failed(self._server_id, reason + cure)
        return self.failure


class _Renewing(OAuthClientProvider):
    """The SDK's login, which tries the refresh token before it sends the user to the browser.

    The SDK renews a token only when its own clock says that it has expired; a server may revoke it
    earlier. A client that the server has forgotten is registered anew, and the login made again.

    Attributes:
        may_register: the client is not one that the user has registered.
    """

    may_register = True

    async def _auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        is_new = has_client = True
        while True:
            async with aclosing(super()._auth_flow(request)) as flow:
                asked = await anext(flow)
                while True:
                    response = yield asked
                    is_refused = asked is request and response.status_code == HTTP_UNAUTHORIZED
                    if is_refused and is_new and self.context.can_refresh_token():
                        is_new = False
                        renewed = yield await self._refresh_token()
                        if b"invalid_client" in await renewed.aread():
                            self.context.client_info = None
                        if await self._handle_refresh_response(renewed):
                            self._add_auth_header(request)
                            response = yield request
                    elif has_client and self.may_register and await _forgets_client(response):
                        has_client = False
                        self.context.client_info = None
                        break
                    try:
                        asked = await flow.asend(response)
                    except StopAsyncIteration:
                        return


async def _forgets_client(response: httpx2.Response) -> bool:
    """Return whether a code could not be exchanged because the client is not known any more."""
    if not response.is_error or b"grant_type=authorization_code" not in response.request.content:
        return False
    return b"invalid_client" in await response.aread()


async def _receive(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    state: str,
    arrived: asyncio.Future[str],
) -> None:
    """Receive the address that a browser was redirected to; without our `state` it is refused."""
    with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        head = await reader.readuntil(b"\r\n\r\n")
        # An invalid request raises a ValueError, and its connection is closed.
        _, asked, _ = head[:_MAX_REQUEST_BYTES].split(b" ", 2)
        target = asked.decode("ascii", "replace")
        query = parse_qs(urlsplit(target).query)
        is_ours = target.startswith("/callback?") and query.get("state") == [state]
        status, text = "200 OK", "You can close this page."
        if not is_ours:
            status, text = "404 Not Found", "Not found."
        elif "code" not in query:
            text = "You have not been logged in; you can close this page."
        body = _PAGE.format(text)
        kind = "Content-Type: text/html; charset=utf-8\r\nConnection: close"
        writer.write(
            f"HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        await writer.drain()
        if is_ours and not arrived.done():
            arrived.set_result(target)
    writer.close()
