"""Anthropic's Messages API.

`provider_options.anthropic` takes what is listed in `KNOWN_OPTIONS`; `headers` is the place for
`anthropic-beta`.
"""

from typing import Any

from agent_core.config.models import ModelConfig
from agent_core.providers.anthropic_wire import AnthropicEvents, AnthropicRequests
from agent_core.providers.decoding import Decoder, EventDecoder
from agent_core.providers.failures import Called
from agent_core.providers.http_provider import HttpProvider, Prepared
from agent_core.providers.names import ToolNames
from agent_core.providers.options import EXTRA_BODY, HEADERS, own_options
from agent_core.providers.reply import ReplyAccumulator
from agent_core.types import ModelRequest

API_VERSION = "2023-06-01"
KNOWN_OPTIONS = frozenset(
    {
        "metadata",
        "output_config",
        "service_tier",
        "thinking",
        "top_k",
        "top_p",
        EXTRA_BODY,
        HEADERS,
    }
)


class AnthropicDialect:
    """See `Dialect`."""

    provider = "anthropic"
    default_url = "https://api.anthropic.com"
    path = "/v1/messages"
    is_event_stream = True

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._requests = AnthropicRequests(self.provider)

    def prepare(self, request: ModelRequest, called: Called) -> Prepared:
        """The request as a Messages body."""
        config = self._config
        options = own_options(
            called, KNOWN_OPTIONS, config.provider_options, request.provider_options
        )
        extra, headers = options.pop(EXTRA_BODY, {}), options.pop(HEADERS, {})
        head: dict[str, Any] = {"max_tokens": request.max_output_tokens or config.max_output_tokens}
        temperature = config.temperature if request.temperature is None else request.temperature
        if temperature is not None:
            head["temperature"] = temperature
        body = self._requests.body(request, {**head, **options, **extra}, called)
        names = ToolNames(tool.name for tool in request.tools)

        def new_parser() -> AnthropicEvents:
            draft = ReplyAccumulator(self.provider, names.canonical, history=request.messages)
            return AnthropicEvents(called, draft)

        return Prepared(body, {"anthropic-version": API_VERSION, **headers}, new_parser)

    def key_header(self, key: str) -> tuple[str, str]:
        """A header of its own."""
        return "x-api-key", key

    def new_decoder(self) -> Decoder:
        """Server-sent events."""
        return EventDecoder()


def create(config: ModelConfig) -> HttpProvider:
    """The adapter for `provider = "anthropic"`.

    Raises:
        ConfigError: `[model] base_url` is not a plain HTTP address.
    """
    return HttpProvider(config, AnthropicDialect(config))
