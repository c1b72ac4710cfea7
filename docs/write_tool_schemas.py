"""Write what a start reads instead of building it: schemas and descriptions of built-in tools.

`make reference` runs it, and the suite fails if the file differs from what it would write.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from agent_core.agents.spawner import STARTING, ChildSpawner
from agent_core.runtime.built_in import built_in_definitions
from agent_core.tools.base import Tool
from agent_core.tools.code import OFFLINE, SANDBOXED, maker_of
from agent_core.tools.schema import Arguments, build_shown_schema, full_name
from agent_core.types.tools import CODE_TOOLS

FILE = Path(__file__).parents[1] / "src" / "agent_core" / "assets" / "tool_schemas.json"


_NETWORKS = {"": None, SANDBOXED: "off", OFFLINE: "ask"}
"""What a sandbox says about the network, by what follows the name of `code.run_command`."""


def packaged_tools() -> Iterator[tuple[str, Tool]]:
    """Yield each tool that most runs have, by the key of its description."""
    for name in CODE_TOOLS:
        variants = _NETWORKS if name == "code.run_command" else [""]
        for variant in variants:
            config = SimpleNamespace(network=_NETWORKS[variant])
            sandbox = SimpleNamespace(config=config) if variant else None
            workspace = cast("Any", SimpleNamespace(sandbox=sandbox))
            yield f"{name} {variant}".strip(), maker_of(name)(workspace)
    nothing = cast("Any", SimpleNamespace(are_sessions_limited=False))
    spawner = ChildSpawner(nothing, nothing, nothing)
    for name in STARTING:
        yield f"agent.{name}", spawner.make_tool(name)


def described(tool: Tool) -> Mapping[str, object]:
    """Return what a start has to know of a tool."""
    definition, arguments = tool.definition, cast("partial[Any]", tool.parse).args[1]
    facts = ("keeps_own_limits", "is_side_effect_free", "kind")
    return {
        "arguments": full_name(arguments),
        "description": definition.description,
        "permission": definition.permission.value,
        "tags": sorted(definition.tags),
        "concurrency": tool.concurrency.value,
        **{name: getattr(tool, name) for name in facts},
    }


def tool_schemas() -> str:
    """Return the schema of each type of arguments by its full name, as JSON: one on each line.

    Tools that most runs have are described by their names.
    """
    built_in_definitions()  # loads the types
    found: dict[str, object] = {key: described(tool) for key, tool in packaged_tools()}
    types: list[type[Arguments]] = [Arguments]
    while types:
        types += (arguments := types.pop()).__subclasses__()
        if arguments.__module__.startswith("agent_core.") and "Limited" not in arguments.__name__:
            found[full_name(arguments)] = build_shown_schema(arguments)
    lines = [f"{json.dumps(name)}: {json.dumps(schema)}" for name, schema in sorted(found.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(tool_schemas(), encoding="utf-8")
