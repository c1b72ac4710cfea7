"""What text costs: titles of any length, and the import of the functions themselves."""

import subprocess
import sys
from collections import Counter
from types import FrameType
from typing import Any

from agent_core.text import (
    bounded_line,
    first_words,
    listed,
    nearest,
    plural,
    quoted,
    short_line,
    shortened,
    without_code,
)
from tables import together


def test_a_number_has_the_noun_that_it_takes() -> None:
    assert [plural(n, "file") for n in (0, 1, 2, 1000)] == [
        "0 files",
        "1 file",
        "2 files",
        "1,000 files",
    ]
    assert [plural(n, "retry", "retries") for n in (1, 2)] == ["1 retry", "2 retries"]
    assert shortened("abc", 2) == "ab… (+1 character)"
    assert shortened("abc", 1) == "a… (+2 characters)"


@together(
    ("text", "title"),
    [
        ("  fix\tthe \n tests ", "fix the tests"),
        ("fix\x00the\x1b[31m tests\u200b!", "fix the [31m tests !"),
        ("\x00" * 4000 + "fix", "fix"),
        ("löse das — 解決", "löse das — 解決"),
        ("\nمی‌خواهم 👩‍👩‍👧\x00!", "می‌خواهم 👩‍👩‍👧 !"),
        ("word " * 900, f"{'word ' * 15}word…"),
        ("", ""),
    ],
)
def test_a_title_is_one_line_of_printable_words(text: str, title: str) -> None:
    assert first_words(text) == title


def test_a_line_is_cut_at_a_word_and_says_so() -> None:
    assert short_line("one two\nthree", 13) == "one two three"
    assert short_line("one two three", 12) == "one two thr…"
    assert short_line("fourteen two three", 15) == "fourteen two…"
    assert short_line("a /long/path/to/a/file", 12) == "a /long/pat…"


def test_swapped_letters_are_nearer_than_a_missing_one() -> None:
    assert nearest("modle", ["mode", "model"]) == " (did you mean model?)"
    assert nearest("mod", ["mode", "model"], "/") == " (did you mean /mode?)"
    assert nearest("xyz", ["mode", "model"]) == ""


def test_names_beyond_the_most_are_counted() -> None:
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(["a", "b", "c", "d"], 2) == "a, b, 2 more"


def test_the_hints_for_programs_leave_the_message_of_a_person() -> None:
    assert without_code("move it (in code: move=True)\nand say (so)") == "move it\nand say (so)"
    assert without_code("name it (in code: open(model=...)), or not") == "name it, or not"


def test_long_text_takes_no_more_steps_than_short() -> None:
    assert _steps("word " * 800) == _steps("word")


def test_the_import_compiles_no_pattern() -> None:
    code = (
        "import sys, re; found = []\n"
        "def count(frame, event, _):\n"
        "    if event == 'call' and frame.f_code.co_filename.endswith('_compiler.py'):\n"
        "        if frame.f_code.co_name == 'compile': found.append(frame.f_locals['p'])\n"
        "sys.setprofile(count); re.compile('known'); import agent_core.text; sys.setprofile(None)\n"
        "print(*found)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    assert done.stdout.split() == ["known"]


def _steps(text: str) -> int:
    called: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        called[event] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        first_words(text)
        bounded_line(text)
    finally:
        sys.setprofile(before)
    return called["call"]


@together(
    ("text", "shown"),
    [
        ("tea", "'tea'"),
        ("it's", '"it\'s"'),
        ("", "''"),
        ("a\x1b[2Jb\nc", "'a\\x1b[2Jb\\nc'"),
        ("a\u202eb\u3164c", "'a\\u202eb\\u3164c'"),
        ("x" * 80, f"'{'x' * 80}'"),
        ("x" * 81, f"'{'x' * 80}…'"),
    ],
)
def test_what_was_typed_is_quoted_safely_and_visibly_cut(text: str, shown: str) -> None:
    assert quoted(text) == shown
    assert quoted("abc", 2) == "'ab…'"
