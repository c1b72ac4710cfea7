"""What is sent over Responses, byte by byte, and which protocol a server is spoken to in."""

import json
from typing import Any

import orjson
import pytest

from agent_core.config.models import ModelConfig
from agent_core.errors import ErrorCode, ProviderError
from agent_core.providers.base import ProviderRegistry
from agent_core.providers.chat_completions import OpenAIProvider
from agent_core.providers.responses import OpenAIResponsesProvider
from agent_core.types import (
    ImageBlock,
    ModelCompleted,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    ModelRetry,
    ReasoningBlock,
    Role,
    SystemBlock,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
)
from model_server import ModelServer, Received, Reply, Sends, Status
from responses_events import Event, body, call, message, reasoning
from tables import together
from wire_conversation import HISTORY, PICTURED, SYSTEM, TOOLS

HELLO = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])


class Service:
    """A Responses service on a socket, and an adapter that speaks to it."""

    def __init__(self, *replies: Reply, model: str = "m", **settings: Any) -> None:
        self.server = ModelServer(replies or (lambda _: "ok"))
        self.model = model
        self._settings = settings
        self.events: list[ModelEvent] = []

    async def ask(self, *requests: ModelRequest) -> list[Received]:
        async with self.server as server:
            settings = {"name": self.model, **server.settings("responses"), **self._settings}
            adapter = ProviderRegistry().create(ModelConfig.model_validate(settings))
            for request in requests:
                self.events += [event async for event in adapter.stream(request)]
            await adapter.close()
        return self.server.requests

    async def body(self, **more: Any) -> dict[str, Any]:
        [received] = await self.ask(asked(model=self.model, **more))
        return received.body

    @property
    def replies(self) -> list[ModelCompleted]:
        return [event for event in self.events if isinstance(event, ModelCompleted)]


def asked(*messages: ModelMessage, model: str = "m", **more: Any) -> ModelRequest:
    return ModelRequest(model=model, messages=list(messages) or [HELLO], **more)


def answered(reply: ModelCompleted) -> list[ModelMessage]:
    results = [ToolResultBlock(tool_call_id=each.tool_call_id) for each in reply.tool_calls]
    answer = ModelMessage(role=Role.ASSISTANT, content=reply.content)
    return [HELLO, answer, ModelMessage(role=Role.TOOL, content=list(results))]


ANSWER = (
    'first line\n{"a":[null,true],"z":1}\n[complete in artifact art_1]\n'
    "[kept as artifact art_2: 2 MB of log]"
)
WHOLE: dict[str, Any] = {
    "include": ["reasoning.encrypted_content"],
    "instructions": "You are careful.\n\nYou are brief.\n\nToday: tasks.",
    "max_output_tokens": 100,
    "model": "m",
    "store": False,
    "stream": True,
    "temperature": 0.5,
    "tools": [
        {
            "description": "List a directory.",
            "name": "code__list_dir",
            "parameters": {"properties": {}, "type": "object"},
            "strict": False,
            "type": "function",
        },
        {
            "description": "Read a file.",
            "name": "code__read_file",
            "parameters": {
                "properties": {"path": {"type": "string"}},
                "required": ["path"],
                "type": "object",
            },
            "strict": False,
            "type": "function",
        },
    ],
    "input": [
        {
            "content": [
                {"text": "What is this?", "type": "input_text"},
                {
                    "detail": "auto",
                    "image_url": "data:image/png;base64,iVBORw0KGgo=",
                    "type": "input_image",
                },
            ],
            "role": "user",
            "type": "message",
        },
        {"content": "I will look.", "role": "assistant", "type": "message"},
        {
            "arguments": '{"a":1,"path":"b"}',
            "call_id": "call_1",
            "name": "code__read_file",
            "type": "function_call",
        },
        {
            "arguments": "{}",
            "call_id": "functions.x:1",
            "name": "code__list_dir",
            "type": "function_call",
        },
        {"call_id": "call_1", "output": ANSWER, "type": "function_call_output"},
        {
            "call_id": "functions.x:1",
            "output": "error permission_denied: the user said no",
            "type": "function_call_output",
        },
        {"content": "Go on, � \x00 end.", "role": "user", "type": "message"},
    ],
}


async def test_a_conversation_of_other_providers_is_sent_exactly_like_this() -> None:
    """Nothing of their reasoning, no ids that are not of this protocol."""
    service = Service(max_output_tokens=100)
    [received] = await service.ask(asked(*HISTORY, system=SYSTEM, tools=TOOLS, temperature=0.5))

    assert received.path == "/v1/responses"
    assert json.dumps(received.body, indent=1) == json.dumps(WHOLE, indent=1)


OWN: list[Event] = [
    reasoning("I look.", item_id="rs_1"),
    message("Let me see.", item_id="msg_1", phase="commentary"),
    call("code__read_file", '{"path":"a"}', call_id="call_1", item_id="fc_1"),
    call("code__list_dir", "{}", call_id="call_2", item_id="fc_2"),
]
IMAGE = ImageBlock(mime_type="image/png", data="iVBORw0KGgo=")
RETURNED: list[Event] = [
    {"content": "hello", "role": "user", "type": "message"},
    {
        "encrypted_content": "gAAAA-rs_1",
        "id": "rs_1",
        "summary": [{"text": "I look.", "type": "summary_text"}],
        "type": "reasoning",
    },
    {
        "content": [{"annotations": [], "text": "Let me see.", "type": "output_text"}],
        "id": "msg_1",
        "phase": "commentary",
        "role": "assistant",
        "status": "completed",
        "type": "message",
    },
    {
        "arguments": '{"path":"a"}',
        "call_id": "call_1",
        "id": "fc_1",
        "name": "code__read_file",
        "type": "function_call",
    },
    {
        "arguments": "{}",
        "call_id": "call_2",
        "id": "fc_2",
        "name": "code__list_dir",
        "type": "function_call",
    },
    {"call_id": "call_1", "output": "", "type": "function_call_output"},
    {"call_id": "call_2", "output": "", "type": "function_call_output"},
]


async def test_an_own_reply_goes_back_exactly_like_this() -> None:
    service = Service(Sends(body(*OWN)), "ok")
    async with service.server as server:
        config = ModelConfig(name="m", **server.settings("responses"))
        adapter = ProviderRegistry().create(config)
        reply = [event async for event in adapter.stream(asked(tools=TOOLS))][-1]
        assert isinstance(reply, ModelCompleted)
        async for _ in adapter.stream(asked(*answered(reply), tools=TOOLS)):
            pass
        await adapter.close()

    assert json.dumps(server.requests[1].body["input"], indent=1) == json.dumps(RETURNED, indent=1)
    assert "previous_response_id" not in server.requests[1].text


async def test_pictures_in_results_stand_in_the_result() -> None:
    [received] = await Service().ask(asked(*PICTURED))
    picture = {
        "detail": "auto",
        "image_url": "data:image/png;base64,iVBORw0KGgo=",
        "type": "input_image",
    }

    assert received.body["input"][-2:] == [
        {
            "call_id": "call_1",
            "output": [{"text": "a chart", "type": "input_text"}, picture],
            "type": "function_call_output",
        },
        {
            "call_id": "call_2",
            "output": [{"text": "error internal_error: half of it", "type": "input_text"}, picture],
            "type": "function_call_output",
        },
    ]


async def returned(*output: Event, clean: bool = False, model: str = "m") -> list[Event]:
    """The items of a reply as they go back in the next request."""
    async with ModelServer([Sends(body(*output)), "ok"]) as server:
        adapter = ProviderRegistry().create(ModelConfig(name="m", **server.settings("responses")))
        reply = [event async for event in adapter.stream(asked(tools=TOOLS))][-1]
        assert isinstance(reply, ModelCompleted)
        if clean:  # as a redaction leaves it
            content = [
                each.model_copy(update={"metadata": {"provider": "openai", "model": "m"}})
                if isinstance(each, ReasoningBlock)
                else each
                for each in reply.content
            ]
            reply = reply.model_copy(update={"content": content})
        async for _ in adapter.stream(asked(*answered(reply), model=model)):
            pass
        await adapter.close()
    items: list[Event] = server.requests[1].body["input"][1:]
    return [item for item in items if item["type"] != "function_call_output"]


async def test_without_its_reasoning_a_reply_goes_back_without_ids() -> None:
    whole = [*OWN, reasoning("More.", item_id="rs_2")]
    for items in (
        await returned(*whole, clean=True),
        await returned(*whole, model="another"),
        await returned(reasoning("Old.", item_id="rs_0", encrypted_content=None), *OWN),
    ):
        assert all("id" not in item for item in items if item["type"] != "reasoning")
        assert [item["type"] for item in items if item["type"] != "reasoning"] == [
            "message",
            "function_call",
            "function_call",
        ]


async def test_another_model_gets_words_and_calls_alone() -> None:
    items = await returned(*OWN, model="another")

    assert [item["type"] for item in items] == ["message", "function_call", "function_call"]
    assert items[0] == {"content": "Let me see.", "role": "assistant", "type": "message"}


async def test_reasoning_that_led_to_nothing_does_not_go_back() -> None:
    more = [reasoning("More.", item_id="rs_2"), reasoning("And more.", item_id="rs_3")]

    assert await returned(*more) == []
    assert [item["id"] for item in await returned(*OWN, *more)] == [each["id"] for each in OWN]


async def test_the_shortest_answer_is_one_that_may_be_asked_for() -> None:
    assert (await Service(max_output_tokens=3).body())["max_output_tokens"] == 16


async def test_thoughts_in_the_open_go_back_too() -> None:
    content = [{"type": "reasoning_text", "text": "I look."}]
    thought = reasoning(content=content, encrypted_content=None)

    assert (await returned(thought, *OWN[2:]))[0] == {
        "content": content,
        "id": "rs_1",
        "summary": [],
        "type": "reasoning",
    }


@together(
    "item",
    [
        {"type": "web_search_call", "status": "completed", "action": {"q": "x"}},
        {"type": "image_generation_call", "status": "completed", "result": "iVBORw0KGgo="},
        {"type": "tool_search_call", "execution": "server", "arguments": {}, "status": "completed"},
        {"type": "tool_search_output", "execution": "server", "tools": []},
        {"type": "program", "call_id": "c", "code": "1", "fingerprint": "gAAA"},
        {"type": "program_output", "call_id": "c", "result": "1", "status": "completed"},
    ],
    ids=lambda item: item["type"],
)
async def test_an_item_of_the_services_own_tools_goes_back_as_it_came(item: Event) -> None:
    item = {"id": "own_1", **item}

    items = await returned(OWN[0], item, message("Found.", item_id="msg_2"))

    assert items[1] == item
    assert [item.get("id") for item in items] == ["rs_1", "own_1", "msg_2"]


async def test_a_search_that_a_client_is_to_make_does_not_go_back() -> None:
    search: Event = {
        "id": "ts_1",
        "type": "tool_search_call",
        "execution": "client",
        "arguments": {},
    }

    items = await returned(OWN[0], search, message("Found.", item_id="msg_2"))

    assert "ts_1" not in [item.get("id") for item in items]


async def test_where_the_tool_of_a_call_is_from_goes_back() -> None:
    own = {"namespace": "crm", "caller": {"type": "program", "caller_id": "c"}}
    found = call("code__list_dir", "{}", call_id="call_1") | own

    [item] = await returned(found)

    assert item == {**own, **{key: found[key] for key in ("id", "type", "call_id", "name")}} | {
        "arguments": "{}"
    }
    [item] = await returned(found, model="another")
    assert item.keys().isdisjoint({*own, "id"})


async def test_signed_reasoning_of_other_makers_goes_back() -> None:
    content = [{"type": "reasoning_text", "text": "I look."}]
    own: Event = {"format": "anthropic-claude-v1", "signature": "c2ln", "content": content}
    thought = reasoning(encrypted_content=None, **own)

    assert (await returned(thought, *OWN[2:]))[0] == {
        **own,
        "id": "rs_1",
        "summary": [],
        "type": "reasoning",
    }


async def test_two_messages_of_one_reply_have_not_one_id() -> None:
    later = message("And now?", item_id="msg_9")

    items = await returned(*OWN, later)

    ids = [item["id"] for item in items if "id" in item]
    assert len(ids) == len(set(ids))
    assert [item.get("id") for item in items if item["type"] == "message"] == ["msg_1", None]


async def test_a_phase_is_kept_without_reasoning_too() -> None:
    said = [
        message("Looking.", item_id="msg_1", phase="commentary"),
        message("There.", item_id="msg_2", phase="final_answer"),
    ]

    assert [(item["id"], item["phase"]) for item in await returned(*said)] == [
        ("msg_1", "commentary"),
        ("msg_2", "final_answer"),
    ]


async def test_ids_that_are_too_long_are_shortened_alike_in_call_and_result() -> None:
    long = "functions." + "x" * 100
    block = ToolCallBlock(tool_call_id=long, name="code.list_dir")
    result = ToolResultBlock(tool_call_id=long, content=[TextBlock(text="r")])
    [received] = await Service().ask(
        asked(
            ModelMessage(role=Role.ASSISTANT, content=[block]),
            ModelMessage(role=Role.TOOL, content=[result]),
        )
    )

    first, second = received.body["input"]
    assert first["call_id"] == second["call_id"]
    assert len(first["call_id"]) == 64


async def test_the_next_turn_begins_with_the_same_bytes() -> None:
    reply = ModelMessage(role=Role.ASSISTANT, content=[TextBlock(text="done")])
    first, second, again = await Service().ask(
        asked(*HISTORY, system=SYSTEM, tools=TOOLS),
        asked(*HISTORY, reply, system=SYSTEM, tools=TOOLS),
        asked(*HISTORY, system=SYSTEM, tools=TOOLS),
    )

    assert second.raw.startswith(first.raw.removesuffix(b"]}"))
    assert first.raw == again.raw


async def test_strict_tools_are_those_whose_schema_is() -> None:
    schema: Event = {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }
    tools = [ToolDefinition(name="a", description="", input_schema=schema), TOOLS[1]]

    found = await Service(compat={"strict_tools": True}).body(tools=tools)

    assert [tool["strict"] for tool in found["tools"]] == [True, False]


@together(
    ("choice", "expected"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("code.list_dir", {"type": "function", "name": "code__list_dir"}),
    ],
)
async def test_the_choice_of_tools_is_said(choice: str, expected: object) -> None:
    found = await Service().body(tools=TOOLS, tool_choice=choice)

    assert found["tool_choice"] == expected


async def test_there_are_no_instructions_without_a_system_prompt() -> None:
    assert "instructions" not in await Service().body()
    empty = SystemBlock(block_id="1", source="x", content="")
    assert "instructions" not in await Service().body(system=[empty])


@together(
    ("settings", "expected"),
    [
        ({}, None),
        ({"reasoning": "low"}, {"effort": "low", "summary": "auto"}),
        ({"reasoning": "none"}, {"effort": "none"}),
        (
            {"provider_options": {"openai": {"reasoning": {"summary": "detailed"}}}},
            {"summary": "detailed"},
        ),
        (
            {
                "reasoning": "low",
                "provider_options": {"openai": {"reasoning_effort": "minimal"}},
            },
            {"effort": "minimal", "summary": "auto"},
        ),
    ],
)
async def test_reasoning_is_asked_for_as_it_is_set(
    settings: dict[str, Any], expected: Event | None
) -> None:
    found = await Service(temperature=0.5, **settings).body()

    assert found.get("reasoning") == expected
    is_on = (expected or {}).get("effort", "none") != "none"
    assert ("temperature" in found) is not is_on


@together("model", ["gpt-4o", "gpt-4.1-mini", "gpt-4-turbo", "gpt-3.5-turbo"])
async def test_models_that_do_not_reason_are_not_asked_for_their_reasoning(model: str) -> None:
    assert "include" not in await Service(model=model).body()


async def test_options_have_one_name_for_both_protocols() -> None:
    schema = {"type": "object"}
    wanted = {"name": "answer", "schema": schema, "strict": True}
    options = {
        "verbosity": "low",
        "response_format": {"type": "json_schema", "json_schema": wanted},
        "store": True,
        "extra_body": {"vendor": 1},
        "headers": {"X-Team": "red"},
    }
    [received] = await Service(provider_options={"openai": options}).ask(asked())

    found = received.body
    assert found["text"] == {"verbosity": "low", "format": {"type": "json_schema", **wanted}}
    assert (found["store"], found["vendor"]) == (True, 1)
    assert received.headers["x-team"] == "red"


@together(
    ("api", "options", "cure"),
    [
        ("responses", {"seed": 7}, 'api = "chat"'),
        ("responses", {"logit_bias": {}}, 'api = "chat"'),
        ("chat", {"truncation": "auto"}, 'api = "responses"'),
        ("chat", {"reasoning": {}}, 'api = "responses"'),
        ("responses", {"previous_response_id": "resp_1"}, "known:"),
        ("responses", {"extra_body": {"input": []}}, "must not set"),
    ],
)
async def test_what_the_protocol_does_not_have_is_refused_with_the_cure(
    api: str, options: dict[str, Any], cure: str
) -> None:
    service = Service(api=api, provider_options={"openai": options})

    with pytest.raises(ProviderError, match=cure) as caught:
        await service.ask(asked())
    assert caught.value.code is ErrorCode.UNSUPPORTED_CAPABILITY
    assert service.server.requests == []


async def test_stop_sequences_are_refused_with_the_cure() -> None:
    with pytest.raises(ProviderError, match='api = "chat"'):
        await Service().ask(asked(stop=["END"]))


def refused(message: str, param: str) -> Status:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    return Status(400, orjson.dumps({"error": error}))


@together(
    ("refusal", "left", "kept"),
    [
        (
            refused("Encrypted content is not supported with this model.", "include"),
            "include",
            "reasoning",
        ),
        (
            refused(
                "Your organization must be verified to generate reasoning summaries. If you just "
                "verified, it can take up to 15 minutes. (unsupported_value)",
                "reasoning.summary",
            ),
            "summary",
            "effort",
        ),
        (
            refused(
                "Unsupported parameter: 'reasoning.effort' is not supported with this model.",
                "reasoning.effort",
            ),
            "effort",
            "include",
        ),
        (
            refused(
                "Unsupported parameter: 'temperature' is not supported with this model.",
                "temperature",
            ),
            "temperature",
            "include",
        ),
    ],
)
async def test_a_field_that_a_model_refuses_is_left_out_from_then_on(
    refusal: Status, left: str, kept: str
) -> None:
    level = "none" if left == "temperature" else "low"
    service = Service(refusal, "ok", "ok", reasoning=level, temperature=0.5)

    first, second, third = await service.ask(asked(), asked())

    assert f'"{left}"' in first.text
    for received in (second, third):
        assert f'"{left}"' not in received.text
        assert f'"{kept}"' in received.text
    assert len(service.replies) == 2
    assert [type(event) for event in service.events].count(ModelRetry) == 1


@together(
    ("api", "base_url", "kind"),
    [
        ("auto", None, OpenAIResponsesProvider),
        ("auto", "https://api.openai.com/v1", OpenAIResponsesProvider),
        ("auto", "https://API.OpenAI.com/v1/", OpenAIResponsesProvider),
        ("auto", "https://eu.api.openai.com/v1", OpenAIResponsesProvider),
        ("auto", "https://openrouter.ai/api/v1", OpenAIProvider),
        ("auto", "https://x.openai.azure.com/openai/v1", OpenAIProvider),
        ("auto", "https://api.openai.com.example.org/v1", OpenAIProvider),
        ("auto", "https://example.org/api.openai.com/v1", OpenAIProvider),
        ("auto", "http://127.0.0.1:8000/v1", OpenAIProvider),
        ("chat", None, OpenAIProvider),
        ("responses", "http://127.0.0.1:8000/v1", OpenAIResponsesProvider),
    ],
)
def test_openai_itself_is_spoken_to_in_responses(
    api: str, base_url: str | None, kind: type[OpenAIProvider]
) -> None:
    config = ModelConfig.model_validate(
        {"provider": "openai", "name": "m", "base_url": base_url, "api": api}
    )

    adapter = ProviderRegistry().create(config)

    assert type(adapter) is kind


@together(
    ("base_url", "expected"),
    [
        ("https://x.openai.azure.com", "https://x.openai.azure.com/openai/v1/responses"),
        ("https://x.openai.azure.com/openai/v1", "https://x.openai.azure.com/openai/v1/responses"),
        (
            "https://x.openai.azure.com?api-version=2025-03-01-preview",
            "https://x.openai.azure.com/openai/responses?api-version=2025-03-01-preview",
        ),
        ("https://api.openai.com/v1", "https://api.openai.com/v1/responses"),
    ],
)
def test_the_address_of_responses(base_url: str, expected: str) -> None:
    config = ModelConfig(provider="openai", name="m", base_url=base_url, api="responses")

    assert OpenAIResponsesProvider(config).address("m") == expected


async def test_reasoning_that_cannot_be_decrypted_any_more_is_left_out() -> None:
    words = "The encrypted content gAAA could not be verified. Reason: it could not be decrypted."
    error = {"message": words, "code": "invalid_encrypted_content"}
    async with ModelServer(
        [Sends(body(*OWN)), Status(400, orjson.dumps({"error": error})), Sends(body(*OWN)), "ok"]
    ) as server:
        adapter = ProviderRegistry().create(ModelConfig(name="m", **server.settings("responses")))

        async def ask(*messages: ModelMessage) -> list[ModelMessage]:
            last = [event async for event in adapter.stream(asked(*messages, tools=TOOLS))][-1]
            assert isinstance(last, ModelCompleted), last
            return [*messages, *answered(last)[1:]]

        once = await ask(HELLO)
        twice = await ask(*once)
        await ask(*twice)
        await adapter.close()

    _, refused, mended, later = server.requests
    assert "gAAAA" in refused.text
    assert "gAAAA" not in mended.text
    assert "fc_1" not in mended.text
    assert later.text.count("gAAAA") == 1  # what was made since then goes back
