"""Text files of every encoding, mark and line end keep them when they are read and written back."""

import codecs
from itertools import product
from pathlib import Path

import pytest

from agent_core.tools.files import MAX_LOADED_BYTES
from sweeps import sampled
from tool_facts import Code

TEXTS = {
    "utf-8": ["größe 名前", "zwei", "drei"],
    "utf-16-le": ["title and 名前", "second line", "third line"],
    "utf-16-be": ["title and größe", "second line", "third line"],
    "gb18030": ["请检查这个单位是否正确。", "年龄和地址", "第三行"],
    "big5": ["這是一個繁體中文的檔案", "請檢查內容是否正確", "謝謝"],
    "shift_jis": ["これは日本語の文章です", "そして漢字もあります", "です"],
    "euc_kr": ["한국어로 작성된 문서입니다", "내용을 확인하세요", "끝"],
    "cp1252": ["größe", "maß", "straße"],
    "cp1251": ["привет мир, это текст", "еще одна строка", "конец"],
}
MARKS = {
    "utf-8": ["", codecs.BOM_UTF8],
    "utf-16-le": ["", codecs.BOM_UTF16_LE],
    "utf-16-be": ["", codecs.BOM_UTF16_BE],
}
CASES = [
    (name, mark or b"", newline, is_ended)
    for name in TEXTS
    for mark, newline, is_ended in product(
        MARKS.get(name, [""]), ("\n", "\r\n", "\r"), (True, False)
    )
]


@pytest.mark.parametrize(("name", "mark", "newline", "is_ended"), sampled(CASES, keep=12))
async def test_an_overwrite_keeps_everything_but_the_text(
    code: Code, project: Path, name: str, mark: bytes, newline: str, is_ended: bool
) -> None:
    """The unchanged text gives the same bytes, and a changed one the same encoding and ends."""
    lines, file = TEXTS[name], project / "a.txt"

    def encoded(*lines: str) -> bytes:
        text = newline.join(lines) + (newline if is_ended else "")
        return mark + text.encode(name)

    before = encoded(*lines)
    file.write_bytes(before)
    page = await code("read_file", path="a.txt")
    assert page["encoding"] == ("utf-8-sig" if mark == codecs.BOM_UTF8 else name)
    await code("write_file", path="a.txt", content=page["content"], overwrite=True)
    assert file.read_bytes() == before
    new = "\n".join([lines[0], lines[2], lines[1]]) + ("\n" if is_ended else "")
    action = await code.prepare("write_file", path="a.txt", content=new, overwrite=True)
    assert "\ufffd" not in (action.access.diff or "")
    await action.run()
    assert file.read_bytes() == encoded(lines[0], lines[2], lines[1])
    edit = {"old": lines[1], "new": f"{lines[1]}\n{lines[2]}"}
    await code("edit_file", path="a.txt", edits=[edit])
    assert file.read_bytes() == encoded(lines[0], lines[2], lines[1], lines[2])


async def test_lines_that_stay_keep_their_own_ends(code: Code, project: Path) -> None:
    file = project / "a.txt"
    file.write_bytes(b"one\r\ntwo\nthree\r\nfour\r\nfive\nsix")
    page = await code("read_file", path="a.txt")
    await code("write_file", path="a.txt", content=page["content"], overwrite=True)
    assert file.read_bytes() == b"one\r\ntwo\nthree\r\nfour\r\nfive\nsix"
    await code(
        "write_file", path="a.txt", content="zero\none\ntwo\nfour\nfive\nsix\n", overwrite=True
    )
    assert file.read_bytes() == b"zero\r\none\r\ntwo\nfour\r\nfive\nsix\r\n"


@pytest.mark.long
async def test_a_long_file_with_mixed_ends_is_adapted_quickly(code: Code, project: Path) -> None:
    file = project / "a.txt"
    before = b"".join(b"%d\r\n" % n if n % 3 else b"%d\n" % n for n in range(200_000))
    file.write_bytes(before)
    changed = "".join(f"{n}\n" if n != 100_000 else "changed\n" for n in range(200_000))
    await code("write_file", path="a.txt", content=changed, overwrite=True)
    assert file.read_bytes() == before.replace(b"\n100000\r\n", b"\nchanged\r\n")


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
async def test_a_broken_place_costs_neither_mark_nor_line_ends(
    code: Code, project: Path, mark: bytes
) -> None:
    file = project / "a.txt"
    file.write_bytes(
        mark + "größe und maß\r\nöl ".encode() + b"\xff\r\n" + "und straße\r\n".encode()
    )
    page = await code("read_file", path="a.txt")
    assert page["encoding"] is not None
    action = await code.prepare(
        "write_file", path="a.txt", content="größe\nund straße\n", overwrite=True
    )
    assert "-größe und maß" in (action.access.diff or "")
    await action.run()
    assert file.read_bytes() == mark + "größe\r\nund straße\r\n".encode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (codecs.BOM_UTF8, codecs.BOM_UTF8 + b"a\n"),
        (codecs.BOM_UTF16_LE, "\ufeffa\n".encode("utf-16-le")),
        (b"", b"a\n"),
    ],
)
async def test_an_empty_file_keeps_its_mark(
    code: Code, project: Path, before: bytes, after: bytes
) -> None:
    (project / "a.txt").write_bytes(before)
    await code("write_file", path="a.txt", content="a\n", overwrite=True)
    assert (project / "a.txt").read_bytes() == after


async def test_a_file_too_large_to_load_keeps_its_encoding(code: Code, project: Path) -> None:
    line = "请检查这个单位是否正确。\r\n".encode("gb18030")
    (project / "a.txt").write_bytes(line * (MAX_LOADED_BYTES // len(line) + 1))
    action = await code.prepare(
        "write_file", path="a.txt", content="年龄和地址\n第三行\n", overwrite=True
    )
    assert "(all of it is replaced)" in (action.access.diff or "")
    await action.run()
    assert (project / "a.txt").read_bytes() == "年龄和地址\r\n第三行\r\n".encode("gb18030")


async def test_a_new_file_is_utf_8_as_it_was_given(code: Code, project: Path) -> None:
    await code("write_file", path="a.txt", content="é\r\nb\n")
    assert (project / "a.txt").read_bytes() == "é\r\nb\n".encode()


@pytest.mark.parametrize(
    "content",
    [
        b"\0\0\1\0",
        b"\0",
        b"a\0",
        b"abc\0def\0",
        b"\x7fELF\x02\x01\x01\0\0\0\0\0",
        bytes(range(256)),
    ],
)
async def test_data_with_zeros_is_not_taken_for_utf_16(
    code: Code, project: Path, content: bytes
) -> None:
    (project / "a.bin").write_bytes(content)
    assert (await code("read_file", path="a.bin"))["binary"] is True
