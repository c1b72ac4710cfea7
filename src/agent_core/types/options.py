"""What a caller asks of one run, beside its message."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from typing_extensions import TypeVar

from agent_core.types.content import Frozen, RunMode
from agent_core.types.memory_scopes import checked_scope

Mode = RunMode | Literal["normal", "orchestrator"]
"""What a run is started as: an answer, or the lead over workers."""

OutputT = TypeVar("OutputT", default=str)
"""What a run answers with: text, or what its `output_type` says."""

Amount = Annotated[int, Field(ge=0, le=10**12)]

Dollars = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]

OutputMode = Literal["auto", "native", "tool"]
"""How a typed answer is asked for: by the provider's own schema mode, or by a tool."""

PermissionMode = Literal["plan", "ask", "accept-edits"]
"""How much a run may do unasked: `plan` changes nothing, `ask` follows the settings, and with
`accept-edits` the file tools write inside the project without a question."""

MemoryScope = Annotated[str | None, BeforeValidator(checked_scope)]
"""A scope by its name; what 0.3 has stored, `false`, is read as `off`."""


class Budget(Frozen):
    """The most a run, a session or a child may spend; what is None is not limited.

    Attributes:
        usd: US dollars.
        input_tokens, output_tokens, total_tokens: of all model calls together.
        requests: model calls, those that are tried again included.
        tool_calls: calls of tools.
        wall_s: seconds from the beginning of the run.
    """

    usd: Dollars | None = None
    input_tokens: Amount | None = None
    output_tokens: Amount | None = None
    total_tokens: Amount | None = None
    requests: Amount | None = None
    tool_calls: Amount | None = None
    wall_s: Seconds | None = None


class StoredOptions(Frozen):
    """The options of a run as they are stored with it.

    Attributes:
        instructions: added to the system prompt of the run.
        model: `provider:name`, or the table of a whole model.
        tools: the names of the only tools the run may use; None leaves that to the configuration.
        disabled_tools: names of tools the run does without.
        output_schema: the JSON Schema of a typed answer.
        output_name: what the caller's output type is called.
        output_mode: how a typed answer is asked for.
        output_retries: how often an answer that does not validate goes back to the model.
        budget: the most the run may spend, children included.
        max_turns: the most model turns.
        permission_mode: how much it may do unasked; None is `ask`.
        memory: the scope of its memory: `off`, `shared` or `user:<id>`; None is `shared`, where the
            settings have memory on.
        needs_caller: names of options that cannot be stored (`deps`, `guards`, callables among
            `tools`): a run that has some can be carried out by the process that started it only.
        trace: names the span that the run's spans belong to, where it is traced.
        metadata: the caller's own.
    """

    instructions: str | None = None
    model: str | dict[str, Any] | None = None
    tools: list[str] | None = None
    disabled_tools: list[str] = []
    output_schema: dict[str, Any] | None = None
    output_name: str | None = None
    output_mode: OutputMode = "auto"
    output_retries: Annotated[int, Field(ge=0, le=100)] = 2
    budget: Budget | None = None
    max_turns: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    permission_mode: PermissionMode | None = None
    memory: MemoryScope = None
    needs_caller: list[str] = []
    trace: dict[str, str] = {}
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
