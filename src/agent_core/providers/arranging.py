"""Brings conversations into the form that a server accepts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, groupby
from operator import attrgetter, is_
from typing import Any, cast

from msgspec.structs import replace

from agent_core.providers.histories import DEMAND, HistoryForm, RoleOrder
from agent_core.providers.requests import images_label, images_of
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.types import (
    ContentBlock,
    ModelMessage,
    ModelRequest,
    Role,
    SystemBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)

_ORDERS: tuple[RoleOrder, ...] = ("free", "no_user_after_tool", "alternate")

_Make = Callable[..., list[ModelMessage]]
_Once = Callable[[_Make, Sequence[Any]], list[ModelMessage]]


class HistoryForms:
    """The forms that one server accepts, by model, and conversations brought into them.

    Args:
        usual: the form for models that have refused nothing yet.
    """

    def __init__(self, usual: HistoryForm) -> None:
        self._usual = usual
        self._known: dict[str, HistoryForm] = {}
        self._tried: dict[str, set[HistoryForm]] = {}
        self._kept: dict[Any, tuple[Sequence[Any], list[ModelMessage]]] = {}

    def of(self, model: str) -> HistoryForm:
        """Return the accepted form of a model."""
        return self._known.get(model, self._usual)

    def tries(self, details: Mapping[str, JsonValue], model: str) -> Iterator[None]:
        """Change the form as the details of a refusal demand, to each further form in turn.

        The form is the one before again when there is no further one. None is tried twice, so that
        refusals cannot alternate for ever.
        """
        demand = cast("JsonObject", details.get(DEMAND) or {})
        before = self.of(model)
        changes: list[JsonObject] = [demand] if demand else []
        if asked := demand.get("order"):
            least = max(_ORDERS.index(before.order) + 1, _ORDERS.index(asked))
            changes = [{"order": order} for order in _ORDERS[least:]]
        tried = self._tried.setdefault(model, {before})
        for change in changes:
            form = replace(before, **change)
            if form not in tried:
                tried.add(form)
                self._known[model] = form
                yield
                tried.remove(form)
        self._known[model] = before

    def arranged(self, request: ModelRequest, *, images_apart: bool = False) -> ModelRequest:
        """Return the request with its conversation in the form that its model accepts.

        Equal messages give the same objects in the next turn, so that they are written only once.

        Args:
            request: any request.
            images_apart: images of results belong into a message of the user after them.
        """
        form = self.of(request.model)
        if form.order == "free" and form.system_role:
            return request
        kept: dict[Any, tuple[Sequence[Any], list[ModelMessage]]] = {}

        def once(make: _Make, sources: Sequence[Any]) -> list[ModelMessage]:
            key = make, tuple(map(id, sources))
            found = self._kept.get(key)
            if found is None or not all(map(is_, found[0], sources)):
                found = sources, make(*sources)
            kept[key] = found
            return found[1]

        turns, system = list(request.messages), request.system
        if system and not form.system_role:
            first = turns[:1] if turns and turns[0].role is Role.USER else []
            turns[: len(first)] = once(_with_system, [*first, *system])
            system = []
        if form.order != "free":
            turns = _joined(turns, once)
            if images_apart:
                apart = (
                    once(_without_images, [turn]) if _shows(turn) else [turn] for turn in turns
                )
                turns = _joined(chain.from_iterable(apart), once)
            if form.order == "alternate":
                turns = _with_single_calls(turns, once)
            turns = _bridged(turns)
        self._kept = kept
        return request.model_copy(update={"messages": turns, "system": system})


def _with_system(*parts: ModelMessage | SystemBlock) -> list[ModelMessage]:
    words = [part.content for part in parts if isinstance(part, SystemBlock) and part.content]
    content: list[ContentBlock] = [TextBlock(text="\n\n".join(words))] if words else []
    for part in parts:
        if isinstance(part, ModelMessage):
            content += part.content
    return [ModelMessage(role=Role.USER, content=content)] if content else []


def _shows(message: ModelMessage) -> bool:
    return any(isinstance(each, ToolResultBlock) and images_of(each) for each in message.content)


def _without_images(message: ModelMessage) -> list[ModelMessage]:
    """Return the results without their images, and a message of the user with those."""
    results: list[ContentBlock] = []
    shown: list[ContentBlock] = []
    for block in message.content:
        if isinstance(block, ToolResultBlock) and (images := images_of(block)):
            shown += [TextBlock(text=images_label(block)), *images]
            words = [each for each in block.content if each not in images]
            block = block.model_copy(update={"content": words})
        results.append(block)
    return [
        message.model_copy(update={"content": results}),
        ModelMessage(role=Role.USER, content=shown),
    ]


def _joined(turns: Iterable[ModelMessage], once: _Once) -> list[ModelMessage]:
    """Return the conversation with neighbours of one role as one message."""
    joined: list[ModelMessage] = []
    for _, neighbours in groupby(turns, attrgetter("role")):
        same = list(neighbours)
        joined += same if len(same) == 1 else once(_join, same)
    return joined


def _join(*messages: ModelMessage) -> list[ModelMessage]:
    content: list[ContentBlock] = []
    for message in messages:
        is_prose = bool(content) and isinstance(content[-1], TextBlock)
        if message.role is Role.ASSISTANT and is_prose:
            content.append(TextBlock(text="\n\n"))
        content += message.content
    return [ModelMessage(role=messages[0].role, content=content)]


def _with_single_calls(turns: Sequence[ModelMessage], once: _Once) -> list[ModelMessage]:
    """Return the conversation with calls made side by side as calls made one after the other."""
    single: list[ModelMessage] = []
    for turn in turns:
        if turn.role is Role.TOOL and single and single[-1].role is Role.ASSISTANT:
            single += once(_one_by_one, [single.pop(), turn])
        else:
            single.append(turn)
    return single


def _one_by_one(answer: ModelMessage, results: ModelMessage) -> list[ModelMessage]:
    by_id = {
        block.tool_call_id: block for block in results.content if isinstance(block, ToolResultBlock)
    }
    calls = [block for block in answer.content if isinstance(block, ToolCallBlock)]
    if len(calls) < 2 or {call.tool_call_id for call in calls} != by_id.keys():
        return [answer, results]
    single: list[ModelMessage] = []
    said: list[ContentBlock] = []
    for block in answer.content:
        said.append(block)
        if isinstance(block, ToolCallBlock):
            if block is calls[-1]:
                said += answer.content[answer.content.index(block) + 1 :]
            single += [
                ModelMessage(role=Role.ASSISTANT, content=said),
                ModelMessage(role=Role.TOOL, content=[by_id[block.tool_call_id]]),
            ]
            said = []
            if block is calls[-1]:
                break
    return single


def _bridged(turns: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Return the conversation with the messages that its order needs, but does not have."""
    bridged: list[ModelMessage] = []
    for turn in turns:
        if not bridged and turn.role is not Role.USER:
            bridged.append(_added(Role.USER, "(The conversation continues.)"))
        if turn.role is Role.USER and bridged and bridged[-1].role is Role.TOOL:
            bridged.append(_added(Role.ASSISTANT, "Understood."))
        bridged.append(turn)
    if bridged and bridged[-1].role is Role.ASSISTANT:
        bridged.append(_added(Role.USER, "Continue."))
    return bridged


@cache  # the same object each time, so that it is written only once
def _added(role: Role, text: str) -> ModelMessage:
    return ModelMessage(role=role, content=[TextBlock(text=text)])
