"""Arguments of a wrong type are refused, with their name, by what a program calls."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agcore.agent import Agent, AgentBuilder, AgentSession
from agcore.llm import (
    HookContext,
    HookEvent,
    HookExecutor,
    HookResult,
    MockProvider,
    ProviderRegistry,
)
from agcore.memory import (
    ConversationMemory,
    InMemoryStore,
    KnowledgeStore,
    MemoryRetriever,
    SqliteStore,
)
from agcore.prompt import PromptComposer, PromptTemplateRegistry
from agcore.tools import PermissionConfig, ToolRegistry
from agent_core import AgentCoreError
from agent_core.errors import ErrorCode
from tables import together

CLASSES: list[type] = [
    Agent,
    ConversationMemory,
    HookExecutor,
    InMemoryStore,
    KnowledgeStore,
    MemoryRetriever,
    PromptComposer,
    PromptTemplateRegistry,
    ProviderRegistry,
    SqliteStore,
    ToolRegistry,
]
NOT_HERE = {"close", "run", "run_sync", "stream", "tool_definitions"}
"""Methods that take no arguments, options of a run, or what only a bundle calls."""
WRONG: dict[str, tuple[Any, tuple[str, ...]]] = {
    "an object": (object(), ()),
    "a number": (7, ("int", "float")),
    "a text": ("x", ("str", "Model", "HookEvent")),
    "a list": ([1], ("Sequence", "Collection", "Iterable", "list")),
    "bytes": (b"x", ()),
}
"""Values, each with the words of the annotations to which it may belong."""
UNCHECKED = ("Any", "LlmProvider", "Hook,", "MemoryStore", "Embed", "Usable", "AnyTool", "Hook'")
"""Words of annotations that any value may fit: protocols, and what a method reads itself."""


class Hook:
    """A hook that lets everything pass."""

    async def execute(self, context: HookContext) -> HookResult:
        return HookResult.allow()


FITTING: dict[str, Any] = {
    "arguments": {},
    "content": [],
    "event": HookEvent.ON_ERROR,
    "hook": Hook(),
    "invocations": [],
    "min_score": 0.5,
    "words": ["x"],
}


def parameters_of(function: Any) -> list[inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [
        each
        for each in parameters
        if each.name != "self" and each.kind not in {each.VAR_KEYWORD, each.VAR_POSITIONAL}
    ]


def cases() -> Iterator[tuple[type, str, str, str]]:
    for owner in CLASSES:
        for method, function in inspect.getmembers(owner, inspect.isfunction):
            if method.startswith("_") or method in NOT_HERE:
                continue
            for parameter in parameters_of(function):
                said = inspect.formatannotation(parameter.annotation)
                if parameter.name in {"deps", "hook", "parts"} or any(
                    word in said for word in UNCHECKED
                ):
                    continue
                for name, (_, fitting) in WRONG.items():
                    if not any(word in said for word in fitting):
                        yield owner, method, parameter.name, name


CASES = [*cases()]


async def objects(folder: Path) -> dict[type, Any]:
    store = InMemoryStore()
    pages = KnowledgeStore(store)
    made: list[Any] = [
        Agent("a", model=MockProvider(["a"])),
        ConversationMemory(store, "c"),
        HookExecutor(),
        store,
        pages,
        MemoryRetriever(pages),
        PromptComposer(),
        PromptTemplateRegistry(),
        ProviderRegistry(),
        await SqliteStore.open(folder / "memory.sqlite"),
        ToolRegistry(),
    ]
    return {type(each): each for each in made}


def test_the_methods_are_found() -> None:
    assert len(CASES) > 200
    found = {(owner.__name__, method, name) for owner, method, name, _ in CASES}
    assert ("KnowledgeStore", "save_page", "tags") in found
    assert ("PromptComposer", "user", "text") in found


async def test_a_wrong_type_is_refused_with_its_name(tmp_path: Path) -> None:
    made = await objects(tmp_path)
    wrong: list[str] = []
    for owner, method, name, value in CASES:
        function = getattr(made[owner], method)
        required = [each.name for each in parameters_of(function) if each.default is each.empty]
        fitting = FITTING if owner is not KnowledgeStore else {**FITTING, "content": "x"}
        given = {each: fitting.get(each, "x") for each in required} | {name: WRONG[value][0]}
        case = f"{owner.__name__}.{method}({name}={value})"
        try:
            answer = function(**given)
            answer = await answer if inspect.isawaitable(answer) else answer
        except AgentCoreError as error:
            if name.replace("_", " ") not in error.message.replace("_", " "):
                wrong.append(f"{case}: {error.message[:150]}")
        except Exception as error:  # noqa: BLE001 - it is the fault that is looked for
            wrong.append(f"{case}: {type(error).__name__}: {str(error)[:100]}")
        else:
            wrong.append(f"{case}: accepted: {str(answer)[:80]}")
    await made[SqliteStore].close()
    assert wrong == [], "\n".join(wrong)


def agent(**parts: Any) -> Agent:
    return Agent("a", model=MockProvider(["a"]), **parts)


RUNS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "permissions": ({"permissions": 3}, {}, "permissions"),
    "hooks": ({"hooks": 3}, {}, "hooks must be"),
    "config": ({"config": 3}, {}, "config"),
    "tools": ({"tools": 3}, {}, "tools"),
    "conversation": ({}, {"conversation": 3}, "conversation"),
    "session": ({}, {"session_id": 3}, "session id"),
    "budget": ({"budget": 3}, {}, "budget"),
    "model": ({}, {"model": 3}, "model"),
}


@together("name", RUNS)
async def test_a_part_of_a_wrong_type_is_refused_before_the_model_is_asked(name: str) -> None:
    parts, options, said = RUNS[name]
    with pytest.raises(AgentCoreError) as caught:
        await agent(**parts).run("go", **options)
    assert caught.value.code in {ErrorCode.VALIDATION_ERROR, ErrorCode.CONFIG_ERROR}
    assert said in caught.value.message.replace("`", "").replace("_", " ")


def test_lists_of_permissions_are_names() -> None:
    assert PermissionConfig(allowed={"a"}).allowed == frozenset({"a"})  # type: ignore[arg-type]
    wrongs: list[dict[str, Any]] = [{"allowed": "a"}, {"denied": 3}, {"denied": [3]}, {"rules": {}}]
    for wrong in wrongs:
        with pytest.raises(AgentCoreError, match=next(iter(wrong))):
            PermissionConfig(**wrong)


def test_a_session_needs_a_bundle() -> None:
    with pytest.raises(AgentCoreError, match="bundle"):
        AgentSession(agent(), "s1", AgentBuilder())  # type: ignore[arg-type]
