"""Conversations with services that refuse what Google's and Amazon's own refuse."""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest

from agent_core import AgentRuntime, RunStatus, UserMessage, tool
from agent_core.providers.scripted import Calls, Says, ScriptedCall
from agent_core.types import ImageBlock, TextBlock
from isolation import Home
from model_server import ModelServer, Received, Reply, Status
from model_server_wire import SIGNATURE, Protocol, error_body

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(30)).decode()
GEMINI = "gemini-3-pro-preview"
CLAUDE = "us.anthropic.claude-sonnet-4-20250514-v1:0"


class RefusalError(Exception):
    """What the service has against a request."""


def demand(claim: object, words: str) -> None:
    if not claim:
        raise RefusalError(words)


def only(fields: Mapping[str, Any], known: str) -> None:
    demand(fields.keys() <= set(known.split()), f"Unknown name in {sorted(fields)}")


# Gemini


def judge_gemini(asked: Received) -> None:
    demand(asked.headers.get("x-goog-api-key") == "a key", "API key not valid.")
    demand(asked.path == f"/v1beta/models/{GEMINI}:streamGenerateContent?alt=sse", "no such path")
    body = asked.body
    only(body, "contents systemInstruction tools toolConfig generationConfig")
    only(body["generationConfig"], "maxOutputTokens thinkingConfig")
    thinking = body["generationConfig"]["thinkingConfig"]
    demand(thinking == {"includeThoughts": True, "thinkingLevel": "high"}, "thinking")
    only(body["systemInstruction"], "parts")
    [offered] = body["tools"]
    names = set[str]()
    for declared in offered["functionDeclarations"]:
        only(declared, "name description parametersJsonSchema")
        demand(re.fullmatch(r"[A-Za-z_][\w.:-]{0,63}", declared["name"]), "invalid name")
        demand(declared["parametersJsonSchema"]["type"] == "object", "not an object")
        names.add(declared["name"])
    waiting: list[tuple[str, str]] = []
    before = None
    for content in body["contents"]:
        only(content, "role parts")
        demand(content["role"] in {"user", "model"}, "Please use a valid role: user, model.")
        demand(content["role"] != before and content["parts"], "roles must alternate")
        before = content["role"]
        waiting = judge_parts(content, waiting, names)
    demand(before == "user", "the last turn must be a user's")


def judge_parts(
    content: dict[str, Any], waiting: list[tuple[str, str]], names: set[str]
) -> list[tuple[str, str]]:
    """Returns the calls of the content, which the next one must answer."""
    calls: list[tuple[str, str]] = []
    answers: list[tuple[str, str]] = []
    is_model = content["role"] == "model"
    for part in content["parts"]:
        kinds = part.keys() & {"text", "inlineData", "functionCall", "functionResponse"}
        demand(len(kinds) == 1, "oneof field 'data'")
        only(part, f"{kinds.pop()} thought thoughtSignature")
        demand("thoughtSignature" not in part or is_model, "a signature of a user")
        if call := part.get("functionCall"):
            only(call, "id name args")
            demand(is_model and call["name"] in names, "unknown function")
            signature = part.get("thoughtSignature")
            demand(signature == (None if calls else SIGNATURE), "missing a thought_signature")
            calls.append((call["id"], call["name"]))
        elif answer := part.get("functionResponse"):
            only(answer, "id name response")
            demand(isinstance(answer["response"], dict), "not a Struct")
            answers.append((answer["id"], answer["name"]))
        elif image := part.get("inlineData"):
            only(image, "mimeType data")
            decoded(image["data"])
    demand(answers == waiting, "the number of function response parts is not that of the calls")
    return calls


def decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        raise RefusalError("Base64 decoding failed") from None


# Bedrock


def judge_bedrock(asked: Received) -> None:
    demand(asked.path == f"/model/{CLAUDE.replace(':', '%3A')}/converse-stream", "no such path")
    judge_signature(asked)
    body = asked.body
    session: Any = import_module("botocore.session").Session()
    operation = session.get_service_model("bedrock-runtime").operation_model("ConverseStream")
    validator: Any = import_module("botocore.validate").ParamValidator()
    report = validator.validate({"modelId": CLAUDE, **with_bytes(body)}, operation.input_shape)
    demand(not report.has_errors(), report.generate_report())
    thinking = body["additionalModelRequestFields"]["thinking"]
    demand(thinking["budget_tokens"] < body["inferenceConfig"]["maxTokens"], "budget_tokens")
    demand("temperature" not in body["inferenceConfig"], "temperature may only be set to 1")
    demand(asked.raw.count(b'"cachePoint"') <= 4, "too many cache points")
    waiting: list[str] = []
    before = None
    for message in body["messages"]:
        demand(message["role"] != before, "roles must alternate between user and assistant")
        before = message["role"]
        blocks: list[dict[str, Any]] = message["content"]
        texts = (block["text"] for block in blocks if "text" in block)
        demand(all(map(str.strip, texts)), "text content blocks must be non-empty")
        answers = [block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block]
        demand(answers == waiting, "the ids of toolResult blocks are not those of toolUse blocks")
        demand(all("toolResult" in block for block in blocks[: len(answers)]), "results first")
        waiting = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
        if waiting:
            thought = blocks[0].get("reasoningContent", {}).get("reasoningText", {})
            demand(thought.get("signature") == SIGNATURE, "expected `thinking` first")


def with_bytes(value: Any) -> Any:
    """The request as the service's own model has it: binary data as bytes."""
    if isinstance(value, list):
        return [with_bytes(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    return {
        key: decoded(item) if key in {"bytes", "redactedContent"} else with_bytes(item)
        for key, item in cast("dict[str, Any]", value).items()
    }


def judge_signature(asked: Received) -> None:
    """Sign what arrived as the service does, and compare."""
    auth: Any = import_module("botocore.auth")
    credentials: Any = import_module("botocore.credentials").Credentials(
        "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    )
    found = re.search(r"SignedHeaders=([^,]+), Signature=(\w+)", asked.headers["authorization"])
    demand(found, "the security token included in the request is invalid")
    assert found is not None
    signed = {name: asked.headers[name] for name in found[1].split(";")}
    url = f"http://{asked.headers['host']}{asked.path}"
    request: Any = import_module("botocore.awsrequest").AWSRequest("POST", url, signed, asked.raw)
    request.context["timestamp"] = asked.headers["x-amz-date"]
    signer = auth.SigV4Auth(credentials, "bedrock", "us-east-1")
    text = signer.string_to_sign(request, signer.canonical_request(request))
    expected = signer.signature(text, request)
    demand(found[2] == expected, "The request signature we calculated does not match")


# Conversations


@dataclass(frozen=True)
class Service:
    key: str
    model: str
    judge: Callable[[Received], None]
    config: str = ""

    def answers(self, reply: Reply) -> Callable[[Received], Reply]:
        """The reply, if the request is one that the service takes."""

        def answer(asked: Received) -> Reply:
            try:
                self.judge(asked)
            except RefusalError as refusal:
                return Status(400, error_body(Protocol(self.key), str(refusal)))
            return reply

        return answer

    def configuration(self, server: ModelServer) -> str:
        return (
            f'[model]\nprovider = "{self.key}"\nname = "{self.model}"\ncontext_window = 64000\n'
            f'base_url = "{server.base_url(self.key)}"\nreasoning = "high"\n'
            f"retry = {{ max_attempts = 1 }}\n{self.config}"
        )


SERVICES = [
    Service("gemini", GEMINI, judge_gemini, 'api_key_env = "SOME_KEY"'),
    Service("bedrock", CLAUDE, judge_bedrock),
]


@pytest.fixture(params=SERVICES, ids=lambda service: service.key)
def service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setenv("SOME_KEY", "a key")
    found: Service = request.param
    return found


def script() -> Iterator[Reply]:
    yield Calls(
        reasoning="Both at once.",
        text="I look at both.",
        calls=[
            ScriptedCall(name="draw", arguments={"what": "a"}),
            ScriptedCall(name="draw", arguments={"what": "b"}),
        ],
    )
    yield Calls(reasoning="One fails.", calls=[ScriptedCall(name="draw", arguments={"what": ""})])
    yield Says(text="Done.", reasoning="That was it.")
    yield Calls(reasoning="Again.", calls=[ScriptedCall(name="draw", arguments={"no": 1})])
    yield Says(text="Good bye.")


async def test_a_conversation_with_calls_pictures_and_reasoning_is_taken(
    service: Service, home: Home, project: Path
) -> None:
    async with ModelServer([service.answers(reply) for reply in script()]) as server:
        home.write_config(service.configuration(server))
        made = AgentRuntime(home_dir=home.path, project_dir=project)

        @made.register_tool
        @tool(permission="readonly")
        async def draw(what: str) -> list[TextBlock | ImageBlock]:
            """Draw something."""
            if not what:
                raise ValueError("nothing to draw")
            return [TextBlock(text=f"here is {what}"), ImageBlock(mime_type="image/png", data=PNG)]

        async with made as runtime:
            shown = ImageBlock(mime_type="image/png", data=PNG)
            message = UserMessage(content=[TextBlock(text="Like this?"), shown])
            first = await runtime.start(message, session_id="s1")
            await first.wait()
            assert (first.status, first.result_text) == (RunStatus.COMPLETED, "Done."), first.error
            second = await runtime.start("And now?", session_id="s1")
            await second.wait()
            assert (second.status, second.result_text) == (RunStatus.COMPLETED, "Good bye.")
        server.assert_complete()
        assert server.requests[1].text.count(f'"{PNG}"') == 3
