"""What `[sandbox]` keeps from commands, hooks, tools and servers, through whole runs."""

import asyncio
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agcore.memory.store import SqliteStore
from agent_core.config.load import read_setup
from agent_core.errors import ConfigError
from agent_core.process.confinement import Abilities, missing, probe
from agent_core.process.sandbox import Sandbox
from agent_core.providers.scripted import Calls, Says, ScriptedCall
from agent_core.tools.workspace import PathPolicy
from agent_core.types import EventType
from isolation import Home
from runtimes import CONFIG, Asked, ask, collect, runtime
from sweeps import kept, sampled

SERVERS = Path(__file__).parents[1] / "mcp_servers"

pytestmark = pytest.mark.skipif(
    not (probe().landlock and probe().seccomp and probe().namespaces),
    reason="the kernel has no Landlock, no seccomp or no user namespaces",
)

ON = CONFIG + '\n[sandbox]\nmode = "auto"\n'


def sh(script: str, **more: Any) -> Calls:
    arguments = {"argv": ["sh", "-c", script], **more}
    return Calls(calls=[ScriptedCall(name="code.run_command", arguments=arguments)])


async def run_one(
    home: Home,
    project: Path,
    call: Calls,
    *,
    config: str = ON,
    asked: Asked | None = None,
) -> tuple[dict[str, Any], list[str], Asked]:
    """The result of the call, what the user was shown while it ran, and what was asked."""
    asked = asked or Asked("allow_once")
    script = [call, Says(text="done")]
    async with runtime(home, project, script, config=config, permission_callback=asked) as made:
        handle = await made.start("go", session_id="s1")
        events = await collect(handle)
        session = (await made.list_sessions())[0]
        path = await made.get_node_path(session.active_node_id or "")
    result = [result for node in path for result in node.results][-1]
    shown = [e.payload["text"] for e in events if e.event_type is EventType.TOOL_PROGRESS]
    answer: dict[str, Any] = {"error": result.error, "metadata": result.metadata}
    for block in result.content:
        answer |= block.data if block.type == "json" else {"text": getattr(block, "text", "")}
    return answer, shown, asked


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    return folder


async def test_a_write_outside_is_refused_and_said_to_the_model_and_the_user(
    home: Home, project: Path, outside: Path
) -> None:
    script = f"echo in > here.txt; echo out > {outside}/there.txt"
    answer, shown, asked = await run_one(home, project, sh(script))
    assert (project / "here.txt").read_text(encoding="utf-8") == "in\n"
    assert not list(outside.iterdir())
    assert answer["exit_code"] != 0
    assert answer["blocked_by_sandbox"] == [f"{outside}/there.txt"]
    assert shown == [f"blocked by the sandbox: {outside}/there.txt"]
    said = asked.requests[0].metadata["sandbox"]
    assert said.startswith("on, network off, writes only to ")
    assert str(project) in said


async def test_outside_of_the_sandbox_a_command_runs_after_a_question_of_its_own(
    home: Home, project: Path, outside: Path
) -> None:
    asked = Asked("allow_for_session")
    config = ON + "ask_inside = false\n"
    call = sh(f"echo out > {outside}/there.txt", outside_sandbox=True)
    answer, _, _ = await run_one(home, project, call, config=config, asked=asked)
    assert answer["exit_code"] == 0
    assert (outside / "there.txt").exists()
    (request,) = asked.requests
    assert request.metadata["reason"] == "outside_sandbox"
    assert request.metadata["sandbox"].startswith("off")
    assert request.target_scope == "this call only"
    await run_one(home, project, call, config=config, asked=asked)
    assert len(asked.requests) == 2


async def test_a_remembered_answer_inside_does_not_cover_the_same_command_outside(
    home: Home, project: Path
) -> None:
    asked = Asked("allow_for_session")
    calls = [sh("true"), sh("true"), sh("true", outside_sandbox=True), Says(text="done")]
    async with runtime(home, project, calls, config=ON, permission_callback=asked) as made:
        await ask(made)
    reasons = [request.metadata.get("reason") for request in asked.requests]
    assert reasons == [None, "outside_sandbox"]


@pytest.mark.long
async def test_what_stays_inside_runs_unasked_if_the_user_says_so(
    home: Home, project: Path, outside: Path
) -> None:
    asked = Asked("deny")
    config = ON + "ask_inside = false\n"
    answer, _, _ = await run_one(home, project, sh("echo in > a.txt"), config=config, asked=asked)
    assert answer["exit_code"] == 0
    assert asked.requests == []
    (outside / "x").write_text("read\n", encoding="utf-8")
    call = sh(f"cat {outside}/x")
    answer, _, _ = await run_one(home, project, call, config=config, asked=asked)
    assert answer["stdout"] == "read\n"
    assert asked.requests == []
    call = sh(f"cp {outside}/x .")
    await run_one(home, project, call, config=config, asked=asked)
    assert [request.metadata["reason"] for request in asked.requests] == ["outside_roots"]


CONNECT = (
    "import socket, sys\n"
    "socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=5)\n"
    "print('reached')\n"
)


def connect(port: int, **more: Any) -> Calls:
    argv = [sys.executable, "-I", "-c", CONNECT, str(port)]
    return Calls(calls=[ScriptedCall(name="code.run_command", arguments={"argv": argv, **more})])


@pytest.fixture
def listening() -> Iterator[int]:
    """The port of a server on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_the_network_is_had_after_a_question_that_says_so(
    home: Home, project: Path, listening: int
) -> None:
    config = ON + "ask_inside = false\n"
    asked = Asked("allow_once")
    inside, _, _ = await run_one(home, project, connect(listening), config=config, asked=asked)
    assert inside["exit_code"] != 0
    assert all("network off" in request.metadata["sandbox"] for request in asked.requests)
    asked = Asked("allow_once")
    call = connect(listening, network=True)
    with_network, _, _ = await run_one(home, project, call, config=config, asked=asked)
    assert with_network["stdout"] == "reached\n"
    (request,) = asked.requests
    assert "network on" in request.metadata["sandbox"]
    assert "with network access" in (request.target_scope or "")


@pytest.mark.parametrize("network", sampled(["on", "off"], keep=1))
async def test_a_network_that_is_not_asked_for_is_no_argument(
    home: Home, project: Path, listening: int, network: str
) -> None:
    config = ON + f'network = "{network}"\n'
    answer, _, _ = await run_one(home, project, connect(listening), config=config)
    assert (answer["exit_code"] == 0) == (network == "on")
    answer, _, _ = await run_one(home, project, connect(listening, network=True), config=config)
    assert answer["error"].code == "validation_error"


def git(*arguments: str) -> int:
    argv = ["git", *arguments]
    return subprocess.run(argv, check=False, capture_output=True).returncode  # noqa: S603


def init(folder: Path) -> None:
    assert git("init", "-q", str(folder)) == 0


def commit(folder: Path) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    assert git("-C", str(folder), *author, "commit", "-q", "--allow-empty", "-m", "first") == 0


async def test_hooks_and_settings_of_repositories_stay_as_they_are(
    home: Home, project: Path
) -> None:
    for folder in (project, project / "deeper" / "inner"):
        folder.mkdir(parents=True, exist_ok=True)
        init(folder)
    before = (project / ".git" / "config").read_bytes()
    script = (
        "echo x > .git/hooks/pre-commit; echo x >> .git/config; mv .git gone;"
        " echo x > deeper/inner/.git/hooks/post-checkout;"
        " echo ../evil > .git/commondir; rm -rf .git/hooks; echo y > .git/description"
    )
    answer, _, _ = await run_one(home, project, sh(script))
    assert (project / ".git" / "config").read_bytes() == before
    assert not (project / ".git" / "hooks" / "pre-commit").exists()
    assert not (project / ".git" / "commondir").exists()
    assert not (project / "deeper/inner/.git/hooks/post-checkout").exists()
    assert (project / ".git" / "description").read_text(encoding="utf-8") == "y\n"
    assert f"{project}/.git/hooks/pre-commit" in answer["blocked_by_sandbox"]
    assert any(f"{project}/.git/config" in text for text in answer["disabled_repositories"])
    assert git("-C", str(project), "status") == 0


@pytest.mark.sweep
async def test_git_commits_inside(home: Home, project: Path) -> None:
    init(project)
    script = (
        "echo 1 > a; git add a;"
        " git -c user.name=a -c user.email=a@b.c commit -qm one && git log --oneline"
    )
    answer, _, _ = await run_one(home, project, sh(script))
    assert answer["exit_code"] == 0, answer
    assert answer["stdout"].endswith("one\n")


async def test_the_temporary_folder_is_the_calls_own_and_goes_with_it(
    home: Home, project: Path
) -> None:
    script = 'echo x > "$TMPDIR/y"; mkdir "$TMPDIR/d"; chmod 0 "$TMPDIR/d"; echo "$TMPDIR"'
    answer, _, _ = await run_one(home, project, sh(script))
    folder = Path(answer["stdout"].strip())
    assert folder.is_relative_to(Path(tempfile.gettempdir()).resolve())
    assert folder.name.startswith(".soong-agent-")
    assert not folder.exists()
    assert not (home.path / "unfinished").exists()


async def test_what_is_read_can_be_limited(home: Home, project: Path, outside: Path) -> None:
    (outside / "secret").write_text("s3cret", encoding="utf-8")
    (project / "open").write_text("open", encoding="utf-8")
    script = f"cat open; cat {outside}/secret"
    answer, _, _ = await run_one(home, project, sh(script), config=ON + "read = []\n")
    assert answer["stdout"] == "open"
    assert answer["blocked_by_sandbox"] == [f"{outside}/secret"]
    config = ON + f'read = ["{outside}"]\n'
    answer, _, _ = await run_one(home, project, sh(script), config=config)
    assert answer["stdout"] == "opens3cret"


async def test_folders_to_write_to_take_the_place_of_the_project(
    home: Home, project: Path, outside: Path
) -> None:
    config = ON + f'write = ["{outside}"]\n'
    script = f"echo x > {outside}/a; echo x > b"
    answer, _, _ = await run_one(home, project, sh(script), config=config)
    assert (outside / "a").exists()
    assert answer["blocked_by_sandbox"] == [f"{project}/b"]


async def test_what_is_protected_can_be_chosen(home: Home, project: Path) -> None:
    (project / "vendor").mkdir()
    (project / ".env").write_text("a", encoding="utf-8")
    config = ON + 'protect = ["vendor", "*.lock"]\n'
    (project / "uv.lock").write_text("1", encoding="utf-8")
    script = "echo x > vendor/x; echo x > uv.lock; echo x > .env"
    answer, _, _ = await run_one(home, project, sh(script), config=config)
    assert (project / "uv.lock").read_text(encoding="utf-8") == "1"
    assert not list((project / "vendor").iterdir())
    assert (project / ".env").read_text(encoding="utf-8") == "x\n"
    assert set(answer["blocked_by_sandbox"]) == {f"{project}/vendor/x", f"{project}/uv.lock"}


async def test_a_hook_is_confined_and_has_the_network(
    home: Home, project: Path, outside: Path, listening: int
) -> None:
    script = home.write("connect.py", CONNECT)
    connecting = f"{sys.executable} -I {script} {listening}"
    command = f"echo x > {outside}/hook; {connecting} > /dev/null && echo x > reached"
    hook = {"type": "command", "command": command}
    hooks = {"version": 1, "hooks": {"PreToolUse": [{"hooks": [hook]}]}}
    home.write("hooks.json", json.dumps(hooks))
    answer, _, _ = await run_one(home, project, sh("true"))
    assert answer["exit_code"] == 0
    assert (project / "reached").exists()
    assert not list(outside.iterdir())


async def test_a_declarative_tool_is_confined(home: Home, project: Path, outside: Path) -> None:
    tool = {
        "name": "notes.write",
        "description": "Writes.",
        "command_type": "shell",
        "command": f"echo x > inside; echo x > {outside}/tool",
        "permission": "write",
    }
    home.write("tools/write.json", json.dumps(tool))
    call = Calls(calls=[ScriptedCall(name="notes.write", arguments={})])
    answer, shown, asked = await run_one(home, project, call)
    assert (project / "inside").exists()
    assert not list(outside.iterdir())
    assert answer["metadata"]["blocked_by_sandbox"] == [f"{outside}/tool"]
    assert shown == [f"blocked by the sandbox: {outside}/tool"]
    assert asked.requests[0].metadata["sandbox"].startswith("on, network off")


@pytest.mark.sweep
async def test_a_call_of_a_file_tool_says_what_the_sandbox_does(home: Home, project: Path) -> None:
    arguments = {"path": "a.txt", "content": "x"}
    call = Calls(calls=[ScriptedCall(name="code.write_file", arguments=arguments)])
    _, _, asked = await run_one(home, project, call)
    assert asked.requests[0].metadata["sandbox"].startswith("on, for programs")
    _, _, asked = await run_one(home, project, sh("true"), config=CONFIG)
    assert asked.requests[0].metadata["sandbox"] == "off"


def say_servers(home: Home, diary: Path) -> None:
    server = {
        "command": sys.executable,
        "args": [str(SERVERS / "plain.py")],
        "env": {"PLAIN_DIARY": str(diary)},
    }
    home.write("mcp.json", json.dumps({"mcpServers": {"plain": server}}))


async def test_a_server_is_confined(home: Home, project: Path, outside: Path) -> None:
    call = Calls(calls=[ScriptedCall(name="mcp.plain.write", arguments={})])
    say_servers(home, project / "diary")
    answer, _, asked = await run_one(home, project, call)
    assert answer["text"] == "written"
    assert (project / "diary").exists()
    assert asked.requests[0].metadata["sandbox"].startswith("on, network on, writes only to ")
    say_servers(home, outside / "diary")
    answer, _, _ = await run_one(home, project, call)
    assert answer["error"] is not None
    assert not list(outside.iterdir())


@pytest.mark.sweep
async def test_a_server_that_fails_by_its_sandbox_says_so(
    home: Home, project: Path, outside: Path
) -> None:
    script = f"open({str(outside / 'cache')!r}, 'w')"
    server = {"command": sys.executable, "args": ["-I", "-c", script]}
    home.write("mcp.json", json.dumps({"mcpServers": {"cached": server}}))
    async with runtime(home, project, [Says(text="done")], config=ON) as made:
        events = await collect(await made.start("go", session_id="s1"))
    (failed,) = [e for e in events if e.event_type is EventType.MCP_SERVER_FAILED]
    assert f"blocked by the sandbox: {outside}/cache" in json.dumps(failed.payload)


async def test_what_a_killed_process_has_left_is_removed_by_the_next_start(
    home: Home, project: Path
) -> None:
    def script(*replies: Any) -> None:
        home.write("replies.json", json.dumps(list(replies)))
        model = f'model = "scripted:{home.path}/replies.json"\n'
        home.write_config(model + '[sandbox]\nmode = "auto"\nask_inside = false\n')

    slow = ["sh", "-c", 'echo "$TMPDIR" > where.new; mv where.new where; sleep 60']
    script(
        {"type": "calls", "calls": [{"name": "code.run_command", "arguments": {"argv": slow}}]},
        "done",
    )
    argv = [sys.executable, "-m", "agent_core.cli", "run", "--path", str(project), "go"]
    started = await asyncio.create_subprocess_exec(*argv, env=home.env())
    while not (project / "where").exists():
        assert started.returncode is None
        await asyncio.sleep(0.02)
    started.kill()
    await started.wait()
    folder = Path((project / "where").read_text(encoding="utf-8").strip())
    assert folder.exists()
    script("done")
    again = await asyncio.create_subprocess_exec(*argv, env=home.env())
    assert await again.wait() == 0
    assert not folder.exists()


def on_old_kernel(home: Home, *argv: str, answers: str = "") -> subprocess.CompletedProcess[str]:
    script = str(Path(__file__).parents[1] / "old_kernel.py")
    command = [sys.executable, script, "agent_core.cli", *argv]
    return subprocess.run(  # noqa: S603
        command, env=home.env(), input=answers, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter is for x86-64")
@pytest.mark.parametrize(
    ("settings", "runs"),
    kept(
        [
            ('mode = "auto"\nask_inside = false', True),
            ('mode = "required"', False),
        ],
        ('mode = "required"', False),
    ),
)
def test_what_cannot_be_kept_is_said_or_refused(
    home: Home, project: Path, settings: str, runs: bool
) -> None:
    call = {"name": "code.run_command", "arguments": {"argv": ["touch", "made"]}}
    home.write("replies.json", json.dumps([{"type": "calls", "calls": [call]}, "done"]))
    home.write_config(f'model = "scripted:{home.path}/replies.json"\n[sandbox]\n{settings}\n')
    guard = {"hooks": [{"type": "command", "command": "touch hooked"}]}
    home.write("hooks.json", json.dumps({"version": 1, "hooks": {"PreToolUse": [guard]}}))
    done = on_old_kernel(home, "run", "--path", str(project), "go", answers="1\n")
    assert (project / "made").exists() == runs
    assert (project / "hooked").exists() == runs
    examined = on_old_kernel(home, "doctor", "--path", str(project))
    if runs:
        assert "but files anywhere can be changed" in done.stderr  # and so it was asked for
        assert examined.returncode == 0
        assert "remark  sandbox" in examined.stdout
    else:
        assert "the sandbox is required" in done.stderr
        assert examined.returncode == 1
        assert "broken  sandbox" in examined.stdout


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter is for x86-64")
def test_a_guard_that_may_not_run_lets_nothing_pass(home: Home, project: Path) -> None:
    call = {"name": "code.read_file", "arguments": {"path": "a.txt"}}
    (project / "a.txt").write_text("read me", encoding="utf-8")
    home.write("replies.json", json.dumps([{"type": "calls", "calls": [call]}, "done"]))
    config = f'model = "scripted:{home.path}/replies.json"\n[sandbox]\nmode = "required"\n'
    home.write_config(config)
    guard = {"hooks": [{"type": "command", "command": "true"}]}
    home.write("hooks.json", json.dumps({"version": 1, "hooks": {"PreToolUse": [guard]}}))
    done = on_old_kernel(home, "run", "--path", str(project), "go")
    assert "code.read_file a.txt failed" in done.stderr


async def test_a_project_without_a_repository_gets_no_hooks_from_a_command(
    home: Home, project: Path
) -> None:
    script = "mkdir -p .git/hooks && echo x > .git/hooks/pre-commit; git init -q .; ls -A"
    await run_one(home, project, sh(script))
    assert list(project.iterdir()) == []


async def test_what_a_repository_runs_by_its_settings_stays_as_it_is(
    home: Home, project: Path
) -> None:
    init(project)
    git("-C", str(project), "config", "core.hooksPath", ".husky")
    for name in (".husky/pre-commit", ".git/config.worktree", ".git/modules/a/b/HEAD"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("old\n", encoding="utf-8")
    (project / "tree").mkdir()
    (project / "tree" / ".git").write_text("gitdir: ../.git/worktrees/tree\n", encoding="utf-8")
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    script = (
        "echo x > .husky/pre-commit; echo x > .git/config.worktree; echo x > .husky/post-commit;"
        " echo x > .git/modules/a/b/config; mkdir .git/modules/a/b/hooks; echo x > tree/.git"
    )
    await run_one(home, project, sh(script))
    after = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    assert {path: after.pop(path, None) for path in before} == before
    assert {path.suffix for path in after} <= {".disabled"}


async def test_what_leads_git_to_other_hooks_and_settings_stays_as_it_is(
    home: Home, project: Path, outside: Path
) -> None:
    init(outside)
    commit(outside)
    init(project)
    commit(project)
    git("-C", str(project), "worktree", "add", "-q", str(outside / "tree"), "-b", "tree")
    git(
        "-C",
        str(project),
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "add",
        str(outside),
        "m",
    )
    git("init", "--bare", str(project / "bare.git"))
    git("init", f"--separate-git-dir={project}/apart", str(project / "inner"))
    git("-C", str(project), "config", "include.path", "../settings")
    (project / "settings").write_text('[core] hooksPath = "our hooks" # here\n', encoding="utf-8")
    (project / "our hooks").mkdir()
    (project / "pipe" / ".git").mkdir(parents=True)
    os.mkfifo(project / "pipe" / ".git" / "config")
    (project / "nothing").mkdir()
    (project / "nothing" / ".git").write_bytes(b"gitdir: \0")
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    tried = (
        ".git/worktrees/tree/commondir .git/modules/m/commondir .git/commondir settings"
        " bare.git/config bare.git/hooks/update bare.git/commondir apart/config apart/hooks/update"
        " 'our hooks/update'"
    )
    answer, _, _ = await run_one(home, project, sh(f'for i in {tried}; do echo x > "$i"; done'))
    after = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    assert {path: after.pop(path, None) for path in before} == before
    assert {path.suffix for path in after} == {".disabled"}
    assert f"{project}/settings" in answer["blocked_by_sandbox"]
    assert any(f"{project}/apart/hooks/update" in one for one in answer["disabled_repositories"])


async def test_a_repository_that_is_written_to_beside_the_project_keeps_its_hooks(
    home: Home, project: Path, outside: Path
) -> None:
    init(outside)
    commit(outside)
    git("-C", str(outside), "worktree", "add", "-q", str(project / "tree"), "-b", "tree")
    config = ON + f'write = ["<project>/tree", "{outside}/.git"]\n'
    author = "-c user.name=a -c user.email=a@example.com"
    script = (
        f"cd tree; git {author} commit -q --allow-empty -m made; echo x >> {outside}/.git/config;"
        f" echo x > {outside}/.git/hooks/pre-commit"
    )
    settings = (outside / ".git" / "config").read_bytes()
    await run_one(home, project, sh(script), config=config)
    assert (outside / ".git" / "config").read_bytes() == settings
    assert not (outside / ".git" / "hooks" / "pre-commit").exists()
    assert git("-C", str(outside), "rev-parse", "tree~1") == 0


async def test_a_folder_that_is_written_to_stays_in_its_place_in_a_larger_one(
    home: Home, outside: Path
) -> None:
    project = outside / "above" / "project"
    project.mkdir(parents=True)
    init(project)
    config = ON + f'write = ["<project>", "{outside}"]\n'
    script = f"mv {outside}/above {outside}/away && mkdir -p {outside}/above/project/.git/hooks"
    answer, _, _ = await run_one(home, project, sh(script), config=config)
    assert answer["blocked_by_sandbox"] == [f"{outside}/above"]
    assert (project / ".git" / "HEAD").exists()


@pytest.mark.long
async def test_what_was_protected_once_is_not_hidden_by_many_files(
    home: Home, project: Path
) -> None:
    inner = project / "deep" / "inner"
    inner.mkdir(parents=True)
    (inner / ".env").write_text("old", encoding="utf-8")
    flood = "seq 2500 | sed s/^/d/ | xargs mkdir"
    calls = [sh(flood), sh("echo new > deep/inner/.env"), Says(text="done")]
    asked = Asked("allow_once")
    config = ON + 'protect = [".env"]\n'
    async with runtime(home, project, calls, config=config, permission_callback=asked) as made:
        await ask(made)
    assert len(list(project.iterdir())) == 2501
    assert (inner / ".env").read_text(encoding="utf-8") == "old"


async def test_the_programs_own_files_stay_as_they_are_inside_of_what_is_written_to(
    home: Home, project: Path, outside: Path
) -> None:
    above = home.path.parent
    config = ON + f'ask_inside = false\nwrite = ["{above}", "{project}"]\nprotect = []\n'
    script = f"up=$(dirname $(dirname $PWD)); echo x > $up/home/{home.path.name}/config.toml; pwd"
    answer, _, _ = await run_one(home, project, sh(script), config=config)
    assert answer["exit_code"] == 0
    assert (home.path / "config.toml").read_text(encoding="utf-8") == config
    assert answer["blocked_by_sandbox"] == [str(home.path / "config.toml")]
    config = ON + 'write = ["${SOONG_AGENT_HOME}/notes"]\n'
    with pytest.raises(ConfigError, match=r"sandbox.write\[0\] must not lie in the home"):
        await run_one(home, project, sh("true"), config=config)


@pytest.mark.parametrize(
    ("cache", "sensitive"),
    [
        *((".config", ".config"), ("link", ".ssh"), ("work", "work/.env"), ("..", "")),
        *(
            pytest.param(each, each, marks=pytest.mark.sweep)
            for each in (".ssh", ".config/gh", ".cargo", ".kube/cache", ".local/share")
        ),
    ],
)
async def test_no_sensitive_folder_is_a_cache(
    home: Home,
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cache: str,
    sensitive: str,
) -> None:
    user = tmp_path / "user"
    (user / "work").mkdir(parents=True)
    (user / "work/.env").touch()
    (user / ".ssh").mkdir()
    (user / "link").symlink_to(".ssh")
    monkeypatch.setenv("HOME", str(user))
    config = ON + f'caches = ["~/{cache}"]\n'
    with pytest.raises(ConfigError, match=r"sandbox.caches\[0\] must not") as refused:
        await run_one(home, project, sh("true"), config=config)
    assert not sensitive or f"{user}/{sensitive} is sensitive" in str(refused.value)


@pytest.mark.sweep
async def test_folders_of_package_managers_are_caches(
    home: Home, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    names = (
        *(".npm", ".cache/uv", ".cargo/registry", ".cargo/git", "go/pkg", ".gradle"),
        *(".local/share/pnpm", ".cache/pnpm", ".local/state/pnpm", ".m2/repository"),
    )
    for name in names:
        (tmp_path / "user" / name).mkdir(parents=True)
    config = ON + f"caches = {[f'~/{name}' for name in names]}\n"
    answer, _, _ = await run_one(home, project, sh("touch ~/go/pkg/x"), config=config)
    assert answer["exit_code"] == 0, answer


async def test_a_hook_reads_what_lies_beside_it_in_the_home(home: Home, project: Path) -> None:
    home.write("hooks/guard.sh", 'echo \'{"decision": "deny", "reason": "guarded"}\'\n')
    hook = {"type": "command", "command": f"sh {home.path}/hooks/guard.sh"}
    hooks = {"version": 1, "hooks": {"PreToolUse": [{"hooks": [hook]}]}}
    home.write("hooks.json", json.dumps(hooks))
    answer, _, _ = await run_one(home, project, sh("true"), config=ON + "read = []\n")
    assert "guarded" in answer["error"].message


@pytest.mark.sweep
async def test_many_refusals_are_counted(home: Home, project: Path, outside: Path) -> None:
    script = f"i=0; while [ $i -lt 50 ]; do touch {outside}/$i; i=$((i+1)); done"
    answer, _, _ = await run_one(home, project, sh(script))
    assert len(answer["blocked_by_sandbox"]) == 21
    assert answer["blocked_by_sandbox"][-1] == "… (+30 more)"


@pytest.mark.long
async def test_the_environment_that_the_program_runs_from_stays_as_it_is(
    home: Home, project: Path
) -> None:
    prefix = Path(sys.prefix).resolve()
    config = ON + f'write = ["{prefix.parent}", "{project}"]\nprotect = []\n'
    answer, _, _ = await run_one(home, project, sh(f"touch {prefix}/planted"), config=config)
    assert answer["blocked_by_sandbox"] == [f"{prefix}/planted"]
    assert not (prefix / "planted").exists()


@pytest.mark.sweep
async def test_what_a_command_leaves_in_a_repository_does_not_end_the_call(
    home: Home, project: Path
) -> None:
    init(project)
    answer, _, _ = await run_one(home, project, sh('mkdir .git/commondir; echo "$TMPDIR"'))
    assert answer["exit_code"] == 0
    assert not Path(answer["stdout"].strip()).exists()


async def test_a_cancelled_command_leaves_no_temporary_folder(home: Home, project: Path) -> None:
    script = [sh('echo "$TMPDIR" > where.new; mv where.new where; sleep 60'), Says(text="done")]
    config = ON + "ask_inside = false\n"
    async with runtime(home, project, script, config=config) as made:
        handle = await made.start("go", session_id="s1")
        for _ in iter((project / "where").exists, True):
            await asyncio.sleep(0.02)
        await handle.cancel()
    folder = Path((project / "where").read_text(encoding="utf-8").strip())
    assert not folder.exists()
    assert not (home.path / "unfinished").exists()


async def test_a_repository_behind_a_link_is_asked_for(home: Home, project: Path) -> None:
    init(project)
    (project / ".git" / "hooks").rename(project / "shared")
    (project / ".git" / "hooks").symlink_to("../shared")
    config = ON + "ask_inside = false\n"
    _, _, asked = await run_one(home, project, sh("true"), config=config)
    assert f"{project}/.git/hooks is a link" in asked.requests[0].metadata["sandbox"]


LOCKS = """
import fcntl, sys
for path in open(sys.argv[1]).read().splitlines():
    try:
        with open(path, "rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 120)
            print("locked", path)
    except OSError as error:
        print("refused", error)
"""
ENDS = ("", "-wal", "-shm")
ONLY_LANDLOCK = replace(probe(), namespaces=False, network_namespace=False, bubblewrap=None)
ONLY_BUBBLEWRAP = replace(ONLY_LANDLOCK, landlock=0, bubblewrap=shutil.which("bwrap"))
SYSTEMS = {"mounts": probe(), "landlock": ONLY_LANDLOCK, "bubblewrap": ONLY_BUBBLEWRAP}
ONE_SYSTEM = pytest.mark.parametrize("system", kept(SYSTEMS, "mounts"), indirect=True)


def locking(project: Path, *paths: Path) -> Calls:
    """A command that tries to open and lock files which its words do not name."""
    (project / "paths.txt").write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")
    arguments = [sys.executable, "-I", "-S", "-c", LOCKS, "paths.txt"]
    return Calls(calls=[ScriptedCall(name="code.run_command", arguments={"argv": arguments})])


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The ways in which programs are confined."""
    if request.param == "bubblewrap" and not ONLY_BUBBLEWRAP.bubblewrap:
        pytest.skip("bubblewrap is not installed")

    def found() -> Abilities:
        return SYSTEMS[request.param]

    for module in ("confinement", "sandbox"):
        monkeypatch.setattr(f"agent_core.process.{module}.probe", found)
    return str(request.param)


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize(
    "read", kept(['"all"', "[]", '["{home}"]'], '"all"'), ids=kept(["all", "none", "home"], "all")
)
async def test_a_command_opens_no_file_of_the_database_and_no_lock(
    read: str, home: Home, project: Path
) -> None:
    database = home.path / "sessions.sqlite"
    home.write("snapshots/locks/project", "")
    home.write("sessions/.owners/own_1.lock", "")
    home.write("memory/.lock", "")
    home.write("rules.lock", "")
    home.write("memory-backlog.lock", "")
    home.write("memory/users/anna/.lock", "")
    home.write("memory/users/anna/user/note.md", "a memory of another user")
    home.write("memory/tenants/acme/users/ben/.lock", "")
    closed = [database.with_name(f"{database.name}{end}") for end in ENDS]
    closed += [
        home.path / name
        for name in ("snapshots/locks/project", "sessions/.owners/own_1.lock", "memory/.lock")
    ]
    closed += [home.path / name for name in ("rules.lock", "memory-backlog.lock")]
    closed += [
        home.path / "memory" / name
        for name in ("users/anna/.lock", "users/anna/user/note.md", "tenants/acme/users/ben/.lock")
    ]
    config = ON + f"read = {read.format(home=home.path)}\n"
    if read != '"all"':
        config = config.replace("read = [", f'read = ["{sys.prefix}", "{sys.base_prefix}", ')
    answer, _, asked = await run_one(home, project, locking(project, *closed), config=config)
    assert answer["stdout"].count("refused") == len(closed), answer
    assert all("hidden" not in each.metadata["sandbox"] for each in asked.requests)


@ONE_SYSTEM
async def test_a_database_elsewhere_is_hidden_by_all_its_names(
    system: str, home: Home, project: Path, outside: Path
) -> None:
    database = outside / "store.db"
    config = CONFIG + f'[context]\nsession_db_path = "{database}"\n[sandbox]\nmode = "auto"\n'
    home.write_config(config)
    setup = read_setup(project, home_dir=home.path)
    async with runtime(home, project, [Says(text="ok")], config=config) as made:
        await ask(made, "hello", "s0")
        names = [database.with_name(f"store.db{end}") for end in ENDS]
        others = [project / "deep" / f"copy{end}" for end in ENDS]
        (project / "deep").mkdir()
        for name, other in zip(names, others, strict=True):
            other.hardlink_to(name)
        answer, _, _ = await run_one(
            home, project, locking(project, *names, *others), config=config
        )
        holes = Sandbox.of(setup, own=()).examine("command").holes
    said = [hole.text for hole in holes if hole.rule == "hidden"]
    if system == "landlock":  # which cannot leave out a file of a folder that is written to
        assert [text.partition(" can be opened")[0] for text in said] == list(map(str, others))
        assert answer["stdout"].count("refused") == len(names)
    else:
        assert not said
        assert answer["stdout"].count("refused") == len([*names, *others]), answer


@ONE_SYSTEM
@pytest.mark.usefixtures("system")
async def test_no_database_that_the_process_has_open_can_be_locked(
    home: Home, project: Path, outside: Path
) -> None:
    store, other = outside / "memory.db", Home(outside / "other")
    async with (
        await SqliteStore.open(store) as memory,
        runtime(other, outside, [Says(text="ok")]) as made,
    ):
        await memory.list()
        await ask(made, "hello", "s0")
        names = [other.path / f"sessions.sqlite{end}" for end in ENDS]
        names += [store.with_name(f"{store.name}{end}") for end in ENDS]
        answer, _, _ = await run_one(home, project, locking(project, *names))
    assert answer["stdout"].count("refused") == len(names), answer


@pytest.mark.sweep
async def test_a_name_of_the_database_that_is_not_found_is_said(
    home: Home, project: Path, outside: Path
) -> None:
    async with runtime(home, project, [Says(text="ok")], config=ON) as made:
        await ask(made, "hello", "s0")
        (outside / "copy").hardlink_to(home.path / "sessions.sqlite-shm")
        _, _, asked = await run_one(home, project, sh("true"))
        arguments = [sys.executable, "-m", "agent_core.cli", "doctor"]
        doctor = await asyncio.create_subprocess_exec(
            *arguments, stdout=subprocess.PIPE, cwd=project, env=home.env()
        )
        found = (await doctor.communicate())[0].decode()
    said = f"{home.path}/sessions.sqlite-shm has another name (a hard link) that was not found"
    assert said in asked.requests[0].metadata["sandbox"]
    assert "sessions.sqlite-shm has another name" in " ".join(found.split())


@ONE_SYSTEM
@pytest.mark.usefixtures("system")
async def test_everything_else_is_read_as_before(home: Home, project: Path, outside: Path) -> None:
    (outside / "a").write_text("outside ", encoding="utf-8")
    home.write("skills/mine/run.sh", "echo skill\n")
    home.write("memory/user/note.md", "noted ")
    script = f"cat {outside}/a {home.path}/memory/user/note.md; sh {home.path}/skills/mine/run.sh"
    (project / "run.sh").write_text(script, encoding="utf-8")
    answer, _, _ = await run_one(home, project, sh("sh run.sh"))
    assert answer["stdout"] == "outside noted skill\n", answer


async def test_a_hook_cannot_lock_the_database(home: Home, project: Path) -> None:
    place = home.write("hooks/lock.py", LOCKS)
    index, seen = home.path / "sessions.sqlite-shm", project / "seen.txt"
    (project / "paths.txt").write_text(f"{index}\n", encoding="utf-8")
    line = f"{sys.executable} -I -S {place} {project}/paths.txt > {seen}"
    hooks = {"PreToolUse": [{"hooks": [{"type": "command", "command": line}]}]}
    home.write("hooks.json", json.dumps({"version": 1, "hooks": hooks}))
    await run_one(home, project, sh("true"))
    assert seen.read_text("utf-8").startswith("refused")


def test_a_database_that_is_not_open_is_hidden_with_the_files_it_may_get(
    home: Home, project: Path
) -> None:
    home.write_config(ON)
    home.write("sessions.sqlite", "")
    setup = read_setup(project, home_dir=home.path)
    plan = Sandbox.of(setup, own=PathPolicy.of(setup).protected).examine("command")
    hidden = [home.path / f"sessions.sqlite{end}" for end in ENDS]
    assert {*map(str, hidden)} <= {*plan.confinement.hidden}  # others may be open in this process
    assert not [hole for hole in missing(plan.confinement, probe()) if hole.rule == "hidden"]
    (hole,) = [
        hole
        for hole in missing(plan.confinement, replace(probe(), landlock=0))
        if hole.rule == "hidden" and hole.text.startswith(str(hidden[2]))
    ]
    assert "this takes Landlock" in hole.text
