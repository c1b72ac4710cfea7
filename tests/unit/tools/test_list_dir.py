"""`code.list_dir`: sorted, bounded, and never led out by a link."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_core.errors import ErrorCode, ToolError
from agent_core.tools import ToolContext
from agent_core.tools.code import code_tool
from agent_core.tools.code.read import ListDir
from agent_core.tools.workspace import Workspace
from tool_facts import Code


def names(listing: dict[str, Any]) -> list[str]:
    return [entry["path"] for entry in listing["entries"]]


@pytest.fixture
def tree(project: Path) -> Path:
    for path in ("b/deep/x.txt", "a.txt", "c.txt", ".git/HEAD", "b/y.txt"):
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text("12345", encoding="utf-8")
    return project


async def test_g4_without_recursion_only_the_first_level_is_listed(code: Code, tree: Path) -> None:
    listing = await code("list_dir", path=".")
    assert listing == {
        "entries": [
            {"name": ".git", "path": ".git", "type": "dir", "size": None},
            {"name": "a.txt", "path": "a.txt", "type": "file", "size": 5},
            {"name": "b", "path": "b", "type": "dir", "size": None},
            {"name": "c.txt", "path": "c.txt", "type": "file", "size": 5},
        ],
        "truncated": False,
    }


async def test_arguments_that_were_read_elsewhere_are_taken(
    workspace: Workspace, context: ToolContext, tree: Path
) -> None:
    tool = replace(code_tool("code.list_dir", workspace), parse=ListDir.model_validate)
    action = await tool.prepare(tool.parse({"path": "."}), context)
    listing = await action.run()
    assert isinstance(listing, dict)
    assert len(listing["entries"]) == 4


async def test_g5_a_limit_cuts_the_listing_and_marks_it(code: Code, tree: Path) -> None:
    listing = await code("list_dir", path=".", recursive=True, limit=2)
    assert len(listing["entries"]) == 2
    assert listing["truncated"] is True
    whole = await code("list_dir", path=".", recursive=True)
    assert names(whole) == [
        *(".git", "a.txt", "b", "b/deep", "b/deep/x.txt", "b/y.txt", "c.txt"),
    ]
    assert (await code("list_dir", path=".", recursive=True, limit=7))["truncated"] is False


async def test_links_and_loops_are_shown_and_not_followed(
    code: Code, project: Path, home: Path
) -> None:
    (project / "loop").symlink_to(project)
    (project / "out").symlink_to(home)
    (project / "dangling").symlink_to(project / "nothing")
    os.mkfifo(project / "pipe")
    listing = await code("list_dir", path=".", recursive=True)
    assert [(entry["name"], entry["type"]) for entry in listing["entries"]] == [
        ("dangling", "link"),
        ("loop", "link"),
        ("out", "link"),
        ("pipe", "other"),
    ]


async def test_a_folder_300_deep_is_listed_to_its_end(code: Code, project: Path) -> None:
    here = os.open(project, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("a-folder-with-a-long-name", dir_fd=here)
        inner = os.open("a-folder-with-a-long-name", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    listing = await code("list_dir", path=".", recursive=True)
    assert len(listing["entries"]) == 300
    assert listing["truncated"] is False


@pytest.mark.long
async def test_many_files_cost_what_is_shown(code: Code, project: Path) -> None:
    for number in range(3000):
        os.close(os.open(project / f"{number:05}", os.O_CREAT | os.O_WRONLY))
    listing = await code("list_dir", path=".")
    assert names(listing) == [f"{number:05}" for number in range(1000)]
    assert listing["truncated"] is True


async def test_a_folder_outside_is_shown_with_whole_paths(code: Code, home: Path) -> None:
    assert names(await code("list_dir", path=str(home))) == [str(home / "config.toml")]


@pytest.mark.parametrize(
    ("path", "expected"),
    [("nothing", ErrorCode.FILE_NOT_FOUND), ("a.txt", ErrorCode.PATH_CONFLICT)],
)
async def test_what_is_no_folder_has_a_clear_error(
    code: Code, tree: Path, path: str, expected: ErrorCode
) -> None:
    with pytest.raises(ToolError) as refusal:
        await code("list_dir", path=path)
    assert refusal.value.code is expected


async def test_listing_a_secret_folder_asks(code: Code) -> None:
    assert (await code.prepare("list_dir", path="~/.ssh")).access.asks
    assert not (await code.prepare("list_dir", path=".")).access.asks


async def test_folders_with_secrets_are_named_and_not_entered(code: Code, project: Path) -> None:
    for name in (".env.d/x", "sub/.ENV.local/x", "Server.PEM/x", "open/x"):
        (project / name).parent.mkdir(parents=True)
        (project / name).write_text("", encoding="utf-8")
    listed = names(await code("list_dir", path=".", recursive=True))
    assert listed == [".env.d", "Server.PEM", "open", "open/x", "sub", "sub/.ENV.local"]
    agreed = await code.prepare("list_dir", path="sub/.ENV.local")
    assert agreed.access.reason == "sensitive"
    inside = await code("list_dir", path="sub/.ENV.local", recursive=True)
    assert names(inside) == ["sub/.ENV.local/x"]
