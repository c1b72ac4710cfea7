"""The profile's model as Pydantic AI knows models, and its failures as kgent tells failures."""

from collections.abc import Callable, Mapping

import httpx2
from pydantic_ai import exceptions
from pydantic_ai.models import Model

from agent_core.errors import ErrorCode
from kgent.config.models import KgentConfig
from kgent.engine.outcome import api_key, required
from kgent.errors import ErrorCategory, ErrorInfo, KgentError

_NO_KEY = "not-needed"  # servers on one's own machine take any key, but the client wants one
_CODES: tuple[tuple[type[Exception], ErrorCode, bool], ...] = (
    (exceptions.ModelAuthenticationError, ErrorCode.PROVIDER_AUTH_FAILED, False),
    (exceptions.ModelRateLimitError, ErrorCode.PROVIDER_RATE_LIMITED, True),
    (exceptions.ModelContextWindowExceededError, ErrorCode.PROMPT_TOO_LONG, False),
    (exceptions.ModelTimeoutError, ErrorCode.PROVIDER_TIMEOUT, True),
    (exceptions.ModelRequestTimeout, ErrorCode.PROVIDER_TIMEOUT, True),
    (exceptions.ModelConnectionError, ErrorCode.PROVIDER_ERROR, True),
    (exceptions.ModelServerError, ErrorCode.PROVIDER_ERROR, True),
)
_MAX_MESSAGE = 500
_TIMEOUT_S, _CONNECT_S = 600, 10
_KEY_HEADERS = {"authorization", "x-api-key", "api-key"}
_PLAIN_HEADERS = {
    "accept", "accept-encoding", "anthropic-beta", "anthropic-version", "connection",
    "content-length", "content-type", "host", "transfer-encoding", "user-agent",
}  # fmt: skip


def model_of(config: KgentConfig, client: httpx2.AsyncClient) -> Model:
    """The model that a profile names; nothing is connected.

    Credentials and addresses come from the profile only: no variable of the environment but the
    one that `model.api_key_env` names has an effect.

    Raises:
        KgentError: category `config`; provider, name or key is missing, or the provider is not one
            of those that can be used this way.
    """
    provider = required(config.model.provider, "model.provider", config)
    name = required(config.model.name, "model.name", config)
    key = api_key(config) or _NO_KEY
    known = _MAKERS.get(provider)
    if known is None:
        listed = ", ".join(sorted(_MAKERS))
        reason = (
            f"with this engine there are {listed}; a service that speaks OpenAI's protocol is"
            " openai with model.base_url"
        )
        raise _unusable(provider, name, reason)
    make, address = known
    try:
        return make(name, base_url=config.model.base_url or address, key=key, client=client)
    except (exceptions.UserError, ValueError, TypeError, ImportError) as error:
        raise _unusable(provider, name, str(error).partition("\n")[0]) from error


def _unusable(provider: str, name: str, reason: str) -> KgentError:
    message = f"Pydantic AI cannot use the model {provider}:{name}: {reason}"
    return KgentError(ErrorCode.CONFIG_ERROR, message, category=ErrorCategory.CONFIG)


def failure_of(error: exceptions.AgentRunError) -> ErrorInfo:
    """A failed run in the terms of every engine."""
    code, retryable = ErrorCode.PROVIDER_ERROR, False
    for kind, known, may_retry in _CODES:
        if isinstance(error, kind):
            code, retryable = known, may_retry
            break
    message = " ".join(str(error).split())[:_MAX_MESSAGE] or type(error).__name__
    return ErrorInfo(
        code=code.value, message=message, category=ErrorCategory.ENGINE, retryable=retryable
    )


def _openai(name: str, *, base_url: str, key: str, client: httpx2.AsyncClient) -> Model:
    """The protocol that most services speak, also those on one's own machine."""
    from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415 - a client of its own
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415

    provider = OpenAIProvider(base_url=base_url, api_key=key, http_client=client)
    return OpenAIChatModel(name, provider=provider)


def _anthropic(name: str, *, base_url: str, key: str, client: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models.anthropic import AnthropicModel  # noqa: PLC0415 - another extra
    from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: PLC0415

    provider = AnthropicProvider(base_url=base_url, api_key=key, http_client=client)
    return AnthropicModel(name, provider=provider)


_MAKERS: Mapping[str, tuple[Callable[..., Model], str]] = {
    "openai": (_openai, "https://api.openai.com/v1"),
    "ollama": (_openai, "http://127.0.0.1:11434/v1"),
    "anthropic": (_anthropic, "https://api.anthropic.com"),
}
"""By provider: what makes its model, and the address where the profile names none."""


def http_client(config: KgentConfig) -> httpx2.AsyncClient:
    """A client that sends no credential but the profile's own; the caller closes it.

    The services' own packages add what they find in the environment (keys, organisations, whole
    headers). Only headers that are known to hold none of it are sent.

    Raises:
        KgentError: category `config`; the variable of the key is not set.
    """
    key = api_key(config) or _NO_KEY

    async def keep_known_headers(request: httpx2.Request) -> None:
        for name, value in list(request.headers.items()):
            is_key = name in _KEY_HEADERS and value.removeprefix("Bearer ") == key
            if not (is_key or name in _PLAIN_HEADERS or name.startswith("x-stainless-")):
                del request.headers[name]

    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(_TIMEOUT_S, connect=_CONNECT_S),
        event_hooks={"request": [keep_known_headers]},
    )
