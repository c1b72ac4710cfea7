"""`soong-agent memory` and `soong-agent sessions`, as processes on a real home."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from isolation import Home
from sweeps import kept

CONFIG = """
[model]
provider = "scripted"
name = "script"
path = "{script}"
context_window = 8192

[memory]
enabled = false

[compact]
auto_background = false
"""


def command(
    home: Home, project: Path, *arguments: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - the command is ours
        [sys.executable, "-m", "agent_core.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=project,
        env=home.env(),
        check=False,
        timeout=60,
    )


def scripted(home: Home, *replies: str) -> None:
    script = home.write("replies.json", json.dumps(replies))
    home.write_config(CONFIG.format(script=script))


def two_memories(home: Home) -> None:
    scripted(home)
    for day, name, said in (("01", "tabs", "Prefers tabs"), ("02", "tea", "Drinks \x1b[31mtea")):
        head = f'id: mem_{name}\nsummary: {json.dumps(said)}\ncreated_at: "2026-01-{day}"'
        home.write(f"memory/user/{name}.md", f"---\n{head}\n---\nAll about {name}.\n")
    home.write("memory/MEMORY.md", "# Memory\n\nmy own line\n\n- [mem_tea](user/tea.md) user: x\n")


def test_memories_are_listed_newest_first_and_harmless(home: Home, project: Path) -> None:
    two_memories(home)
    shown = command(home, project, "memory", "list")
    assert shown.returncode == 0
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["mem_tea", "mem_tabs"]
    assert "\x1b" not in shown.stdout


def test_one_memory_is_shown_by_the_beginning_of_its_id(home: Home, project: Path) -> None:
    two_memories(home)
    assert "All about tabs." in command(home, project, "memory", "show", "mem_ta").stdout
    unknown = command(home, project, "memory", "show", "mem_t")
    assert unknown.returncode == 1
    assert "2 memories begin with mem_t" in unknown.stderr


def test_forgetting_asks_and_takes_the_line_out_of_the_catalog(home: Home, project: Path) -> None:
    two_memories(home)
    tea = home.path / "memory" / "user" / "tea.md"
    kept = command(home, project, "memory", "forget", "mem_tea", stdin="\n")
    assert (kept.returncode, tea.exists()) == (0, True)
    assert "[y/N]" in kept.stderr
    done = command(home, project, "memory", "forget", "mem_tea", stdin="y\n")
    assert (done.returncode, tea.exists()) == (0, False)
    catalog = (home.path / "memory" / "MEMORY.md").read_text(encoding="utf-8")
    assert "my own line" in catalog
    assert "tea" not in catalog
    assert "(user/tabs.md) user: Prefers tabs" in catalog
    assert command(home, project, "memory", "forget", "mem_tabs", "--yes").returncode == 0


def with_cake(home: Home) -> None:
    two_memories(home)
    head = 'id: mem_cake\nsummary: Eats cake with tea\ncreated_at: "2026-01-03"'
    home.write("memory/user/cake.md", f"---\n{head}\n---\nEvery day.\n")


def left(home: Home) -> set[str]:
    return {path.stem for path in (home.path / "memory" / "user").glob("*.md")}


@pytest.mark.parametrize(
    ("answer", "gone"),
    kept(
        [("2\n", ["tea"]), ("1, 2\n", ["cake", "tea"]), ("\n", []), ("3\n", []), ("x\n", [])],
        ("1, 2\n", ["cake", "tea"]),
        ("3\n", []),
    ),
)
def test_words_find_memories_and_the_person_says_which_to_forget(
    home: Home, project: Path, answer: str, gone: list[str]
) -> None:
    with_cake(home)
    done = command(home, project, "memory", "forget", "TEA", stdin=answer)
    assert "Eats cake with tea" in done.stderr
    assert "Drinks" in done.stderr
    assert "tabs" not in done.stderr
    assert left(home) == {"tea", "cake", "tabs"} - set(gone)
    assert done.returncode == (1 if answer in {"3\n", "x\n"} else 0)
    catalog = (home.path / "memory" / "MEMORY.md").read_text(encoding="utf-8")
    assert "my own line" in catalog
    assert [name for name in ("tea", "cake") if f"user/{name}.md" in catalog] == (
        [name for name in ("cake", "tea") if name not in gone] if gone else ["tea"]
    )


@pytest.mark.parametrize("options", [("--yes",), ("--yes", "--json"), ("--json",), ()])
def test_several_memories_are_never_forgotten_without_an_answer(
    home: Home, project: Path, options: tuple[str, ...]
) -> None:
    with_cake(home)
    done = command(home, project, "memory", "forget", "tea", *options)
    assert done.returncode == 1
    assert "2 memories match; none was forgotten: name one by its id" in done.stderr
    assert left(home) == {"tea", "cake", "tabs"}
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    named = [(each["memory_id"], each["forgotten"]) for each in shown]
    assert named == ([("mem_cake", False), ("mem_tea", False)] if "--json" in options else [])


def test_memories_that_do_not_fit_on_the_list_are_counted(home: Home, project: Path) -> None:
    for number in range(25):
        head = f"id: mem_{number:02}\nsummary: Owns tea pot number {number}"
        home.write(f"memory/user/pot{number}.md", f"---\n{head}\n---\nIt pours.\n")
    asked = command(home, project, "memory", "forget", "pot", stdin="21\n")
    assert "… 5 more fit; name one by its id, or with more words" in asked.stderr
    assert "number of the list" in asked.stderr
    unasked = command(home, project, "memory", "forget", "pot", "--yes")
    assert "25 memories match" in unasked.stderr
    assert len(left(home)) == 25


def test_words_that_fit_one_memory_name_it(home: Home, project: Path) -> None:
    with_cake(home)
    kept = command(home, project, "memory", "forget", "cake", "with", "tea", stdin="n\n")
    assert "forget “Eats cake with tea”" in kept.stderr
    assert left(home) == {"tea", "cake", "tabs"}
    done = command(home, project, "memory", "forget", "cake with", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "memory_id": "mem_cake",
        "category": "user",
        "summary": "Eats cake with tea",
        "forgotten": True,
    }
    assert left(home) == {"tea", "tabs"}
    none = command(home, project, "memory", "forget", "zebra", "--yes")
    assert none.returncode == 1
    assert "there is no memory zebra; `memory list` shows them all" in none.stderr


@pytest.mark.parametrize("words", [("tea", "leaves"), ("teapot",), ("",), ("mem",)])
def test_without_a_question_only_a_memory_with_all_the_words_is_forgotten(
    home: Home, project: Path, words: tuple[str, ...]
) -> None:
    two_memories(home)
    done = command(home, project, "memory", "forget", *words, "--yes")
    assert (done.returncode, left(home)) == (1, {"tea", "tabs"})
    assert "there is no memory" in done.stderr


@pytest.mark.parametrize("word", ["茶", "喝茶", "чай", "चाय"])
def test_a_memory_is_found_by_a_word_of_any_script(home: Home, project: Path, word: str) -> None:
    two_memories(home)
    summary = json.dumps("我喜欢喝茶, люблю чай, चाय पसंद है")
    home.write("memory/user/drink.md", f"---\nid: mem_drink\nsummary: {summary}\n---\nDaily.\n")
    done = command(home, project, "memory", "forget", word, "--yes")
    assert (done.returncode, left(home)) == (0, {"tea", "tabs"})


@pytest.mark.sweep
def test_memories_of_a_program_that_is_configured_in_code_need_no_config(
    home: Home, project: Path
) -> None:
    two_memories(home)
    (home.path / "config.toml").unlink()
    assert "mem_tea" in command(home, project, "memory", "list").stdout
    assert "All about tea" in command(home, project, "memory", "show", "mem_tea").stdout
    gone = command(home, project, "memory", "forget", "mem_tea", "--yes")
    assert gone.returncode == 0, gone.stderr
    assert "mem_tea" not in command(home, project, "memory", "list").stdout


def test_a_command_that_asks_a_model_says_where_to_name_one(home: Home, project: Path) -> None:
    shown = command(home, project, "sessions", "compact", "s1")
    assert shown.returncode == 2
    for place in ("config.toml", "$SOONG_AGENT_MODEL", "run, chat and acp take --model"):
        assert place in shown.stderr


def test_sessions_are_listed_shown_and_compacted(home: Home, project: Path) -> None:
    scripted(home, "word " * 1500)
    for text in ("Build it. Never use nails.", "Go on."):
        ran = command(home, project, "run", "--session-id", "s1", text)
        assert ran.returncode == 0, ran.stderr
        scripted(home, "fine " * 100)
    listed = command(home, project, "sessions", "list")
    assert listed.stdout.startswith("s1  ")
    scripted(home, '{"summary": "## Goal\\nshort, said in as many words as a summary needs"}')
    compacted = command(home, project, "sessions", "compact", "s1")
    assert compacted.returncode == 0, compacted.stderr
    assert "has been summarised" in compacted.stdout
    shown = command(home, project, "sessions", "show", "s1")
    assert "user: Build it. Never use nails." in shown.stdout
    assert "(summary of what came before)" in shown.stdout
    assert "tokens of runs: " in shown.stderr
    unknown = command(home, project, "sessions", "compact", "s9")
    assert unknown.returncode == 2
    assert "there is no session s9" in unknown.stderr


@pytest.mark.sweep
def test_a_session_that_is_short_is_left_as_it_is(home: Home, project: Path) -> None:
    scripted(home, "fine")
    command(home, project, "run", "--session-id", "s1", "hello")
    done = command(home, project, "sessions", "compact", "s1")
    assert done.returncode == 0
    assert "nothing to summarise yet: the end of a conversation, about 2,000 tokens" in done.stdout
    assert re.search(r"and this one has about \d\d? in all\.", done.stdout)
    assert "keep_recent_tokens" in done.stdout


def test_users_and_tenants_have_memories_apart(home: Home, project: Path) -> None:
    two_memories(home)
    for folder in ("users/_41nna", "users/ben", "tenants/acme", "tenants/acme/users/ben"):
        head = f"id: mem_{folder[-3:]}\nsummary: Of {folder}"
        home.write(f"memory/{folder}/user/tea.md", f"---\n{head}\n---\nText.\n")
    anna = ("--scope", "user:Anna")
    of_anna = command(home, project, "memory", "list", *anna)
    assert of_anna.stdout.split()[:2] == ["mem_nna", "user"]
    shared = command(home, project, "memory", "list")
    assert [line.split()[0] for line in shared.stdout.splitlines()] == ["mem_tea", "mem_tabs"]
    others = "other memories: --scope user:Anna, --scope user:ben, --tenant acme\n"
    assert shared.stderr == others
    of_acme = command(home, project, "memory", "list", "--tenant", "acme")
    assert "mem_cme" in of_acme.stdout
    assert of_acme.stderr == "other memories: --scope user:ben\n"
    tenants = ("--scope", "user:ben", "--tenant", "acme")
    assert "Text." in command(home, project, "memory", "show", "mem_ben", *tenants).stdout
    unknown = command(home, project, "memory", "forget", "mem_tea", "--yes", *tenants)
    assert unknown.returncode == 1
    assert "`memory list --scope user:ben --tenant acme` shows them all" in unknown.stderr
    assert command(home, project, "memory", "forget", "mem_nna", "--yes", *anna).returncode == 0
    left = {str(path.relative_to(home.path / "memory")) for path in home.path.rglob("*.md")}
    assert {name for name in left if "MEMORY" not in name} == {
        *("user/tabs.md", "user/tea.md", "users/ben/user/tea.md"),
        *("tenants/acme/user/tea.md", "tenants/acme/users/ben/user/tea.md"),
    }


def test_what_is_no_scope_is_refused(home: Home, project: Path) -> None:
    scripted(home)
    for words in (["--scope", "anna"], ["--scope", "off"], ["--scope", "user:../x"]):
        refused = command(home, project, "memory", "list", *words)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "scope" in refused.stderr
    refused = command(home, project, "memory", "list", "--tenant", "../x")
    assert refused.returncode == 2
    assert "the tenant is invalid" in refused.stderr


def test_a_model_that_the_command_names_wrongly_is_said_to_be_its_own(
    home: Home, project: Path
) -> None:
    shown = command(home, project, "run", "--model", "gpt-5", "hi")
    assert shown.returncode == 2
    assert (
        "the model that --model or $SOONG_AGENT_MODEL names must be provider:name" in shown.stderr
    )
    assert "in code" not in shown.stderr
