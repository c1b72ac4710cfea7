"""Options of one run, set by its caller."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from typing_extensions import TypeVar

from agent_core.text.json_text import JsonSchema
from agent_core.types.content import Frozen, RunMode
from agent_core.types.memory_scopes import checked_scope

Mode = RunMode | Literal["normal", "orchestrator"]
"""Mode of a run: a normal answer, or an orchestrator with workers."""

OutputT = TypeVar("OutputT", default=str)
"""Type of a run's answer: text, or the type given as `output_type`."""

Amount = Annotated[int, Field(ge=0, le=10**12)]

Dollars = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]

Temperature = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
StopText = Annotated[str, Field(min_length=1, max_length=1000)]
OutputTokens = Annotated[int, Field(gt=0, le=1_000_000_000)]

ReasoningEffort = Literal["none", "low", "medium", "high"]
"""Amount of reasoning, in one spelling for all providers."""

OutputMode = Literal["auto", "native", "tool"]
"""Way of requesting a typed answer: by the provider's own schema mode, or by a tool."""

PermissionMode = Literal["plan", "ask", "accept-edits"]
"""What a run may do without asking: `plan` changes nothing, `ask` follows the settings, and with
`accept-edits` the file tools write inside the project without a question.
"""

MemoryScope = Annotated[str | None, BeforeValidator(checked_scope)]
"""Name of a memory scope; `false`, stored by version 0.3, is read as `off`."""


PROVIDER_TOOLS = ("web_search", "web_fetch", "code_execution")
"""The tools that a service runs itself, under one name for all services."""
_SPELLINGS: Mapping[str, str] = {
    "code_interpreter": "code_execution",
    "google_search": "web_search",
    "google_search_retrieval": "web_search",
    "url_context": "web_fetch",
}
"""Names of these tools in the interfaces of single services."""


def provider_tool_names(given: Sequence[str]) -> list[str]:
    """Return the names that hold for all services, each once.

    Raises:
        ValueError: there is no such tool.
    """
    names: list[str] = []
    for each in given:
        plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", each).lower()  # googleSearch
        plain = re.sub(r"_(20\d{6}|20\d{2}_\d{2}_\d{2})$", "", plain)  # web_search_20250305
        name = _SPELLINGS.get(plain, plain)
        if name not in PROVIDER_TOOLS:
            known = ", ".join(PROVIDER_TOOLS)
            raise ValueError(f"names {each!r}, and there is no such tool of a service: {known}")
        if name not in names:
            names.append(name)
    return names


ProviderTools = Annotated[list[str], AfterValidator(provider_tool_names)]


class Budget(Frozen):
    """Spending limits of a run, a session or a child; None means no limit.

    Attributes:
        usd: US dollars.
        input_tokens, output_tokens, total_tokens: tokens of all model calls together.
        requests: number of model calls, including retries.
        tool_calls: number of tool calls.
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
        disabled_tools: names of tools that the run must not have.
        output_schema: the JSON Schema of a typed answer.
        output_name: name of the caller's output type.
        output_mode: way of requesting a typed answer.
        output_retries: number of times an answer that does not validate is sent back to the model.
        budget: spending limit of the run, including its children.
        max_turns: largest number of model turns.
        provider_tools: the tools of the service; None leaves that to the configuration.
        permission_mode: freedom to act unasked; None is `ask`.
        temperature: temperature of its model calls.
        seed: seed of its model calls.
        stop: texts at which a reply ends.
        reasoning: amount of reasoning.
        max_output_tokens: largest number of tokens of a reply.
        agent: the definition id of its agent, if it has one.
        memory: scope of its memory: `off`, `shared` or `user:<id>`; None is `shared` if memory is
            on in the settings.
        needs_caller: names of options that cannot be stored (`deps`, `guards`, callables among
            `tools`): a run with such options can be executed only by the process that started it.
        of_agent: the part of `needs_caller` that only its agent has: a process that has the agent
            has them, too.
        trace: identifies the span that the run's spans belong to, if it is traced.
        metadata: the caller's own metadata.
    """

    instructions: str | None = None
    model: str | dict[str, Any] | None = None
    tools: list[str] | None = None
    disabled_tools: list[str] = []
    output_schema: JsonSchema | None = None
    output_name: str | None = None
    output_mode: OutputMode = "auto"
    output_retries: Annotated[int, Field(ge=0, le=100)] = 2
    budget: Budget | None = None
    max_turns: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    provider_tools: ProviderTools | None = None
    permission_mode: PermissionMode | None = None
    temperature: Temperature | None = None
    seed: Seed | None = None
    stop: Annotated[list[StopText], Field(max_length=16)] = []
    reasoning: ReasoningEffort | None = None
    max_output_tokens: OutputTokens | None = None
    agent: str | None = None
    memory: MemoryScope = None
    needs_caller: list[str] = []
    of_agent: list[str] = []
    trace: dict[str, str] = {}
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
