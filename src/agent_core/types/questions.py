"""What a user is asked: whether a call may be made, or what a server wants to know."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from agent_core.types.commands import CommandViews
from agent_core.types.content import Frozen, SafeId
from agent_core.types.tools import Decision, ToolPermission


class PermissionRequest(Frozen):
    """A question to the user; `metadata.diff` holds a unified diff for writes and edits."""

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
    """An answer "for the session" that is remembered.

    Attributes:
        grant_id: names it for people.
        session_id: the session, the agents that it starts included.
        tool_name: the tool that was asked for.
        covers: what it covers, word for word as the question said.
        key: the same for all calls that it covers.
        created_at: when the answer was given.
    """

    grant_id: str
    session_id: str
    tool_name: str
    covers: str
    key: str
    created_at: datetime


class PermissionExplanation(Frozen):
    """What would become of a call, and why: see `AgentRuntime.explain_permission`.

    Attributes:
        decision: `allow`, `ask` or `deny`.
        by: what decides it: a rule, an answer that is remembered, a setting.
        tool_name: the tool.
        covers: what an answer for the session would cover, or the given one covers; None: this
            call only.
        rule: what an answer "always" would add to the rules, where it can.
        wide: what the wider answer would cover that the question offers; None: it offers none.
        wide_rule: what the wider answer with "always" would add to the rules, where it can.
        target: what would be touched.
        cwd: where a command would run.
        reason: why it is asked for whatever was allowed before.
        places: the paths that are the reason.
        paths: every path that the call names.
        met: what a command opens below the folders among them.
        hosts: of a network call.
        command: what a command would run.
        confined: what the sandbox does with the call; None: it is not confined.
        refusal: what the model would read of a call that is denied.
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
    refusal: str = ""


class ElicitationRequest(Frozen):
    """What an MCP server asks the user: to fill in a form, to open an address, or to log in.

    All of it but `server_id` and `host` is the server's: data, to be shown as such.

    Attributes:
        server_id: as `mcp.json` names it.
        mode: `form` has a `requested_schema`; `url` has a `url` and its `host`.
        purpose: `login` for the log-in of an HTTP server (mode `url`).
        message: why it asks.
        requested_schema: a JSON Schema of one object with plain fields.
        url: what is to be opened, `http` or `https`.
        host: whose address that is, in ASCII.
    """

    server_id: str
    mode: Literal["form", "url"]
    purpose: Literal["question", "login"] = "question"
    message: str
    requested_schema: dict[str, Any] | None = None
    url: str | None = None
    host: str | None = None


class ElicitationAnswer(Frozen):
    """The answer to an `ElicitationRequest`.

    Attributes:
        action: `accept`, `decline` (the user said no), or `cancel` (there is no answer).
        content: the fields of a form. For a log-in, `redirect_url` is the address that the
            browser was sent to, where it runs on another machine.
    """

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None
