"""Deferred tools: the model sees a name and a sentence, and asks for the definition.

A definition that is asked for is put into a message, behind everything that a prompt cache holds:
the tools of the request stay the same. Services that let a model call nothing but those get the
call through `internal.call_tool`, which is taken apart before anything judges it.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct
from pydantic import BeforeValidator, Field, ValidationError

from agent_core.errors import ErrorCode, ToolError
from agent_core.providers.requests import wire_name
from agent_core.text import estimate_text, fit_lines, shortened
from agent_core.text.content import content_hash
from agent_core.text.folding import fold
from agent_core.text.json_text import JsonObject
from agent_core.tools.base import Action, AskAgent, LoadedTexts, Tool, ToolAnswer, ToolContext, View
from agent_core.tools.registry import AnyCall, Renew, Toolbox, model_tool
from agent_core.tools.schema import Arguments
from agent_core.types import Access, Draft, NodeType, RunIdentity, ToolCall, user_text

if TYPE_CHECKING:
    from agent_core.tools.output import ExpectedOutput

FIND_TOOLS = "internal.find_tools"
CALL_TOOL = "internal.call_tool"

MOST_FOUND = 5
"""Most definitions that one search returns."""

_MOST_NAMED = 20
_SENTENCE_CHARS = 160
_SEARCHED_CHARS = 2000
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")
_WORD = re.compile(r"[^\W_]+")


class FindTools(Arguments):
    """Read the definitions of tools in the catalog; they follow the result."""

    query: str = Field(min_length=1, description="Names from the catalog, or words.")


def _read_json(given: object) -> object:
    """Parse a value that a model wrote as text in place of an object."""
    if isinstance(given, str):
        try:
            return json.loads(given)
        except (ValueError, RecursionError):
            return given
    return given


class CallTool(Arguments):
    """Call a tool whose definition you have read."""

    name: str
    arguments: Annotated[JsonObject, BeforeValidator(_read_json)] = Field(
        default_factory=JsonObject
    )


class Deferral(Struct, frozen=True):
    """The definitions that a run holds back, and how it reads them.

    Attributes:
        is_deferred: returns whether the definition of the tool of this name is held back.
        view: the run's own: definitions in it have been asked for.
        room: estimated tokens of the definitions that one search brings in.
    """

    is_deferred: Callable[[str], bool]
    view: View
    room: int


class DeferringToolbox(Toolbox):
    """A toolbox that holds some definitions back until they are asked for.

    Args:
        tools: all of the run's.
        deferral: the definitions that are held back.
        renew, deps, expected, run, ask_agent: see `Toolbox`.

    Attributes:
        own: the two tools that lead to those held back.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        deferral: Deferral,
        *,
        renew: Renew | None = None,
        deps: Any = None,
        expected: "ExpectedOutput | None" = None,
        run: RunIdentity | None = None,
        ask_agent: AskAgent | None = None,
    ) -> None:
        self._is_deferred = deferral.is_deferred
        self._loaded = LoadedTexts(deferral.view, NodeType.TOOL_CONTEXT, "name")
        self._room = deferral.room
        self.own = (self._find_tool(), _call_tool())
        super().__init__(
            tools, renew=renew, deps=deps, expected=expected, run=run, ask_agent=ask_agent
        )

    def take(self, tools: Iterable[Tool]) -> None:
        """Use these tools from now on, beside the two of its own."""
        super().take([*tools, *self.own])
        self._by_wire = {wire_name(name): name for name in self._tools}

    def offered(self) -> Iterable[Tool]:
        """Return the tools whose definitions are part of every request."""
        return [tool for tool in self._tools.values() if not self._is_deferred(tool.name)]

    def unwrap(self, call: AnyCall) -> AnyCall:
        """Return the call that `internal.call_tool` names, or the call itself."""
        if call.name != CALL_TOOL or "invalid_arguments" in call.metadata:
            return call
        try:
            meant = CallTool.model_validate(call.arguments)
        except ValidationError:
            return call  # the tool's own check reports the fault
        name = self._by_wire.get(meant.name, meant.name)
        return call.model_copy(update={"name": name, "arguments": meant.arguments})

    def resolve(self, call: ToolCall) -> tuple[Tool, Any]:
        """The tool a call means, and its arguments, checked and parsed.

        Raises:
            ToolError: as for every toolbox; `tool_not_available` too if the definition, as it is
                now, has not been asked for.
        """
        tool = self.get(call.name)
        if tool is not None and self._is_deferred(tool.name):
            shown = self._loaded.versions().get(tool.name)
            if shown != _version(tool):
                state = "has not been read yet" if shown is None else "has changed"
                raise ToolError(
                    ErrorCode.TOOL_NOT_AVAILABLE,
                    f"the definition of {tool.name} {state}: call {FIND_TOOLS} with"
                    f' {{"query": "{tool.name}"}} first, then call the tool again',
                    details={"tool_name": tool.name},
                )
        return super().resolve(call)

    def catalog(self, room: int) -> str:
        """List name and first sentence of each deferred tool; only the names if that is too long.

        Tools that do not fit into `room` estimated tokens either way are counted in the last line.
        """
        held_back = sorted((tool for tool in self if self._is_deferred(tool.name)), key=_name)
        lines = [
            f"- {wire_name(tool.name)}: {_first_sentence(tool)}".rstrip(": ") for tool in held_back
        ]
        if sum(estimate_text(line) + 1 for line in lines) > room:
            lines = [f"- {wire_name(tool.name)}" for tool in held_back]
        return fit_lines(lines, room)

    def _find_tool(self) -> Tool:
        async def prepare(arguments: FindTools, context: ToolContext, /) -> Action:
            access = Access(summary=arguments.query[:200])
            return Action(access, lambda: self._find(arguments.query, context.tool_call_id))

        return model_tool(FIND_TOOLS, FindTools, prepare)

    async def _find(self, query: str, tool_call_id: str) -> ToolAnswer:
        held_back = [tool for tool in self if self._is_deferred(tool.name)]
        async with self._loaded.in_order:
            found = await asyncio.to_thread(_search, query, held_back)
            if not found:
                raise ToolError(
                    ErrorCode.TOOL_NOT_AVAILABLE,
                    f"no tool of the catalog fits {shortened(query, 200)!r}; try other words, or a"
                    " name as the catalog has it",
                )
            chosen, adds = list[str](), list[Draft]()
            room = self._room
            for tool in found:
                text = _definition_text(tool)
                cost = estimate_text(text)
                if len(chosen) == MOST_FOUND or (chosen and cost > room):
                    break
                if cost > self._room:
                    message = f"the definition of {tool.name} takes {cost} tokens, too many to read"
                    raise ToolError(ErrorCode.TOOL_NOT_AVAILABLE, message)
                chosen.append(tool.name)
                room -= cost
                if self._loaded.add(tool.name, version := _version(tool)):
                    facts = {"name": tool.name, "hash": version, "tool_call_id": tool_call_id}
                    adds.append(user_text(text, NodeType.TOOL_CONTEXT, **facts))
        shown = list(map(wire_name, chosen))
        answer: JsonObject = {"tools": shown, "already_loaded": not adds}
        if rest := [wire_name(tool.name) for tool in found if tool.name not in chosen]:
            answer["other_matches"] = rest[:_MOST_NAMED]
        return ToolAnswer(answer, adds)


def _call_tool() -> Tool:
    async def prepare(arguments: CallTool, _: ToolContext, /) -> Action:
        message = f"{CALL_TOOL} calls a tool of the catalog, not {arguments.name}"
        raise ToolError(ErrorCode.VALIDATION_ERROR, message, details={"path": "$.name"})

    return model_tool(CALL_TOOL, CallTool, prepare)


def _name(tool: Tool) -> str:
    return tool.name


def _first_sentence(tool: Tool) -> str:
    text = tool.definition.description.strip()[:_SEARCHED_CHARS]
    return shortened(" ".join(_SENTENCE_END.split(text, maxsplit=1)[0].split()), _SENTENCE_CHARS)


def _definition_text(tool: Tool) -> str:
    definition = tool.definition
    facts = {"description": definition.description, "input_schema": definition.input_schema}
    return json.dumps({"name": wire_name(tool.name), **facts}, ensure_ascii=False)


def _version(tool: Tool) -> str:
    return content_hash(_definition_text(tool).encode("utf-8", "replace"))


def _search(query: str, tools: Iterable[Tool]) -> list[Tool]:
    """Return the matching tools, best first: those named, else those that share the most words."""
    words = set(_WORD.findall(fold(query)))
    named = set(query.replace(",", " ").split())

    def scored() -> Iterator[tuple[int, str, Tool]]:
        for tool in tools:
            if not named.isdisjoint((tool.name, wire_name(tool.name))):
                yield -1000, tool.name, tool
                continue
            text = fold(tool.definition.description[:_SEARCHED_CHARS])
            in_name = words.intersection(_WORD.findall(fold(tool.name)))
            score = 3 * len(in_name) + sum(word in text for word in words - in_name)
            if score:
                yield -score, tool.name, tool

    ranked = sorted(scored(), key=lambda entry: entry[:2])
    if ranked and ranked[0][0] == -1000:  # other words of a query that names tools are chance
        ranked = [entry for entry in ranked if entry[0] == -1000]
    return [tool for _, _, tool in ranked]
