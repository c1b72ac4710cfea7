"""The pytest plugin, in test runs of its own: with every plugin for async tests, and unused."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.checked

ANYIO = """import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio"""
ASYNC_TEST = """
async def test_it(agent_runtime):
    agent_runtime.script.add("Hello.", "Again.")
    async with agent_runtime.session() as session:
        assert (await session.run("Hi")).text == "Hello."
        assert (await session.run("Hi")).text == "Again."
    agent_runtime.script.assert_complete()
    global used
    used = agent_runtime


def test_it_is_closed():
    import asyncio
    from agent_core import AgentCoreError
    import pytest
    with pytest.raises(AgentCoreError, match="closed"):
        asyncio.run(used.start("Hi"))
"""
METHOD = """
async def test_it(self, agent_runtime):
    agent_runtime.script.add("Hello.")
    assert (await agent_runtime.run("Hi")).text == "Hello."
"""
PLAIN_TEST = '''
from pathlib import Path
import pytest
from agent_core import AgentRuntime, RunError, tool
from agent_core.testing import ScriptedRuntime, calls


@tool(permission="readonly")
def stock(item: str) -> int:
    """How many there are."""
    return 12


def test_it(agent_runtime: ScriptedRuntime) -> None:
    agent_runtime.script.add(calls("stock", item="lamp"), "Twelve.")
    agent_runtime.register_tool(stock)
    assert agent_runtime.run_sync("How many?").text == "Twelve."
    assert "stock" in [tool.name for tool in agent_runtime.script.requests[0].tools]
    agent_runtime.script.add("More.")
    assert agent_runtime.run_sync("More?").text == "More."
    agent_runtime.script.assert_complete()


def test_real_models_refuse(agent_runtime: ScriptedRuntime) -> None:
    runtime = AgentRuntime(model="ollama:m@http://127.0.0.1:9", persist=False)
    with pytest.raises(RunError, match="real one"):
        runtime.run_sync("Hi")


def test_nothing_of_it_is_left(agent_runtime: ScriptedRuntime) -> None:
    with pytest.raises(RunError, match="all are used"):
        agent_runtime.run_sync("Hi")


@pytest.fixture
def agent_runtime_options(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    return {"project_dir": tmp_path / "mine"}


def test_options_are_given(agent_runtime: ScriptedRuntime, tmp_path: Path) -> None:
    agent_runtime.script.add("Hi.")
    agent_runtime.run_sync("Hi")
    assert str(tmp_path / "mine") in str(agent_runtime.script.requests[0].system)
'''


_UNNEEDED = ("cacheprovider", "hypothesispytest", "schemathesis", "xdist")
WITHOUT = tuple(f"-pno:{name}" for name in _UNNEEDED)
"""Plugins that change nothing here, and take longer to load than all others."""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    if "no:asyncio" not in arguments:
        arguments = ("-o", "asyncio_default_fixture_loop_scope=function", *arguments)
    return subprocess.run(  # noqa: S603 - this interpreter, and a test of this file
        [sys.executable, "-m", "pytest", "-q", *WITHOUT, *arguments, str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("head", "arguments"),
    [
        ("", ["-p", "no:anyio", "--asyncio-mode=auto"]),
        pytest.param(
            "import pytest\n\n@pytest.mark.asyncio", ["-p", "no:anyio"], marks=pytest.mark.sweep
        ),
        (ANYIO, ["-p", "no:asyncio"]),
    ],
    ids=["asyncio-auto", "asyncio-strict", "anyio"],
)
def test_an_async_test_has_a_runtime_that_is_closed_after_it(
    head: str, arguments: list[str], tmp_path: Path
) -> None:
    method = textwrap.indent(head.rpartition("\n")[2] + METHOD, "    ")
    text = f"{head}{ASYNC_TEST}\n\nclass TestIt:\n{method}"
    (tmp_path / "test_one.py").write_text(text, encoding="utf-8")
    done = run_pytest(tmp_path, *arguments)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_plain_tests_have_one_too_with_their_own_options(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(PLAIN_TEST, encoding="utf-8")
    done = run_pytest(tmp_path, "-p", "no:anyio", "-p", "no:asyncio")
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_a_test_run_that_does_not_use_it_imports_nothing_for_it(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        "import sys\n\ndef test_it():\n"
        "    loaded = [name for name in sys.modules if name.startswith('agent_core')]\n"
        "    assert sorted(loaded) == ['agent_core', 'agent_core.loading',"
        " 'agent_core.testing', 'agent_core.testing.plugin']\n"
        "    assert 'pydantic' not in sys.modules and 'yaml' not in sys.modules\n",
        encoding="utf-8",
    )
    done = run_pytest(tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
