"""`code.search`: what ripgrep finds, bounded, without secrets."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent_core.config.models import ToolsConfig
from agent_core.errors import ErrorCode, ToolError
from agent_core.tools import ToolContext
from agent_core.tools.code.search import ripgrep
from agent_core.tools.workspace import Workspace
from sweeps import paired
from tool_facts import Code


def put(root: Path, **files: str) -> None:
    for name, text in files.items():
        write(root / name, text)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def places(found: dict[str, Any]) -> list[tuple[str, int]]:
    return [(match["path"], match["line"]) for match in found["matches"]]


async def test_g6_the_project_is_searched_by_default(code: Code, project: Path) -> None:
    write(project / "src/a.py", "one\nneedle here\n")
    write(project / "b.txt", "no\n")
    found = await code("search", query="needle", path=None)
    assert found == {
        "matches": [{"path": "src/a.py", "line": 2, "text": "needle here"}],
        "truncated": False,
    }


async def test_the_query_is_plain_text_unless_it_is_a_regex(code: Code, project: Path) -> None:
    write(project / "a.txt", "f(x)\nfx\n--help\n")
    assert places(await code("search", query="f(x)")) == [("a.txt", 1)]
    assert places(await code("search", query="^f.?x", regex=True)) == [("a.txt", 1), ("a.txt", 2)]
    assert places(await code("search", query="--help")) == [("a.txt", 3)]


async def test_ignored_files_stay_out_even_if_a_glob_names_them(code: Code, project: Path) -> None:
    write(project / ".gitignore", "*.log\nbuild/\n")
    for name in ("a.log", "build/b.txt", "c.txt", ".git/d.txt", ".github/e.txt"):
        write(project / name, "needle\n")
    assert places(await code("search", query="needle")) == [(".github/e.txt", 1), ("c.txt", 1)]
    assert places(await code("search", query="needle", glob="*.log")) == []


async def test_matches_that_ignore_files_hide_are_counted_and_can_be_included(
    code: Code, project: Path
) -> None:
    write(project / ".gitignore", "*.log\nbuild/\n.env\n")
    for name in ("a.log", "build/b.txt", "build/.env", "c.txt", ".git/d.txt", ".env"):
        write(project / name, "needle\nneedle\nother\n")
    found = await code("search", query="needle")
    assert places(found) == [("c.txt", 1), ("c.txt", 2)]
    assert found["ignored_matches"] == 4
    assert found["note"] == "4 more matches in ignored files; set include_ignored to search them"
    limited = await code("search", query="needle", limit=1)
    assert (limited["truncated"], limited["ignored_matches"]) == (True, 4)
    assert (await code("search", query="needle", glob="*.log"))["ignored_matches"] == 2
    assert len((await code("search", query="needle", path="build"))["matches"]) == 2
    both = await code("search", query="needle", include_ignored=True)
    assert {path for path, _ in places(both)} == {"a.log", "build/b.txt", "c.txt"}
    assert "ignored_matches" not in both
    assert (await code("search", query="absent")) == {"matches": [], "truncated": False}
    in_file = await code("search", query="needle", path="a.log")
    assert (len(in_file["matches"]), "note" in in_file) == (2, False)


async def test_ignored_files_that_take_too_long_to_count_are_mentioned(
    code: Code, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_core.tools.code.search._COUNT_SECONDS", 0)
    write(project / ".gitignore", "*.log\n")
    write(project / "a.log", "needle\n")
    found = await code("search", query="needle")
    assert found["matches"] == []
    assert "set include_ignored" in found["note"]


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("*.py", ["src/a.py", "src/deep/b.py"]),
        ("src/*.py", ["src/a.py"]),
        ("src/**/*.{py,ts}", ["src/a.py", "src/deep/b.py", "src/deep/c.ts"]),
        ("*.{ts,md}", ["d.md", "src/deep/c.ts"]),
        ("src/deep/", ["src/deep/b.py", "src/deep/c.ts"]),
        ("!*.py", ["d.md", "src/deep/c.ts"]),
    ],
)
async def test_a_glob_narrows_the_search(
    code: Code, project: Path, glob: str, expected: list[str]
) -> None:
    for name in ("src/a.py", "src/deep/b.py", "src/deep/c.ts", "d.md"):
        write(project / name, "needle\n")
    found = await code("search", query="needle", glob=glob)
    assert [match["path"] for match in found["matches"]] == expected


async def test_lines_around_a_match_are_shown(code: Code, project: Path) -> None:
    write(project / "a.txt", "".join(f"{n}{'!' * (n in {3, 5})}\n" for n in range(1, 9)))
    found = await code("search", query="!", context=2)
    assert found["matches"] == [
        {"path": "a.txt", "line": 3, "text": "3!", "before": ["1", "2"], "after": ["4", "5!"]},
        {"path": "a.txt", "line": 5, "text": "5!", "before": ["3!", "4"], "after": ["6", "7"]},
    ]


async def test_a_limit_ends_the_search_early(code: Code, project: Path) -> None:
    for name in "ab":
        write(project / f"{name}.txt", "needle\n" * 200_000)
    started = time.monotonic()
    found = await code("search", query="needle", limit=3)
    assert places(found) == [("a.txt", 1), ("a.txt", 2), ("a.txt", 3)]
    assert found["truncated"] is True
    assert time.monotonic() - started < 30
    exact = await code("search", query="needle", path="a.txt", limit=10_000)
    assert len(exact["matches"]) == 10_000


async def test_secrets_are_skipped_unless_they_were_asked_for(code: Code, project: Path) -> None:
    for name in (".env", "deep/server.pem", "ID.KEY", "plain.txt"):
        write(project / name, "needle\n")
    (project / "sub").mkdir()
    assert places(await code("search", query="needle")) == [("plain.txt", 1)]
    action = await code.prepare("search", query="needle", path=".env")
    assert action.access.asks
    assert action.access.reason == "sensitive"
    assert places(await code("search", query="needle", path=".env")) == [(".env", 1)]


async def test_links_are_not_followed_out(code: Code, project: Path, home: Path) -> None:
    (project / "out").symlink_to(home)
    (project / "loop").symlink_to(project)
    assert places(await code("search", query="secret")) == []


async def test_long_and_binary_and_oddly_named_files_do_no_harm(code: Code, project: Path) -> None:
    write(project / "wide.txt", "x" * 5_000_000 + "needle\n")
    (project / "bin").write_bytes(b"needle\n\0\1\2needle")
    (project / "latin.txt").write_bytes(b"caf\xe9 needle\n")
    write(project / "new\nline.txt", "needle\n")
    (project / os.fsdecode(b"b\xe9.txt")).write_text("needle\n", encoding="utf-8")
    found = await code("search", query="needle")
    texts = {match["path"]: match["text"] for match in found["matches"]}
    assert len(texts["wide.txt"]) < 700
    assert texts["latin.txt"] == "caf\ufffd needle"
    assert "bin" not in texts or texts["bin"] == "needle"


async def test_the_users_ripgrep_settings_are_not_read(
    code: Code, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project / "rc", "--ignore-case\n")
    write(project / "a.txt", "NEEDLE\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(project / "rc"))
    assert places(await code("search", query="needle")) == []


def test_ripgrep_is_the_one_that_was_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    ripgrep.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    assert ripgrep().is_file()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"query": "(", "regex": True}, ErrorCode.VALIDATION_ERROR),
        ({"query": "a\nb"}, ErrorCode.VALIDATION_ERROR),
        ({"query": "a\0b"}, ErrorCode.VALIDATION_ERROR),
        ({"query": ""}, ErrorCode.VALIDATION_ERROR),
        ({"query": "a", "glob": "a\0"}, ErrorCode.VALIDATION_ERROR),
        ({"query": "a", "path": "nothing"}, ErrorCode.FILE_NOT_FOUND),
        ({"query": "a", "path": "pipe"}, ErrorCode.PATH_CONFLICT),
        ({"query": "a", "path": "/proc"}, ErrorCode.PATH_CONFLICT),
    ],
)
async def test_an_impossible_search_has_a_clear_error(
    code: Code, project: Path, arguments: dict[str, Any], expected: ErrorCode
) -> None:
    os.mkfifo(project / "pipe")
    with pytest.raises(ToolError) as refusal:
        await code("search", **arguments)
    assert refusal.value.code is expected


async def test_a_search_takes_only_so_long(
    workspace: Workspace, context: ToolContext, project: Path
) -> None:
    hasty = Code(replace(workspace, limits=ToolsConfig(default_timeout_ms=1)), context)
    for number in range(300):
        write(project / f"{number}.txt", "text\n" * 1000)
    with pytest.raises(ToolError) as refusal:
        await hasty("search", query="needle")
    assert refusal.value.code is ErrorCode.TIMEOUT


async def test_many_searches_run_side_by_side(code: Code, project: Path) -> None:
    write(project / "a.txt", "needle\n")
    found = await asyncio.gather(*(code("search", query="needle") for _ in range(10)))
    assert {len(each["matches"]) for each in found} == {1}


@pytest.mark.parametrize(
    ("name", "kind"),
    paired(
        [".gitignore", ".ignore", ".rgignore", ".git/info/exclude"], ["fifo", "endless", "long"]
    ),
)
async def test_an_ignore_file_that_is_none_does_not_hold_a_search(
    code: Code, project: Path, name: str, kind: str
) -> None:
    write(project / "sub/a.txt", "needle\n")
    unfit = project / "sub" / name
    unfit.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "fifo":
            os.mkfifo(unfit)
        case "endless":
            unfit.symlink_to("/dev/zero")
        case _:
            unfit.write_text("".join(f"*a*a*a*a*{number}\n" for number in range(100_000)))
    started = time.monotonic()
    found = await code("search", query="needle", path="sub", glob="*.txt")
    assert places(found) == [("sub/a.txt", 1)]
    assert time.monotonic() - started < 40


async def test_an_ignore_file_above_the_searched_folder_does_not_hold_a_search(
    code: Code, project: Path
) -> None:
    write(project / "sub/a.txt", "needle\n")
    os.mkfifo(project / ".gitignore")
    assert places(await code("search", query="needle", path="sub")) == [("sub/a.txt", 1)]
