"""The shortest call of a model: one question, one answer, and its cost.

Runs offline, with a mock for a model, unless one is named:
    OPENAI_API_KEY=… python examples/agcore/simple_visit.py openai:gpt-5
"""

import asyncio
import sys

from agcore.llm import (
    AdapterProvider,
    CycleConfig,
    LlmCycle,
    LlmProvider,
    MockProvider,
    ModelConfig,
)


async def visit(provider: LlmProvider) -> None:
    cycle = LlmCycle(provider, CycleConfig(max_output_tokens=500))
    cycle.with_system_prompt("Answer in one sentence.")
    response = await cycle.submit("What is a bundle?")
    print(response.text)
    total = cycle.usage().total()
    print(f"{total.input_tokens} tokens in, {total.output_tokens} out")


async def main(model: str | None = None) -> None:
    if model is None:
        await visit(MockProvider(["A bundle is a set of parts that sessions share."]))
        return
    service, _, name = model.partition(":")
    async with AdapterProvider.open(ModelConfig(provider=service, name=name)) as provider:
        await visit(provider)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
