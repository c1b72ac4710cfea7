"""A provider for runs that start other runs: each run plays the part its own message names."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_core.providers.scripted import (
    Answer,
    Calls,
    Reply,
    Says,
    ScriptedProvider,
)
from agent_core.types import (
    JsonBlock,
    ModelMessage,
    ModelRequest,
    ReplayResult,
    Role,
    TextBlock,
    ToolResultBlock,
    Usage,
)

Line = str | Reply | Answer


class Cast(ScriptedProvider):
    """Plays `parts`: a run gets the part whose name occurs in the message that began it.

    Every run with that name plays the part from its beginning.
    """

    def __init__(self, parts: Mapping[str, Sequence[Line]]) -> None:
        super().__init__(self._next_line)
        self.parts = parts
        self._playing: dict[str, Iterator[Line]] = {}

    async def called(self, times: int) -> None:
        """Return when the model has been called so often."""
        async with asyncio.timeout(5):
            while len(self.requests) < times:  # noqa: ASYNC110 - the parts are played elsewhere
                await asyncio.sleep(0.005)

    def _next_line(self, request: ModelRequest) -> Any:
        run_id = request.metadata["run_id"]
        if run_id not in self._playing:
            self._playing[run_id] = iter(self.parts[self._part(request)])
        line = next(self._playing[run_id])
        return line(request) if callable(line) else line

    def _part(self, request: ModelRequest) -> str:
        said = [
            text_of(message)
            for message in request.messages
            if message.role is Role.USER and not message.metadata.get("synthetic")
        ]
        return next(name for name in self.parts if name in said[-1])

    def requests_of(self, part: str) -> list[ModelRequest]:
        """Return the requests of the runs that play this part.

        What is asked between runs, to fill the memory, belongs to no run and plays no part.
        """
        first: dict[str, ModelRequest] = {}
        for request in self.requests:
            if "run_id" in request.metadata:
                first.setdefault(request.metadata["run_id"], request)
        playing = {run_id for run_id, request in first.items() if self._part(request) == part}
        return [r for r in self.requests if r.metadata.get("run_id") in playing]


def text_of(message: ModelMessage) -> str:
    """What a message says in words."""
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


def system_of(request: ModelRequest) -> str:
    """The whole system prompt."""
    return "\n".join(block.content for block in request.system)


def together(*calls: Calls) -> Calls:
    """Several calls in one turn."""
    return Calls(calls=[call for each in calls for call in each.calls])


def last_answers(request: ModelRequest) -> list[Any]:
    """The JSON of the tool results right before this request."""
    found: list[Any] = []
    for message in reversed(request.messages):
        if message.role is not Role.TOOL:
            if message.metadata.get("synthetic"):
                continue
            break
        results = [block for block in message.content if isinstance(block, ToolResultBlock)]
        parts = (part for result in results for part in result.content)
        found[:0] = [part.data for part in parts if isinstance(part, JsonBlock)]
    return found


def results(replay: ReplayResult, tool: str) -> list[ToolResultBlock]:
    """Every answer of this tool, in the order of the calls."""
    found = {result.tool_call_id: result for node in replay.nodes for result in node.results}
    return [
        found[call.tool_call_id]
        for node in replay.nodes
        for call in node.calls
        if call.name == tool
    ]


def data_of(result: ToolResultBlock) -> Any:
    """The JSON of an answer."""
    (block,) = result.content
    assert isinstance(block, JsonBlock), json.dumps(block.model_dump(mode="json"))
    return block.data


def says(text: str, tokens: int = 0) -> Says:
    """A reply with a known cost."""
    usage = Usage(input_tokens=tokens, output_tokens=tokens, total_tokens=2 * tokens)
    return Says(text=text, usage=usage)
