"""Everything at once: tools, knowledge, conversation, two contexts, hooks and a streamed answer.

A mock plays the model unless a real one is named in the environment:

    AGCORE_PROVIDER=ollama AGCORE_MODEL=gemma4 python examples/agcore/full_integration.py

Optional: AGCORE_BASE_URL, AGCORE_API_KEY_ENV (the name of the variable that holds the key), and
AGCORE_PATH (with AGCORE_PROVIDER=local, the file of a model that runs in this process).
"""

import asyncio
import os
from contextlib import AsyncExitStack

from agcore.agent import (
    Agent,
    AgentBuilder,
    AgentConfig,
    AgentError,
    ContextManager,
    PromptLayers,
    RuntimeBundle,
)
from agcore.llm import (
    AdapterProvider,
    AssistantTextDelta,
    CompactConfig,
    Error,
    HookContext,
    HookEvent,
    HookExecutor,
    HookResult,
    LlmProvider,
    MockProvider,
    ModelConfig,
    ToolExecutionStarted,
    TurnComplete,
    tool_call_reply,
)
from agcore.memory import InMemoryStore, KnowledgeStore, MemoryRetriever
from agcore.prompt import PromptTemplate
from agcore.tools import ToolRegistry, tool

ADVISER = Agent(
    "adviser",
    "You advise on databases. Look things up with `retrieve` before you answer, write decisions"
    " down with `session_memory_set`, and answer in one sentence.",
)
BUILDER = Agent("builder", "You say what to type. Answer in one line.", tools=["count_words"])
QUESTION = PromptTemplate(
    "question", "Which database for {{ purpose }}{{#if small}}, small{{/if}}?"
)
SCRIPT = (
    tool_call_reply("retrieve", query="database for one user"),
    tool_call_reply("session_memory_set", key="database", value="SQLite"),
    "Take SQLite: it needs no server.",
    "sqlite3 notes.db",
)


@tool(permission="readonly")
def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


class Counts:
    """Counts the requests that go out."""

    def __init__(self) -> None:
        self.requests = 0

    async def execute(self, context: HookContext) -> HookResult:
        self.requests += context.request is not None
        return HookResult.allow()


async def provider_from_environment(stack: AsyncExitStack) -> LlmProvider:
    provider, model = os.environ.get("AGCORE_PROVIDER"), os.environ.get("AGCORE_MODEL")
    if not provider or not model:
        print("No model is configured (AGCORE_PROVIDER, AGCORE_MODEL): a mock plays its part.")
        return MockProvider(SCRIPT)
    print(f"The model is {model} of {provider}.")
    config = ModelConfig(
        provider=provider,
        name=model,
        base_url=os.environ.get("AGCORE_BASE_URL"),
        api_key_env=os.environ.get("AGCORE_API_KEY_ENV"),
        path=os.environ.get("AGCORE_PATH"),
        max_output_tokens=1024,
    )
    return await stack.enter_async_context(AdapterProvider.open(config))


async def knowledge() -> MemoryRetriever:
    pages = KnowledgeStore(InMemoryStore())
    await pages.save_page("SQLite", "A database for one user, in one file, without a server.")
    await pages.save_page("PostgreSQL", "A database for many users, with a server.")
    return MemoryRetriever(pages)


async def assemble(provider: LlmProvider, counts: Counts) -> RuntimeBundle:
    hooks = HookExecutor()
    hooks.register(HookEvent.PRE_REQUEST, counts)
    return (
        AgentBuilder()
        .provider(provider)
        .tool_registry(ToolRegistry([count_words]))
        .hook_executor(hooks)
        .retriever(await knowledge())
        .session_memory_backend(InMemoryStore())
        .config(AgentConfig(max_turns=10, compact_config=CompactConfig(max_tokens=6000)))
        .build()
    )


async def ask(contexts: ContextManager, context_id: str, text: str) -> None:
    session = contexts.switch_context(context_id)
    print(f"\n[{context_id}] {text}\n{session.agent.name}: ", end="")
    async for event in session.submit_turn_stream(text):
        match event:
            case AssistantTextDelta(text=piece):
                print(piece, end="", flush=True)
            case ToolExecutionStarted(tool_name=name):
                print(f"({name}) ", end="")
            case TurnComplete():
                print()
            case Error(message=message):
                print(f"failed: {message}")
            case _:
                pass


async def main() -> None:
    counts = Counts()
    async with AsyncExitStack() as stack:
        bundle = await assemble(await provider_from_environment(stack), counts)
        contexts = ContextManager(
            "integration",
            bundle,
            layers=PromptLayers("Be brief.", lambda: "The user works alone."),
            offers_memory_tool=True,
        )
        contexts.create_context("advice", ADVISER)
        contexts.create_context("build", BUILDER)
        question = QUESTION.render({"purpose": "the notes of one user", "small": True})
        await ask(contexts, "advice", question)
        try:
            contexts.bridge("advice", "build")
        except AgentError as error:
            print(error)
        await ask(contexts, "build", "How do I make the file?")

        print("\nWhat both contexts share:")
        print(await contexts.session_memory.snapshot())
        for name in contexts.contexts():
            session = contexts.switch_context(name)
            total = session.usage().total().total_tokens
            kept = len(await session.messages())
            print(f"{name}: {session.turn_index()} turns, {kept} messages, {total} tokens")
        print(f"{counts.requests} requests")


if __name__ == "__main__":
    asyncio.run(main())
