"""OpenAI's two protocols, Responses and Chat Completions, also for compatible servers.

`provider_options.openai` accepts the names in `KNOWN_OPTIONS` that the protocol has; `extra_body`
and `headers` are tables for anything else a compatible server wants.
"""

import re
from collections.abc import Mapping, Set as AbstractSet
from typing import Any
from urllib.parse import quote, urlsplit

from agent_core.config.models import ModelConfig
from agent_core.config.services import COMPATIBLE
from agent_core.providers.compat import host_of, server_of, without
from agent_core.providers.failures import Called
from agent_core.providers.http_provider import HttpProvider, Prepared
from agent_core.providers.images import ImageRules
from agent_core.providers.openai_wire import OpenAIChunks, OpenAIRequests
from agent_core.providers.output_schema import openai_format
from agent_core.providers.reply import table
from agent_core.providers.requests import EXTRA_BODY, HEADERS, sampling_fields
from agent_core.providers.responses_events import ResponsesEvents
from agent_core.providers.responses_wire import ResponsesRequests
from agent_core.types import ErrorPayload, ModelRequest

_BOTH = frozenset(
    {
        "parallel_tool_calls",
        "prompt_cache_key",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "service_tier",
        "store",
        "top_p",
        "user",
        "verbosity",
        EXTRA_BODY,
        HEADERS,
    }
)
_CHAT_ONLY = frozenset({"frequency_penalty", "logit_bias", "presence_penalty", "seed"})
_RESPONSES_ONLY = frozenset(
    {
        "include",
        "max_tool_calls",
        "metadata",
        "prompt_cache_retention",
        "reasoning",
        "text",
        "top_logprobs",
        "truncation",
    }
)
KNOWN_OPTIONS = _BOTH | _CHAT_ONLY | _RESPONSES_ONLY

_API_VERSION = re.compile(r"api-version=[A-Za-z0-9.-]{1,40}")
"""The only query that an address may have: Azure's, which holds no secret."""


class OpenAIProvider(HttpProvider):
    """The adapter for `provider = "openai"` over Chat Completions."""

    provider = "openai"
    default_url = "https://api.openai.com/v1"
    path = "/chat/completions"
    known_options = KNOWN_OPTIONS
    parser = OpenAIChunks

    output_fields = frozenset({"response_format", "json_schema"})
    optional_fields = frozenset(
        {
            "max_completion_tokens",
            "max_tokens",
            "parallel_tool_calls",
            "prompt_cache_key",
            "reasoning_effort",
            "stream_options",
            "strict",
            "enable_thinking",
            "temperature",
            "thinking",
            "tool_choice",
            "top_p",
        }
    )

    def __init__(self, config: ModelConfig) -> None:
        self.provider = config.provider if config.provider in COMPATIBLE else self.provider
        address, _, query = (config.address or "").strip().partition("?")
        if _API_VERSION.fullmatch(query):
            config = config.model_copy(update={"base_url": address})
            self._query = f"?{query}"
        else:
            self._query = ""
        super().__init__(config)
        self._requests = OpenAIRequests(self.provider, self._dialect)
        if self._server == "xai":
            self.provider_tools = _SEARCH_OF_XAI
        if self._dialect.key_header == "api-key":
            self.key_header = ("api-key", "")
        self._images = ImageRules(
            supports_images=config.supports_images,
            shows_results=self._dialect.tool_result_images != "none",
        )

    @property
    def shows_images_apart(self) -> bool:
        """Return whether images of results are in a message of the user after them."""
        return self.path == OpenAIProvider.path and self._dialect.tool_result_images == "user"

    def refused(self, model: str) -> frozenset[str]:
        """Return the fields that are not sent to this server or this model."""
        return super().refused(model) | self._dialect.left_out

    def address(self, model: str) -> str:
        """Return the address for calls of `model`; Azure's has a deployment or a version in it."""
        url = self._url.removesuffix(self.path).removesuffix(self.path)  # Azure's portal has both
        if self._server == "azure" and urlsplit(url).path in {"", "/openai"}:
            place = self._versioned_place(model) if self._query else "/v1"
            url = url.removesuffix("/openai") + "/openai" + place
        return url + self.path + self._query

    def _versioned_place(self, model: str) -> str:
        return f"/deployments/{quote(model, safe='')}"

    def takes_output(self, request: ModelRequest, *, beside_tools: bool) -> bool:  # noqa: ARG002
        """Return whether the server's dialect allows it."""
        mode = self._dialect.json_schema
        return mode == "always" or (mode == "alone" and not beside_tools)

    def write_body(self, request: ModelRequest, options: dict[str, Any], called: Called) -> bytes:
        """Write a Chat Completions body."""
        _refuse(options, _RESPONSES_ONLY, called, protocol="responses")
        extra = options.pop(EXTRA_BODY, {})
        refused = self.refused(request.model)
        head = sampling_fields(self._config, request, self._dialect.max_tokens_field)
        head["stream_options"] = {"include_usage": True}
        if request.output is not None:
            head["response_format"] = {
                "type": "json_schema",
                "json_schema": openai_format(request),
            }
        if "web_search" in request.provider_tools and "web_search" in self.provider_tools:
            head |= self.provider_tools["web_search"]
        if effort := self._config.reasoning:
            head |= _reasoning(effort, self._dialect.reasoning_field)
            if self._server in {"openai", "azure"} and effort != "none":  # refused beside reasoning
                head.pop("temperature", None)
        fields = {**without({**head, **options}, refused), **extra}
        reasoning = self._forms.of(request.model).reasoning
        return self._requests.body(request, fields, called, refused=refused, reasoning=reasoning)


def _reasoning(effort: str, field: str) -> dict[str, Any]:
    """Return the amount of reasoning in the server's field; two of them only switch it."""
    match field:
        case "thinking":
            return {field: {"type": "disabled" if effort == "none" else "enabled"}}
        case "enable_thinking":
            return {field: effort != "none"}
        case _:
            return {field: effort}


class OpenAIResponsesProvider(OpenAIProvider):
    """The adapter for `provider = "openai"` over Responses.

    The service stores nothing: every request has the whole conversation, with the reasoning
    in its encrypted form.
    """

    path = "/responses"
    parser = ResponsesEvents
    output_fields = frozenset({"format", "json_schema", "response_format"})
    optional_fields = frozenset(
        {
            "effort",
            "include",
            "parallel_tool_calls",
            "prompt_cache_key",
            "summary",
            "temperature",
            "top_p",
        }
    )

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.provider_tools = _TOOLS if self._server in {None, *_WITH_TOOLS} else {}
        strict = self._dialect.strict_tools
        self._items = ResponsesRequests(self.provider, strict_tools=strict)

    def _versioned_place(self, model: str) -> str:  # noqa: ARG002 - it is in the body
        return ""

    def write_body(self, request: ModelRequest, options: dict[str, Any], called: Called) -> bytes:
        """Write a Responses body."""
        _refuse(options, _CHAT_ONLY, called, protocol="chat")
        extra = options.pop(EXTRA_BODY, {})
        refused = self.refused(request.model)
        head = sampling_fields(self._config, request, "max_output_tokens")
        head["max_output_tokens"] = max(head["max_output_tokens"], _LEAST_OUTPUT)
        head["store"] = False
        if not re.match(_WITHOUT_REASONING, request.model):
            head["include"] = ["reasoning.encrypted_content"]
        reasoning = self._reasoning(options, refused)
        if reasoning:
            head["reasoning"] = reasoning
        if reasoning.get("effort", "none") != "none":  # refused beside reasoning
            head.pop("temperature", None)
        if request.output is not None:
            options["response_format"] = {"type": "json_schema", **openai_format(request)}
        if answer := _text_fields(options):
            head["text"] = answer
        fields = {**without({**head, **options}, refused), **extra}
        if not request.provider_tools:
            return self._items.body(request, fields, called)
        if self._server in {None, "openai", "azure"} and "include" not in options:
            more = [_INCLUDED[name] for name in request.provider_tools if name in _INCLUDED]
            fields["include"] = [*fields.get("include", ()), *more]
        return self._items.body(request, fields, called, self.own_tools(request))

    def _adjusted(
        self, request: ModelRequest, before: Prepared, refusal: ErrorPayload
    ) -> Prepared | None:
        """Adjust a request; also drops reasoning that the service can no longer decrypt."""
        if not re.search(_UNREADABLE, refusal.message, re.IGNORECASE):
            return super()._adjusted(request, before, refusal)
        self._items.disown(request.messages, request.model)
        prepared = self.prepare(request, before.called)
        return prepared if prepared.body != before.body else None

    def _reasoning(self, options: dict[str, Any], refused: AbstractSet[str]) -> dict[str, Any]:
        """Return the effort and the summary of reasoning; removes these options from `options`."""
        effort = options.pop("reasoning_effort", None) or self._config.reasoning
        said = {"effort": effort, "summary": "auto"} if effort else {}
        if effort == "none":
            del said["summary"]
        said |= table(options.pop("reasoning", None))
        if "effort" in refused or "reasoning_effort" in refused:
            return {}
        return {field: value for field, value in said.items() if field not in refused}


def _text_fields(options: dict[str, Any]) -> dict[str, Any]:
    """Return the format of the answer, from the options of both protocols."""
    said: dict[str, Any] = {}
    if verbosity := options.pop("verbosity", None):
        said["verbosity"] = verbosity
    if wanted := table(options.pop("response_format", None)):
        said["format"] = {**wanted, **table(wanted.get("json_schema"))}
        said["format"].pop("json_schema", None)
    return said | table(options.pop("text", None))


def _refuse(
    options: Mapping[str, Any], foreign: AbstractSet[str], called: Called, *, protocol: str
) -> None:
    """Refuse options that only the other protocol has: they would be dropped, or fail the call."""
    for option in sorted(foreign & options.keys()):
        where = f"provider_options.{called.provider}.{option}"
        raise called.unsupported(
            where,
            f'{where} is of another protocol; leave it out, or set [model] api = "{protocol}"',
        )


_TOOLS: Mapping[str, Any] = {
    "web_search": {"type": "web_search"},
    "code_execution": {"type": "code_interpreter", "container": {"type": "auto"}},
}
"""The tools that Responses runs itself; its search opens pages, too."""
_WITH_TOOLS = frozenset({"azure", "openai", "xai"})
_INCLUDED: Mapping[str, str] = {
    "web_search": "web_search_call.action.sources",
    "code_execution": "code_interpreter_call.outputs",
}
"""What the service leaves out of its answers if it is not asked for."""
_SEARCH_OF_XAI: Mapping[str, Any] = {
    "web_search": {"search_parameters": {"mode": "auto", "return_citations": True}}
}
"""The search of xAI's Chat Completions, which is no tool there."""
_LEAST_OUTPUT = 16
"""Smallest number of tokens that may be requested for an answer."""
_UNREADABLE = r"invalid_encrypted_content|encrypted content.{0,200}(verified|decrypted|parsed)"
"""OpenAI's words about reasoning from another organisation, or from before a change of keys."""
_WITHOUT_REASONING = r"(ft:)?(gpt-3|gpt-4|chatgpt-4)"
"""OpenAI's models that refuse a request for encrypted reasoning; all later ones reason."""


def create(config: ModelConfig) -> OpenAIProvider:
    """Create the adapter for `provider = "openai"`; OpenAI itself is called through Responses."""
    host = host_of(config.address or OpenAIProvider.default_url)
    is_openai = f".{host}".endswith(".api.openai.com")
    has_responses = is_openai
    if config.provider_tools and config.api == "auto":
        server = server_of(config.address or "", config.compat, config.provider)
        has_responses = is_openai or server in _WITH_TOOLS
    if config.api == "responses" or (config.api == "auto" and has_responses):
        return OpenAIResponsesProvider(config)
    return OpenAIProvider(config)
