"""Requests of OpenAI's interfaces, read as a message and options of a run."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field

from agent_core.context.given_messages import GivenHistory, read_history
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.loop.options import RunOptions
from agent_core.serve.bodies import Body
from agent_core.serve.openai.errors import refused
from agent_core.serve.openai.models import MAIN
from agent_core.serve.problems import HttpProblem
from agent_core.text.json_text import JsonObject, JsonValue, table
from agent_core.types import ContentBlock, ReasoningEffort, Role, UserMessage

IMAGES = frozenset({"image_url", "input_image", "file", "input_file"})
"""Types of parts that bring an image or a file."""

_EFFORTS: Mapping[str, ReasoningEffort] = {
    "none": "none",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

_OF_THE_AGENT = (
    "an agent has tools of its own, and those of a client cannot be called; leave it out"
)
_ONLY: Mapping[str, tuple[Sequence[Any], str]] = {
    "tools": ([[]], _OF_THE_AGENT),
    "functions": ([[]], _OF_THE_AGENT),
    "tool_choice": (["none", "auto"], _OF_THE_AGENT),
    "function_call": (["none", "auto"], _OF_THE_AGENT),
    "n": ([1], "a run has one answer"),
    "top_p": ([1], "only temperature can be set"),
    "frequency_penalty": ([0], "it cannot be set here"),
    "presence_penalty": ([0], "it cannot be set here"),
    "logit_bias": ([{}], "it cannot be set here"),
    "logprobs": ([False], "there are none"),
    "top_logprobs": ([0], "there are none"),
    "modalities": ([["text"]], "an agent answers with text"),
    "audio": ([], "an agent answers with text"),
    "image": ([], "an agent answers with text"),
    "web_search_options": ([], _OF_THE_AGENT),
    "max_tool_calls": ([], "the settings limit the calls of a run"),
    "background": ([False], "leaving a request cancels its run; start it with POST /api/runs"),
    "conversation": ([], "previous_response_id continues a session"),
    "prompt": ([], "there are no stored prompts; give instructions"),
    "context_management": ([[]], "the settings say when a history is summarised"),
    "moderation": ([], "there is none"),
    "access_programs": ([], "there are none"),
}
"""Fields that can only have these values, and why: others could not be honoured."""


class StreamOptions(Body):
    """The form of a stream; `include_obfuscation` changes nothing."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class AgentBody(Body):
    """The fields of both interfaces; those of type `Any` are read by `_ONLY`, or ignored."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    store: bool | None = None
    parallel_tool_calls: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    tools: Any = None
    tool_choice: Any = None
    top_p: Any = None
    top_logprobs: Any = None
    moderation: Any = None

    def require_possible(self) -> None:
        """Refuse what no run can honour.

        Raises:
            HttpProblem: 400, which names the field.
        """
        for name, (values, why) in _ONLY.items():
            given = getattr(self, name, None)
            if given is not None and not any(
                given == value and isinstance(given, bool) is isinstance(value, bool)
                for value in values
            ):
                raise refused(name, f"{name} cannot be honoured: {why}", code="unsupported_value")

    def metadata_of(self, **facts: Any) -> JsonObject:
        """Return the metadata of the run."""
        known = {
            "model": self.model,
            "user": self.user or self.safety_identifier,
            "metadata": [*self.metadata] if self.metadata else None,
            **facts,
        }
        own = {name: value for name, value in known.items() if value is not None}
        return {**(self.metadata or {}), "openai": own}


class AskedConversation(Struct, frozen=True):
    """A conversation that a client brings.

    Attributes:
        content: of the user's last messages.
        history: the messages before.
        instructions: of its system messages.
    """

    content: list[ContentBlock]
    history: GivenHistory | None = None
    instructions: str | None = None

    @property
    def message(self) -> UserMessage:
        """The message that is sent."""
        return UserMessage(content=self.content)


def read_conversation(messages: Sequence[Any], param: str, *, continues: bool) -> AskedConversation:
    """Read the messages of a client.

    Args:
        messages: as the client has sent them.
        param: the name of the field that holds them.
        continues: they continue a stored session: all of them are the user's.

    Raises:
        HttpProblem: 400: a message cannot be read, or the last one is not the user's.
    """
    try:
        given = read_history(messages)
    except AgentCoreError as error:
        index = error.details.get("index")
        where = param if index is None else f"{param}[{index}]"
        message = error.message.replace(f"history[{index}]", where).replace("history", param, 1)
        raise refused(where, message, code=ErrorCode.VALIDATION_ERROR) from None
    said = list(given.messages)
    last = [at for at, each in enumerate(messages) if not _is_system(each)]
    if not said or said[-1].role is not Role.USER or said[-1].index != last[-1]:
        raise refused(param, f"the last message of {param} is not the user's, or says nothing")
    instructions = given.system or None
    if not continues:
        history = replace(given, system="", messages=said[:-1]) if said[:-1] else None
        return AskedConversation([*said[-1].content], history, instructions)
    if any(each.role is not Role.USER for each in said):
        message = f"the session has its messages: with previous_response_id, {param} is the user's"
        raise refused(param, message)
    return AskedConversation([part for each in said for part in each.content], None, instructions)


def options_of(
    body: AgentBody,
    said: AskedConversation,
    *,
    effort: Effort | None,
    max_tokens: int | None,
    output: Any = None,
    seed: int | None = None,
    stop: Sequence[str] = (),
    instructions: str | None = None,
    metadata: Mapping[str, JsonValue],
) -> RunOptions[Any]:
    """Return the options of the run that a request asks for."""
    texts = [text for text in (instructions, said.instructions) if text]
    return RunOptions(
        agent=None if body.model == MAIN else body.model,
        instructions="\n\n".join(texts) or None,
        history=cast("Any", said.history or ()),  # it is read already
        output_type=output,
        temperature=body.temperature,
        seed=seed,
        stop=stop,
        reasoning=None if effort is None else _EFFORTS[effort],
        max_output_tokens=max_tokens,
        metadata=metadata,
    )


def renamed(error: AgentCoreError, names: Mapping[str, str]) -> HttpProblem | AgentCoreError:
    """Return the error of a run that cannot start, with the name of the client's field.

    Args:
        error: the error of the runtime.
        names: the client's names of options.
    """
    name = names.get(str(error.details.get("option")))
    if error.code != ErrorCode.VALIDATION_ERROR or name is None:
        return error
    return refused(name, error.message, code=ErrorCode.VALIDATION_ERROR)


def _is_system(message: object) -> bool:
    return table(message).get("role") in {"system", "developer"}


def output_of(
    form: Mapping[str, JsonValue] | None, param: str, *, nested: bool
) -> Mapping[str, JsonValue] | None:
    """Return the JSON Schema of the answer; None for text.

    Args:
        form: the format that the client asks for.
        param: the name of the field that holds it.
        nested: the schema is below `json_schema`, as in Chat Completions.

    Raises:
        HttpProblem: 400: there is no such format, or its schema is missing.
    """
    if form is None:
        return None
    match form.get("type"):
        case "text":
            return None
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            fields = table(form.get("json_schema")) if nested else form
            if schema := table(fields.get("schema")):
                return schema
            raise refused(param, f"{param} has no schema")
        case other:
            raise refused(f"{param}.type", f"there is no format {other!r} of answers")
