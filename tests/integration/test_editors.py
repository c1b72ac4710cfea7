"""`soong-agent acp`: the real command, driven by an editor that validates every line."""

from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import Hangs, calls
from editors import Editor, EditorError, text_of
from isolation import Home
from model_server import ModelServer


def configured(home: Home, server: ModelServer, more: str = "") -> Home:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        f"[memory]\nenabled = false\n{more}\n"
    )
    return home


def of_kind(updates: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in updates if each["sessionUpdate"] == kind]


def test_a_prompt_is_answered_and_the_session_is_listed_with_its_title(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread(["hello editor"]) as server, Editor(configured(home, server)) as it:
        session_id = it.open(project)
        reply = it.prompt(session_id, "say hello")
        listed = it.request("session/list", cwd=str(project))["sessions"]
    assert (reply.stop_reason, reply.text) == ("end_turn", "hello editor")
    (info,) = of_kind(reply.updates, "session_info_update")
    assert info["title"] == "say hello"
    assert [(each["sessionId"], each["title"], each["cwd"]) for each in listed] == [
        (session_id, "say hello", str(project))
    ]


def test_a_call_is_shown_with_its_input_kind_place_diff_and_end(home: Home, project: Path) -> None:
    (project / "a.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    edit = calls("code.edit_file", path="a.txt", edits=[{"old": "two", "new": "2"}])
    with ModelServer.in_thread([edit, "done"]) as server, Editor(configured(home, server)) as it:
        reply = it.prompt(it.open(project), "edit it")
        (asked,) = it.asked
    (begun,) = of_kind(reply.updates, "tool_call")
    started, ended = of_kind(reply.updates, "tool_call_update")
    change = {
        "type": "diff",
        "path": str(project / "a.txt"),
        "oldText": "one\ntwo\nthree\n",
        "newText": "one\n2\nthree\n",
    }
    call = asked["params"]["toolCall"]
    assert begun["rawInput"]["path"] == "a.txt"
    assert begun["status"] == "pending"
    assert (started["status"], started["kind"]) == ("in_progress", "edit")
    assert started["locations"][0]["path"] == str(project / "a.txt")
    assert (ended["status"], ended["content"]) == ("completed", [change])
    assert change in call["content"]
    assert {each["toolCallId"] for each in (begun, started, ended, call)} == {begun["toolCallId"]}
    assert (project / "a.txt").read_text(encoding="utf-8") == "one\n2\nthree\n"


def test_a_command_that_fails_is_shown_as_failed_with_its_output(home: Home, project: Path) -> None:
    run = calls("code.run_command", argv=["sh", "-c", "echo out; exit 3"])
    with ModelServer.in_thread([run, "done"]) as server, Editor(configured(home, server)) as it:
        reply = it.prompt(it.open(project), "run it")
    ended = of_kind(reply.updates, "tool_call_update")[-1]
    assert ended["status"] == "failed"
    shown = "\n".join(each["content"]["text"] for each in ended["content"])
    assert "out" in shown
    assert "exit code 3" in shown


def test_an_answer_for_the_session_is_asked_for_once(home: Home, project: Path) -> None:
    run = calls("code.run_command", argv=["touch", "a"])
    with (
        ModelServer.in_thread([run, "one", run, "two"]) as server,
        Editor(configured(home, server)) as it,
    ):
        it.answers = ["allow_for_session"]
        session_id = it.open(project)
        it.prompt(session_id, "first")
        it.prompt(session_id, "second")
    (asked,) = it.asked
    kinds = [each["kind"] for each in asked["params"]["options"]]
    assert kinds == ["allow_once", "allow_always", "reject_once"]


@pytest.mark.parametrize("answer", ["deny", "cancelled", "no-such-option"])
def test_what_is_no_yes_is_a_no(home: Home, project: Path, answer: str) -> None:
    run = calls("code.run_command", argv=["touch", "made"])
    with ModelServer.in_thread([run, "fine"]) as server, Editor(configured(home, server)) as it:
        it.answers = [answer]
        reply = it.prompt(it.open(project), "run it")
    assert of_kind(reply.updates, "tool_call_update")[-1]["status"] == "failed"
    assert reply.text == "fine"
    assert not (project / "made").exists()


def test_a_cancelled_prompt_ends_so_and_the_session_goes_on(home: Home, project: Path) -> None:
    slow = Hangs(text="so far")
    with ModelServer.in_thread([slow, "again"]) as server, Editor(configured(home, server)) as it:
        session_id = it.open(project)
        number = it.begin(session_id, "slow")
        while not text_of(it.updates):
            message = it.take()
            assert message is not None
            it.handle(message)
        it.notify("session/cancel", sessionId=session_id)
        assert it.finish(number).stop_reason == "cancelled"
        assert it.prompt(session_id, "more").text == "again"


def test_a_cancelled_question_is_withdrawn(home: Home, project: Path) -> None:
    run = calls("code.run_command", argv=["touch", "made"])
    with ModelServer.in_thread([run]) as server, Editor(configured(home, server)) as it:
        session_id = it.open(project)
        number = it.begin(session_id, "run it")
        asked = it.until_asked()
        it.notify("session/cancel", sessionId=session_id)
        reply = it.finish(number)
        assert it.cancelled == [asked["id"]]
        it.decide(asked, "allow_once")  # too late
    assert reply.stop_reason == "cancelled"
    assert not (project / "made").exists()


def test_a_session_is_loaded_after_a_crash_and_goes_on(home: Home, project: Path) -> None:
    read = calls("code.list_dir", path=".")
    run = calls("code.run_command", argv=["touch", "made"])
    script = [read, "it is empty", run, "later"]
    with ModelServer.in_thread(script) as server:
        first = Editor(configured(home, server))
        session_id = first.open(project)
        first.prompt(session_id, "look")
        first.begin(session_id, "run it")
        first.until_asked()
        first.kill()
        with Editor(home) as second:
            shown = second.load(session_id, project)
            reply = second.prompt(session_id, "more")
    assert text_of(shown, "user_message_chunk") == "lookrun it"
    assert text_of(shown) == "it is empty"
    statuses = [each["status"] for each in of_kind(shown, "tool_call_update")]
    assert statuses == ["in_progress", "completed", "failed"]
    assert reply.text == "later"


def test_a_session_is_resumed_without_being_shown(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["one", "two"]) as server:
        with Editor(configured(home, server)) as first:
            session_id = first.open(project)
            first.prompt(session_id, "first words")
        with Editor(home) as second:
            second.request("session/resume", sessionId=session_id, cwd=str(project))
            assert second.prompt(session_id, "second words").text == "two"
            assert text_of(second.updates, "user_message_chunk") == ""
    said = [message["content"] for message in server.requests[1].body["messages"]]
    assert said[-3:] == ["first words", "one", "second words"]


def test_a_session_of_another_folder_is_not_opened_here(
    home: Home, project: Path, tmp_path: Path
) -> None:
    with ModelServer.in_thread(["one"]) as server, Editor(configured(home, server)) as it:
        session_id = it.open(project)
        it.prompt(session_id, "hi")
        with pytest.raises(EditorError, match=str(project)):
            it.load(session_id, tmp_path)
        with pytest.raises(EditorError, match="there is no session nowhere") as error:
            it.load("nowhere", project)
        assert error.value.code == -32002
        with pytest.raises(EditorError, match="absolute"):
            it.request("session/new", cwd="here", mcpServers=[])


def test_nothing_but_the_protocol_is_on_standard_output(home: Home, project: Path) -> None:
    run = calls("code.run_command", argv=["sh", "-c", "echo loud; echo louder >&2; cat"])
    with ModelServer.in_thread([run, "done"]) as server, Editor(configured(home, server)) as it:
        it.send_raw(b'{broken\n[1, 2]\n"text"\n\n{"jsonrpc": "2.0", "id": 1.5, "method": "x"}\n')
        it.send_raw(b'{"jsonrpc": "2.0", "id": {}, "result": 1}\n{"jsonrpc": "2.0", "id": 7}\n')
        it.send_raw(b'{"jsonrpc": "2.0", "id": "p", "method": "initialize", "params": [1]}\n')
        it.send_raw(b'{"jsonrpc": "2.0", "id": "q", "method": "initialize", "params": {}}\n')
        it.send_raw(b'{"jsonrpc": "2.0", "method": "no/such"}\n')
        it.send_raw(b'{"jsonrpc": "2.0", "id": "r", "method": "no/such"}\n')
        reply = it.prompt(it.open(project), "run it")
    assert reply.text == "done"
    codes = [(each["id"], each["error"]["code"]) for each in it.stray]
    assert codes == [
        *[(None, code) for code in (-32700, -32600, -32600, -32600, -32600)],
        ("p", -32602),
        ("q", -32602),
        ("r", -32601),
    ]
