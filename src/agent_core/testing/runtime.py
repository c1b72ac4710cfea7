"""A runtime for tests: in memory, with a scripted model."""

from collections.abc import Iterable, Sequence
from typing import Any

from agent_core.api import AgentRuntime
from agent_core.config.models import ModelConfig
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.scripted import Answer, Piece, ScriptedProvider


class ScriptedRuntime(AgentRuntime):
    """A runtime that writes nothing, and whose model plays a script.

    Args:
        script: the replies of the model, or a `ScriptedProvider`, for example of `replay`.
        arguments: what else `AgentRuntime` takes; `config` needs no `model`.
    """

    def __init__(
        self,
        script: ScriptedProvider | Sequence[Piece | Iterable[Piece] | Answer] | Answer = (),
        **arguments: Any,
    ) -> None:
        model = ModelConfig(
            provider="test", name="scripted", context_window=200_000, fallbacks=False
        )
        given: dict[str, Any] = {"model": model, "persist": False, **arguments}
        super().__init__(**given)
        self.script = script if isinstance(script, ScriptedProvider) else ScriptedProvider(script)
        """The model of every run: `add` its replies, and look at its `requests`."""
        self.register_provider(model.provider, self._given)

    def _given(self, model: ModelConfig) -> ProviderAdapter:  # noqa: ARG002 - as factories are called
        return self.script
