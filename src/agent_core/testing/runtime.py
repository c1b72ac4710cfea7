"""A runtime for tests: in memory, with a scripted model."""

from collections.abc import Iterable, Sequence
from typing import Any

from agent_core.api import AgentRuntime
from agent_core.providers.scripted import Answer, Piece, ScriptedProvider


class ScriptedRuntime(AgentRuntime):
    """A runtime that writes nothing, and whose model plays a script.

    Args:
        script: the replies of the model, or a `ScriptedProvider`, for example of `replay`.
        arguments: further arguments of `AgentRuntime`.
    """

    def __init__(
        self,
        script: ScriptedProvider | Sequence[Piece | Iterable[Piece] | Answer] | Answer = (),
        **arguments: Any,
    ) -> None:
        self.script = script if isinstance(script, ScriptedProvider) else ScriptedProvider(script)
        """The model of every run: `add` replies to it, and inspect its `requests`."""
        given: dict[str, Any] = {"model": self.script, "persist": False, **arguments}
        super().__init__(**given)
