"""Ollama's own chat endpoint.

`provider_options.ollama` takes `think`, `keep_alive`, `format`, an `options` table of model
parameters (Ollama checks those itself), and `extra_body` and `headers`.
"""

from typing import Any

from agent_core.config.models import ModelConfig
from agent_core.providers.chunks import table
from agent_core.providers.decoding import Decoder, JsonLineDecoder
from agent_core.providers.failures import Called
from agent_core.providers.http_provider import HttpProvider, Prepared
from agent_core.providers.names import ToolNames
from agent_core.providers.ollama_wire import OllamaLines, OllamaRequests
from agent_core.providers.options import EXTRA_BODY, HEADERS, own_options
from agent_core.providers.reply import ReplyAccumulator
from agent_core.types import ModelRequest

KNOWN_OPTIONS = frozenset({"format", "keep_alive", "options", "think", EXTRA_BODY, HEADERS})


class OllamaDialect:
    """See `Dialect`."""

    provider = "ollama"
    default_url = "http://127.0.0.1:11434"
    path = "/api/chat"
    is_event_stream = False

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._requests = OllamaRequests(self.provider)

    def prepare(self, request: ModelRequest, called: Called) -> Prepared:
        """The request as a chat body."""
        options = own_options(
            called, KNOWN_OPTIONS, self._config.provider_options, request.provider_options
        )
        extra, headers = options.pop(EXTRA_BODY, {}), options.pop(HEADERS, {})
        parameters = {**self._parameters(request), **table(options.pop("options", None))}
        # Without `truncate` a prompt that is too long loses its beginning, and nobody is told.
        head = {"options": parameters, "truncate": False, **options, **extra}
        body = self._requests.body(request, head, called)
        names = ToolNames(tool.name for tool in request.tools)

        def new_parser() -> OllamaLines:
            draft = ReplyAccumulator(self.provider, names.canonical, history=request.messages)
            return OllamaLines(called, draft)

        return Prepared(body, headers, new_parser)

    def key_header(self, key: str) -> tuple[str, str]:
        """A bearer token, for a server behind a gateway."""
        return "Authorization", f"Bearer {key}"

    def new_decoder(self) -> Decoder:
        """One JSON object per line."""
        return JsonLineDecoder()

    def _parameters(self, request: ModelRequest) -> dict[str, Any]:
        config = self._config
        parameters: dict[str, Any] = {
            "num_ctx": config.context_window,
            "num_predict": request.max_output_tokens or config.max_output_tokens,
        }
        temperature = config.temperature if request.temperature is None else request.temperature
        if temperature is not None:
            parameters["temperature"] = temperature
        if request.stop:
            parameters["stop"] = request.stop
        return parameters


def create(config: ModelConfig) -> HttpProvider:
    """The adapter for `provider = "ollama"`.

    Raises:
        ConfigError: `[model] base_url` is not a plain HTTP address.
    """
    return HttpProvider(config, OllamaDialect(config))
