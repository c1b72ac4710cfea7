"""A single question to a model, outside of any run: no tools, no history, no agent."""

from collections.abc import Callable
from typing import Any

from agent_core.config.models import ModelConfig
from agent_core.context.system_prompt import system_block
from agent_core.errors import AgentCoreError, ErrorCode, ProviderError
from agent_core.loop import stream_reply
from agent_core.providers.base import ProviderAdapter
from agent_core.types import (
    ModelMessage,
    ModelRequest,
    Role,
    StopReason,
    TextBlock,
    Usage,
)


class OneShotModelCall:
    """Asks one model for one purpose, and counts what it costs; an `AskModel` of the memory.

    Args:
        model: whom to ask.
        open_adapter: gives the model's adapter, when it is needed.
        session_id: on whose behalf.
        purpose: what for; also names the system block.
    """

    def __init__(
        self,
        model: ModelConfig,
        open_adapter: Callable[[ModelConfig], ProviderAdapter],
        *,
        session_id: str,
        purpose: str,
    ) -> None:
        self.usage = Usage()
        self.model = model
        self._open_adapter = open_adapter
        self._metadata = {"session_id": session_id, "purpose": purpose}
        self._purpose = purpose

    async def __call__(self, system: str, prompt: str, *, max_tokens: int) -> str:
        """Return the answer's text.

        Raises:
            ProviderError: there is none, or it was cut off.
            ConfigError: the model cannot be used.
        """
        model = self.model
        request = ModelRequest(
            model=model.name,
            system=[system_block(self._purpose, "asset", system)],
            messages=[ModelMessage(role=Role.USER, content=[TextBlock(text=prompt)])],
            temperature=model.temperature,
            max_output_tokens=min(max_tokens, model.max_output_tokens, model.context_window // 4),
            metadata=self._metadata,
        )
        try:
            completed = await stream_reply(self._open_adapter(model), request)
        except AgentCoreError:
            raise
        except Exception as error:
            message = f"the model's adapter broke: {type(error).__name__}: {error}"
            raise ProviderError(ErrorCode.PROVIDER_ERROR, message) from error
        self.usage = self.usage.plus(completed.usage)
        if completed.stop_reason is StopReason.MAX_TOKENS:
            message = "the answer was cut off by the output limit"
            raise ProviderError(ErrorCode.MAX_OUTPUT_TOKENS, message)
        return "".join(b.text for b in completed.content if isinstance(b, TextBlock))

    def cost(self) -> dict[str, Any]:
        """What it has cost so far, for an event."""
        return self.usage.model_dump(exclude={"raw_usage"})
