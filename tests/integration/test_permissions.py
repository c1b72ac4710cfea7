"""Rules and remembered answers, as whole runs and the command line meet them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime, ConfigError
from agent_core.providers.scripted import calls
from isolation import Home
from runtimes import CONFIG, Asked, ask, runtime

STORED = CONFIG + '[permissions]\nremember_scope = "session_stored"\n'
RULES = """
[[permissions.rules]]
decision = "allow"
command = ["echo", "*"]

[[permissions.rules]]
decision = "deny"
path = "secrets/**"
reason = "not these"
match = "secrets/a"
"""


async def failures(made: AgentRuntime) -> list[str]:
    replay = await made.replay_session("s1", include_sensitive=True)
    results = [result for node in replay.nodes for result in node.results]
    return [result.error.message for result in results if result.error is not None]


def command(home: Home, project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "agent_core.cli", "permissions", *words],
        env=home.env(),
        cwd=project,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_rules_decide_before_anything_is_asked(home: Home, project: Path) -> None:
    (project / "secrets").mkdir()
    (project / "secrets" / "a").write_text("x", encoding="utf-8")
    script: list[Any] = [
        calls("code.run_command", argv=["echo", "hi"]),
        calls("code.read_file", path="secrets/a"),
        calls("code.run_command", argv=["sh", "-c", "echo hi > b"]),
        "done",
    ]
    asked = Asked("deny")
    made = runtime(home, project, script, config=CONFIG + RULES, permission_callback=asked)
    async with made:
        await ask(made)
        refused = await failures(made)
    assert refused[0] == "code.read_file is denied by rule config.toml:2 (not these)"
    assert [request.metadata["target"] for request in asked.requests] == ["sh -c 'echo hi > b'"]
    assert not (project / "b").exists()


async def test_a_rule_that_does_not_hold_its_example_stops_the_start(
    home: Home, project: Path
) -> None:
    rules = RULES.replace('match = "secrets/a"', 'not_match = "secrets/a"')
    with pytest.raises(ConfigError, match=r"rule 2 in \[\[permissions.rules\]\] of config.toml"):
        async with runtime(home, project, config=CONFIG + rules):
            raise AssertionError


async def test_a_file_of_saved_rules_counts_like_the_configuration(
    home: Home, project: Path
) -> None:
    home.write("rules.toml", '[[permissions.rules]]\ndecision = "allow"\npath = "*"\n')
    script = [calls("code.write_file", path="a", content="x"), "done"]
    async with runtime(home, project, script) as made:
        await ask(made)
        assert await failures(made) == []
    home.write("rules.toml", "[[permissions.rules]]\ndecision = ")
    with pytest.raises(ConfigError, match=r"the rules in .*rules.toml cannot be used"):
        async with runtime(home, project, script):
            raise AssertionError


async def test_what_is_stored_for_a_session_survives_a_restart_and_is_forgotten_from_elsewhere(
    home: Home, project: Path
) -> None:
    async def write(*answers: str) -> int:
        asked = Asked(*answers)
        script = [calls("code.write_file", path="a", content="x", overwrite=True), "done"]
        made = runtime(home, project, script, config=STORED, permission_callback=asked)
        async with made:
            await ask(made)
            assert len(await made.permission_grants("s1")) <= 1
        return len(asked.requests)

    assert await write("allow_for_session") == 1
    assert await write("deny") == 0
    shown = command(home, project, "list")
    covers = f"code.write_file: the files in {project}, not below it"
    assert covers in shown.stdout
    grant_id = next(word for word in shown.stdout.split() if word.startswith("grant_"))
    explained = json.loads(
        command(
            home, project, "explain", "--json", "--session-id", "s1", "--tool", "code.write_file",
            "--args", '{"path": "b", "content": ""}',
        ).stdout
    )  # fmt: skip
    assert explained["decision"] == "allow"
    assert explained["by"] == f"the answer {grant_id}"
    assert explained["covers"] == covers
    assert command(home, project, "forget", grant_id).returncode == 0
    assert command(home, project, "forget", "s1").returncode == 1
    assert await write("deny") == 1


async def test_what_is_in_memory_is_its_runtimes(home: Home, project: Path) -> None:
    script = [
        *(calls("code.write_file", path=name, content="x") for name in ("a", "b", "c")),
        "done",
        calls("code.write_file", path="d", content="x"),
        "done",
    ]
    asked = Asked("allow_for_session")
    async with runtime(home, project, script, permission_callback=asked) as made:
        await ask(made)
        (grant,) = await made.permission_grants()
        assert len(asked.requests) == 1
        assert grant.covers == asked.requests[0].target_scope
        assert await made.forget_permissions(grant.grant_id) == 1
        await ask(made)
        assert len(asked.requests) == 2
        shown = command(home, project, "list")
        assert "kept in the memory of their process" in shown.stderr


def test_explain_says_what_a_command_runs_and_what_decides(home: Home, project: Path) -> None:
    home.write_config(CONFIG + RULES)
    found = command(home, project, "explain", "--", "sh", "-c", "echo a; cat secrets/a")
    assert found.returncode == 0, found.stderr
    lines = dict(line.split(maxsplit=1) for line in found.stdout.splitlines() if line[0] != " ")
    assert lines["decision"] == "deny"
    assert "rule config.toml:2 (not these)" in found.stdout
    assert "echo a" in found.stdout
    assert "cat secrets/a" in found.stdout
    allowed = command(home, project, "explain", "--", "nice", "echo", "a")
    assert allowed.stdout.startswith("decision         allow\n")
    assert command(home, project, "explain", "--", "no-such-program").returncode == 1
    assert command(home, project, "explain", "--tool", "no.tool").returncode == 1
    for wrong in ((), ("--tool", "x", "--args", "{"), ("--args", "{}", "--", "ls")):
        assert command(home, project, "explain", *wrong).returncode == 2
    listed = command(home, project, "list")
    assert 'config.toml:2    deny   path = "secrets/**"  (not these)' in listed.stdout
