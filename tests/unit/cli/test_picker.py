"""The state of a list that a person chooses from, and its lines."""

import asyncio
from collections.abc import Sequence

from agent_core.cli.chat.picker import Pages, Picker, PickerEntry, line_of, numbered_lines
from agent_core.cli.layout import cells
from agent_core.errors import ErrorCode, StorageError


async def pages_of(*pages: Sequence[PickerEntry]) -> Pages:
    for page in pages:
        yield page


def named(*names: str) -> list[PickerEntry]:
    return [PickerEntry(f"id_{name}", name) for name in names]


def texts(picker: Picker, rows: int = 10) -> list[str]:
    """The entries in sight, from the top to the bottom."""
    return [choice.text for choice in picker.shown(rows)[1]][::-1]


async def full(picker: Picker) -> Picker:
    await picker.have(10_000)
    return picker


async def test_the_newest_entry_is_the_lowest_and_selected() -> None:
    picker = await full(Picker("?", pages_of(named("newest", "older"), named("oldest"))))
    assert texts(picker) == ["oldest", "older", "newest"]
    assert picker.chosen() == "id_newest"
    picker.move(1)
    assert picker.chosen() == "id_older"
    picker.move(-5)
    assert picker.chosen() == "id_newest"
    picker.move(5)
    assert picker.chosen() == "id_oldest"


async def test_the_selected_entry_stays_in_sight() -> None:
    picker = await full(Picker("?", pages_of(named(*map(str, range(9))))))
    for _ in range(4):
        picker.move(1)
    assert texts(picker, 3) == ["4", "3", "2"]
    picker.move(-1)
    assert texts(picker, 3) == ["4", "3", "2"], "it scrolls only where it must"
    assert texts(picker, 1) == ["3"], "the window has become lower"
    picker.move(-9)
    assert texts(picker, 3) == ["2", "1", "0"]


async def test_words_in_any_case_and_order_narrow_the_list() -> None:
    found = [
        *named("Fix the LAMP", "Straße räumen", "修理台灯"),
        PickerEntry("sess_9f", "x", words="9f"),
    ]
    picker = await full(Picker("?", pages_of(found)))
    for typed, value in (
        ("lamp fix", "id_Fix the LAMP"),
        ("STRASSE", "id_Straße räumen"),
        ("台灯", "id_修理台灯"),
        ("9F", "sess_9f"),
    ):
        picker.narrow(typed)
        assert picker.chosen() == value
    picker.narrow("lamp 9f")
    assert picker.chosen() is None
    assert picker.hint() == "nothing matches, Esc leaves"
    picker.narrow("")
    assert len(picker.matches) == 4


async def test_a_typed_text_is_taken_where_that_is_allowed() -> None:
    picker = await full(Picker("?", pages_of(named("a")), takes_other=True))
    picker.narrow(" ollama:qwen3 ")
    assert picker.chosen() == "ollama:qwen3"
    assert picker.hint().startswith("Enter takes what you typed")
    picker.narrow("  ")
    assert picker.chosen() == "id_a"


async def test_pages_are_read_as_they_are_needed() -> None:
    read = 0

    async def many() -> Pages:
        nonlocal read
        for page in range(200):
            read += 1
            yield named(*(f"{page} {number}" for number in range(25)))

    picker, changed = Picker("?", many()), asyncio.Event()
    filling = asyncio.create_task(picker.fill(changed.set))
    await changed.wait()
    picker.shown(10)
    for _ in range(20):
        await asyncio.sleep(0)
    assert read <= 2
    assert "+" in picker.hint()
    picker.move(24)
    for _ in range(20):
        await asyncio.sleep(0)
    assert 2 <= read <= 4
    picker.narrow("199 24")
    await filling
    assert picker.chosen() == "id_199 24"
    assert read == 200


async def test_an_entry_that_two_pages_have_is_listed_once() -> None:
    picker = await full(Picker("?", pages_of(named("a", "b"), named("b", "c"))))
    assert texts(picker) == ["c", "b", "a"]


async def test_pages_that_cannot_be_read_leave_those_that_were() -> None:
    async def broken() -> Pages:
        yield named("a")
        raise StorageError(ErrorCode.STORAGE_ERROR, "the disk is gone")

    picker = Picker("?", broken())
    picker.shown(10)
    await picker.fill(bool)
    assert picker.chosen() == "id_a"
    assert "the disk is gone" in picker.hint()


def test_lines_fit_any_width_and_nothing_in_them_acts_on_the_terminal() -> None:
    choice = PickerEntry(
        "x", "修理 the \x1b[2J\nlamp 台灯", ["2 h ago   ", "completed"], is_current=True
    )
    for width in (12, 20, 40, 41, 80, 200):
        line = line_of(choice, width, lead=">* ")
        assert cells(line) <= width
        assert "\x1b" not in line
        assert "\n" not in line
    assert line_of(choice, 40, lead=">* ").startswith(">* 2 h ago     修理 the")
    assert line_of(choice, 30, lead=">* ").startswith(">* 修理 the")
    assert "completed  修理" in line_of(choice, 80, lead=">* ")


def test_numbers_end_with_the_newest() -> None:
    lines = numbered_lines([*named(*map(str, range(11)))], 40)
    assert lines[0].startswith("11  ")
    assert lines[-1] == " 1  0"


async def test_a_typed_line_names_an_id_or_a_whole_name() -> None:
    found = [
        PickerEntry("sess_18ea", "one", words="18ea"),
        PickerEntry("sess_18eb", "two", words="18eb"),
    ]
    picker = await full(Picker("?", pages_of(found)))
    assert picker.named("18ea") == "sess_18ea"
    assert picker.named("sess_18") is None
    assert picker.named("two") == "sess_18eb"
    assert picker.named("one ") is None
    assert picker.named("t") is None
