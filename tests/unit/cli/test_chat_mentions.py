"""Files are named behind an `@`, in any script and beside any punctuation."""

from pathlib import Path

from agent_core.cli.chat.mentions import find_mentions, unfinished_mention
from agent_core.cli.chat.message import attach_files
from agent_core.tools.workspace import PathPolicy
from agent_core.types import TextBlock
from tables import together

FILES = {
    "lamp.py",
    "src",
    "src/",
    "src/a.py",
    "b.md",
    "数据/a.txt",
    "需求.md",
    "d.py",
    "my notes.txt",
}


def look_up(name: str) -> str | None:
    return name if name in FILES else None


@together(
    ("text", "found"),
    [
        ("look at @lamp.py", ["lamp.py"]),
        ("请检查@lamp.py的单位", ["lamp.py"]),
        ("ランプは@lamp.pyにあります", ["lamp.py"]),
        ("ดู@lamp.pyหน่อย", ["lamp.py"]),
        ("확인@lamp.py의 단위", ["lamp.py"]),
        ("“@数据/a.txt”里的值", ["数据/a.txt"]),
        ("@需求.md、@b.md,@d.py;@lamp.py", ["需求.md", "b.md", "d.py", "lamp.py"]),
        ("(@src/a.py) [@b.md] {@d.py} <@lamp.py> '@lamp.py'", "src/a.py b.md d.py lamp.py lamp.py"),
        ("@lamp.py:12 @lamp.py:1-3, @lamp.py's @lamp.py. @lamp.py?!", "lamp.py " * 5),
        ("x=@d.py", ["d.py"]),
        ('read @"my notes.txt"now', ["my notes.txt"]),
        ("@src/的文件", ["src/"]),
    ],
)
def test_a_mention_ends_where_its_file_does(text: str, found: list[str] | str) -> None:
    names = found.split() if isinstance(found, str) else found
    assert [name for name, place in find_mentions(text, look_up) if place] == names


@together(
    ("text", "name"),
    [
        ("@lamp.py.bak", "lamp.py.bak"),
        ("@lamp.pyc", "lamp.pyc"),
        ("@src/lamp.py", "src/lamp.py"),
        ("@b.md-old", "b.md-old"),
        ("请看@没有.md、谢谢", "没有.md"),
        ("what does @dataclass(frozen=True) do", "dataclass"),
        ("@gone.py:12.", "gone.py"),
    ],
)
def test_a_file_that_is_not_there_is_named_whole(text: str, name: str) -> None:
    assert [*find_mentions(text, look_up)] == [(name, None)]


@together(
    "text",
    [
        "write to me@lamp.py",
        "é@lamp.py",
        "a.b@d.py",
        "node_modules/@src/a.py",
        "@",
        "@@",
        "@ lamp.py",
    ],
)
def test_an_address_or_the_middle_of_a_path_is_no_mention(text: str) -> None:
    assert [*find_mentions(text, look_up)] == []


def test_a_resource_of_a_server_is_not_looked_for() -> None:
    assert [*find_mentions("@notes:file:///a and @notes:x", look_up)] == []


def test_a_long_run_of_letters_is_looked_up_a_bounded_number_of_times() -> None:
    looked_up: list[str] = []
    assert [*find_mentions("@" + "名" * 100_000, lambda name: looked_up.append(name))]
    assert len(looked_up) <= 400


@together(
    ("before", "unfinished"),
    [
        ("look at @lam", (9, "lam")),
        ("请检查@lam", (4, "lam")),
        ("(@src/", (2, "src/")),
        ('see @"my no', (5, '"my no'[1:])),
        ("me@lam", None),
        ("@lam and", None),
    ],
)
def test_the_path_under_the_cursor_is_completed(
    before: str, unfinished: tuple[int, str] | None
) -> None:
    assert unfinished_mention(before) == unfinished


@together("encoding", ["utf-8", "utf-8-sig", "gbk", "utf-16", "cp1251"])
def test_an_attached_file_is_read_in_its_encoding(tmp_path: Path, encoding: str) -> None:
    text = (
        "всегда пиши по-русски, и никогда иначе\n" if encoding == "cp1251" else "总是用中文回答\n"
    )
    (tmp_path / "notes.txt").write_bytes(text.encode(encoding))
    (tmp_path / "tool").write_bytes(b"\x7fELF\0\x01\x02\x03\0\0")
    notes, program = attach_files("see @notes.txt @tool", PathPolicy(tmp_path))
    assert isinstance(notes.block, TextBlock)
    assert text in notes.block.text
    assert (program.block, program.remark) == (None, "it is not text")
