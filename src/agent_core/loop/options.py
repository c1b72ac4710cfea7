"""What one run does differently from what the configuration says."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Generic, TypedDict, cast

from pydantic import ValidationError

from agent_core.config.models import ModelConfig
from agent_core.config.problems import nearest
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.tools.base import Tool
from agent_core.types import Budget, OutputMode, OutputT, StoredOptions

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from agent_core.tools.output import ExpectedOutput

AnyTool = str | Tool | Callable[..., Any]
"""The name of a known tool, a tool made with `@tool`, or a function to make one of."""

JsonSchema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(Generic[OutputT]):
    """What one run does differently. It never widens what the configuration forbids.

    Attributes:
        instructions: added to the system prompt of this run.
        model: `provider:name`, or a whole model; the configured one by default.
        tools: the only tools of the run: names of known ones, functions, and tools made with
            `@tool`. None leaves the choice to the configuration; `()` is no tool at all.
        disabled_tools: names of tools the run does without.
        output_type: the type of the answer, or its JSON Schema.
        output_mode: how a typed answer is asked for.
        output_retries: how often an answer that does not validate goes back to the model.
        deps: any object; tools find it at `ToolContext.deps`. It is not stored.
        budget: the most the run may spend, its children included.
        max_turns: the most model turns.
        guards: look at the message, at tool calls and at the answer; they are not stored.
        metadata: the caller's own, stored with the run.
    """

    instructions: str | None = None
    model: str | ModelConfig | None = None
    tools: Sequence[AnyTool] | None = None
    disabled_tools: Sequence[str] = ()
    output_type: "TypeForm[OutputT] | JsonSchema | None" = None
    output_mode: OutputMode = "auto"
    output_retries: int = 2
    deps: Any = None
    budget: Budget | None = None
    max_turns: int | None = None
    guards: Sequence[Any] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])

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
        return RunOptions(deps=self.deps, disabled_tools=self.disabled_tools)


class RunFields(TypedDict, total=False):
    """The fields of `RunOptions` as keywords of `start` and `run`, but `output_type`."""

    instructions: str | None
    model: str | ModelConfig | None
    tools: Sequence[AnyTool] | None
    disabled_tools: Sequence[str]
    output_mode: OutputMode
    output_retries: int
    deps: Any
    budget: Budget | None
    max_turns: int | None
    guards: Sequence[Any]
    metadata: Mapping[str, Any]


class TypedRunFields(RunFields, Generic[OutputT], total=False):
    """All of them."""

    output_type: "TypeForm[OutputT]"


NO_OPTIONS = RunOptions()
"""A run as the configuration has it."""

_NAMES = tuple(each.name for each in fields(RunOptions))


def asked_options(options: object, given: Mapping[str, Any]) -> RunOptions[Any]:
    """The options with the fields that were given one by one; all of them are looked at.

    Raises:
        AgentCoreError: `validation_error`, which names the field: it is unknown, given twice, or
            not what it should be.
    """
    if options is None:
        options = NO_OPTIONS
    elif not isinstance(options, RunOptions):
        raise _malformed("options", f"is a RunOptions, not a {type(options).__name__}")
    asked = cast("RunOptions[Any]", options)
    for name in given:
        if name not in _NAMES:
            raise _malformed(name, f"is not an option of a run{nearest(name, _NAMES)}")
        before = getattr(asked, name)
        if before is not getattr(NO_OPTIONS, name) and not (name == "metadata" and not before):
            raise _malformed(name, "is given twice, in the options and as a keyword; keep one")
    asked = replace(asked, **given)
    stored_options(asked)
    return asked


def stored_options(options: RunOptions[Any]) -> StoredOptions:
    """What of the options is stored with the run.

    Raises:
        AgentCoreError: `validation_error`: a field, which is named, is not what it should be.
    """
    tools, model = _tools(options.tools), cast("object", options.model)
    expected = options.expected()
    if not (model is None or isinstance(model, str | ModelConfig)):
        raise _malformed("model", f"is 'provider:name' or a ModelConfig, not a {_kind(model)}")
    guards = _items("guards", options.guards)
    live = {
        "deps": options.deps is not None,
        "guards": bool(guards),
        "tools": any(not isinstance(tool, str) for tool in tools or ()),
    }
    values = {
        "instructions": options.instructions,
        "model": model.model_dump(exclude_unset=True) if isinstance(model, ModelConfig) else model,
        "tools": None if tools is None else [tool_name(tool) for tool in tools],
        "disabled_tools": _items("disabled_tools", options.disabled_tools),
        "output_schema": expected.schema if expected else None,
        "output_name": expected.name if expected else None,
        "output_mode": options.output_mode,
        "output_retries": options.output_retries,
        "budget": options.budget,
        "max_turns": options.max_turns,
        "needs_caller": [name for name, is_needed in live.items() if is_needed],
        "metadata": _metadata(options.metadata),
    }
    try:
        return StoredOptions.model_validate(values, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name, *place = map(str, first["loc"])
        where = f" (at {'.'.join(place)})" if place else ""
        reason = first["msg"].replace("Input should be", "must be")
        raise _malformed(name, f"{reason}{where}") from None


def tool_name(tool: AnyTool) -> str:
    """The name by which a model would call it."""
    if isinstance(tool, str):
        return tool
    return tool.name if isinstance(tool, Tool) else str(getattr(tool, "__name__", _kind(tool)))


def _tools(given: object) -> list[AnyTool] | None:
    if given is None:
        return None
    tools = _items("tools", given)
    for tool in tools:
        if not isinstance(tool, str | Tool) and not callable(tool):
            reason = f"holds a {_kind(tool)}, which is neither a name, a function nor a tool"
            raise _malformed("tools", reason)
    return tools


def _items(name: str, given: object) -> list[Any]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise _malformed(name, f"is a list, not a {_kind(given)}")
    return list(cast("Sequence[Any]", given))


def _metadata(given: object) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise _malformed("metadata", f"is a dict, not a {_kind(given)}")
    metadata = dict(cast("Mapping[str, Any]", given))
    try:
        json.dumps(metadata, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _malformed("metadata", f"is stored as JSON, which cannot hold it: {error}") from None
    return metadata


def _kind(value: object) -> str:
    return type(value).__name__


def _malformed(name: str, reason: str) -> AgentCoreError:
    details = {"option": name}
    return AgentCoreError(ErrorCode.VALIDATION_ERROR, f"{name} {reason}", details=details)
