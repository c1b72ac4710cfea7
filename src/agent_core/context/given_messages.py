"""Reads a conversation that a program gives as a value: in our form, OpenAI's or Anthropic's.

Each message and each block is recognised by its own shape, so one list may mix the forms. What
cannot be read is refused with its place and a cure: no message is left out silently.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any, cast

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import BaseModel, TypeAdapter, ValidationError

from agent_core.errors import ArgumentError, ErrorCode, ToolError
from agent_core.providers import jsontext
from agent_core.providers.requests import MAX_CANONICAL_NAME, plain, safe_id
from agent_core.text import quoted, with_article
from agent_core.types import (
    EFFECT_UNKNOWN,
    CitationBlock,
    ContentBlock,
    ErrorPayload,
    ImageBlock,
    NodeFlags,
    NodeType,
    ProviderToolBlock,
    ReasoningBlock,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    UserMessage,
    build_content,
    is_cut_off,
)
from agent_core.types.content import text_in
from agent_core.types.fields import fault_in_words

Fields = Mapping[str, Any]

_SYSTEM = frozenset({"system", "developer"})
_ROLES = "system, developer, user, assistant and tool"
_UNANSWERED = (
    "this call has no result in the conversation that was given; its effect is unknown. "
    "Look at the current state before doing it again."
)
_ANTHROPIC = "anthropic"
_ID = r"[A-Za-z0-9_.:\-]{1,128}"


class GivenMessage(Struct, frozen=True, kw_only=True):
    """A message that was read.

    Attributes:
        created_at, node_id: of the node that it was before, if it was one.
        index: its place in the list that was given.
    """

    role: Role
    content: Sequence[ContentBlock]
    node_type: NodeType = NodeType.MESSAGE
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    created_at: datetime | None = None
    node_id: str = ""
    index: int = 0


class GivenHistory(Struct, frozen=True, kw_only=True):
    """A conversation that was read; every call in it has a result.

    Attributes:
        system: the texts of its system messages, joined.
        messages: the remaining messages, in order; each result has a message of its own.
    """

    system: str = ""
    messages: Sequence[GivenMessage] = ()


class _UnreadError(Exception):
    """A message that cannot be read; the text gives reason and cure."""


def read_history(given: object) -> GivenHistory:
    """Read a conversation.

    Args:
        given: a list of nodes, messages of OpenAI's Chat Completions or Responses, or Anthropic's
            messages, as dicts or as objects of the vendors' packages.

    Raises:
        AgentCoreError: `validation_error`: `details.index` is the place of the message that cannot
            be read.
    """
    if isinstance(given, GivenHistory):
        return given
    is_one = isinstance(given, str | bytes | Mapping | BaseModel)
    if is_one or not isinstance(given, Iterable):
        kind = type(cast("object", given)).__name__
        message = f"history must be a list of messages, not {with_article(kind)}"
        raise ArgumentError(message, "history")
    reader = _Reader()
    for index, each in enumerate(cast("Iterable[object]", given)):
        reader.index = index
        try:
            reader.read(_fields_of(each))
        except _UnreadError as error:
            message = f"history[{index}] {error}"
            raise ArgumentError(message, "history", {"index": index}) from None
    system = "\n\n".join(text for text in reader.system if text.strip())
    return GivenHistory(system=system, messages=[*_answered(reader.messages)])


class _Reader:
    """Reads the messages of one conversation, one after the other.

    Attributes:
        system: the texts of the system messages.
        messages: the other messages.
        index: the place of the message that is read.
    """

    def __init__(self) -> None:
        self.index = 0
        self.system: list[str] = []
        self.messages: list[GivenMessage] = []
        self._ids: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._answered: set[str] = set()
        self._of_reply: set[str] = set()
        self._joins = False

    def read(self, fields: Fields) -> None:
        """Read the next message.

        Raises:
            _UnreadError: it cannot be read.
        """
        joins, self._joins = self._joins, False
        match fields.get("type"):
            case "function_call" | "function_call_output" | "reasoning":
                self._joins = self._read_item(fields, joins=joins)
                return
            case _:
                pass
        role = fields.get("role")
        if role in _SYSTEM:
            self.system.append(_text_of(fields))
        elif role == "user":
            self._read_user(fields)
        elif role == "assistant":
            count = len(self.messages)
            self._read_assistant(fields)
            self._joins = fields.get("type") == "message"  # of Responses; calls may follow it
            if joins and self._joins and len(self.messages) == count + 1:
                self._join(self.messages.pop().content)
        elif role == "tool":
            self._read_tool(fields)
        elif role == "function":
            raise _UnreadError(
                "has the former role function; use the role tool with the tool_call_id of a call"
            )
        elif "parts" in fields:
            raise _UnreadError("has parts and no content; convert it to OpenAI's messages first")
        else:
            said = "no role" if role is None else f"the role {role!r}"
            raise _UnreadError(f"has {said}; there are {_ROLES}")

    def _read_user(self, fields: Fields) -> None:
        content: list[ContentBlock] = []
        for block in _blocks_of(fields):
            if isinstance(block, ToolResultBlock):  # Anthropic's place for results
                self._add(Role.USER, content, fields)
                content = []
                self._add_result(block, fields)
            elif isinstance(block, ToolCallBlock | ReasoningBlock):
                raise _UnreadError(f"is the user's and holds a {block.type}, which a model makes")
            else:
                content.append(block)
        self._add(Role.USER, content, fields)

    def _read_assistant(self, fields: Fields) -> None:
        if fields.get("function_call"):
            raise _UnreadError("has the former field function_call; give the call in tool_calls")
        if fields.get("audio"):
            raise _UnreadError("is spoken; give its transcript as content")
        content: list[ContentBlock] = []
        for block in _blocks_of(fields):
            if isinstance(block, ToolResultBlock | ImageBlock):
                raise _UnreadError(f"is a model's and holds a {block.type}; the user's may")
            content.append(self._own_call(block) if isinstance(block, ToolCallBlock) else block)
        if not content and isinstance(refusal := fields.get("refusal"), str):
            content.append(TextBlock(text=refusal))
        calls = map(_read_function_call, _list_of(fields, "tool_calls"))
        content.extend(map(self._own_call, calls))
        self._add(Role.ASSISTANT, content, fields)

    def _read_tool(self, fields: Fields) -> None:
        blocks = _blocks_of(fields)
        results = [block for block in blocks if isinstance(block, ToolResultBlock)]
        if "tool_call_id" in fields:
            _no_calls(blocks)
            call_id = _id_of(fields, "tool_call_id")
            self._add_result(ToolResultBlock(tool_call_id=call_id, content=blocks), fields)
            return
        if not results or len(results) < len(blocks):
            raise _UnreadError("is a tool's and lacks tool_call_id, the id of the call it answers")
        for result in results:
            self._add_result(result, fields)

    def _read_item(self, item: Fields, *, joins: bool) -> bool:
        """Read an item of Responses; return whether a call after it belongs to the same reply."""
        if item["type"] == "function_call_output":
            output = item.get("output")
            blocks = _read_blocks(output, "output")
            _no_calls(blocks)
            call_id = _id_of(item, "call_id")
            self._add_result(ToolResultBlock(tool_call_id=call_id, content=blocks), item)
            return False
        block: ContentBlock
        if item["type"] == "reasoning":
            parts = _list_of(item, "summary")
            block = ReasoningBlock(text="\n".join(_str_of(part, "text") for part in parts))
        else:
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            block = self._own_call(_read_function_call(call))
        if isinstance(block, ReasoningBlock) and not block.text:
            return joins  # only its service could read it
        if joins:
            self._join([block])
        else:
            self._add(Role.ASSISTANT, [block], item)
        return True

    def _join(self, content: Sequence[ContentBlock]) -> None:
        """Add content to the last message: Responses has an item for each part of a reply."""
        last = self.messages.pop()
        self.messages.append(replace(last, content=[*last.content, *content]))

    def _own_call(self, call: ToolCallBlock) -> ToolCallBlock:
        """Return the call with an id that no other one of the conversation has.

        Some servers begin their numbers again in every reply.

        Raises:
            _UnreadError: another call of the same reply has its id.
        """
        raw, number = call.tool_call_id, 2
        if raw in self._of_reply:
            raise _UnreadError(
                f"is the second call with the id {raw!r} in one reply, so its result is not known"
                " from the other's; give each call an id of its own"
            )
        self._of_reply.add(raw)
        own = raw
        while own in self._names:
            own = f"{raw[:120]}-{number}"
            number += 1
        self._ids[raw], self._names[own] = own, call.name
        return call if own == raw else call.model_copy(update={"tool_call_id": own})

    def _add_result(self, result: ToolResultBlock, fields: Fields) -> None:
        said = result.tool_call_id
        own = self._ids.get(said)
        if own is None:
            raise _UnreadError(
                f"is the result of the call {said!r}, which no message before it makes; begin the"
                " list with the message of the model that makes it"
            )
        if own in self._answered:
            raise _UnreadError(f"is another result of the call {said!r}, which has one")
        self._answered.add(own)
        name = self._names[own]
        metadata = {"tool_name": name, **result.metadata}
        block = result.model_copy(update={"tool_call_id": own, "metadata": metadata})
        self._add(Role.TOOL, [block], fields, tool_name=name)

    def _add(
        self, role: Role, content: Sequence[ContentBlock], fields: Fields, **facts: str
    ) -> None:
        if not content:
            return
        if role is not Role.ASSISTANT:
            self._of_reply.clear()
        metadata = fields.get("metadata")
        known = {**cast("Fields", metadata)} if isinstance(metadata, Mapping) else {}
        if role is Role.USER and isinstance(name := fields.get("name"), str):
            known["name"] = name
        node_type, node_id = fields.get("node_type", NodeType.MESSAGE), fields.get("node_id")
        try:
            kind = NodeType(node_type)
        except ValueError:
            raise _UnreadError(f"has the unknown node_type {node_type!r}") from None
        self.messages.append(
            GivenMessage(
                role=role,
                content=content,
                node_type=kind,
                metadata={**facts, **known},
                created_at=_time_of(fields.get("created_at")),
                node_id=node_id if isinstance(node_id, str) else "",
                index=self.index,
            )
        )


def _answered(messages: Sequence[GivenMessage]) -> Iterator[GivenMessage]:
    """Yield the messages; calls without a result are answered after the results of their reply."""
    results = {
        block.tool_call_id
        for message in messages
        for block in message.content
        if isinstance(block, ToolResultBlock)
    }
    open_calls: list[ToolCallBlock] = []
    for message in messages:
        if message.role is not Role.TOOL:
            yield from map(_unknown_result, open_calls)
            open_calls = []
            if not is_cut_off(message.metadata):
                calls = (block for block in message.content if isinstance(block, ToolCallBlock))
                open_calls = [call for call in calls if call.tool_call_id not in results]
        yield message
    yield from map(_unknown_result, open_calls)


def _unknown_result(call: ToolCallBlock) -> GivenMessage:
    details = {"reason": EFFECT_UNKNOWN}
    error = ErrorPayload.of(ToolError(ErrorCode.CANCELLED, _UNANSWERED, details=details))
    facts = {"tool_name": call.name, "reason": EFFECT_UNKNOWN}
    block = ToolResultBlock(
        tool_call_id=call.tool_call_id, is_error=True, error=error, metadata=facts
    )
    flags = NodeFlags(reason=EFFECT_UNKNOWN).as_metadata()
    return GivenMessage(role=Role.TOOL, content=[block], metadata={"tool_name": call.name, **flags})


def _fields_of(given: object) -> Fields:
    """Return the fields of a message; objects of the vendors' packages have `model_dump`."""
    if isinstance(given, BaseModel):  # ours, too: a node, or a message of the user
        fields: Fields = given.model_dump(mode="json", warnings=False)
        if "choices" in fields:
            raise _UnreadError("is a whole response; give the message of its first choice")
        return {"role": "user", **fields} if isinstance(given, UserMessage) else fields
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise _UnreadError(f"is of the type {kind}; give a dict with role and content")
    return cast("Fields", given)


def _blocks_of(fields: Fields) -> list[ContentBlock]:
    return _read_blocks(fields.get("content"), "content")


def _read_blocks(content: object, name: str) -> list[ContentBlock]:
    if content is None:
        return []
    if isinstance(content, str):
        return [TextBlock(text=content)] if content else []
    if isinstance(content, Mapping) or not isinstance(content, Iterable):
        raise _UnreadError(f"has a {name} that is neither a text nor a list of blocks")
    blocks: list[ContentBlock] = []
    for each in cast("Iterable[object]", content):
        if isinstance(each, str):
            blocks.append(TextBlock(text=each))
        else:
            blocks += _read_block(_fields_of(each))
    return blocks


def _read_block(block: Fields) -> list[ContentBlock]:
    kind = block.get("type")
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        cure = _CURES.get(str(kind), f"known are {', '.join(sorted(_READERS))}")
        raise _UnreadError(f"holds a block of the type {kind!r}; {cure}")
    return read(block)


def _read_text(block: Fields) -> list[ContentBlock]:
    found: list[ContentBlock] = [TextBlock(text=_str_of(block, "text"))]
    for each in _list_of(block, "citations") + _list_of(block, "annotations"):
        url = each.get("url") or _table(each.get("url_citation")).get("url")
        if isinstance(url, str):
            title = each.get("title") or _table(each.get("url_citation")).get("title")
            found.append(CitationBlock(url=url, title=title if isinstance(title, str) else ""))
    return found


def _read_refusal(block: Fields) -> list[ContentBlock]:
    return [TextBlock(text=_str_of(block, "refusal"))]


def _read_image_url(block: Fields) -> list[ContentBlock]:
    found = block.get("image_url")
    url = found if isinstance(found, str) else _table(found).get("url")
    return [_image_at(url)]


def _read_file(block: Fields) -> list[ContentBlock]:
    file = _table(block.get("file")) or block
    if not isinstance(data := file.get("file_data"), str):
        raise _UnreadError("names a file by an id; give its content as file_data")
    return [_image_at(data)]


def _image_at(url: object) -> ImageBlock:
    text = url if isinstance(url, str) else ""
    head, comma, data = text.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise _UnreadError(
            f"shows {quoted(text)}, which only its service can open; give the image as a"
            " data:…;base64, address"
        )
    return ImageBlock(mime_type=head[5:].partition(";")[0], data=data)


def _read_source(block: Fields) -> list[ContentBlock]:
    """Read an image or document of Anthropic, or an image of ours."""
    if "source" not in block:
        return _read_own(block)
    source = _table(block["source"])
    match source.get("type"):
        case "base64":
            data = _str_of(source, "data")
            return [ImageBlock(mime_type=_str_of(source, "media_type"), data=data)]
        case "text":
            return [TextBlock(text=_str_of(source, "data"))]
        case "content":
            return _read_blocks(source.get("content"), "source")
        case other:
            raise _UnreadError(
                f"shows an image or document by {other!r}, which only its service can open; give"
                " its bytes as base64"
            )


def _read_function_call(call: Fields) -> ToolCallBlock:
    """Read a call of OpenAI."""
    if call.get("type", "function") != "function":
        raise _UnreadError(f"calls a tool of the type {call.get('type')!r}; only functions can be")
    function = _table(call.get("function"))
    arguments, metadata = dict[str, Any](), dict[str, Any]()
    given = function.get("arguments")
    if isinstance(given, Mapping):
        arguments = dict(cast("Fields", given))
    elif isinstance(given, str) and given.strip():
        try:
            arguments = jsontext.parse_object(given)
        except ValueError as error:  # the model has written it like this
            metadata = {"invalid_arguments": given, "invalid_reason": str(error)[:200]}
    return _call(_id_of(call, "id"), _str_of(function, "name"), arguments, metadata)


def _read_tool_use(block: Fields) -> list[ContentBlock]:
    arguments = dict(_table(block.get("input")))
    return [_call(_id_of(block, "id"), _str_of(block, "name"), arguments, {})]


def _call(
    call_id: str, name: str, arguments: dict[str, Any], facts: dict[str, Any]
) -> ToolCallBlock:
    return ToolCallBlock(
        tool_call_id=call_id,
        name=plain(name)[:MAX_CANONICAL_NAME],
        arguments=arguments,
        metadata=facts,
    )


def _read_tool_result(block: Fields) -> list[ContentBlock]:
    if "tool_use_id" not in block:
        return _read_own(block)
    blocks = _read_blocks(block.get("content"), "content")
    _no_calls(blocks)
    return [
        ToolResultBlock(
            tool_call_id=_id_of(block, "tool_use_id"),
            is_error=block.get("is_error") is True,
            content=blocks,
        )
    ]


def _read_thinking(block: Fields) -> list[ContentBlock]:
    signature = block.get("signature")
    return [
        ReasoningBlock(
            text=_str_of(block, "thinking"),
            signature=signature if isinstance(signature, str) and signature else None,
            metadata={"provider": _ANTHROPIC},
        )
    ]


def _read_redacted(block: Fields) -> list[ContentBlock]:
    facts = {"provider": _ANTHROPIC, "redacted_thinking": _str_of(block, "data")}
    return [ReasoningBlock(text="", metadata=facts)]


def _read_server_tool(block: Fields) -> list[ContentBlock]:
    """Read the use of a tool that Anthropic runs, or what it has found: kept for people."""
    name = block.get("name")
    kind = str(block["type"]).removesuffix("_tool_result")
    result = None
    if "content" in block:
        result = jsontext.dump_text(block["content"])
    return [
        ProviderToolBlock(
            name=name if isinstance(name, str) else kind,
            arguments=dict(_table(block.get("input"))),
            result=result,
            metadata={"provider": _ANTHROPIC},
        )
    ]


def _read_own(block: Fields) -> list[ContentBlock]:
    """Read a block of ours."""
    try:
        found = _own_blocks().validate_python(dict(block))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"][1:]))
        reason = fault_in_words(where, first)
        raise _UnreadError(f"holds a {block.get('type')} that is not whole: {reason}") from None
    return [found]


@cache
def _own_blocks() -> TypeAdapter[ContentBlock]:
    build_content()
    return TypeAdapter(ContentBlock)


_READERS: Mapping[str, Callable[[Fields], list[ContentBlock]]] = {
    # of all of them
    "text": _read_text,
    "image": _read_source,
    "tool_result": _read_tool_result,
    # OpenAI's
    **dict.fromkeys(("input_text", "output_text"), _read_text),
    **dict.fromkeys(("image_url", "input_image"), _read_image_url),
    **dict.fromkeys(("file", "input_file"), _read_file),
    "refusal": _read_refusal,
    # Anthropic's
    "document": _read_source,
    "tool_use": _read_tool_use,
    "thinking": _read_thinking,
    "redacted_thinking": _read_redacted,
    **dict.fromkeys(
        (
            "server_tool_use",
            "web_search_tool_result",
            "web_fetch_tool_result",
            "code_execution_tool_result",
            "bash_code_execution_tool_result",
            "text_editor_code_execution_tool_result",
        ),
        _read_server_tool,
    ),
    # ours
    **dict.fromkeys(
        ("json", "tool_call", "artifact_ref", "reasoning", "provider_tool", "citation"), _read_own
    ),
}
_CURES = {
    "input_audio": "models here cannot hear it: give its transcript as text",
    "container_upload": "give the content of the file as text or as a document",
    "search_result": "give what it says as text",
}


def _no_calls(blocks: Iterable[ContentBlock]) -> None:
    for block in blocks:
        if isinstance(block, ToolCallBlock | ToolResultBlock | ReasoningBlock):
            raise _UnreadError(f"is the result of a call and holds a {block.type}")


def _text_of(fields: Fields) -> str:
    blocks = _blocks_of(fields)
    if not all(isinstance(block, TextBlock) for block in blocks):
        raise _UnreadError("is a system message with more than text; give the rest to the user")
    return text_in(blocks, "\n\n")


def _str_of(fields: Fields, name: str) -> str:
    if not isinstance(found := fields.get(name), str):
        what = f"lacks {name}" if found is None else f"has a {name} that is not text"
        kind = fields.get("type") or fields.get("role") or "message"
        raise _UnreadError(f"has a {kind} that {what}")
    return found


def _id_of(fields: Fields, name: str) -> str:
    """Return the id of a call in the form that ids have here."""
    given = _str_of(fields, name)
    if not given:
        raise _UnreadError(f"has an empty {name}; every call needs an id, which its result names")
    return given if re.fullmatch(_ID, given) else safe_id(given)


def _list_of(fields: Fields, name: str) -> list[Fields]:
    found = fields.get(name)
    if isinstance(found, str) or not isinstance(found, Iterable):
        return []
    return [_fields_of(each) for each in cast("Iterable[object]", found)]


def _table(value: object) -> Fields:
    return cast("Fields", value) if isinstance(value, Mapping) else {}


def _time_of(value: object) -> datetime | None:
    if isinstance(value, str):
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
