"""`config set`, `config unset`, `config get` and `permissions add`: what they do to the file."""

import os
import shlex
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime
from agent_core.cli.config_file import ConfigFile, setting_keys
from agent_core.cli.permissions import describe_rule
from agent_core.config.rules import PermissionRule
from agent_core.errors import ConfigError
from agent_core.permissions.saved_rules import remove_rule
from agent_core.redaction import Redactor
from command_lines import make_program
from isolation import Home, program_file
from mounts import full_disk
from runtimes import CONFIG, runtime
from sweeps import kept, sampled
from tables import together

MODEL = '[model]   # mine\nprovider = "openai"  # the service\nname = "gpt-5"\n'
REST = "\n# how it remembers\n[memory]\nenabled = true # yes\n"


@pytest.fixture
def file(home: Home) -> ConfigFile:
    home.write_config(MODEL + REST)
    return ConfigFile(home.path, Redactor({"A_KEY": "the-secret-of-the-test"}))


def text(file: ConfigFile) -> str:
    return file.path.read_bytes().decode("utf-8-sig")


def command(home: Home, project: Path, *words: str, **more: Any) -> Any:
    return subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "agent_core.cli", *words],
        env=home.env(),
        cwd=project,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **more,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "value", "before", "after"),
    [
        ("model.name", "gpt-6", '"gpt-5"', '"gpt-6"'),
        ("model.name", "5", '"gpt-5"', '"5"'),
        ("model.name", '"quoted"', '"gpt-5"', '"quoted"'),
        ("memory.enabled", "false", "true #", "false #"),
        ("model.temperature", "0.5", '"gpt-5"\n', '"gpt-5"\ntemperature = 0.5\n'),
        ("model.retry.max_attempts", "4", REST, f"\n[model.retry]\nmax_attempts = 4\n{REST}"),
        ("memory.recall_top_k", "7", "# yes\n", "# yes\nrecall_top_k = 7\n"),
        (
            "tools.disabled",
            '["code.run_command"]',
            "# yes\n",
            '# yes\n\n[tools]\ndisabled = ["code.run_command"]\n',
        ),
        (
            "model_overrides.fast",
            "openai:x",
            "# yes\n",
            '# yes\n\n[model_overrides]\nfast = "openai:x"\n',
        ),
        (
            'tools.overrides."code.read_file".permission',
            "write",
            "# yes\n",
            '# yes\n\n[tools.overrides."code.read_file"]\npermission = "write"\n',
        ),
    ],
)
def test_one_key_changes_and_the_rest_of_the_file_stays(
    key: str, value: str, before: str, after: str, file: ConfigFile
) -> None:
    expected = text(file).replace(before, after)
    done = file.set_value(key, value)
    assert text(file) == expected
    assert done.key == key
    assert done.line is not None
    file.set_value(key, value)
    assert text(file) == expected


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("model.naem", "x", "did you mean model.name?"),
        ("nonsense", "1", "is not a known key"),
        ("a..b", "1", "is not a key"),
        ("memory.enabled", "nope", "memory.enabled must be true or false"),
        ("permissions.readers", "alow", "must be 'ask' or 'allow'"),
        ("model.temperature", "11", "less than or equal to 10"),
        ("model.temperature", "nan", "finite"),
        ("tools.default_timeout_ms", "900000", "above tools.max_timeout_ms"),
        ("memory.memory_dir", "/elsewhere", "must be below the home"),
        ("budget.usd", "1\n[tools]", "must be a valid number"),
        ("model.name", "", "at least 1 character"),
        ("tools", "5", "is a section; set one of its keys"),
        ("tools.disabled", "x", "takes an array, such as"),
        ("model_fallbacks[0].name", "x", "edit the file"),
        ("agents.worker_pools.pool_id", "x", "edit the file"),
        ("model.name.more", "x", "has no keys of its own"),
        ("model.api_key", "anything", "secret"),
        ("model.api_key_env", "sk-0123456789abcdef", "secret"),
        ("model.base_url", "http://me:hunter22@127.0.0.1/v1", "secret"),
        ("model.chat_template", "the-secret-of-the-test", "secret"),
        ("model.provider_options.openai.headers.Authorization", "Bearer x", "secret"),
        ("permissions.rules", '[{decision = "deny", path = "~nobody-at-all/x"}]', "rule 1"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    key: str, value: str, said: str, home: Home, file: ConfigFile
) -> None:
    before = file.path.stat()
    from agent_core.cli.settings import check_rules  # noqa: PLC0415

    checked = ConfigFile(home.path, Redactor({"A_KEY": "the-secret-of-the-test"}), check_rules)
    with pytest.raises(ConfigError) as caught:
        checked.set_value(key, value)
    message = str(caught.value)
    assert said in message
    assert len(message) <= 240
    for secret in ("hunter22", "the-secret-of-the-test", "sk-0123456789abcdef"):
        assert secret not in message
    after = file.path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    "written",
    [
        'model.provider = "openai"\nmodel.name = "x"\nmemory.enabled = true\n',
        'model = "openai:x"\nmemory = {enabled = true, recall_top_k = 3} # inline\n',
        '# only a comment\n[memory]\nenabled = true\n[model]\nprovider = "openai"\nname = "x"',
        '[model]\nprovider = "openai"\nname = "x"\n[memory]\n[model.retry]\nmax_attempts = 2\n',
        '[model]\r\nprovider = "openai"\r\nname = "x"\r\n',
        '\ufeff[model]\nprovider = "openai"\nname = "x" # \u00e9\n',
    ],
)
def test_every_layout_keeps_its_values_and_comments(written: str, file: ConfigFile) -> None:
    file.path.write_bytes(written.encode())
    values = tomllib.loads(written.removeprefix("\ufeff"))
    for key, value in (("memory.enabled", False), ("budget.usd", 5), ("tools.disabled", ["a"])):
        section, name = key.split(".")
        shown = str(value).lower() if not isinstance(value, list) else '["a"]'
        file.set_value(key, shown)
        values.setdefault(section, {})[name] = value
        assert tomllib.loads(text(file)) == values
    for key in ("memory.enabled", "budget.usd", "tools.disabled"):
        file.unset(key)
    kept = file.path.read_bytes().decode()
    assert "budget.usd" not in kept
    assert kept.startswith("\ufeff") == written.startswith("\ufeff")
    assert ("\r\n" in written) == ("\r\n" in kept)
    assert not ("\r\n" in written and "\n" in kept.replace("\r\n", ""))
    for comment in ("# only a comment", "# inline", "# \u00e9"):
        assert (comment in written) == (comment in kept)


@pytest.mark.parametrize("before", [MODEL, 'model = "openai:gpt-5"\n'])
def test_the_file_of_a_model_is_one_from_the_folder_where_it_was_typed(
    home: Home, project: Path, before: str
) -> None:
    home.write_config(before)
    (project / "replies.json").write_text('["hello from the file"]', encoding="utf-8")
    (project / "below").mkdir()
    done = command(home, project / "below", "config", "set", "model", "scripted:../replies.json")
    assert (done.returncode, done.stderr) == (0, "")
    answered = command(home, project, "run", "hello")
    assert (answered.returncode, answered.stdout) == (0, "hello from the file\n"), answered.stderr


def test_a_file_without_a_model_is_given_one_and_read_meanwhile(home: Home, project: Path) -> None:
    home.write_config("[memory]\nenabled = false\n")
    asked = command(home, project, "run", "hello")
    assert asked.returncode == 2
    assert "model is missing" in asked.stderr
    assert command(home, project, "sessions").returncode == 0
    assert command(home, project, "config", "set", "model", "openai:gpt-5").returncode == 0
    shown = command(home, project, "config", "get", "model.name")
    assert (shown.returncode, shown.stdout.split()) == (0, ["gpt-5"])


@pytest.mark.parametrize(
    ("key", "value"), [("model", "openia:gpt-5"), ("model.provider", "openia")]
)
def test_a_provider_that_nobody_knows_is_named_with_the_nearest(
    home: Home, project: Path, key: str, value: str
) -> None:
    home.write_config(MODEL)
    done = command(home, project, "config", "set", key, value)
    assert done.returncode == 0
    assert "did you mean openai?" in done.stdout + done.stderr
    assert "openia" in (home.path / "config.toml").read_text(encoding="utf-8")


def test_other_paths_of_a_model_are_absolute_too(file: ConfigFile, project: Path) -> None:
    change = file.set_value("model.ca_file", "~/own.pem")
    assert change.after == str(Path("~/own.pem").expanduser())
    change = file.set_value("model_fallbacks", '["openai:gpt-5", "local:small.gguf"]')
    assert change.after == ["openai:gpt-5", f"local:{Path('small.gguf').absolute()}"]
    assert file.set_value("model.name", "local:x").after == "local:x"


def test_a_model_of_another_service_takes_no_key_along(file: ConfigFile) -> None:
    file.set_value("model.api_key_env", "OPENAI_API_KEY")
    done = file.set_value("model", "anthropic:claude-sonnet-4-5")
    assert done.dropped == ["model.api_key_env"]
    assert tomllib.loads(text(file))["model"] == {
        "provider": "anthropic",
        "name": "claude-sonnet-4-5",
    }
    assert "# the service" in text(file)


@pytest.mark.sweep
def test_a_broken_file_is_named_with_its_line_and_stays(
    home: Home, project: Path, file: ConfigFile
) -> None:
    for broken, line in (
        (f"{MODEL}{REST}oops\n", "line 8"),
        (f"{MODEL}{REST}a = [1,\n", "line 8"),
        (f"{MODEL}{REST}enabeld = 1\n", "line 8"),
        (f'{MODEL}{REST}[permissions]\nreaders = "alow"\n', "line 9"),
        (f"{MODEL}{REST}[[model_fallbacks]]\nname = 1\n", "line 9"),
        (f'{MODEL}{REST}memory_dir = "/elsewhere"\n', "line 8"),
    ):
        file.path.write_text(broken, encoding="utf-8")
        for words in (["config", "set", "model.name", "x"], ["run", "hello"], ["config", "show"]):
            done = command(home, project, *words)
            assert (done.returncode, line in done.stderr) == (2, True), done.stderr
        assert text(file) == broken


def test_a_link_stays_one_and_its_file_keeps_its_mode(file: ConfigFile, tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles.toml"
    file.path.replace(kept)
    kept.chmod(0o640)
    file.path.symlink_to(kept)
    file.set_value("model.name", "other")
    assert file.path.is_symlink()
    assert 'name = "other"' in kept.read_text(encoding="utf-8")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o640


def test_writers_at_once_lose_nothing(home: Home, file: ConfigFile) -> None:
    keys = [f"model_overrides.m{number}.name" for number in range(12)]

    def write(key: str) -> None:
        ConfigFile(home.path, Redactor({})).set_value(key, key)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, keys))
    assert len(tomllib.loads(text(file))["model_overrides"]) == len(keys)


def test_a_change_by_an_editor_meanwhile_is_not_overwritten(home: Home, file: ConfigFile) -> None:
    edited = MODEL + "# edited by hand\n"

    def edit(_: object) -> None:
        file.path.write_text(edited, encoding="utf-8")

    with pytest.raises(ConfigError, match="was changed by something else"):
        ConfigFile(home.path, Redactor({}), edit).set_value("model.name", "x")
    assert text(file) == edited


LIMITED = """
import resource, signal, sys
from agent_core.cli import main

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))
sys.exit(main())
"""


@pytest.mark.long
def test_a_full_disk_leaves_the_old_file(home: Home, project: Path, file: ConfigFile) -> None:
    before = text(file)
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, program_file(LIMITED), "config", "set", "model.name", "x" * 50],
        cwd=project,
        env=home.env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert f"error: {file.path}: " in done.stderr
    assert text(file) == before
    assert not [*home.path.glob(".soong-agent-*")]


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    kept(
        [
            ("config", "set", "model.name", "x"),
            ("permissions", "add", "allow", "--tool", "code.read_file"),
            ("undo",),
        ],
        ("undo",),
    ),
)
def test_a_full_disk_is_named_with_its_cure(
    home: Home, project: Path, file: ConfigFile, words: Sequence[str]
) -> None:
    assert text(file)
    done = subprocess.run(  # noqa: S603 - our own command
        [*full_disk(home.path), sys.executable, "-m", "agent_core.cli", *words],
        cwd=project,
        env=home.env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert str(home.path) in done.stderr
    assert "No space left on device; free some space" in done.stderr


KILLED = """
import os, signal, sys
from pathlib import Path
from agent_core.cli.config_file import ConfigFile
from agent_core.redaction import Redactor

name, at = sys.argv[1], int(sys.argv[2])
real, seen = getattr(os, name), 0

def dying(*args, **more):
    global seen
    seen += 1
    if seen == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **more)

setattr(os, name, dying)
ConfigFile(Path(sys.argv[3]), Redactor({})).set_value("model.name", "new")
"""


@pytest.mark.parametrize(
    ("name", "at"),
    kept([("fsync", 1), ("fchmod", 1), ("replace", 1), ("fsync", 2)], ("fsync", 1), ("replace", 1)),
)
def test_a_kill_in_the_middle_leaves_the_old_or_the_new_file(
    name: str, at: int, home: Home, file: ConfigFile
) -> None:
    old = text(file)
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, program_file(KILLED), name, str(at), str(home.path)],
        env=home.env(),
        check=False,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL
    assert text(file) in {old, old.replace('"gpt-5"', '"new"')}
    assert file.set_value("model.name", "later").after == "later"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            {"decision": "allow", "command": ["git", "log", "*"]},
            "allows without a question: the command git log, with any words after it, in every project",  # noqa: E501
        ),
        (
            {"decision": "deny", "path": ["secrets/**"]},
            "denies: calls of every tool on secrets/** (in whichever project is open)",
        ),
        (
            {"decision": "ask", "host": ["*.example.org"], "agent": ["worker"]},
            "asks before: calls of every tool to *.example.org by the agent worker, in every project",  # noqa: E501
        ),
        (
            {"decision": "allow", "path": ["~/notes/**"], "only": "reads"},
            "allows without a question: calls of every tool that only read on ~/notes/**",
        ),
        ({"decision": "deny", "command": ["*"]}, "denies: every command, in every project"),
    ],
)
def test_a_rule_is_added_behind_the_others_and_said_in_words(
    rule: dict[str, Any], said: str, file: ConfigFile
) -> None:
    file.path.write_text(
        f'{MODEL}[permissions]\nrules = [ # short\n  {{decision = "deny", tool = "a"}},\n]\n{REST}'
    )
    done = file.add_rule(rule)
    assert done.key == "permissions.rules[1]"
    assert tomllib.loads(text(file))["permissions"]["rules"][1] == rule
    assert "# short" in text(file)
    assert "# how it remembers" in text(file)
    again = file.add_rule(rule)
    assert again.before == again.after
    assert describe_rule(PermissionRule.model_validate(rule)) == said


def test_the_commands_say_what_they_did(home: Home, project: Path) -> None:
    (home.path / "config.toml").unlink(missing_ok=True)
    assert command(home, project, "config", "set", "memory.enabled", "no").returncode == 2
    assert not (home.path / "config.toml").exists()
    for words, code, out, err in (
        ("config get model.name", 1, "", "model.name is not set"),
        ("permissions add deny --path x", 2, "", "there is no config.toml yet"),
        ("config set model openai:gpt-5", 0, "# config.toml:1", ""),
        ("config set model.temperature 0.5", 0, "model.temperature = 0.5", ""),
        ("config set model.temperature -1", 2, "", "greater than or equal to 0"),
        ("config get model.temperature", 0, "0.5\n", ""),
        ("config get model.name", 0, "gpt-5\n", ""),
        ("config get model", 2, "", "name one, such as model.provider"),
        ("config unset model.temperature", 0, "removed (was 0.5)", ""),
        ("config unset model.temperature", 0, "is not set", ""),
        ("permissions add allow -- git log *", 0, "the command git log", "added"),
        ("permissions add allow -- git log *", 0, "the command git log", "there already"),
        ("permissions add deny -- git log *", 2, "", "config.toml:5 has a rule for exactly these"),
        ("permissions add allow", 2, "", "a command after --, or add --tool, --path"),
        ("permissions remove config.toml#2", 1, "", "the rules are config.toml#1"),
        ("permissions remove config.toml#1", 0, "the command git log", "removed from config.toml"),
        ("permissions list", 0, "", "no rules"),
    ):
        done = command(home, project, *words.split())
        assert done.returncode == code, (words, done.stderr)
        assert out in done.stdout, words
        assert err in done.stderr, words
    assert stat.S_IMODE((home.path / "config.toml").stat().st_mode) == 0o600


@together("number", [1, 2, 3])
@together(("name", "head"), [("config.toml", CONFIG), ("rules.toml", "# mine\n")])
def test_a_rule_is_removed_and_the_others_and_all_comments_stay(
    home: Home, project: Path, name: str, head: str, number: int
) -> None:
    words = ["one", "two", "three"]
    rule = '# of {0}\n[[permissions.rules]]\ndecision = "allow"\ncommand = ["{0}"]\n\n'
    parts = [rule.format(word) for word in words]
    for other in ("config.toml", "rules.toml"):
        home.write(other, CONFIG if other == "config.toml" else "")
    home.write(name, "".join([head, "\n", *parts]))
    done = command(home, project, "permissions", "remove", f"{name}#{number}")
    assert done.returncode == 0, done.stderr
    assert f"the command {words[number - 1]}" in done.stdout
    after = (home.path / name).read_text("utf-8")
    del parts[number - 1]
    assert tomllib.loads(after) == tomllib.loads("".join([head, *parts]))
    assert after.startswith(head)
    assert [line for line in after.splitlines() if line.startswith("# of")] == [
        f"# of {word}" for word in words
    ]


def test_a_rule_that_was_replaced_meanwhile_is_not_removed(home: Home) -> None:
    rule = '[[permissions.rules]]\ndecision = "allow"\ncommand = ["{}"]\n'
    shown = PermissionRule.model_validate({"decision": "allow", "command": ["one"]})
    removals: dict[str, Callable[[], object]] = {
        "config.toml": lambda: ConfigFile(home.path, Redactor({})).remove_rule(1, shown),
        "rules.toml": lambda: remove_rule(home.path, 1, shown),
    }
    for name, remove in removals.items():
        written = f"{CONFIG if name == 'config.toml' else ''}\n{rule.format('two')}"
        home.write(name, written)
        with pytest.raises(ConfigError, match="its rule 1 is another one now"):
            remove()
        assert (home.path / name).read_text("utf-8") == written


TYPED = [
    ("-- 'python -m unittest'", "'python -m unittest' is one word", "-- python -m unittest"),
    ("-- 'git log' '*'", "'git log' is one word", "-- git log '*'"),
    ("-- ''", "the command must begin", ""),
    ("--tool 'a b'", "--tool has 'a b'", ""),
    ("--host http://x.test/y", "--host has 'http://x.test/y'", ""),
    ("--path '!x'", "--path has '!x'", ""),
    ("--path '~no-such-user/x'", "--path '~no-such-user/x' cannot be used", ""),
    ("--path '${NO}/x'", "--path '${NO}/x' cannot be used", ""),
    ("--only edits -- ls", 'the rule is for a command and only for "edits"', ""),
    ("--reason because", "the rule covers no calls", "--agent or --only"),
    (f"--tool {'x' * 500}/", f"{'x' * 80}…", ""),
]


@together(("typed", "fault", "cure"), TYPED)
def test_a_rule_that_cannot_be_added_is_named_as_it_was_typed(
    typed: str, fault: str, cure: str, home: Home, project: Path
) -> None:
    before = home.write_config(CONFIG).read_bytes()
    done = command(home, project, "permissions", "add", "allow", *shlex.split(typed))
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert fault in line
    assert line.endswith(cure)
    assert not any(word in line for word in ("rules[", "[1]", "[[", "rule 1", "status"))
    assert (home.path / "config.toml").read_bytes() == before


def test_a_command_follows_the_options_of_its_rule(home: Home, project: Path) -> None:
    home.write_config(CONFIG)
    words = ["--reason", "so be it", "--", "git", "diff", "--", "--x"]
    done = command(home, project, "permissions", "add", "allow", *words)
    assert "the command git diff -- --x, exactly" in done.stdout


def test_keys_are_completed(home: Home, project: Path) -> None:
    assert {"model.name", "memory.enabled", "tools.mcp.disabled_servers"} <= {*setting_keys()}
    for shell in ("bash", "fish"):
        assert "tools.mcp.disabled_servers" in command(home, project, "completion", shell).stdout


@pytest.mark.parametrize(
    "argv",
    sampled(
        [
            ["soong-agent", "config", "set", "permissions.readers", "allow"],
            ["sh", "-c", "cd / && soong-agent permissions add allow -- '*'"],
            ["python3", "-m", "agent_core.cli", "config", "unset", "permissions.rules"],
            ["env", "A=b", "soong-agent", "approvals", "answer", "req_1", "allow"],
            ["soong-agent", "mcp", "add", "x", "--", "evil"],
            ["soong-agent", "permissions", "remove", "config.toml#1"],
        ],
        keep=2,
    ),
)
async def test_no_command_of_the_agent_changes_the_settings(
    argv: list[str], home: Home, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_program(tmp_path / "soong-agent")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    allows = '[[permissions.rules]]\ndecision = "allow"\ncommand = ["*"]\n'
    async with runtime(home, project, config=CONFIG + allows) as engine:
        found = await engine.explain_permission("code.run_command", {"argv": argv})
        other = await engine.explain_permission("code.run_command", {"argv": ["true", *argv[:1]]})
    assert (found.decision, found.by) == ("deny", "the program's own files")
    assert other.decision == "allow"


async def test_the_file_behind_a_link_is_the_programs_own(home: Home, project: Path) -> None:
    kept = project / "dotfiles.toml"
    kept.write_text(CONFIG, encoding="utf-8")
    (home.path / "config.toml").unlink(missing_ok=True)
    (home.path / "config.toml").symlink_to(kept)
    change = {"path": "dotfiles.toml", "content": "x", "overwrite": True}
    engine = AgentRuntime(project_dir=project, home_dir=home.path, model="ollama:none")
    async with engine:
        found = await engine.explain_permission("code.write_file", change)
    assert (found.decision, found.by) == ("deny", "the tool itself")
