"""Conversations in a real terminal: what is typed, what stands on the screen, what is sent."""

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent_core.providers.scripted import Hangs, Pauses, calls
from captures import Key, Shown
from chats import CTRL_C, CTRL_D, CTRL_U, ENTER, ESCAPE, READY, UP, converse, open_chat, sent
from isolation import Home
from model_server import ModelServer
from sweeps import kept, sampled

pytestmark = pytest.mark.timeout(90)

AT_REST = re.compile(r"The answer\.[\s\S]*\x1b\[J>")
"""The line is empty again, with nothing above it that is under way."""
AT_LAST = re.compile(rf"Carried on\.[\s\S]*{READY}")
ERASED = re.compile(r"\x1b\[[JK]")
"""The line has been erased; what stands below it may stay as it is."""


@pytest.mark.parametrize(
    "command", kept([("chat",), ()], ("chat",)), ids=kept(["chat", "alone"], "chat")
)
def test_messages_are_answered_in_one_session(
    home: Home, project: Path, command: Sequence[str]
) -> None:
    with ModelServer.in_thread(["The first answer.", "The second answer."]) as server:
        keys = [
            Key(READY, f"hello{ENTER}"),
            Key("first answer.", f"and now?{ENTER}"),
            Key("second answer.", CTRL_D),
        ]
        scene = converse(home, project, server, keys, command=command)
    assert scene.code == 0
    assert "> hello" in scene.text
    assert "continue: soong-agent chat --session-id sess_" in scene.text
    said = [each["content"] for each in server.requests[1].body["messages"][-3:]]
    assert said == ["hello", "The first answer.", "and now?"]


def test_a_file_and_the_output_of_a_command_are_sent(home: Home, project: Path) -> None:
    (project / "my notes.txt").write_text("remember the milk", encoding="utf-8")
    with ModelServer.in_thread(["Read it."]) as server:
        keys = [
            Key(READY, f"!echo from the shell; exit 3{ENTER}"),
            Key("with your next message", f'read @"my notes.txt" please{ENTER}'),
            Key("Read it.", CTRL_D),
        ]
        scene = converse(home, project, server, keys)
    assert "exit code 3" in scene.text
    message = sent(server)
    named = "a command of the user, echo from the shell; exit 3, which ended with exit code 3"
    assert f'<content from="{named}" boundary="' in message
    assert "\nfrom the shell\n</content" in message
    assert 'read @"my notes.txt" please' in message
    assert '<content from="the file my notes.txt" boundary="' in message
    assert "\nremember the milk\n</content" in message


@pytest.mark.sweep
def test_a_session_follows_its_renamed_folder(home: Home, project: Path) -> None:
    old, new = project / "old", project / "new"
    old.mkdir()
    with ModelServer.in_thread(["The answer.", "Again.", "Once more."]) as server:
        converse(home, old, server, [Key(READY, f"hello{ENTER}"), Key("The answer.", CTRL_D)])
        old.rename(new)
        told = converse(home, new, server, [Key(READY, CTRL_D)])
        named = re.search(r"session (\S+) works", told.text)
        assert named is not None
        advice = f"--session-id {named[1]} --move-session continues it here"
        assert advice in " ".join(told.text.split())
        there = converse(home, new, server, [Key(READY, CTRL_D)], "--session-id", named[1])
        move = rf"tomoveithere:soong-agentchat--session-id{named[1]}\w*--move-session"
        assert re.search(move, "".join(there.text.split()))
        assert "to continue it there" not in there.text, "its folder is gone"
        moved = converse(
            home,
            new,
            server,
            [Key(READY, f"and now?{ENTER}"), Key("Again.", f"more{ENTER}"), Key("Once", CTRL_D)],
            "--session-id",
            named[1],
            "--move-session",
        )
        assert moved.code == 0
        assert "hello" in [each["content"] for each in server.requests[1].body["messages"]]
    again = converse(home, new, server, [Key(READY, CTRL_D)], "--continue")
    assert "is gone" not in again.text


def test_ctrl_c_on_an_empty_line_says_how_to_leave_and_leaves(home: Home, project: Path) -> None:
    with ModelServer.in_thread([]) as server:
        keys = [Key(READY, CTRL_C), Key("once more leaves", CTRL_C)]
        scene = converse(home, project, server, keys)
    assert scene.code == 0


def test_without_a_terminal_run_is_named(home: Home, project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent_core.cli", "chat"],
        input="hello\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=home.env(),
        cwd=project,
    )
    assert done.returncode == 2
    assert "soong-agent run" in done.stderr


def test_plain_lines_where_nothing_can_be_drawn(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["The answer."]) as server:
        keys = [
            Key("> ", f"/help{ENTER}"),
            Key("lists the keys\r\n> ", f"/help keys{ENTER}"),
            Key(re.compile(r"Ctrl-D[\s\S]*\n> $"), f"hello{ENTER}"),
            Key("The answer.", CTRL_D),
        ]
        scene = converse(home, project, server, keys, "--plain")
    assert scene.code == 0
    assert b"\x1b" not in scene.raw
    assert b"Shift-Tab" not in scene.raw
    assert scene.raw.count(b"hello") == 1
    assert sent(server) == "hello"


@pytest.mark.sweep
def test_a_summary_shows_its_command_once(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["The answer.", "A summary."]) as server:
        keys = [
            Key(READY, f"hello{ENTER}"),
            Key(AT_REST, f"/compact{ENTER}"),
            Key(re.compile(rf"nothing to summarise[\s\S]*{READY}"), CTRL_D),
        ]
        scene = converse(home, project, server, keys)
    assert scene.raw.decode().count("> /compact") == 1


@pytest.mark.sweep
def test_a_summary_that_fails_says_so_once_and_one_that_works_is_measured(
    home: Home, project: Path
) -> None:
    long = "The login page is long. " * 200 + "The answer."
    summary = '{"summary": "They talked about the login page, at some length, in prose."}'
    with ModelServer.in_thread([long, "The answer.", "no", summary]) as server:
        keys = [
            Key(READY, f"first{ENTER}"),
            Key(AT_REST, f"second{ENTER}"),
            Key(AT_REST, f"/compact{ENTER}"),
            Key("without a summary", f"/compact{ENTER}"),
            Key(Shown(r"has been summarised[\s\S]* 1,\d{3}/32\.0k"), f"/undo{ENTER}"),
            Key(Shown(r"taken back: second \(/redo[\s\S]* 2,\d{3}/32\.0k"), CTRL_U + CTRL_D),
        ]
        config = "[compact]\nkeep_recent_tokens = 1000\n"
        scene = converse(home, project, server, keys, config=config)
    assert scene.text.count("without a summary") == 1


@pytest.mark.parametrize("kind", kept(["file", "postgres"], "file"))
def test_what_waits_is_shown_taken_back_and_sent(
    home: Home, project: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("database_url") if kind == "postgres" else ""
    with ModelServer.in_thread([Hangs(), "Answered."]) as server:
        keys = [
            Key(READY, f"first{ENTER}"),
            Key("> first", f"second{ENTER}"),
            Key("waiting: second", f"third{ENTER}"),
            Key("waiting: third", UP),
            Key(Shown("> third"), f" and more{CTRL_C}"),
            Key("cancelled", ENTER),
            Key("Answered.", CTRL_D),
        ]
        scene = converse(home, project, server, keys, database_url=url)
    assert scene.code == 0
    assert sent(server) == "second\nthird and more"


@pytest.mark.sweep
@pytest.mark.parametrize("kind", kept(["file", "postgres"], "file"))
def test_what_waits_is_not_sent_when_the_user_leaves(
    home: Home, project: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("database_url") if kind == "postgres" else ""
    with ModelServer.in_thread([Hangs(), "Never asked for.", "Neither."]) as server:
        keys = [
            Key(READY, f"first{ENTER}"),
            Key("> first", f"second{ENTER}"),
            Key("waiting: second", f"third{ENTER}"),
            Key("waiting: third", CTRL_D),
        ]
        scene = converse(home, project, server, keys, database_url=url)
    assert scene.code == 0
    assert scene.text.index("not delivered: second") < scene.text.index("not delivered: third")
    assert len(server.requests) <= 1


def test_a_message_typed_meanwhile_is_read_after_the_next_step(home: Home, project: Path) -> None:
    started, go = project / "started", project / "go"
    wait = f"touch {started}; while [ ! -e {go} ]; do sleep 0.05; done"
    script = [calls("code.run_command", argv=["sh", "-c", wait]), "Answered.", "Afterwards."]
    with ModelServer.in_thread(script) as server:
        keys = [
            Key(READY, f"first{ENTER}"),
            Key("y once", "y"),
            Key("sh -c", f"rather this{ENTER}"),
            Key("waiting: rather this", f"/queue later{ENTER}"),
            Key("queued: later", go.touch),
            Key(re.compile(r"> rather this[\s\S]*Answered\.[\s\S]*Afterwards\."), CTRL_D),
        ]
        scene = converse(home, project, server, keys)
        assert scene.code == 0
        bodies = [request.body["messages"] for request in server.requests]
    assert [message["role"] for message in bodies[1]][-2:] == ["tool", "user"]
    assert bodies[1][-1]["content"] == "rather this"
    assert bodies[2][-1]["content"] == "later"


@pytest.mark.sweep
def test_escape_cancels_the_run_and_what_it_has_not_read_comes_back(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread([Hangs(), "Answered."]) as server:
        keys = [
            Key(READY, f"first{ENTER}"),
            Key("> first", f"second{ENTER}"),
            Key("waiting: second", "\x1bxyz"),  # Alt-x cancels nothing
            Key("xyz", "\x15\x1b"),
            Key("cancelled", ENTER),
            Key("Answered.", CTRL_D),
        ]
        scene = converse(home, project, server, keys)
    assert scene.code == 0
    assert sent(server) == "second"


@pytest.mark.sweep
def test_a_question_keeps_what_is_being_typed(home: Home, project: Path) -> None:
    script = [calls("code.write_file", path="b.txt", content="new\n"), "Written."]
    with ModelServer.in_thread([Pauses(seconds=1.0), *script, "Done."]) as server:
        keys = [
            Key(READY, f"write{ENTER}"),
            Key("> write", "half a"),
            Key("y once", "y"),
            Key("Written.", f" message{ENTER}"),
            Key("Done.", CTRL_D),
        ]
        converse(home, project, server, keys)
    assert (project / "b.txt").read_text() == "new\n"
    assert sent(server) == "half a message"


def test_plan_mode_refuses_what_would_change_something(home: Home, project: Path) -> None:
    script = [calls("code.write_file", path="b.txt", content="new\n"), "A plan."]
    with ModelServer.in_thread(script) as server:
        keys = [
            Key(READY, "/mode plan" + ENTER),
            Key("answers with a plan", f"write{ENTER}"),
            Key("A plan.", CTRL_D),
        ]
        converse(home, project, server, keys)
    assert not (project / "b.txt").exists()


@pytest.mark.parametrize(
    "key", kept([ESCAPE, f"?{ESCAPE}"], ESCAPE), ids=kept(["alone", "behind the help"], "alone")
)
def test_escape_and_ctrl_c_at_a_question_cancel_the_run_and_keep_the_conversation(
    home: Home, project: Path, key: str
) -> None:
    asks = calls("code.write_file", path="b.txt", content="new\n")
    with ModelServer.in_thread([asks, asks, "Answered."]) as server:
        keys = [Key(READY, f"write{ENTER}"), *(Key("? help", each) for each in key)]
        keys += [
            Key("cancelled", f"write again{ENTER}"),
            Key("? help", CTRL_C),
            Key("cancelled", f"go on{ENTER}"),
            Key("Answered.", CTRL_D),
        ]
        scene = converse(home, project, server, keys)
    assert scene.code == 0
    assert not (project / "b.txt").exists()
    assert scene.text.count("code.write_file create b.txt (4 bytes)  not run\ncancelled\n") == 2
    assert "before this call began" not in scene.text
    assert "not one of the keys" not in scene.text
    assert sent(server) == "go on"


@pytest.mark.sweep
def test_the_last_call_is_shown_with_its_error(home: Home, project: Path) -> None:
    with ModelServer.in_thread([calls("code.read_file", path="no.txt"), "Answered."]) as server:
        keys = [
            Key(READY, f"read{ENTER}"),
            Key("Answered.", f"/last{ENTER}"),
            Key(re.compile(rf"error: no.txt[\s\S]*{READY}"), CTRL_D),
        ]
        converse(home, project, server, keys)


def test_an_export_without_a_name_is_a_file_of_its_kind_outside_the_project(
    home: Home, project: Path
) -> None:
    kinds = {"": "html", " markdown": "md", " --jsonl": "jsonl", " fixture": "yaml"}
    with ModelServer.in_thread(["Answered."]) as server:
        written = re.compile(rf"wrote\s[\s\S]*{READY}")
        keys = [
            Key(READY, f"hello{ENTER}"),
            Key(re.compile(rf"Answered\.[\s\S]*{READY}"), f"/export{ENTER}"),
            *(Key(written, f"/export{kind}{ENTER}") for kind in kinds if kind),
            Key(written, f"/export{ENTER}"),
            Key(written, f"/export talk.md{ENTER}"),
            Key(written, CTRL_D),
        ]
        scene = converse(home, project, server, keys, "--session-id", "s1")
    assert scene.code == 0
    names = {f"s1.{end}" for end in kinds.values()} | {"s1-2.html"}
    assert {each.name for each in (home.path / "exports").iterdir()} == names
    assert str(home.path / "exports") in scene.text.replace("\n", "")
    (named,) = project.iterdir()  # in the folder where the chat was started
    assert named.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.sweep
@pytest.mark.parametrize("columns", sampled([57, 58, 59, 60], keep=1))
def test_a_list_breaks_between_words(home: Home, project: Path, columns: int) -> None:
    with ModelServer.in_thread([]) as server:
        keys = [
            Key(READY, f"/agents{ENTER}"),
            Key(re.compile(rf"default_worker_agent[\s\S]*{READY}"), CTRL_D),
        ]
        scene = converse(home, project, server, keys, columns=columns)
    said = "Continues from this conversation on a task of its own and reports back."
    assert said in " ".join(scene.text.split())


@pytest.mark.sweep
def test_undo_and_redo_say_what_they_did_without_ids(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["Written."]) as server:
        keys = [
            Key(READY, f"/redo{ENTER}"),
            Key("no message yet", f"write{ENTER}"),
            Key("Written.", f"/undo{ENTER}"),
            Key(re.compile(rf"taken back: write \(/redo[\s\S]*{READY}"), f"/redo{ENTER}"),
            Key(re.compile(rf"and its changes are back[\s\S]*{READY}"), f"/redo{ENTER}"),
            Key(re.compile(rf"nothing to redo[\s\S]*{READY}"), CTRL_D),
        ]
        scene = converse(home, project, server, keys)
    shown = scene.text.partition("continue: ")[0]
    assert not re.search(r"(sess|node|snap)_", shown)


@pytest.mark.long
def test_undo_brings_the_message_back_to_the_line(home: Home, project: Path) -> None:
    script = [calls("code.write_file", path="b.txt", content="new\n"), "Written.", "Again."]
    with ModelServer.in_thread(script) as server:
        keys = [
            Key(READY, f"/mode accept-edits{ENTER}"),
            Key("without asking", f"write{ENTER}"),
            Key("Written.", f"/undo{ENTER}"),
            Key("deleted: b.txt", f" it{ENTER}"),
            Key("Again.", CTRL_D),
        ]
        converse(home, project, server, keys)
    assert not (project / "b.txt").exists()
    assert sent(server) == "write it"


def send_signal(pid: Path, number: signal.Signals) -> None:
    """Signal the conversation that wrote its process id there."""
    os.kill(int(pid.read_text(encoding="utf-8")), number)


@pytest.mark.sweep
def test_what_was_queued_when_the_process_was_killed_is_sent_first(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread([Hangs(), "One.", "Two.", "Three."]) as server:
        pid = project / "pid"
        keys = [
            Key(READY, f"!echo $PPID > pid{ENTER}"),
            Key("with your next message", f"first{ENTER}"),
            Key("> first", f"/queue second{ENTER}"),
            Key("queued: second", f"/queue third{ENTER}"),
            Key("queued: third", lambda: send_signal(pid, signal.SIGKILL)),
        ]
        killed = converse(home, project, server, keys)
        assert killed.code == -signal.SIGKILL
        keys = [
            Key("before your next message: third", f"fourth{ENTER}"),
            Key("Three.", CTRL_D),
        ]
        scene = converse(home, project, server, keys, "--continue")
    shown = scene.text
    assert shown.index("> second") < shown.index("One.") < shown.index("> third")
    assert shown.index("Two.") < shown.index("> fourth") < shown.index("Three.")
    said = [each["content"] for each in server.requests[-1].body["messages"]]
    assert [text for text in said if text in {"second", "third", "fourth"}] == [
        "second",
        "third",
        "fourth",
    ]


@pytest.mark.sweep
def test_what_a_killed_process_had_queued_is_named_and_can_be_dropped(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread([Hangs(), "The answer."]) as server:
        pid = project / "pid"
        keys = [
            Key(READY, f"!echo $PPID > pid{ENTER}"),
            Key("with your next message", f"first{ENTER}"),
            Key("> first", f"/queue second{ENTER}"),
            Key("queued: second", lambda: send_signal(pid, signal.SIGKILL)),
        ]
        converse(home, project, server, keys)
        keys = [Key(re.compile(rf"message: second[\s\S]*{READY}"), CTRL_D)]
        scene = converse(home, project, server, keys, "--continue")
        (run_id,) = re.findall(r"to drop it: soong-agent cancel (run_\w+)\n", scene.text)
        subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "agent_core.cli", "cancel", run_id],
            env=home.env(),
            timeout=60,
            check=True,
        )
        keys = [Key(READY, f"third{ENTER}"), Key(AT_REST, CTRL_D)]
        scene = converse(home, project, server, keys, "--continue")
        assert "before your next message" not in scene.text
        assert sent(server) == "third"
        assert "second" not in server.requests[-1].text


def test_a_message_that_a_killed_process_had_not_delivered_is_on_the_line_again(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread(["Answered.", Hangs(), "At last."]) as server:
        pid = project / "pid"
        keys = [
            Key(READY, f"!echo $PPID > pid{ENTER}"),
            Key("with your next message", f"first{ENTER}"),
            Key("Answered.", f"second{ENTER}"),
            Key("> second", f"do not lose me{ENTER}"),
            Key("waiting: do not lose me", lambda: send_signal(pid, signal.SIGKILL)),
        ]
        assert converse(home, project, server, keys).code == -signal.SIGKILL
        keys = [Key(re.compile(r"not sent: do not lose me\s[\s\S]*> "), CTRL_D)]
        scene = converse(home, project, server, keys, "--continue", "--plain")
        assert "on the line again" not in scene.text, "nothing can be put on it"
        restored = re.compile(r"on the line again[\s\S]*lose me")
        for keys in (  # it stays stored until it is sent
            [Key(restored, CTRL_C + CTRL_D)],
            [Key(restored, ENTER), Key("At last.", CTRL_D)],
            [Key(re.compile(rf"At last\.[\s\S]*{READY}"), CTRL_D)],
        ):
            scene = converse(home, project, server, keys, "--continue")
        assert sent(server) == "do not lose me"
        assert "on the line again" not in scene.text


@pytest.mark.parametrize(
    ("number", "code"),
    kept([(signal.SIGTERM, 143), (signal.SIGHUP, 129)], (signal.SIGTERM, 143)),
    ids=kept(["term", "hup"], "term"),
)
def test_a_signal_ends_the_run_in_order(
    home: Home, project: Path, number: signal.Signals, code: int
) -> None:
    with ModelServer.in_thread([Hangs()]) as server:
        pid = project / "pid"
        keys = [
            Key(READY, f"!echo $PPID > pid{ENTER}"),
            Key("with your next message", f"first{ENTER}"),
            Key(
                "waiting for the model",
                lambda: send_signal(pid, number),
            ),
        ]
        scene = converse(home, project, server, keys)
    assert scene.code == code
    assert "cancelled" in scene.text
    listed = subprocess.run(
        [sys.executable, "-m", "agent_core.cli", "sessions", "list", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=home.env(),
        cwd=project,
    )
    assert '"status": "cancelled"' in listed.stdout or '"cancelled"' in listed.stdout


@pytest.mark.parametrize(
    "number", kept([signal.SIGTERM, signal.SIGHUP], signal.SIGHUP), ids=kept(["term", "hup"], "hup")
)
def test_a_draft_survives_a_closed_terminal(
    home: Home, project: Path, number: signal.Signals
) -> None:
    with ModelServer.in_thread(["The answer."]) as server:
        pid = project / "pid"
        keys = [
            Key(READY, f"!echo $PPID > pid{ENTER}"),
            Key("with your next message", "half a 草稿"),
            Key("half a 草稿", lambda: send_signal(pid, number)),
        ]
        converse(home, project, server, keys)
        keys = [Key(READY, UP), Key("half a 草稿", ENTER), Key(AT_REST, CTRL_D)]
        assert converse(home, project, server, keys).code == 0
        assert sent(server).endswith("half a 草稿")


def test_ctrl_c_cancels_and_twice_leaves_while_a_run_works(home: Home, project: Path) -> None:
    with ModelServer.in_thread([Hangs()]) as server:
        keys = [
            Key(READY, f"first{ENTER}"),
            Key("waiting for the model", CTRL_C + CTRL_C),
        ]
        scene = converse(home, project, server, keys)
    assert scene.code == 130
    assert "continue: soong-agent" in scene.text


@pytest.mark.sweep
def test_ctrl_c_ends_a_command_of_the_user(home: Home, project: Path) -> None:
    with ModelServer.in_thread([]) as server:
        keys = [
            Key(READY, f"!printf be%s gun; sleep 60{ENTER}"),
            Key("begun", CTRL_C),
            Key(re.compile(r"\[interrupted\][\s\S]*with your next message"), CTRL_D),
        ]
        scene = converse(home, project, server, keys)
    assert scene.code == 0


@pytest.mark.sweep
def test_what_a_command_leaves_in_the_background_holds_up_nothing(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread(["Read it."]) as server:
        keys = [
            Key(READY, f"!setsid sleep 40 & echo $! > pid; echo begun{ENTER}"),
            Key("with your next message", f"hello{ENTER}"),
            Key("Read it.", CTRL_D),
        ]
        scene = converse(home, project, server, keys)
    os.kill(int((project / "pid").read_text(encoding="utf-8")), signal.SIGKILL)  # it has gone on
    assert scene.code == 0
    assert "\nbegun\n</content" in sent(server)


def test_several_lines_and_large_pastes_are_sent_whole(home: Home, project: Path) -> None:
    pasted = "\r\n".join(f"row {number}" for number in range(40))
    with ModelServer.in_thread(["First.", "Second."]) as server:
        keys = [
            Key(READY, f"one{ESCAPE}{ENTER}two\\{ENTER}three{ENTER}"),
            Key("First.", f"\x1b[200~{pasted}\x1b[201~"),
            Key("[pasted text 1: 40 lines]", f" what?{ENTER}"),
            Key("Second.", CTRL_D),
        ]
        converse(home, project, server, keys)
    assert sent(server, 0) == "one\ntwo\nthree"
    assert sent(server) == pasted.replace("\r\n", "\n") + " what?"


@pytest.mark.sweep
def test_what_was_entered_is_searched_back(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["One.", "Two.", "Three."]) as server:
        keys = [
            Key(READY, f"mend the Cart{ENTER}"),
            Key("One.", f"something else{ENTER}"),
            Key("Two.", "\x12"),
            Key("search back:", f"cart{ENTER}{ENTER}"),
            Key("Three.", CTRL_D),
        ]
        converse(home, project, server, keys)
    assert sent(server) == "mend the Cart"


@pytest.mark.sweep
def test_a_fork_says_how_to_go_on_in_it(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["Fine."]) as server:
        keys = [
            Key(READY, f"hello{ENTER}"),
            Key("Fine.", f"/fork{ENTER}"),
            Key(f"soong-agent chat --path {project}-fork", CTRL_D),
        ]
        scene = converse(home, project, server, keys, columns=200)
    folder = f"{project}-fork"
    shown = " ".join(scene.text.split())
    assert (
        f"another session begins in {folder}; its next message follows the answer: Fine." in shown
    )
    found = re.search(rf"--path {folder} --session-id (sess_\w+)", scene.text)
    assert found
    assert len(found[1]) < 20
    with ModelServer.in_thread(["Carried on."]) as server:
        keys = [Key(READY, f"and now{ENTER}"), Key(AT_LAST, CTRL_D)]
        scene = converse(home, Path(folder), server, keys, "--session-id", found[1])
        assert len(server.requests[-1].body["messages"]) == 4
    assert f"continue: soong-agent chat --session-id {found[1]}\n" in f"{scene.text}\n"


@pytest.mark.sweep
def test_a_switch_names_what_the_next_message_follows(home: Home, project: Path) -> None:
    with open_chat(home, project) as chat:
        for message in ("first", "second"):
            chat.send(message)
            chat.pause()
        chat.type(f"/tree{ENTER}", shows=Shown(r"\[node_\w+\]  ?first[^\0]*continues here"))
        chat.pause()
        node = re.findall(r"\[(node_\w+)\]", chat.screen)[0]
        chat.type(
            f"/switch {node}{ENTER}",
            shows=Shown(rf"the next message follows your message: first\s+> *\n.*{READY}"),
        )
        chat.pause()


@pytest.mark.sweep
@pytest.mark.parametrize(("other", "meant"), [("continue", "resume"), ("usage", "cost")])
def test_the_words_of_other_programs_are_known(
    home: Home, project: Path, other: str, meant: str
) -> None:
    with ModelServer.in_thread([]) as server:
        keys = [
            Key(READY, f"/{other}{ENTER}"),
            Key(f"there is no command /{other} (did you mean /{meant}?)", CTRL_D),
        ]
        assert converse(home, project, server, keys).code == 0


@pytest.mark.long
def test_what_was_entered_is_kept_without_secrets(home: Home, project: Path) -> None:
    secret = "sk-" + "proj4567890123456789012345678901"  # made up
    with ModelServer.in_thread(["Hello.", "Again."]) as server:
        keys = [Key(READY, f"my key is {secret}{ENTER}"), Key("Hello.", CTRL_D)]
        converse(home, project, server, keys)
        file = home.path / "chat_history.jsonl"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "my key is" in file.read_text()
        assert secret not in file.read_text()
        converse(home, project, server, [Key(READY, f"{UP}!{ENTER}"), Key("Again.", CTRL_D)])
    assert sent(server).startswith("my key is ")
    assert secret not in sent(server)


@pytest.mark.sweep
def test_ignored_files_are_not_offered_and_names_with_spaces_are_quoted(
    home: Home, project: Path
) -> None:
    (project / ".gitignore").write_text("*.log\n")
    (project / "report.log").write_text("x")
    (project / "report one.txt").write_text("all is well")
    with ModelServer.in_thread(["Read."]) as server:
        keys = [
            Key(READY, "look at @repo"),
            Key(" report one.txt", "\t"),
            Key('"report one.txt"', CTRL_C),
            Key(ERASED, f'look at @"report one.txt"{ENTER}'),
            Key("Read.", CTRL_D),
        ]
        scene = converse(home, project, server, keys)
    assert "report.log" not in scene.raw.decode()
    assert "all is well" in sent(server)


def test_a_sensitive_file_is_not_sent(home: Home, project: Path) -> None:
    (project / ".env").write_text("TOKEN=abc")
    with ModelServer.in_thread(["No."]) as server:
        keys = [Key(READY, f"see @.env{ENTER}"), Key("No.", CTRL_D)]
        scene = converse(home, project, server, keys)
    assert "not attached: .env" in scene.text
    assert sent(server) == "see @.env"


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("env", "ready", "answer"),
    kept(
        [({"TERM": "dumb"}, "> ", f"y{ENTER}"), ({"NO_COLOR": "1"}, READY, "y")],
        ({"TERM": "dumb"}, "> ", f"y{ENTER}"),
    ),
    ids=kept(["dumb", "no-colour"], "dumb"),
)
def test_a_question_on_a_terminal_without_colours(
    home: Home, project: Path, env: dict[str, str], ready: str, answer: str
) -> None:
    script = [calls("code.write_file", path="b.txt", content="new\n"), "Written."]
    with ModelServer.in_thread(script) as server:
        keys = [
            Key(ready, f"write{ENTER}"),
            Key("? help", answer),
            Key("Written.", CTRL_D),
        ]
        scene = converse(home, project, server, keys, env=env)
    assert scene.code == 0
    assert (project / "b.txt").exists()
    assert re.search(rb"\x1b\[[0-9;]*3[0-9][0-9;]*m", scene.raw) is None


@pytest.mark.sweep
def test_the_calls_of_a_child_are_shown_as_in_a_run(home: Home, project: Path) -> None:
    (project / "a.txt").write_text("one\n")
    script = [
        calls("agent.create_sub_agent", task="Look at a.txt."),
        calls("code.read_file", path="a.txt"),
        "It says one.",
        "The answer.",
    ]
    with ModelServer.in_thread(script) as server:
        keys = [Key(READY, f"look{ENTER}"), Key(AT_REST, CTRL_D)]
        scene = converse(home, project, server, keys)
    assert scene.code == 0
    lines = (
        "started: default_sub_agent, Look",
        "● default_sub_agent: code.read",
        "finished",
    )
    places = [scene.text.index(line) for line in lines]
    assert places == sorted(places)


@pytest.mark.sweep
def test_the_answers_of_a_chat_are_listed_beside_the_rules(home: Home, project: Path) -> None:
    script = [calls("code.write_file", path="b.txt", content="new\n"), "Written."]
    with ModelServer.in_thread(script) as server:
        keys = [
            Key(READY, f"/permissions{ENTER}"),
            Key("there is no stored answer", f"write{ENTER}"),
            Key("? help", "a"),
            Key("Written.", f"/permissions{ENTER}"),
            Key("this session  code.write_file: ", f"/permissions list{ENTER}"),
            Key("this session  code.write_file: ", CTRL_D),
        ]
        scene = converse(home, project, server, keys, columns=200)
    assert scene.code == 0
    assert scene.text.count("there is no stored answer") == 1


def test_commands_and_modes_are_completed_and_corrected(home: Home, project: Path) -> None:
    with ModelServer.in_thread([]) as server:
        keys = [
            Key(READY, "/perm"),
            Key("/permissions  rules", CTRL_C),
            Key(READY, f"/model nonsense{ENTER}"),
            Key("a model string must be", f"/mode plna{ENTER}"),
            Key("did you mean plan", CTRL_D),
        ]
        assert converse(home, project, server, keys, columns=120, rows=60).code == 0


@pytest.mark.sweep
def test_the_word_chat_may_be_left_out(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["The answer."] * 3) as server:
        for given in (["first message"], ["--continue"], ["--mode", "plan", "second message"]):
            typed = [Key(READY, "more" + ENTER)] if given == ["--continue"] else []
            keys = [*typed, Key(AT_REST, CTRL_D)]
            scene = converse(home, project, server, keys, *given, command=())
            assert scene.code == 0
        assert [sent(server, number) for number in (0, 1)] == ["first message", "more"]
        assert sent(server, 2).endswith("second message")
        assert "first message" in server.requests[1].text


def test_a_command_comes_before_its_options(home: Home, project: Path) -> None:
    with ModelServer.in_thread([]) as server:
        scene = converse(home, project, server, [], "--mode", "plan", "run", "it", command=())
    assert scene.code == 2
    assert "error: the command comes first: soong-agent run …" in scene.text
