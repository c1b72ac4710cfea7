"""The data stream of the Vercel AI SDK: UI message stream protocol v1, over server-sent events.

`useChat` of the package `ai` posts its messages and reads this stream. No package is needed here.
"""

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, cast

from agent_core.aio import TaskStream
from agent_core.api.handles import RunHandle
from agent_core.errors import validation_error
from agent_core.frontends import parts
from agent_core.frontends.parts import Answered, Asked, Part
from agent_core.providers.requests import wire_name
from agent_core.text.json_text import JsonObject, table, tables
from agent_core.types import ContentBlock, ImageBlock, RunStatus, TextBlock, UserMessage, new_id

__all__ = ["HEADERS", "Chunk", "chunks", "read_chat", "stream"]

HEADERS: Mapping[str, str] = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "x-vercel-ai-ui-message-stream": "v1",
    "x-accel-buffering": "no",
}
"""Headers of the response."""

Chunk = dict[str, Any]
"""A chunk of the protocol, as JSON data."""

_DONE = "data: [DONE]\n\n"
_FINISHED = {
    RunStatus.COMPLETED: "stop",
    RunStatus.WAITING: "tool-calls",
    RunStatus.FAILED: "error",
}


def read_chat(body: object) -> Asked:
    """Read the JSON body that `useChat` posts.

    Texts, files given as data, calls of tools with their results, and answers to questions are
    read; system messages are not.

    Raises:
        AgentCoreError: `validation_error`: it is no such body, or there is no message of the user.
    """
    fields = table(body)
    thread_id, messages = fields.get("id"), fields.get("messages")
    if not isinstance(thread_id, str) or not isinstance(messages, list) or not messages:
        raise validation_error("the body has no id and messages of a chat")
    shown = [table(each) for each in cast("list[object]", messages)]
    history: list[Mapping[str, Any]] = []
    for each in shown[:-1]:
        history += _read_message(each)
    last = shown[-1]
    if last.get("role") == "user":
        message = UserMessage(content=[*_content_of(last)])
        return Asked(thread_id=thread_id, message=message, history=history)
    answers = [*_answers_in(last)]
    if not answers:
        raise validation_error("the last message is neither the user's nor answers a question")
    message_id = last.get("id")
    return Asked(
        thread_id=thread_id,
        history=[*history, *_read_message(last)],
        answers=answers,
        message_id=message_id if isinstance(message_id, str) else None,
    )


def chunks(handle: RunHandle[Any], *, message_id: str | None = None) -> AsyncGenerator[Chunk]:
    """Yield the chunks of a run's message from this call on; it may be left at any point.

    A run that waits for an answer asks for approval of its calls; the next body has the answers.

    Args:
        handle: the run.
        message_id: the id of the message; a fresh one by default. A run that continues after an
            answer continues the message with `Asked.message_id`.
    """
    return TaskStream(_chunks(handle, parts.read_parts(handle), message_id or new_id("msg")))


def stream(handle: RunHandle[Any], *, message_id: str | None = None) -> AsyncGenerator[str]:
    """Yield the chunks as server-sent events, for a response with `HEADERS`."""
    return TaskStream(_sent(chunks(handle, message_id=message_id)))


async def _sent(source: AsyncGenerator[Chunk]) -> AsyncGenerator[str]:
    async with aclosing(source) as found:
        async for chunk in found:
            yield f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"
    yield _DONE


async def _chunks(
    handle: RunHandle[Any], source: AsyncGenerator[Part], message_id: str
) -> AsyncGenerator[Chunk]:
    facts = {"run_id": handle.run_id, "session_id": handle.session_id}
    yield {"type": "start", "messageId": message_id, "messageMetadata": facts}
    async with aclosing(source) as found:
        async for part in found:
            for chunk in _written(part):
                yield chunk


def _written(part: Part) -> Iterator[Chunk]:  # noqa: C901 - one case for each part
    match part:
        case parts.StepBegins():
            yield {"type": "start-step"}
        case parts.StepEnds():
            yield {"type": "finish-step"}
        case parts.TextBegins(part_id, is_reasoning):
            yield {"type": f"{_kind(is_reasoning)}-start", "id": part_id}
        case parts.TextGrows(part_id, is_reasoning, text):
            yield {"type": f"{_kind(is_reasoning)}-delta", "id": part_id, "delta": text}
        case parts.TextEnds(part_id, is_reasoning):
            yield {"type": f"{_kind(is_reasoning)}-end", "id": part_id}
        case parts.SourceFound(url, title):
            yield {"type": "source-url", "sourceId": url, "url": url, "title": title or url}
        case parts.CallMade(call_id, name, arguments):
            call = {"toolCallId": call_id, "toolName": wire_name(name), "dynamic": True}
            yield {"type": "tool-input-start", **call}
            yield {"type": "tool-input-available", **call, "input": dict(arguments)}
        case parts.CallEnded(call_id, is_denied=True):
            yield {"type": "tool-output-denied", "toolCallId": call_id}
        case parts.CallEnded(call_id, is_error=True, text=text):
            error = {"toolCallId": call_id, "errorText": text, "dynamic": True}
            yield {"type": "tool-output-error", **error}
        case parts.CallEnded(call_id, output):
            yield {
                "type": "tool-output-available",
                "toolCallId": call_id,
                "output": output,
                "dynamic": True,
            }
        case parts.Question(request_id, call_id, _, summary):
            yield {
                "type": "tool-approval-request",
                "approvalId": request_id,
                "toolCallId": call_id,
                "approvalDescriptor": {"summary": summary},
            }
        case parts.Ended(status=RunStatus.CANCELLED):
            yield {"type": "abort", "reason": "the run was cancelled"}
        case parts.Ended(status, _, error, usage=usage):
            if status is RunStatus.FAILED:
                yield {"type": "error", "errorText": error}
            facts = {"usage": usage.model_dump(exclude={"raw_usage"})}
            reason = _FINISHED.get(status, "other")
            yield {"type": "finish", "finishReason": reason, "messageMetadata": facts}
        case parts.Waits() | parts.TasksChanged():
            pass


def _kind(is_reasoning: bool) -> str:
    return "reasoning" if is_reasoning else "text"


def _read_message(message: JsonObject) -> list[Mapping[str, Any]]:
    """Return a message of the page as messages for the option `history`."""
    if message.get("role") == "user":
        return [{"role": "user", "content": [*_content_of(message)]}]
    if message.get("role") != "assistant":
        return []
    found: list[Mapping[str, Any]] = []
    content: list[JsonObject] = []
    results: list[JsonObject] = []

    def end_step() -> None:
        if content:
            found.append({"role": "assistant", "content": [*content]})
        found.extend({"role": "user", "content": [result]} for result in results)
        content.clear()
        results.clear()

    for part in _parts_of(message):
        kind = part.get("type")
        if kind == "step-start":
            end_step()
        elif kind == "text" and isinstance(text := part.get("text"), str) and text:
            content.append({"type": "text", "text": text})
        elif isinstance(kind, str) and (kind == "dynamic-tool" or kind.startswith("tool-")):
            call_id, name = part.get("toolCallId"), part.get("toolName") or kind[len("tool-") :]
            call = {"type": "tool_use", "id": call_id, "name": name, "input": part.get("input")}
            content.append(call)
            if (result := _result_of(part)) is not None:
                results.append({"type": "tool_result", "tool_use_id": call_id, **result})
    end_step()
    return found


def _result_of(part: JsonObject) -> JsonObject | None:
    match part.get("state"):
        case "output-available":
            output = part.get("output")
            text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
            return {"content": text}
        case "output-error":
            return {"content": str(part.get("errorText") or ""), "is_error": True}
        case "output-denied":
            return {"content": "the user has not allowed this call", "is_error": True}
        case _:
            return None


def _content_of(message: JsonObject) -> Iterator[ContentBlock]:
    for part in _parts_of(message):
        match part:
            case {"type": "text", "text": str(text)}:
                yield TextBlock(text=text)
            case {"type": "file", "url": str(url), "mediaType": str(media_type)}:
                head, _, data = url.partition(",")
                if not (head.startswith("data:") and head.endswith(";base64")):
                    raise validation_error("a file of the message is not given as data")
                yield ImageBlock(mime_type=media_type, data=data)
            case _:
                pass


def _answers_in(message: JsonObject) -> Iterator[Answered]:
    for part in _parts_of(message):
        if part.get("state") != "approval-responded":
            continue
        match part.get("approval"):
            case {"id": str(request_id), "approved": bool(is_allowed), **rest}:
                reason = rest.get("reason")
                reason = reason if isinstance(reason, str) else None
                yield Answered.of(request_id, reason, is_allowed=is_allowed)
            case _:
                pass


def _parts_of(message: JsonObject) -> list[JsonObject]:
    return tables(message.get("parts"))
