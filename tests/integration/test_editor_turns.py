"""The prompts of one session in an editor: their order, their end, and what a refusal leaves."""

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import Calls, Hangs, Says, ScriptedCall, calls
from editors import WAIT_S, Editor, EditorError, text_of
from isolation import Home
from model_server import ModelServer, Received, Reply, Status
from sweeps import kept, paired

LONG = "word " * 60_000
"""Much more than a pipe holds."""


def configured(home: Home, server: ModelServer, more: str = "") -> Home:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        f"context_window = 1000000\n[memory]\nenabled = false\n{more}\n"
    )
    return home


def of_kind(updates: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in updates if each["sessionUpdate"] == kind]


def wait_for(editor: Editor, happened: Callable[[], bool]) -> None:
    """Wait without reading until something has happened elsewhere."""
    while not happened():
        assert editor.process.poll() is None, editor.errors
        time.sleep(0.01)


def story(editor: Editor, session_id: str) -> list[str]:
    """The order of everything: the text of messages, joined, and the answers to prompts."""
    told: list[str] = []
    is_text = False
    for message in editor.messages:
        params = message.get("params", {})
        update = params.get("update", {})
        if update.get("sessionUpdate") == "agent_message_chunk":
            assert params["sessionId"] == session_id
            if not is_text:
                told.append("")
            told[-1] += update["content"]["text"]
            is_text = True
        elif "method" not in message and "stopReason" in (message.get("result") or {}):
            told.append(f"-> {message['result']['stopReason']}")
            is_text = False
        elif update.get("sessionUpdate") == "tool_call":
            is_text = False
    return told


@pytest.mark.sweep
def test_all_of_a_prompt_comes_before_its_answer_and_only_then_the_next(
    home: Home, project: Path
) -> None:
    with (
        ModelServer.in_thread([LONG, "two", "three"]) as server,
        Editor(configured(home, server)) as it,
    ):
        session_id = it.open(project)
        it.stop_reading()
        numbers = [it.begin(session_id, text) for text in ("first", "second", "third")]
        wait_for(it, lambda: len(server.requests) == 3)  # all are at work, and nothing is read
        it.read_on()
        reasons = [it.finish(number).stop_reason for number in numbers]
        told = story(it, session_id)
    assert reasons == ["end_turn"] * 3
    assert told == [LONG, "-> end_turn", "two", "-> end_turn", "three", "-> end_turn"]


@pytest.mark.sweep
def test_prompts_begin_in_the_order_in_which_they_came(home: Home, project: Path) -> None:
    def answer(asked: Received) -> Reply:
        said = [each["content"] for each in asked.body["messages"] if each["role"] == "user"]
        return f"to {said[-1]}. "

    with ModelServer.in_thread(answer) as server, Editor(configured(home, server)) as it:
        session_id = it.open(project)
        numbers = [it.begin(session_id, f"number {number}") for number in range(20)]
        for number in numbers:
            assert it.finish(number).stop_reason == "end_turn"
        told = story(it, session_id)
    assert told[::2] == [f"to number {number}. " for number in range(20)]


@pytest.mark.sweep
def test_a_prompt_after_a_cancellation_is_not_cancelled(home: Home, project: Path) -> None:
    with (
        ModelServer.in_thread([Hangs(text="so far"), "again"]) as server,
        Editor(configured(home, server)) as it,
    ):
        session_id = it.open(project)
        first = it.begin(session_id, "slow")
        it.until(lambda: text_of(it.updates))
        it.notify("session/cancel", sessionId=session_id)
        second = it.begin(session_id, "more")
        assert it.finish(first).stop_reason == "cancelled"
        assert it.finish(second).stop_reason == "end_turn"
        told = story(it, session_id)
    assert told == ["so far", "-> cancelled", "again", "-> end_turn"]


def test_a_cancellation_ends_everything_that_was_asked_for(home: Home, project: Path) -> None:
    with (
        ModelServer.in_thread([Hangs(text="so far"), "again"]) as server,
        Editor(configured(home, server)) as it,
    ):
        session_id = it.open(project)
        numbers = [it.begin(session_id, text) for text in ("slow", "more", "/undo", "/compact")]
        it.until(lambda: text_of(it.updates))
        it.notify("session/cancel", sessionId=session_id)
        reasons = [it.finish(number).stop_reason for number in numbers]
        assert it.prompt(session_id, "after").text == "again"
    assert reasons == ["cancelled"] * 4
    assert len(server.requests) == 2


@pytest.mark.sweep
def test_a_cancelled_request_is_shown_to_its_end_and_cancels_no_other(
    home: Home, project: Path
) -> None:
    run = calls("code.run_command", argv=["sleep", "60"])
    with (
        ModelServer.in_thread([run, "after"]) as server,
        Editor(configured(home, server)) as it,
    ):
        session_id = it.open(project)
        numbers = [it.begin(session_id, text) for text in ("run it", "never begins", "go on")]
        it.until(lambda: "in_progress" in statuses(it))
        for number in (numbers[1], numbers[0]):
            it.notify("$/cancel_request", requestId=number)
            with pytest.raises(EditorError, match="cancelled") as error:
                it.finish(number)
            assert error.value.code == -32800
        assert statuses(it)[-1] == "failed"
        assert it.finish(numbers[2]).text == "after"


def statuses(editor: Editor) -> list[str]:
    return [each["status"] for each in of_kind(editor.updates, "tool_call_update")]


@pytest.mark.sweep
def test_a_question_comes_after_the_answer_to_the_prompt_before(home: Home, project: Path) -> None:
    run = calls("code.run_command", argv=["touch", "made"])
    with (
        ModelServer.in_thread([LONG, run, "done"]) as server,
        Editor(configured(home, server)) as it,
    ):
        session_id = it.open(project)
        it.stop_reading()
        numbers = [it.begin(session_id, text) for text in ("first", "second")]
        wait_for(it, lambda: len(server.requests) == 2)
        it.read_on()
        assert [it.finish(number).stop_reason for number in numbers] == ["end_turn"] * 2
        (asked,) = it.asked
    answered = next(at for at, each in enumerate(it.messages) if each.get("id") == numbers[0])
    begun = [
        at
        for at, each in enumerate(it.messages)
        if each.get("params", {}).get("update", {}).get("sessionUpdate") == "tool_call"
    ]
    assert answered < begun[0] < it.messages.index(asked)


@pytest.mark.sweep
def test_an_editor_that_reads_nothing_can_leave_with_prompts_in_the_queue(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread([LONG] * 20) as server:
        it = Editor(configured(home, server))
        session_id = it.open(project)
        it.stop_reading()
        for number in range(20):
            it.begin(session_id, f"number {number}")
        wait_for(it, lambda: len(server.requests) >= 2)
        assert it.process.stdin is not None
        it.process.stdin.close()
        assert it.process.wait(WAIT_S) == 0
        it.kill()


@pytest.mark.parametrize("method", kept(["close", "delete", "load", "resume"], "close", "delete"))
def test_whatever_ends_a_run_answers_its_prompt_as_cancelled(
    home: Home, project: Path, method: str
) -> None:
    with (
        ModelServer.in_thread(["before", Hangs(text=LONG), "after"]) as server,
        Editor(configured(home, server)) as it,
    ):
        session_id = it.open(project)
        it.prompt(session_id, "stored")
        it.stop_reading()
        numbers = [it.begin(session_id, text) for text in ("slow", "more")]
        wait_for(it, lambda: len(server.requests) == 2)
        reopens = method in {"load", "resume"}
        more: dict[str, Any] = {"cwd": str(project), "mcpServers": []} if reopens else {}
        asked = it.ask(f"session/{method}", sessionId=session_id, **more)
        wait_for(it, server.disconnected.is_set)  # the run is cancelled
        it.read_on()
        assert [it.finish(number).stop_reason for number in numbers] == ["cancelled"] * 2
        it.result(asked)
        if reopens:
            assert it.prompt(session_id, "and now").text == "after"
        else:
            with pytest.raises(EditorError, match="there is no session"):
                it.prompt(session_id, "and now")
        listed = [each["sessionId"] for each in it.request("session/list")["sessions"]]
        answered = [each.get("id") for each in it.messages if "method" not in each]
    assert (session_id in listed) is (method != "delete")
    if reopens:  # everything that was said before, then what is loaded
        assert answered.index(numbers[1]) < answered.index(asked)


@pytest.mark.sweep
def test_a_loaded_session_is_shown_whole_after_the_end_of_its_run(
    home: Home, project: Path
) -> None:
    with (
        ModelServer.in_thread(["before", Hangs(text="so far"), "after"]) as server,
        Editor(configured(home, server)) as it,
    ):
        session_id = it.open(project)
        it.prompt(session_id, "stored")
        number = it.begin(session_id, "slow")
        it.until(lambda: "so fa" in text_of(it.updates))
        asked = it.ask(
            "session/load", sessionId=session_id, cwd=str(project), mcpServers=list[str]()
        )
        assert it.finish(number).stop_reason == "cancelled"
        before = len(it.updates)
        later = it.begin(session_id, "and now")
        it.result(asked)
        shown = it.updates[before:]
        assert it.finish(later).text == "after"
    assert text_of(shown, "user_message_chunk") == "storedslow"
    assert text_of(shown) == "before"


REFUSED: dict[str, dict[str, Any]] = {
    "another project": {"cwd": "{other}"},
    "a relative folder": {"cwd": "here"},
    "no folder": {"cwd": "{project}/nowhere"},
    "a server that cannot be used": {
        "mcpServers": [{"type": "acp", "serverId": "1", "name": "of the editor"}]
    },
}


@pytest.mark.parametrize(
    ("method", "reason"),
    kept(
        paired(["load", "resume"], [*REFUSED, "a broken database", "a broken configuration"]),
        ("load", "a broken database"),
    ),
)
def test_a_refused_request_leaves_the_session_and_its_run_as_they_are(
    home: Home, project: Path, tmp_path: Path, method: str, reason: str
) -> None:
    run = calls("code.run_command", argv=["touch", "made"])
    with (
        ModelServer.in_thread(["before", run, "done", "more"]) as server,
        Editor(configured(home, server)) as it,
    ):
        session_id = it.open(project)
        it.prompt(session_id, "stored")
        number = it.begin(session_id, "run it")
        asked = it.until_asked()
        params: dict[str, Any] = {"cwd": str(project), "mcpServers": []}
        for name, value in REFUSED.get(reason, {}).items():
            if isinstance(value, str):
                value = value.format(other=tmp_path, project=project)
            params[name] = value
        if reason == "a broken configuration":
            home.write_config("[model\n")
        if reason == "a broken database":
            with sqlite3.connect(home.path / "sessions.sqlite") as database:
                database.execute("UPDATE nodes SET content_json = content_json || '!'")
        with pytest.raises(EditorError):
            it.request(f"session/{method}", sessionId=session_id, **params)
        assert it.cancelled == []
        if reason == "a broken database":
            with sqlite3.connect(home.path / "sessions.sqlite") as database:
                database.execute("UPDATE nodes SET content_json = rtrim(content_json, '!')")
        it.decide(asked, "allow_once")
        reply = it.finish(number)
        assert (reply.stop_reason, reply.text) == ("end_turn", "done")
        assert it.prompt(session_id, "go on").text == "more"
    assert (project / "made").exists()


@pytest.mark.long
def test_a_message_has_one_id_live_and_loaded(home: Home, project: Path) -> None:
    look = Calls(calls=[ScriptedCall(name="code.list_dir", arguments={"path": "."})], text="I look")
    replies = [look, Says(text="empty", reasoning="let me see"), "two", Hangs(text="cut off")]
    with ModelServer.in_thread(replies) as server, Editor(configured(home, server)) as it:
        session_id = it.open(project)
        it.prompt(session_id, "first")
        it.prompt(session_id, "second")
        live = list(it.updates)
        number = it.begin(session_id, "third")
        it.until(lambda: "cut of" in text_of(it.updates))
        it.notify("session/cancel", sessionId=session_id)
        it.finish(number)
        loaded = [it.load(session_id, project) for _ in range(2)]
    spoken = [messages(each, "agent_message_chunk") for each in (live, *loaded)]
    thought = [messages(each, "agent_thought_chunk") for each in (live, *loaded)]
    asked = [messages(each, "user_message_chunk") for each in loaded]
    assert [*spoken[0].values()] == ["I look", "empty", "two"]
    assert spoken[0] == spoken[1] == spoken[2]
    assert [*thought[0].values()] == ["let me see"]
    assert thought[0] == thought[1] == thought[2]
    assert [*asked[0].values()] == ["first", "second", "third"]
    assert asked[0] == asked[1]


def messages(updates: list[dict[str, Any]], kind: str) -> dict[str, str]:
    """The texts of messages by their ids."""
    found: dict[str, str] = {}
    for each in of_kind(updates, kind):
        found[each["messageId"]] = found.get(each["messageId"], "") + each["content"]["text"]
    return found


@pytest.mark.sweep
def test_a_retried_reply_is_another_message(home: Home, project: Path) -> None:
    busy = Status(503)
    with ModelServer.in_thread([busy, "at last"]) as server:
        configured(home, server, "[model.retry]\ninitial_backoff_ms = 1\nmax_backoff_ms = 2\n")
        with Editor(home) as it:
            session_id = it.open(project)
            reply = it.prompt(session_id, "hi")
            shown = it.load(session_id, project)
    said = messages(reply.updates, "agent_message_chunk")
    assert [*said.values()] == ["at last"]
    assert said == messages(shown, "agent_message_chunk")
    assert "model retry" in text_of(reply.updates, "agent_thought_chunk")


@pytest.mark.sweep
def test_only_the_active_branch_is_loaded(home: Home, project: Path) -> None:
    look = calls("code.list_dir", path=".")
    with (
        ModelServer.in_thread(["kept", look, "reverted", "also kept"]) as server,
        Editor(configured(home, server)) as it,
    ):
        session_id = it.open(project)
        it.prompt(session_id, "one")
        it.prompt(session_id, "two")
        it.prompt(session_id, "/undo")
        it.prompt(session_id, "three")
        shown = it.load(session_id, project)
    assert text_of(shown, "user_message_chunk") == "onethree"
    assert text_of(shown) == "keptalso kept"
    assert of_kind(shown, "tool_call") == []


def test_undo_waits_for_the_message_that_it_reverts(home: Home, project: Path) -> None:
    write = calls("code.write_file", path="a.txt", content="x")
    with (
        ModelServer.in_thread([write, "written"]) as server,
        Editor(configured(home, server)) as it,
    ):
        session_id = it.open(project)
        written = it.begin(session_id, "write it")
        asked = it.until_asked()
        reverted = it.begin(session_id, "/undo")
        it.decide(asked, "allow_once")
        assert it.finish(written).text == "written"
        assert "a.txt" in it.finish(reverted).text
    assert not (project / "a.txt").exists()


@pytest.mark.sweep
def test_a_run_that_has_waited_is_shown_whole_before_the_next_message(
    home: Home, project: Path
) -> None:
    run = calls("code.run_command", argv=["touch", "made"])
    thought = "hm " * 50_000
    with ModelServer.in_thread([run, Says(text=LONG, reasoning=thought), "more"]) as server:
        first = Editor(configured(home, server, '[permissions]\nunattended = "park"\n'))
        session_id = first.open(project)
        first.begin(session_id, "run it")
        first.until_asked()
        first.close()
        with Editor(home) as second:
            second.load(session_id, project)
            number = second.begin(session_id, "and more")
            asked = second.until_asked()
            second.stop_reading()
            second.decide(asked, "allow_once")
            wait_for(second, lambda: len(server.requests) == 3)
            second.read_on()
            reply = second.finish(number)
            spoken = messages(reply.updates, "agent_message_chunk")
            shown = messages(second.load(session_id, project), "agent_message_chunk")
    assert [*spoken.values()] == [LONG, "more"]
    assert spoken == shown
    assert text_of(reply.updates, "agent_thought_chunk") == thought


def count_queued(home: Home) -> int:
    with closing(sqlite3.connect(home.path / "sessions.sqlite")) as database:
        rows = database.execute("SELECT count(*) FROM runs WHERE status = 'queued'")
        return int(rows.fetchone()[0])


@pytest.mark.sweep
def test_prompts_that_a_killed_process_had_queued_are_shown_with_their_answers(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread([Hangs(text="so far"), "to two", "to three"]) as server:
        first = Editor(configured(home, server))
        session_id = first.open(project)
        first.begin(session_id, "one")
        first.begin(session_id, "two")
        first.until(lambda: text_of(first.updates))
        wait_for(first, lambda: count_queued(home) == 1)
        first.kill()
        with Editor(home) as second:
            loaded = len(second.load(session_id, project))
            second.prompt(session_id, "three")
            updates = second.updates[loaded:]
            shown = second.load(session_id, project)
    kinds = ("user_message_chunk", "agent_message_chunk")
    said = [each for each in updates if each["sessionUpdate"] in kinds]
    assert text_of(said, "user_message_chunk") == "two"
    assert text_of(said) == "to twoto three"
    assert said[0]["sessionUpdate"] == "user_message_chunk"
    assert said[0]["messageId"] in messages(shown, "user_message_chunk")


@pytest.mark.sweep
def test_a_choice_holds_for_the_prompts_after_it(home: Home, project: Path) -> None:
    write = calls("code.write_file", path="a.txt", content="x")
    with (
        ModelServer.in_thread(
            [calls("code.run_command", argv=["true"]), "ran", write, "planned"]
        ) as server,
        Editor(configured(home, server)) as it,
    ):
        session_id = it.open(project)
        it.request("session/set_mode", sessionId=session_id, modeId="plan")
        it.request("session/set_mode", sessionId=session_id, modeId="ask")
        first = it.begin(session_id, "run it")
        asked = it.until_asked()
        it.request("session/set_mode", sessionId=session_id, modeId="plan")
        second = it.begin(session_id, "write it")
        it.request("session/set_mode", sessionId=session_id, modeId="accept-edits")
        assert it.request("session/list")["sessions"][0]["sessionId"] == session_id
        forked = it.request("session/fork", sessionId=session_id, cwd=str(project))["sessionId"]
        it.decide(asked, "allow_once")
        assert it.finish(first).text == "ran"
        assert it.finish(second).text == "planned"
    assert forked != session_id
    assert not (project / "a.txt").exists()


def test_a_session_without_a_message_is_deleted(home: Home, project: Path) -> None:
    with ModelServer.in_thread([]) as server, Editor(configured(home, server)) as it:
        session_id = it.open(project)
        it.request("session/delete", sessionId=session_id)
        with pytest.raises(EditorError, match="there is no session"):
            it.prompt(session_id, "hi")


def hooked(home: Home, event: str, command: str) -> None:
    hooks = {event: [{"hooks": [{"type": "command", "command": command}]}]}
    home.write("hooks.json", json.dumps({"version": 1, "hooks": hooks}))


@pytest.mark.sweep
def test_an_objection_to_the_end_is_shown_live_and_loaded(home: Home, project: Path) -> None:
    objection = {"decision": "deny", "reason": "test 7 fails"}
    hooked(home, "Stop", f"echo '{json.dumps(objection)}'")
    with (
        ModelServer.in_thread([f"reply {n}. " for n in range(9)]) as server,
        Editor(configured(home, server)) as it,
    ):
        session_id = it.open(project)
        reply = it.prompt(session_id, "hi")
        shown = it.load(session_id, project)
    assert reply.stop_reason == "end_turn"
    for updates in (reply.updates, shown):
        assert text_of(updates).endswith(
            "reply 8. \n\ncompleted against an objection: test 7 fails"
        )
        *_, last = messages(updates, "agent_message_chunk").values()
        assert "reply" not in last


@pytest.mark.sweep
def test_hooks_that_do_not_run_are_mentioned_once(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooked(home, "UserPromptSubmit", "echo '{}'")
    monkeypatch.setenv("SOONG_AGENT_HOOK", "PreToolUse")
    with (
        ModelServer.in_thread(["one", "two"]) as server,
        Editor(configured(home, server)) as it,
    ):
        session_id = it.open(project)
        replies = [it.prompt(session_id, text).text for text in ("first", "second")]
    assert "hooks do not run here" in replies[0]
    assert replies[0].endswith("\n\none")
    assert replies[1] == "two"


@pytest.mark.sweep
def test_what_a_terminal_warns_of_is_said_in_the_editor(home: Home, project: Path) -> None:
    unmet = {"matcher": "Edit", "hooks": [{"type": "command", "command": "true"}]}
    home.write("hooks.json", json.dumps({"version": 1, "hooks": {"PreToolUse": [unmet]}}))
    with (
        ModelServer.in_thread(["one", "two"]) as server,
        Editor(configured(home, server)) as it,
    ):
        session_id = it.open(project)
        first = it.prompt(session_id, "first")
        assert it.prompt(session_id, "second").text == "two"
    assert "hooks.PreToolUse[0].matcher" in first.text
    assert "its hooks do not run" in first.text
    assert first.text.endswith("\n\none")
