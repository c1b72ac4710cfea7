"""`code.edit_file`: all changes or none, and nothing else changes."""

import difflib
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from agent_core.errors import ErrorCode, ToolError
from agent_core.tools.patch import Patch
from agent_core.types import RunIdentity
from tables import together
from tool_facts import Code

OTHER = RunIdentity(session_id="sess_1", agent_id="agent_2", run_id="run_2")


def content(file: Path) -> bytes:
    return file.read_bytes()


def rewrite(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")


async def refusal_of(code: Code, **arguments: object) -> ToolError:
    with pytest.raises(ToolError) as refusal:
        await code("edit_file", **arguments)
    return refusal.value


@pytest.fixture
def file(project: Path) -> Path:
    path = project / "a.txt"
    path.write_text("one\ntwo\nthree\ntwo\n", encoding="utf-8")
    return path


async def test_g9_a_text_that_stands_once_is_replaced(code: Code, file: Path) -> None:
    answer = await code("edit_file", path="a.txt", edits=[{"old": "three", "new": "3"}])
    assert content(file) == b"one\ntwo\n3\ntwo\n"
    assert answer == {"path": "a.txt", "edits_applied": 1, "bytes_written": 14}


async def test_g10_an_ambiguous_edit_changes_nothing(code: Code, file: Path) -> None:
    before = content(file)
    refusal = await refusal_of(code, path="a.txt", edits=[{"old": "two", "new": "2"}])
    assert refusal.code is ErrorCode.AMBIGUOUS_EDIT
    assert refusal.details["lines"] == [2, 4]
    assert content(file) == before


async def test_g11_every_occurrence_is_replaced_if_asked(code: Code, file: Path) -> None:
    edit = {"old": "two", "new": "2", "replace_all": True}
    await code("edit_file", path="a.txt", edits=[edit])
    assert content(file) == b"one\n2\nthree\n2\n"


DIFF = """--- a/a.txt
+++ b/a.txt
@@ -1,3 +1,3 @@
 one
-two
+2
 three
"""


async def test_g12_a_unified_diff_is_applied(code: Code, file: Path) -> None:
    answer = await code("edit_file", path="a.txt", unified_diff=DIFF)
    assert content(file) == b"one\n2\nthree\ntwo\n"
    assert answer["edits_applied"] == 1


@pytest.mark.parametrize("name", ["b.txt", "b/b.txt", "../../a.txt", "sub/a.txt"])
async def test_g13_a_diff_of_another_file_changes_nothing(
    code: Code, file: Path, project: Path, name: str
) -> None:
    (project / "b.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    refusal = await refusal_of(
        code, path="a.txt", unified_diff=DIFF.replace("b/a.txt", f"b/{name}")
    )
    assert refusal.code is ErrorCode.PATCH_PATH_MISMATCH
    assert content(file) == b"one\ntwo\nthree\ntwo\n"


async def test_a_text_that_is_not_there_comes_with_the_closest_lines(
    code: Code, project: Path
) -> None:
    (project / "a.py").write_text("def add(a, b):\n    return a + b\n", encoding="utf-8")
    refusal = await refusal_of(code, path="a.py", edits=[{"old": "  return a+b", "new": "x"}])
    assert refusal.code is ErrorCode.TEXT_NOT_FOUND
    assert refusal.details["closest"] == [{"line": 2, "text": "    return a + b"}]
    assert "2:     return a + b" in str(refusal)


async def test_all_edits_apply_or_none(code: Code, file: Path) -> None:
    edits = [{"old": "one", "new": "1"}, {"old": "nope", "new": "x"}]
    refusal = await refusal_of(code, path="a.txt", edits=edits)
    assert "edits[1]" in str(refusal)
    assert content(file) == b"one\ntwo\nthree\ntwo\n"
    later = [{"old": "one", "new": "first"}, {"old": "first\ntwo", "new": "both"}]
    await code("edit_file", path="a.txt", edits=later)
    assert content(file) == b"both\nthree\ntwo\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\r\nb\r\nc\r\n", b"a\r\nB\r\nnew\r\nc\r\n"),
        (b"a\r\nb\r\nc", b"a\r\nB\r\nnew\r\nc"),
        (b"\xef\xbb\xbfa\nb\nc", b"\xef\xbb\xbfa\nB\nnew\nc"),
        (b"a\nb\r\nc\n", b"a\nB\nnew\nc\n"),
        ("a\nb\nc\u00e9".encode("utf-16"), "a\nB\nnew\nc\u00e9".encode("utf-16")),
    ],
)
async def test_line_ends_marks_and_the_last_line_stay(
    code: Code, project: Path, before: bytes, after: bytes
) -> None:
    (project / "a.txt").write_bytes(before)
    await code("edit_file", path="a.txt", edits=[{"old": "b\n", "new": "B\nnew\n"}])
    assert (project / "a.txt").read_bytes() == after
    (project / "a.txt").write_bytes(before)
    diff = "@@ -1,2 +1,3 @@\n a\n-b\n+B\n+new\n"
    await code("edit_file", path="a.txt", unified_diff=diff)
    assert (project / "a.txt").read_bytes() == after


async def test_text_that_could_not_be_written_back_is_not_touched(
    code: Code, project: Path
) -> None:
    for broken in (b"a\xff\xfe\xfd broken", b"\0binary"):
        (project / "a.txt").write_bytes(broken)
        await code.prepare("read_file", path="a.txt")
        with pytest.raises(ToolError):
            await code("edit_file", path="a.txt", edits=[{"old": "b", "new": "\U0001f600"}])
        assert (project / "a.txt").read_bytes() == broken


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"edits": [{"old": "one", "new": "1"}], "unified_diff": DIFF},
        {"edits": []},
        {"unified_diff": ""},
        {"edits": [{"old": "one", "new": "one"}]},
        {"edits": [{"old": "", "new": "x"}]},
        {"edits": [{"old": "one", "new": "x", "count": 1}]},
    ],
)
async def test_a_call_must_say_one_clear_thing(
    code: Code, file: Path, arguments: dict[str, object]
) -> None:
    refusal = await refusal_of(code, path="a.txt", **arguments)
    assert refusal.code is ErrorCode.VALIDATION_ERROR


async def test_a_missing_file_is_made_only_if_asked(code: Code, project: Path) -> None:
    edits = [{"old": "", "new": "fresh\n"}]
    assert (await refusal_of(code, path="n.txt", edits=edits)).code is ErrorCode.FILE_NOT_FOUND
    await code("edit_file", path="n.txt", edits=edits, create_if_missing=True)
    assert (project / "n.txt").read_bytes() == b"fresh\n"
    diff = "--- /dev/null\n+++ b/deep/m.txt\n@@ -0,0 +1,2 @@\n+a\n+b\n"
    await code("edit_file", path="deep/m.txt", unified_diff=diff, create_if_missing=True)
    assert (project / "deep/m.txt").read_bytes() == b"a\nb\n"
    again = await refusal_of(code, path="deep/m.txt", unified_diff=diff, create_if_missing=True)
    assert again.code is ErrorCode.PATH_CONFLICT


@pytest.mark.parametrize(
    ("diff", "said"),
    [
        ("@@ -1,3 +1,3 @@\n one\n-TWO\n+2\n three\n", "hunk 1: line 2 should be 'TWO'"),
        (DIFF + "@@ -9,1 +9,1 @@\n-nine\n+9\n", "hunk 2: line 9"),
        ("@@ -1,4 +1,3 @@\n one\n-two\n+2\n three\n", "hunk 1: the numbers"),
        ("@@ -1,1 +1,1 @@\n-one\n+1\n+more\n", "hunk 1: its header promises fewer"),
        ("@@ nonsense @@\n", "hunk 1: its header"),
        ("one\n", "before hunk 1"),
        ("--- a/a.txt\n+++ b/a.txt\n", "no hunk"),
        ("--- a/a.txt\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-one\n", "deletes"),
        ("rename from a.txt\nrename to b.txt\n", "more than change text"),
        ("GIT binary patch\n", "more than change text"),
        ("@@ -7,1 +7,1 @@\n-two\n+2\n", "fits at lines 2, 4"),
    ],
)
async def test_a_diff_that_does_not_fit_names_its_hunk(
    code: Code, file: Path, diff: str, said: str
) -> None:
    refusal = await refusal_of(code, path="a.txt", unified_diff=diff)
    assert refusal.code is ErrorCode.PATCH_APPLY_FAILED
    assert said in str(refusal)
    assert content(file) == b"one\ntwo\nthree\ntwo\n"


async def test_a_diff_of_two_files_is_refused(code: Code, file: Path) -> None:
    both = DIFF + DIFF.replace("a.txt", "b.txt")
    refusal = await refusal_of(code, path="a.txt", unified_diff=both)
    assert refusal.code is ErrorCode.PATCH_PATH_MISMATCH


async def test_a_hunk_that_moved_to_one_place_still_applies(code: Code, file: Path) -> None:
    diff = "@@ -40,2 +40,2 @@\n-three\n+3\n two\n"
    await code("edit_file", path="a.txt", unified_diff=diff)
    assert content(file) == b"one\ntwo\n3\ntwo\n"


@together(
    ("before", "diff", "after"),
    [
        ("a\nb", "@@ -2,1 +2,2 @@\n-b\n\\ No newline at end of file\n+b\n+c\n", "a\nb\nc\n"),
        ("a\nb\n", "@@ -2,1 +2,1 @@\n-b\n+b\n\\ No newline at end of file\n", "a\nb"),
        ("a\nb", "@@ -2,1 +2,2 @@\n b\n+c\n", "a\nb\nc"),
        ("a\nb", "@@ -1,1 +1,1 @@\n-a\n+A\n", "A\nb"),
        ("", "@@ -0,0 +1,1 @@\n+a\n", "a\n"),
        ("a\n", "@@ -1,1 +0,0 @@\n-a\n", ""),
        ("a\nb\n", "@@ -1,0 +2,1 @@\n+x\n", "a\nx\nb\n"),
    ],
)
def test_the_last_line_ends_as_in_the_diff_or_as_before(before: str, diff: str, after: str) -> None:
    assert Patch.parse(diff).apply(before, newline="\n") == after


LINES = st.lists(st.sampled_from(["a", "b", "c", "", " x"]), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(LINES, LINES, st.integers(0, 3))
def test_a_diff_that_was_made_applies_exactly(old: list[str], new: list[str], context: int) -> None:
    before = "".join(f"{line}\n" for line in old)
    after = "".join(f"{line}\n" for line in new)
    made = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), "a/f", "b/f", n=context
    )
    diff = "".join(made)
    if diff:
        assert Patch.parse(diff).apply(before, newline="\n") == after


async def test_a_diff_made_by_git_applies(code: Code, project: Path) -> None:
    old, new = "".join(f"{n}\n" for n in range(60)), [str(n) for n in range(60)]
    new[3], new[40:42], new[59] = "three", ["forty", "and", "one"], "end"
    (project / "f").write_text(old, encoding="utf-8")
    (project / "g").write_text("\n".join(new), encoding="utf-8")
    made = subprocess.run(  # noqa: ASYNC221
        ["git", "diff", "--no-index", "f", "g"],  # noqa: S607
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"]},
    )
    await code("edit_file", path="f", unified_diff=made.stdout.replace("b/g", "b/f"))
    assert (project / "f").read_bytes() == (project / "g").read_bytes()


async def test_an_edit_asks_with_its_diff_and_does_exactly_that(code: Code, file: Path) -> None:
    action = await code.prepare("edit_file", path="a.txt", edits=[{"old": "three", "new": "3"}])
    assert action.access.asks
    assert action.access.diff is not None
    assert "-three\n+3\n" in action.access.diff
    rewrite(file, "three\n")
    with pytest.raises(ToolError, match="changed on disk"):
        await action.run()
    assert content(file) == b"three\n"


async def test_a_file_that_changed_since_it_was_read_is_not_changed_before_it_is_read_again(
    code: Code, file: Path
) -> None:
    edits = [{"old": "three", "new": "3"}]
    await code("read_file", path="a.txt")
    rewrite(file, "somebody else's\nthree\n")
    refusal = await refusal_of(code, path="a.txt", edits=edits)
    assert refusal.code is ErrorCode.PATH_CONFLICT
    assert "changed on disk" in refusal.message
    with pytest.raises(ToolError, match="changed on disk"):
        await code("write_file", path="a.txt", content="mine", overwrite=True)
    assert content(file) == b"somebody else's\nthree\n"
    await code("read_file", path="a.txt")
    assert (await code("edit_file", path="a.txt", edits=edits))["edits_applied"] == 1


async def test_ones_own_changes_and_a_new_mode_need_no_second_reading(
    code: Code, file: Path
) -> None:
    await code("read_file", path="a.txt")
    await code("edit_file", path="a.txt", edits=[{"old": "three", "new": "3"}])
    file.chmod(0o600)
    await code("edit_file", path="a.txt", edits=[{"old": "3", "new": "III"}])
    await code("write_file", path="a.txt", content="four\n", overwrite=True)
    await code("edit_file", path="a.txt", edits=[{"old": "four", "new": "4"}])
    assert content(file) == b"4\n"


async def test_what_one_agent_has_read_is_independent_of_another(code: Code, file: Path) -> None:
    await code("read_file", path="a.txt")
    other = Code(code.workspace, replace(code.context, run=OTHER))
    await other("edit_file", path="a.txt", edits=[{"old": "one", "new": "1"}])
    refusal = await refusal_of(code, path="a.txt", edits=[{"old": "three", "new": "3"}])
    assert refusal.details["reason"] == "changed_on_disk"
