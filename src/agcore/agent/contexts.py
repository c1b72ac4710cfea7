"""Several contexts in one session, each with its own messages and its own prompt."""

from typing import Any

from agcore.agent.error import AgentConfigError, OtherAgentError, raise_as_agent_error
from agcore.agent.runtime import RuntimeBundle
from agcore.agent.session import AgentSession, PromptLayers
from agcore.agent.session_memory import SessionMemory, wrap_in_tag
from agcore.agent.spec import AgentSpec
from agcore.memory import ConversationMemory, ConversationMemoryConfig, InMemoryStore, MemoryStore

MAX_BRIDGED_CHARS = 4000
"""Characters of a context's last answer that `bridge` copies, counted from its end."""


class ContextManager:
    """The contexts of one session, by id.

    A context sees only its own messages. The session memory is shared: its snapshot is part of
    every context's system prompt. `bridge` copies the last answer of one context to another.

    Args:
        session_id: letters, digits, `_` and `-`.
        bundle: what all contexts share.
        layers: the base and the environment of every system prompt.
        conversation: how much of a context's own messages goes into a request; all by default.
        offers_memory_tool: lets the models write to the session memory.
        store: keeps the messages of every context, so that a context of the same id continues
            in another process or after a restart. Without it they are lost with the context.

    Raises:
        AgentError: `Config`; the session id is invalid.
    """

    def __init__(
        self,
        session_id: str,
        bundle: RuntimeBundle,
        *,
        layers: PromptLayers | None = None,
        conversation: ConversationMemoryConfig | None = None,
        offers_memory_tool: bool = False,
        store: MemoryStore | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_memory = SessionMemory(bundle.session_memory_backend, session_id)
        self._bundle = bundle
        self._layers = layers or PromptLayers()
        self._conversation = conversation or ConversationMemoryConfig.full()
        self._offers_memory_tool = offers_memory_tool
        self._store = store
        self._contexts: dict[str, AgentSession[Any, Any]] = {}
        self._active: str | None = None

    @property
    def active(self) -> AgentSession[Any, Any] | None:
        """The active context: the last one switched to, or the first one."""
        return self._contexts[self._active] if self._active is not None else None

    @property
    def active_id(self) -> str | None:
        """Id of the active context; None if there is none."""
        return self._active

    def contexts(self) -> list[str]:
        """Return every id, in the order of creation."""
        return list(self._contexts)

    def create_context(self, context_id: str, agent: AgentSpec[Any, Any]) -> AgentSession[Any, Any]:
        """Create a context, with the messages stored under its id, if any.

        Raises:
            AgentError: `Config`; the id exists, or a tool's name is taken.
        """
        if context_id in self._contexts:
            raise AgentConfigError(f"there is already a context {context_id!r}")
        self._contexts[context_id] = AgentSession(
            agent,
            self.session_id,
            self._bundle,
            conversation=self._conversation_of(context_id),
            session_memory=self.session_memory,
            layers=self._layers,
            offers_memory_tool=self._offers_memory_tool,
        )
        if self._active is None:
            self._active = context_id
        return self._contexts[context_id]

    def switch_context(self, context_id: str) -> AgentSession[Any, Any]:
        """Make a context the active one.

        Raises:
            AgentError: `Other`; there is no such context.
        """
        found = self._context(context_id)
        self._active = context_id
        return found

    async def forget_context(self, context_id: str) -> None:
        """Destroy a context, if there is one, and delete its messages from the store.

        Raises:
            AgentError: `Memory`; the store failed.
        """
        with raise_as_agent_error():
            await self._conversation_of(context_id).clear()
        if context_id in self._contexts:
            self.destroy_context(context_id)

    def destroy_context(self, context_id: str) -> None:
        """Release a context; if it was active, no context is active afterwards.

        Its messages are lost, unless there is a store: `forget_context` deletes them there.

        Raises:
            AgentError: `Other`; there is no such context.
        """
        self._context(context_id)
        del self._contexts[context_id]
        if self._active == context_id:
            self._active = None

    def bridge(self, from_id: str, to_id: str) -> None:
        """Copy the last answer of one context into the other's system prompt.

        A later bridge from the same context replaces it.

        Raises:
            AgentError: `Other`; there is no such context, or it has not answered yet.
        """
        source, target = self._context(from_id), self._context(to_id)
        if source.last_response is None:
            raise OtherAgentError(f"the context {from_id!r} has no answer yet to carry over")
        answer = source.last_response.text[-MAX_BRIDGED_CHARS:]
        target.notes[from_id] = wrap_in_tag("context-bridge", answer, source=from_id)

    def swap_agent(self, context_id: str, agent: AgentSpec[Any, Any]) -> None:
        """Continue a context with another agent: its messages stay, and a notice is added.

        Raises:
            AgentError: `Other`; there is no such context.
        """
        self._context(context_id).swap_agent(agent)

    def _conversation_of(self, context_id: str) -> ConversationMemory:
        store = InMemoryStore() if self._store is None else self._store
        return ConversationMemory(store, self.session_id, self._conversation, context_id=context_id)

    def _context(self, context_id: str) -> AgentSession[Any, Any]:
        found = self._contexts.get(context_id)
        if found is None:
            known = ", ".join(self._contexts) or "none"
            raise OtherAgentError(f"there is no context {context_id!r}; there are: {known}")
        return found
