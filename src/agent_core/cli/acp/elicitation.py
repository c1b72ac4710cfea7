"""Puts the questions of MCP servers to the editor, where it can ask them."""

from acp.exceptions import RequestError
from acp.schema import (
    CreateFormSessionElicitationRequest,
    CreateUrlSessionElicitationRequest,
    ElicitationCapabilities,
    ElicitationSchema,
)
from acp.utils import serialize_params
from pydantic import AnyUrl, ValidationError

from agent_core.cli.acp.connection import EditorConnection
from agent_core.text import visible
from agent_core.types import ElicitationAnswer, ElicitationRequest, new_id


class EditorElicitation:
    """The elicitation callback of one session.

    Args:
        session_id: of the session.
        connection: to the editor.
        can: kinds of questions it can ask: forms, addresses.
    """

    def __init__(
        self, session_id: str, connection: EditorConnection, can: ElicitationCapabilities
    ) -> None:
        self._session_id = session_id
        self._connection = connection
        self._can = can

    async def __call__(self, request: ElicitationRequest) -> ElicitationAnswer:
        """Ask, and return the answer; questions that the editor cannot ask are declined."""
        try:
            asked = self._question(request)
        except ValidationError:  # a form of fields that it does not know
            asked = None
        if asked is None:
            return ElicitationAnswer(action="decline")
        try:
            answer = await self._connection.send_request(
                "elicitation/create", serialize_params(asked)
            )
            return ElicitationAnswer(action=answer["action"], content=answer.get("content"))
        except (AttributeError, ConnectionError, LookupError, RequestError, TypeError, ValueError):
            return ElicitationAnswer(action="cancel")

    def _question(
        self, request: ElicitationRequest
    ) -> CreateFormSessionElicitationRequest | CreateUrlSessionElicitationRequest | None:
        server, message = request.server_id, visible(request.message)
        if request.mode == "form":
            if self._can.form is None:
                return None
            return CreateFormSessionElicitationRequest(
                session_id=self._session_id,
                mode="form",
                message=f"MCP server {server} asks you: {message}",
                requested_schema=ElicitationSchema.model_validate(request.requested_schema),
            )
        if self._can.url is None:
            return None
        wish = "wants you to log in" if request.purpose == "login" else "wants you to visit"
        return CreateUrlSessionElicitationRequest(
            session_id=self._session_id,
            mode="url",
            message=f"MCP server {server} {wish} at {request.host}: {message}",
            elicitation_id=new_id("elic"),
            url=AnyUrl(request.url or ""),
        )
