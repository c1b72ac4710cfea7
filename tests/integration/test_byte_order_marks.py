"""Files that a person wrote with an editor that begins them with a byte order mark are read."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from agent_core.cli.lines import InputLines
from isolation import Home
from kgent import RunOptions
from kgent.runtime.runner import run
from kgent.runtime.state import RunStatus
from session_stories import SOONG

BOM = "\ufeff"
FILES = {
    "config.toml": """[model]
provider = "openai"
name = "gpt"
base_url = "http://127.0.0.1:9/v1"
[hooks]
enabled = true
""",
    "rules.toml": '[[permissions.rules]]\ndecision = "deny"\ntool = "code.write_file"\n',
    "hooks.json": """{"version": 1, "hooks":
        {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}}""",
    "mcp.json": '{"mcpServers": {"files": {"command": "files-server", "disabled": true}}}',
    "agents/reviewer.md": "---\nid: reviewer\nname: R\ndescription: Reviews.\n---\nReview.\n",
    "skills/tidy.md": "---\nname: tidy\ndescription: Tidies up.\n---\nTidy.\n",
    "memory/user/tea.md": "---\nid: mem_tea\ncategory: user\nsummary: Drinks tea.\n"
    "created_at: 2026-11-01T10:00:00+00:00\nupdated_at: 2026-11-01T10:00:00+00:00\n---\nTea.\n",
    "tools/greet.json": """{"name": "user.greet", "description": "Greets.",
        "command_type": "exec", "command": "echo", "args": ["hello"]}""",
}


def soong(home: Home, project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own command
        [SOONG, *words],
        cwd=project,
        env={**os.environ, "SOONG_AGENT_HOME": str(home.path), "OPENAI_API_KEY": "k"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )


@pytest.mark.long
@pytest.mark.timeout(120)
def test_every_file_of_a_home_may_begin_with_a_mark(home: Home, project: Path) -> None:
    for name, content in FILES.items():
        file = home.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(BOM + content, encoding="utf-8")
    for words, expected in (
        (["config", "show", "model.name"], '"gpt"'),
        (["permissions", "list"], "code.write_file"),
        (["mcp", "list"], "files-server"),
        (["agents", "list"], "reviewer"),
        (["skills", "list"], "tidy"),
        (["memory", "list"], "mem_tea"),
    ):
        done = soong(home, project, *words)
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
    checks = json.loads(soong(home, project, "doctor", "--json").stdout)["checks"]
    states = {check["name"]: (check["state"], check["text"]) for check in checks}
    for name in ("configuration", "hooks", "tool files"):
        assert states[name][0] == "ok", states[name]


@pytest.mark.timeout(120)
def test_every_file_of_a_profile_may_begin_with_a_mark(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "kgent"
    for name in ("kgent.yaml", "prompt.md", "replies.json", "skills/field-report/SKILL.md"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(BOM + (example / name).read_text(encoding="utf-8"), encoding="utf-8")
    result = run(
        tmp_path / "kgent.yaml",
        (tmp_path / "prompt.md").read_text(encoding="utf-8"),
        RunOptions(sandbox=tmp_path / "run"),
    )
    assert result.status is RunStatus.completed, result.error


def test_the_first_answer_of_a_file_may_begin_with_a_mark(tmp_path: Path) -> None:
    file = tmp_path / "answers.txt"
    file.write_text(f"{BOM}y\nn\n", encoding="utf-8")
    with file.open("rb") as opened:
        lines = InputLines(opened.fileno())
        assert [asyncio.run(lines.next()) for _ in range(3)] == ["y", "n", None]
