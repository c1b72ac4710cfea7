"""Tools as data: offers to a model, its calls and their results, and the effects of a call."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
from pydantic import Field, StringConstraints

from agent_core.errors import ErrorCode
from agent_core.text.json_text import JsonSchema
from agent_core.types.content import (
    ContentBlock,
    ErrorPayload,
    Frozen,
    JsonBlock,
    SafeId,
    TextBlock,
)
from agent_core.types.values import Value

ToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.\-]{1,256}$")]
"""A canonical tool name: dotted, like `code.read_file` or `mcp.<server>.<tool>`."""


CODE_TOOLS: Mapping[str, str] = {
    "code.read_file": "read",
    "code.list_dir": "read",
    "code.search": "search",
    "code.write_file": "write",
    "code.edit_file": "write",
    "code.run_command": "command",
}
"""The built-in tools that work on the project, with the module of each in `tools/code/`."""

CODE_READERS = frozenset({"code.read_file", "code.list_dir", "code.search"})
"""Those of them that only read."""


class ToolPermission(StrEnum):
    """Says whether a tool only reads, or may change something."""

    READONLY = "readonly"
    WRITE = "write"


ToolKind = Literal["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "other"]
"""Kind of a call, in the terms of the Agent Client Protocol."""


class ToolDefinition(Frozen):
    """A tool as the model sees it; `input_schema` is a JSON Schema of an object."""

    name: ToolName
    description: str
    input_schema: JsonSchema = Field(default_factory=lambda: {"type": "object", "properties": {}})
    permission: ToolPermission = ToolPermission.WRITE
    tags: set[str] = set()
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])

    if TYPE_CHECKING:  # string values are accepted, too

        def __init__(
            self,
            *,
            name: str,
            description: str,
            input_schema: JsonSchema = ...,
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
    """The answer to a call. Core sets `tool_call_id` and `tool_name` itself."""

    tool_call_id: str = ""
    tool_name: str = ""
    content: list[ContentBlock] = []
    is_error: bool = False
    error: ErrorPayload | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])

    @property
    def text(self) -> str:
        """The texts of the result, and its values as JSON; of a failed call, the error's text."""
        texts: list[str] = []
        for block in self.content:
            if isinstance(block, TextBlock):
                texts.append(block.text)
            elif isinstance(block, JsonBlock):
                texts.append(orjson.dumps(block.data).decode())
        if not texts and self.error is not None:
            texts.append(self.error.message)
        return "\n".join(texts)


class Decision(StrEnum):
    """A user's decision. A deny applies to this call only.

    `allow_reads` and `allow_edits` allow, until the session ends, every command of the project that
    only reads, or every edit of its ordinary files. Only a question about such a call accepts them.
    """

    ALLOW_ONCE = "allow_once"
    ALLOW_FOR_SESSION = "allow_for_session"
    ALLOW_READS = "allow_reads"
    ALLOW_EDITS = "allow_edits"
    DENY = "deny"


BY_NETWORK = "the network, which always asks"
"""What asks for a confined command that is to have the network: see `Access.asked_by`."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CommandView(Value):
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
        file: where the program is found, links not followed; None as above.
    """

    argv: tuple[str, ...]
    program: str | None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    unknown_from: int | None = None
    only_reads: bool = False
    file: str | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CommandViews(Value):
    """All programs that a command runs, including those inside wrappers and shells.

    Attributes:
        views: what rules are matched with. With a problem they may be too many or too few.
        problem: why no rule may allow the command; None if the views are all there is to it.
        unseen: why it is not known which files it reads; None if that is known, as far as
            programs are in the table of readers. No rule may allow it then, if another one denies
            paths or asks for them.
        asks_anyway: the problem is not one of reading the command: no rule for commands allows it.
    """

    views: tuple[CommandView, ...]
    problem: str | None = None
    unseen: str | None = None
    asks_anyway: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Access(Value):
    """The effects of one call, determined before the question, and not changed after.

    Attributes:
        asks: the user has to agree first.
        scope: description of what an `allow_for_session` would cover; calls with the same tool and
            scope share one answer. If empty: the whole tool if it only reads, else exactly these
            arguments.
        summary: the arguments on one line, for a person.
        target: the thing that is touched: the resolved path, the argument vector.
        cwd: the folder in which a command would run.
        env_names: the environment variables that a command sees in addition to the usual ones.
        dangerous: the call can do anything the user can.
        reason: why this call asks beyond the rule for its tool: `sensitive`, `outside_roots`,
            `program_home`, `outside_sandbox`. Such a call is asked for even if it was allowed
            before.
        places: the resolved paths that are the reason, if `target` does not name them, or that a
            command reads outside the project.
        paths: every resolved path that the call names, for rules about paths.
        met: resolved paths that a command reads below the folders that it names, for rules that
            deny paths or ask for them.
        line: the first line that is read or changed, if there is one file.
        diff: a unified diff of the change, if there is one. Editors show it as one if it consists
            of whole hunks; `/dev/null` stands for a file that did not exist.
        confined: description of the sandbox's effect on this call; None if it is not confined.
        no_network: why a confined command has no network, and what grants it; None if it has.
        asked_by: the setting that makes a command ask, or the reason why an edit does even where
            others do not; None if it asks like any other.
        refusal: error code of the answer if no question can be asked.
        hook_summary: summary of the last hook that let the call pass.
        command: the programs that a command would run; None for other calls.
        runs: the absolute paths of files that a call would run, if `command` does not name them.
        only_reads: a command that certainly changes nothing; determined in plan mode only.
        writes_plan: a plan is written: a file with a plan's name in the plans folder.
        reads: a command that certainly changes nothing, and opens only files that may be read
            without a question.
        edits: an ordinary file of the project is written: nothing that is protected, or that other
            programs execute or obey.
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
    met: tuple[str, ...] = ()
    line: int | None = None
    diff: str | None = None
    confined: str | None = None
    no_network: str | None = None
    asked_by: str | None = None
    refusal: ErrorCode = ErrorCode.PERMISSION_DENIED
    hook_summary: Mapping[str, Any] | None = None
    command: CommandViews | None = None
    runs: tuple[str, ...] = ()
    only_reads: bool = False
    writes_plan: bool = False
    reads: bool = False
    edits: bool = False
