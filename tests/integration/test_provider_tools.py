"""Tools that a service runs itself, in whole runs against servers that speak its protocol."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent_core import AgentDefinition, AgentRuntime, RunOptions
from agent_core.errors import AgentCoreError, ConfigError
from agent_core.history.words import retry_line
from agent_core.providers.scripted import ScriptedProvider
from agent_core.types import (
    CitationBlock,
    EventType,
    Node,
    ProviderToolBlock,
    Role,
    RunStatus,
    TextBlock,
)
from agent_core.types.event_details import ModelRetried
from isolation import Home
from model_server import ModelServer, Status
from runtimes import Asked
from sweeps import sampled

ALLOWED = '[tools.network]\nallowed_hosts = ["127.0.0.1"]\n'


class Service:
    """Answers each request with the next of its streams, and keeps the requests."""

    def __init__(self, *replies: Sequence[dict[str, Any]]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._replies = [*replies]
        self.url = ""

    async def _answer(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        events = self._replies.pop(0)
        lines = "".join(
            f"event: {each.get('type', 'message')}\ndata: {json.dumps(each)}\n\n" for each in events
        )
        return web.Response(text=lines, content_type="text/event-stream")

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["Service"]:
        app = web.Application()
        app.router.add_post("/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


def model(service: Service | ModelServer, provider: str, *tools: str, more: str = "") -> str:
    return (
        f'[model]\nprovider = "{provider}"\nname = "m-1"\nbase_url = "{service.url}"\n'
        f"context_window = 100000\nprovider_tools = {json.dumps(tools)}\n{more}\n"
        "[memory]\nenabled = false\n"
    )


def opened(home: Home, project: Path, config: str, asked: Asked | None = None) -> AgentRuntime:
    home.write_config(config)
    return AgentRuntime(project_dir=project, home_dir=home.path, permission_callback=asked)


async def nodes_of(made: AgentRuntime, session_id: str = "s1") -> list[Node]:
    return [*(await made.replay_session(session_id)).nodes]


# Anthropic

USE = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search"}
RESULT = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {
            "type": "web_search_result",
            "url": "https://lamps.test/red",
            "title": "Red lamps",
            "encrypted_content": "EqgfCioIARgBIiQ3YTAw",
            "page_age": "April 30, 2026",
        }
    ],
}
CITED = {
    "type": "web_search_result_location",
    "url": "https://lamps.test/red",
    "title": "Red lamps",
    "encrypted_index": "Eo8BCioIAhgBIiQyYjQ0",
    "cited_text": "Our lamps are red.",
}


def message(*blocks: Sequence[dict[str, Any]], stop: str = "end_turn") -> list[dict[str, Any]]:
    """A message stream; each block is its start, followed by its deltas."""
    usage = {"input_tokens": 10, "output_tokens": 1}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "m", "role": "assistant", "usage": usage}}
    ]
    for index, (start, *deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [
            {"type": "content_block_delta", "index": index, "delta": each} for each in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    spent = {"output_tokens": 20, "server_tool_use": {"web_search_requests": 1}}
    return [
        *events,
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": spent},
        {"type": "message_stop"},
    ]


def said(text: str, *citations: dict[str, Any]) -> list[dict[str, Any]]:
    cites = [{"type": "citations_delta", "citation": each} for each in citations]
    return [{"type": "text", "text": ""}, *cites, {"type": "text_delta", "text": text}]


def searching(query: str = "lamps") -> list[dict[str, Any]]:
    whole = json.dumps({"query": query})
    pieces = [whole[:5], whole[5:]]
    deltas = [{"type": "input_json_delta", "partial_json": each} for each in pieces]
    return [{**USE, "input": {}}, *deltas]


SEARCHED = message(
    said("I look. "),
    searching(),
    [RESULT],
    said("The lamp is "),
    said("red", CITED),
    said(", as they say."),
)


async def test_anthropic_searches_and_gets_everything_back_on_the_next_turn(
    home: Home, project: Path
) -> None:
    async with Service(SEARCHED, message(said("Yes."))).open() as service:
        config = model(service, "anthropic", "web_search", "code_execution") + ALLOWED
        async with opened(home, project, config) as made:
            first = await made.run("which colour?", "s1", events=True)
            await made.run("sure?", "s1")
            nodes = await nodes_of(made)
    assert first.text.endswith("The lamp is red, as they say.")
    tools = service.bodies[0]["tools"]
    own = [{k: v for k, v in each.items() if k != "cache_control"} for each in tools[-2:]]
    assert own == [
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "code_execution_20250825", "name": "code_execution"},
    ]
    answer = next(node for node in nodes if node.role is Role.ASSISTANT)
    uses = [each for each in answer.content if isinstance(each, ProviderToolBlock)]
    assert [(each.name, each.arguments, each.result) for each in uses] == [
        ("web_search", {"query": "lamps"}, None),
        ("web_search", {}, "Red lamps - https://lamps.test/red"),
    ]
    [source] = [each for each in answer.content if isinstance(each, CitationBlock)]
    text = next(
        each for each in answer.content if isinstance(each, TextBlock) and "lamp" in each.text
    )
    assert text.text == "The lamp is red, as they say."
    assert (source.url, source.title) == ("https://lamps.test/red", "Red lamps")
    assert source.text_range is not None
    assert text.text[slice(*source.text_range)] == "red"
    [back] = [each for each in service.bodies[1]["messages"] if each["role"] == "assistant"]
    assert back["content"] == [
        {"type": "text", "text": "I look. "},
        {**USE, "input": {"query": "lamps"}},
        RESULT,
        {"type": "text", "text": "The lamp is "},
        {"type": "text", "text": "red", "citations": [CITED]},
        {"type": "text", "text": ", as they say."},
    ]
    [event] = [e for e in first.events or [] if e.event_type is EventType.MODEL_COMPLETED]
    assert event.payload["provider_tools"][0]["arguments"] == {"query": "lamps"}
    assert event.payload["citations"][0]["url"] == "https://lamps.test/red"
    assert event.payload["usage"]["raw_usage"]["server_tool_use"] == {"web_search_requests": 1}


async def test_searches_are_part_of_the_cost(home: Home, project: Path) -> None:
    async with Service(SEARCHED).open() as service:
        price = "[model.price]\ninput = 0\noutput = 0\nsearches = 10"
        config = model(service, "anthropic", "web_search", more=price) + ALLOWED
        async with opened(home, project, config) as made:
            result = await made.run("which colour?", "s1")
    assert result.cost == pytest.approx(0.01)


async def test_a_paused_turn_is_sent_back_as_it_is_and_continues(home: Home, project: Path) -> None:
    paused = message(said("First. "), searching(), stop="pause_turn")
    async with Service(paused, message([RESULT], said("Red."))).open() as service:
        config = model(service, "anthropic", "web_search") + ALLOWED
        async with opened(home, project, config) as made:
            result = await made.run("which colour?", "s1")
    assert result.status is RunStatus.COMPLETED
    assert result.text == "First. Red."
    last = service.bodies[1]["messages"][-1]
    assert last["role"] == "assistant"
    assert [
        {k: v for k, v in each.items() if k != "cache_control"} for each in last["content"]
    ] == [
        {"type": "text", "text": "First. "},
        {**USE, "input": {"query": "lamps"}},
    ]


async def test_a_search_that_was_cut_off_is_not_sent_back(home: Home, project: Path) -> None:
    cut = message(said("I look."), searching(), stop="max_tokens")
    async with Service(cut, message(said("Done."))).open() as service:
        config = model(service, "anthropic", "web_search") + ALLOWED
        async with opened(home, project, config) as made:
            await made.run("go", "s1")
    assert "server_tool_use" not in json.dumps(service.bodies[1])


async def test_a_failed_search_is_shown_with_its_error(home: Home, project: Path) -> None:
    failed = {
        **RESULT,
        "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
    }
    async with Service(message(searching(), [failed], said("No."))).open() as service:
        config = model(service, "anthropic", "web_search") + ALLOWED
        async with opened(home, project, config) as made:
            await made.run("go", "s1")
            nodes = await nodes_of(made)
    uses = [b for node in nodes for b in node.content if isinstance(b, ProviderToolBlock)]
    assert uses[1].result == "error: max_uses_exceeded"


async def test_another_service_gets_the_text_alone(home: Home, project: Path) -> None:
    other = [
        {"choices": [{"index": 0, "delta": {"content": "Yes."}, "finish_reason": "stop"}]},
    ]
    async with Service(SEARCHED).open() as first, Service(other).open() as second:
        config = model(first, "anthropic", "web_search") + ALLOWED
        async with opened(home, project, config) as made:
            await made.run("which colour?", "s1")
            switched = f"openai:m-2@{second.url}"
            result = await made.run("sure?", "s1", model=switched, provider_tools=[])
    assert result.text == "Yes."
    sent = json.dumps(second.bodies[0])
    assert "The lamp is red, as they say." in sent
    assert "encrypted" not in sent
    assert "srvtoolu_1" not in sent


# OpenAI's Responses

CALL = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {
        "type": "search",
        "query": "lamps",
        "sources": [{"type": "url", "url": "https://lamps.test/red"}],
    },
}
RAN = {
    "type": "code_interpreter_call",
    "id": "ci_1",
    "status": "completed",
    "code": "print(2)",
    "container_id": "cntr_1",
    "outputs": [{"type": "logs", "logs": "2\n"}],
}
ANNOTATED = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [
        {
            "type": "output_text",
            "text": "The lamp is red.",
            "annotations": [
                {
                    "type": "url_citation",
                    "url": "https://lamps.test/red",
                    "title": "Red lamps",
                    "start_index": 12,
                    "end_index": 15,
                }
            ],
        }
    ],
}


def response(*output: dict[str, Any]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"type": "response.created", "response": {"id": "r"}}]
    for index, item in enumerate(output):
        events += [
            {"type": f"response.output_item.{stage}", "output_index": index, "item": item}
            for stage in ("added", "done")
        ]
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    whole = {"id": "r", "status": "completed", "output": [*output], "usage": usage}
    return [*events, {"type": "response.completed", "response": whole}]


@pytest.mark.parametrize("server", ["", '[model.compat]\nserver = "xai"'])
async def test_responses_search_and_run_code_and_get_their_items_back(
    home: Home, project: Path, server: str
) -> None:
    replies = response(CALL, RAN, ANNOTATED), response(ANNOTATED)
    async with Service(*replies).open() as service:
        more = f'api = "{"auto" if server else "responses"}"\n{server}'
        config = model(service, "openai", "web_search", "code_interpreter", more=more) + ALLOWED
        async with opened(home, project, config) as made:
            first = await made.run("which colour?", "s1", events=True)
            await made.run("sure?", "s1")
            nodes = await nodes_of(made)
    assert first.text == "The lamp is red."
    own = [each for each in service.bodies[0]["tools"] if each["type"] != "function"]
    assert own == [
        {"type": "web_search"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
    ]
    included = service.bodies[0]["include"]
    assert ("web_search_call.action.sources" in included) is not bool(server)
    answer = next(node for node in nodes if node.role is Role.ASSISTANT)
    uses = [each for each in answer.content if isinstance(each, ProviderToolBlock)]
    assert [(each.name, each.arguments, each.result) for each in uses] == [
        ("web_search", {"query": "lamps"}, "https://lamps.test/red"),
        ("code_execution", {"code": "print(2)"}, "2\n"),
    ]
    [source] = [each for each in answer.content if isinstance(each, CitationBlock)]
    assert source.text_range == (12, 15)
    [event] = [e for e in first.events or [] if e.event_type is EventType.MODEL_COMPLETED]
    counted = event.payload["usage"]["raw_usage"]["server_tool_use"]
    assert counted == {"web_search_requests": 1}
    sent = service.bodies[1]["input"]
    assert [each for each in sent if each["type"].endswith("_call")] == [CALL, RAN]


async def test_the_search_of_chat_completions_of_xai_is_a_parameter(
    home: Home, project: Path
) -> None:
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": "Red."}, "finish_reason": "stop"}]},
        {"choices": [], "citations": ["https://lamps.test/red"]},
    ]
    async with Service(chunks).open() as service:
        more = 'api = "chat"\n[model.compat]\nserver = "xai"'
        config = model(service, "openai", "web_search", more=more) + ALLOWED
        async with opened(home, project, config) as made:
            await made.run("which colour?", "s1")
            nodes = await nodes_of(made)
    assert service.bodies[0]["search_parameters"]["mode"] == "auto"
    [source] = [b for node in nodes for b in node.content if isinstance(b, CitationBlock)]
    assert source.url == "https://lamps.test/red"


# Gemini

RUN_CODE = {"executableCode": {"language": "PYTHON", "code": "print('grün')"}}
RAN_CODE = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "grün\n"}}


def candidate(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": [*parts]}, **more}]}


async def test_gemini_grounds_its_answer_and_gets_the_code_back(home: Home, project: Path) -> None:
    text = "Grün: the lamp is red."
    begin = len("Grün: ".encode())
    segment = {"startIndex": begin, "endIndex": len(text.encode()), "text": "the lamp is red."}
    grounding = {
        "webSearchQueries": ["lamps"],
        "groundingChunks": [{"web": {"uri": "https://lamps.test/red", "title": "Red lamps"}}],
        "groundingSupports": [{"segment": segment, "groundingChunkIndices": [0]}],
    }
    first = [
        candidate(RUN_CODE),
        candidate(RAN_CODE, {"text": text[:7]}),
        candidate({"text": text[7:]}, finishReason="STOP", groundingMetadata=grounding),
    ]
    second = [candidate({"text": "Yes."}, finishReason="STOP")]
    async with Service(first, second).open() as service:
        config = model(service, "gemini", "googleSearch", "urlContext", "codeExecution") + ALLOWED
        async with opened(home, project, config) as made:
            await made.run("which colour?", "s1")
            await made.run("sure?", "s1")
            nodes = await nodes_of(made)
    body = service.bodies[0]
    assert body["tools"][1:] == [{"googleSearch": {}}, {"urlContext": {}}, {"codeExecution": {}}]
    assert body["toolConfig"]["includeServerSideToolInvocations"] is True
    answer = next(node for node in nodes if node.role is Role.ASSISTANT)
    uses = [each for each in answer.content if isinstance(each, ProviderToolBlock)]
    assert [each.result for each in uses] == [None, "grün\n"]
    [source] = [each for each in answer.content if isinstance(each, CitationBlock)]
    assert source.text_range is not None
    assert text[slice(*source.text_range)] == "the lamp is red."
    back = next(each for each in service.bodies[1]["contents"] if each["role"] == "model")
    assert back["parts"] == [RUN_CODE, RAN_CODE, {"text": text}]


async def test_searches_of_gemini_are_shown_where_only_its_metadata_names_them(
    home: Home, project: Path
) -> None:
    grounding = {
        "webSearchQueries": ["lamps", "red"],
        "groundingChunks": [{"web": {"uri": "https://lamps.test/red", "title": "Red lamps"}}],
    }
    page = {
        "retrievedUrl": "https://lamps.test/",
        "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_SUCCESS",
    }
    reply = candidate(
        {"text": "Red."},
        finishReason="STOP",
        groundingMetadata=grounding,
        urlContextMetadata={"urlMetadata": [page]},
    )
    async with Service([reply]).open() as service:
        config = model(service, "gemini", "web_search") + ALLOWED
        async with opened(home, project, config) as made:
            await made.run("which colour?", "s1")
            nodes = await nodes_of(made)
    blocks = [block for node in nodes for block in node.content]
    uses = [each for each in blocks if isinstance(each, ProviderToolBlock)]
    assert [(each.name, each.arguments) for each in uses] == [
        ("web_search", {"queries": ["lamps", "red"]}),
        ("web_fetch", {"url": "https://lamps.test/"}),
    ]
    assert [each.url for each in blocks if isinstance(each, CitationBlock)] == [
        "https://lamps.test/red"
    ]


# Permission and refusals


@pytest.mark.parametrize(
    "rule",
    [
        'decision = "deny"\ntool = "provider.web_search"\n',
        'decision = "deny"\nhost = "127.0.0.1"\n',
        None,
    ],
)
async def test_a_tool_that_is_denied_or_cannot_be_asked_for_is_not_offered(
    home: Home, project: Path, rule: str | None
) -> None:
    async with Service(message(said("No search."))).open() as service:
        config = model(service, "anthropic", "web_search")
        config += f"{ALLOWED}[[permissions.rules]]\n{rule}" if rule else ""
        async with opened(home, project, config) as made:
            result = await made.run("go", "s1", events=True)
    assert result.status is RunStatus.COMPLETED
    assert "web_search" not in json.dumps(service.bodies[0].get("tools", []))
    [event] = [e for e in result.events or [] if e.event_type is EventType.PROVIDER_TOOL_DENIED]
    assert event.payload["name"] == "provider.web_search"
    assert event.payload["code"] == "permission_denied"


async def test_the_user_is_asked_once_in_a_session_with_the_host(home: Home, project: Path) -> None:
    asked = Asked("allow_for_session")
    async with Service(message(said("A.")), message(said("B."))).open() as service:
        config = model(service, "anthropic", "web_search")
        async with opened(home, project, config, asked) as made:
            await made.run("go", "s1")
            await made.run("on", "s1")
    [request] = asked.requests
    assert request.tool_name == "provider.web_search"
    assert request.network_host == "127.0.0.1"
    assert all("web_search_20250305" in json.dumps(body["tools"]) for body in service.bodies)


async def test_a_run_that_would_park_at_the_question_does_without_the_tool(
    home: Home, project: Path
) -> None:
    async with Service(message(said("A."))).open() as service:
        config = model(service, "anthropic", "web_search")
        config += '[permissions]\nunattended = "park"\n'
        async with opened(home, project, config) as made:
            result = await made.run("go", "s1", events=True)
            assert await made.approvals() == []
    assert result.status is RunStatus.COMPLETED
    assert "web_search" not in json.dumps(service.bodies[0].get("tools", []))


@pytest.mark.parametrize(
    ("provider", "tools", "more"),
    sampled(
        [
            ("ollama", ["web_search"], ""),
            ("openai", ["web_search"], 'api = "chat"'),
            ("openai", ["web_fetch"], 'api = "responses"'),
            ("openai", ["code_execution"], 'api = "chat"\n[model.compat]\nserver = "xai"'),
        ],
        keep=2,
    ),
)
async def test_a_service_without_the_tool_refuses_the_run_before_it_begins(
    home: Home, project: Path, provider: str, tools: list[str], more: str
) -> None:
    async with Service().open() as service:
        config = model(service, provider, *tools, more=more) + ALLOWED
        async with opened(home, project, config) as made:
            with pytest.raises(ConfigError, match=tools[0]) as caught:
                await made.start("go", "s1")
            assert await made.list_sessions() == []
    assert caught.value.code == "unsupported_capability"
    assert caught.value.details["capability"] == "provider_tools"
    assert service.bodies == []


async def test_a_fallback_without_the_tool_says_so(home: Home, project: Path) -> None:
    line = {"choices": [{"delta": {"content": "red"}, "finish_reason": "stop"}]}
    async with Service([line]).open() as second, ModelServer([Status(503)]) as first:
        retry = "retry = { max_attempts = 1 }"
        config = (
            model(first, "anthropic", "web_search", more=retry)
            + ALLOWED
            + f'[[model_fallbacks]]\nprovider = "openai"\nname = "m-2"\nbase_url = "{second.url}"\n'
            + "context_window = 100000\n"
        )
        async with opened(home, project, config) as made:
            result = await made.run("which colour?", "s1", events=True)
    assert result.text == "red"
    [retried] = [e for e in result.events or [] if e.event_type is EventType.MODEL_RETRY]
    assert retried.payload["error"]["details"]["fallback"]["without"] == ["web_search"]
    assert "tools" not in second.bodies[0] or "web_search" not in json.dumps(second.bodies[0])
    details = retried.details
    assert isinstance(details, ModelRetried)
    assert retry_line(details, "").endswith("now calling m-2 of openai, which has no web_search")


async def test_a_run_chooses_its_own_tools(home: Home, project: Path) -> None:
    replies = [message(said("A.")), message(said("B."))]
    async with Service(*replies).open() as service:
        config = model(service, "anthropic", "web_search") + ALLOWED
        async with opened(home, project, config) as made:
            await made.run("go", "s1", provider_tools=["code_execution"])
            await made.run("go", "s1", options=RunOptions(provider_tools=()))
            with pytest.raises(AgentCoreError, match="no such tool of a service"):
                await made.start("go", "s1", provider_tools=["telepathy"])
    first, second = (json.dumps(body.get("tools", [])) for body in service.bodies)
    assert "code_execution_20250825" in first
    assert "web_search" not in first
    assert "code_execution" not in second


@pytest.mark.parametrize(
    ("profile", "rule", "code", "words"),
    sampled(
        [
            ("other:own", "", "unsupported_capability", "other:own does not run web_search itself"),
            ("m-2", 'decision = "deny"\nagent = "looker"\n', "permission_denied", ""),
            ("m-2", 'decision = "ask"\nagent = "looker"\n', "permission_denied", "too early"),
        ],
        keep=2,
    ),
)
async def test_a_child_that_may_not_have_the_tool_does_without_it_and_says_so(
    home: Home, project: Path, profile: str, rule: str, code: str, words: str
) -> None:
    call: dict[str, Any] = {
        "type": "tool_use",
        "id": "t",
        "name": "agent__create_sub_agent",
        "input": {},
    }
    task = json.dumps({"task": "look", "agent_definition_id": "looker"})
    delta = {"type": "input_json_delta", "partial_json": task}
    delegates = message([call, delta], stop="tool_use")
    other = ScriptedProvider(["child"])
    replies = [message(said("child"))] if rule else []
    async with Service(delegates, *replies, message(said("Done."))).open() as service:
        config = model(service, "anthropic") + ALLOWED
        config += f'[[permissions.rules]]\ntool = "provider.*"\n{rule}' if rule else ""
        async with opened(home, project, config) as made:
            made.register_provider("other", lambda _: other)
            made.register_agent_definition(
                AgentDefinition(
                    agent_definition_id="looker",
                    name="Looker",
                    description="Looks.",
                    model_profile=profile if ":" in profile else {"name": profile},
                )
            )
            result = await made.run("go", "s1", provider_tools=["web_search"], events=True)
            [child] = [
                each.payload["child_run_id"]
                for each in result.events or []
                if each.event_type is EventType.CHILD_AGENT_CREATED
            ]
            events = (await made.replay_run(child)).events
    assert result.status is RunStatus.COMPLETED
    offers = ["web_search_20" in json.dumps(body) for body in service.bodies]
    assert offers == ([True, False, True] if rule else [True, True])
    assert [list(request.provider_tools) for request in other.requests] == ([] if rule else [[]])
    [event] = [each for each in events if each.event_type is EventType.PROVIDER_TOOL_DENIED]
    assert event.payload["code"] == code
    assert words in event.payload["message"]


async def test_an_unknown_tool_is_an_error_of_the_configuration(home: Home, project: Path) -> None:
    async with Service().open() as service:
        config = model(service, "anthropic", "telepathy")
        with pytest.raises(ConfigError, match="telepathy"):
            async with opened(home, project, config) as made:
                await made.start("go", "s1")


# Terminal


@pytest.mark.sweep
async def test_the_terminal_shows_searches_and_sources_live_and_later(
    home: Home, project: Path
) -> None:
    async with Service(SEARCHED).open() as service:
        home.write_config(model(service, "anthropic", "web_search") + ALLOWED)
        command = [sys.executable, "-m", "agent_core.cli"]
        environment = {**os.environ, "SOONG_AGENT_HOME": str(home.path)}

        async def call(*words: str) -> tuple[str, str]:
            process = await asyncio.create_subprocess_exec(
                *command,
                *words,
                cwd=project,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            out, err = await process.communicate()
            assert process.returncode == 0, err.decode()
            return out.decode(), err.decode()

        out, err = await call("run", "--session-id", "s1", "which colour?")
        assert "The lamp is red, as they say." in out
        assert "web_search: lamps" in err
        assert "Red lamps https://lamps.test/red" in err
        for words in (["sessions", "show", "s1"], ["sessions", "export", "s1", "--markdown"]):
            shown, _ = await call(*words)
            assert "web_search: lamps" in shown, words
            assert "https://lamps.test/red" in shown, words
