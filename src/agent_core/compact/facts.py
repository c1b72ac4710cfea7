"""What a path says about the world: files that were changed, Tasks that go on, texts in view."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from agent_core.types import JsonBlock, Node, NodeType, ToolCallBlock, ToolResultBlock

_CHANGES_FILES = {"code.write_file", "code.edit_file"}
_CREATES = "agent.task_create"
_ENDS = {"agent.task_complete", "agent.task_fail", "agent.task_cancel"}
_LOADED = {
    NodeType.INSTRUCTION_CONTEXT: ("instructions", "path"),
    NodeType.SKILL_CONTEXT: ("skill", "name"),
    NodeType.MEMORY_CONTEXT: ("memory", "ids"),
}
_HASH_CHARS = 16


def changed_files(path: Sequence[Node]) -> list[str]:
    """The files that calls have written, in the order of their first change."""
    files: dict[str, None] = {}
    for call, _, _ in _answered(path):
        file = call.arguments.get("path")
        if call.name in _CHANGES_FILES and isinstance(file, str):
            files[" ".join(file.split())] = None
    return list(files)


def open_tasks(path: Sequence[Node]) -> list[tuple[str, str]]:
    """The Tasks that were created and not ended: the node that says so, id and title."""
    tasks: dict[str, tuple[str, str]] = {}
    for call, result, node in _answered(path):
        fields = {**call.arguments, **_fields(result)}
        task_id = fields.get("task_id")
        if not isinstance(task_id, str):
            continue
        if call.name == _CREATES:
            title = call.arguments.get("title") or call.arguments.get("goal") or ""
            tasks[task_id] = node.node_id, f"{task_id}: {_line(title)}".rstrip(": ")
        elif call.name in _ENDS:
            tasks.pop(task_id, None)
    return list(tasks.values())


def loaded_texts(path: Sequence[Node]) -> list[tuple[str, str]]:
    """Instructions, skills and memories that were loaded, in their last version, with hashes."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for node in path:
        if node.node_type not in _LOADED:
            continue
        kind, key = _LOADED[node.node_type]
        for name, version in _versions(node.metadata, key):
            found.pop((kind, name), None)
            found[kind, name] = node.node_id, f"{kind} {name} {version[:_HASH_CHARS]}".rstrip()
    return list(found.values())


def _versions(metadata: Mapping[str, Any], key: str) -> Iterator[tuple[str, str]]:
    names = metadata.get(key)
    hashes = metadata.get("hashes")
    known = cast("dict[str, Any]", hashes) if isinstance(hashes, dict) else {}
    for name in cast("list[Any]", names) if isinstance(names, list) else [names]:
        yield _line(name), str(known.get(str(name)) or metadata.get("hash") or "")


def _answered(path: Sequence[Node]) -> Iterator[tuple[ToolCallBlock, ToolResultBlock, Node]]:
    """Every call that succeeded, its result, and the node that holds the result."""
    asked: dict[str, ToolCallBlock] = {}
    for node in path:
        asked.update((call.tool_call_id, call) for call in node.calls)
        for result in node.results:
            call = asked.get(result.tool_call_id)
            if call is not None and not result.is_error:
                yield call, result, node


def _fields(result: ToolResultBlock) -> dict[str, Any]:
    for block in result.content:
        data: object = block.data if isinstance(block, JsonBlock) else None
        if isinstance(data, dict):
            return cast("dict[str, Any]", data)
    return {}


def _line(value: object) -> str:
    return " ".join(str(value).split())[:200]
