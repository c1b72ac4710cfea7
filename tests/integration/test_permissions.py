"""Rules and remembered answers, as whole runs and the command line meet them."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime, ConfigError, PermissionDecision, PermissionRequest
from agent_core.cli.command import execute
from agent_core.history.questions import request_facts
from agent_core.permissions.saved_rules import read_rules
from agent_core.process.confinement import Abilities
from agent_core.providers.scripted import calls
from agent_core.types import PermissionMode
from isolation import Home, program_file
from runtimes import CONFIG, Asked, ask, runtime
from sweeps import sampled

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
    assert refused[0] == "code.read_file is denied by rule config.toml#2 (not these)"
    assert [request.metadata["target"] for request in asked.requests] == ["sh -c 'echo hi > b'"]
    assert not (project / "b").exists()


async def test_listings_and_searches_leave_out_what_a_rule_denies(
    home: Home, project: Path
) -> None:
    for name in ("secrets/deep/a", "open/a", "x.hidden"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("needle", encoding="utf-8")
    script = [
        calls("code.search", query="needle"),
        calls("code.list_dir", path=".", recursive=True),
        calls("code.search", query="needle", path="secrets/deep"),
        "done",
    ]
    rules = RULES + '[[permissions.rules]]\ndecision = "deny"\npath = "*.hidden"\n'
    async with runtime(home, project, script, config=CONFIG + rules) as made:
        await ask(made)
        replay = await made.replay_session("s1", include_sensitive=True)
        results = [str(result) for node in replay.nodes for result in node.results]
    assert "open/a" in results[0]
    assert "secrets/deep" not in results[0]
    assert "x.hidden" not in results[0]
    assert "secrets/deep/a" not in results[1]
    assert "is denied by rule config.toml#2" in results[2]


async def test_a_question_names_the_rule_that_asks(home: Home, project: Path) -> None:
    rules = """
[[permissions.rules]]
decision = "ask"
command = ["echo", "loud", "*"]
reason = "the neighbours"

[[permissions.rules]]
decision = "allow"
command = ["echo", "*"]
"""
    script = [
        calls("code.run_command", argv=["echo", "loud"]),
        calls("code.run_command", argv=["true"]),
        "done",
    ]
    asked = Asked("deny")
    config = CONFIG + rules
    async with runtime(home, project, script, config=config, permission_callback=asked) as made:
        await ask(made)
    by_rule, by_default = asked.requests
    assert by_rule.metadata["asked_by"] == "rule config.toml#1 (the neighbours)"
    assert ("asked by", by_rule.metadata["asked_by"]) in request_facts(by_rule)
    assert "asked_by" not in by_default.metadata


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


def test_a_call_is_explained_whatever_bytes_names_have(home: Home, project: Path) -> None:
    home.write_config(CONFIG)
    name = os.fsdecode(b"na\xffme")
    (project / name).mkdir()
    (project / name / ".env").touch()
    done = command(home, project, "explain", "--json", "--", "grep", "-r", "x", ".")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["decision"] == "ask"


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


def test_explain_says_what_a_command_runs_and_what_decides(
    home: Home,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home.write_config(CONFIG + RULES)
    monkeypatch.setenv("SOONG_AGENT_HOME", str(home.path))
    monkeypatch.chdir(project)

    def explained(*words: str, code: int = 0) -> str:
        assert execute(["permissions", "explain", *words]) == code
        return capsys.readouterr().out

    found = explained("--", "sh", "-c", "echo a; cat secrets/a")
    assert found.startswith("decision         deny\n")
    for part in ("rule config.toml#2 (not these)", "echo a", "cat secrets/a"):
        assert part in found
    assert explained("--", "nice", "echo", "a").startswith("decision         allow\n")
    explained("--", "no-such-program", code=1)
    explained("--tool", "no.tool", code=1)
    for wrong in ((), ("--tool", "x", "--args", "{"), ("--args", "{}", "--", "ls")):
        explained(*wrong, code=2)
    assert "echo a" in explained("--args", '{"argv": ["echo", "a"]}')
    assert execute(["permissions", "list"]) == 0
    listed = 'config.toml#2    deny   path = "secrets/**"  (not these)'
    assert listed in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "arguments", "decision", "by", "network"),
    sampled(
        [
            (
                "ask_inside = false",
                {},
                "allow",
                "[sandbox] ask_inside = false",
                "network = true asks",
            ),
            ("", {}, "ask", "a command; [sandbox] ask_inside = true", '[sandbox] network = "on"'),
            ("", {"network": True}, "ask", "a command; the network, which always asks", None),
            ('network = "off"', {}, "ask", "ask_inside = true", 'as [sandbox] network = "off"'),
            ('network = "on"\nask_inside = false', {}, "allow", "ask_inside = false", None),
            ("", {"outside_sandbox": True}, "ask", "outside_sandbox", None),
        ],
        keep=2,
    ),
)
async def test_explain_names_what_the_sandbox_decides(
    settings: str,
    arguments: dict[str, Any],
    decision: str,
    by: str,
    network: str | None,
    home: Home,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    able = Abilities(landlock=6, seccomp=True, namespaces=True, network_namespace=True)
    monkeypatch.setattr("agent_core.process.sandbox.probe", lambda: able)
    config = f'{CONFIG}[sandbox]\nmode = "auto"\n{settings}\n'
    async with runtime(home, project, config=config) as made:
        found = await made.explain_permission("code.run_command", {"argv": ["make"], **arguments})
    assert (found.decision, by in found.by) == (decision, True)
    assert found.no_network is None if network is None else network in (found.no_network or "")


@pytest.mark.parametrize(
    ("tool", "arguments", "failure"),
    sampled(
        [
            ("code.write_file", {"path": "a.txt", "content": "x"}, "set overwrite to replace it"),
            (
                "code.write_file",
                {"path": "no/such/a", "content": "x", "create_dirs": False},
                "folder",
            ),
            ("code.edit_file", {"path": "a.txt", "edits": [{"old": "b", "new": "c"}]}, "not found"),
            ("code.edit_file", {"path": "a.txt"}, "exactly one of edits"),
            (
                "code.edit_file",
                {"path": "none.txt", "edits": [{"old": "b", "new": ""}]},
                "no file",
            ),
        ],
        keep=2,
    ),
)
async def test_a_change_is_explained_though_the_call_would_fail(
    tool: str, arguments: dict[str, Any], failure: str, home: Home, project: Path
) -> None:
    (project / "a.txt").write_text("a", encoding="utf-8")
    async with runtime(home, project) as made:
        modes: dict[PermissionMode, str] = {"ask": "ask", "accept-edits": "allow", "plan": "deny"}
        for mode, decision in modes.items():
            found = await made.explain_permission(tool, arguments, permission_mode=mode)
            assert found.decision == decision
            assert failure in (found.failure or "")
            assert found.tool_name == tool
        outside = {**arguments, "path": str(project.parent / "x")}
        assert (await made.explain_permission(tool, outside)).reason == "outside_roots"
    assert (project / "a.txt").read_text(encoding="utf-8") == "a"


SAVES = CONFIG + "[permissions]\nsave_rules = true\n"


class Always(Asked):
    """Answers "always" where that is offered."""

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        answer = await super().__call__(request)
        return PermissionDecision(decision=answer.decision, metadata={"always": True})


@pytest.mark.long
async def test_always_adds_the_narrowest_rule_to_what_is_there(home: Home, project: Path) -> None:
    kept = "# my own\n[[permissions.rules]]\ndecision = 'deny'\ntool = 'x.y'"
    home.write("rules.toml", kept)
    (project / "src").mkdir()
    script: list[Any] = [
        calls("code.run_command", argv=["true", "a b", '"']),
        calls("code.run_command", argv=["true", "a b", '"']),
        calls("code.write_file", path="src/[1].txt", content="x"),
        calls("code.write_file", path="src/2.txt", content="x"),
        calls("code.run_command", argv=["sh", "-c", "true; false"]),
        "done",
    ]
    asked = Always("allow_once")
    async with runtime(home, project, script, config=SAVES, permission_callback=asked) as made:
        await ask(made)
        assert await failures(made) == []
    offers = [request.metadata.get("rule") for request in asked.requests]
    saved = (
        (
            '[[permissions.rules]]\ndecision = "allow"\ntool = "code.run_command"\n'
            'command = ["true", "a b", "\\""]\n'
        ),
        (
            '[[permissions.rules]]\ndecision = "allow"\ntool = "code.write_file"\n'
            f'path = "{project}/src/*"\nonly = "edits"\n'
        ),
    )
    assert offers == [*saved, None]
    file = home.path / "rules.toml"
    assert file.read_text(encoding="utf-8") == "\n".join([kept + "\n", *saved])
    assert file.stat().st_mode & 0o777 == 0o600
    again = Always("deny")
    async with runtime(
        home, project, [*script[:4], "done"], config=SAVES, permission_callback=again
    ) as made:
        await ask(made, session_id="s2")
    assert again.requests == []


@pytest.mark.parametrize(
    "torn",
    sampled(
        [
            "[[permissions.rules]]\ndecision = ",
            "a = 1\n",
            "\xff",
            '[[permissions.rules]]\ndecision = "deny"\npath = "${HOME}/x"\n',
            'permissions.rules = [{ decision = "deny", tool = "x.y" }]\n',
        ],
        keep=1,
    ),
)
async def test_a_file_that_was_broken_meanwhile_is_left_as_it_is(
    home: Home, project: Path, torn: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Breaking(Always):
        async def __call__(self, request: PermissionRequest) -> PermissionDecision:
            (home.path / "rules.toml").write_text(torn, encoding="latin-1")
            return await super().__call__(request)

    script = [calls("code.run_command", argv=["true"]), "done"]
    asked = Breaking("allow_once")
    async with runtime(home, project, script, config=SAVES, permission_callback=asked) as made:
        await ask(made)
        assert await failures(made) == []
    assert (home.path / "rules.toml").read_text(encoding="latin-1") == torn
    assert "the rule was not saved" in caplog.text


async def test_a_file_of_rules_that_is_a_link_stays_one(
    home: Home, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = "# in a repository of settings\n"
    home.write("elsewhere.toml", kept)
    (home.path / "rules.toml").symlink_to("elsewhere.toml")
    script = [calls("code.run_command", argv=["true"]), "done"]
    asked = Always("allow_once")
    async with runtime(home, project, script, config=SAVES, permission_callback=asked) as made:
        await ask(made)
        assert await failures(made) == []
    assert (home.path / "rules.toml").is_symlink()
    assert (home.path / "elsewhere.toml").read_text(encoding="utf-8") == kept
    assert "it is a link" in caplog.text


@pytest.mark.long
async def test_many_processes_lose_no_rule_of_one_another(home: Home, project: Path) -> None:
    program = """
import sys
from pathlib import Path
from agent_core.permissions.rules import RuleSet, RuleContext
from agent_core.permissions.saved_rules import SavedRules
from agent_core.redaction.redactor import Redactor
home = Path(sys.argv[1])
around = RuleContext(home=home, project=home, search_path="", is_writable=lambda path: True)
saved = SavedRules(home, RuleSet((), around), Redactor({}))
for number in range(20):
    tool = f"own.{sys.argv[2]}_{number}"
    saved.save(f'[[permissions.rules]]\\ndecision = "allow"\\ntool = "{tool}"\\n')
"""
    words = [sys.executable, program_file(program), str(home.path)]
    writers = [subprocess.Popen([*words, name]) for name in "abc"]  # noqa: ASYNC220, S603
    for writer in writers:
        assert await asyncio.to_thread(writer.wait) == 0
    tools = [rule.subject["tool"] for rule in read_rules(home.path / "rules.toml")]
    assert sorted(tools) == sorted([f"own.{n}_{i}"] for n in "abc" for i in range(20))


@pytest.mark.parametrize(
    "argv",
    sampled(
        [
            ["echo", "*"],
            ["./program"],
            ["nice", "true"],
            ["cat", "/etc/hosts"],
            ["sh", "-c", "true > a"],
            ["true", "value-of-a-secret"],
        ],
        keep=2,
    ),
)
async def test_always_is_not_offered_where_no_rule_says_just_that(
    home: Home, project: Path, argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "value-of-a-secret")
    (project / "program").write_text("#!/bin/sh\n", encoding="utf-8")
    (project / "program").chmod(0o755)
    script = [calls("code.run_command", argv=argv), "done"]
    asked = Always("deny")
    config = SAVES.replace("context_window", 'api_key_env = "A_KEY"\ncontext_window')
    async with runtime(home, project, script, config=config, permission_callback=asked) as made:
        await ask(made)
    (request,) = asked.requests
    assert ("rule" in request.metadata) is (argv == ["./program"])
