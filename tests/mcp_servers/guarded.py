"""An MCP server that wants a login, and asks its user questions; on the official SDK.

`python guarded.py` prints the port it listens on. Environment: `LIFETIME_SECONDS` says how long a
token lives. `/revoke` on the same port makes every token that was given invalid.
"""

import asyncio
import os
import secrets
import socket
import sys
import time
from typing import Annotated

import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl, BaseModel, Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

LIFETIME = int(os.environ.get("LIFETIME_SECONDS", "3600"))


class House(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Everyone who asks is let in; `grants` counts how often, by which way."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.grants: list[str] = []
        self.forgets_soon = False

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(
        self, client: OAuthClientInformationFull, params: AuthorizationParams
    ) -> str:
        code = secrets.token_urlsafe(16)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        if self.forgets_soon:  # before the code is exchanged
            self.clients.clear()
            self.forgets_soon = False
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        del client
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._grant("code", client)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        del client
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del scopes
        self.refresh.pop(refresh_token.token)
        return self._grant("refresh", client)

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = self.access.get(token)
        return found if found and (found.expires_at or 0) > time.time() else None

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.pop(token.token, None)

    def _grant(self, how: str, client: OAuthClientInformationFull) -> OAuthToken:
        self.grants.append(how)
        access, refresh = f"at-{secrets.token_urlsafe(24)}", f"rt-{secrets.token_urlsafe(24)}"
        expires = int(time.time()) + LIFETIME
        self.access[access] = AccessToken(
            token=access, client_id=client.client_id, scopes=[], expires_at=expires
        )
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client.client_id, scopes=[])
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=LIFETIME)


class Order(BaseModel):
    """What the form asks for."""

    drink: str = Field(description="What you would like")
    cups: int = Field(default=1, ge=1, le=9)
    api_key: str = Field(default="", description="Only in case")
    hot: bool = True


def ask_order() -> Elicit[Order]:
    return Elicit("What may it be?", Order)


def build(origin: str) -> tuple[MCPServer, House]:
    house = House()
    server = MCPServer(
        "guarded",
        log_level="ERROR",
        auth_server_provider=house,
        auth=AuthSettings(
            issuer_url=AnyHttpUrl(origin),
            validate_token_resource=False,
            resource_server_url=AnyHttpUrl(f"{origin}/mcp"),
            client_registration_options=ClientRegistrationOptions(enabled=True),
        ),
    )

    @server.tool()
    def order(answer: Annotated[ElicitationResult[Order], Resolve(ask_order)]) -> str:
        """Ask what the user wants to drink."""
        if not isinstance(answer, AcceptedElicitation):
            return answer.action
        data = answer.data
        return f"{data.cups} {data.drink} hot={data.hot} key={data.api_key}"

    @server.tool()
    async def grants() -> str:
        """How tokens were given."""
        return ",".join(house.grants)

    @server.custom_route("/revoke", methods=["POST"])
    async def revoke(request: Request) -> Response:
        house.access.clear()
        if "access" not in request.query_params:
            house.refresh.clear()
        house.forgets_soon = "soon" in request.query_params
        if "clients" in request.query_params:
            house.clients.clear()
        return PlainTextResponse("revoked")

    del order, grants, revoke
    return server, house


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server, _ = build(f"http://127.0.0.1:{port}")
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    config = uvicorn.Config(
        server.streamable_http_app(), log_level="error", timeout_graceful_shutdown=1
    )
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main()
