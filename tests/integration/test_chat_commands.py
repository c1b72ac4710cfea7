"""Commands of the chat that show, leave or begin something, the user's own, and a first message."""

import json
import re
import time
import tomllib
from pathlib import Path

import pytest

from agent_core.providers.scripted import calls
from captures import Key, Shown
from chats import AT_REST, CTRL_C, CTRL_D, ENTER, READY, converse, open_chat, pasted, sent, words
from confined_work import git
from isolation import Home
from model_server import ModelServer
from sweeps import kept

pytestmark = pytest.mark.timeout(90)


def test_status_changes_a_new_session_and_leaving(home: Home, project: Path) -> None:
    (project / "AGENTS.md").write_text("Be brief.\n")
    (project / "b.txt").write_text("one\ntwo\n")
    script = [
        calls("code.read_file", path="AGENTS.md"),
        calls("code.write_file", path="a.txt", content="first\nsecond\n"),
        calls("code.edit_file", path="b.txt", edits=[{"old": "two", "new": "2"}]),
        "The answer.",
    ]
    with ModelServer.in_thread(script) as server:
        keys = [
            Key(READY, "/diff" + ENTER),
            Key("not a git repository", "write" + ENTER),
            Key(AT_REST, "/status" + ENTER),
            Key(re.compile(r"instructions +AGENTS\.md \(read\): the model sees"), "/diff" + ENTER),
            Key("2 files changed, +3 -1", "/diff b.txt" + ENTER),
            Key("1 file changed, +1 -1", "/clear" + ENTER),
            Key(re.compile(r"/resume sess_\w+ returns"), "/status" + ENTER),
            Key(re.compile(r"instructions +AGENTS\.md: the model sees the paths"), "/exit" + ENTER),
        ]
        scene = converse(home, project, server, keys, "--mode", "accept-edits")
    assert scene.code == 0
    shown = words(scene)
    for row in ("mode accept-edits", "sandbox off", "MCP servers none", "memory off"):
        assert row in shown
    assert "added a.txt" in shown
    assert "modified b.txt" in shown


def test_the_server_of_a_model_is_shown_where_its_name_does_not_say_it(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread([]) as server:
        url = server.base_url("openai")
        keys = [
            Key(READY, "/status" + ENTER),
            Key(re.compile(r"instructions[\s\S]*" + READY), "/model openai:m" + ENTER),
            Key(f"the next messages go to openai:m at {url}", "/model anthropic:claude" + ENTER),
            Key(re.compile(r"go to anthropic:claude\s"), CTRL_D),
        ]
        scene = converse(home, project, server, keys, "--model", "openai:gpt-5", columns=120)
    shown = words(scene)
    assert f"model openai:gpt-5 at {url}, as [model] base_url says" in shown
    assert f"model openai:gpt-5 at {url} mode" in shown, "of /status"


@pytest.mark.sweep
def test_changes_that_git_ignores_are_counted(home: Home, project: Path) -> None:
    (project / ".gitignore").write_text("*.log\nkept.log\n")
    (project / "kept.log").write_text("one\n")
    git(project, "init", "-q")
    git(project, "add", "-f", ".")
    written = {"a.txt": "a\n", "b.log": "b\n", ":c.log": "c\n", "kept.log": "two\n"}
    script = [
        calls("code.write_file", path=name, content=text, overwrite=True)
        for name, text in written.items()
    ]
    with ModelServer.in_thread([*script, "The answer."]) as server:
        keys = [
            Key(READY, "write" + ENTER),
            Key(AT_REST, "/diff" + ENTER),
            Key("left out, since git ignores", "/diff b.log" + ENTER),
            Key("1 file changed, +1 -0", CTRL_D),
        ]
        scene = converse(home, project, server, keys, "--mode", "accept-edits")
    shown = words(scene)
    assert "2 files changed, +2 -1 (this session)" in shown
    assert "left out, since git ignores them: 2 changed files (:c.log, b.log)" in shown
    assert "modified kept.log" in shown, "git tracks it"
    assert "added b.log" in shown.partition("> /diff b.log")[2]
    assert "added b.log" not in shown.partition("> /diff b.log")[0]


@pytest.mark.sweep
def test_without_snapshots_the_differences_are_those_of_git(home: Home, project: Path) -> None:
    (project / "a b.txt").write_text("one\n")
    (project / ".gitattributes").write_text("*.txt filter=evil diff=evil\n")
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    for name in ("filter.evil.clean", "diff.evil.textconv", "diff.external", "core.fsmonitor"):
        git(project, "config", name, f"touch {project}/ran-$$; cat")
    (project / "a b.txt").write_text("one\nmore\n")
    (project / "new.txt").write_text("new\n")
    with ModelServer.in_thread([]) as server:
        keys = [Key(READY, "/diff" + ENTER), Key("2 files changed, +1 -0", CTRL_D)]
        scene = converse(home, project, server, keys)
    shown = words(scene)
    assert "modified a b.txt" in shown
    assert "untracked new.txt" in shown
    assert not list(project.glob("ran-*"))


@pytest.mark.long
@pytest.mark.parametrize(
    "plain", kept([[], ["--plain"]], []), ids=kept(["drawn", "plain"], "drawn")
)
def test_the_first_message_is_text_whatever_it_begins_with(
    home: Home, project: Path, plain: list[str]
) -> None:
    (project / "lamp.py").write_text("VOLTS = 230\n")
    with ModelServer.in_thread(["One answer.", "Another answer."]) as server:
        keys = [
            Key("One answer.", ""),
            Key("> " if plain else READY, "and now?" + ENTER),
            Key("Another answer.", CTRL_D),
        ]
        scene = converse(home, project, server, keys, *plain, "--", "/undo", "!ls", "@lamp.py")
        assert sent(server, 0).startswith("/undo !ls @lamp.py")
        assert "VOLTS" in sent(server, 0)
    assert "/undo !ls @lamp.py" in scene.text
    with ModelServer.in_thread(["Third answer."]) as server:
        keys = [Key("Third answer.", CTRL_D)]
        converse(home, project, server, keys, "--continue", *plain, "and then?")
        said = [each["content"] for each in server.requests[0].body["messages"]]
        assert said[-3:] == ["and now?", "Another answer.", "and then?"]


def test_own_commands_are_listed_completed_and_sent_and_init_asks_before_it_writes(
    home: Home, project: Path
) -> None:
    (project / "README.md").write_text("A lamp.\n")
    writes = calls("code.write_file", path="AGENTS.md", content="A lamp.\n")
    folder = home.path / "commands"
    (folder / "git").mkdir(parents=True)
    (folder / "review.md").write_text(
        "---\ndescription: Look for faults\nargument-hint: [file]\n---\nReview $ARGUMENTS now.\n"
    )
    (folder / "git/log.md").write_text("Tidy the log.\n")
    (folder / "undo.md").write_text("Mine.\n")
    (project / "lamp.py").write_text("VOLTS = 230\n")
    script = ["One answer.", "Another answer.", writes, "It is written."]
    with ModelServer.in_thread(script) as server:
        keys = [
            Key("/undo is built in", "/rev"),
            Key("Look for faults", ENTER + " @lamp.py $ARGUMENTS" + ENTER),
            Key(AT_REST, "/git:log" + ENTER),
            Key(re.compile(r"Another answer\.[\s\S]*sandbox off"), "/help review" + ENTER),
            Key("/review [file]", "/init" + ENTER),
            Key("? help", "y"),
            Key("It is written.", CTRL_D),
        ]
        scene = converse(home, project, server, keys)
        assert sent(server, 0).startswith("Review @lamp.py $ARGUMENTS now.")
        assert "VOLTS" in sent(server, 0)
        assert sent(server, 1) == "Tidy the log."
        message = sent(server, 2)
    assert "There is no AGENTS.md yet. Files that describe the project: README.md." in message
    assert (project / "AGENTS.md").read_text() == "A lamp.\n"
    assert "> /review @lamp.py $ARGUMENTS" in scene.text


@pytest.mark.sweep
def test_an_own_command_that_cannot_be_used_is_not_sent(home: Home, project: Path) -> None:
    folder = home.path / "commands"
    folder.mkdir(parents=True)
    with ModelServer.in_thread(["The answer."]) as server:
        keys = [
            Key(READY, lambda: (folder / "review.md").write_bytes(b"\xff")),
            Key("", "/review it" + ENTER),
            Key("it is not UTF-8", lambda: (folder / "review.md").write_text("Review.")),
            Key("> /review it", ENTER),
            Key(AT_REST, CTRL_D),
        ]
        converse(home, project, server, keys)
        assert sent(server) == "Review.\n\nit"


@pytest.mark.sweep
def test_rules_and_servers_are_added_with_no_more_than_the_words(home: Home, project: Path) -> None:
    with ModelServer.in_thread([]) as server:
        keys = [
            Key(READY, "/permissions add allow --tool mcp.notes.add" + ENTER),
            Key("applies from the next start", "/permissions add deny -- git push" + ENTER),
            Key("permissions.rules[1]", "/mcp add notes -- /bin/notes --fast" + ENTER),
            Key("to try it", "/permissions explain -- git push" + ENTER),
            Key(re.compile(r"the model reads[\s\S]*sandbox off"), CTRL_D),
        ]
        scene = converse(home, project, server, keys, columns=100)
    assert "calls of mcp.notes.add, in every project" in words(scene)
    assert words(scene).count("applies from the next start") == 3
    config = tomllib.loads((home.path / "config.toml").read_text())
    assert config["permissions"]["rules"] == [
        {"decision": "allow", "tool": ["mcp.notes.add"]},
        {"decision": "deny", "command": ["git", "push"]},
    ]
    servers = json.loads((home.path / "mcp.json").read_text())["mcpServers"]
    assert servers["notes"]["args"] == ["--fast"]


@pytest.mark.sweep
def test_a_command_of_the_command_line_is_about_the_project_of_the_chat(
    home: Home, project: Path
) -> None:
    (project / "sub").mkdir()
    with ModelServer.in_thread([]) as server:
        keys = [
            Key(
                READY, '/permissions explain --tool code.read_file --args \'{"path":"a"}\'' + ENTER
            ),
            Key("because of", "/sessions list" + ENTER),
            Key(re.compile(r"there are no sessions of[\s\S]*sandbox off"), CTRL_D),
        ]
        scene = converse(home, project, server, keys, "--path", "sub", columns=400)
    assert f"paths {project}/sub/a" in words(scene)


@pytest.mark.sweep
def test_single_arguments_of_an_own_command(home: Home, project: Path) -> None:
    (project / "lamp.py").write_text("VOLTS = 230\n")
    (home.path / "commands").mkdir()
    (home.path / "commands" / "fix.md").write_text("Fix $1 in @$2, see:\n$3")
    text = "\n".join(f"line {number}" for number in range(30))
    with open_chat(home, project) as chat:
        chat.type("/fix 'the sum' lamp.py ", shows=Shown("lamp.py"))
        chat.type(pasted(text), shows="30 lines]")
        chat.pause()
        said = chat.send("")
    assert said.startswith(f"Fix the sum in @lamp.py, see:\n{text}")
    assert "\nVOLTS = 230\n" in said


@pytest.mark.sweep
def test_ctrl_c_ends_a_command_of_the_command_line(home: Home, project: Path) -> None:
    program, begun = project / "never-ready", project / "begun"
    program.write_text(f"#!/bin/sh\necho $$ > {begun}\nexec sleep 1000\n")
    program.chmod(0o755)
    with open_chat(home, project) as chat:
        chat.type(
            f"/mcp add slow -- {program}" + ENTER, shows=re.compile(rf"to try it[\s\S]*{READY}")
        )
        chat.type("/mcp test slow" + ENTER)
        while not (begun.exists() and begun.read_text().endswith("\n")):
            time.sleep(0.05)  # the server has not begun
        chat.type(CTRL_C, shows=re.compile(rf"interrupted[\s\S]*{READY}"))
        assert "once more leaves" not in chat.screen
        assert not Path(f"/proc/{begun.read_text().strip()}").exists()
        chat.type("hello" + ENTER, shows=re.compile(rf"Answer 1\.[\s\S]*{READY}"))
