"""Commands that would wait for an editor, a pager or a person end at once."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent_core.providers.scripted import calls
from agent_core.types import JsonBlock
from isolation import Home
from runtimes import Asked, runtime

WAITS = "sleep 1000"


@pytest.fixture
def repository(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with three commits; every editor and pager of its user waits."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("EDITOR", "VISUAL", "GIT_EDITOR", "PAGER", "GIT_PAGER", "GIT_SEQUENCE_EDITOR"):
        monkeypatch.setenv(name, WAITS)
    settings = {
        **dict.fromkeys(("core.editor", "sequence.editor", "core.pager", "pager.log"), WAITS),
        "user.name": "Ada",
        "user.email": "ada@example.org",
    }

    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=project, check=True, timeout=60)  # noqa: S603, S607

    git("init", "-q")
    for key, value in settings.items():
        git("config", "--global", key, value)
    for number in range(3):
        git("commit", "-q", "--allow-empty", "-m", f"commit {number}")
    (project / "new.txt").touch()
    git("add", "new.txt")
    return project


async def run_commands(home: Home, project: Path, *commands: list[str]) -> list[dict[str, Any]]:
    """Run commands as the model does, and return their results."""
    script: list[Any] = [
        calls("code.run_command", argv=argv, timeout_ms=60_000) for argv in commands
    ]
    async with runtime(
        home, project, [*script, "done"], permission_callback=Asked("allow_once")
    ) as made:
        await made.run("go", session_id="s1")
        history = await made.replay_session("s1", include_sensitive=True)
    found: list[dict[str, Any]] = []
    for node in history.nodes:
        for result in node.results:
            assert result.error is None, result.error
            found += [dict(block.data) for block in result.content if isinstance(block, JsonBlock)]
    return found


@pytest.mark.long
async def test_git_opens_no_editor_and_no_pager(home: Home, repository: Path) -> None:
    commit, commits, rebased, tagged, amended = await run_commands(
        home,
        repository,
        ["git", "commit"],
        ["git", "log", "--oneline"],
        ["git", "-c", "rebase.autoStash=true", "rebase", "-i", "HEAD~2"],
        ["git", "tag", "-a", "v1"],
        ["git", "commit", "--amend"],
    )
    assert commit["exit_code"] == 1
    assert "empty commit message" in commit["stderr"]
    assert len(commits["stdout"].splitlines()) == 3
    assert rebased["exit_code"] == 0
    assert tagged["exit_code"] != 0
    assert amended["exit_code"] == 0


async def test_git_asks_for_no_password(home: Home, repository: Path) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        address = f"http://127.0.0.1:{runner.addresses[0][1]}/x.git"
        (asked,) = await run_commands(home, repository, ["git", "ls-remote", address])
    finally:
        await runner.cleanup()
    assert asked["exit_code"] == 128
    assert "terminal prompts disabled" in asked["stderr"]


@pytest.mark.sweep
async def test_hooks_and_declarative_tools_have_the_same_editors(
    home: Home, repository: Path
) -> None:
    seen = repository / "seen.json"
    program = f"import json, os; json.dump(dict(os.environ), open({str(seen)!r}, 'w'))"
    hook = {"type": "command", "command": f'python3 -c "{program}"'}
    group = {"matcher": "code.list_dir", "hooks": [hook]}
    home.write("hooks.json", json.dumps({"version": 1, "hooks": {"PreToolUse": [group]}}))
    (home.path / "tools").mkdir(exist_ok=True)
    tool: dict[str, Any] = {
        "name": "show_environment",
        "description": "d",
        "command_type": "exec",
        "command": "env",
        "args": [],
    }
    home.write("tools/show.json", json.dumps(tool))
    script: list[Any] = [calls("code.list_dir", path="."), calls("show_environment"), "done"]
    async with runtime(home, repository, script, permission_callback=Asked("allow_once")) as made:
        await made.run("go", session_id="s1")
        history = await made.replay_session("s1", include_sensitive=True)
    shown = str([result.content for node in history.nodes for result in node.results])
    hooked = json.loads(seen.read_text(encoding="utf-8"))
    for name, value in {"GIT_EDITOR": "true", "VISUAL": "true", "PAGER": "cat"}.items():
        assert hooked[name] == value
        assert f"{name}={value}" in shown
