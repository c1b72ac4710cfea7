"""OpenAI's Chat Completions, and every server that is compatible with it.

`provider_options.openai` takes what is listed in `KNOWN_OPTIONS`; `extra_body` and `headers` are
tables for whatever else a compatible server wants.
"""

import re
from typing import Any
from urllib.parse import quote, urlsplit

from agent_core.config.models import ModelConfig
from agent_core.providers.compat import dialect_of, server_of, without
from agent_core.providers.failures import Called
from agent_core.providers.http_provider import HttpProvider
from agent_core.providers.openai_wire import OpenAIChunks, OpenAIRequests
from agent_core.providers.requests import EXTRA_BODY, HEADERS, sampling_fields
from agent_core.types import ModelRequest

KNOWN_OPTIONS = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "parallel_tool_calls",
        "presence_penalty",
        "prompt_cache_key",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "store",
        "top_p",
        "user",
        "verbosity",
        EXTRA_BODY,
        HEADERS,
    }
)

_API_VERSION = re.compile(r"api-version=[A-Za-z0-9.-]{1,40}")
"""The only query that an address may have: Azure's, which holds no secret."""


class OpenAIProvider(HttpProvider):
    """The adapter for `provider = "openai"`."""

    provider = "openai"
    default_url = "https://api.openai.com/v1"
    path = "/chat/completions"
    known_options = KNOWN_OPTIONS
    parser = OpenAIChunks

    optional_fields = frozenset(
        {
            "max_completion_tokens",
            "max_tokens",
            "parallel_tool_calls",
            "prompt_cache_key",
            "reasoning_effort",
            "stream_options",
            "strict",
            "temperature",
            "tool_choice",
            "top_p",
        }
    )

    def __init__(self, config: ModelConfig) -> None:
        address, _, query = (config.base_url or "").strip().partition("?")
        if _API_VERSION.fullmatch(query):
            config = config.model_copy(update={"base_url": address})
            self._query = f"?{query}"
        else:
            self._query = ""
        super().__init__(config)
        self._server = server_of(self._url, config.compat)
        self._dialect = dialect_of(self._server, config.compat)
        self._requests = OpenAIRequests(self.provider, self._dialect)
        if self._dialect.key_header == "api-key":
            self.key_header = ("api-key", "")
        self._shows_result_images = self._dialect.tool_result_images != "none"

    def refused(self, model: str) -> frozenset[str]:
        """The fields that this server, or this model, is not sent."""
        return super().refused(model) | self._dialect.left_out

    def address(self, model: str) -> str:
        """Where a call of `model` is sent; Azure has a deployment, or a version, in the address."""
        url = self._url.removesuffix(self.path).removesuffix(self.path)  # Azure's portal has both
        if self._server == "azure" and urlsplit(url).path in {"", "/openai"}:
            root = url.removesuffix("/openai") + "/openai"
            url = f"{root}/deployments/{quote(model, safe='')}" if self._query else f"{root}/v1"
        return url + self.path + self._query

    def write_body(self, request: ModelRequest, options: dict[str, Any], called: Called) -> bytes:
        """Write a Chat Completions body."""
        extra = options.pop(EXTRA_BODY, {})
        refused = self.refused(request.model)
        head = sampling_fields(self._config, request, self._dialect.max_tokens_field)
        head["stream_options"] = {"include_usage": True}
        if effort := self._config.reasoning:
            head["reasoning_effort"] = effort
            if self._server in {"openai", "azure"} and effort != "none":  # refused beside reasoning
                head.pop("temperature", None)
        fields = {**without({**head, **options}, refused), **extra}
        return self._requests.body(request, fields, called, refused=refused)
