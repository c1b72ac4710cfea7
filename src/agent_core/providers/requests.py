"""Parts of requests that several formats share."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from functools import lru_cache
from itertools import groupby
from operator import is_
from typing import Any, Generic, NamedTuple, TypeVar, cast
from weakref import KeyedRef

from agent_core.config.models import ModelConfig
from agent_core.errors import ErrorCode, ProviderError
from agent_core.providers import jsontext
from agent_core.providers.failures import Called
from agent_core.text.json_text import JsonObject, JsonSchema, JsonValue, table
from agent_core.types import (
    OPAQUE,
    ArtifactRefBlock,
    ContentBlock,
    ImageBlock,
    JsonBlock,
    ModelMessage,
    ModelRequest,
    ProviderToolBlock,
    ReasoningBlock,
    SystemBlock,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResult,
    ToolResultBlock,
)
from agent_core.types.options import ReasoningEffort
from agent_core.types.tools import CODE_TOOLS


def system_message(blocks: Sequence[SystemBlock]) -> bytes:
    """Return one message: many chat templates accept only one, and only at the beginning."""
    content = "\n\n".join(filter(None, [block.content for block in blocks]))
    return jsontext.dump({"role": "system", "content": content}) if content else b""


def function_tool(tool: ToolDefinition) -> bytes:
    """Write a tool in the form that OpenAI made common."""
    return jsontext.dump({"type": "function", "function": function_of(tool)})


def strict_function_tool(tool: ToolDefinition) -> bytes:
    """Write a tool as `function_tool` does, enforcing its arguments if the schema is strict.

    In a strict schema every property is required, and no others allowed, at every depth.
    """
    strict = {"strict": True} if is_strict(tool.input_schema) else {}
    return jsontext.dump({"type": "function", "function": function_of(tool) | strict})


def function_of(tool: ToolDefinition) -> JsonObject:
    """Return the description of a tool for a request."""
    return {
        "name": wire_name(tool.name),
        "description": tool.description,
        "parameters": tool.input_schema,
    }


def is_strict(schema: Any) -> bool:
    """Return whether every property is required, and no others allowed, at every depth."""
    if isinstance(schema, list):
        return all(map(is_strict, cast("list[Any]", schema)))
    if not isinstance(schema, dict):
        return True
    fields = cast("JsonSchema", schema)
    properties = fields.get("properties")
    if fields.get("type") == "object" or isinstance(properties, dict):
        names = set(table(fields.get("properties")))
        if fields.get("additionalProperties") is not False or names != set(
            fields.get("required", ())
        ):
            return False
    return all(map(is_strict, fields.values()))


def chosen_tool(request: ModelRequest, called: Called) -> str:
    """Return the wire name of the tool that `tool_choice` names.

    Raises:
        ProviderError: it is not among the tools of the request.
    """
    choice = request.tool_choice or ""
    if all(tool.name != choice for tool in request.tools):
        raise called.unsupported(
            "tool_choice", f"tool_choice {choice!r} is not a tool of the request"
        )
    return wire_name(choice)


MAX_WIRE_NAME = 64
MAX_CANONICAL_NAME = 256
_HASH_DIGITS = 10
_SAFE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_FOREIGN = r"[^A-Za-z0-9_-]"


@lru_cache(maxsize=4096)
def wire_name(canonical: str) -> str:
    """Return the provider-safe form of a canonical name: always the same, at most 64 characters."""
    name = canonical.replace(".", "__")
    if len(name) <= MAX_WIRE_NAME and _SAFE.fullmatch(name) and plain(name) == canonical:
        return name
    digest = hashlib.sha256(canonical.encode("utf-8", "replace")).hexdigest()[:_HASH_DIGITS]
    name = name if _SAFE.match(name) else f"_{name}"  # some services want a letter first
    return f"{re.sub(_FOREIGN, '_', name)[: MAX_WIRE_NAME - _HASH_DIGITS - 1]}_{digest}"


@lru_cache(maxsize=4096)
def safe_id(tool_call_id: str) -> str:
    """Return the id for services that refuse dots and colons, which other ids may have."""
    safe = re.sub(_FOREIGN, "_", tool_call_id)
    if safe == tool_call_id and len(safe) <= MAX_WIRE_NAME:
        return safe
    return f"{safe[:50]}_{hashlib.sha256(tool_call_id.encode()).hexdigest()[:_HASH_DIGITS]}"


_OWN_NAMES = (
    r"(?<![\w./-])(?:"
    r"agent\.(?:create_sub_agent|dispatch_worker|fork_agent|list_\w+|plan_template|task_\w+"
    r"|wait_workers)"
    rf"|{'|'.join(map(re.escape, CODE_TOOLS))}"
    r"|internal\.(?:call_tool|find_tools|load_skill|read_resource|recall_memory)"
    r"|mcp(?:\.[\w-]+){2,}"
    r")(?![\w-]|\.\w)"
)


def with_wire_names(text: str) -> str:
    """Return a text of the program with the names that the model knows its tools by."""
    return re.sub(_OWN_NAMES, lambda found: wire_name(found[0]), text)


def plain(wire: str) -> str:
    """Return the canonical name of a wire name without a hash suffix."""
    return wire.replace("__", ".")


class ToolNames:
    """The tools of one request by their wire names.

    Raises:
        ProviderError: two tools would have the same wire name.
    """

    def __init__(self, canonical: Iterable[str]) -> None:
        self._canonical: dict[str, str] = {}
        for name in canonical:
            other = self._canonical.setdefault(wire_name(name), name)
            if other != name:
                raise ProviderError(
                    ErrorCode.VALIDATION_ERROR,
                    f"the tools {other!r} and {name!r} have the same name for a provider, "
                    f"{wire_name(name)!r}; rename one of them",
                )

    def canonical(self, wire: str) -> str:
        """Return the canonical name that the model meant; an unknown name stays readable."""
        known = self._canonical.get(wire)
        return known if known is not None else plain(wire)[:MAX_CANONICAL_NAME]

    def named_in(self, text: str) -> str:
        """Return the wire name of the tool that a text names; of several the longest."""
        words = set(re.findall(r"[A-Za-z0-9_-]+", text))
        named = [name for name in self._canonical if name in words]
        only = list(self._canonical) if len(self._canonical) == 1 else []
        return max(named or only, key=len, default="unreadable")


def block_text(block: ContentBlock) -> str:
    """Return the block as text; blocks that are not part of a message's text give nothing."""
    match block:
        case TextBlock():
            return block.text
        case JsonBlock():
            text = jsontext.dump_text(block.data)
            return (
                f"{text}\n[complete in artifact {block.artifact_id}]" if block.artifact_id else text
            )
        case ArtifactRefBlock():
            about = f": {block.summary}" if block.summary else ""
            return f"[kept as artifact {block.artifact_id}{about}]"
        case ImageBlock():
            where = f", artifact {block.artifact_id}" if block.artifact_id else ""
            kind = "an image" if block.mime_type.startswith("image/") else "a document"
            return f"[{kind}, {block.mime_type}{where}]"
        case _:
            return ""


def images_of(result: ToolResultBlock) -> list[ImageBlock]:
    """Return the pictures of a result that a model can be shown."""
    return [block for block in result.content if isinstance(block, ImageBlock) and block.data]


def images_label(result: ToolResultBlock) -> str:
    """Return the words before a result's pictures that are placed outside of it."""
    name = result.metadata.get("tool_name")
    tool = f" of {wire_name(name)}" if isinstance(name, str) and name else ""
    return f"[images in the result of call {result.tool_call_id}{tool}]"


def called_names(answer: ModelMessage | None) -> dict[str, str]:
    """Return the wire names of the tools that an answer calls, by the id of the call."""
    blocks = answer.content if answer else ()
    return {
        block.tool_call_id: wire_name(block.name)
        for block in blocks
        if isinstance(block, ToolCallBlock)
    }


class Turn(NamedTuple):
    """A message for a service whose roles alternate: its role, and its serialised parts."""

    role: str
    parts: bytes


def alternating(turns: Iterable[Turn], field: str) -> list[bytes]:
    """Return messages with their parts in `field`; neighbours of one role become one message."""

    def role_of(turn: Turn) -> str:
        return turn.role

    spoken = (turn for turn in turns if turn.parts)
    return [
        b'{"role":"%b","%b":[%b]}'
        % (role.encode(), field.encode(), b",".join([turn.parts for turn in same]))
        for role, same in groupby(spoken, role_of)
    ]


def joined_text(blocks: Iterable[ContentBlock], between: str) -> str:
    """Return the texts of some blocks in order; empty ones are left out."""
    return between.join(filter(None, map(block_text, blocks)))


def result_text(result: ToolResultBlock | ToolResult) -> str:
    """Return the text of a tool's result. A failed call begins with `error <code>: <message>`."""
    return with_error(result, joined_text(result.content, "\n"))


def text_beside_images(result: ToolResultBlock) -> str:
    """Return the text of a result without the pictures that a model is shown."""
    shown = {id(image) for image in images_of(result)}
    words = (block for block in result.content if id(block) not in shown)
    return with_error(result, joined_text(words, "\n"))


def with_error(result: ToolResultBlock | ToolResult, text: str) -> str:
    """Return `text`, after a line that says how the call failed, if it did."""
    if result.error is None:
        return f"error: {text}" if result.is_error else text
    line = f"error {result.error.code.value}: {with_wire_names(result.error.message)}"
    return line if text in {"", result.error.message, line} else f"{line}\n{text}"


OriginBlock = ReasoningBlock | ToolCallBlock | ProviderToolBlock
"""The blocks that say which provider and model have written them."""


def is_own(block: OriginBlock, provider: str, model: str) -> bool:
    """Return whether this provider and model wrote the block and its opaque fields."""
    origin = block.metadata
    return origin.get("provider") == provider and origin.get("model", model) == model


def opaque_of(block: OriginBlock, provider: str, model: str) -> JsonObject:
    """Return the fields of the block sent back unchanged to the same provider and model."""
    opaque = block.metadata.get(OPAQUE) if is_own(block, provider, model) else None
    return table(opaque)


TAGGED = "think"
"""Field of reasoning that came as text between tags, between which it is sent back."""


def tagged_text(block: ReasoningBlock) -> str:
    """Return reasoning as the text that it came in; empty if it came in another way."""
    name = block.metadata.get("tag")
    is_tagged = block.metadata.get("field") == TAGGED and name in {"think", "thinking"}
    return f"<{name}>{block.text}</{name}>\n\n" if is_tagged else ""


EXTRA_BODY = "extra_body"
"""A table that goes into the request unchanged, for anything a compatible server adds."""
HEADERS = "headers"
"""A table of further HTTP headers; never headers with a key."""

_RESERVED_BODY = frozenset(
    {
        "contents",
        "input",
        "instructions",
        "messages",
        "model",
        "stream",
        "system",
        "systemInstruction",
        "toolConfig",
        "tools",
    }
)
_RESERVED_HEADERS = frozenset(
    {
        "authorization",
        "content-length",
        "cookie",
        "host",
        "x-amz-date",
        "x-amz-security-token",
        "x-api-key",
        "x-goog-api-key",
    }
)


def own_options(
    config: ModelConfig, request: ModelRequest | None, called: Called, *, known: AbstractSet[str]
) -> JsonObject:
    """Return the options of one provider; the request's override the configuration's.

    Options of other providers are skipped; without a request only the configuration is read.

    Raises:
        ProviderError: `unsupported_capability`, naming a key that this provider does not know.
    """
    merged: JsonObject = {}
    asked = request.provider_options if request is not None else {}
    for source in (config.provider_options, asked):
        for provider, options in source.items():
            if not isinstance(options, dict):
                raise called.unsupported(
                    f"provider_options.{provider}",
                    f"provider_options is keyed by provider; write "
                    f"provider_options.{called.provider}.{provider} instead",
                )
            if provider == called.provider:
                merged.update(cast("JsonObject", options))
    if not merged:
        return merged
    unknown = sorted(merged.keys() - known)
    if unknown:
        raise called.unsupported(
            f"provider_options.{called.provider}.{unknown[0]}",
            f"unknown provider_options: {', '.join(unknown)}; known: {', '.join(sorted(known))}",
        )
    for name, reserved in ((EXTRA_BODY, _RESERVED_BODY), (HEADERS, _RESERVED_HEADERS)):
        table = merged.get(name, {})
        where = f"provider_options.{called.provider}.{name}"
        if not isinstance(table, dict):
            raise called.unsupported(where, f"{where} must be a table")
        taken = sorted(key for key in table if key.lower() in reserved)
        if taken:
            raise called.unsupported(where, f"{where} must not set {', '.join(taken)}")
    return merged


def sampling_fields(
    config: ModelConfig, request: ModelRequest, limit: str, *, seed: str | None = None
) -> JsonObject:
    """Return the token limit of the reply, in the field `limit`, and any temperature and seed set.

    `seed` is the service's field for a seed, if it has one.
    """
    fields: JsonObject = {limit: request.max_output_tokens or config.max_output_tokens}
    temperature = config.temperature if request.temperature is None else request.temperature
    if temperature is not None:
        fields["temperature"] = temperature
    if seed is not None and request.seed is not None:
        fields[seed] = request.seed
    return fields


def effort_of(config: ModelConfig, request: ModelRequest) -> ReasoningEffort | None:
    """Return the amount of reasoning: of the request, or else of the configuration."""
    return request.reasoning or config.reasoning


def accepted_fields(fields: Mapping[str, JsonValue], refused: AbstractSet[str]) -> JsonObject:
    """Return the fields without the refused ones, which `top_p` and `topP` both name."""
    return {
        name: value
        for name, value in fields.items()
        if re.sub(r"([A-Z])", r"_\1", name).lower() not in refused
    }


K = TypeVar("K")
V = TypeVar("V")


def extends(objs: list[K], before: list[K]) -> bool:
    """Return whether a list begins with the very objects of an earlier one.

    Equal ones do not count: `1` and `True` are equal, and are written differently.
    """
    return len(before) <= len(objs) and all(map(is_, objs, before))


class IdentityCache(Generic[K, V]):
    """A cache by object identity. It keeps only the objects of the last `get_all` alive."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[KeyedRef[int, K], V]] = {}
        self._last: tuple[list[K], list[V]] = [], []

    def get(self, obj: K, make: Callable[[K], V]) -> V:
        """Return the value of `make(obj)`, made only once."""
        found = self._made.get(id(obj))
        if found is None or found[0]() is not obj:
            found = self._keep(obj, make(obj))
        return found[1]

    def get_all(self, objs: Iterable[K], make: Callable[[K], V]) -> list[V]:
        """Call `get` for each; a list that extends the last one costs only its new part."""
        before, values = self._last
        objs, known = list(objs), len(before)
        if not extends(objs, before):
            known, values = 0, []
        if known < len(objs):
            values = values.copy()
            for obj in objs[known:]:
                found = self._made.get(id(obj))
                if found is None or found[0]() is not obj:
                    found = self._keep(obj, make(obj))
                values.append(found[1])
            self._last = objs, values
        return values.copy()

    def __len__(self) -> int:
        return len(self._made)

    def _keep(self, obj: K, value: V) -> tuple[KeyedRef[int, K], V]:
        key = id(obj)
        made = self._made[key] = KeyedRef(obj, self._forget, key), value
        return made

    def _forget(self, dead: KeyedRef[int, K]) -> None:
        found = self._made.get(dead.key)
        if found is not None and found[0] is dead:
            del self._made[dead.key]


class MessageCache(Generic[V]):
    """Serialised messages by model: a model's own fields are sent back only to it."""

    def __init__(self) -> None:
        self._by_model: dict[str, IdentityCache[ModelMessage, V]] = {}

    def of(self, model: str) -> IdentityCache[ModelMessage, V]:
        """Return the cache for requests to this model."""
        return self._by_model.setdefault(model, IdentityCache())

    def renew(self, model: str) -> IdentityCache[ModelMessage, V]:
        """Return a new, empty cache for requests to this model."""
        self._by_model[model] = IdentityCache()
        return self._by_model[model]


def body_of(head: Mapping[str, JsonValue], arrays: Mapping[str, Iterable[bytes]]) -> bytes:
    """Write a request body: the small fields in sorted order, then arrays of serialised items.

    `head` is not empty; empty arrays are left out. The growing array comes last, so that the body
    of the next turn begins with this one up to its closing brackets. Fields and items are both
    separated by commas, so one join makes the body and a long history is copied once.
    """
    pieces = [jsontext.dump(head)[:-1]]
    for name, items in arrays.items():
        written = list(items)
        if not all(written):
            written = list(filter(None, written))
        if written:
            written[0] = b'"%b":[%b' % (name.encode(), written[0])
            written[-1] += b"]"
            pieces += written
    pieces[-1] += b"}"
    return b",".join(pieces)
