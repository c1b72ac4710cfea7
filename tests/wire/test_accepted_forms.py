"""Servers that refuse a conversation for its form: the order of roles, and the reasoning in it.

Their words are quoted from public bug reports; see `ORDERS` and `REASONING`.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from agent_core import AgentRuntime, RunStatus
from agent_core.config.models import CompatConfig, ModelConfig, RetryConfig
from agent_core.providers.base import ProviderRegistry
from agent_core.types import (
    ImageBlock,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    ModelRetry,
    ReasoningBlock,
    Role,
    SystemBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from isolation import Home
from model_server import Answer, ModelServer, Received, Reply, Sends, Status, sse
from model_server_wire import Protocol
from tables import together

JINJA = (
    "\n------------\nWhile executing CallExpression at line 189, column 32 in source:\n"
    "...== 0) %}↵            {{- raise_exception('After the optional system message, con...\n"
    "Error: Jinja Exception: "
)
EXCEPT_CALLS = (
    "After the optional system message, conversation roles must alternate user and assistant roles "
    "except for tool calls and results."
)
ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."
SUCCESSIVE = (
    "deepseek-reasoner does not support successive user or assistant messages (messages[1] and "
    "messages[2] in your input). You should interleave the user/assistant messages in the message "
    "sequence."
)
IN_A_ROW = (
    'messages: roles must alternate between "user" and "assistant", but found multiple "user" '
    "roles in a row"
)
CONVERSE = (
    "A conversation must alternate between user and assistant roles. Make sure the conversation "
    "alternates between user and assistant roles and try again."
)
PERPLEXITY = (
    "After the (optional) system message(s), user or tool message(s) should alternate with "
    "assistant message(s)."
)
MISTRAL = {
    "object": "error",
    "message": "Unexpected role 'user' after role 'tool'",
    "type": "invalid_request_message_order",
    "param": None,
    "code": "3230",
}


def vllm(words: str) -> dict[str, Any]:
    error = {"message": f"{words} {words}", "type": "BadRequestError", "param": None, "code": 400}
    return {"error": error}


def template(words: str) -> dict[str, Any]:
    return {"error": {"code": 500, "message": JINJA + words, "type": "server_error"}}


ORDERS: dict[str, tuple[int, Any]] = {
    "mistral": (400, MISTRAL),
    "mistral behind vllm": (400, vllm("Unexpected role 'user' after role 'tool'")),
    "gemma behind vllm": (400, vllm(ALTERNATE)),
    "gemma behind llama.cpp": (500, template(ALTERNATE)),
    "devstral behind llama.cpp": (500, template(EXCEPT_CALLS)),
    "lm studio": (
        400,
        {"error": f'Error rendering prompt with jinja template: "{ALTERNATE}".\n\nThis is usually'},
    ),
    "tgi": (422, {"error": f"Template error: syntax error: {ALTERNATE} (in <string>:1)"}),
    "deepseek": (400, {"error": {"message": SUCCESSIVE, "type": "invalid_request_error"}}),
    "anthropic": (400, {"type": "error", "error": {"message": IN_A_ROW}}),
    "bedrock": (400, {"message": CONVERSE}),
    "perplexity": (400, {"error": {"message": PERPLEXITY, "type": "invalid_message", "code": 400}}),
}
"""Status and body of a refusal; vllm, opensecret 120, llama.cpp in vibe 1006, zed 37021, tgi 3198,
SillyTavern 4349, DeepSeek-R1 21, quickstart-resources 20, semantic-kernel 10277, pluely 71."""

REMOVE = (
    "The reasoning_content is an intermediate result for display purposes only and will not be "
    "included in the context for inference. Please remove the reasoning_content from your message "
    "to reduce network traffic."
)
GROQ = (
    "'messages.2' : for 'role:assistant' the following must be satisfied[('messages.2' : property "
    "'reasoning' is unsupported)]"
)
CEREBRAS = (
    "messages.2.assistant.reasoning_content: property 'messages.2.assistant.reasoning_content' is "
    "unsupported"
)
REFUSED_REASONING: dict[str, tuple[str, Any]] = {
    "deepseek": ("reasoning_content", {"error": {"message": REMOVE}}),
    "groq": ("reasoning", {"error": {"message": GROQ, "type": "invalid_request_error"}}),
    "cerebras": ("reasoning_content", {"message": CEREBRAS, "code": "wrong_api_format"}),
}
"""The field of the reasoning, and a refusal; gptel 774, kilocode 10375."""
KIMI = (
    "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2"
)
WANTED_REASONING = {
    "moonshot": KIMI,
    "deepseek": "The `reasoning_content` in the thinking mode must be passed back to the API.",
}
"""Continue 11711 and pi 3636."""
THINKING = "The `content[].thinking` in the thinking mode must be passed back to the API."
"""DeepSeek over Anthropic's protocol: hermes-agent 16149."""

QUICK = RetryConfig(max_attempts=3, initial_backoff_ms=1, max_backoff_ms=2)
Messages = list[dict[str, Any]]


def user(text: str) -> ModelMessage:
    return ModelMessage(role=Role.USER, content=[TextBlock(text=text)])


def call(call_id: str) -> ToolCallBlock:
    return ToolCallBlock(tool_call_id=call_id, name="look", arguments={"at": call_id})


def result(call_id: str) -> ToolResultBlock:
    return ToolResultBlock(tool_call_id=call_id, content=[TextBlock(text=f"seen {call_id}")])


def conversation() -> list[ModelMessage]:
    """A failed run's message, two calls at once, a note after their results, and an answer."""
    thought = ReasoningBlock(text="hm", metadata={"provider": "openai", "model": "m"})
    return [
        user("lost"),
        user("look"),
        ModelMessage(role=Role.ASSISTANT, content=[thought, call("a"), call("b")]),
        ModelMessage(role=Role.TOOL, content=[result("a"), result("b")]),
        user("note"),
        ModelMessage(role=Role.ASSISTANT, content=[TextBlock(text="well")]),
        user("and now?"),
    ]


async def played(
    answer: Answer, *requests: ModelRequest, protocol: str = "openai", **config: Any
) -> tuple[list[list[ModelEvent]], ModelServer]:
    async with ModelServer(answer) as server:
        settings = server.settings(protocol) | config
        adapter = ProviderRegistry().create(ModelConfig(name="m", retry=QUICK, **settings))
        try:
            found = [[event async for event in adapter.stream(each)] for each in requests]
        finally:
            await adapter.close()
    return found, server


def request(*messages: ModelMessage, **more: Any) -> ModelRequest:
    system = SystemBlock(block_id="s", source="s", content="Be brief.")
    return ModelRequest(
        model="m", system=[system], messages=list(messages or conversation()), **more
    )


def spoken(received: Received) -> Messages:
    """The messages, in the form of Chat Completions."""
    body = received.body
    if received.protocol is Protocol.RESPONSES:
        kinds = {"function_call": "assistant", "function_call_output": "tool"}
        return [{**each, "role": each.get("role") or kinds[each["type"]]} for each in body["input"]]
    if received.protocol is Protocol.GEMINI:
        return [
            {"role": "assistant" if each["role"] == "model" else "user", "parts": each["parts"]}
            for each in body["contents"]
        ]
    return [each for each in body["messages"] if each["role"] != "system"]


def fits_template(messages: Messages) -> bool:
    """The rule of Mistral's templates: calls and results do not count."""
    counted = [
        each["role"]
        for each in messages
        if each["role"] == "user" or (each["role"] == "assistant" and not each.get("tool_calls"))
    ]
    return counted == [["user", "assistant"][place % 2] for place in range(len(counted))]


def fits_gemma(messages: Messages) -> bool:
    """The rule of Gemma's templates, where a result is one more message of the user."""
    roles = ["assistant" if each["role"] == "assistant" else "user" for each in messages]
    return all(first != second for first, second in pairwise(roles)) and roles[0] == "user"


def fits_mistral(messages: Messages) -> bool:
    return ("tool", "user") not in pairwise(each["role"] for each in messages)


RULES: dict[str, Callable[[Messages], bool]] = {
    "mistral": fits_mistral,
    "template": fits_template,
    "gemma": fits_gemma,
}


def refusing(fits: Callable[[Messages], bool], status: int, body: Any) -> Answer:
    def answer(received: Received) -> Reply:
        return "done" if fits(spoken(received)) else Status(status, orjson.dumps(body))

    return answer


@together(("status", "body"), ORDERS.values(), ids=ORDERS)
async def test_an_order_of_roles_is_learnt_from_its_refusal(status: int, body: Any) -> None:
    fits = fits_mistral if "user' after" in orjson.dumps(body).decode() else fits_gemma
    found, server = await played(refusing(fits, status, body), request(), request())

    assert isinstance(found[0][-1], ModelCompleted), found[0][-1]
    assert sum(isinstance(event, ModelRetry) for event in found[0]) == 1
    assert len(server.requests) == 3, "remembered for the next call"
    sent = spoken(server.requests[-1])
    assert sent[0]["content"] == "lost\n\nlook"
    assert sent[-1]["content"] == "and now?"
    words = server.requests[-1].text
    assert all(f"seen {each}" in words for each in "ab")
    assert "hm" in words


IN_OTHER_WORDS = [
    "two messages with role user in sequence are not supported",
    "A user message must not directly follow a tool message.",
    "role 'tool' must be followed by role 'assistant'",
    "tool result must be followed by assistant response before next user message",
    "role sequence invalid: [user, user]",
    "Message roles should take turns.",
    "Back-to-back user messages are not permitted",
    "adjacent messages must have different roles",
    "The previous message has the same role.",
    "messages[3].role: a user turn is not allowed directly after a tool turn",
]
"""Not quoted from any service."""


@together("words", IN_OTHER_WORDS)
async def test_an_order_is_learnt_from_words_that_nobody_has_reported(words: str) -> None:
    found, server = await played(refusing(fits_gemma, 400, vllm(words)), *[request()] * 2)
    assert isinstance(found[0][-1], ModelCompleted), found[0][-1]
    assert len(server.requests) <= 4, "at most one refusal for each form"


@together(
    ("status", "words"),
    [
        (500, "The first message of the queue was lost, and the tool role is down."),
        (400, "The model was not loaded. Try again after a minute."),
        (400, "Unknown value for the role of the account"),
        (400, "tools.0.name must start with a letter"),
    ],
)
async def test_other_words_are_not_about_an_order(status: int, words: str) -> None:
    [found], server = await played(refusing(lambda _: False, status, vllm(words)), request())
    assert isinstance(found[-1], ModelFailed)
    assert "accepted_form" not in found[-1].error.details
    assert len({each.raw for each in server.requests}) == 1


@together("protocol", ["openai", "anthropic", "responses", "ollama"])
@together("rule", RULES)
async def test_every_protocol_keeps_an_order(protocol: str, rule: str) -> None:
    if protocol != "openai" and rule == "template":
        pytest.skip("that rule needs the fields of Chat Completions")
    refusal = (500, template(EXCEPT_CALLS)) if rule != "mistral" else (400, MISTRAL)
    [found], _ = await played(refusing(RULES[rule], *refusal), request(), protocol=protocol)
    assert isinstance(found[-1], ModelCompleted), found[-1]


async def test_a_refusal_inside_the_stream_teaches_too() -> None:
    """LocalAI answers 200 and reports the template's error as an event."""
    error = {"code": "server_error", "type": "server_error", "message": JINJA + EXCEPT_CALLS}

    def answer(received: Received) -> Reply:
        if fits_template(spoken(received)):
            return "done"
        return Sends(sse({"error": error}) + b"data: [DONE]\n\n")

    [found], server = await played(answer, request())
    assert isinstance(found[-1], ModelCompleted), found[-1]
    assert len(server.requests) == 2


async def test_a_row_needs_no_refusal() -> None:
    compat = CompatConfig(server="mistral")
    [found], server = await played(refusing(fits_mistral, 400, MISTRAL), request(), compat=compat)
    assert isinstance(found[-1], ModelCompleted)
    assert len(server.requests) == 1


async def test_a_switch_overrides_the_row() -> None:
    compat = CompatConfig(server="mistral", roles="free")
    _, server = await played(refusing(bool, 400, MISTRAL), request(), compat=compat)
    assert not fits_mistral(spoken(server.requests[0]))


async def test_another_refusal_changes_nothing() -> None:
    refusal = refusing(lambda _: False, 400, {"error": {"message": "user and tool are odd"}})
    [found], server = await played(refusal, request())
    assert isinstance(found[-1], ModelFailed)
    assert len(server.requests) == 1


async def test_an_order_that_is_never_accepted_ends_with_the_words_of_the_service() -> None:
    [found], server = await played(refusing(lambda _: False, 400, vllm(ALTERNATE)), request())
    assert isinstance(found[-1], ModelFailed)
    assert ALTERNATE in found[-1].error.message
    assert len(server.requests) == 2


async def test_a_conversation_that_grows_is_written_once() -> None:
    """The beginning of the next request is the same, so that prompt caches match."""
    messages = conversation()
    longer = [*messages, ModelMessage(role=Role.ASSISTANT, content=[TextBlock(text="so")])]
    compat = CompatConfig(roles="alternate")
    _, server = await played(
        lambda _: "done", request(*messages), request(*longer, user("x")), compat=compat
    )
    first, second = (each.raw for each in server.requests)
    assert second.startswith(first[: first.rindex(b"]")])


async def test_images_of_results_keep_the_order() -> None:
    image = ImageBlock(mime_type="image/png", data="aGk=")
    seen = ToolResultBlock(tool_call_id="a", content=[TextBlock(text="seen"), image])
    messages = [
        user("look"),
        ModelMessage(role=Role.ASSISTANT, content=[call("a")]),
        ModelMessage(role=Role.TOOL, content=[seen]),
        user("note"),
    ]
    refusal = refusing(fits_gemma, 400, vllm(ALTERNATE))
    [found], server = await played(refusal, request(*messages))
    assert isinstance(found[-1], ModelCompleted), found[-1]
    shown = spoken(server.requests[-1])[-1]
    assert "image_url" in [part["type"] for part in shown["content"]]
    assert shown["content"][-1]["text"] == "note"


async def test_images_do_not_part_results_that_came_in_messages_of_their_own() -> None:
    image = ImageBlock(mime_type="image/png", data="aGk=")
    seen = [ToolResultBlock(tool_call_id=each, content=[image]) for each in "ab"]
    messages = [
        user("look"),
        ModelMessage(role=Role.ASSISTANT, content=[call("a"), call("b")]),
        *[ModelMessage(role=Role.TOOL, content=[each]) for each in seen],
    ]
    refusal = refusing(fits_mistral, 400, MISTRAL)
    [found], server = await played(refusal, request(*messages))
    assert isinstance(found[-1], ModelCompleted), found[-1]
    roles = [each["role"] for each in spoken(server.requests[-1])]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "user"]


@together(
    "words",
    [
        "System role not supported",
        "Only user, assistant roles are supported, got system.",
        "Only user and assistant roles are supported!",
        "Developer instruction is not enabled for models/gemma-3-27b-it",
        "'system' is not one of ['user', 'assistant'] - 'messages.0.role'",
        "Input should be 'user' or 'assistant'",
        "unsupported role: system",
        "The system prompt is not allowed for this model",
    ],
)
async def test_a_model_without_a_system_role_gets_its_prompt_from_the_user(words: str) -> None:
    def answer(received: Received) -> Reply:
        has_system = any(each["role"] == "system" for each in received.body["messages"])
        return Status(500, orjson.dumps(template(words))) if has_system else "done"

    found, server = await played(answer, request(user("hi")), request(user("hi")))
    assert isinstance(found[-1][-1], ModelCompleted)
    assert spoken(server.requests[-1])[0]["content"] == "Be brief.\n\nhi"
    assert len(server.requests) == 3


def thinks(field: str | None) -> ModelMessage:
    metadata = {"provider": "openai", "model": "m", "field": field}
    thought = ReasoningBlock(text="hm", metadata=metadata)
    return ModelMessage(role=Role.ASSISTANT, content=[thought, call("a")])


def after(answer: ModelMessage) -> Sequence[ModelMessage]:
    return [user("look"), answer, ModelMessage(role=Role.TOOL, content=[result("a")])]


@together(("field", "body"), REFUSED_REASONING.values(), ids=REFUSED_REASONING)
async def test_refused_reasoning_is_left_out(field: str, body: Any) -> None:
    def answer(received: Received) -> Reply:
        has_it = any(field in each for each in received.body["messages"])
        return Status(400, orjson.dumps(body)) if has_it else "done"

    found, server = await played(answer, *[request(*after(thinks(field)))] * 2)
    assert isinstance(found[-1][-1], ModelCompleted), found[-1][-1]
    assert len(server.requests) == 3


@pytest.mark.parametrize("words", WANTED_REASONING.values(), ids=WANTED_REASONING)
async def test_wanted_reasoning_is_empty_where_an_answer_has_none(words: str) -> None:
    """Another model wrote the answer, or it did not think."""
    silent = ModelMessage(role=Role.ASSISTANT, content=[call("a")])

    def answer(received: Received) -> Reply:
        answers = [each for each in received.body["messages"] if each["role"] == "assistant"]
        if all("reasoning_content" in each for each in answers):
            return "done"
        return Status(400, orjson.dumps({"error": {"message": words}}))

    messages = [*after(silent), thinks("reasoning_content"), after(silent)[-1]]
    found, server = await played(answer, *[request(*messages)] * 2)
    assert isinstance(found[-1][-1], ModelCompleted), found[-1][-1]
    thoughts = [each.get("reasoning_content") for each in server.requests[-1].body["messages"]]
    assert [each for each in thoughts if each is not None] == ["", "hm"]
    assert len(server.requests) == 3


async def test_a_service_that_changes_its_mind_is_not_asked_for_ever() -> None:
    def answer(received: Received) -> Reply:
        has_it = any("reasoning_content" in each for each in received.body["messages"])
        words = REMOVE if has_it else KIMI
        return Status(400, orjson.dumps({"error": {"message": words}}))

    [found], server = await played(answer, request(*after(thinks("reasoning_content"))))
    assert isinstance(found[-1], ModelFailed)
    assert len(server.requests) < 5


@pytest.mark.parametrize("is_row", [False, True])
async def test_unsigned_thinking_goes_back_where_it_is_wanted(is_row: bool) -> None:
    unsigned = ReasoningBlock(text="hm", metadata={"provider": "anthropic", "model": "m"})
    answered = ModelMessage(role=Role.ASSISTANT, content=[unsigned, call("a")])
    silent = ModelMessage(role=Role.ASSISTANT, content=[call("b")])
    results = ModelMessage(role=Role.TOOL, content=[result("b")])

    def answer(received: Received) -> Reply:
        answers = [each for each in received.body["messages"] if each["role"] == "assistant"]
        if all(each["content"][0]["type"] == "thinking" for each in answers):
            return "done"
        return Status(400, orjson.dumps({"error": {"message": THINKING}}))

    compat = CompatConfig(server="deepseek") if is_row else CompatConfig()
    [found], server = await played(
        answer,
        request(*after(answered), silent, results),
        protocol="anthropic",
        compat=compat,
    )
    assert isinstance(found[-1], ModelCompleted), found[-1]
    thoughts = [
        part
        for each in server.requests[-1].body["messages"]
        for part in each["content"]
        if part["type"] == "thinking"
    ]
    assert [each["thinking"] for each in thoughts] == ["hm", ""]
    assert len(server.requests) == 2 - is_row


async def test_a_signature_that_is_no_longer_valid_does_not_end_the_session() -> None:
    """Anthropic's words when a session has moved to another account (openclaw 94534)."""
    metadata = {"provider": "anthropic", "model": "claude-sonnet-4-5"}
    signed = ReasoningBlock(text="hm", signature="old", metadata=metadata)
    answered = ModelMessage(role=Role.ASSISTANT, content=[signed, call("a")])
    words = "messages.1.content.0: Invalid `signature` in `thinking` block"

    def answer(received: Received) -> Reply:
        if "signature" in received.text:
            error = {"type": "invalid_request_error", "message": words}
            return Status(400, orjson.dumps({"type": "error", "error": error}))
        assert "budget_tokens" not in received.text, "its turn would have to begin with a thought"
        return "done"

    asked = request(*after(answered)).model_copy(update={"model": "claude-sonnet-4-5"})
    found, server = await played(
        answer, asked, asked, protocol="anthropic", reasoning="low", max_output_tokens=8000
    )
    assert isinstance(found[-1][-1], ModelCompleted), found[-1][-1]
    assert len(server.requests) == 3


async def test_a_failed_run_does_not_make_a_session_unusable(home: Home, project: Path) -> None:
    def answer(received: Received) -> Reply:
        if received.body["messages"][-1]["content"].endswith("fail"):
            return Status(400, b'{"error": {"message": "no"}}')
        return refusing(fits_gemma, 400, vllm(ALTERNATE))(received)

    async with ModelServer(answer) as server:
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        )
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            failed = await runtime.start("fail", session_id="s")
            await failed.wait()
            assert failed.status is RunStatus.FAILED
            for _ in range(2):
                handle = await runtime.start("and now?", session_id="s")
                await handle.wait()
                assert handle.status is RunStatus.COMPLETED, handle.error
