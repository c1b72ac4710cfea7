"""The tools that the server offers: their arguments, schemas and descriptions."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from mcp_types import Tool, ToolAnnotations
from pydantic import BaseModel, Field

from agent_core.text.json_text import JsonSchema
from agent_core.tools.schema import Arguments, model_schema
from agent_core.types import PermissionMode
from agent_core.types.options import Dollars

SessionId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
MOST_SESSIONS, MOST_RUNS = 200, 100


class RunArguments(Arguments):
    """Give the agent a task in a project, and return its answer with the id of the session.

    The agent reads and changes files, runs commands and asks its user for permission, as its
    own settings say. A task may take minutes; progress says what the agent does. Name the
    session_id of an earlier result to continue that conversation.
    """

    message: Annotated[str, Field(min_length=1, description="the task, or the next message")]
    session_id: Annotated[
        SessionId | None, Field(description="the session to continue; default: a new one")
    ] = None
    project: Annotated[
        str | None, Field(min_length=1, description="the folder to work in; default: the first")
    ] = None
    model: Annotated[str | None, Field(description="one of the models of the settings")] = None
    mode: Annotated[
        PermissionMode | None,
        Field(description="plan: change nothing, the answer is a plan; ask: as the settings say"),
    ] = None
    max_turns: Annotated[
        int | None, Field(ge=1, description="the maximum number of model turns")
    ] = None
    max_usd: Annotated[Dollars | None, Field(gt=0, description="the most it may cost")] = None


class ListSessions(Arguments):
    """List the sessions of a project, the last used first."""

    project: Annotated[
        str | None, Field(min_length=1, description="the folder; default: the first")
    ] = None
    query: Annotated[
        str | None, Field(max_length=1_000, description="words in the title or the id")
    ] = None
    limit: Annotated[int, Field(ge=1, le=MOST_SESSIONS)] = 50
    offset: Annotated[int, Field(ge=0, le=10**9)] = 0


class ShowSession(Arguments):
    """Show what was said and done in the last runs of a session."""

    session_id: SessionId
    last: Annotated[int, Field(ge=1, le=MOST_RUNS, description="how many runs")] = 10


class CancelRun(Arguments):
    """Cancel the run of a session, and return when it has ended."""

    session_id: SessionId


class ListApprovals(Arguments):
    """List the open questions of runs that were started through this server."""

    session_id: SessionId | None = None


class AnswerApproval(Arguments):
    """Answer a question, and return the result of its run, which continues."""

    approval_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
    decision: Literal["allow_once", "allow_for_session", "deny"]
    reason: Annotated[
        str | None, Field(max_length=2_000, description="for the agent, if it is denied")
    ] = None


_TEXT = {"type": "string"}
_COUNT = {"type": "integer"}
_APPROVAL = {
    "type": "object",
    "properties": {
        "approval_id": _TEXT,
        "session_id": _TEXT,
        "run_id": _TEXT,
        "tool": _TEXT,
        "question": _TEXT,
        "decisions": {"type": "array", "items": _TEXT},
        "asked_at": _TEXT,
    },
    "required": ["approval_id", "session_id", "run_id", "tool", "question", "decisions"],
}
_ERROR = {
    "type": "object",
    "properties": {"code": _TEXT, "message": _TEXT},
    "required": ["code", "message"],
}


def _result(required: Sequence[str], **more: JsonSchema) -> JsonSchema:
    """Return the schema of a result, which is an error instead if the call has failed.

    Clients check failed calls against it, too.
    """
    return {
        "type": "object",
        "properties": {**dict.fromkeys(required, _TEXT), **more, "error": _ERROR},
        "anyOf": [{"required": [*required]}, {"required": ["error"]}],
    }


_RUN = _result(
    ("session_id", "run_id", "status", "text", "usage"),
    status={
        "type": "string",
        "enum": ["completed", "failed", "cancelled", "aborted", "waiting_permission"],
    },
    usage={
        "type": "object",
        "properties": {
            "input_tokens": _COUNT,
            "output_tokens": _COUNT,
            "total_tokens": _COUNT,
        },
    },
    end_reason=_TEXT,
    denied={"type": "array", "items": _TEXT},
    approvals={"type": "array", "items": _APPROVAL},
    cost_usd={"type": "number"},
)
_SESSION = {
    "session_id": _TEXT,
    "title": _TEXT,
    "project": _TEXT,
    "status": _TEXT,
    "turns": _COUNT,
    "updated_at": _TEXT,
}
_SESSIONS = _result(
    ("sessions", "has_more"),
    sessions={"type": "array", "items": {"type": "object", "properties": _SESSION}},
    has_more={"type": "boolean"},
)
_STORY = _result(
    ("session_id", "title", "project", "runs", "is_cut"),
    runs={"type": "array", "items": {"type": "object"}},
    is_cut={"type": "boolean"},
)
_APPROVALS = _result(("approvals",), approvals={"type": "array", "items": _APPROVAL})
_CANCELLED = _result(("session_id", "run_id", "status"))
_READS = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
_WORKS = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True
)
_ENDS = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
_OFFERS: Mapping[str, tuple[type[Arguments], str, JsonSchema, ToolAnnotations]] = {
    "run": (RunArguments, "Run the agent", _RUN, _WORKS),
    "sessions_list": (ListSessions, "List sessions", _SESSIONS, _READS),
    "session_show": (ShowSession, "Show a session", _STORY, _READS),
    "cancel": (CancelRun, "Cancel a run", _CANCELLED, _ENDS),
}
_ON_REQUEST: Mapping[str, tuple[type[Arguments], str, JsonSchema, ToolAnnotations]] = {
    "approvals_list": (ListApprovals, "List open questions", _APPROVALS, _READS),
    "approval_answer": (AnswerApproval, "Answer a question", _RUN, _WORKS),
}


def arguments_of(*, has_approvals: bool) -> dict[str, type[BaseModel]]:
    """Return the argument models of the tools, by name."""
    offers = {**_OFFERS, **(_ON_REQUEST if has_approvals else {})}
    return {name: model for name, (model, *_) in offers.items()}


def tools_of(
    *, models: Sequence[str], modes: Sequence[str], projects: Sequence[str], has_approvals: bool
) -> list[Tool]:
    """Return the tools as clients see them.

    Args:
        models: the models that a run may use, the default first.
        modes: the modes that a run may have.
        projects: the folders that a run may work in, the default first.
        has_approvals: the client may answer questions with a tool.
    """
    offers = {**_OFFERS, **(_ON_REQUEST if has_approvals else {})}
    made: list[Tool] = []
    for name, (model, title, output, annotations) in offers.items():
        schema = dict(model_schema(model))
        description = " ".join(str(schema.pop("description", "")).split())
        if name == "run":
            properties = dict(schema["properties"])
            properties["model"] = {**properties["model"], "enum": [*models]}
            properties["mode"] = {**properties["mode"], "enum": [*modes]}
            properties["project"] = {**properties["project"], "enum": [*projects]}
            schema["properties"] = properties
        made.append(
            Tool(
                name=name,
                title=title,
                description=description,
                input_schema=schema,
                output_schema=output,
                annotations=annotations,
            )
        )
    return made
