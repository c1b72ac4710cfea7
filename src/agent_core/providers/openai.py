"""The choice between OpenAI's two protocols, Responses and Chat Completions."""

from agent_core.config.models import ModelConfig
from agent_core.providers.chat_completions import OpenAIProvider
from agent_core.providers.compat import host_of, server_of

_WITH_TOOLS = frozenset({"azure", "openai", "xai"})
"""Services that run tools themselves over Responses."""


def create(config: ModelConfig) -> OpenAIProvider:
    """Create the adapter of a service; OpenAI itself is called through Responses."""
    is_responses = config.api == "responses"
    if config.api == "auto":
        host = host_of(config.address or OpenAIProvider.default_url)
        server = server_of(config.address or "", config.compat, config.provider)
        has_tools = bool(config.provider_tools) and server in _WITH_TOOLS
        is_responses = has_tools or f".{host}".endswith(".api.openai.com")
    if not is_responses:
        return OpenAIProvider(config)
    from agent_core.providers.responses import OpenAIResponsesProvider  # noqa: PLC0415

    return OpenAIResponsesProvider(config)
