"""Arguments of the wrong type are refused by everything a program calls, with their name."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentCoreError, AgentRuntime, ErrorCode, RunHandle
from agent_core.api import Session
from agent_core.api.pages import Pages
from agent_core.api.tasks import Tasks
from agent_core.providers.scripted import ScriptedProvider
from agent_core.types import AgentDefinition, ToolDefinition
from isolation import Home
from runtimes import CONFIG

OWNERS: dict[str, type] = {
    "runtime": AgentRuntime,
    "session": Session,
    "handle": RunHandle,
    "tasks": Tasks,
    "pages": Pages,
}
NOT_HERE = {"run_sync", "close_sync", "messages_sync"}
"""They need a thread without an event loop, and pass their arguments on."""
CODES = {
    ErrorCode.VALIDATION_ERROR,
    ErrorCode.CONFIG_ERROR,
    ErrorCode.INVALID_AGENT_DEFINITION,
}
ANYTHING = {"deps", "output_type", "value"}
DEFINITIONS: dict[str, Any] = {
    "register_tool": ToolDefinition(name="own", description="Works."),
    "register_agent_definition": AgentDefinition(
        agent_definition_id="own", name="own", description="Works.", body="Work."
    ),
}
WRONG: dict[str, tuple[Any, tuple[str, ...]]] = {
    "an object": (object(), ()),
    "a number": (7, ("int", "float")),
    "a text": ("x", ("str", "Path", "AnyModel", "Instructions")),
    "a list": ([1], ("Sequence", "Collection")),
    "a truth value": (True, ("bool",)),
    "bytes": (b"x", ()),
}
"""Values, each with the words of the annotations to which it may belong."""


def parameters_of(owner: type) -> Iterator[tuple[str, inspect.Parameter]]:
    for method, function in inspect.getmembers(owner, inspect.isfunction):
        if method.startswith("_") or method in NOT_HERE:
            continue
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name != "self" and parameter.name not in ANYTHING:
                yield method, parameter


def cases() -> Iterator[Any]:
    for owner, kind in OWNERS.items():
        for method, parameter in parameters_of(kind):
            annotation = parameter.annotation
            said = (
                annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
            )
            for name, (value, fitting) in WRONG.items():
                if not any(word in said for word in fitting):
                    yield pytest.param(
                        owner,
                        method,
                        parameter.name,
                        value,
                        id=f"{owner}.{method}({parameter.name}={name})",
                    )


CASES = [*cases()]


def required_of(function: Any) -> list[str]:
    return [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind is not each.VAR_KEYWORD
    ]


async def outcome_of(function: Any, sent: dict[str, Any]) -> Any:
    answer = function(**sent)
    if inspect.isawaitable(answer):
        answer = await answer
    if hasattr(answer, "__anext__"):
        answer = [each async for each in answer]
    return answer


def test_the_methods_are_found() -> None:
    assert len(CASES) > 1_000
    found = {each.values[:3] for each in CASES}
    assert ("runtime", "approvals", "limit") in found
    assert ("tasks", "create", "steps") in found
    assert ("handle", "send", "message") in found


async def test_a_wrong_type_is_refused_with_its_name(home: Home, project: Path) -> None:
    home.write_config(CONFIG)
    async with AgentRuntime(project, model=ScriptedProvider(["done"])) as runtime:
        handle = await runtime.start("go", session_id="s1")
        await handle.wait()
        node = (await runtime.replay_session("s1")).nodes[-1].node_id
        given: dict[str, Any] = {
            "arguments": {"path": "a"},
            "child_run_id": handle.run_id,
            "decision": "deny",
            "factory": ScriptedProvider,
            "key": "own",
            "message": "go",
            "node_or_snapshot_id": node,
            "operations": [],
            "path": "a",
            "prefix": "s1",
            "project": project,
            "query": "go",
            "server_id": "a",
            "session_id": "s1",
            "source": [],
            "status": "completed",
            "steps": [{"step_id": "a"}],
            "task_id": "t1",
            "title": "a",
            "tool_name": "code.read_file",
            "run_id": handle.run_id,
            "node_id": node,
        }
        objects = {
            "runtime": runtime,
            "session": runtime.session("s1"),
            "handle": handle,
            "tasks": runtime.tasks,
            "pages": runtime.pages,
        }
        before = await runtime.replay_session("s1")
        wrong: list[str] = []
        for case in CASES:
            owner, method, name, value = case.values
            function = getattr(objects[str(owner)], str(method))
            named = given | {"definition": DEFINITIONS.get(str(method))}
            sent = {each: named.get(each, "x") for each in required_of(function)}
            try:
                answer = await outcome_of(function, {**sent, str(name): value})
            except AgentCoreError as error:
                plain = error.message.replace("_", " ")
                is_named = str(name).replace("_", " ") in plain or "registers" in plain
                if error.code not in CODES or not is_named:
                    wrong.append(f"{case.id}: {error.code}: {error.message[:150]}")
            except Exception as error:  # noqa: BLE001 - it is the fault that is looked for
                wrong.append(f"{case.id}: {type(error).__name__}: {str(error)[:100]}")
            else:
                wrong.append(f"{case.id}: accepted: {str(answer)[:80]}")
        after = await runtime.replay_session("s1")
    assert wrong == []
    assert after.nodes == before.nodes
