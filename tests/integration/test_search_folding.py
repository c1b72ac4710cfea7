"""A search finds words however their letters are written."""

from pathlib import Path
from typing import Literal
from unicodedata import normalize

import pytest

from agent_core import AgentRuntime
from agent_core.testing import ScriptedProvider, calls
from agent_core.tools import tool
from isolation import Home
from sweeps import kept

TEXT = (
    "ßİ" * 100
    + " Die Straße zum Büro in İzmir: ﬁnde 300 K, Größe ffff, Кириллица 각 \ud83d "
    + "ß" * 200
)
WORDS = ["straße", "STRASSE", "strasse", "büro", "İZMIR", "find", "k", "ﬁ", "FFFF", "кирилл", "각"]


@tool(permission="readonly")
def look() -> str:
    """Return the text."""
    return TEXT


@pytest.mark.parametrize("form", kept(["NFC", "NFD"], "NFD"))
@pytest.mark.parametrize("database", kept(["file", "server"], "server"))
@pytest.mark.parametrize("is_result", [False, True])
async def test_a_word_is_found_however_it_is_written(
    request: pytest.FixtureRequest,
    home: Home,
    project: Path,
    database: str,
    is_result: bool,
    form: Literal["NFC", "NFD"],
) -> None:
    url = request.getfixturevalue("database_url") if database == "server" else None
    model = ScriptedProvider([calls("look") if is_result else TEXT, "ended"])
    async with AgentRuntime(project, model=model, database_url=url) as runtime:
        runtime.register_tool(look)
        await runtime.run("go", here=True)
        for word in WORDS:
            (found,) = await runtime.search_sessions(normalize(form, word), limit=1)
            assert "in İzmir" in found.snippet, word
        assert await runtime.search_sessions("strassenbahn") == []
        assert await runtime.search_sessions("buro") == []


async def test_sessions_are_listed_by_words_in_any_form(home: Home, project: Path) -> None:
    model = ScriptedProvider(["ended"])
    async with AgentRuntime(project, model=model) as runtime:
        await runtime.run("Die Straße nach İstanbul")
        for words in ("STRASSE", "i\u0307STANBUL straße"):
            (found,) = await runtime.session_summaries(query=words)
            assert found.title == "Die Straße nach İstanbul"
