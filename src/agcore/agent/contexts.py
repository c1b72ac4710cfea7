"""Several contexts in one session, each with its own messages and its own prompt."""

from agcore.agent.bundle import Agent, RuntimeBundle
from agcore.agent.session import AgentSession, PromptLayers
from agcore.agent.session_memory import SessionMemory, wrap_in_tag
from agcore.errors import AgentConfigError, OtherAgentError
from agcore.memory import ConversationMemory, ConversationMemoryConfig, InMemoryStore

MAX_BRIDGED_CHARS = 4000
"""How much of a context's last answer is carried over."""


class ContextManager:
    """The contexts of one session, by id.

    A context sees its own messages only. The session memory is shared: its snapshot is part of
    every context's system prompt. `bridge` carries the last answer of one context to another.

    Args:
        session_id: letters, digits, `_` and `-`.
        bundle: what all contexts share.
        layers: the base and the environment of every system prompt.
        conversation: how much of a context's own messages goes into a request; all by default.
        offers_memory_tool: lets the models write to the session memory.

    Raises:
        AgentError: `Config`; the session id is not usable.
    """

    def __init__(
        self,
        session_id: str,
        bundle: RuntimeBundle,
        *,
        layers: PromptLayers | None = None,
        conversation: ConversationMemoryConfig | None = None,
        offers_memory_tool: bool = False,
    ) -> None:
        self.session_id = session_id
        self.session_memory = SessionMemory(
            bundle.session_memory_backend or InMemoryStore(), session_id
        )
        self._bundle = bundle
        self._layers = layers or PromptLayers()
        self._conversation = conversation or ConversationMemoryConfig.full()
        self._offers_memory_tool = offers_memory_tool
        self._contexts: dict[str, AgentSession] = {}
        self._active: str | None = None

    @property
    def active(self) -> AgentSession | None:
        """The context that was switched to last; the first one until then."""
        return self._contexts[self._active] if self._active is not None else None

    @property
    def active_id(self) -> str | None:
        """Its id."""
        return self._active

    def contexts(self) -> list[str]:
        """Every id, in the order of creation."""
        return list(self._contexts)

    def create_context(self, context_id: str, agent: Agent) -> AgentSession:
        """Make a context without messages.

        Raises:
            AgentError: `Config`; there is one of this id, or a tool's name is taken.
        """
        if context_id in self._contexts:
            raise AgentConfigError(f"there is already a context {context_id!r}")
        self._contexts[context_id] = AgentSession(
            agent,
            self.session_id,
            self._bundle,
            conversation=ConversationMemory(InMemoryStore(), self.session_id, self._conversation),
            session_memory=self.session_memory,
            layers=self._layers,
            offers_memory_tool=self._offers_memory_tool,
        )
        if self._active is None:
            self._active = context_id
        return self._contexts[context_id]

    def switch_context(self, context_id: str) -> AgentSession:
        """Make a context the active one.

        Raises:
            AgentError: `Other`; there is no such context.
        """
        found = self._context(context_id)
        self._active = context_id
        return found

    def destroy_context(self, context_id: str) -> None:
        """Forget a context and its messages; afterwards no context is active if it was.

        Raises:
            AgentError: `Other`; there is no such context.
        """
        self._context(context_id)
        del self._contexts[context_id]
        if self._active == context_id:
            self._active = None

    def bridge(self, from_id: str, to_id: str) -> None:
        """Carry the last answer of one context over into the other's system prompt.

        A later bridge from the same context replaces it.

        Raises:
            AgentError: `Other`; there is no such context, or it has not answered anything yet.
        """
        source, target = self._context(from_id), self._context(to_id)
        if source.last_response is None:
            raise OtherAgentError(f"the context {from_id!r} has no answer yet to carry over")
        answer = source.last_response.text[-MAX_BRIDGED_CHARS:]
        target.notes[from_id] = wrap_in_tag("context-bridge", answer, source=from_id)

    def swap_agent(self, context_id: str, agent: Agent) -> None:
        """Go on in a context with another agent: its messages stay, and a notice is added.

        Raises:
            AgentError: `Other`; there is no such context.
        """
        self._context(context_id).swap_agent(agent)

    def _context(self, context_id: str) -> AgentSession:
        found = self._contexts.get(context_id)
        if found is None:
            known = ", ".join(self._contexts) or "none"
            raise OtherAgentError(f"there is no context {context_id!r}; there are: {known}")
        return found
