"""OpenAI's Chat Completions, and every server that is compatible with it.

`provider_options.openai` takes what is listed in `KNOWN_OPTIONS`; `extra_body` and `headers` are
tables for whatever else a compatible server wants.
"""

from typing import Any
from urllib.parse import urlsplit

from agent_core.config.models import ModelConfig
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


class OpenAIProvider(HttpProvider):
    """The adapter for `provider = "openai"`."""

    provider = "openai"
    default_url = "https://api.openai.com/v1"
    path = "/chat/completions"
    known_options = KNOWN_OPTIONS
    parser = OpenAIChunks

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self._requests = OpenAIRequests(self.provider)
        # OpenAI's own models refuse `max_tokens`; most compatible servers know nothing else.
        host = urlsplit(self._url).hostname or ""
        is_openai = host == "openai.com" or host.endswith((".openai.com", ".openai.azure.com"))
        self._is_openai = is_openai
        self._limit_field = "max_completion_tokens" if is_openai else "max_tokens"

    def write_body(self, request: ModelRequest, options: dict[str, Any], called: Called) -> bytes:
        """Write a Chat Completions body."""
        extra = options.pop(EXTRA_BODY, {})
        head = sampling_fields(self._config, request, self._limit_field)
        head["stream_options"] = {"include_usage": True}
        if effort := self._config.reasoning:
            head["reasoning_effort"] = effort
            if self._is_openai and effort != "none":  # refused beside reasoning
                head.pop("temperature", None)
        return self._requests.body(request, {**head, **options, **extra}, called)
