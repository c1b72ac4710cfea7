"""Write the schemas of the built-in tools' arguments, which a start reads instead of building them.

`make reference` runs it, and the suite fails if the file differs from what it would write.
"""

import json
from pathlib import Path

from agent_core.runtime.built_in import built_in_definitions
from agent_core.tools.code import maker_of
from agent_core.tools.schema import Arguments, build_shown_schema, full_name
from agent_core.types.tools import CODE_TOOLS

FILE = Path(__file__).parents[1] / "src" / "agent_core" / "assets" / "tool_schemas.json"


def tool_schemas() -> str:
    """Return the schema of each type of arguments by its full name, as JSON: one on each line."""
    built_in_definitions()  # loads the types
    for name in CODE_TOOLS:
        maker_of(name)
    found: dict[str, object] = {}
    types: list[type[Arguments]] = [Arguments]
    while types:
        types += (arguments := types.pop()).__subclasses__()
        if arguments.__module__.startswith("agent_core.") and "Limited" not in arguments.__name__:
            found[full_name(arguments)] = build_shown_schema(arguments)
    lines = [f"{json.dumps(name)}: {json.dumps(schema)}" for name, schema in sorted(found.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(tool_schemas(), encoding="utf-8")
