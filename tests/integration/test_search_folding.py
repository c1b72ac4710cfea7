"""A search finds words however their letters are written."""

from pathlib import Path

import pytest

from agent_core import AgentRuntime
from agent_core.testing import ScriptedProvider, calls
from agent_core.tools import tool

TEXT = "Die Straße zum Büro in İzmir: ﬁnde 300 K"


@tool(permission="readonly")
def look() -> str:
    """Return the text."""
    return TEXT


@pytest.mark.parametrize(
    "word", ["straße", "STRASSE", "strasse", "büro", "İZMIR", "find", "k", "ﬁ"]
)
@pytest.mark.parametrize("is_result", [False, True])
async def test_a_word_is_found_however_it_is_written(
    home: object, project: Path, word: str, is_result: bool
) -> None:
    model = ScriptedProvider([calls("look") if is_result else TEXT, "ended"])
    async with AgentRuntime(project, model=model) as runtime:
        runtime.register_tool(look)
        await runtime.run("go")
        (found,) = await runtime.search_sessions(word, limit=1)
        assert "zum Büro in" in found.snippet
        assert await runtime.search_sessions("strassenbahn") == []
