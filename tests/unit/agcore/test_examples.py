"""The examples of the toolkit, and the programs on its page, run offline as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from isolation import Home
from model_server import ModelServer

pytestmark = pytest.mark.checked

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "agcore"
MAX_LINES = 200

SHOWN = {
    "simple_visit": ["A bundle is", "8 tokens in, 10 out"],
    "typed_agent": ["item='lamp' left=12"],
    "prompt_composer": ["- Tuesday: grey, take an umbrella", "the variable 'days' is missing"],
    "custom_tool": ["'temperature': 14", "do not allow add", "do not allow delete_file"],
    "agent_session_demo": ["missing tool_registry", "last_result: 2", "last_result = None"],
    "task_agent_demo": [
        "0 completed Look up the weather. Sunny.",
        "failed: pending False, ended True",
        "cannot become running",
    ],
    "conversation_memory_demo": [
        "from 'question 7' to 'answer 9'",
        "from 'question 3'",
        "42 messages became 7",
        "again and again, and gets answers.",
    ],
    "knowledge_search_demo": ["0.50 Rust 入门", "nothing: these words say nothing"],
    "streaming_events_demo": ["[done] stop", "attempt 2 failed", "[error] the model is gone"],
    "full_integration": ["a mock plays its part", "database: SQLite", "4 requests"],
}


def run(*arguments: str, home: Home, **environment: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own scripts, in our own interpreter
        [sys.executable, *arguments],
        cwd=home.path,
        env=home.env(PYTHONWARNINGS="error", **environment),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(home.path.iterdir()) == []
    return done.stdout


def test_every_example_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == SHOWN.keys()


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_runs_offline_and_shows_what_it_is_about(name: str, home: Home) -> None:
    path = FOLDER / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < MAX_LINES
    printed = run(str(path), home=home)
    assert [text for text in SHOWN[name] if text not in printed] == []


def test_the_full_example_uses_a_model_that_is_configured(home: Home) -> None:
    with ModelServer.in_thread(["Take SQLite, says the service.", "sqlite3 x.db"]) as server:
        printed = run(
            str(FOLDER / "full_integration.py"),
            home=home,
            AGCORE_PROVIDER="ollama",
            AGCORE_MODEL="m",
            AGCORE_BASE_URL=server.base_url("ollama"),
        )
        server.assert_complete()
    assert "The model is m of ollama." in printed
    assert "Take SQLite, says the service." in printed


PAGES = [ROOT / "docs" / "agcore.md", *sorted((ROOT / "docs" / "agcore").glob("*.md"))]


def programs(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.+?)^```$", page.read_text(encoding="utf-8"), re.S | re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_programs_on_a_page_run_as_they_stand(
    page: Path, home: Home, project: Path, request: pytest.FixtureRequest
) -> None:
    assert programs(page)
    file = project / "program.py"
    for program in programs(page):
        file.write_text(program, encoding="utf-8")
        environment: dict[str, str] = {}
        if "MEMORY_DATABASE" in program:
            environment["MEMORY_DATABASE"] = request.getfixturevalue("memory_database")
        assert run(str(file), home=home, **environment).strip() or "assert " in program


def lines_of(source: str) -> int:
    """Without empty ones and the docstring of the file."""
    body = re.sub(r'\A""".*?"""\n', "", source, flags=re.S)
    return len([line for line in body.splitlines() if line.strip()])


def test_fifteen_lines_make_a_typed_agent_and_the_page_counts_right() -> None:
    page = PAGES[0].read_text(encoding="utf-8")
    (program,) = programs(PAGES[0])
    assert lines_of(program) <= 15
    example = (FOLDER / "typed_agent.py").read_text(encoding="utf-8")
    assert program in example
    counted = {"here": lines_of(program)}
    for name, folder in (
        ("Pydantic AI", "pydantic_ai"),
        ("OpenAI Agents", "openai_agents"),
        ("LangGraph (LangChain agents)", "langgraph"),
    ):
        file = ROOT / "bench" / "programs" / folder / "typed_agent.py"
        counted[name] = lines_of(file.read_text(encoding="utf-8"))
    assert [f"| {name} | {lines} |" in page for name, lines in counted.items()] == [True] * 4


def test_the_page_of_the_toolkit_names_every_page() -> None:
    index = PAGES[0].read_text(encoding="utf-8")
    assert [page.name for page in PAGES[1:] if f"(agcore/{page.name})" not in index] == []
