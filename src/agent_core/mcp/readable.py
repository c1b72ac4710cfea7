"""Messages of servers, changed so that the SDK reads them.

The SDK refuses a whole list for one odd entry, and the result of a call for one odd part. Here the
entries of a list are read one by one, and of a result everything is kept that can be read, because
the call has been made.
"""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import cache
from typing import Any, Self, cast

from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    ContentBlock,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from mcp_types.methods import parse_server_result
from pydantic import TypeAdapter, ValidationError

from agent_core.text import shortened

Json = dict[str, Any]
Incoming = SessionMessage | Exception
Streams = tuple[Any, Any]
Note = Callable[[str], None]

_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_LISTS: Mapping[str, tuple[str, str]] = {
    "tools": ("tools/list", "tool"),
    "prompts": ("prompts/list", "prompt"),
    "resources": ("resources/list", "resource"),
    "resourceTemplates": ("resources/templates/list", "template"),
}
"""The method that returns each list, and the noun for an entry."""

_FORMS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("2025-11-25", {}),
    ("2026-07-28", {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}),
)
"""The versions whose forms an entry must have, with the other fields of such a list."""

_KEYS = frozenset({"name", "uri", "uriTemplate", "inputSchema"})
"""Fields without which an entry cannot be used."""

_OF_A_CALL = frozenset({"content", "structuredContent", "toolResult"})
_KNOWN = _OF_A_CALL | {"isError", "_meta", "resultType"}
_UNREADABLE = {"type": "text", "text": "[a part that cannot be read]"}
_FALSE = ("false", "no", "0", "")


def parse_message(line: bytes) -> JSONRPCMessage | None:
    """Parse a message; None if it is not one, because many servers print a greeting."""
    with suppress(ValidationError):
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    try:
        loose: Any = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    match loose:
        case [{"id": _} as only]:  # a batch of one
            loose = only
        case {"id": _, "result": result} if not isinstance(result, dict):
            loose = {**cast("Json", loose), "result": {"content": result} if result else {}}
        case _:
            pass
    # A half surrogate or a broken byte in a tool's text must not lose the answer.
    plain = json.dumps(loose, ensure_ascii=False).encode(errors="replace")
    with suppress(ValidationError):
        return jsonrpc_message_adapter.validate_json(plain, by_name=False)
    match loose:
        case {"id": bool()}:  # an integer to Python, but not a valid id
            return None
        case {"id": int() | str() as request_id, **rest} if "method" not in rest:
            # A broken answer fails its call at once, instead of letting it wait for another one.
            failure = ErrorData(code=INTERNAL_ERROR, message="its answer is not a JSON-RPC message")
            return JSONRPCError(jsonrpc="2.0", id=request_id, error=failure)
        case _:
            return None


def readable_body(body: bytes) -> bytes:
    """Return the bytes of one message, changed only if the SDK would refuse them."""
    try:
        jsonrpc_message_adapter.validate_json(body, by_name=False)
    except ValidationError:
        message = parse_message(body)
        if message is not None:
            return message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    return body


@asynccontextmanager
async def with_readable_messages(
    transport: AbstractAsyncContextManager[Streams], note: Note
) -> AsyncGenerator[Streams]:
    """Open the same transport, with messages changed so that the SDK reads them correctly.

    In a list of tools the hints become booleans or are dropped: the SDK takes `"true"`, `1` or
    `"yes"` for true. `readOnlyHint` lowers a guard, so only JSON's true counts; `openWorldHint`
    raises one, so any value but false or null counts. Output schemas are removed, because the SDK
    discards the result of a call that does not fit one. An entry of a list that cannot be read is
    left out alone.

    In the result of a call, parts become text if the SDK would refuse them and the result with
    them.

    Args:
        transport: of the server.
        note: gets a clause for each entry that is left out, and for each odd answer.
    """
    async with transport as (incoming, outgoing):
        calls: set[str] = set()
        yield _ReadableMessages(incoming, calls, note), _NotedMessages(outgoing, calls)


class _Wrapper:
    """A stream that behaves as its source, apart from what a subclass adds."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:  # `aclose`, and `last_context` where there is one
        return getattr(self._source, name)

    async def __aenter__(self) -> Self:
        await self._source.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> bool | None:
        return await self._source.__aexit__(*failure)


class _NotedMessages(_Wrapper):
    """The outgoing messages; the ids of the calls of tools are noted."""

    def __init__(self, source: Any, calls: set[str]) -> None:
        super().__init__(source)
        self._calls = calls

    async def send(self, item: SessionMessage) -> None:
        message = item.message
        if isinstance(message, JSONRPCRequest) and message.method == "tools/call":
            self._calls.add(str(message.id))
        await self._source.send(item)


class _ReadableMessages(_Wrapper):
    """The incoming messages, in a form that the SDK reads."""

    def __init__(self, source: Any, calls: set[str], note: Note) -> None:
        super().__init__(source)
        self._calls = calls
        self._note = note

    async def receive(self) -> Incoming:
        return self._plain(await self._source.receive())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Incoming:
        return self._plain(await self._source.__anext__())

    def _plain(self, item: Incoming) -> Incoming:
        """Return the message with entries or the result of a call in readable form."""
        if not isinstance(item, SessionMessage):
            return item
        message = item.message
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            is_of_call = str(message.id) in self._calls
            self._calls.discard(str(message.id))
            if isinstance(message, JSONRPCError):
                pass
            elif is_of_call:
                _make_readable(message.result, self._note)
            else:
                _make_lists_readable(message.result, self._note)
        return item


def _make_lists_readable(result: Json, note: Note) -> None:
    for key, (_, noun) in _LISTS.items():
        given = result.get(key)
        if isinstance(given, list):
            entries = enumerate(cast("list[Any]", given), 1)
            read = (_read_entry(entry, key, number, note) for number, entry in entries)
            result[key] = [entry for entry in read if entry is not None]
            _make_cursor_readable(result, noun, note)


def _make_cursor_readable(result: Json, noun: str, note: Note) -> None:
    match result.get("nextCursor"):
        case "" | None:
            result.pop("nextCursor", None)
        case str():
            pass
        case int() as number if not isinstance(number, bool):
            result["nextCursor"] = str(number)
        case _:
            del result["nextCursor"]
            note(f"its list of {noun}s ends early: its cursor cannot be read")


def _read_entry(entry: Any, key: str, number: int, note: Note) -> Json | None:
    """Return an entry of a list without the fields that cannot be read; None if it is unusable."""
    method, noun = _LISTS[key]
    if not isinstance(entry, dict):
        note(f"the {noun} {number} of its list is left out: it is not an object")
        return None
    fields = dict(cast("Json", entry))
    if key == "tools":
        _make_tool_readable(fields)
    for version, others in _FORMS:
        while odd := _odd_fields(method, version, {key: [fields], **others}):
            if needed := sorted(odd & _KEYS) or sorted(odd - fields.keys()):
                name = fields.get("name")
                known = repr(name[:100]) if isinstance(name, str) else str(number)
                why = "cannot be read" if needed[0] in fields else "is missing"
                note(f"the {noun} {known} of its list is left out: its {needed[0]} {why}")
                return None
            fields = {name: value for name, value in fields.items() if name not in odd}
    return fields


def _odd_fields(method: str, version: str, result: Json) -> set[str]:
    """Return the fields of the only entry of a list that the SDK does not read."""
    try:
        parse_server_result(method, version, result)
    except ValidationError as error:
        return {str(fault["loc"][2]) for fault in error.errors() if len(fault["loc"]) > 2} or {""}
    return set()


def _make_tool_readable(tool: Json) -> None:
    tool.pop("outputSchema", None)
    given: object = tool.get("inputSchema") or tool.get("input_schema") or {}
    if isinstance(given, dict):
        tool["inputSchema"] = _object_schema(cast("Json", given))
    elif given is True:
        tool["inputSchema"] = {"type": "object"}
    match tool:
        case {"annotations": dict()}:
            hints: Json = tool["annotations"]
            plain = {name: hints[name] for name in _HINTS if isinstance(hints.get(name), bool)}
            is_unclear = "destructiveHint" not in plain
            if is_unclear and hints.get("destructiveHint") is not None:
                plain["readOnlyHint"] = False  # an unclear hint contradicts it
            if hints.get("openWorldHint") not in (None, False):
                plain["openWorldHint"] = True  # it raises a guard
            title = hints.get("title")
            tool["annotations"] = plain | ({"title": title} if isinstance(title, str) else {})
        case {"annotations": _}:
            del tool["annotations"]
        case _:
            pass


def _object_schema(schema: Json) -> Json:
    """Return a schema with what the SDK requires of one, where its meaning is clear."""
    kind: object = schema.get("type")
    kinds = cast("list[object]", kind if isinstance(kind, list) else [kind or "object"])
    plain = {**schema, "type": "object"} if "object" in kinds else schema
    # Some languages write an empty table as a list, or as null.
    properties: Json = {"properties": {}} if plain.get("properties", {}) in ([], None) else {}
    given = {key: plain[key] for key in plain if plain[key] is not None or key != "required"}
    return {**given, **properties}


def _make_readable(result: Json, note: Note) -> None:
    """Keep the readable parts of the result of a call, because the call has been made.

    A result without a readable part stays unchanged, and is refused.
    """
    kind = result.get("resultType", "complete")
    if kind != "complete":
        if isinstance(kind, str) and _OF_A_CALL.isdisjoint(result):
            return  # the server asks something first, or has begun a task
        note(f"an answer is of the unknown kind {shortened(repr(kind), 80)}")
        del result["resultType"]
    if "task" in result and _OF_A_CALL.isdisjoint(result):
        return
    given = result.get("content", [])
    parts = cast("list[Any]", given if isinstance(given, list) else [given])
    is_modern = "resultType" in result
    if not is_modern and not isinstance(result.get("structuredContent", {}), dict):
        parts = [*parts, _text_part(result.pop("structuredContent"))]
    if "toolResult" in result:  # from the first protocol version
        parts = [*parts, _text_part(result.pop("toolResult"))]
    if _OF_A_CALL.isdisjoint(result) and not parts:
        if not (rest := {key: value for key, value in result.items() if key not in _KNOWN}):
            return
        note("an answer has no content; everything in it is kept as text")
        parts = [_text_part(rest)]
    read = [_read_part(part) for part in parts]
    if read and not any(read) and not result.get("structuredContent"):
        return
    if not all(read):
        note("an answer has parts that cannot be read")
    result["content"] = [part or _UNREADABLE for part in read]
    result.setdefault("resultType", "complete")
    failed = result.get("isError", False)
    if not isinstance(failed, bool):
        is_no = isinstance(failed, str) and failed.strip().lower() in _FALSE
        result["isError"] = bool(failed) and not is_no
    if not isinstance(result.get("_meta", {}), dict):
        del result["_meta"]


def _read_part(part: Any) -> Json | None:
    """Return a part in the protocol's form, or as text; None if it is empty."""
    if isinstance(part, dict):
        fields = cast("Json", part)
        plain = {key: value for key, value in fields.items() if key not in {"annotations", "_meta"}}
        for candidate in (fields, plain):
            with suppress(ValidationError):
                _part_adapter().validate_python(candidate, by_name=False)
                return candidate
        if not plain.keys() - {"type"}:
            return None
    elif isinstance(part, bool | int | float) or part is None:
        return None
    return _text_part(part)


def _text_part(value: Any) -> Json:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {"type": "text", "text": text}


@cache
def _part_adapter() -> TypeAdapter[ContentBlock]:
    return TypeAdapter(ContentBlock)
