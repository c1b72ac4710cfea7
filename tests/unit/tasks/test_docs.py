"""The page about Tasks lists the arguments that the tools take."""

import re
from pathlib import Path
from typing import Any

from agent_core.tasks.model import TaskScope
from agent_core.tasks.tools import build_task_tools

PAGE = Path(__file__).parents[3] / "docs" / "tasks.md"


def test_the_page_lists_every_argument_of_every_task_tool() -> None:
    nothing: Any = None
    worker = build_task_tools(nothing, nothing, scope=TaskScope("t"))
    tools = [*build_task_tools(nothing, nothing), *worker]
    page = PAGE.read_text(encoding="utf-8").partition("Their arguments;")[2]
    rows = re.findall(r"^\| (`agent\.task_\S.*?) \| (.+) \|$", page, re.MULTILINE)
    listed = {name: row for names, row in rows for name in re.findall(r"`(.+?)`", names)}
    assert set(listed) == {tool.definition.name for tool in tools}
    for tool in tools:
        schema = tool.definition.input_schema
        named = set(re.findall(r"`(\w+)`", listed[tool.definition.name]))
        assert set(schema["properties"]) <= named
