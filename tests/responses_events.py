"""What OpenAI's Responses service streams for a finished output, event by event."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

Event = dict[str, Any]
FRAGMENT = 5


def message(text: str, *, item_id: str = "msg_1", **more: Any) -> Event:
    content: list[Event] = [
        {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    ]
    return {
        "id": item_id,
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": content,
        **more,
    }


def refusal(words: str, *, item_id: str = "msg_1") -> Event:
    return message("", item_id=item_id, content=[{"type": "refusal", "refusal": words}])


def reasoning(*summaries: str, item_id: str = "rs_1", **more: Any) -> Event:
    return {
        "id": item_id,
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": text} for text in summaries],
        "encrypted_content": f"gAAAA-{item_id}",
        **more,
    }


def call(name: str, arguments: str, *, call_id: str, item_id: str | None = "fc_1") -> Event:
    return {
        "id": item_id,
        "type": "function_call",
        "status": "completed",
        "arguments": arguments,
        "call_id": call_id,
        "name": name,
    }


USAGE: Event = {
    "input_tokens": 328,
    "input_tokens_details": {"cached_tokens": 128},
    "output_tokens": 52,
    "output_tokens_details": {"reasoning_tokens": 40},
    "total_tokens": 380,
}


def response(status: str, output: Sequence[Event] = (), **more: Any) -> Event:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1754000000,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "gpt-5-2025-08-07",
        "output": list(output),
        "previous_response_id": None,
        "store": False,
        "usage": None,
        **more,
    }


def numbered(events: Iterator[Event]) -> list[Event]:
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def events_of(output: Sequence[Event], *, status: str = "completed", **more: Any) -> list[Event]:
    """A whole response; `more` are fields of the response in the last event."""
    return numbered(_events(output, status, {"usage": USAGE, **more}))


def _events(output: Sequence[Event], status: str, more: Event) -> Iterator[Event]:
    yield {"type": "response.created", "response": response("in_progress")}
    yield {"type": "response.in_progress", "response": response("in_progress")}
    for index, item in enumerate(output):
        yield from item_events(index, item)
    yield {"type": f"response.{status}", "response": response(status, output, **more)}


def item_events(index: int, item: Event) -> Iterator[Event]:
    """An item from `added` to `done`."""
    place = {"item_id": item.get("id"), "output_index": index}
    begun: Event = {**item, "status": "in_progress"}
    match item["type"]:
        case "message":
            begun["content"] = []
            inner = _message(item, place)
        case "reasoning":
            begun = {**item, "summary": [], "encrypted_content": "gAAAA-not-yet-all-of-it"}
            inner = _reasoning(item, place)
        case "function_call":
            begun["arguments"] = ""
            inner = _arguments("function_call_arguments", "arguments", item, place)
        case "custom_tool_call":
            begun["input"] = ""
            inner = _arguments("custom_tool_call_input", "input", item, place)
        case kind:
            stages = ("in_progress", "completed")
            inner = iter([{"type": f"response.{kind}.{stage}", **place} for stage in stages])
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    yield from inner
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _pieces(text: str) -> list[str]:
    return [text[start : start + FRAGMENT] for start in range(0, len(text), FRAGMENT)]


def _message(item: Event, place: Event) -> Iterator[Event]:
    for number, part in enumerate(item["content"]):
        field = "refusal" if part["type"] == "refusal" else "text"
        at = {**place, "content_index": number}
        kind = f"response.{part['type']}"
        yield {"type": "response.content_part.added", **at, "part": {**part, field: ""}}
        for piece in _pieces(part[field]):
            yield {"type": f"{kind}.delta", **at, "delta": piece, "obfuscation": "x7Yq"}
        yield {"type": f"{kind}.done", **at, field: part[field]}
        yield {"type": "response.content_part.done", **at, "part": part}


def _reasoning(item: Event, place: Event) -> Iterator[Event]:
    for number, part in enumerate(item.get("content") or ()):
        at = {**place, "content_index": number}
        for piece in _pieces(part["text"]):
            yield {"type": "response.reasoning_text.delta", **at, "delta": piece}
        yield {"type": "response.reasoning_text.done", **at, "text": part["text"]}
    for number, part in enumerate(item["summary"]):
        at = {**place, "summary_index": number}
        yield {"type": "response.reasoning_summary_part.added", **at, "part": {**part, "text": ""}}
        for piece in _pieces(part["text"]):
            delta = {"delta": piece, "obfuscation": "0Z"}
            yield {"type": "response.reasoning_summary_text.delta", **at, **delta}
        yield {"type": "response.reasoning_summary_text.done", **at, "text": part["text"]}
        yield {"type": "response.reasoning_summary_part.done", **at, "part": part}


def _arguments(kind: str, field: str, item: Event, place: Event) -> Iterator[Event]:
    for piece in _pieces(item[field]):
        yield {"type": f"response.{kind}.delta", **place, "delta": piece, "obfuscation": "aB"}
    yield {"type": f"response.{kind}.done", **place, field: item[field]}


def sse(events: Sequence[Event]) -> list[bytes]:
    """The events as they stand in the body."""
    return [
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))
        for event in events
    ]


def body(*output: Event, **more: Any) -> bytes:
    """The whole body of a response."""
    return b"".join(sse(events_of(output, **more)))
