"""Questions to a user: whether a call may be made, or what a server wants to know."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from agent_core.text.json_text import JsonSchema
from agent_core.types.content import Frozen, SafeId
from agent_core.types.tools import CommandViews, Decision, ToolPermission


class PermissionRequest(Frozen):
    """A question to the user; `metadata.diff` holds a unified diff for writes and edits.

    With `metadata.diff_is_whole`, nothing of the diff was cut or replaced.
    """

    request_id: SafeId
    session_id: SafeId
    agent_id: SafeId
    run_id: SafeId
    parent_agent_id: SafeId | None = None
    parent_run_id: SafeId | None = None
    agent_role: str
    tool_name: str
    permission: ToolPermission
    tags: set[str] = set()
    args_summary: str
    target_scope: str | None = None
    cwd: str
    env_summary: str = ""
    network_host: str | None = None
    dangerous: bool = False
    hook_summary: dict[str, Any] | None = None
    suggested_decision: Decision = Decision.DENY
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class PermissionDecision(Frozen):
    """The answer to a `PermissionRequest`."""

    decision: Decision
    reason: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            decision: Decision
            | Literal["allow_once", "allow_for_session", "allow_reads", "allow_edits", "deny"],
            reason: str | None = None,
            metadata: dict[str, Any] = ...,
        ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionGrant:
    """A remembered answer "for the session".

    Attributes:
        grant_id: id shown to people.
        session_id: the session, including the agents that it starts.
        tool_name: the tool that the question was about.
        covers: the calls it covers, in the words of the question.
        key: key shared by all calls that it covers.
        created_at: time of the answer.
    """

    grant_id: str
    session_id: str
    tool_name: str
    covers: str
    key: str
    created_at: datetime


class PermissionExplanation(Frozen):
    """The decision about a call, and the reason: see `AgentRuntime.explain_permission`.

    Attributes:
        decision: `allow`, `ask` or `deny`.
        by: source of the decision: a rule, a remembered answer, a setting.
        tool_name: the tool.
        covers: the calls that an answer for the session would cover, or does cover; None for this
            call only.
        rule: the rule that an answer "always" would add, if it can.
        wide: the calls that the question's wider answer would cover; None if it offers none.
        wide_rule: the rule that the wider answer with "always" would add, if it can.
        target: the thing that would be touched.
        cwd: the folder in which a command would run.
        reason: the reason why it is asked for even if it was allowed before.
        places: the paths that are the reason.
        paths: every path that the call names.
        met: paths that a command opens below the folders among them.
        hosts: hosts of a network call.
        command: the programs that a command would run.
        confined: the sandbox's effect on the call; None if it is not confined.
        no_network: why a command would have no network, and what grants it; None if it would.
        failure: why the call would fail even if it is allowed; the decision is about the change
            that it means.
        refusal: the text that the model would read if the call is denied.
    """

    decision: Literal["allow", "ask", "deny"]
    by: str
    tool_name: str
    covers: str | None = None
    rule: str | None = None
    wide: str | None = None
    wide_rule: str | None = None
    target: str | None = None
    cwd: str | None = None
    reason: str | None = None
    places: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    met: tuple[str, ...] = ()
    hosts: tuple[str, ...] | None = None
    command: CommandViews | None = None
    confined: str | None = None
    no_network: str | None = None
    failure: str | None = None
    refusal: str = ""


class ElicitationRequest(Frozen):
    """A request of an MCP server to the user: to fill in a form, to open an address, or to log in.

    Everything except `server_id` and `host` comes from the server: show it as data.

    Attributes:
        server_id: name of the server in `mcp.json`.
        mode: `form` has a `requested_schema`; `url` has a `url` and its `host`.
        purpose: `login` for the login of an HTTP server (mode `url`).
        message: the reason for the request.
        requested_schema: a JSON Schema of one object with plain fields.
        url: the `http` or `https` address to open.
        host: host of that address, in ASCII.
    """

    server_id: str
    mode: Literal["form", "url"]
    purpose: Literal["question", "login"] = "question"
    message: str
    requested_schema: JsonSchema | None = None
    url: str | None = None
    host: str | None = None


class ElicitationAnswer(Frozen):
    """The answer to an `ElicitationRequest`.

    Attributes:
        action: `accept`, `decline` (the user said no), or `cancel` (there is no answer).
        content: the fields of a form. For a login, `redirect_url` is the address that the browser
            was sent to, if the browser runs on another machine.
    """

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None
