"""`POST /v1/chat/completions`."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from time import time
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from agent_core.api import RunHandle
from agent_core.errors import AgentCoreError
from agent_core.frontends.parts import Ended
from agent_core.providers import jsontext
from agent_core.serve.bodies import holds_part, read_json
from agent_core.serve.openai.asked import (
    IMAGES,
    AgentBody,
    Effort,
    options_of,
    output_of,
    read_conversation,
    renamed,
)
from agent_core.serve.openai.errors import failed_run, run_error
from agent_core.serve.openai.items import (
    Begins,
    Change,
    Cites,
    Grows,
    Item,
    read_items,
    read_reply,
)
from agent_core.serve.openai.models import require_model
from agent_core.serve.request_runs import RequestRun, RunStream, until_left
from agent_core.serve.streams import ServerEvent
from agent_core.serve.visits import Visit, visit_of
from agent_core.text.json_text import JsonObject
from agent_core.types import RunStatus, Usage

_NAMES = {
    "output_type": "response_format",
    "history": "messages",
    "max_output_tokens": "max_completion_tokens",
    "reasoning": "reasoning_effort",
    "stop": "stop",
    "agent": "model",
}
_DONE = ServerEvent("[DONE]")
_BREAK = "\n\n"


class ChatBody(AgentBody):
    """A request for a chat completion."""

    messages: Annotated[list[JsonObject], Field(min_length=1)]
    max_tokens: Annotated[int, Field(gt=0)] | None = None
    max_completion_tokens: Annotated[int, Field(gt=0)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    reasoning_effort: Effort | None = None
    response_format: JsonObject | None = None
    verbosity: str | None = None
    prediction: Any = None
    n: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    logit_bias: Any = None
    logprobs: Any = None
    modalities: Any = None
    audio: Any = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None

    @property
    def stops(self) -> Sequence[str]:
        """The texts at which replies end."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or ()


async def complete(request: Request) -> ASGIApp:
    """Run an agent on a conversation, in a new session.

    Raises:
        HttpProblem: the request is refused.
        AgentCoreError: the run cannot be started.
    """
    visit = visit_of(request)
    visit.require("run")
    body = await read_json(request, ChatBody, holds_image=_holds_image)
    body.require_possible()
    await require_model(visit, body.model)
    if body.stream:
        return RunStream(visit, partial(_begin, visit, body))
    run = RequestRun(visit.console.streams)
    handle = await _start(visit, body, run)
    is_typed = _output_of(body) is not None
    items, ended = await until_left(request, run, read_reply(handle, is_typed=is_typed))
    if ended.status not in {RunStatus.COMPLETED, RunStatus.WAITING}:
        return failed_run(handle.error)
    return JSONResponse(_completion(handle, body, items, ended))


ROUTES = [Route("/v1/chat/completions", complete, methods=["POST"])]


async def _start(visit: Visit, body: ChatBody, run: RequestRun) -> RunHandle[Any]:
    said = read_conversation(body.messages, "messages", continues=False)
    options = options_of(
        body,
        said,
        effort=body.reasoning_effort,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        output=_output_of(body),
        seed=body.seed,
        stop=body.stops,
        metadata=body.metadata_of(),
    )
    try:
        run.handle = await visit.start(said.message, options=options)
    except AgentCoreError as error:
        raise renamed(error, _NAMES) from error
    return run.handle


async def _begin(visit: Visit, body: ChatBody, run: RequestRun) -> AsyncGenerator[ServerEvent]:
    handle = await _start(visit, body, run)
    changes = read_items(handle, is_typed=_output_of(body) is not None)
    writer = _Writer(handle, body)
    return _sent(changes, writer, run)


async def _sent(
    source: AsyncGenerator[Change], writer: "_Writer", run: RequestRun
) -> AsyncGenerator[ServerEvent]:
    yield writer.begin()
    async with aclosing(source) as changes:
        async for change in changes:
            run.is_over = isinstance(change, Ended)
            for event in writer.write(change):
                yield event


class _Writer:
    """Writes the reply of a run as chunks of a chat completion."""

    def __init__(self, handle: RunHandle[Any], body: ChatBody) -> None:
        options = body.stream_options
        self._handle = handle
        self._has_usage = options is not None and options.include_usage is True
        self._head = {**_head(handle, body), "object": "chat.completion.chunk"}
        self._is_thought = False
        self._lengths = {True: 0, False: 0}

    def begin(self) -> ServerEvent:
        """Return the first event."""
        return self._chunk({"role": "assistant", "content": ""})

    def write(self, change: Change) -> Iterator[ServerEvent]:
        """Yield the events of a change."""
        match change:
            case Begins(is_thought):
                self._is_thought = is_thought
                if self._lengths[is_thought]:
                    yield self._grow(_BREAK)
            case Grows(text):
                yield self._grow(text)
            case Cites():
                cited = _citation(change, self._lengths[False])
                yield self._chunk({"annotations": [cited]})
            case Ended():
                yield from self._end(change)
            case _:
                pass

    def _grow(self, text: str) -> ServerEvent:
        self._lengths[self._is_thought] += len(text)
        return self._chunk({"reasoning_content" if self._is_thought else "content": text})

    def _end(self, ended: Ended) -> Iterator[ServerEvent]:
        if ended.status not in {RunStatus.COMPLETED, RunStatus.WAITING}:
            error = {"error": run_error(self._handle.error)}
            yield ServerEvent(jsontext.dump_text(error), "error")
            return
        yield self._chunk({}, "stop")
        if self._has_usage:
            usage: JsonObject = {**self._head, "choices": [], "usage": _usage(ended.usage)}
            yield ServerEvent(jsontext.dump_text(usage))
        yield _DONE

    def _chunk(self, delta: JsonObject, finish_reason: str | None = None) -> ServerEvent:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        chunk: JsonObject = {**self._head, "choices": [choice]}
        if self._has_usage:
            chunk["usage"] = None
        return ServerEvent(jsontext.dump_text(chunk))


def _head(handle: RunHandle[Any], body: ChatBody) -> JsonObject:
    return {"id": f"chatcmpl-{handle.run_id}", "created": int(time()), "model": body.model}


def _completion(
    handle: RunHandle[Any], body: ChatBody, items: Sequence[Item], ended: Ended
) -> JsonObject:
    content, annotations = "", list[JsonObject]()
    for item in items:
        if not item.is_thought:
            content += f"{_BREAK if content else ''}{item.text}"
            annotations += [_citation(each, len(content)) for each in item.sources]
    thoughts = [item.text for item in items if item.is_thought]
    message: JsonObject = {
        "role": "assistant",
        "content": content,
        "refusal": None,
        "annotations": annotations,
    }
    if thoughts:
        message["reasoning_content"] = _BREAK.join(thoughts)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    head = {**_head(handle, body), "object": "chat.completion"}
    return {**head, "choices": [choice], "usage": _usage(ended.usage)}


def _citation(source: Cites, end: int) -> JsonObject:
    place = {"start_index": 0, "end_index": end, "url": source.url, "title": source.title}
    return {"type": "url_citation", "url_citation": place}


def _usage(usage: Usage) -> JsonObject:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _output_of(body: ChatBody) -> Any:
    return output_of(body.response_format, "response_format", nested=True)


def _holds_image(body: ChatBody) -> bool:
    return holds_part(body.messages, IMAGES)
