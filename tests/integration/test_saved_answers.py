"""The saved form of the wide answers: a rule for all that only reads, or for every edit."""

import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent_core import PermissionDecision, PermissionRequest
from agent_core.errors import ConfigError
from agent_core.permissions.saved_rules import read_rules
from agent_core.providers.scripted import calls
from captures import Key, record
from editors import Editor
from in_process import carry_out
from isolation import Home
from mcp_bench import plain
from model_server import ModelServer
from runtimes import CONFIG, Asked, ask, runtime
from sweeps import kept, sampled

pytestmark = pytest.mark.timeout(120)

SAVES = CONFIG + "[permissions]\nsave_rules = true\n"
BACK = "any other key goes back"


def command(*argv: str) -> Any:
    return calls("code.run_command", argv=[*argv])


def write(path: str) -> Any:
    return calls("code.write_file", path=path, content="x\n", overwrite=True)


class Always(Asked):
    """Answers that the rule of each question is to be saved."""

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        answer = await super().__call__(request)
        return answer.model_copy(update={"metadata": {"always": True}})


@pytest.fixture
def files(project: Path) -> Path:
    (project / "a.txt").write_text("one\n", encoding="utf-8")
    (project / ".env").write_text("KEY=x\n", encoding="utf-8")
    return project


def rule(project: Path, only: str) -> str:
    return f'[[permissions.rules]]\ndecision = "allow"\npath = "{project}/**"\nonly = "{only}"\n'


def saved(home: Home) -> str:
    file = home.path / "rules.toml"
    return file.read_text(encoding="utf-8") if file.exists() else ""


def configured(home: Home, server: ModelServer, permissions: str = "") -> None:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        f"[memory]\nenabled = false\n[permissions]\n{permissions}\n"
    )


def soong_agent(home: Home, *arguments: str) -> subprocess.CompletedProcess[str]:
    return carry_out(arguments, home.env())


async def targets(home: Home, project: Path, script: list[Any], config: str = SAVES) -> list[str]:
    """Deny every question of a new session, and return what they were about."""
    asked = Asked("deny")
    made = runtime(home, project, [*script, "done"], config=config, permission_callback=asked)
    async with made:
        await ask(made, session_id=project.name[:60])
    return [str(request.metadata["target"]) for request in asked.requests]


@pytest.mark.long
async def test_a_saved_answer_for_reads_covers_later_sessions_of_this_project(
    home: Home, files: Path, tmp_path: Path
) -> None:
    user = Always("allow_reads")
    script = [command("ls"), "done"]
    async with runtime(home, files, script, config=SAVES, permission_callback=user) as made:
        await ask(made)
    assert user.requests[0].metadata["wide"]["rule"] == rule(files, "reads") == saved(home)
    reads = [
        command("ls"),
        command("cat", "a.txt"),
        command("sh", "-c", "cat a.txt | head -1"),
    ]
    others = [
        command("touch", "b.txt"),
        command("cat", ".env"),
        command("sh", "-c", "cat a.txt > b.txt"),
    ]
    asked = await targets(home, files, [*reads, *others])
    assert asked == ["touch b.txt", "cat .env", "sh -c 'cat a.txt > b.txt'"]
    (other := tmp_path / "other").mkdir()
    assert await targets(home, other, [command("ls")]) == ["ls"]


async def test_a_saved_answer_for_edits_covers_ordinary_files_of_this_project(
    home: Home, files: Path, tmp_path: Path
) -> None:
    user = Always("allow_edits")
    async with runtime(
        home, files, [write("src/a.py"), "done"], config=SAVES, permission_callback=user
    ) as made:
        await ask(made)
    assert saved(home) == rule(files, "edits")
    paths = ["b.txt", "deep/er/c.py", "AGENTS.md", ".env"]
    asked = await targets(home, files, list(map(write, paths)))
    assert [Path(each).name for each in asked] == ["AGENTS.md", ".env"]
    (other := tmp_path / "other").mkdir()
    assert [Path(each).name for each in await targets(home, other, [write("b.txt")])] == ["b.txt"]


@pytest.mark.parametrize("decision", sampled(["allow_reads", "saved"], keep=1))
async def test_an_answer_for_the_project_does_not_cover_an_allowed_folder(
    home: Home, files: Path, tmp_path: Path, decision: str
) -> None:
    (notes := tmp_path / "notes").mkdir()
    (notes / "n.txt").touch()
    config = SAVES + f'[tools]\nallowed_write_roots = ["{notes}"]\n'
    if decision == "saved":
        home.write("rules.toml", rule(files, "reads"))
    asked = Asked("allow_reads", "deny", "deny") if decision == "allow_reads" else Asked("deny")
    outside = command("cat", str(notes / "n.txt"))
    elsewhere = calls("code.run_command", argv=["ls"], cwd=str(notes))
    script = [command("ls"), outside, elsewhere, "done"]
    async with runtime(home, files, script, config=config, permission_callback=asked) as made:
        await ask(made)
    found = [request for request in asked.requests if request.metadata["target"] != "ls"]
    assert [str(each.metadata["target"]) for each in found] == [f"cat {notes / 'n.txt'}"]
    assert asked.requests[-1].cwd == str(notes)
    assert all("wide" not in each.metadata for each in asked.requests[-2:])


async def test_a_rule_for_all_that_only_reads_can_deny_it_or_ask(home: Home, files: Path) -> None:
    written = '[[permissions.rules]]\ndecision = "deny"\nonly = "reads"\n'
    async with runtime(home, files, config=CONFIG + written) as made:
        for argv, decision in ((["ls"], "deny"), (["touch", "b"], "ask")):
            found = await made.explain_permission("code.run_command", {"argv": argv})
            assert (argv, found.decision) == (argv, decision)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('only = "writes"', "'reads' or 'edits'"),
        ('only = "edits"\ncommand = "ls"', "no command is such an edit"),
        ('edits = "ordinary"', "edits"),
    ],
)
async def test_a_rule_of_no_kind_is_refused(
    home: Home, project: Path, wrong: str, said: str
) -> None:
    written = f'[[permissions.rules]]\ndecision = "allow"\n{wrong}\n'
    with pytest.raises(ConfigError, match=said):
        async with runtime(home, project, config=CONFIG + written):
            pass


async def test_examples_of_a_rule_for_reads_are_commands(home: Home, files: Path) -> None:
    written = '[[permissions.rules]]\ndecision = "allow"\nonly = "reads"\nmatch = ["cat a | wc"]\n'
    async with runtime(home, files, config=CONFIG + written) as made:
        found = await made.explain_permission("code.run_command", {"argv": ["ls"]})
    assert found.decision == "allow"


@pytest.mark.sweep
def test_explanations_and_lists_show_the_rule(home: Home, files: Path) -> None:
    home.write_config(SAVES.replace('provider = "custom"', 'provider = "openai"'))
    there = ("--path", str(files))
    shown = soong_agent(home, "permissions", "explain", *there, "--", "ls").stdout
    assert "or wider         every command that only reads" in shown
    assert "always, wider    [[permissions.rules]]" in shown
    assert 'only = "reads"' in shown
    home.write("rules.toml", rule(files, "reads"))
    listed = soong_agent(home, "permissions", "list", *there).stdout
    assert f'allow  path = "{files}/**", only = "reads"' in listed
    explained = soong_agent(home, "permissions", "explain", *there, "--json", "--", "ls").stdout
    assert json.loads(explained)["decision"] == "allow"


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("call", "key", "only"),
    kept(
        [(command("cat", "a.txt"), "r", "reads"), (write("b.txt"), "d", "edits")],
        (command("cat", "a.txt"), "r", "reads"),
    ),
    ids=kept(["reads", "edits"], "reads"),
)
def test_a_terminal_offers_both_rules_by_default(
    home: Home, files: Path, call: Any, key: str, only: str
) -> None:
    with ModelServer.in_thread([call, "all done"]) as server:
        configured(home, server)
        scene = record(
            [sys.executable, "-m", "agent_core.cli", "run", "go", "--path", str(files)],
            env=home.env(),
            cwd=files,
            columns=300,
            keys=[Key("y once", "w"), Key(BACK, key)],
            seconds=60,
        )
    assert "all done" in scene.text
    shown = scene.raw.decode()
    assert 'only = "' in shown
    assert "in every session: every " in shown
    assert saved(home) == rule(files, only)


def test_a_rule_is_added_only_by_its_key(home: Home, files: Path) -> None:
    with ModelServer.in_thread([command("cat", "a.txt"), "all done"]) as server:
        configured(home, server)
        scene = record(
            [sys.executable, "-m", "agent_core.cli", "run", "go", "--path", str(files)],
            env=home.env(),
            cwd=files,
            keys=[Key("y once", "w"), Key(BACK, "n"), Key("y once", "w"), Key(BACK, "y")],
            seconds=60,
        )
    assert "all done" in scene.text
    shown = scene.raw.decode()
    assert "in every session: this command in every project, not only in this one" in shown
    assert saved(home).splitlines()[2:] == [
        'tool = "code.run_command"',
        'command = ["cat", "a.txt"]',
    ]


@pytest.mark.sweep
def test_a_tool_of_a_server_shows_its_arguments_and_can_be_allowed_always(
    home: Home, files: Path, tmp_path: Path
) -> None:
    server = plain(tmp_path / "diary")
    servers = {"shop": server.model_dump(include={"command", "args", "env", "cwd"})}
    home.write("mcp.json", json.dumps({"mcpServers": servers}))
    script = [calls("mcp.shop.echo", text=note) for note in ("买灯 one", "two")]
    with ModelServer.in_thread([*script, "all done"]) as model:
        configured(home, model, '[tools.overrides."mcp.shop.echo"]\npermission = "write"')
        scene = record(
            [sys.executable, "-m", "agent_core.cli", "run", "go", "--path", str(files)],
            env=home.env(),
            cwd=files,
            columns=90,
            keys=[Key("y once", "w"), Key(BACK, "y")],
            seconds=60,
        )
    assert scene.code == 0
    shown = scene.raw.decode()
    assert 'Call mcp.shop.echo: {"text":"买灯 one"}' in shown
    assert "every call of this tool, whatever its arguments, in every project" in shown
    assert scene.text.count("adding the rule") == 1
    assert "all done" in scene.text
    assert saved(home).splitlines()[1:] == ['decision = "allow"', 'tool = "mcp.shop.echo"']


@pytest.mark.sweep
def test_a_setting_takes_the_offer_away(home: Home, files: Path) -> None:
    with ModelServer.in_thread([command("cat", "a.txt"), "all done"]) as server:
        configured(home, server, "save_rules = false")
        scene = record(
            [sys.executable, "-m", "agent_core.cli", "run", "go", "--path", str(files)],
            env=home.env(),
            cwd=files,
            keys=[
                Key("y once", "w"),
                Key(re.compile(r"not one of the keys.*help.*>", re.DOTALL), "y"),
            ],
            seconds=60,
        )
    assert "always" not in scene.text
    assert saved(home) == ""


@pytest.mark.sweep
def test_a_run_without_a_terminal_offers_no_rule_unless_the_settings_do(
    home: Home, files: Path
) -> None:
    for setting, offers in (("", False), ("save_rules = true", True)):
        with ModelServer.in_thread([command("ls"), "all done"]) as server:
            configured(home, server, f'unattended = "park"\n{setting}')
            soong_agent(home, "run", "go", "--path", str(files))
            listed = soong_agent(home, "approvals", "list", "--json", "--path", str(files)).stdout
        question = json.loads(listed.splitlines()[-1])
        assert ("rule" in question["request"]["metadata"]["wide"]) is offers


@pytest.mark.sweep
def test_an_answer_from_elsewhere_saves_the_rule(home: Home, files: Path) -> None:
    script = [command("ls"), command("cat", "a.txt"), "all done"]
    with ModelServer.in_thread(script) as server:
        configured(home, server, 'unattended = "park"\nsave_rules = true')
        soong_agent(home, "run", "go", "--path", str(files))
        listed = soong_agent(home, "approvals", "list", "--path", str(files)).stdout
        assert "reads --always would add this rule:" in listed
        assert 'only = "reads"' in listed
        request_id = listed.split()[0]
        refused = soong_agent(home, "approvals", "answer", request_id, "edits", "--always")
        assert (refused.returncode, saved(home)) == (2, "")
        done = soong_agent(home, "approvals", "answer", request_id, "reads", "--always")
        assert (done.returncode, done.stdout.strip()) == (0, "all done"), done.stderr
    assert '+only = "reads"' in done.stderr
    assert saved(home) == rule(files, "reads")


def test_a_denial_saves_no_rule(home: Home, files: Path) -> None:
    with ModelServer.in_thread([command("ls"), "all done"]) as server:
        configured(home, server, 'unattended = "park"\nsave_rules = true')
        soong_agent(home, "run", "go", "--path", str(files))
        listed = soong_agent(home, "approvals", "list", "--path", str(files)).stdout
        done = soong_agent(home, "approvals", "answer", listed.split()[0], "deny", "--always")
    assert done.returncode == 2
    assert "offers no rule for deny; nothing was answered" in done.stderr
    assert saved(home) == ""


@pytest.mark.parametrize("decision", kept(["allow_reads", "allow_once"], "allow_reads"))
def test_an_editor_offers_the_rules_of_the_settings(home: Home, files: Path, decision: str) -> None:
    with ModelServer.in_thread([command("cat", "a.txt"), "done"]) as server:
        configured(home, server, "save_rules = true")
        with Editor(home) as editor:
            editor.answers = [f"{decision}+rule"]
            editor.prompt(editor.open(files), "go")
            (asked,) = editor.asked
    options = {each["optionId"]: each for each in asked["params"]["options"]}
    assert [*options] == [
        *("allow_once", "allow_for_session", "allow_reads"),
        *("allow_once+rule", "allow_reads+rule", "deny"),
    ]
    named = options["allow_reads+rule"]["name"]
    assert named == f'Always, by a rule: decision = "allow"; path = "{files}/**"; only = "reads"'
    if decision == "allow_reads":
        assert saved(home) == rule(files, "reads")
    else:
        assert 'command = ["cat", "a.txt"]' in saved(home)


@pytest.mark.sweep
def test_whoever_attaches_can_save_the_rule(home: Home, files: Path, tmp_path: Path) -> None:
    with ModelServer.in_thread([command("ls"), "all done"]) as server:
        configured(home, server, 'unattended = "wait"\nsave_rules = true')
        log = tmp_path / "events"
        words = [sys.executable, "-m", "agent_core.cli", "run", "go", "--path", str(files)]
        with subprocess.Popen(  # noqa: S603 - our own command
            [*words, "--events", str(log)], stdin=subprocess.DEVNULL, env=home.env()
        ) as run:
            while not log.exists() or '"permission_requested"' not in log.read_text("utf-8"):
                time.sleep(0.05)
            run_id = json.loads(log.read_text("utf-8").splitlines()[0])["run_id"]
            scene = record(
                [sys.executable, "-m", "agent_core.cli", "attach", run_id, "--path", str(files)],
                env=home.env(),
                cwd=files,
                keys=[Key("y once", "w"), Key(BACK, "r")],
                seconds=60,
            )
            assert run.wait(60) == 0
    assert "all done" in scene.text
    assert saved(home) == rule(files, "reads")


@pytest.mark.sweep
async def test_the_answer_counts_where_the_rule_cannot_be_written(
    home: Home, files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    user = Always("allow_reads")
    script = [command("ls"), command("cat", "a.txt"), "done"]
    home.write("elsewhere.toml", "")
    (home.path / "rules.toml").symlink_to("elsewhere.toml")
    async with runtime(home, files, script, config=SAVES, permission_callback=user) as made:
        handle = await ask(made)
        assert (await handle.result()).text == "done"
    assert len(user.requests) == 1
    assert "the rule was not saved" in caplog.text
    assert await asyncio.to_thread(read_rules, home.path / "rules.toml") == []
