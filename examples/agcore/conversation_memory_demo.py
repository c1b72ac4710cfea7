"""A conversation: a window for the next request, everything in the store, after a restart, and
summarised when it outgrows a budget.

Runs offline, without a model: python examples/agcore/conversation_memory_demo.py
"""

import asyncio
import tempfile
from pathlib import Path

from agcore.llm import ChatMessage, CompactConfig, LlmCycle, MockProvider
from agcore.memory import (
    ConversationMemory,
    ConversationMemoryConfig,
    EvictionConfig,
    InMemoryStore,
    MemoryFilter,
    MemoryItem,
    SqliteStore,
)


async def talk(memory: ConversationMemory, turns: int) -> None:
    for number in range(turns):
        await memory.add_message(ChatMessage.user_text(f"question {number}"))
        await memory.add_message(ChatMessage.assistant_text(f"answer {number}"))


def shown(messages: list[ChatMessage]) -> str:
    return f"{len(messages)} messages, from {messages[0].text!r} to {messages[-1].text!r}"


async def compact() -> None:
    """Show a history that outgrows the budget of a request: the model summarises its beginning."""
    store = InMemoryStore()
    memory = ConversationMemory(store, "long", ConversationMemoryConfig.full())
    for number in range(20):
        await memory.add_message(ChatMessage.user_text(f"question {number}: {'why? ' * 100}"))
        await memory.add_message(ChatMessage.assistant_text(f"answer {number}"))
    model = MockProvider(lambda _: "The user asks why, again and again, and gets answers.")
    cycle = LlmCycle(model).with_messages(await memory.get_history())
    cycle.with_compact_config(CompactConfig(max_tokens=2000, keep_recent=4))
    await cycle.submit("question 20")
    print(f"42 messages became {len(cycle.messages())}: a summary, and the last ones as they were.")
    print("The summary:        ", cycle.messages()[0].text.strip().splitlines()[-1])


async def main() -> None:
    store = InMemoryStore()
    window = ConversationMemory(store, "window", ConversationMemoryConfig.sliding_window(3))
    full = ConversationMemory(store, "full", ConversationMemoryConfig.full())
    for memory in (window, full):
        await talk(memory, 10)
    print("A window of 3 turns:", shown(await window.get_history()))
    print("Everything:         ", shown(await full.get_history()))
    print("The window's store: ", shown(await window.get_archive()))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory.sqlite"
        async with await SqliteStore.open(path) as file:
            await talk(ConversationMemory(file, "s1", ConversationMemoryConfig()), 5)
        async with await SqliteStore.open(path) as file:
            again = ConversationMemory(file, "s1", ConversationMemoryConfig.sliding_window(2))
            print("After a restart:    ", shown(await again.get_history()))
            raw = await file.list(MemoryFilter(prefix="_conversation_s1:", limit=1))
            print("In the file:        ", raw[0].id)

    small = InMemoryStore(EvictionConfig(capacity=2))
    for name in ("first", "second", "third"):
        await small.save(MemoryItem(id=name, content=name))
    print("A store of two keeps:", [item.id for item in await small.list()])

    await compact()


if __name__ == "__main__":
    asyncio.run(main())
