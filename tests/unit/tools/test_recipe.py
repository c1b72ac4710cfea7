"""The recipe for a built-in tool in CONTRIBUTING.md makes one that works."""

import re
from pathlib import Path
from typing import Any

import pytest

from agent_core.tools import Toolbox, ToolContext
from agent_core.tools.workspace import Workspace
from agent_core.types import ToolCall, ToolPermission

PAGE = Path(__file__).parents[3] / "CONTRIBUTING.md"


@pytest.mark.long
async def test_the_tool_of_the_recipe_counts_lines(
    workspace: Workspace, context: ToolContext, project: Path
) -> None:
    (recipe,) = re.findall(r"^```python\n(.+?)^```$", PAGE.read_text("utf-8"), re.S | re.M)
    module: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(recipe, PAGE, "exec"), module)  # noqa: S102 - our own text
    (project / "a.txt").write_text("one\ntwo\n", encoding="utf-8")
    tools = Toolbox([module["count_lines"](workspace)])
    call = ToolCall(tool_call_id="call_1", name="code.count_lines", arguments={"path": "a.txt"})
    tool, arguments = tools.resolve(call)
    action = await tool.prepare(arguments, context)
    assert tool.definition.description == "Count the lines of a file."
    assert tool.definition.permission is ToolPermission.READONLY
    assert action.access.target == str(project / "a.txt")
    assert await action.run() == {"lines": 2}
