"""Responses and the events of their streams, as OpenAI's clients read them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_core.api import RunHandle
from agent_core.frontends.parts import Ended
from agent_core.providers import jsontext
from agent_core.serve.openai.errors import run_error
from agent_core.serve.openai.items import Begins, Change, Cites, Ends, Grows, Item
from agent_core.serve.streams import ServerEvent
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.types import ErrorPayload, RunStatus, Usage

_STATUS: Mapping[RunStatus, str] = {
    RunStatus.COMPLETED: "completed",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
}


def whole_response(
    run_id: str,
    echo: Mapping[str, JsonValue],
    items: Sequence[Item],
    ended: Ended,
    *,
    error: ErrorPayload | None = None,
) -> JsonObject:
    """Return a response.

    Args:
        run_id: its run.
        echo: the fields that repeat the request.
        items: its reply.
        ended: how the run has ended; with a status that is no end, it is in progress.
        error: of a failed run.
    """
    waits = ended.status is RunStatus.WAITING and items  # its question is in the reply
    return {
        **_fields(run_id, echo),
        "status": "completed" if waits else _STATUS.get(ended.status, "in_progress"),
        "output": [_output(run_id, at, item) for at, item in enumerate(items)],
        "error": _error(error) if ended.status is RunStatus.FAILED else None,
        "usage": _usage(ended.usage) if ended.status.is_terminal else None,
    }


def _fields(run_id: str, echo: Mapping[str, JsonValue]) -> JsonObject:
    return {
        "id": f"resp_{run_id}",
        "object": "response",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "parallel_tool_calls": True,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": True,
        "temperature": None,
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1,
        "truncation": "disabled",
        **echo,
    }


class ResponseEvents:
    """Writes the reply of a run as the events of a response.

    Args:
        handle: the run.
        echo: the fields that repeat the request.
    """

    def __init__(self, handle: RunHandle[Any], echo: Mapping[str, JsonValue]) -> None:
        self._handle = handle
        self._echo = echo
        self._number = 0
        self._items: list[Item] = []

    def begin(self) -> Iterator[ServerEvent]:
        """Yield the first events."""
        response = self._response("in_progress")
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def write(self, change: Change) -> Iterator[ServerEvent]:
        """Yield the events of a change."""
        match change:
            case Begins(is_thought):
                self._items.append(Item(is_thought))
                yield from self._begin_item()
            case Grows(text):
                self._items[-1].text += text
                yield self._grow(text)
            case Cites():
                yield self._cite(change)
            case Ends():
                yield from self._end_item()
            case Ended():
                yield from self._end(change)

    @property
    def _at(self) -> int:
        return len(self._items) - 1

    def _begin_item(self) -> Iterator[ServerEvent]:
        item = self._items[-1]
        shown = {**_output(self._handle.run_id, self._at, item), "status": "in_progress"}
        content = "summary" if item.is_thought else "content"
        yield self._event(
            "response.output_item.added", output_index=self._at, item={**shown, content: []}
        )
        kind = "reasoning_summary_part" if item.is_thought else "content_part"
        yield self._event(
            f"response.{kind}.added", **self._place(), part=_part(Item(item.is_thought))
        )

    def _grow(self, text: str) -> ServerEvent:
        if self._items[-1].is_thought:
            return self._event("response.reasoning_summary_text.delta", **self._place(), delta=text)
        return self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])

    def _cite(self, source: Cites) -> ServerEvent:
        item = self._items[-1]
        item.sources.append(source)
        return self._event(
            "response.output_text.annotation.added",
            **self._place(),
            annotation_index=len(item.sources) - 1,
            annotation=_annotation(source, item.text),
        )

    def _end_item(self) -> Iterator[ServerEvent]:
        item = self._items[-1]
        if item.is_thought:
            kind = "reasoning_summary_part"
            yield self._event(
                "response.reasoning_summary_text.done", **self._place(), text=item.text
            )
        else:
            kind = "content_part"
            yield self._event(
                "response.output_text.done", **self._place(), text=item.text, logprobs=[]
            )
        yield self._event(f"response.{kind}.done", **self._place(), part=_part(item))
        whole = _output(self._handle.run_id, self._at, item)
        yield self._event("response.output_item.done", output_index=self._at, item=whole)

    def _end(self, ended: Ended) -> Iterator[ServerEvent]:
        if ended.status in {RunStatus.COMPLETED, RunStatus.WAITING}:
            response = self._response("completed", ended)
            yield self._event("response.completed", response=response)
            return
        error = run_error(self._handle.error)
        yield self._event("error", **{**error, "error": error})
        response = self._response("failed", ended)
        response["error"] = {"code": error["code"], "message": error["message"]}
        yield self._event("response.failed", response=response)

    def _response(self, status: str, ended: Ended | None = None) -> JsonObject:
        run_id = self._handle.run_id
        return {
            **_fields(run_id, self._echo),
            "status": status,
            "output": [_output(run_id, at, item) for at, item in enumerate(self._items)],
            "usage": None if ended is None else _usage(ended.usage),
        }

    def _place(self) -> JsonObject:
        """Return the fields that name the part under way."""
        item = self._items[-1]
        index = "summary_index" if item.is_thought else "content_index"
        item_id = _item_id(self._handle.run_id, self._at, item)
        return {"item_id": item_id, "output_index": self._at, index: 0}

    def _event(self, kind: str, **fields: Any) -> ServerEvent:
        data = {**fields, "type": kind, "sequence_number": self._number}
        self._number += 1
        return ServerEvent(jsontext.dump_text(data), kind)


def _output(run_id: str, at: int, item: Item) -> JsonObject:
    item_id = _item_id(run_id, at, item)
    if item.is_thought:
        return {"id": item_id, "type": "reasoning", "summary": [_part(item)]}
    return {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [_part(item)],
    }


def _item_id(run_id: str, at: int, item: Item) -> str:
    return f"{'rs' if item.is_thought else 'msg'}_{run_id}_{at}"


def _part(item: Item) -> JsonObject:
    if item.is_thought:
        return {"type": "summary_text", "text": item.text}
    annotations = [_annotation(each, item.text) for each in item.sources]
    return {
        "type": "output_text",
        "text": item.text,
        "annotations": annotations,
        "logprobs": [],
    }


def _annotation(source: Cites, text: str) -> JsonObject:
    return {
        "type": "url_citation",
        "start_index": 0,
        "end_index": len(text),
        "url": source.url,
        "title": source.title,
    }


def _error(error: ErrorPayload | None) -> JsonObject:
    found = run_error(error)
    return {"code": found["code"], "message": found["message"]}


def _usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
