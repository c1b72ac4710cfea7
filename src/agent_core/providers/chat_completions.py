"""OpenAI's Chat Completions protocol, also for compatible servers.

`provider_options.openai` accepts the names in `KNOWN_OPTIONS` that its protocol has;
`extra_body` and `headers` are tables for anything else a compatible server wants.
"""

import re
from collections.abc import Mapping, Set as AbstractSet
from urllib.parse import quote, urlsplit

from agent_core.config.models import ModelConfig
from agent_core.config.services import COMPATIBLE
from agent_core.providers.compat import without
from agent_core.providers.failures import Called
from agent_core.providers.http_provider import HttpProvider
from agent_core.providers.images import ImageRules
from agent_core.providers.openai_wire import OpenAIChunks, OpenAIRequests
from agent_core.providers.output_schema import openai_format
from agent_core.providers.requests import EXTRA_BODY, HEADERS, effort_of, sampling_fields
from agent_core.text.json_text import JsonObject, JsonValue, table
from agent_core.types import ModelRequest

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
CHAT_ONLY = frozenset({"frequency_penalty", "logit_bias", "presence_penalty", "seed"})
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
KNOWN_OPTIONS = _BOTH | CHAT_ONLY | _RESPONSES_ONLY

_SEARCH_OF_XAI: Mapping[str, JsonValue] = {
    "web_search": {"search_parameters": {"mode": "auto", "return_citations": True}}
}
"""The search of xAI's Chat Completions, which is no tool there."""

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
            "random_seed",
            "reasoning_effort",
            "seed",
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
            config = config.at_address(address)
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
        return self._dialect.tool_result_images == "user"

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

    def write_body(self, request: ModelRequest, options: JsonObject, called: Called) -> bytes:
        """Write a Chat Completions body."""
        refuse_options(options, _RESPONSES_ONLY, called, protocol="responses")
        extra = table(options.pop(EXTRA_BODY, None))
        refused = self.refused(request.model)
        seed = "random_seed" if self._server == "mistral" else "seed"
        limit = self._dialect.max_tokens_field
        head = sampling_fields(self._config, request, limit, seed=seed)
        head["stream_options"] = {"include_usage": True}
        if request.output is not None:
            head["response_format"] = {
                "type": "json_schema",
                "json_schema": openai_format(request),
            }
        if "web_search" in request.provider_tools and "web_search" in self.provider_tools:
            head |= table(self.provider_tools["web_search"])
        if effort := effort_of(self._config, request):
            head |= _reasoning(effort, self._dialect.reasoning_field)
            if self._server in {"openai", "azure"} and effort != "none":  # refused beside reasoning
                head.pop("temperature", None)
        fields = {**without({**head, **options}, refused), **extra}
        reasoning = self._forms.of(request.model).reasoning
        return self._requests.body(request, fields, called, refused=refused, reasoning=reasoning)


def _reasoning(effort: str, field: str) -> JsonObject:
    """Return the amount of reasoning in the server's field; two of them only switch it."""
    match field:
        case "thinking":
            return {field: {"type": "disabled" if effort == "none" else "enabled"}}
        case "enable_thinking":
            return {field: effort != "none"}
        case _:
            return {field: effort}


def refuse_options(
    options: Mapping[str, JsonValue], foreign: AbstractSet[str], called: Called, *, protocol: str
) -> None:
    """Refuse options that only the other protocol has: they would be dropped, or fail the call."""
    for option in sorted(foreign & options.keys()):
        where = f"provider_options.{called.provider}.{option}"
        raise called.unsupported(
            where,
            f'{where} is of another protocol; leave it out, or set [model] api = "{protocol}"',
        )
