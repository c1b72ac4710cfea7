"""The page on testing: its code is that of its example, which passes, and its figures are true."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from agent_core import AgentRuntime, RunError, tool
from agent_core.testing import ScriptedProvider, calls, record, replay

pytestmark = pytest.mark.checked

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "testing" / "test_shop.py"
PAGE = (ROOT / "docs" / "testing.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.S | re.M)


@pytest.mark.timeout(60)
def test_the_example_passes(tmp_path: Path) -> None:
    (tmp_path / EXAMPLE.name).write_text(EXAMPLE.read_text("utf-8"), encoding="utf-8")
    settings = ["-o", "asyncio_default_fixture_loop_scope=function", "--asyncio-mode=auto"]
    settings += ["-pno:schemathesis", "-pno:hypothesispytest", "-pno:xdist"]  # slow to load
    done = subprocess.run(  # noqa: S603 - this interpreter, and our own example
        [sys.executable, "-W", "error", "-m", "pytest", "-q", *settings, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "14 passed" in done.stdout, done.stdout + done.stderr


def test_the_code_on_the_page_is_that_of_the_example() -> None:
    example = EXAMPLE.read_text("utf-8")
    shown = blocks("python")
    assert len(shown) > 6
    assert [block for block in shown if block not in example] == []


@tool(permission="readonly")
def stock(item: str) -> int:
    """How many of an item are left."""
    return len(item) * 3


async def test_the_recording_on_the_page_is_what_is_written(tmp_path: Path) -> None:
    live = ScriptedProvider([calls("stock", item="lamp"), "Twelve."])
    async with AgentRuntime(tmp_path, model=live, persist=False) as runtime:
        session = runtime.session("lamps")
        await session.run("How many lamps?", tools=[stock])
        path = await record(session, tmp_path / "r" / "lamps.yaml")
    (shown,) = blocks("yaml")
    written, on_page = yaml.safe_load(path.read_text("utf-8")), yaml.safe_load(shown)
    for each in (*written["calls"], *on_page["calls"]):
        del each["reply"]["usage"]
    assert written == on_page

    model = replay(path, project_dir=tmp_path)
    async with AgentRuntime(tmp_path, model=model, persist=False) as runtime:
        with pytest.raises(RunError) as caught:
            await runtime.run("How many chairs?", tools=[stock])
    (difference,) = blocks("text")
    assert str(caught.value).replace(str(path), path.name) == difference.rstrip()


def test_every_name_of_the_package_is_on_the_page_or_in_the_reference() -> None:
    from agent_core import testing  # noqa: PLC0415

    reference = (ROOT / "docs" / "reference" / "testing.md").read_text("utf-8")
    assert [name for name in testing.__all__ if f"`{name}`" not in PAGE + reference] == []
