"""Tools as data: what a model is offered, asks for and gets back, and what a call may touch."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, StringConstraints

from agent_core.errors import ErrorCode
from agent_core.types.content import ContentBlock, ErrorPayload, Frozen, SafeId

ToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.\-]{1,256}$")]
"""A canonical tool name: dotted, like `code.read_file` or `mcp.<server>.<tool>`."""


class ToolPermission(StrEnum):
    """Whether a tool only looks, or may change something."""

    READONLY = "readonly"
    WRITE = "write"


ToolKind = Literal["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "other"]
"""What a call does, in the words of the Agent Client Protocol."""


class ToolDefinition(Frozen):
    """A tool as the model sees it; `input_schema` is a JSON Schema of an object."""

    name: ToolName
    description: str
    input_schema: dict[str, Any] = Field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    permission: ToolPermission = ToolPermission.WRITE
    tags: set[str] = set()
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])

    if TYPE_CHECKING:  # the words that the values have are taken as well

        def __init__(
            self,
            *,
            name: str,
            description: str,
            input_schema: dict[str, Any] = ...,
            permission: ToolPermission | Literal["readonly", "write"] = ...,
            tags: set[str] = ...,
            metadata: dict[str, Any] = ...,
        ) -> None: ...


class ToolCall(Frozen):
    """A complete call: the name is canonical, the arguments are parsed."""

    tool_call_id: SafeId
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class ToolResult(Frozen):
    """What a call answered. Core sets `tool_call_id` and `tool_name` itself."""

    tool_call_id: str = ""
    tool_name: str = ""
    content: list[ContentBlock] = []
    is_error: bool = False
    error: ErrorPayload | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class Decision(StrEnum):
    """What the user said. A deny is for this call only."""

    ALLOW_ONCE = "allow_once"
    ALLOW_FOR_SESSION = "allow_for_session"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class CommandView:
    """One program that a command runs, with its words.

    Attributes:
        argv: the words, quotes removed; empty for a redirection without a command.
        program: the absolute path of its file, links followed; the bare name of a command that
            only the shell has (`cd`); None where there is no such program.
        reads: resolved paths that its standard input or another descriptor is read from.
        writes: resolved paths that a redirection writes. `/dev/null` and the like are no paths.
        unknown_from: the index of the first word that is known only when it runs (`$x`, `*.py`,
            what `xargs` adds). It and all after it may be any words, or none, so that only a
            final `*` of a rule covers them, and a rule that denies or asks may mean them.
        only_reads: a program of this name makes no file with these words.
    """

    argv: tuple[str, ...]
    program: str | None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    unknown_from: int | None = None
    only_reads: bool = False


@dataclass(frozen=True, slots=True)
class CommandViews:
    """What a command runs, wrappers and shells looked into.

    Attributes:
        views: what rules are matched with. With a problem they may be too many or too few.
        problem: why no rule may allow the command; None if the views are all there is to it.
    """

    views: tuple[CommandView, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What one call would touch: worked out before the question, and not changed after.

    Attributes:
        asks: the user has to agree first.
        scope: what an `allow_for_session` would cover, in words; calls with the same tool and
            scope share one answer. Empty: the tool as a whole if it only reads, else exactly
            these arguments.
        summary: the arguments on one line, for a person.
        target: what is touched: the resolved path, the argument vector.
        cwd: where a command would run.
        env_names: the environment variables a command would see.
        dangerous: the call can do anything the user can.
        reason: why this call asks beyond the rule for its tool: `sensitive`, `outside_roots`,
            `program_home`, `outside_sandbox`. Such a call is asked for even if it was allowed
            before.
        places: the resolved paths that are the reason, where `target` does not name them.
        paths: every resolved path that the call names, for rules about paths.
        line: the first line that is read or changed, where there is one file.
        diff: a unified diff of what would change, where there is one.
        confined: what the sandbox does with this call, in words; None: it is not confined.
        refusal: the code of the answer where no question can be asked.
        hook_summary: what the last hook that let the call pass said of it.
        command: what a command would run; None for other calls.
        runs: the absolute paths of files that a call would run, where `command` does not name
            them.
        only_reads: a command that certainly changes nothing; looked at in plan mode only.
        edits: a file of the project is written, and nothing that is protected; looked at with
            `accept-edits` only.
    """

    asks: bool = False
    scope: str = ""
    summary: str = ""
    target: str | None = None
    cwd: str | None = None
    env_names: tuple[str, ...] = ()
    dangerous: bool = False
    reason: str | None = None
    places: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    line: int | None = None
    diff: str | None = None
    confined: str | None = None
    refusal: ErrorCode = ErrorCode.PERMISSION_DENIED
    hook_summary: Mapping[str, Any] | None = None
    command: CommandViews | None = None
    runs: tuple[str, ...] = ()
    only_reads: bool = False
    edits: bool = False


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
            decision: Decision | Literal["allow_once", "allow_for_session", "deny"],
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
        target: what would be touched.
        cwd: where a command would run.
        reason: why it is asked for whatever was allowed before.
        places: the paths that are the reason.
        paths: every path that the call names.
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
    target: str | None = None
    cwd: str | None = None
    reason: str | None = None
    places: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
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
