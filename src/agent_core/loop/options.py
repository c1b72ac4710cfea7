"""What one run does differently from what the configuration says."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Generic, TypedDict, Unpack, cast, overload

from pydantic import ValidationError

from agent_core.config.models import ModelConfig, as_model
from agent_core.config.problems import nearest
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode
from agent_core.providers.base import ProviderAdapter
from agent_core.tools.base import Tool
from agent_core.tools.registry import Handler, tool_from
from agent_core.tools.toolsets import Toolset
from agent_core.types import (
    Budget,
    OutputMode,
    OutputT,
    PermissionMode,
    StoredOptions,
    ToolDefinition,
)
from agent_core.types.lanes import Placement

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from agent_core.loop.guards import RunGuard
    from agent_core.tools.output import ExpectedOutput

AnyTool = (
    str | Tool | ToolDefinition | tuple[ToolDefinition, Handler] | Toolset | Callable[..., Any]
)
"""The name or definition of a known tool, a tool made with `@tool`, a definition with its handler,
a function to make one of, or a group of tools."""

AnyModel = str | ModelConfig | ProviderAdapter
"""`provider:name`, a whole model, or an adapter that the program makes and closes."""

JsonSchema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(Generic[OutputT]):
    """What one run does differently. It never widens what the configuration forbids.

    Attributes:
        instructions: added to the system prompt of this run.
        model: `provider:name`, the name of a `[model_overrides]` table, a whole model, or an
            adapter; the configured one by default.
        tools: the only tools of the run: names of known ones, functions, and tools made with
            `@tool`. None leaves the choice to the configuration; `()` is no tool at all.
            Children, and the workers of an orchestrator, have no other working tools either.
        disabled_tools: names of tools the run and its children do without.
        output_type: the type of the answer, or its JSON Schema.
        output_mode: how a typed answer is asked for.
        output_retries: how often an answer that does not validate goes back to the model.
        deps: any object; tools find it at `ToolContext.deps`. It is not stored.
        budget: the most the run may spend, its children included.
        max_turns: the most model turns; not more than the configuration allows.
        permission_mode: `plan` refuses what would change something, `accept-edits` writes files of
            the project unasked; None is `ask`, which follows the settings. It holds for children.
        memory: False keeps the run out of long-term memory: nothing is recalled in it, and nothing
            of it is ever remembered.
        guards: look at the message, at tool calls and at the answer; they are not stored.
        metadata: the caller's own, stored with the run.
    """

    instructions: str | None = None
    model: AnyModel | None = None
    tools: Sequence[AnyTool] | None = None
    disabled_tools: Sequence[str] = ()
    output_type: "TypeForm[OutputT] | JsonSchema | None" = None
    output_mode: OutputMode = "auto"
    output_retries: int = 2
    deps: Any = None
    budget: Budget | None = None
    max_turns: int | None = None
    permission_mode: PermissionMode | None = None
    memory: bool = True
    guards: "Sequence[RunGuard]" = ()
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])

    if TYPE_CHECKING:  # the answer to a JSON Schema is of any type

        @overload
        def __init__(
            self: "RunOptions[Any]", *, output_type: JsonSchema, **fields: "Unpack[RunFields]"
        ) -> None: ...

        @overload
        def __init__(self, **fields: "Unpack[TypedRunFields[OutputT]]") -> None: ...

        def __init__(self, **fields: Any) -> None: ...

    def expected(self) -> "ExpectedOutput | None":
        """What the answer of the run has to be; None for plain text.

        Raises:
            AgentCoreError: `validation_error`; `output_type` has no form in JSON Schema.
        """
        if self.output_type is None or self.output_type is str:
            return None
        # What reads types is loaded for those who name one.
        from agent_core.tools.output import expected_output  # noqa: PLC0415

        return expected_output(self.output_type, mode=self.output_mode, retries=self.output_retries)

    def for_child(self) -> "RunOptions":
        """What holds for the children of a run, too."""
        return RunOptions(
            model=self.model,
            tools=self.tools,
            disabled_tools=self.disabled_tools,
            deps=self.deps,
            guards=[guard for guard in self.guards if guard.point == "tool_call"],
        )

    def offers(self, name: str, *, is_free: bool = False) -> bool:
        """Whether the run may have the tool of this name; `is_free`: `tools` does not bound it."""
        if name in self.disabled_tools:
            return False
        return is_free or self.tools is None or name in map(tool_name, self.tools)


class RunFields(TypedDict, total=False):
    """The fields of `RunOptions` as keywords of `start` and `run`, but `output_type`."""

    instructions: str | None
    model: AnyModel | None
    tools: Sequence[AnyTool] | None
    disabled_tools: Sequence[str]
    output_mode: OutputMode
    output_retries: int
    deps: Any
    budget: Budget | None
    max_turns: int | None
    permission_mode: PermissionMode | None
    memory: bool
    guards: "Sequence[RunGuard]"
    metadata: Mapping[str, Any]


class TypedRunFields(RunFields, Generic[OutputT], total=False):
    """All of them."""

    output_type: "TypeForm[OutputT]"


class PlacementFields(TypedDict, total=False):
    """Who carries a run out, as keywords of `start` and `run`: where workers may.

    `here`: this process does, after what is queued before it in the session; that is so anyway
    where sessions are in a file. `place` is where the session's files are, `host:<id>` or
    `snapshot`; `tenant` whose session it is; `queue` names the workers; `queue_timeout_s` is how
    long a run of this process waits for its turn.
    """

    here: bool | None
    place: str | None
    tenant: str | None
    queue: str | None
    queue_timeout_s: float | None


class StartFields(RunFields, PlacementFields, total=False):
    """The keywords of `start` and `run`, but `output_type`."""


class TypedStartFields(TypedRunFields[OutputT], PlacementFields, Generic[OutputT], total=False):
    """All of them."""


NO_OPTIONS = RunOptions()
"""A run as the configuration has it."""

_NAMES = tuple(each.name for each in fields(RunOptions))


def asked_placement(given: Mapping[str, Any]) -> Placement:
    """Who is to carry a run out.

    Raises:
        AgentCoreError: `validation_error`, which names the argument.
    """
    here, timeout = given.get("here"), given.get("queue_timeout_s")
    if not isinstance(here, bool | None):
        raise malformed_option("here", f"is True or False, not {here!r}")
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and 0 <= timeout < math.inf):
        raise malformed_option("queue_timeout_s", f"is a number of seconds, not {timeout!r}")
    return Placement(**given)


def asked_options(options: object, given: Mapping[str, Any]) -> RunOptions[Any]:
    """The options with the fields that were given one by one; all of them are looked at.

    Functions among `tools` are tools then.

    Raises:
        AgentCoreError: `validation_error`, which names the field: it is unknown, given twice, or
            not what it should be.
        ConfigError: `validation_error`: a function cannot be a tool.
    """
    if options is None:
        options = NO_OPTIONS
    elif not isinstance(options, RunOptions):
        raise malformed_option("options", f"is a RunOptions, not a {type(options).__name__}")
    asked = cast("RunOptions[Any]", options)
    for name in given:
        if name not in _NAMES:
            raise malformed_option(name, f"is not an option of a run{nearest(name, _NAMES)}")
        before = getattr(asked, name)
        if before is not getattr(NO_OPTIONS, name) and not (name == "metadata" and not before):
            raise malformed_option(
                name, "is given twice, in the options and as a keyword; keep one"
            )
    asked = replace(asked, **given)
    if asked.tools:
        asked = replace(asked, tools=[_made_tool(each) for each in _items("tools", asked.tools)])
    stored = stored_options(asked)
    return asked if asked.budget is None else replace(asked, budget=stored.budget)


def stored_options(options: RunOptions[Any]) -> StoredOptions:
    """What of the options is stored with the run.

    Raises:
        AgentCoreError: `validation_error`: a field, which is named, is not what it should be.
    """
    tools = None if options.tools is None else _items("tools", options.tools)
    model: object = as_model(options.model)
    if not (model is None or isinstance(model, str | ModelConfig)):
        reason = f"is 'provider:name', a ModelConfig or an adapter, not a {_kind(model)}"
        raise malformed_option("model", reason)
    guards = _guards(options.guards)
    live = {
        "deps": options.deps is not None,
        "guards": bool(guards),
        "model": isinstance(model, ModelConfig) and model.adapter is not None,
        "tools": any(not isinstance(tool, str) for tool in tools or ()),
    }
    values = {
        "instructions": options.instructions,
        "model": model.model_dump(exclude_unset=True) if isinstance(model, ModelConfig) else model,
        "tools": None if tools is None else [tool_name(tool) for tool in tools],
        "disabled_tools": _items("disabled_tools", options.disabled_tools),
        "output_mode": options.output_mode,
        "output_retries": options.output_retries,
        "budget": options.budget,
        "max_turns": options.max_turns,
        "permission_mode": options.permission_mode,
        "memory": options.memory,
        "needs_caller": [name for name, is_needed in live.items() if is_needed],
        "metadata": _metadata(options.metadata),
    }
    try:
        stored = StoredOptions.model_validate(values, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name, *place = map(str, first["loc"])
        where = f" (at {'.'.join(place)})" if place else ""
        reason = first["msg"].replace("Input should be", "must be")
        raise malformed_option(name, f"{reason}{where}") from None
    if (expected := options.expected()) is None:
        return stored
    return stored.model_copy(
        update={"output_schema": expected.schema, "output_name": expected.name}
    )


def restored_options(stored: StoredOptions) -> RunOptions[Any]:
    """The options of a run that another process has started.

    Raises:
        ConfigError: they hold what only that process had.
    """
    if stored.needs_caller:
        message = (
            f"this run was started with {', '.join(stored.needs_caller)}, which only the program"
            " that started it has, and that program has ended; start the run again"
        )
        details = {"options": stored.needs_caller}
        raise ConfigError(ErrorCode.CONFIG_ERROR, message, details=details)
    model, expected = stored.model, None
    if stored.output_schema is not None:
        from agent_core.tools.output import ExpectedOutput  # noqa: PLC0415 - see `expected`

        expected = ExpectedOutput.stored(stored)
    return RunOptions(
        instructions=stored.instructions,
        model=ModelConfig.model_validate(model) if isinstance(model, dict) else model,
        tools=stored.tools,
        disabled_tools=stored.disabled_tools,
        output_type=cast("Any", expected),
        output_mode=stored.output_mode,
        output_retries=stored.output_retries,
        budget=stored.budget,
        max_turns=stored.max_turns,
        permission_mode=stored.permission_mode,
        memory=stored.memory,
        metadata=stored.metadata,
    )


def tool_name(tool: AnyTool) -> str:
    """The name by which a model would call it."""
    return tool.name if isinstance(tool, Tool | Toolset) else str(tool)


def _made_tool(given: object) -> str | Tool | Toolset:
    match given:
        case str() | Tool() | Toolset():
            return given
        case ToolDefinition():
            return given.name
        case (ToolDefinition() as definition, _):  # pyright: ignore[reportUnknownVariableType]
            return tool_from(definition, cast("tuple[ToolDefinition, Handler]", given)[1])
        case _ if callable(given):
            from agent_core.tools.decorator import tool  # noqa: PLC0415 - for those that give one

            return tool(given)
        case _:
            reason = f"holds a {_kind(given)}, which is neither a name, a function nor a tool"
            raise malformed_option("tools", reason)


def _items(name: str, given: object) -> list[Any]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise malformed_option(name, f"is a list, not a {_kind(given)}")
    return list(cast("Sequence[Any]", given))


def _metadata(given: object) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise malformed_option("metadata", f"is a dict, not a {_kind(given)}")
    metadata = dict(cast("Mapping[str, Any]", given))
    try:
        json.dumps(metadata, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise malformed_option(
            "metadata", f"is stored as JSON, which cannot hold it: {error}"
        ) from None
    return metadata


def _guards(given: object) -> list[Any]:
    guards = _items("guards", given)
    if guards:
        from agent_core.loop.guards import RunGuard  # noqa: PLC0415 - most runs have none

        for guard in guards:
            if not isinstance(guard, RunGuard):
                made = "an async function under @on_message, @on_tool_call or @on_answer"
                raise malformed_option("guards", f"holds a {_kind(guard)}; a guard is {made}")
    return guards


def _kind(value: object) -> str:
    return type(value).__name__


def malformed_option(name: str, reason: str) -> AgentCoreError:
    """The error for an option that is not what it should be."""
    details = {"option": name}
    return AgentCoreError(ErrorCode.VALIDATION_ERROR, f"{name} {reason}", details=details)
