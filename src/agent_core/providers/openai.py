"""OpenAI's Chat Completions, and every server that is compatible with it.

`provider_options.openai` takes what is listed in `KNOWN_OPTIONS`; `extra_body` and `headers` are
tables for whatever else a compatible server wants.
"""

from typing import Any
from urllib.parse import urlsplit

from agent_core.config.models import ModelConfig
from agent_core.providers.decoding import Decoder, EventDecoder
from agent_core.providers.failures import Called
from agent_core.providers.http_provider import HttpProvider, Prepared
from agent_core.providers.openai_wire import OpenAIChunks, OpenAIRequests
from agent_core.providers.reply import ReplyAccumulator
from agent_core.providers.requests import EXTRA_BODY, HEADERS, ToolNames, own_options
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


class OpenAIDialect:
    """See `Dialect`."""

    provider = "openai"
    default_url = "https://api.openai.com/v1"
    path = "/chat/completions"
    is_event_stream = True

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._requests = OpenAIRequests(self.provider)
        self._max_tokens = _max_tokens_field(config.base_url or self.default_url)

    def prepare(self, request: ModelRequest, called: Called) -> Prepared:
        """The request as a Chat Completions body."""
        config = self._config
        options = own_options(
            called, KNOWN_OPTIONS, config.provider_options, request.provider_options
        )
        extra, headers = options.pop(EXTRA_BODY, {}), options.pop(HEADERS, {})
        head: dict[str, Any] = {
            self._max_tokens: request.max_output_tokens or config.max_output_tokens,
            "stream_options": {"include_usage": True},
        }
        temperature = config.temperature if request.temperature is None else request.temperature
        if temperature is not None:
            head["temperature"] = temperature
        body = self._requests.body(request, {**head, **options, **extra}, called)
        names = ToolNames(tool.name for tool in request.tools)

        def new_parser() -> OpenAIChunks:
            draft = ReplyAccumulator(self.provider, names.canonical, history=request.messages)
            return OpenAIChunks(called, draft)

        return Prepared(body, headers, new_parser)

    def key_header(self, key: str) -> tuple[str, str]:
        """A bearer token."""
        return "Authorization", f"Bearer {key}"

    def new_decoder(self) -> Decoder:
        """Server-sent events."""
        return EventDecoder()


def create(config: ModelConfig) -> HttpProvider:
    """The adapter for `provider = "openai"`.

    Raises:
        ConfigError: `[model] base_url` is not a plain HTTP address.
    """
    return HttpProvider(config, OpenAIDialect(config))


def _max_tokens_field(base_url: str) -> str:
    """OpenAI's own models refuse `max_tokens`; most compatible servers know nothing else."""
    host = urlsplit(base_url).hostname or ""
    own = host == "openai.com" or host.endswith((".openai.com", ".openai.azure.com"))
    return "max_completion_tokens" if own else "max_tokens"
