"""Knowledge: pages with an index, found by words, in English and in Chinese.

Runs offline, without a model: python examples/agcore/knowledge_search_demo.py
"""

import asyncio

from agcore.memory import (
    InMemoryStore,
    KnowledgeStore,
    MemoryRetriever,
    RetrieverConfig,
)

PAGES = [
    ("Rust 入门", "Rust 是一门系统编程语言。它没有垃圾回收。", ["rust", "编程"]),
    ("Python basics", "Python is a dynamic language. It is easy to read.", ["python"]),
    ("Backups", "Copy the database every night. Test the copy once a month.", ["operations"]),
]


async def main() -> None:
    knowledge = KnowledgeStore(InMemoryStore())
    for title, content, tags in PAGES:
        await knowledge.save_page(title, content, tags, summary=content[:30])

    print("The index:")
    for entry in await knowledge.index():
        print(f"  {entry.title} {entry.tags}: {entry.summary}")

    found = await knowledge.search("copy the database")
    print("\nPages with all of 'copy the database':", [entry.title for entry in found])

    retriever = MemoryRetriever(knowledge, RetrieverConfig(top_k=2, min_score=0.1))
    for query in ("Rust 语言", "What is a dynamic language?", "database copy", "the of and"):
        result = await retriever.search(query)
        print(f"\n{query}")
        for item in result.items:
            print(f"  {item.score:.2f} {item.page.title}")
        if not result.items:
            print("  nothing: these words say nothing, or no page is good enough")


if __name__ == "__main__":
    asyncio.run(main())
