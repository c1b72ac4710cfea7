"""A Responses service that stores nothing and refuses what OpenAI's refuses.

    async with ModelServer(ResponsesService([reasoning("…"), call(…)], [message("…")])) as server:

Each request takes the next output. The service remembers what it has issued: an item that comes
back must be one of its own, as it was, in the company it needs.
"""

import json
from collections.abc import Sequence
from typing import Any

import orjson

from model_server import Received, Reply, Sends, Status
from responses_events import Event, body

_FIELDS = {
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "model",
    "parallel_tool_calls",
    "reasoning",
    "store",
    "stream",
    "text",
    "tool_choice",
    "tools",
    "temperature",
}
_ITEM_FIELDS = {
    "message": {"type", "role", "content", "id", "status", "phase"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content", "status"},
    "function_call": {"type", "id", "call_id", "name", "arguments", "status"},
    "function_call_output": {"type", "id", "call_id", "output", "status"},
    "web_search_call": {"type", "id", "status", "action"},
}
_PART_FIELDS = {
    "input_text": {"type", "text"},
    "input_image": {"type", "image_url", "detail"},
    "output_text": {"type", "text", "annotations"},
}
_TOOL_FIELDS = {"type", "name", "description", "parameters", "strict"}


class RefusalError(Exception):
    """What the service has against a request."""


def demand(claim: object, words: str) -> None:
    if not claim:
        raise RefusalError(words)


class ResponsesService:
    """Answers with the outputs in their order."""

    def __init__(self, *outputs: Sequence[Event]) -> None:
        self.more: list[Event] = []
        """Fields of the first responses, beside their outputs."""
        self._outputs = list(outputs)
        self._issued: dict[str, Event] = {}
        self._model: dict[str, str] = {}
        self._needs: dict[str, str] = {}  # the reasoning that led to an item, by the item's id

    def __call__(self, asked: Received) -> Reply:
        try:
            self._judge(asked)
            demand(self._outputs, "the script is used up")
        except RefusalError as refusal:
            error = {"message": str(refusal), "type": "invalid_request_error", "param": "input"}
            return Status(400, orjson.dumps({"error": error}))
        output = self._outputs.pop(0)
        thought = None
        for item in output:
            item_id = str(item["id"])
            self._issued[item_id] = item
            self._model[item_id] = asked.body["model"]
            if item["type"] == "reasoning":
                thought = item_id
            elif thought:
                self._needs[item_id] = thought
        more = self.more.pop(0) if self.more else {}
        return Sends(body(*output, **more))

    def _judge(self, asked: Received) -> None:
        sent = asked.body
        demand(asked.path == "/v1/responses", "no such path")
        for field in sent.keys() - _FIELDS:
            raise RefusalError(f"Unknown parameter: '{field}'.")
        demand(sent["stream"] is True, "this service streams")
        demand(sent["store"] is False, "this service stores nothing")
        demand(sent["include"] == ["reasoning.encrypted_content"], "nothing could go back")
        demand(sent["max_output_tokens"] >= 16, "integer_below_min_value")
        is_reasoning = sent.get("reasoning", {}).get("effort", "medium") != "none"
        demand(
            "temperature" not in sent or not is_reasoning,
            "Unsupported parameter: 'temperature' is not supported with this model.",
        )
        for tool in sent.get("tools", ()):
            demand(tool.keys() == _TOOL_FIELDS, "Missing required parameter: 'tools[0].strict'")
            demand(tool["strict"] is False and tool["type"] == "function", "invalid_type")
        self._judge_items(sent["input"], sent["model"])

    def _judge_items(self, items: list[Event], model: str) -> None:
        demand(items, "One of 'input' or 'prompt' must be provided.")
        waiting: list[str] = []
        thoughts: set[str] = set()
        for number, item in enumerate(items):
            where = f"input[{number}]"
            known = _ITEM_FIELDS.get(item["type"])
            demand(known is not None, f"Invalid value: '{item['type']}' at {where}")
            for field in item.keys() - (known or set()):
                raise RefusalError(f"Unknown parameter: '{where}.{field}'.")
            own_model = self._model.get(item.get("id", ""), model)
            demand(own_model == model, "The encrypted content could not be verified.")
            self._judge_own(item, items[number + 1 :], thoughts)
            match item["type"]:
                case "message":
                    demand(not waiting, f"No tool output found for function call {waiting}.")
                    _judge_content(item, where)
                case "function_call":
                    demand(len(item["call_id"]) <= 64, "string_above_max_length")
                    json.loads(item["arguments"])
                    waiting.append(item["call_id"])
                case "function_call_output":
                    call_id = item["call_id"]
                    demand(
                        call_id in waiting,
                        f"No tool call found for function call output with call_id {call_id}.",
                    )
                    waiting.remove(call_id)
                    _judge_output(item["output"], where)
                case _:
                    pass
        demand(not waiting, f"No tool output found for function call {waiting}.")

    def _judge_own(self, item: Event, later: list[Event], thoughts: set[str]) -> None:
        """An item with an id is one that was issued, beside the reasoning it came with."""
        item_id = item.get("id")
        if item_id is None:
            demand(item["type"] != "reasoning", "Missing required parameter: 'id'.")
            return
        issued = self._issued.get(item_id)
        demand(issued, f"Item with id '{item_id}' not found. Items are not persisted.")
        assert issued is not None
        need = self._needs.get(item_id)
        demand(
            need is None or need in thoughts,
            f"Item '{item_id}' of type '{item['type']}' was provided without its required "
            f"'reasoning' item: '{need}'.",
        )
        if item["type"] == "reasoning":
            thoughts.add(item_id)
            same = item.get("encrypted_content") == issued["encrypted_content"]
            demand(same, f"The encrypted content for item {item_id} could not be verified.")
            demand(item["summary"] == issued["summary"], "the summary is another one")
            follower = later[0] if later else {}
            is_followed = follower.get("role") != "user" and "output" not in follower and follower
            demand(is_followed, f"'{item_id}' was provided without its required following item.")
        elif item["type"] == "message":
            said = [part["text"] for part in item["content"]]
            demand(said == [part["text"] for part in issued["content"]], "other words")
            demand(item.get("phase") == issued.get("phase"), "another phase")
        elif item["type"] == "function_call":
            demand(item["call_id"] == issued["call_id"], "another call_id")


def _judge_content(item: Event, where: str) -> None:
    content: Any = item["content"]
    if isinstance(content, str):
        demand(content, f"{where} is empty")
        return
    wanted = {"output_text"} if item["role"] == "assistant" else {"input_text", "input_image"}
    demand(item["role"] == "user" or "id" in item, f"Missing required parameter: '{where}.id'.")
    _judge_parts(content, wanted, where)


def _judge_output(output: Any, where: str) -> None:
    if not isinstance(output, str):
        _judge_parts(output, {"input_text", "input_image"}, where)


def _judge_parts(parts: list[Event], wanted: set[str], where: str) -> None:
    demand(parts, f"{where} is empty")
    for part in parts:
        demand(part["type"] in wanted, f"Invalid value: '{part['type']}' at {where}")
        demand(part.keys() == _PART_FIELDS[part["type"]], f"Unknown parameter in {where}")
        url = part.get("image_url", "data:image/")
        demand(url.startswith("data:image/"), f"Invalid '{where}.image_url'.")
