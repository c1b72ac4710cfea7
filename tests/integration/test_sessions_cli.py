"""`soong-agent sessions` on a real home: what is listed, told, found, renamed and deleted."""

import asyncio
import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from in_process import carry_out
from isolation import Home, fresh_folder
from session_stories import SOONG, a_story, soong
from sweeps import kept, sampled

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def story() -> tuple[Home, Path]:
    """Return a home with the story, and its project, for the tests that only read them."""
    home, project = Home(fresh_folder("home", "story")), fresh_folder("project", "story")
    asyncio.run(a_story(home, project))
    return home, project


def on_a_terminal(
    home: Home, project: Path, *words: str, columns: int, keys: bytes = b"", **more: str
) -> str:
    """What a terminal of that width gets; the keys are pressed once it is asked for a yes."""
    screen, tty = pty.openpty()
    environ = {**os.environ, "SOONG_AGENT_HOME": str(home.path), "COLUMNS": str(columns), **more}
    process = subprocess.Popen(  # noqa: S603
        [SOONG, "sessions", *words], cwd=project, env=environ, stdin=tty, stdout=tty, stderr=tty
    )
    os.close(tty)
    shown = b""
    while True:
        try:
            piece = os.read(screen, 65_536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
        if keys and b"[y/N]" in shown:
            os.write(screen, keys)
            keys = b""
    os.close(screen)
    process.wait(timeout=60)
    return shown.decode().replace("\r\n", "\n")


def test_a_list_names_title_status_turns_tokens_cost_and_project(story: tuple[Home, Path]) -> None:
    home, project = story
    first, second = soong(home, project, "list").stdout.splitlines()
    assert first.startswith("sess_18ab  ")
    assert first.endswith(f"{project}  Something else")
    for said in ("completed", "turns", "tokens", "cost unknown", "Why does test_add fail?"):
        assert said in second
    found = [
        json.loads(line) for line in soong(home, project, "list", "--json").stdout.splitlines()
    ]
    assert [each["session_id"] for each in found] == ["sess_18ab", "sess_18aa"]
    assert found[1]["title"] == "Why does test_add fail?"
    assert found[1]["usage"]["cost"] is None
    limited = soong(home, project, "list", "--limit", "1")
    assert limited.stdout.count("\n") == 1
    assert "--limit 0 shows all" in limited.stderr
    assert soong(home, project, "list", "--json", "--limit", "1").stderr == ""
    assert soong(home, project, "list", "test_ADD").stdout.startswith("sess_18aa")
    elsewhere = fresh_folder("project", "elsewhere")
    assert "sess_18aa" in soong(home, elsewhere, "list").stdout
    assert soong(home, elsewhere, "list", "--here").stdout == ""
    assert soong(home, project, "list", "--limit", "-3").returncode == 2


@pytest.mark.parametrize("columns", kept([40, 80, 200], 40))
def test_a_list_a_story_and_a_tree_fit_the_terminal(story: tuple[Home, Path], columns: int) -> None:
    home, project = story
    for words in (["list"], ["tree", "18aa"]):
        shown = on_a_terminal(home, project, *words, columns=columns, NO_COLOR="1")
        assert "\x1b" not in shown
        assert "Why does test_add" in shown
        assert max(map(len, shown.splitlines())) < columns
    told = on_a_terminal(home, project, "show", "18aa", columns=columns, TERM="dumb")
    assert "\x1b" not in told
    assert "\x1b[3" in on_a_terminal(home, project, "list", columns=columns, TERM="xterm")


def test_a_story_has_calls_outcomes_refusals_children_and_what_was_left_behind(
    story: tuple[Home, Path],
) -> None:
    home, project = story
    told = soong(home, project, "show", "18aa").stdout
    for said in (
        "user: Why does test_add fail?",
        "assistant: Let me look.",
        "ok      code.read_file a.py",
        "exit 3  code.run_command",
        "FAILED test_add",
        "ok      code.edit_file",
        "2 -     return a - b",
        "2 +     return a + b",
        "denied  code.run_command",
        "(the program): not now",
        "child default_sub_agent",
        "two lines",
        "failed: the service is down (provider_error)",
        "not on the active path",
        r"Count the <b>lines</b>, \x1b[31mplease",
        "cost unknown",
    ):
        assert said in told, said
    assert "\x1b" not in told
    last = soong(home, project, "show", "18aa", "--last", "1").stdout
    assert "Another way." in last
    assert "Break it" not in last
    run_id = next(line.split()[1] for line in told.splitlines() if line.startswith("-- run_"))
    one = soong(home, project, "show", "18aa", "--run", run_id[:-3]).stdout
    assert "The sign was wrong." in one
    assert "two lines" not in one
    elsewhere = soong(home, project, "show", "18ab", "--run", run_id)
    assert elsewhere.returncode == 1
    assert "has no run" in elsewhere.stderr
    assert soong(home, project, "show", "18aa", "--last", "0").returncode == 2
    full = soong(home, project, "show", "18aa", "--full").stdout
    assert "given: " in full
    assert "stdout:" in full


@pytest.mark.long
def test_a_tree_marks_the_active_path_and_keeps_what_was_undone(story: tuple[Home, Path]) -> None:
    home, project = story
    drawn = soong(home, project, "tree", "18aa").stdout.splitlines()
    marked = [line for line in drawn if "* [" in line]
    assert [line.split("] ")[1] for line in marked][:1] == ["Why does test_add fail?"]
    assert "Try another way" in marked[-1]
    (undone,) = [line for line in drawn if "Break it" in line]
    assert "├─  [node_" in undone
    assert "failed" in undone
    words = ["sessions", "tree", "18aa"]
    plain = carry_out(words, home.env(), project, encoding="ascii")
    assert "|-  [node_" in plain.stdout


def test_a_search_finds_words_of_messages_calls_and_results(story: tuple[Home, Path]) -> None:
    home, project = story
    for words in (["WRONG", "sign"], ["FAILED test_add"], ['"a - b"'], ["-r", "build"]):
        found = soong(home, project, "search", "--", *words)
        assert found.returncode == 0, (words, found.stderr)
        assert "sess_18aa" in found.stdout
    hostile_words = ("%", "_%_", "NEAR(", '"', "* OR 1", "zzz", "'; DROP TABLE nodes; --")
    for hostile in sampled(hostile_words, keep=3):
        missed = soong(home, project, "search", "--", hostile)
        assert missed.returncode == 1, hostile
    assert soong(home, project, "search", " ").returncode == 2
    (line, *_) = soong(home, project, "search", "unrelated", "--json").stdout.splitlines()
    match = json.loads(line)
    assert (match["session_id"], match["role"]) == ("sess_18ab", "assistant")
    assert match["snippet"] == "unrelated"


def test_a_session_is_renamed_and_deleting_asks_on_a_terminal_and_needs_yes_elsewhere(
    home: Home, project: Path
) -> None:
    asyncio.run(a_story(home, project))
    done = soong(home, project, "rename", "18ab", "The", "other", "one")
    assert done.returncode == 0
    assert "The other one" in soong(home, project, "list").stdout.splitlines()[0]
    assert soong(home, project, "rename", "18ab", " ").returncode == 2
    refused = soong(home, project, "delete", "18ab", answer="y\n")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    kept = on_a_terminal(home, project, "delete", "18ab", columns=80, keys=b"n\n")
    assert "nothing was deleted" in kept
    ambiguous = soong(home, project, "delete", "sess_18ab", "18a", "--yes")
    assert ambiguous.returncode == 2
    assert "sess_18aa, sess_18ab" in ambiguous.stderr
    elsewhere = soong(home, project, "delete", "18ab", "--project", str(home.path), "--yes")
    assert elsewhere.returncode == 2
    assert "sess_18ab is a session of another project" in elsewhere.stderr
    unknown = soong(home, project, "delete", "18ab", "nothing", "--yes")
    assert unknown.returncode == 2
    assert len(soong(home, project, "list").stdout.splitlines()) == 2
    gone = on_a_terminal(home, project, "delete", "18ab", columns=80, keys=b"y\n")
    assert "deleted sess_18ab" in gone
    assert "what stays: Task logs" in gone
    last = soong(home, project, "delete", "18aa", "sess_18aa", "--path", str(project), "--yes")
    assert last.returncode == 0
    assert soong(home, project, "list").stdout == ""


@pytest.mark.sweep
def test_a_fork_without_a_folder_stands_beside_the_project(home: Home, project: Path) -> None:
    asyncio.run(a_story(home, project))
    tree = soong(home, project, "tree", "18aa").stdout
    node = next(line for line in tree.splitlines() if "Count the" in line)
    short = node.split("[")[1].split("]")[0]
    done = soong(home, project, "fork", "18aa", "--at", short)
    assert done.returncode == 0, done.stderr
    session_id, folder = done.stdout.split()
    assert folder == f"{project}-fork"
    assert (Path(folder) / "a.py").is_file()
    assert session_id in soong(home, project, "tree", "18aa").stdout
    told = soong(home, project, "show", session_id).stdout
    for said in ("copied from the session", "exit 3  code.run_command", "denied  code.run_command"):
        assert said in told
    again = soong(home, project, "fork", "18aa")
    assert again.stdout.split()[1] == f"{project}-fork-2"


@pytest.mark.sweep
def test_a_prefix_that_several_have_names_them_and_changes_nothing(
    home: Home, project: Path
) -> None:
    asyncio.run(a_story(home, project))
    for words in (["show"], ["tree"], ["fork"], ["compact"]):
        refused = soong(home, project, *words, "sess_18")
        assert refused.returncode == 2, words
        assert "sess_18aa, sess_18ab" in refused.stderr or "config" in refused.stderr
    assert soong(home, project, "rename", "18a", "new").returncode == 2
    assert soong(home, project, "show", "none").returncode == 2


@pytest.mark.sweep
def test_beginnings_of_ids_do_for_undo_and_differences(home: Home, project: Path) -> None:
    asyncio.run(a_story(home, project))

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return carry_out(words, home.env(), project)

    ambiguous = command("undo", "sess_18")
    assert ambiguous.returncode == 2
    assert "sess_18aa, sess_18ab" in ambiguous.stderr
    undone = command("undo", "18aa")
    assert undone.returncode == 0, undone.stderr
    assert "Try another way" in undone.stderr
    assert command("redo", "18aa").returncode == 0
    assert command("approvals", "list", "--session-id", "18aa").returncode == 0
    assert command("approvals", "list", "--session-id", "none").returncode == 2
