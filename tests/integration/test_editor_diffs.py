"""Diffs in an editor: each turns the text before into the text after, or is left out and said."""

import codecs
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import Calls, calls
from editors import Editor
from isolation import Home
from model_server import ModelServer
from sweeps import kept

KEY = "key-0123456789abcdefghij"
LEFT_OUT = "An exact diff cannot be shown."
LINES = [f"line {number}\n" for number in range(3000)]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_TEST", KEY)


def edit(*pairs: tuple[str, str]) -> Calls:
    return calls("code.edit_file", path="a.txt", edits=[{"old": a, "new": b} for a, b in pairs])


def write(content: str) -> Calls:
    return calls("code.write_file", path="a.txt", content=content, overwrite=True)


def configured(home: Home, server: ModelServer) -> Home:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        'api_key_env = "KEY_OF_TEST"\ncontext_window = 1000000\n[memory]\nenabled = false\n'
    )
    return home


def contents(home: Home, project: Path, call: Calls) -> tuple[list[dict[str, Any]], ...]:
    """The content of a call in its question, in its result, and in the loaded session."""
    (shown,) = contents_of(home, project, call)
    return shown


def contents_of(home: Home, project: Path, *made: Calls) -> list[tuple[list[dict[str, Any]], ...]]:
    """The same of several calls, each in a session of its own."""
    script = [reply for call in made for reply in (call, "done")]
    with ModelServer.in_thread(script) as server, Editor(configured(home, server)) as it:
        return [contents_in(it, project) for _ in made]


def contents_in(editor: Editor, project: Path) -> tuple[list[dict[str, Any]], ...]:
    """The same of the next call, in a new session."""
    before = len(editor.asked)
    session_id = editor.open(project)
    live = editor.prompt(session_id, "change it").updates
    (asked,) = editor.asked[before:]
    loaded = editor.load(session_id, project)
    return (asked["params"]["toolCall"]["content"], *(result_of(each) for each in (live, loaded)))


def result_of(updates: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    (content,) = (each["content"] for each in updates if each.get("status") == "completed")
    return content


def diffs(content: Iterable[Mapping[str, Any]]) -> list[tuple[str | None, str]]:
    return [(each.get("oldText"), each["newText"]) for each in content if each["type"] == "diff"]


def texts(content: Iterable[Mapping[str, Any]]) -> str:
    return "\n".join(each["content"]["text"] for each in content if each["type"] == "content")


def applied(before: str | None, changes: Iterable[tuple[str | None, str]]) -> str:
    """The text with every change in it, each in the one place where it fits."""
    text = before or ""
    for old, new in changes:
        assert (old is None) is (before is None)
        assert text.count(old or "") == 1 or not text
        text = text.replace(old or "", new, 1)
    return text


CHANGES: dict[str, tuple[bytes | None, Calls]] = {
    "a new file": (None, write("one\ntwo\n")),
    "a new file without a final newline": (None, write("one\ntwo")),
    "an empty file": (b"", write("one\n")),
    "an empty file that is edited": (b"", edit(("", "one"))),
    "a file becomes empty": (b"one\ntwo", write("")),
    "no final newline": (b"one\ntwo", edit(("two", "2"))),
    "no final newline, changed above": (b"one\ntwo", edit(("one", "1"))),
    "a final newline is added": (b"one\ntwo", edit(("two", "two\n"))),
    "a final newline is removed": (b"one\ntwo\n", edit(("two\n", "two"))),
    "line ends of Windows": (b"one\r\ntwo\r\nthree", edit(("two", "2"))),
    "mixed line ends": (b"one\r\ntwo\nthree\r\n", edit(("two", "2"))),
    "line ends of old": (b"one\rtwo\rthree", edit(("two", "2"))),
    "separators within lines": ("a\u2028b\x0cc\x85d\ne\n".encode(), edit(("e", "f"))),
    "UTF-8 with a mark": (codecs.BOM_UTF8 + "é\ntwo\n".encode(), edit(("two", "2"))),
    "UTF-16": ("é\ntwo\n".encode("utf-16"), edit(("two", "2"))),
    "a Western encoding": ("größer als früher\n".encode("cp1252"), edit(("als", "als je"))),
    "several places": ("".join(LINES).encode(), edit(("line 7\n", "7\n"), ("line 2999", "2999"))),
    "the end of equal lines": (b"a\n" * 10, write("a\n" * 10 + "b\n")),
    "between equal lines": (b"\n" * 50, write("\n" * 25 + "b\n" + "\n" * 25)),
    "two of equal lines": (b"a\n" * 30, write("b\n" + "a\n" * 27 + "b\n")),
    "3,000 lines": ("".join(LINES).encode(), write("".join(f"new {line}" for line in LINES))),
    "3,000 new lines": (None, write("".join(LINES))),
    "a long line": (b"x" * 5000, edit(("x" * 5000, "y" * 5000))),
}


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_diff_turns_the_text_before_into_the_text_after(home: Home, project: Path) -> None:
    chosen = kept(CHANGES, "a new file", "no final newline", "mixed line ends", "UTF-16")
    script = [reply for name in chosen for reply in (CHANGES[name][1], "done")]
    with ModelServer.in_thread(script) as server, Editor(configured(home, server)) as it:
        for name in chosen:
            content, _ = CHANGES[name]
            file = project / name / "a.txt"
            file.parent.mkdir()
            before = None
            if content is not None:
                file.write_bytes(content)
                before = text_of(content)
            shown = contents_in(it, file.parent)
            after = text_of(file.read_bytes())
            for each in shown:
                if diffs(each):
                    assert applied(before, diffs(each)) == after, name
                    assert LEFT_OUT not in texts(each), name
                else:
                    assert LEFT_OUT in texts(each), name
                    spelled_out = each is shown[0] and not set("\r\f").isdisjoint(after)
                    assert spelled_out or len(after) > 4000, name
            assert diffs(shown[1]) == diffs(shown[2]), name


def text_of(content: bytes) -> str:
    """What is in a file, without a mark."""
    for mark, encoding in ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le")):
        if content.startswith(mark):
            return content.removeprefix(mark).decode(encoding)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("cp1252")


@pytest.mark.sweep
def test_a_small_change_of_a_large_file_has_a_diff_everywhere(home: Home, project: Path) -> None:
    (project / "a.txt").write_text("".join(LINES), encoding="utf-8")
    for each in contents(home, project, edit(("line 1500\n", "1500\n"))):
        ((old, new),) = diffs(each)
        assert old is not None
        assert new == old.replace("line 1500", "1500")


def test_an_inexact_diff_is_said_where_it_cannot_be_shown(home: Home, project: Path) -> None:
    """A change too long for a result, one of a file with a secret, and one that may deceive."""
    file = project / "a.txt"
    texts_before = "".join(LINES), f"{KEY}\ntwo\n", "one\ntwo\n"
    made = write("new\n"), edit(("two", "2")), edit(("two", "2\u202e"))
    script = [reply for call in made for reply in (call, "done")]
    shown: list[tuple[list[dict[str, Any]], ...]] = []
    with ModelServer.in_thread(script) as server, Editor(configured(home, server)) as it:
        for text in texts_before:
            file.write_text(text, encoding="utf-8")
            shown.append(contents_in(it, project))
    too_long, with_secret, deceiving = shown

    asked, *ended = too_long
    assert diffs(asked) == [("".join(LINES), "new\n")]
    for each in ended:
        assert diffs(each) == []
        assert LEFT_OUT in texts(each)
        assert "more lines of the diff" in texts(each)

    for each in with_secret:
        assert diffs(each) == []
        assert LEFT_OUT in texts(each)
        assert KEY not in texts(each)
        assert "-two" in texts(each)

    asked, *ended = deceiving
    assert diffs(asked) == []
    assert LEFT_OUT in texts(asked)
    assert "\u202e" not in texts(asked)
    for each in ended:
        assert diffs(each) == [("one\ntwo\n", "one\n2\u202e\n")]


@pytest.mark.sweep
def test_a_binary_file_has_no_diff(home: Home, project: Path) -> None:
    (project / "a.txt").write_bytes(bytes(range(256)) * 10)
    for each in contents(home, project, write("text now\n")):
        assert diffs(each) == []
        assert f"{LEFT_OUT} Its text" in texts(each)
        assert "(all of it is replaced)" in texts(each)


@pytest.mark.sweep
def test_a_text_that_cannot_be_read_exactly_has_no_diff(home: Home, project: Path) -> None:
    (project / "a.txt").write_bytes("é und ü, größer, öfter\n".encode() * 5 + b"\xff broken\n")
    for each in contents(home, project, write("text now\n")):
        assert diffs(each) == []
        assert LEFT_OUT in texts(each)
        assert "cannot be read exactly" in texts(each)


@pytest.mark.sweep
def test_a_command_that_changes_a_file_has_no_diff(home: Home, project: Path) -> None:
    (project / "a.txt").write_text("one\n", encoding="utf-8")
    move = calls("code.run_command", argv=["mv", "a.txt", "b.txt"])
    for each in contents(home, project, move):
        assert diffs(each) == []
        assert LEFT_OUT not in texts(each)
