"""An empty id is refused by everything that takes one, and nothing is done or stored then."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_core import AgentCoreError, AgentRuntime, RunHandle
from agent_core.api import Session
from agent_core.providers.scripted import ScriptedProvider, calls
from isolation import Home
from runtimes import CONFIG

BLANKS = ["", " ", "\t\n"]
NAMES = {"after", "agent", "before", "forked_from", "key", "prefix", "tool_name"}
"""What names something, besides `…_id`."""
PLACED = ("place", "queue", "tenant")
"""Keywords of a start that its signature does not name."""
NOT_WITHOUT_MORE = {"place", "queue", "tenant", "server_id"}
"""These are refused with any value: there is no Postgres database, and no MCP server."""
NOT_HERE = {"run_sync", "call", "close_sync"}
"""They need a thread without an event loop; they pass their arguments on to `run`."""


def arguments_of(owner: type) -> Iterator[tuple[str, str]]:
    """The methods of a class, each with an argument that is an id or a name."""
    for method, function in inspect.getmembers(owner, inspect.isfunction):
        if method.startswith("_") or method in NOT_HERE:
            continue
        for name, parameter in inspect.signature(function).parameters.items():
            is_text = "str" in str(parameter.annotation)
            is_id = is_text and (name.endswith("_id") or name in NAMES)
            if is_id and parameter.default != "":
                yield method, name
        if method in {"start", "run"}:
            yield from ((method, name) for name in PLACED)


OWNERS: dict[str, type] = {"runtime": AgentRuntime, "handle": RunHandle, "session": Session}
CASES = [(owner, *case) for owner, kind in OWNERS.items() for case in arguments_of(kind)]


def test_the_arguments_that_are_ids_are_found() -> None:
    found = {method for owner, method, _ in CASES if owner == "runtime"}
    assert {"start", "attach", "fork", "undo", "session", "delete_artifact", "answer"} <= found
    assert ("runtime", "approvals", "prefix") not in CASES  # empty: all of them


async def test_an_empty_id_is_refused_everywhere(home: Home, project: Path) -> None:
    home.write_config(CONFIG)
    model = ScriptedProvider([calls("code.write_file", path="a", content="b"), "done"])
    async with AgentRuntime(project, model=model, default_snapshots="turn") as runtime:
        handle = await runtime.start("go", session_id="s1", permission_mode="accept-edits")
        await handle.wait()
        before = await runtime.replay_session("s1")
        node = before.nodes[-1].node_id
        given: dict[str, Any] = {
            "after": node,
            "arguments": {"path": "a"},
            "before": node,
            "child_run_id": handle.run_id,
            "decision": "deny",
            "factory": ScriptedProvider,
            "message": "go",
            "name": "a",
            "node_id": node,
            "node_or_snapshot_id": node,
            "path": "a",
            "prefix": "s1",
            "server_id": "a",
            "session_id": "s1",
            "source": [],
            "title": "a",
            "tool_name": "code.read_file",
        }
        objects = {"runtime": runtime, "handle": handle, "session": runtime.session("s1")}
        accepted: list[Any] = []
        for owner, method, name in CASES:
            for blank in BLANKS:
                function = getattr(objects[owner], method)
                required = [
                    each.name
                    for each in inspect.signature(function).parameters.values()
                    if each.default is each.empty and each.kind is not each.VAR_KEYWORD
                ]
                sent = {each: given.get(each) for each in required} | {name: blank}
                try:
                    answer = function(**sent)
                    if inspect.isawaitable(answer):
                        answer = await answer
                    elif hasattr(answer, "__anext__"):
                        answer = [each async for each in answer]
                except AgentCoreError as error:
                    is_said = repr(blank) in error.message or " empty" in error.message
                    if not is_said and name not in NOT_WITHOUT_MORE:
                        accepted.append((owner, method, name, blank, error.message))
                else:
                    accepted.append((owner, method, name, blank, answer))
        after = await runtime.replay_session("s1")
        assert [each.session_id for each in await runtime.list_sessions()] == ["s1"]
    assert accepted == []
    kept = {"active_node_id", "status", "title", "metadata", "epoch"}  # not its lease
    assert after.nodes == before.nodes
    assert after.session.model_dump(include=kept) == before.session.model_dump(include=kept)
