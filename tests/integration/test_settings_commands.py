"""`config show`, `completion`, `agents list` and `skills list`."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent_core.config.positions import find_lines
from in_process import carry_out
from isolation import Home
from sweeps import kept, paired, sampled
from tables import together

CONFIG = """\
# mine
[model]
provider = "openai"  # a service
name = "gpt-5"
api_key_env = "OF_THE_SERVICE"
provider_options = { openai = { headers = { "X-Api-Key" = "a-value-nobody-sees" } } }

[tools]
allowed_write_roots = [
  "/tmp/a",  # ]
]
max_timeout_ms = 60000

[[permissions.rules]]
decision = "allow"
command = ["ls"]

[[permissions.rules]]
decision = "deny"
command = ["rm", "*"]
"""


def command(
    home: Home, project: Path, *words: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    return carry_out(words, home.env(**environ), project)


def settings(done: subprocess.CompletedProcess[str]) -> dict[str, list[object]]:
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["settings"]
    return {each["key"]: [each["value"], each["origin"]] for each in found}


def test_config_show_says_where_each_value_comes_from(home: Home, project: Path) -> None:
    home.write_config(CONFIG)
    found = settings(command(home, project, "config", "show", "--json"))
    assert found["model.provider"] == ["openai", "config.toml:3"]
    assert found["model.context_window"][1] == "default"
    assert found["tools.allowed_write_roots"] == [["/tmp/a"], "config.toml:9"]  # noqa: S108
    assert found["tools.max_timeout_ms"] == [60000, "config.toml:12"]
    assert found["tools.default_timeout_ms"] == [60000, "follows from other settings"]
    assert found["permissions.rules"][1] == "config.toml:14"
    assert found["memory.memory_dir"] == [str(home.path / "memory"), "default"]
    assert found["workspace.snapshots"] == ["turn", "default"]


def test_config_show_names_variables_and_no_secret(home: Home, project: Path) -> None:
    home.write_config(CONFIG)
    for environ, is_set in (({}, False), ({"OF_THE_SERVICE": "sk-the-key-itself"}, True)):
        shown = command(home, project, "config", "show", **environ)
        word = "(set)" if is_set else "(not set)"
        assert f'model.api_key_env = "OF_THE_SERVICE" {word}' in shown.stdout
        for secret in ("a-value-nobody-sees", "sk-the-key-itself"):
            assert secret not in shown.stdout + shown.stderr
        (key,) = json.loads(
            command(
                home, project, "config", "show", "model.api_key_env", "--json", **environ
            ).stdout
        )["settings"]
        assert key["is_set"] is is_set


def test_a_model_that_is_named_replaces_that_of_the_file(home: Home, project: Path) -> None:
    home.write_config(CONFIG)
    by_option = settings(
        command(home, project, "config", "show", "model", "--model", "ollama:qwen3", "--json")
    )
    assert by_option["model.provider"] == ["ollama", "--model"]
    assert by_option["model.api_key_env"] == [None, "--model"]
    assert by_option["model.timeout_ms"][1] == "default"
    by_variable = command(
        home, project, "config", "show", "model", "--json", SOONG_AGENT_MODEL="ollama:qwen3"
    )
    assert settings(by_variable)["model.name"] == ["qwen3", "$SOONG_AGENT_MODEL"]


def test_an_address_is_shown_without_its_password(home: Home, project: Path) -> None:
    named = "openai:m@http://me:hunter22@127.0.0.1:9/v1"
    for words, environ in ((["--model", named], {}), ([], {"SOONG_AGENT_MODEL": named})):
        shown = command(home, project, "config", "show", "model", *words, **environ)
        assert "model.base_url" in shown.stdout, shown.stderr
        assert "hunter22" not in shown.stdout + shown.stderr


def test_config_show_without_a_configuration_shows_the_defaults(home: Home, project: Path) -> None:
    done = command(home, project, "config", "show")
    assert done.returncode == 0
    assert "tools.max_timeout_ms = 600000" in done.stdout
    assert "model.provider" not in done.stdout
    assert "no model is named" in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    sampled(
        [
            ("sessions list", 0),
            ("sessions show x", 2),
            ("sessions search x", 1),
            ("sessions delete x --yes", 2),
            ("sessions export x --html", 2),
            ("sessions fork x", 2),
            ("cost", 0),
            ("approvals list", 0),
            ("permissions list", 0),
            ("permissions explain -- ls", 0),
            ("undo", 1),
            ("workspace diff a b", 1),
            ("doctor", 1),
        ],
        keep=3,
    ),
)
def test_nothing_is_written_before_there_is_a_configuration(
    home: Home, project: Path, words: str, code: int
) -> None:
    done = command(home, project, *words.split())
    assert done.returncode == code, done.stderr
    assert [*home.path.iterdir()] == []
    assert [*project.iterdir()] == []


def test_config_show_of_what_there_is_not_is_wrong_usage(home: Home, project: Path) -> None:
    home.write_config(CONFIG)
    done = command(home, project, "config", "show", "modl")
    assert (done.returncode, "did you mean model" in done.stderr) == (2, True)
    home.write_config("[model\n")
    assert command(home, project, "config", "show").returncode == 2


@together(
    ("text", "lines"),
    [
        ("a = 1\nb.c = 2\n", {"a": 1, "b.c": 2}),
        ('[t]\nx = """\ny = 1\n"""\nz = [\n 1,\n 2]\n', {"t.x": 2, "t.z": 5}),
        ('[a."b.c"]\nd = {e = 1}\n', {'a."b.c".d.e': 2}),
        (
            "[[r]]\na = 1\n[[r]]\nb = 2\n",
            {"r": 1, "r[0]": 1, "r[0].a": 2, "r[1]": 3, "r[1].b": 4},
        ),
        ("# a = 1\n\n", {}),
    ],
)
def test_the_lines_of_a_file_are_found(text: str, lines: dict[str, int]) -> None:
    assert find_lines(text) == lines


BASH = """
source {script}
COMP_WORDS=({words} "{last}"); COMP_CWORD={count}
_soong_agent 2>/dev/null
echo "${{COMPREPLY[@]}}"
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("line", "offered"),
    kept(
        [
            ("", {"run", "chat", "cost", "completion"}),
            ("sess", {"sessions"}),
            ("memory ", {"list", "show", "forget"}),
            ("run --mode ", {"plan", "ask", "accept-edits"}),
            ("run --mode = pl", {"plan"}),
            ("config set sandbox.mode ", {"off", "auto", "required"}),
            ("config set sandbox.mode re", {"required"}),
            ("config set memory.enabled ", {"true", "false"}),
            ("config set model.name ", set[str]()),
            ("chat --con", {"--continue"}),
            ("undo --ses", {"--session-id"}),
            ("run --model x --max", {"--max-usd", "--max-turns"}),
            ("cost --by se", {"session"}),
            ("approvals answer req_1 ", {"allow", "session", "reads", "edits", "deny"}),
            ("completion ", {"bash", "zsh", "fish"}),
            ("run -- --mo", set[str]()),
        ],
        ("sess", {"sessions"}),
        ("config set sandbox.mode ", {"off", "auto", "required"}),
        ("config set model.name ", set[str]()),
        ("chat --con", {"--continue"}),
    ),
)
def test_bash_completes_commands_options_and_values(
    line: str, offered: set[str], home: Home, project: Path, tmp_path: Path
) -> None:
    script = tmp_path / "completion"
    script.write_text(command(home, project, "completion", "bash").stdout, encoding="utf-8")
    *words, last = line.split(" ")
    program = BASH.format(
        script=script, words=shlex.join(["soong-agent", *words]), last=last, count=len(words) + 1
    )
    done = subprocess.run(  # noqa: S603 - what we have written
        ["bash", "-c", program],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    found = set(done.stdout.split())
    assert found == offered if len(offered) < 4 else offered <= found


@pytest.mark.long
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands_options_and_values(
    home: Home, project: Path, tmp_path: Path
) -> None:
    script = tmp_path / "completion"
    script.write_text(command(home, project, "completion", "fish").stdout, encoding="utf-8")
    for line, expected in (
        ("sess", "sessions"),
        ("memory fo", "forget"),
        ("run --mode acc", "accept-edits"),
        ("cost --b", "--by"),
        ("config set sandbox.mode re", "required"),
    ):
        done = subprocess.run(  # noqa: S603 - what we have written
            ["fish", "--no-config", "-c", f'source {script}; complete -C "soong-agent {line}"'],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
        assert [each.split("\t")[0] for each in done.stdout.splitlines()] == [expected]


@pytest.mark.sweep
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_its_script(home: Home, project: Path, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(command(home, project, "completion", "zsh").stdout, encoding="utf-8")
    program = f"source {script}; print -r -- ${{_comps[soong-agent]}}"
    done = subprocess.run(  # noqa: S603 - what we have written
        ["zsh", "-f", "-c", program],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert "_soong_agent" in done.stdout


def test_agents_and_skills_are_listed_with_what_is_wrong(home: Home, project: Path) -> None:
    home.write_config(
        '[model]\nprovider = "ollama"\nname = "x"\n[[agents.worker_pools]]\npool_id = "crew"\n'
        '[[agents.worker_pools.workers]]\nagent_definition_id = "tester"\n'
    )
    for folder, name, text in (
        ("agents", "tester.md", "---\nid: tester\nname: Tester\ndescription: runs tests\n---\nb"),
        ("skills", "deploy.md", "---\nname: deploy\ndescription: how we deploy\n---\nbody"),
        ("skills", "broken.md", "no front matter"),
    ):
        (home.path / folder).mkdir(exist_ok=True)
        (home.path / folder / name).write_text(text, encoding="utf-8")
    agents = command(home, project, "agents", "list")
    assert agents.returncode == 0, agents.stderr
    (own,) = (line for line in agents.stdout.splitlines() if line.startswith("tester"))
    assert own.split() == ["tester", "user", "runs", "tests", "worker", "of", "crew"]
    assert "default_sub_agent" in agents.stdout
    rows = map(json.loads, command(home, project, "agents", "list", "--json").stdout.splitlines())
    (row,) = (row for row in rows if row["id"] == "tester")
    assert row["file"] == str(home.path / "agents" / "tester.md")

    skills = command(home, project, "skills", "list")
    assert skills.stdout.split() == ["deploy", "how", "we", "deploy"]
    assert "broken.md" in skills.stderr
    assert skills.returncode == 0

    for number in range(600):
        text = f"---\nname: a-skill-of-this-home-{number:03}\ndescription: x\n---\nbody"
        (home.path / "skills" / f"{number}.md").write_text(text, encoding="utf-8")
    home.write_config(CONFIG.replace("[model]\n", "[model]\ncontext_window = 16000\n"))
    skills = command(home, project, "skills", "list")
    assert re.search(r"[1-9]\d+ skills at the end of this list cannot be seen", skills.stderr)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "words",
    kept([("config", "show"), ("doctor",)], ("config", "show")),
    ids=kept(["config", "doctor"], "config"),
)
def test_a_full_disk_is_told_and_is_exit_code_1(
    home: Home, project: Path, words: tuple[str, ...]
) -> None:
    home.write_config(CONFIG)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-m", "agent_core.cli", *words],
            env=home.env(),
            cwd=project,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.endswith(
        "error: standard output cannot be written: No space left on device\n"
    )


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("words", "is_closed"),
    sampled(paired([("config", "show"), ("doctor",)], [False, True]), keep=1),
    ids=str,
)
def test_output_that_nobody_reads_is_exit_code_141(
    home: Home, project: Path, words: tuple[str, ...], is_closed: bool
) -> None:
    home.write_config(CONFIG)
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "agent_core.cli", *words],
        env=home.env(),
        cwd=project,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=(lambda: os.close(1)) if is_closed else None,
    )
    os.close(write)
    assert done.returncode == 141
    assert "error" not in done.stderr


@pytest.mark.parametrize(
    ("address", "written", "limit"),
    [
        ("https://models.example/v1", "", 600_000),
        ("http://10.0.0.7:8000/v1", "", 0),
        ("https://models.example/v1", "timeout_ms = 5000\n", 5000),
        ("https://models.example/v1", "timeout_ms = 5000\nfirst_byte_ms = 7\n", 7),
    ],
)
def test_config_show_has_the_limit_of_the_first_byte_that_holds(
    home: Home, project: Path, address: str, written: str, limit: int
) -> None:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{address}"\n{written}'
    )
    shown = settings(command(home, project, "config", "show", "model", "--json"))
    assert shown["model.first_byte_ms"][0] == limit
