"""What each protocol's service would send for a scripted reply, as bytes of its response body."""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

import responses_events
from agent_core.errors import ErrorCode
from agent_core.providers import jsontext
from agent_core.providers.requests import wire_name
from agent_core.providers.scripted import Calls, Fails, Hangs, Says, ScriptedCall, pieces
from agent_core.types import StopReason, Usage

SIGNATURE = "c2lnbmVkIGJ5IHRoZSBtb2RlbCBzZXJ2ZXI="
FRAGMENT = 5

STATUS = {
    ErrorCode.PROVIDER_AUTH_FAILED: 401,
    ErrorCode.PROVIDER_RATE_LIMITED: 429,
    ErrorCode.PROMPT_TOO_LONG: 400,
    ErrorCode.UNSUPPORTED_CAPABILITY: 400,
    ErrorCode.VALIDATION_ERROR: 400,
}
"""HTTP status of a scripted failure; 500 for every other code."""


class Protocol(StrEnum):
    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"
    OLLAMA = "ollama"
    GEMINI = "gemini"
    BEDROCK = "bedrock"

    @property
    def content_type(self) -> str:
        match self:
            case Protocol.OLLAMA:
                return "application/x-ndjson"
            case Protocol.BEDROCK:
                return "application/vnd.amazon.eventstream"
            case _:
                return "text/event-stream"

    @classmethod
    def of_path(cls, path: str) -> "Protocol":
        if ":streamGenerateContent" in path:
            return cls.GEMINI
        if path.endswith("/converse-stream"):
            return cls.BEDROCK
        if path.endswith("/chat/completions"):
            return cls.OPENAI
        if path.endswith("/responses"):
            return cls.RESPONSES
        is_anthropic = path.endswith(("/messages", ":streamRawPredict"))
        return cls.ANTHROPIC if is_anthropic else cls.OLLAMA


@dataclass(frozen=True, slots=True)
class _Piece:
    """One thing a reply says: `kind` is text, reasoning or call."""

    kind: str
    text: str = ""
    call: ScriptedCall | None = None


def events(protocol: Protocol, reply: Says | Calls | Hangs | Fails, *, serial: int) -> list[bytes]:
    """The events of the body, in order. A failure is an error event after what was said."""
    said = list(_said(reply))
    match protocol:
        case Protocol.OPENAI:
            return [_sse(body) for body in _openai(reply, said, serial)]
        case Protocol.RESPONSES:
            return responses_events.sse(_responses(reply, said, serial))
        case Protocol.ANTHROPIC:
            return [
                f"event: {body['type']}\n".encode() + _sse(body)
                for body in _anthropic(reply, said, serial)
            ]
        case Protocol.OLLAMA:
            return [jsontext.dump(body) + b"\n" for body in _ollama(reply, said)]
        case Protocol.GEMINI:
            return [_sse(body) for body in _gemini(reply, said, serial)]
        case Protocol.BEDROCK:
            return list(_bedrock(reply, said, serial))


def error_body(protocol: Protocol, message: str, code: str = "") -> bytes:
    """The body of a refusal as the service would write it."""
    match protocol:
        case Protocol.OPENAI | Protocol.RESPONSES:
            body: dict[str, Any] = {"error": {"message": message, "type": "error", "code": code}}
        case Protocol.ANTHROPIC:
            body = {"type": "error", "error": {"type": code or "api_error", "message": message}}
        case Protocol.OLLAMA:
            body = {"error": message}
        case Protocol.GEMINI:
            body = {"error": {"code": 400, "message": message, "status": code or "INTERNAL"}}
        case Protocol.BEDROCK:
            body = {"message": message}
    return orjson.dumps(body)


def overflow(protocol: Protocol) -> bytes:
    """What the service says when the prompt is too long."""
    match protocol:
        case Protocol.OPENAI | Protocol.RESPONSES:
            message = "This model's maximum context length is 8192 tokens."
            return error_body(protocol, message, "context_length_exceeded")
        case Protocol.ANTHROPIC:
            message = "prompt is too long: 208310 tokens > 200000 maximum"
            return error_body(protocol, message, "invalid_request_error")
        case Protocol.OLLAMA:
            return error_body(protocol, "the input length exceeds the context length")
        case Protocol.GEMINI:
            message = "The input token count (1200000) exceeds the maximum number of tokens allowed"
            return error_body(protocol, f"{message} (1048576).", "INVALID_ARGUMENT")
        case Protocol.BEDROCK:
            return error_body(protocol, "Input is too long for requested model.")


def no_tools(protocol: Protocol) -> bytes:
    """What the service says when the model does not take tools."""
    return error_body(protocol, "registry.ollama.ai/library/tiny:latest does not support tools")


def _said(reply: Says | Calls | Hangs | Fails) -> Iterator[_Piece]:
    if isinstance(reply, Says | Calls) and reply.reasoning:
        yield _Piece("reasoning", reply.reasoning)
    for piece in pieces(reply.text, reply.chunks if isinstance(reply, Says) else 1):
        yield _Piece("text", piece)
    for call in reply.calls if isinstance(reply, Calls) else ():
        yield _Piece("call", call=call)


def _sse(body: Any) -> bytes:
    return b"data: " + (body if isinstance(body, bytes) else jsontext.dump(body)) + b"\n\n"


def _arguments(call: ScriptedCall) -> str:
    raw = call.arguments
    return raw if isinstance(raw, str) else jsontext.dump_text(raw)


def _fragments(call: ScriptedCall) -> list[str]:
    text = _arguments(call)
    return [text[start : start + FRAGMENT] for start in range(0, len(text), FRAGMENT)]


def _openai(reply: Says | Calls | Hangs | Fails, said: list[_Piece], serial: int) -> Iterator[Any]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": f"chatcmpl-{serial}", "object": "chat.completion.chunk", "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    index = 0
    for piece in said:
        if piece.call is None:
            key = "content" if piece.kind == "text" else "reasoning_content"
            yield chunk({key: piece.text})
            continue
        call_id = piece.call.tool_call_id
        function = {"name": wire_name(piece.call.name), "arguments": ""}
        head = {"index": index, "id": call_id or f"call_{serial}_{index}", "type": "function"}
        yield chunk({"tool_calls": [{**head, "function": function}]})
        for fragment in _fragments(piece.call):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": fragment}}]})
        index += 1
    if isinstance(reply, Fails):
        yield {"error": {"message": reply.message, "code": STATUS.get(reply.code, 500)}}
    elif not isinstance(reply, Hangs):
        yield chunk({}, _OPENAI_STOPS[reply.stop_reason])
        yield {"choices": [], "usage": _openai_usage(reply.usage or Usage())}
        yield b"[DONE]"


_OPENAI_STOPS = {
    StopReason.END_TURN: "stop",
    StopReason.STOP_SEQUENCE: "stop",
    StopReason.TOOL_USE: "tool_calls",
    StopReason.MAX_TOKENS: "length",
    StopReason.CONTENT_FILTER: "content_filter",
    StopReason.ERROR: "error",
}


def _openai_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _responses(
    reply: Says | Calls | Hangs | Fails, said: list[_Piece], serial: int
) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = []
    for index, block in enumerate(_joined(said)):
        piece = block[0].call
        joined = "".join(each.text for each in block)
        if piece is not None:
            call_id = piece.tool_call_id or f"call_{serial}_{index}"
            name = wire_name(piece.name)
            item = responses_events.call(name, _arguments(piece), call_id=call_id)
        elif block[0].kind == "text":
            item = responses_events.message(joined)
        else:
            item = responses_events.reasoning(joined)
        prefix = item["id"].partition("_")[0]
        output.append({**item, "id": f"{prefix}_{serial}_{index}"})
    if isinstance(reply, Hangs):
        return responses_events.events_of(output)[:-1]
    if isinstance(reply, Fails):
        code = _RESPONSES_ERRORS.get(reply.code, "server_error")
        error = {"error": {"code": code, "message": reply.message}, "usage": None}
        return responses_events.events_of(output, status="failed", **error)
    spent = reply.usage or Usage()
    usage = {
        "input_tokens": spent.input_tokens,
        "input_tokens_details": {"cached_tokens": spent.cache_read_tokens},
        "output_tokens": spent.output_tokens,
        "output_tokens_details": {"reasoning_tokens": spent.reasoning_tokens},
        "total_tokens": spent.input_tokens + spent.output_tokens,
    }
    if reason := _RESPONSES_STOPS.get(reply.stop_reason):
        more = {"incomplete_details": {"reason": reason}, "usage": usage}
        return responses_events.events_of(output, status="incomplete", **more)
    return responses_events.events_of(output, usage=usage)


_RESPONSES_STOPS = {
    StopReason.MAX_TOKENS: "max_output_tokens",
    StopReason.CONTENT_FILTER: "content_filter",
    StopReason.ERROR: "steered",
}
_RESPONSES_ERRORS = {
    ErrorCode.PROVIDER_AUTH_FAILED: "invalid_api_key",
    ErrorCode.PROVIDER_RATE_LIMITED: "rate_limit_exceeded",
    ErrorCode.VALIDATION_ERROR: "invalid_prompt",
}


def _anthropic(
    reply: Says | Calls | Hangs | Fails, said: list[_Piece], serial: int
) -> Iterator[dict[str, Any]]:
    usage = Usage() if isinstance(reply, Hangs | Fails) else reply.usage or Usage()
    fresh = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
    begun = {
        "input_tokens": fresh,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "output_tokens": min(1, usage.output_tokens),
    }
    yield {"type": "message_start", "message": {"id": f"msg_{serial}", "usage": begun}}
    yield {"type": "ping"}
    for index, block in enumerate(_joined(said)):
        yield from _anthropic_block(index, block, serial)
    if isinstance(reply, Fails):
        kind = _ANTHROPIC_ERRORS.get(reply.code, "api_error")
        yield {"type": "error", "error": {"type": kind, "message": reply.message}}
    elif not isinstance(reply, Hangs):
        stop = {"stop_reason": _ANTHROPIC_STOPS[reply.stop_reason], "stop_sequence": None}
        spent = {"output_tokens": usage.output_tokens}
        yield {"type": "message_delta", "delta": stop, "usage": spent}
        yield {"type": "message_stop"}


_ANTHROPIC_STOPS = {
    StopReason.END_TURN: "end_turn",
    StopReason.STOP_SEQUENCE: "stop_sequence",
    StopReason.TOOL_USE: "tool_use",
    StopReason.MAX_TOKENS: "max_tokens",
    StopReason.CONTENT_FILTER: "refusal",
    StopReason.ERROR: "error",
}
_ANTHROPIC_ERRORS = {
    ErrorCode.PROVIDER_AUTH_FAILED: "authentication_error",
    ErrorCode.PROVIDER_RATE_LIMITED: "rate_limit_error",
    ErrorCode.VALIDATION_ERROR: "invalid_request_error",
}


def _joined(said: list[_Piece]) -> Iterator[list[_Piece]]:
    """Pieces by block: neighbours of one kind belong together, each call is alone."""
    block: list[_Piece] = []
    for piece in said:
        if block and (piece.kind != block[0].kind or piece.kind == "call"):
            yield block
            block = []
        block.append(piece)
    if block:
        yield block


def _anthropic_block(index: int, block: list[_Piece], serial: int) -> Iterator[dict[str, Any]]:
    call = block[0].call
    deltas: list[dict[str, Any]]
    if call is not None:
        call_id = call.tool_call_id or f"toolu_{serial}_{index}"
        start: dict[str, Any] = {
            "type": "tool_use",
            "id": call_id,
            "name": wire_name(call.name),
            "input": {},
        }
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in _fragments(call)]
    elif block[0].kind == "text":
        start = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": piece.text} for piece in block]
    else:
        start = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": piece.text} for piece in block]
        deltas.append({"type": "signature_delta", "signature": SIGNATURE})
    yield {"type": "content_block_start", "index": index, "content_block": start}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _ollama(reply: Says | Calls | Hangs | Fails, said: list[_Piece]) -> Iterator[dict[str, Any]]:
    def line(message: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": "", **message}, "done": False, **more}

    for piece in said:
        if piece.call is not None:
            function = {"name": wire_name(piece.call.name), "arguments": piece.call.arguments}
            call: dict[str, Any] = {"function": function}
            if piece.call.tool_call_id is not None:
                call["id"] = piece.call.tool_call_id
            yield line({"tool_calls": [call]})
        else:
            yield line({"content" if piece.kind == "text" else "thinking": piece.text})
    if isinstance(reply, Fails):
        yield {"error": reply.message}
    elif not isinstance(reply, Hangs):
        reason = "length" if reply.stop_reason is StopReason.MAX_TOKENS else "stop"
        usage = reply.usage or Usage()
        spent = {"prompt_eval_count": usage.input_tokens, "eval_count": usage.output_tokens}
        yield line({}, done=True, done_reason=reason, **spent)


def _gemini(
    reply: Says | Calls | Hangs | Fails, said: list[_Piece], serial: int
) -> Iterator[dict[str, Any]]:
    def response(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
        candidate = {"content": {"parts": list(parts), "role": "model"}, "index": 0, **more}
        return {"candidates": [candidate], "responseId": f"r{serial}", "modelVersion": "m"}

    index = 0
    for piece in said:
        if piece.call is None:
            thought = {"thought": True} if piece.kind == "reasoning" else {}
            yield response({"text": piece.text, **thought})
            continue
        call: dict[str, Any] = {"name": wire_name(piece.call.name), "args": piece.call.arguments}
        if piece.call.tool_call_id is not None:
            call["id"] = piece.call.tool_call_id
        signed = {} if index else {"thoughtSignature": SIGNATURE}
        yield response({"functionCall": call, **signed})
        index += 1
    if isinstance(reply, Fails):
        status = STATUS.get(reply.code, 500)
        yield {"error": {"code": status, "message": reply.message, "status": "INTERNAL"}}
    elif not isinstance(reply, Hangs):
        usage = reply.usage or Usage()
        spent = {
            "promptTokenCount": usage.input_tokens,
            "candidatesTokenCount": usage.output_tokens - usage.reasoning_tokens,
            "thoughtsTokenCount": usage.reasoning_tokens,
            "totalTokenCount": usage.input_tokens + usage.output_tokens,
        }
        yield {**response(finishReason=_GEMINI_STOPS[reply.stop_reason]), "usageMetadata": spent}


_GEMINI_STOPS = {
    StopReason.END_TURN: "STOP",
    StopReason.STOP_SEQUENCE: "STOP",
    StopReason.TOOL_USE: "STOP",
    StopReason.MAX_TOKENS: "MAX_TOKENS",
    StopReason.CONTENT_FILTER: "SAFETY",
    StopReason.ERROR: "MALFORMED_FUNCTION_CALL",
}


def frame(kind: str, body: dict[str, Any], **headers: str) -> bytes:
    """One frame of Amazon's event stream: an event, or what `headers` say it is."""
    named = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    if kind.endswith("Exception"):
        named = {":exception-type": kind, **named, ":message-type": "exception"}
        del named[":event-type"]
    named |= {f":{name.replace('_', '-')}": value for name, value in headers.items()}
    head = b"".join(
        struct.pack(">B", len(name))
        + name.encode()
        + struct.pack(">BH", 7, len(value))
        + value.encode()
        for name, value in named.items()
    )
    payload = jsontext.dump(body)
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    whole = prelude + struct.pack(">I", zlib.crc32(prelude)) + head + payload
    return whole + struct.pack(">I", zlib.crc32(whole))


def _bedrock(
    reply: Says | Calls | Hangs | Fails, said: list[_Piece], serial: int
) -> Iterator[bytes]:
    yield frame("messageStart", {"role": "assistant"})
    for index, block in enumerate(_joined(said)):
        at = {"contentBlockIndex": index, "p": "abcdefghijklmn"[: 3 + index]}
        call = block[0].call
        deltas: list[dict[str, Any]]
        if call is not None:
            call_id = call.tool_call_id or f"tooluse_{serial}_{index}"
            use = {"toolUseId": call_id, "name": wire_name(call.name)}
            yield frame("contentBlockStart", {"start": {"toolUse": use}, **at})
            deltas = [{"toolUse": {"input": part}} for part in _fragments(call)]
        elif block[0].kind == "text":
            deltas = [{"text": piece.text} for piece in block]
        else:
            deltas = [{"reasoningContent": {"text": piece.text}} for piece in block]
            deltas.append({"reasoningContent": {"signature": SIGNATURE}})
        for delta in deltas:
            yield frame("contentBlockDelta", {"delta": delta, **at})
        yield frame("contentBlockStop", at)
    if isinstance(reply, Fails):
        kind = _BEDROCK_ERRORS.get(reply.code, "internalServerException")
        yield frame(kind, {"message": reply.message})
    elif not isinstance(reply, Hangs):
        yield frame("messageStop", {"stopReason": _BEDROCK_STOPS[reply.stop_reason]})
        usage = reply.usage or Usage()
        spent = {
            "inputTokens": usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens,
            "outputTokens": usage.output_tokens,
            "totalTokens": usage.input_tokens + usage.output_tokens,
            "cacheReadInputTokens": usage.cache_read_tokens,
            "cacheWriteInputTokens": usage.cache_write_tokens,
        }
        yield frame("metadata", {"usage": spent, "metrics": {"latencyMs": 12}})


_BEDROCK_STOPS = {
    StopReason.END_TURN: "end_turn",
    StopReason.STOP_SEQUENCE: "stop_sequence",
    StopReason.TOOL_USE: "tool_use",
    StopReason.MAX_TOKENS: "max_tokens",
    StopReason.CONTENT_FILTER: "guardrail_intervened",
    StopReason.ERROR: "malformed_model_output",
}
_BEDROCK_ERRORS = {
    ErrorCode.PROVIDER_RATE_LIMITED: "throttlingException",
    ErrorCode.VALIDATION_ERROR: "validationException",
}
