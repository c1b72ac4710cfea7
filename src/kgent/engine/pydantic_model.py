"""The profile's model as Pydantic AI knows models, and its failures as kgent tells failures."""

from pydantic_ai import exceptions
from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import infer_provider_class

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


def model_of(config: KgentConfig) -> Model:
    """The model that a profile names; nothing is connected.

    Raises:
        KgentError: category `config`; provider, name or key is missing, or the framework knows no
            such provider.
    """
    provider = required(config.model.provider, "model.provider", config)
    name = required(config.model.name, "model.name", config)
    key = api_key(config)
    try:
        if provider == "openai":
            return _openai(config, name, key)
        return _inferred(config, provider, name, key)
    except (exceptions.UserError, ValueError, TypeError, ImportError) as error:
        reason = str(error).partition("\n")[0]
        message = f"Pydantic AI cannot use the model {provider}:{name}: {reason}"
        raise KgentError(ErrorCode.CONFIG_ERROR, message, category=ErrorCategory.CONFIG) from error


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


def _openai(config: KgentConfig, name: str, key: str | None) -> Model:
    """The protocol that most services speak, also those on one's own machine."""
    from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415 - a client of its own
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415

    base_url = config.model.base_url
    given = key or (_NO_KEY if base_url else None)
    return OpenAIChatModel(name, provider=OpenAIProvider(base_url=base_url, api_key=given))


def _inferred(config: KgentConfig, provider: str, name: str, key: str | None) -> Model:
    settings = {"base_url": config.model.base_url, "api_key": key}
    given = {setting: value for setting, value in settings.items() if value is not None}
    return infer_model(
        f"{provider}:{name}", provider_factory=lambda kind: infer_provider_class(kind)(**given)
    )
