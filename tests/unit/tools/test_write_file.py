"""`code.write_file`: whole files, where they may be."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from agent_core.errors import ErrorCode, PermissionDeniedError, ToolError
from agent_core.tools import ToolContext
from agent_core.tools.workspace import Workspace
from tool_facts import Code


async def refusal_of(code: Code, **arguments: object) -> ToolError:
    with pytest.raises(ToolError) as refusal:
        await code("write_file", **arguments)
    return refusal.value


async def test_g7_an_existing_file_is_not_replaced_unasked(code: Code, project: Path) -> None:
    (project / "a.txt").write_text("old", encoding="utf-8")
    refusal = await refusal_of(code, path="a.txt", content="new", overwrite=False)
    assert refusal.code is ErrorCode.PATH_CONFLICT
    assert (project / "a.txt").read_text(encoding="utf-8") == "old"
    answer = await code("write_file", path="a.txt", content="new", overwrite=True)
    assert answer == {
        "path": "a.txt",
        "bytes_written": 3,
        "created": False,
        "overwritten": True,
    }


async def test_g8_missing_folders_are_made(code: Code, project: Path) -> None:
    answer = await code("write_file", path="new/dir/a.txt", content="é\n", create_dirs=True)
    assert answer["bytes_written"] == 3
    assert answer["created"] is True
    assert (project / "new/dir/a.txt").read_bytes() == "é\n".encode()
    refusal = await refusal_of(code, path="other/a.txt", content="", create_dirs=False)
    assert refusal.code is ErrorCode.FILE_NOT_FOUND
    assert not (project / "other").exists()


async def test_h3_writing_asks_with_a_diff_and_covers_the_folder(code: Code, project: Path) -> None:
    (project / "a.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    action = await code.prepare(
        "write_file", path="a.txt", content="one\n2\nthree\n", overwrite=True
    )
    access = action.access
    assert access.asks
    assert access.scope == f"the files in {project}, not below it"
    assert access.target == str(project / "a.txt")
    assert access.refusal is ErrorCode.PERMISSION_DENIED
    assert access.diff == "--- a.txt\n+++ a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    assert (project / "a.txt").read_text(encoding="utf-8").startswith("one\ntwo")


async def test_h6_outside_the_roots_the_refusal_has_its_own_code(
    code: Code, project: Path, tmp_path: Path
) -> None:
    (project / "out").symlink_to(tmp_path)
    for path in (str(tmp_path / "x.txt"), "../x.txt", "out/x.txt"):
        access = (await code.prepare("write_file", path=path, content="")).access
        assert access.reason == "outside_roots"
        assert access.refusal is ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS
        assert access.target == str(tmp_path / "x.txt")


async def test_the_programs_own_files_are_never_written(
    code: Code, project: Path, home: Path
) -> None:
    (project / "link").symlink_to(home)
    for path in (str(home / "hooks.json"), "link/tools/x.json", ".soong-agent/tasks/s/a.jsonl"):
        refusal = await refusal_of(code, path=path, content="{}")
        assert isinstance(refusal, PermissionDeniedError)
        assert refusal.details["reason"] == "program_home"
    assert not (home / "hooks.json").exists()


async def test_writing_a_sensitive_file_has_a_reason_of_its_own(code: Code) -> None:
    access = (await code.prepare("write_file", path=".env", content="A=1")).access
    assert access.reason == "sensitive"


async def test_a_file_changed_after_the_question_is_left_alone(code: Code, project: Path) -> None:
    path = project / "a.txt"
    path.write_text("old", encoding="utf-8")
    replacing = await code.prepare("write_file", path="a.txt", content="new", overwrite=True)
    creating = await code.prepare("write_file", path="b.txt", content="new")
    path.write_text("mine", encoding="utf-8")
    (project / "b.txt").write_text("mine", encoding="utf-8")
    for action in (replacing, creating):
        with pytest.raises(ToolError, match="changed on disk"):
            await action.run()
    assert path.read_text(encoding="utf-8") == "mine"


async def test_a_folder_swapped_after_the_question_is_not_followed(
    code: Code, project: Path, home: Path
) -> None:
    (project / "folder").mkdir()
    action = await code.prepare("write_file", path="folder/hooks.json", content="{}")
    (project / "folder").rmdir()
    (project / "folder").symlink_to(home)
    with pytest.raises(ToolError) as refusal:
        await action.run()
    assert refusal.value.code is ErrorCode.PATH_CONFLICT
    assert not (home / "hooks.json").exists()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".", ErrorCode.PATH_CONFLICT),
        ("a.txt/b", ErrorCode.PATH_CONFLICT),
        ("x" * 300, ErrorCode.VALIDATION_ERROR),
        ("/dev/null", ErrorCode.PATH_CONFLICT),
    ],
)
async def test_what_cannot_be_written_has_a_clear_error(
    code: Code, project: Path, path: str, expected: ErrorCode
) -> None:
    (project / "a.txt").write_text("", encoding="utf-8")
    assert (await refusal_of(code, path=path, content="", overwrite=True)).code is expected


async def test_text_that_no_file_can_hold_is_refused(code: Code, project: Path) -> None:
    refusal = await refusal_of(code, path="a.txt", content="a\ud800")
    assert refusal.code is ErrorCode.VALIDATION_ERROR
    assert refusal.details["path"] == "$.content"


async def test_l2_a_plan_has_a_plain_name_and_is_never_replaced(
    workspace: Workspace, context: ToolContext, project: Path
) -> None:
    plans = project / ".soong-agent" / "plans"
    code = Code(replace(workspace, plans_dir=plans), context)
    await code("write_file", path=".soong-agent/plans/fix-login_2.md", content="# Plan")
    again = await refusal_of(
        code, path=".soong-agent/plans/fix-login_2.md", content="x", overwrite=True
    )
    assert again.code is ErrorCode.PATH_CONFLICT
    for name in ("Plan.md", "a.txt", "sub/a.md", "a" * 81 + ".md", "ü.md"):
        odd = await refusal_of(code, path=f".soong-agent/plans/{name}", content="x")
        assert odd.code is ErrorCode.VALIDATION_ERROR
    edits = [{"old": "", "new": "x"}]
    odd_path = ".soong-agent/plans/My Plan.txt"
    with pytest.raises(ToolError, match="not a name for a plan"):
        await code("edit_file", path=odd_path, edits=edits, create_if_missing=True)
    edited = await code(
        "edit_file",
        path=".soong-agent/plans/fix-login_2.md",
        edits=[{"old": "Plan", "new": "Done"}],
    )
    assert edited["edits_applied"] == 1


async def test_a_large_replacement_is_shown_whole(code: Code, project: Path) -> None:
    (project / "a.txt").write_text("same\n" * 50_000, encoding="utf-8")
    action = await code.prepare(
        "write_file", path="a.txt", content="other\n" * 50_000, overwrite=True
    )
    assert action.access.diff is not None
    assert action.access.diff.count("\n-same") == action.access.diff.count("\n+other") == 50_000


@pytest.mark.parametrize(
    ("before", "after", "encoding"),
    [
        ("\ufeff名前\r\n年齢\r\n".encode(), "\ufeff名前\r\n住所\r\n".encode(), "utf-8-sig"),
        ("﻿名前\n年齢\n".encode("utf-16-le"), "﻿名前\n住所\n".encode("utf-16-le"), "utf-16-le"),
        (
            "请检查这个单位是否正确。\n年龄和地址\n".encode("gb18030"),
            "请检查这个单位是否正确。\n地址\n".encode("gb18030"),
            "gb18030",
        ),
        (
            "größe\r\nmaß\r\nstraße\r\n".encode("cp1252"),
            "größe\r\nöl\r\n".encode("cp1252"),
            "cp1252",
        ),
        (b"plain\r\nascii\r\n", "plain\r\nné\r\n".encode(), "utf-8"),
    ],
)
async def test_an_overwrite_keeps_encoding_mark_and_line_ends(
    code: Code, project: Path, before: bytes, after: bytes, encoding: str
) -> None:
    (project / "a.txt").write_bytes(before)
    page = await code("read_file", path="a.txt")
    assert page["encoding"] == encoding
    text = after.decode(encoding).removeprefix("\ufeff").replace("\r\n", "\n")
    action = await code.prepare("write_file", path="a.txt", content=text, overwrite=True)
    assert "\ufffd" not in (action.access.diff or "")
    await action.run()
    assert (project / "a.txt").read_bytes() == after


async def test_an_overwrite_that_the_encoding_cannot_hold_names_the_character(
    code: Code, project: Path
) -> None:
    before = "größe und maß der straße\n".encode("cp1252")
    (project / "a.txt").write_bytes(before)
    await code("read_file", path="a.txt")
    refusal = await refusal_of(code, path="a.txt", content="größe 大\n", overwrite=True)
    assert refusal.code is ErrorCode.VALIDATION_ERROR
    assert "'大'" in refusal.message
    assert "cp1252" in refusal.message
    assert (project / "a.txt").read_bytes() == before


@pytest.mark.parametrize("before", [b"\0\1binary", "é ü ö ß ñ ç ".encode() + b"\xff", b""])
async def test_what_is_no_clean_text_is_replaced_by_utf_8(
    code: Code, project: Path, before: bytes
) -> None:
    (project / "a.bin").write_bytes(before)
    await code("read_file", path="a.bin")
    await code("write_file", path="a.bin", content="né\r\n", overwrite=True)
    assert (project / "a.bin").read_bytes() == "né\r\n".encode()
