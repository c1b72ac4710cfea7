"""Diffs and texts as an editor shows them."""

from pathlib import Path

import pytest
from acp.schema import ContentToolCallContent, FileEditToolCallContent, TextContentBlock

from agent_core.cli.acp.updates import diff_content, fenced
from agent_core.tools.patch import unified_diff

PROJECT = Path("/project")


def edits(diff: str) -> list[tuple[str, str | None, str]]:
    found = diff_content(diff, PROJECT)
    changes = [each for each in found if isinstance(each, FileEditToolCallContent)]
    return [(each.path, each.old_text, each.new_text) for each in changes]


def remarks(diff: str) -> list[str]:
    found = [
        each for each in diff_content(diff, PROJECT) if isinstance(each, ContentToolCallContent)
    ]
    return [each.content.text for each in found if isinstance(each.content, TextContentBlock)]


def test_each_hunk_is_a_change_of_its_own() -> None:
    before = [f"{number}\n" for number in range(40)]
    after = ["first\n", *before[1:39], "last\n"]
    shown = edits(unified_diff("".join(before), "".join(after), shown="a.txt"))
    assert shown == [
        ("/project/a.txt", "0\n1\n2\n3\n", "first\n1\n2\n3\n"),
        ("/project/a.txt", "36\n37\n38\n39\n", "36\n37\n38\nlast\n"),
    ]


def test_a_new_file_has_no_text_before() -> None:
    assert edits(unified_diff("", "x\n", shown="/elsewhere/a")) == [("/elsewhere/a", None, "x\n")]


@pytest.mark.parametrize(
    "line", ["-- a", "++ b", "@@ -1 +1 @@", "", "\u2028x", "\x85", "\\ No newline"]
)
def test_lines_that_look_like_marks_are_text(line: str) -> None:
    before, after = f"keep\n{line}\n", "keep\nnew\n"
    assert edits(unified_diff(before, after, shown="a")) == [("/project/a", before, after)]
    assert edits(unified_diff(after, before, shown="a")) == [("/project/a", after, before)]


def test_what_is_hidden_of_a_diff_is_said() -> None:
    diff = unified_diff("".join(f"{n}\n" for n in range(20_000)), "", shown="a")
    assert len(edits(diff)) == 1
    (hidden,) = remarks(diff)
    assert "more lines" in hidden


def test_a_diff_of_several_files_names_each() -> None:
    diff = unified_diff("a\n", "b\n", shown="one") + unified_diff("c\n", "d\n", shown="two")
    assert edits(diff) == [("/project/one", "a\n", "b\n"), ("/project/two", "c\n", "d\n")]


@pytest.mark.parametrize("text", ["plain", "``` closes", "a ````` b ```", "`"])
def test_no_text_closes_its_fence(text: str) -> None:
    first, *body, last = fenced(text).split("\n")
    assert first == last
    assert set(first) == {"`"}
    assert first not in text
    assert "\n".join(body) == text
