"""The page for users claims what is true."""

import asyncio
import re
import sys
import tomllib
from pathlib import Path

from agent_core.config.models import ToolsConfig
from agent_core.mcp import load_servers

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


async def test_the_example_prints_what_the_page_shows() -> None:
    script = ROOT / "examples" / "mcp" / "use_notes.py"
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0
    assert printed.decode() in blocks("text")


def test_the_file_on_the_page_is_a_good_one(tmp_path: Path) -> None:
    (file,) = blocks("json")
    (tmp_path / "mcp.json").write_text(file.replace("…", "x"), encoding="utf-8")
    assert load_servers(tmp_path, tmp_path).keys() == {"files", "git", "docs"}


def test_the_settings_on_the_page_are_good_ones() -> None:
    (settings,) = blocks("toml")
    config = ToolsConfig.model_validate(tomllib.loads(settings)["tools"])
    assert config.mcp.tool_overrides["mcp.git.git_log"].permission == "readonly"
