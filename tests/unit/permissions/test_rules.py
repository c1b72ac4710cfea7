"""Rules: what they are about, which of several decides, and what they can never allow."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agcore.tools.permissions import PermissionChecker, PermissionConfig
from agent_core.config.load import read_setup
from agent_core.config.models import PermissionsConfig
from agent_core.errors import ConfigError
from agent_core.permissions.gate import PermissionGate, UserRules
from agent_core.runtime.permission_rules import load_rules
from agent_core.tools.code.views import read_command
from agent_core.tools.workspace import PathPolicy
from agent_core.types import (
    Access,
    AgentRole,
    CommandView,
    CommandViews,
    RunIdentity,
    ToolCall,
    ToolDefinition,
    ToolPermission,
)

Load = Callable[..., PermissionGate]
MODEL = '[model]\nprovider = "ollama"\nname = "gemma4"\n'
RUN = RunIdentity(session_id="s1", agent_id="a1", run_id="r1")
CHILD = RunIdentity(
    session_id="s1",
    agent_id="a2",
    run_id="r2",
    role=AgentRole.SUB,
    agent_definition_id="reviewer",
)
WRITE = ToolDefinition(name="code.write_file", description="", tags={"code", "write"})
READ = ToolDefinition(
    name="code.read_file", description="", permission=ToolPermission.READONLY, tags={"code"}
)
COMMAND = ToolDefinition(name="code.run_command", description="", tags={"code", "dangerous"})
FETCH = ToolDefinition(
    name="mcp.web.fetch", description="", permission=ToolPermission.READONLY, tags={"network"}
)
INTERNAL = ToolDefinition(
    name="internal.load_skill",
    description="",
    permission=ToolPermission.READONLY,
    tags={"internal"},
)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(f"{key} = {json.dumps(item)}\n" for key, item in value.items())  # pyright: ignore[reportUnknownVariableType]
    return json.dumps(value)


def write_settings(home: Path, *rules: dict[str, Any], more: str = "") -> None:
    tables = "".join(f"[[permissions.rules]]\n{toml(rule)}" for rule in rules)
    (home / "config.toml").write_text(f"{MODEL}{more}\n{tables}", encoding="utf-8")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    return folder


@pytest.fixture
def load(home: Path, project: Path) -> Load:
    def load(*rules: dict[str, Any], more: str = "") -> PermissionGate:
        write_settings(home, *rules, more=more)
        setup = read_setup(project, home_dir=home)
        found = load_rules(setup, PathPolicy.of(setup))
        permissions = setup.config.permissions
        return PermissionGate(
            None,
            permissions,
            rules=UserRules(rules=found),
            network=setup.config.tools.network,
            project_dir=project,
        )

    return load


def writes(path: Path, reason: str | None = None) -> Access:
    return Access(asks=True, scope="x", target=str(path), paths=(str(path),), reason=reason)


def runs(*views: CommandView, problem: str | None = None, **more: Any) -> Access:
    return Access(
        asks=True, scope="x", dangerous=True, command=CommandViews(views, problem), **more
    )


def view(*argv: str, program: str | None = None, **more: Any) -> CommandView:
    """A view of these words; its program is what the first one is in PATH."""
    found = program or shutil.which(argv[0])
    return CommandView(argv, found and os.path.realpath(found), **more)


async def judge(
    guard: PermissionGate,
    definition: ToolDefinition,
    access: Access,
    *,
    run: RunIdentity = RUN,
    arguments: dict[str, Any] | None = None,
) -> str:
    call = ToolCall(tool_call_id="c1", name=definition.name, arguments=arguments or {})
    return (await guard.decide(call, definition, access, run)).decision


GIT = {"decision": "allow", "command": ["git", ["status", "diff"], "*"]}


@pytest.mark.parametrize(
    ("argv", "decision"),
    [
        (["git", "status"], "allow"),
        (["git", "diff", "--stat", "a"], "allow"),
        (["/usr/bin/git", "diff"], "allow"),
        (["git"], "ask"),
        (["git", "push"], "ask"),
        (["git", "-C", "x", "status"], "ask"),
        (["gitk", "status"], "ask"),
    ],
)
async def test_a_command_is_matched_word_by_word(
    load: Load, argv: list[str], decision: str
) -> None:
    program = shutil.which("git")
    assert await judge(load(GIT), COMMAND, runs(view(*argv, program=program))) == decision


@pytest.mark.parametrize(
    ("words", "argv", "decision"),
    [
        ("ls", ["ls"], "allow"),
        ("ls", ["ls", "a"], "ask"),
        (["ls", "*"], ["ls"], "allow"),
        (["ls", "*"], ["ls", "a", "b"], "allow"),
        (["ls", "*", "b"], ["ls", "a", "b"], "ask"),
        (["ls", "*", "b"], ["ls", "*", "b"], "allow"),
        (["ls", ["-l", "-a"]], ["ls", "-a"], "allow"),
        (["ls", "sr*"], ["ls", "src"], "ask"),
        ([["ls", "cat"], "a"], ["cat", "a"], "allow"),
        (["*"], ["ls", "a"], "allow"),
    ],
)
async def test_only_a_star_at_the_end_is_more_than_itself(
    load: Load, words: Any, argv: list[str], decision: str
) -> None:
    guard = load({"decision": "allow", "command": words})
    assert await judge(guard, COMMAND, runs(view(*argv))) == decision


async def test_a_bare_name_is_what_it_resolves_to_outside_the_project(
    load: Load, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = project / "git", tmp_path / "elsewhere" / "git"
    outside.parent.mkdir()
    for file in (inside, outside):
        file.write_text("#!/bin/sh\n", encoding="utf-8")
        file.chmod(0o755)
    for place in (inside, outside):
        for name in ("./git", str(place), "git"):
            found = runs(view(name, "status", program=str(place)))
            assert await judge(load(GIT), COMMAND, found) == "ask"
    monkeypatch.setenv("PATH", f"{project}:{outside.parent}:{os.environ['PATH']}")
    guard = load(GIT)
    assert await judge(guard, COMMAND, runs(view("git", "status", program=str(inside)))) == "ask"
    assert await judge(guard, COMMAND, runs(view("git", "status", program=str(outside)))) == "allow"


async def test_one_file_may_be_many_programs(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = tmp_path / "bin" / "busybox"
    box.parent.mkdir()
    box.write_text("#!/bin/sh\n", encoding="utf-8")
    box.chmod(0o755)
    for name in ("list", "remove"):
        (box.parent / name).symlink_to(box)
    monkeypatch.setenv("PATH", f"{box.parent}:{os.environ['PATH']}")
    guard = load({"decision": "allow", "command": ["list", "*"]})
    assert await judge(guard, COMMAND, runs(view("list", program=str(box)))) == "allow"
    assert await judge(guard, COMMAND, runs(view("remove", program=str(box)))) == "ask"


async def test_every_program_of_a_command_needs_a_rule_and_there_has_to_be_one(load: Load) -> None:
    guard = load(GIT, {"decision": "allow", "command": ["wc", "*"]})
    git, wc = view("git", "status"), view("wc", "-l")
    assert await judge(guard, COMMAND, runs(git, wc)) == "allow"
    assert await judge(guard, COMMAND, runs(git, view("ls"))) == "ask"
    assert await judge(guard, COMMAND, runs()) == "ask"
    assert await judge(guard, COMMAND, runs(git, problem="an assignment")) == "ask"


async def test_a_rule_for_the_tool_allows_commands_but_none_that_is_not_understood(
    load: Load,
) -> None:
    guard = load({"decision": "allow", "tool": "code.*"})
    assert await judge(guard, COMMAND, runs(view("git", "push"))) == "allow"
    assert await judge(guard, COMMAND, runs(view("git", "push"), problem="sudo")) == "ask"
    assert await judge(guard, COMMAND, runs()) == "ask"


@pytest.mark.parametrize("keys", [{"path": "**"}, {"agent": "main"}])
async def test_a_rule_that_names_neither_command_nor_tool_allows_no_command(
    load: Load, project: Path, keys: dict[str, Any]
) -> None:
    guard = load({"decision": "allow", **keys})
    paths = (str(project / "a"),)
    assert await judge(guard, COMMAND, runs(view("rm", "a"), paths=paths)) == "ask"
    assert await judge(guard, WRITE, writes(project / "a")) == "allow"


async def test_what_a_redirection_writes_needs_a_path(load: Load, project: Path) -> None:
    target = str(project / "src" / "y")
    found = runs(view("cat", "src/x", writes=(target,)), paths=(target,), cwd=str(project))
    assert (
        await judge(load({"decision": "allow", "command": ["cat", "*"]}), COMMAND, found) == "ask"
    )
    rule = {"decision": "allow", "command": ["cat", "*"], "path": "src/**"}
    assert await judge(load(rule), COMMAND, found) == "allow"
    elsewhere = runs(
        view("cat", "src/x", writes=(str(project / "y"),)), paths=(str(project / "y"),)
    )
    assert await judge(load(rule), COMMAND, elsewhere) == "ask"


@pytest.mark.parametrize(
    ("argv", "cwd", "decision"),
    [
        (["ls"], "secret/deep", "deny"),
        (["ls"], "src", "ask"),
        (["./secret/run", "a"], ".", "deny"),
        (["./run"], "secret", "deny"),
        (["../secret/run"], "src", "deny"),
        (["ls"], ".", "ask"),
    ],
)
async def test_a_path_is_denied_as_the_folder_and_the_program_of_a_command(
    load: Load, project: Path, argv: list[str], cwd: str, decision: str
) -> None:
    guard = load({"decision": "deny", "path": "secret/**"})
    found = runs(view(*argv), cwd=os.path.normpath(project / cwd))
    assert await judge(guard, COMMAND, found) == decision


@pytest.mark.parametrize(
    ("words", "decision"),
    [
        (["src/a"], "allow"),
        (["-5", "-n", "5", "--lines=5", "src/a", "https://x.example"], "allow"),
        (["src/a", "new"], "ask"),
        (["src/a", "--output=new"], "ask"),
        (["src/a", "-oNew"], "ask"),
        (["src/a", "-rf", "--force"], "allow"),
        (["-v"], "ask"),
    ],
)
async def test_a_word_behind_the_star_may_be_a_file_that_is_not_there_yet(
    load: Load, project: Path, words: list[str], decision: str
) -> None:
    paths = tuple(str(project / word) for word in words if word == "src/a")
    rule = {"decision": "allow", "command": ["head", "*"], "path": "src/**"}
    found = runs(view("head", *words), paths=paths, cwd=str(project))
    assert await judge(load(rule), COMMAND, found) == decision
    unknown = runs(
        view("head", *words, "$x", unknown_from=len(words) + 1), paths=paths, cwd=str(project)
    )
    assert await judge(load(rule), COMMAND, unknown) == "ask"


@pytest.mark.parametrize(
    ("words", "known", "decision"),
    [(["rm", "-r", "*"], 2, "allow"), (["rm", "-r"], 2, "ask"), (["rm", "-r", "a", "*"], 2, "ask")],
)
async def test_words_that_are_not_known_are_covered_by_the_star_alone(
    load: Load, words: list[str], known: int, decision: str
) -> None:
    guard = load({"decision": "allow", "command": words})
    found = runs(view("rm", "-r", "$x", unknown_from=known))
    assert await judge(guard, COMMAND, found) == decision


DENY_PUSH = {"decision": "deny", "command": ["git", "push", "*"]}


@pytest.mark.parametrize(
    "argv",
    [["git", "push"], ["/usr/bin/git", "push", "-f"], ["./git", "push"], ["GIT", "push"]],
)
async def test_a_rule_that_denies_means_a_program_under_every_name(
    load: Load, argv: list[str]
) -> None:
    assert await judge(load(DENY_PUSH), COMMAND, runs(view(*argv), problem="sudo")) == "deny"


async def test_a_rule_that_denies_looks_at_every_program_and_at_what_a_link_is(load: Load) -> None:
    guard = load(DENY_PUSH)
    git = shutil.which("git")
    assert await judge(guard, COMMAND, runs(view("ls"), view("git", "push"))) == "deny"
    assert await judge(guard, COMMAND, runs(view("./x", "push", program=git))) == "deny"
    assert await judge(guard, COMMAND, runs(view("git", "$x", unknown_from=1))) == "deny"
    assert await judge(guard, COMMAND, runs(view("git", "pull"))) == "ask"
    assert await judge(guard, COMMAND, runs(view("git"))) == "ask"


ALLOW, ASK, DENY = (
    {"decision": each, "tool": "code.write_file"} for each in ("allow", "ask", "deny")
)
IN_SRC = {"decision": "allow", "tool": "code.write_file", "path": "src/**"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("rules", "decision"),
    [
        ([], "ask"),
        ([ALLOW], "allow"),
        ([IN_SRC], "allow"),
        ([IN_SRC, DENY], "deny"),
        ([DENY, IN_SRC], "deny"),
        ([IN_SRC, ASK], "ask"),
        ([ASK, IN_SRC], "ask"),
        ([ASK, IN_SRC, {"decision": "deny", "path": "src/"}], "deny"),
        ([{"decision": "allow", "tool": ["mcp.*", "code.write_*"]}], "allow"),
        ([{"decision": "allow", "tool": "code.edit_file"}], "ask"),
        ([{"decision": "allow", "tool": "code.write_file", "path": "lib/**"}], "ask"),
        ([{"decision": "allow", "tool": "code.write_file", "agent": "sub"}], "ask"),
        ([{"decision": "allow", "tool": "code.write_file", "agent": ["sub", "main"]}], "allow"),
        ([{"decision": "allow", "tool": "code.write_file", "host": "a.example"}], "ask"),
        ([{"decision": "allow", "tool": "code.write_file"}, ASK | {"path": "lib"}], "allow"),
        ([{"decision": "deny", "agent": "main"}], "deny"),
    ],
)
async def test_deny_counts_before_ask_before_allow_in_whatever_order(
    load: Load, project: Path, rules: list[dict[str, Any]], decision: str
) -> None:
    assert await judge(load(*rules), WRITE, writes(project / "src" / "a.py")) == decision


async def test_an_agent_is_named_by_its_role_or_its_definition(load: Load, project: Path) -> None:
    access = writes(project / "a")
    for name, decisions in {
        "sub": "ask allow",
        "reviewer": "ask allow",
        "main": "allow ask",
    }.items():
        guard = load({"decision": "allow", "agent": name})
        found = [await judge(guard, WRITE, access), await judge(guard, WRITE, access, run=CHILD)]
        assert " ".join(found) == decisions


@pytest.mark.parametrize(
    ("glob", "path", "allows"),
    [
        ("src/**", "src/a/b.py", True),
        ("src/**", "src", True),
        ("src/", "src/a", True),
        ("src", "src/a", False),
        ("src/*", "src/a", True),
        ("src/*", "src/a/b", False),
        ("src/**/*.py", "src/a/b/c.py", True),
        ("src/**/*.py", "src/c.py", True),
        ("*.py", "a/b.py", False),
        ("src/../lib/*", "lib/a", True),
        ("SRC/**", "src/a", False),
        ("<project>/src/**", "src/a", True),
        ("src/[ab].py", "src/b.py", True),
        ("src/?.py", "src/ab.py", False),
    ],
)
async def test_a_path_that_allows_is_a_glob_for_the_whole_path(
    load: Load, project: Path, glob: str, path: str, allows: bool
) -> None:
    guard = load({"decision": "allow", "path": glob})
    assert await judge(guard, WRITE, writes(project / path)) == ("allow" if allows else "ask")


@pytest.mark.parametrize(
    ("glob", "path"),
    [
        ("secrets", "secrets/a/b"),
        ("secrets/", "secrets"),
        ("SECRETS/*", "secrets/a/b"),
        ("*.pem", "deep/down/x.pem"),
        ("link/**", "lib/a"),
        ("lib/**", "lib/a"),
        ("app/[id]/*", "app/[id]/page.tsx"),
        ("[id].tsx", "app/[id].tsx"),
    ],
)
async def test_a_path_that_denies_is_also_what_is_below_it_and_where_links_lead(
    load: Load, project: Path, glob: str, path: str
) -> None:
    (project / "lib").mkdir()
    (project / "link").symlink_to(project / "lib")
    guard = load({"decision": "deny", "path": glob})
    assert await judge(guard, WRITE, writes(project / path)) == "deny"
    assert await judge(guard, READ, Access(paths=(str(project / path),))) == "deny"
    assert await judge(guard, READ, Access(paths=(str(project / "other"),))) == "allow"


async def test_what_comes_with_a_project_does_not_lead_a_rule_elsewhere(
    load: Load, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "keys").mkdir()
    (project / "docs").symlink_to(tmp_path / "keys")
    guard = load({"decision": "allow", "path": "docs/**"})
    found = writes(tmp_path / "keys" / "id", reason="outside_roots")
    assert await judge(guard, WRITE, found) == "ask"


@pytest.mark.parametrize("reason", ["sensitive", "outside_roots", "program_home"])
async def test_a_reason_is_covered_by_a_rule_with_the_path_alone(
    load: Load, tmp_path: Path, reason: str
) -> None:
    path = tmp_path / "notes" / "a"
    for keys, decision in (
        ({"tool": "code.*"}, "ask"),
        ({"tool": "code.*", "path": str(tmp_path / "notes" / "*")}, "allow"),
        ({"path": str(tmp_path / "n*" / "*")}, "allow"),
        ({"path": "~/**"}, "ask"),
    ):
        guard = load({"decision": "allow", **keys})
        assert await judge(guard, WRITE, writes(path, reason)) == decision


async def test_a_command_needs_a_path_for_each_of_its_reasons(load: Load, tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    found = runs(view("cat", one, two), reason="outside_roots", places=(one, two), paths=(one, two))
    for paths, decision in (([one], "ask"), ([one, two], "allow"), ([], "ask")):
        rule = {"decision": "allow", "command": ["cat", "*"]} | ({"path": paths} if paths else {})
        assert await judge(load(rule), COMMAND, found) == decision


async def test_a_command_that_names_the_home_is_refused_without_a_rule_for_it(
    load: Load, home: Path
) -> None:
    place = str(home / "config.toml")
    found = runs(view("cat", place), reason="program_home", places=(place,), paths=(place,))
    assert await judge(load(), COMMAND, found) == "deny"
    rule = {"decision": "allow", "command": ["cat", "*"]}
    assert await judge(load(rule), COMMAND, found) == "deny"
    assert await judge(load(rule | {"path": "${SOONG_AGENT_HOME}/*"}), COMMAND, found) == "allow"
    assert await judge(load(rule | {"path": str(home / "hooks.json")}), COMMAND, found) == "deny"
    assert await judge(load({"decision": "ask", "tool": "*"}), COMMAND, found) == "deny"


@pytest.mark.parametrize(
    ("host", "url", "decision"),
    [
        ("api.example.org", "https://api.example.org/x", "allow"),
        ("api.example.org", "https://API.example.org:8443/x", "allow"),
        ("*.example.org", "https://api.example.org", "allow"),
        ("*.example.org", "https://example.org", "ask"),
        ("example.org", "https://api.example.org", "ask"),
        ("api.example.org", "https://api.example.org and https://evil.example", "ask"),
        ("*.example.org", "https://evil.example\\.example.org", "ask"),
        ("api.example.org", "nothing", "ask"),
    ],
)
async def test_a_host_is_allowed_by_its_name(
    load: Load, host: str, url: str, decision: str
) -> None:
    guard = load({"decision": "allow", "host": host})
    access = Access(asks=True)
    assert await judge(guard, FETCH, access, arguments={"url": url}) == decision
    policy = load({"decision": "deny", "host": host})
    mine = decision == "allow" or "and" in url or "\\" in url
    assert await judge(policy, FETCH, access, arguments={"url": url}) == ("deny" if mine else "ask")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("evil.example", "https://\uff45vil.example"),
        ("evil.example", "https://ev\u00adil.example/x"),
        ("evil.example", "https://evil\u3002example"),
        ("*.evil.example", "https://a\u3002evil.example"),
        ("m\u00fcller.example", "https://xn--mller-kva.example"),
        ("xn--mller-kva.example", "https://m\u00dcLLER.example"),
        ("127.0.0.1", "http://2130706433/"),
        ("127.0.0.1", "http://0x7f.1:80/"),
        ("127.0.0.1", "http://[::ffff:127.0.0.1]/"),
        ("[::1]", "http://[0:0:0:0:0:0:0:1]:80/"),
    ],
)
async def test_a_host_is_denied_in_whatever_way_it_is_written(
    load: Load, host: str, url: str
) -> None:
    everything = {"decision": "allow", "tool": "mcp.*"}
    guard = load(everything, {"decision": "deny", "host": host})
    assert await judge(guard, FETCH, Access(asks=True), arguments={"url": url}) == "deny"
    assert await judge(guard, FETCH, Access(asks=True), arguments={"url": "a.b"}) == "allow"


@pytest.mark.parametrize(
    ("script", "decision"),
    [
        ("cat https://a.example/x", "allow"),
        ("cat https://a.example b\\.example", "ask"),
        ("cat https://a.example $HOST", "ask"),
        ("echo a.example | xargs cat", "ask"),
        ('cat ev""il.example', "deny"),
        ("cat evil\\.example", "deny"),
    ],
)
async def test_the_hosts_of_a_script_are_read_as_its_programs_get_them(
    load: Load, project: Path, script: str, decision: str
) -> None:
    reads = {"decision": "allow", "command": [["cat", "echo"], "*"], "host": "a.example"}
    guard = load(reads, {"decision": "deny", "host": "evil.example"})
    policy = PathPolicy(project)
    argv = ["sh", "-c", script]
    env = {"PATH": os.environ["PATH"]}
    found = read_command(argv, cwd=project, env=env, policy=policy).for_rules
    access = Access(asks=True, scope="x", dangerous=True, command=found)
    assert await judge(guard, COMMAND, access, arguments={"argv": argv}) == decision


async def test_hosts_that_are_refused_need_a_rule_that_names_them(load: Load) -> None:
    more = '[permissions.network_policy]\ndefault = "deny"\n'
    access, arguments = Access(asks=True), {"url": "https://a.example"}
    for keys, decision in (({"tool": "mcp.*"}, "deny"), ({"host": "a.example"}, "allow")):
        guard = load({"decision": "allow", **keys}, more=more)
        assert await judge(guard, FETCH, access, arguments=arguments) == decision


async def test_the_hosts_of_a_command_are_for_rules(load: Load) -> None:
    curl = {"argv": ["curl", "https://a.example/x"]}
    found = runs(view("curl", "https://a.example/x", program="/usr/bin/env"))
    for keys, decision in (
        ({"decision": "deny", "host": "a.example"}, "deny"),
        ({"decision": "ask", "host": "b.example"}, "ask"),
    ):
        assert await judge(load(keys), COMMAND, found, arguments=curl) == decision


async def test_internal_tools_are_never_asked_for(load: Load) -> None:
    assert await judge(load({"decision": "ask", "tool": "*"}), INTERNAL, Access()) == "allow"
    assert await judge(load({"decision": "ask", "tool": "*"}), READ, Access()) == "ask"
    assert await judge(load({"decision": "deny", "tool": "*"}), INTERNAL, Access()) == "deny"


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        (GIT | {"not_match": ["git push", "git diff a"]}, "'git diff a' of not_match fits"),
        (GIT | {"match": "git push"}, "'git push' of match does not fit"),
        (GIT | {"match": [["git", "commit"]]}, "['git', 'commit'] of match does not fit"),
        ({"decision": "deny", "path": "src/**", "match": "lib/a"}, "'lib/a' of match"),
        ({"decision": "deny", "path": "src/**", "not_match": "src/a"}, "'src/a' of not_match"),
        ({"decision": "deny", "host": "a.example", "match": "b.example"}, "'b.example' of match"),
        ({"decision": "deny", "tool": "mcp.*", "match": "code.read_file"}, "of match"),
        ({"decision": "allow", "path": "~nobody_at_all/x"}, "a user who does not exist"),
        ({"decision": "allow", "path": "${HOME}/x"}, "unknown placeholder"),
    ],
)
def test_a_rule_that_does_not_hold_its_examples_is_refused(
    load: Load, rule: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load({"decision": "ask", "tool": "x"}, rule)
    assert "rule 2 in [[permissions.rules]] of config.toml" in caught.value.message
    assert complaint in caught.value.message
    assert caught.value.details["key"] == "permissions.rules[1]"


def test_examples_that_hold_are_taken(load: Load) -> None:
    load(
        GIT | {"match": ["git status", ["git", "diff", "a"]], "not_match": ["git push", "ls"]},
        {"decision": "deny", "path": "src/**", "match": "src/a", "not_match": ["lib", "srcs"]},
        {"decision": "deny", "host": "*.a.example", "match": "x.a.example:80"},
        {
            "decision": "allow",
            "command": ["not-installed-here", "*"],
            "match": "not-installed-here a",
        },
    )


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ({"decision": "allow"}, "does not say for which calls it is"),
        ({"decision": "allow", "reason": "x"}, "does not say for which calls it is"),
        ({"decision": "maybe", "tool": "x"}, "decision must be 'allow', 'ask' or 'deny'"),
        ({"tool": "x"}, "decision is missing"),
        ({"decision": "deny", "tools": "x"}, "did you mean permissions.rules[1].tool?"),
        ({"decision": "deny", "tool": []}, "tool is empty"),
        ({"decision": "deny", "path": [""]}, "path has an entry that is empty"),
        ({"decision": "deny", "command": "git push"}, "command must have each word by itself"),
        ({"decision": "deny", "command": [""]}, "must begin with the name of a program"),
        ({"decision": "deny", "command": ["git", [["a"]]]}, "must be a valid string"),
        ({"decision": "deny", "command": ["git push", "*"]}, "each word by itself, not 'git push'"),
        ({"decision": "deny", "command": ["*", "--force"]}, "must begin with the name of"),
        ({"decision": "deny", "command": [["rm", "*"]]}, "must begin with the name of"),
        ({"decision": "deny", "tool": "Bash(git push:*)"}, "which is not the name of a tool"),
        ({"decision": "deny", "host": "*"}, "which is not a host"),
        ({"decision": "deny", "host": "https://a.example"}, "without scheme, port and path"),
        ({"decision": "deny", "host": "a.example:8080"}, "without scheme, port and path"),
        ({"decision": "deny", "host": "[::1]:80"}, "without scheme, port and path"),
        ({"decision": "allow", "path": ["src/**", "!src/a"]}, "leaves nothing out"),
        ({"decision": "deny", "path": "$HOME/x"}, "has a variable"),
        ({"decision": "deny", "path": "src/{a,b}.py"}, "alternatives in braces"),
        ({"decision": "deny", "tool": 3}, "tool must be a string, or an array of strings"),
        ({"decision": "deny", "command": "ls", "match": "ls", "not_match": "ls"}, "remove it"),
        ({"decision": "deny", "tool": "first"}, "(rules 1 and 2) are for the very same calls"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_with_its_place(
    load: Load, rule: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load({"decision": "ask", "tool": "first"}, rule)
    assert complaint in caught.value.message
    assert "permissions.rules" in caught.value.message


def test_the_rules_of_the_documentation_hold_their_examples(home: Path, project: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "rules.md"
    (text,) = re.findall(r"```toml\n(\[\[permissions.rules\]\].*?)```", page.read_text(), re.DOTALL)
    (home / "config.toml").write_text(f"{MODEL}\n{text}", encoding="utf-8")
    setup = read_setup(project, home_dir=home)
    assert len(load_rules(setup, PathPolicy.of(setup)).rules) == 4


@pytest.mark.parametrize("folder", ["{project}/bin:", ".:", ":", ""])
@pytest.mark.parametrize("place", ["", "/"])
def test_examples_mean_the_same_whatever_a_project_has_in_path(
    home: Path, project: Path, folder: str, place: str
) -> None:
    for name in ("git", "tests-of-this", "sh"):
        program = project / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\n", encoding="utf-8")
        program.chmod(0o755)
    write_settings(
        home,
        GIT | {"match": ["git status", "git diff | git diff a"], "not_match": "sudo git diff"},
        {"decision": "allow", "command": ["tests-of-this", "*"], "match": "tests-of-this a"},
        {"decision": "allow", "command": ["cat"], "match": "nice cat", "not_match": "./cat"},
    )
    setup = read_setup(Path(place) if place else project, home_dir=home)
    environ = {"PATH": folder.format(project=project) + os.environ["PATH"]}
    assert len(load_rules(setup, PathPolicy.of(setup), environ=environ).rules) == 3


async def test_the_rules_of_a_program_hold_whether_or_not_it_asks() -> None:
    config = PermissionsConfig.model_validate(
        {"rules": [{"decision": "deny", "tool": "own.*", "reason": "not here"}]}
    )
    checker = PermissionChecker(PermissionConfig(rules=config))
    own = ToolDefinition(name="own.tool", description="")
    assert await judge(checker, own, Access()) == "deny"
    assert await judge(checker, WRITE, Access(asks=True)) == "allow"
