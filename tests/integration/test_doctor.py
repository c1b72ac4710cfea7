"""`soong-agent doctor`: a line for everything a run needs, with what helps where it is missing."""

import asyncio
import errno
import json
import os
import re
import sqlite3
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import orjson
import pytest

from agent_core.cli.command import execute
from agent_core.disk import trying
from agent_core.disk.trying import try_file, try_folder
from agent_core.errors import ErrorCode
from agent_core.process.confinement import probe
from agent_core.providers.scripted import Calls, Fails, ScriptedCall, calls
from agent_core.storage.connections import open_writer
from isolation import Home
from model_server import ModelServer, Status
from mounts import read_only_mount
from rights import as_anyone
from runtimes import CONFIG, Asked, ask, runtime
from session_stories import SOONG
from sweeps import kept, sampled

SERVERS = Path(__file__).parents[1] / "mcp_servers"

Examined = tuple[int, dict[str, dict[str, Any]]]
Examine = Callable[..., Examined]


@pytest.fixture
def examine(project: Path, capsys: pytest.CaptureFixture[str]) -> Examine:
    """Runs the doctor; its exit code, and the checks by name."""

    def run(*arguments: str) -> Examined:
        code = execute(["doctor", "--path", str(project), "--json", *arguments])
        report = json.loads(capsys.readouterr().out)
        assert report["ok"] == (code == 0)
        for check in report["checks"]:
            assert (check["cure"] is None) == (check["state"] == "ok"), check
        return code, {check["name"]: check for check in report["checks"]}

    return run


def model(base_url: str, **more: Any) -> str:
    fields = {"provider": "openai", "name": "m", "base_url": base_url, **more}
    return "[model]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())


def states(checks: dict[str, dict[str, Any]], *names: str) -> list[str]:
    return [checks[name]["state"] for name in names]


OF_THE_MODEL = ("provider", "model", "tools", "window")
LISTED = Status(200, orjson.dumps({"data": [{"id": "m", "max_model_len": 8192}]}))


def ping() -> Calls:
    return Calls(calls=[ScriptedCall(name="doctor.ping", arguments={})])


def test_all_is_well(home: Home, examine: Examine) -> None:
    with ModelServer.in_thread([ping(), LISTED]) as server:
        home.write_config(model(server.base_url("openai")))
        before = sorted(home.path.rglob("*"))
        code, checks = examine()
        server.assert_complete()
    assert code == 0, checks
    asked = ("configuration", *OF_THE_MODEL, "ripgrep", "database", "memory")
    assert states(checks, *asked) == ["ok"] * 8
    assert checks["tools"]["text"] == "the model called one"
    assert checks["window"]["text"] == "8,192 tokens, as the server reports"
    assert checks["terminal"]["state"] == "remark"
    assert checks["sandbox"]["state"] == "remark"
    assert sorted(home.path.rglob("*")) == before


@pytest.mark.parametrize(
    ("configured", "state"),
    kept(
        [(4096, "remark"), (8192, "ok"), (100_000, "broken")], (4096, "remark"), (100_000, "broken")
    ),
)
def test_the_window_is_compared_with_what_the_server_reports(
    home: Home, examine: Examine, configured: int, state: str
) -> None:
    with ModelServer.in_thread([ping(), LISTED]) as server:
        home.write_config(model(server.base_url("openai"), context_window=configured))
        code, checks = examine()
    assert checks["window"]["state"] == state
    assert (code == 1) == (state == "broken")
    assert state == "ok" or "context_window = 8192" in checks["window"]["cure"]


def test_without_a_configuration_it_says_so_and_looks_at_the_rest(
    home: Home, examine: Examine
) -> None:
    code, checks = examine()
    assert code == 1
    assert checks["configuration"]["state"] == "broken"
    assert str(home.path / "config.toml") in checks["configuration"]["text"]
    assert "--model" in checks["configuration"]["cure"]
    assert checks["ripgrep"]["state"] == "ok"
    assert checks["sandbox"]["text"].startswith("off")  # the default, and so is what follows
    assert checks["database"]["state"] == "ok"
    assert checks["mcp servers"]["text"] == "none is configured"
    assert checks["provider"]["text"].startswith("not checked")


@pytest.mark.parametrize(
    ("provider", "name", "path"),
    sampled(
        [
            ("gemini", "gemini-9", "/v1beta/models/gemini-9"),
            ("gemini", "models/gemini-9", "/v1beta/models/gemini-9"),
            ("gemini", "tuned/of?me", "/v1beta/models/tuned%2Fof%3Fme"),
            ("anthropic", "claude/of?me", "/v1/models/claude%2Fof%3Fme"),
        ],
        keep=2,
    ),
)
def test_the_window_is_asked_for_at_the_address_of_the_model(
    home: Home, examine: Examine, provider: str, name: str, path: str
) -> None:
    reported = Status(200, b'{"inputTokenLimit": 8192, "max_input_tokens": 8192}')
    with ModelServer.in_thread([ping(), reported]) as server:
        home.write_config(model(server.base_url(provider), provider=provider, name=name))
        _, checks = examine()
        asked = server.requests[-1].path
    assert asked == path
    assert checks["window"]["text"] == "8,192 tokens, as the server reports"


def test_what_helps_several_checks_is_said_once(
    home: Home, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["doctor", "--path", str(project)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in lines].count("fix that first") == 1
    row = "remark  not checked    provider, model, tools, window: the configuration cannot be used"
    assert row in lines
    assert sum("not checked" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.toml", "[model]\nprovider = 1\n"),
        pytest.param("config.toml", "no toml", marks=pytest.mark.sweep),
        pytest.param("hooks.json", "{", marks=pytest.mark.sweep),
        ("mcp.json", '{"mcpServers": []}'),
    ],
)
def test_a_file_that_is_not_right_is_named(
    home: Home, examine: Examine, name: str, text: str
) -> None:
    home.write_config('model = "scripted:/nowhere.json"\n')
    home.write(name, text)
    code, checks = examine()
    assert code == 1
    assert checks["configuration"]["state"] == "broken"
    assert name in checks["configuration"]["text"]


def test_the_model_is_asked_whatever_is_wrong_beside_its_settings(
    home: Home, examine: Examine
) -> None:
    home.write("mcp.json", "{")
    with ModelServer.in_thread(["yes"]) as server:
        home.write_config(model(server.base_url("openai")))
        code, checks = examine()
    assert code == 1
    assert "config_default.toml" not in checks["configuration"]["cure"]
    assert states(checks, "provider", "model", "mcp servers") == ["ok", "ok", "remark"]


def test_a_project_that_is_not_there_is_named(home: Home, examine: Examine) -> None:
    home.write_config('model = "scripted:/nowhere.json"\n')
    code, checks = examine("--path", "/nowhere")
    assert code == 1
    assert "--path" in checks["configuration"]["cure"]


def test_a_server_that_is_not_there_is_no_model_that_fails(home: Home, examine: Examine) -> None:
    home.write_config(model("http://127.0.0.1:9/v1"))
    code, checks = examine()
    assert code == 1
    assert states(checks, *OF_THE_MODEL) == ["broken", "remark", "remark", "remark"]


def test_a_certificate_has_the_cure_that_a_run_names(
    home: Home, examine: Examine, tmp_path: Path
) -> None:
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")  # quick to find a key for
    new = ("openssl", "req", "-x509", *curve, "-nodes", "-subj", "/CN=for a test")
    files = ("-keyout", "key.pem", "-out", "own.pem", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run([*new, *files], cwd=tmp_path, check=True, capture_output=True)  # noqa: S603
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "own.pem", tmp_path / "key.pem")
    with ModelServer.in_thread([ping(), LISTED], tls=tls) as server:
        home.write_config(model(server.base_url("openai")))
        code, checks = examine()
        assert code == 1
        assert "self-signed certificate" in checks["provider"]["text"]
        assert "[model] ca_file" in checks["provider"]["cure"]
        home.write_config(model(server.base_url("openai"), ca_file=str(tmp_path / "own.pem")))
        assert examine()[0] == 0


def test_a_proxy_that_refuses_is_not_a_provider_that_answers(home: Home, examine: Examine) -> None:
    with ModelServer.in_thread(lambda _: Status(403)) as proxy:
        home.write_config(model("https://model.test/v1", proxy=proxy.url))
        code, checks = examine()
    assert code == 1
    assert states(checks, *OF_THE_MODEL) == ["broken", "remark", "remark", "remark"]
    assert proxy.url in checks["provider"]["text"]
    assert "proxy" in checks["provider"]["cure"]


def test_a_refused_key_is_a_provider_that_can_be_reached(
    home: Home, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", "sk-planted-secret-1")
    said = Status(401, b'{"error": {"message": "bad key sk-planted-secret-1"}}')
    with ModelServer.in_thread([said, Status(401), Status(401)]) as server:
        home.write_config(model(server.base_url("openai"), api_key_env="SHOP_KEY"))
        code, checks = examine()
    assert code == 1
    assert states(checks, "provider", "model") == ["ok", "broken"]
    assert "api_key_env" in checks["model"]["cure"]
    assert "sk-planted-secret-1" not in json.dumps(checks)


def test_a_missing_key_is_named(home: Home, examine: Examine) -> None:
    home.write_config(model("http://127.0.0.1:9/v1", api_key_env="NOT_SET_ANYWHERE"))
    code, checks = examine()
    assert code == 1
    assert "NOT_SET_ANYWHERE" in checks["provider"]["text"]
    assert "server" not in checks["provider"]["cure"]


def test_a_model_that_takes_no_tools_answers_all_the_same(home: Home, examine: Examine) -> None:
    refusal = Fails(code=ErrorCode.UNSUPPORTED_CAPABILITY, message="no tools")
    with ModelServer.in_thread([refusal, "pong", LISTED]) as server:
        home.write_config(model(server.base_url("openai")))
        code, checks = examine()
    assert code == 1
    assert states(checks, *OF_THE_MODEL) == ["ok", "ok", "broken", "ok"]
    assert "supports tools" in checks["tools"]["cure"]


def test_servers_are_connected(home: Home, project: Path) -> None:
    good = {"command": sys.executable, "args": [str(SERVERS / "plain.py")]}
    bad = {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]}
    home.write("mcp.json", json.dumps({"mcpServers": {"good": good, "bad": bad}}))
    home.write("replies.json", "[]")
    home.write_config(f'model = "scripted:{home.path}/replies.json"\n')
    # Two lines have one name, so that they are read as they are printed.
    assert execute(["doctor", "--path", str(project)]) == 1


def test_each_server_has_a_line(
    home: Home, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test_servers_are_connected(home, project)
    out = capsys.readouterr().out
    (good,) = [line for line in out.splitlines() if "good: " in line]
    (bad,) = [line for line in out.splitlines() if line.startswith("broken") and "bad: " in line]
    assert good.startswith("ok ")
    assert "exit code 3" in bad
    assert "soong-agent mcp test bad" in out


def test_programs_of_hooks_and_tools_are_looked_for(
    home: Home, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database(home)
    lame = home.write("lame.sh", "#!/bin/sh\n")
    odd = home.write("odd.sh", "#!/no/such/shell\n")
    odd.chmod(0o700)
    commands = [
        *("cat > /dev/null; exit 0", f'python3 "{home.path}/gone.py" --x', "no-such-program | cat"),
        *(str(lame), str(odd), "if command -v no-such-program; then no-such-program; fi"),
    ]
    hooks = [{"type": "command", "command": each} for each in commands]
    hooks[2]["on_failure"] = "deny"
    groups = [{"hooks": hooks}, {"matcher": "Edit", "hooks": hooks[:1]}]
    closed = [{"hooks": [hooks[0] | {"on_failure": "deny"}, hooks[1]]}]
    events = {"PreToolUse": groups, "UserPromptSubmit": closed}
    home.write("hooks.json", json.dumps({"version": 1, "hooks": events}))
    tool = {"description": "", "tags": ["write"]}
    for name, more in {
        "there": {"command_type": "exec", "command": "cat", "args": ["{{args.a}}"]},
        "exec": {"command_type": "exec", "command": "./gone"},
        "shell": {"command_type": "shell", "command": "no-such-program {{args.a}} > x"},
        "broken": {"command_type": "exec"},
    }.items():
        schema = {"properties": {"a": {"type": "string"}}}
        file = {"name": f"my.{name}", "input_schema": schema} | tool | more
        home.write(f"tools/{name}.json", json.dumps(file))
    assert execute(["doctor", "--path", str(project), "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    told = [
        (each["state"], each["text"].replace(str(home.path), "~"))
        for each in checks
        if each["name"] in {"hooks", "tool files"}
    ]
    place = "hooks.PreToolUse[0].hooks"
    unmet = "there is no tool Edit (did you mean code.edit_file?); its hooks do not run"
    assert told[0] == ("remark", f"hooks.PreToolUse[1].matcher: {unmet}")
    assert told[1:5] == [
        ("broken", f"{place}[1]: ~/gone.py does not exist"),
        ("broken", f"{place}[2]: there is no program no-such-program in PATH"),
        ("broken", f"{place}[3]: ~/lame.sh is not executable"),
        ("broken", f"{place}[4]: ~/odd.sh needs '/no/such/shell', which does not exist"),
    ]
    place_of_prompt = "hooks.UserPromptSubmit[0].hooks"
    assert told[5:7] == [
        ("remark", f"{place_of_prompt}[0]: denying this event has no effect"),
        ("broken", f"{place_of_prompt}[1]: ~/gone.py does not exist"),
    ]
    assert told[7][1].startswith("the tool in ~/tools/broken.json cannot be used")
    assert told[8:] == [
        ("broken", "exec.json: ~/tools/gone does not exist"),
        ("broken", "shell.json: there is no program no-such-program in PATH"),
    ]
    cures = [each["cure"] for each in checks if each["text"].startswith(place)]
    assert ["it denies" in cure for cure in cures] == [False, True, False, False]
    assert "or denied if the command ends with exit code 2, as Python" in cures[0]
    (cure,) = [each["cure"] for each in checks if each["text"].startswith(place_of_prompt + "[1]")]
    assert cure.endswith("until then it does nothing")


def database(home: Home) -> Path:
    home.write("replies.json", "[]")
    home.write_config(f'model = "scripted:{home.path}/replies.json"\n')
    return home.path / "sessions.sqlite"


def test_a_database_that_is_none(home: Home, examine: Examine) -> None:
    path = database(home)
    path.write_bytes(b"no database" * 100)
    code, checks = examine()
    assert code == 1
    assert "restore" in checks["database"]["cure"]
    assert path.read_bytes() == b"no database" * 100


@pytest.mark.sweep
def test_a_database_of_a_newer_program(home: Home, examine: Examine) -> None:
    path = database(home)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE schema_migrations (version INTEGER, name, applied_at)")
    connection.execute("INSERT INTO schema_migrations VALUES (9999, 'x', 'y')")
    connection.commit()
    connection.close()
    code, checks = examine()
    assert code == 1, checks
    assert "9999" in checks["database"]["text"]
    assert checks["database"]["cure"].startswith("upgrade the program, or use another database")


def test_a_database_that_is_locked(home: Home, examine: Examine) -> None:
    path = database(home)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("CREATE TABLE schema_migrations (version INTEGER, name, applied_at)")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        code, checks = examine()
    finally:
        connection.close()
    assert code == 0, checks
    assert "another process" in checks["database"]["text"]


async def a_used_home(home: Home, project: Path) -> Path:
    config = f'{CONFIG}\n[workspace]\nsnapshots = "turn"\n'
    script = [calls("code.write_file", path="a.txt", content="a"), "done"]
    answers = Asked("allow_once")
    async with runtime(home, project, script, config=config, permission_callback=answers) as made:
        await ask(made)
    return database(home)


BLAMED = (
    *("sessions.sqlite", "sessions.sqlite-wal", ".", "sessions", "sessions/.owners"),
    *("snapshots/*/lock", "snapshots/*/packs", "snapshots/locks/*"),
)


def test_what_a_run_cannot_write_is_blamed(home: Home, project: Path, examine: Examine) -> None:
    asyncio.run(a_used_home(home, project))
    (home.path / "sessions.sqlite-wal").touch(mode=0o600)
    assert examine()[0] == 0
    for name in sampled(BLAMED, keep=2):
        path = next(home.path.glob(name)) if name != "." else home.path
        mode = path.stat().st_mode
        path.chmod(mode & ~0o222)
        try:
            with as_anyone():
                code, checks = examine()
        finally:
            path.chmod(mode)
        blamed = checks["database" if name.startswith((".", "sessions.sqlite")) else "home"]
        assert (name, code) == (name, 1)
        assert blamed["state"] == "broken", name
        assert blamed["text"].startswith(f"{path} cannot be written: its mode is "), name
        assert blamed["cure"] == f"change its mode: chmod u+rwX '{path}'"
    assert examine()[0] == 0


def test_whose_file_it_is_and_where_a_disk_is_read_only_is_said(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = asyncio.run(a_used_home(home, project))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    refused = PermissionError(errno.EACCES, "Permission denied")
    with monkeypatch.context() as refusing:
        refusing.setattr(trying, "open_descriptor", Mock(side_effect=refused))
        fault = try_file(path)
        assert fault is not None
        assert fault.reason == f"it belongs to {path.owner()}"
        assert fault.cure == f"make it yours: sudo chown -R user 12345 '{path}'"
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", Mock(side_effect=full))
        assert "its disk is full" in str(try_folder(home.path))
    assert try_folder(home.path / "a" / "b") is None
    assert "it is not a folder" in str(try_folder(path / "b"))


@pytest.mark.sweep
def test_a_home_that_is_mounted_read_only_is_blamed(home: Home, project: Path) -> None:
    asyncio.run(a_used_home(home, project))
    mount = read_only_mount(home.path)
    done = subprocess.run(  # noqa: S603
        [*mount, SOONG, "doctor", "--json"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 1
    for name in ("database", "home"):
        assert checks[name]["state"] == "broken"
        assert checks[name]["text"].startswith(f"{home.path} cannot be written")
        assert "mounted read-only" in checks[name]["text"]
        assert "writable" in checks[name]["cure"]


def test_the_sandbox_that_is_on_is_described(home: Home, examine: Examine) -> None:
    home.write("replies.json", "[]")
    config = f'model = "scripted:{home.path}/replies.json"\n[sandbox]\nmode = "auto"\n'
    home.write_config(config)
    code, checks = examine()
    assert code == 0
    if probe().landlock and probe().namespaces and probe().seccomp:
        assert checks["sandbox"]["state"] == "ok"
    home.write_config(config + 'write = ["<project>", "/nowhere"]\n')
    code, checks = examine()
    assert code == 0
    assert "/nowhere" in checks["sandbox"]["text"]


@pytest.mark.skipif(not probe().has_mounts, reason="the kernel has no user namespaces")
def test_a_link_is_not_what_a_newer_kernel_would_mend(
    home: Home, project: Path, examine: Examine
) -> None:
    (project / "real").mkdir()
    (project / ".git").symlink_to("real")
    more = '[sandbox]\nmode = "required"\nprotect = [".git/hooks"]\n'
    home.write_config(f'model = "scripted:{home.path}/replies.json"\n{more}')
    code, checks = examine()
    assert code == 1
    assert "link" in checks["sandbox"]["text"]
    assert "kernel" not in checks["sandbox"]["cure"]


@pytest.mark.sweep
def test_the_printed_settings_for_daily_work_are_those_that_are_missing(
    home: Home, examine: Examine
) -> None:
    start = f'model = "scripted:{home.path}/replies.json"\n'
    home.write("replies.json", "[]")
    home.write_config(start)
    _, checks = examine()
    assert checks["permissions"]["state"] == "remark"
    words, _, listed = checks["permissions"]["cure"].partition(": ")
    assert words == "for daily work, in config.toml"
    settings = listed.split(", ")
    assert settings[0] == '[permissions] readers = "allow"'
    able = probe()
    if able.landlock and able.namespaces and able.seccomp:
        assert settings[1:] == ['[sandbox] mode = "auto"', "[sandbox] ask_inside = false"]
    sections: dict[str, list[str]] = {}
    for setting in settings:
        section, _, line = setting.partition(" ")
        sections.setdefault(section, []).append(line)
    tables = [[section, *lines] for section, lines in sections.items()]
    home.write_config(start + "\n".join(line for table in tables for line in table))
    _, checks = examine()
    assert checks["permissions"]["state"] == "ok"


def test_a_sandbox_with_holes_is_not_trusted_without_questions(
    home: Home, project: Path, examine: Examine
) -> None:
    """What the user protects and the system cannot hold is a reason to ask."""
    (project / "real").mkdir()
    (project / ".git").symlink_to("real")
    protects = '[sandbox]\nmode = "auto"\nprotect = [".git/hooks"]\n'
    home.write_config(f'model = "scripted:{home.path}/replies.json"\n{protects}')
    _, checks = examine()
    assert "ask_inside" not in checks["permissions"]["cure"]


def test_a_variable_that_ends_the_free_reading_is_named(
    home: Home, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LESSOPEN", "|x %s")
    allowed = '[tools]\nenv_allowlist = ["PATH", "HOME", "LESSOPEN", "NOT_SET_HERE"]\n'
    readers = '[permissions]\nreaders = "allow"\n'
    home.write_config(f'model = "scripted:{home.path}/replies.json"\n{allowed}{readers}')
    _, checks = examine()
    found = checks["permissions"]
    assert found["state"] == "remark"
    assert found["text"].startswith("[tools] env_allowlist passes LESSOPEN: ")
    assert "has no effect" in found["text"]


@pytest.mark.sweep
def test_the_home_says_what_it_takes_and_the_database_what_is_unused(
    home: Home, examine: Examine
) -> None:
    home.write_config(model("http://127.0.0.1:1/v1"))
    home.write("sessions/s1/artifacts/art_1/output.txt", "x" * 5000)
    open_writer(home.path / "sessions.sqlite").close()
    _, checks = examine()
    assert checks["home"]["state"] == "ok"
    assert "artifacts 5.0 kB, snapshots 0 bytes" in checks["home"]["text"]
    assert re.search(r", [\d.]+ (bytes|kB) of it unused, ", checks["database"]["text"])
    home.write("unfinished/deleted-1234/0123456789abcdef", "[]")
    _, checks = examine()
    assert checks["home"]["state"] == "remark"
    assert "the next start" in str(checks["home"]["cure"])


@pytest.mark.sweep
def test_memory_says_who_has_one(home: Home, examine: Examine) -> None:
    home.write_config(model("http://127.0.0.1:1/v1"))
    _, checks = examine()
    assert checks["memory"]["text"] == "0 memories shared by everybody who uses this home"
    for folder in ("", "users/anna/", "users/ben/", "tenants/acme/"):
        home.write(f"memory/{folder}user/a.md", "---\nid: m\nsummary: s\n---\n")
    home.write("memory/user/b.md", "no front matter")
    _, checks = examine()
    said = (
        "1 memory shared by everybody who uses this home; separate memories of 2 users and 1 tenant"
    )
    assert checks["memory"]["text"] == f"{said}; unreadable: 1 file"
    assert checks["memory"]["state"] == "remark"
    home.write_config(model("http://127.0.0.1:1/v1") + "[memory]\nenabled = false\n")
    assert examine()[1]["memory"]["text"] == "off"


@pytest.mark.sweep
def test_the_extensions_of_the_configuration_are_named(
    home: Home, examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "site" / "notary-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: notary\nVersion: 1.2\n")
    points = "[soong_agent.extensions]\nnotary = notary_module:Notary\n"
    (info / "entry_points.txt").write_text(points)
    module = "from agent_core import Extension\nclass Notary(Extension):\n    pass\n"
    (tmp_path / "site" / "notary_module.py").write_text(module)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    assert examine()[1]["extensions"]["text"] == "none is configured"
    config = '[model]\nprovider = "ollama"\nname = "m"\n[runtime]\nextensions = ["{}"]\n'
    home.write_config(config.format("notary"))
    checks = examine()[1]
    assert (checks["extensions"]["state"], checks["extensions"]["text"]) == (
        "ok",
        "notary (notary 1.2)",
    )
    home.write_config(config.format("notery"))
    checks = examine()[1]
    assert "'notery' is not installed" in checks["configuration"]["text"]
    assert checks["extensions"]["text"].startswith("not checked")


def test_the_instruction_files_are_named_with_what_the_model_sees_of_them(
    home: Home, project: Path, examine: Examine
) -> None:
    def line() -> str:
        return examine()[1]["instructions"]["text"]

    with ModelServer.in_thread(lambda _: "pong") as server:
        home.write_config(model(server.base_url("openai")))
        assert line() == "no AGENTS.md or CLAUDE.md is found"
        (project / "AGENTS.md").write_text("Be brief.\n")
        (project / "sub").mkdir()
        (project / "sub" / "CLAUDE.md").write_text("Be briefer.\n")
        assert line().startswith("AGENTS.md, sub/CLAUDE.md: the model sees the paths")
        preloaded = '[context]\ninstructions = "preloaded"\n'
        home.write_config(model(server.base_url("openai")) + preloaded)
        assert line().startswith("AGENTS.md: in the prompt")
        assert "; sub/CLAUDE.md: the model sees the paths" in line()
