"""`code.read_file`: one page, whatever the file is like."""

from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent_core.config.models import ToolsConfig
from agent_core.errors import ErrorCode, ToolError
from agent_core.tools import ToolAnswer, ToolContext
from agent_core.tools.workspace import Reading, Workspace
from agent_core.types import Draft, user_text
from tool_facts import Code, Kept


async def test_g1_a_page_has_as_many_lines_as_asked_and_names_the_next_line(
    code: Code, project: Path
) -> None:
    lines = [f"line {n}\n" for n in range(1, 1201)]
    (project / "a.txt").write_text("".join(lines), encoding="utf-8")
    page = await code("read_file", path="a.txt", start_line=1, max_lines=1000)
    assert page == {
        "path": "a.txt",
        "content": "".join(lines[:1000]),
        "truncated": True,
        "next_start_line": 1001,
        "truncated_lines": [],
        "binary": False,
        "encoding": "utf-8",
        "already_loaded": False,
        "total_lines": 1200,
    }
    rest = await code("read_file", path="a.txt", start_line=1001, max_lines=1000)
    assert rest["content"] == "".join(lines[1000:])
    assert (rest["truncated"], rest["next_start_line"]) == (False, None)


async def test_g2_a_long_line_is_cut_and_listed(code: Code, project: Path) -> None:
    text = "short\n" + "é" * 5000 + "\nlast\n" + "x" * 4096 + "\n"
    (project / "a.txt").write_text(text, encoding="utf-8")
    page = await code("read_file", path="a.txt")
    assert page["content"] == "short\n" + "é" * 2048 + "\nlast\n" + "x" * 4096 + "\n"
    assert page["truncated_lines"] == [2]
    assert page["truncated"] is False


GERMAN = "Grüße aus Köln, schöne Straße für Fußgänger\n"
BINARY = [b"\x89PNG\r\n\x1a\n\0\0", bytes(range(256)), b"\xff\xfe\0\0\x01"]


@pytest.mark.parametrize("content", BINARY)
async def test_g3_a_binary_file_has_no_content(code: Code, project: Path, content: bytes) -> None:
    (project / "a.bin").write_bytes(content)
    page = await code("read_file", path="a.bin")
    assert page["binary"] is True
    assert page["content"] == ""


async def test_e7_reading_makes_no_artifact(code: Code, project: Path, kept: Kept) -> None:
    (project / "a.txt").write_text("x" * 99 + "\n" + "y\n" * 100_000, encoding="utf-8")
    page = await code("read_file", path="a.txt", max_lines=1000)
    assert page["truncated"] is True
    assert kept.artifacts == {}
    tool = code.box.get("code.read_file")
    assert tool is not None
    assert tool.keeps_own_limits


async def test_a_page_ends_at_the_result_limit_with_whole_lines(
    workspace: Workspace, context: ToolContext, project: Path
) -> None:
    small = replace(workspace, limits=ToolsConfig(result_limit_bytes=100))
    (project / "a.txt").write_text(("x" * 39 + "\n") * 5, encoding="utf-8")
    (project / "b.txt").write_text("x" * 500 + "\nnext\n", encoding="utf-8")
    page = await Code(small, context)("read_file", path="a.txt")
    assert page["content"] == ("x" * 39 + "\n") * 2
    assert page["next_start_line"] == 3
    one = await Code(small, context)("read_file", path="b.txt")
    assert one["content"] == "x" * 500 + "\n"
    assert one["next_start_line"] == 2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", ""),
        (b"no end", "no end"),
        (b"a\r\nb\r\n", "a\nb\n"),
        (b"\xef\xbb\xbfmark\n", "mark\n"),
        ("wide é\n".encode("utf-16"), "wide é\n"),
        ("wide\n".encode("utf-32"), "wide\n"),
        (GERMAN.encode("cp1252"), GERMAN),
        (b"form\x0cfeed\x1b[0m\n", "form\x0cfeed\x1b[0m\n"),
    ],
)
async def test_text_is_decoded_and_its_ends_are_evened(
    code: Code, project: Path, content: bytes, expected: str
) -> None:
    (project / "a.txt").write_bytes(content)
    page = await code("read_file", path="a.txt")
    assert page["binary"] is False
    assert page["content"] == expected


@pytest.mark.parametrize("encoding", ["latin-1", "cp1251", "utf-8"])
@pytest.mark.parametrize("lines", [4_000, 60_000])
async def test_text_whose_first_letters_beyond_ascii_come_late_is_decoded(
    code: Code, project: Path, encoding: str, lines: int
) -> None:
    last = "Съешь ещё этих булок\n" if encoding == "cp1251" else "été à Noël, garçon\n"
    plain = "a line of plain ASCII text\n" * lines
    (project / "a.txt").write_bytes((plain + last).encode(encoding))
    page = await code("read_file", path="a.txt", start_line=lines + 1)
    assert page["content"] == last
    first = await code("read_file", path="a.txt", max_lines=1)
    assert (first["content"], first["binary"]) == ("a line of plain ASCII text\n", False)


async def test_a_line_end_between_two_chunks_is_one_line_end(code: Code, project: Path) -> None:
    for size in range(2**18 - 3, 2**18 + 3):
        (project / "a.txt").write_bytes(b"x\n" * 10 + b"y" * (size - 20) + b"\r\nlast\r\n")
        page = await code("read_file", path="a.txt", start_line=11)
        assert page["content"] == "y" * 4096 + "\nlast\n"
        assert page["total_lines"] == 12


async def test_a_huge_file_costs_one_page(code: Code, project: Path) -> None:
    with (project / "huge").open("wb") as file:
        file.write(b"first\n" * 100_000)
        file.truncate(10 * 2**30)
    page = await code("read_file", path="huge", start_line=50_000, max_lines=2)
    assert page["content"] == "first\nfirst\n"
    assert page["total_lines"] is None
    assert page["next_start_line"] == 50_002


@pytest.mark.long
async def test_a_huge_line_costs_no_memory_and_the_next_line_is_found(
    code: Code, project: Path
) -> None:
    with (project / "wide").open("wb") as file:
        for _ in range(50):
            file.write(b"x" * 2**20)
        file.write(b"\nnext\n")
    page = await code("read_file", path="wide")
    assert page["content"] == "x" * 4096 + "\nnext\n"
    assert page["truncated_lines"] == [1]


async def test_beyond_the_end_there_is_only_the_count_of_lines(code: Code, project: Path) -> None:
    (project / "a.txt").write_text("a\nb", encoding="utf-8")
    page = await code("read_file", path="a.txt", start_line=10)
    assert (page["content"], page["truncated"], page["total_lines"]) == ("", False, 2)


async def test_h1_reading_in_the_project_needs_no_question(code: Code, project: Path) -> None:
    (project / "a.txt").write_text("a", encoding="utf-8")
    access = (await code.prepare("read_file", path="a.txt")).access
    assert not access.asks
    assert access.target == str(project / "a.txt")


async def test_h2_reading_a_secret_asks_even_through_a_link(code: Code, project: Path) -> None:
    (project / ".env").write_text("KEY=1", encoding="utf-8")
    (project / "notes.txt").symlink_to(project / ".env")
    for path in (".env", "notes.txt", "certs/a.pem"):
        access = (await code.prepare("read_file", path=path)).access
        assert access.asks
        assert access.reason == "sensitive"
        assert access.scope == access.target


async def test_reading_asks_where_the_user_wants_to_be_asked(
    workspace: Workspace, context: ToolContext
) -> None:
    careful = Code(replace(workspace, asks_to_read=True), context)
    for name in ("read_file", "list_dir"):
        assert (await careful.prepare(name, path=".")).access.asks


async def test_a_link_swapped_in_after_the_question_is_not_followed(
    code: Code, project: Path, home: Path
) -> None:
    (project / "a.txt").write_text("mine", encoding="utf-8")
    action = await code.prepare("read_file", path="a.txt")
    (project / "a.txt").unlink()
    (project / "a.txt").symlink_to(home / "config.toml")
    with pytest.raises(ToolError) as refusal:
        await action.run()
    assert refusal.value.code is ErrorCode.PATH_CONFLICT


@pytest.mark.parametrize("path", ["nothing.txt", ".", "/proc/self/environ", "/dev/null"])
async def test_what_cannot_be_read_has_a_clear_error(code: Code, path: str) -> None:
    with pytest.raises(ToolError) as refusal:
        await code("read_file", path=path)
    assert refusal.value.code in {ErrorCode.FILE_NOT_FOUND, ErrorCode.PATH_CONFLICT}


async def test_a_register_gets_text_files_and_may_add_to_the_conversation(
    workspace: Workspace, context: ToolContext, project: Path
) -> None:
    class Register:
        def __init__(self) -> None:
            self.seen: list[Path] = []

        def offers(self, path: Path, /) -> bool:
            return False

        def in_order(self, path: Path, /) -> AbstractAsyncContextManager[None]:
            return nullcontext()

        async def note(self, path: Path, context: ToolContext, /) -> Reading:
            self.seen.append(path)
            return Reading(already_loaded=len(self.seen) > 1, adds=[added])

    added: Draft = user_text("loaded")
    register = Register()
    code = Code(replace(workspace, register=register), context)
    (project / "CLAUDE.md").write_text("rules", encoding="utf-8")
    (project / "x.bin").write_bytes(b"\0")
    first = await (await code.prepare("read_file", path="CLAUDE.md")).run()
    assert isinstance(first, ToolAnswer)
    assert first.adds == [added]
    assert (await code("read_file", path="CLAUDE.md"))["already_loaded"] is True
    assert (await code("read_file", path="x.bin"))["already_loaded"] is False
    assert register.seen == [project / "CLAUDE.md"] * 2
