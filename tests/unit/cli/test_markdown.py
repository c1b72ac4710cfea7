"""Markdown as it streams: laid out in finished blocks, and harmless whatever it holds."""

import re
from collections.abc import Sequence
from itertools import product

import pytest
from rich.cells import cell_len

from agent_core.cli.markdown import MarkdownStream
from sweeps import is_whole, kept, sampled
from tables import together

LOOK = re.compile(r"\x1b\[[0-9;]*m")
ACTS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]"
)


ROWS = 1_000


def laid_out(text: str, *, step: int = 10_000, width: int = 40) -> str:
    stream = MarkdownStream(has_colours=True)
    shown = ""
    for start in range(0, len(text), step):
        stream.feed(text[start : start + step])
        stream._next_search = 0
        shown += stream.take(width, ROWS)
        assert len(stream.peek(width, ROWS)) <= ROWS // 3
    return shown + stream.finish(width)


def words(text: str, **more: int) -> str:
    return LOOK.sub("", laid_out(text, **more))


EVERYTHING = """\
# Title

Some **bold** and `code`, [a link](http://example.org/x) and <http://example.org/y>.

- one
- two
  1. inner

| a | b |
|---|--:|
| 说明 | 1 |

> quoted

```python
x = 1  # one

y = 2
```

<b>kept</b> &amp; kept, ![picture](http://example.org/p.png)

[1]: http://example.org/reference
"""


@together("step", [1, 7, 10_000])
def test_the_pieces_that_it_comes_in_make_no_difference(step: int) -> None:
    assert laid_out(EVERYTHING, step=step) == laid_out(EVERYTHING)


def test_nothing_that_was_said_is_left_out() -> None:
    shown = words(EVERYTHING, width=80)
    for part in (
        "Title\n\nSome bold and code, a link (http://example.org/x) and http://example.org/y.\n",
        " • one\n • two\n    1. inner\n",
        " 说明  1",
        "▌ quoted\n",
        "\nx = 1  # one\n\ny = 2\n",
        "<b>kept</b> &amp; kept, picture (http://example.org/p.png)\n",
        "[1]: http://example.org/reference\n",
    ):
        assert part in shown


@together("width", [20, 40, 80])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    text = EVERYTHING + "\n加法" * 50 + "\n\n👩‍👩‍👧 are 🎉" * 20
    for line in words(text, width=width).splitlines():
        assert cell_len(line) <= width or " " not in line.strip(" |▌•()"), line


@together(
    "attack",
    [
        "\x1b]52;c;aGk=\x07",
        "\x9b2J",
        "\u202eabc",
        "&#x202e;x &#27;[2J",
        "[x](http://a&#x202e;b)",
        '[l](x "\u2066")',
        "![\x1b[2J](http://\u202e)",
        "```\u202epython\nx\n```",
        "<http://a/\x1b[2J>",
        "| \x1b[2J | \u2066 |\n|--|--|",
        "`\x1b[31m`",
        "line\roverwritten",
        "\x08\x08",
        "\u2028",
    ],
)
@together("step", [1, 10_000])
def test_no_text_acts_on_the_terminal(attack: str, step: int) -> None:
    assert not ACTS.search(words(f"first\n\n{attack}\n\nlast {attack}", step=step))


@pytest.mark.parametrize(
    "text",
    [
        "word word\n\n" * 12_000,
        pytest.param("- item\n" * 17_000, marks=pytest.mark.sweep),
        "```python\n" + "x = 1\n" * 20_000,
        ">" * 5_000 + "x\n",
        "[" * 20_000 + "\n\ny\n",
        "x" * 150_000,
    ],
    ids=["blocks", "list", "code", "quotes", "brackets", "line"],
)
def test_what_is_too_long_or_too_deep_is_shown_as_it_is(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_whole():  # laying out as much as a message may have takes seconds
        monkeypatch.setattr("agent_core.cli.markdown._LONGEST_MESSAGE", 20_000)
        text = text[: len(text) // 4]
    shown = words(text, step=20_000)
    assert shown.count("x") == text.count("x")
    assert shown.count("word") == text.count("word")
    assert shown.count("item") == text.count("item")
    assert shown.count("[") == text.count("[")


def test_an_unfinished_rest_is_shown_and_kept() -> None:
    stream = MarkdownStream(has_colours=False)
    stream.feed("done\n\n```\nunclosed")
    assert stream.peek(40, 24) == ["done", "", "unclosed"]
    assert stream.take(40, 24) == "done\n"
    assert stream.peek(40, 24) == ["", "unclosed"]
    assert stream.finish(40) == "\nunclosed\n"


FUNCTION = '''\
def f{0}(x):
    """Doc of {0}.

    More.
    """

'''
PROSE = "word{0} **bold{0}** `code {0}` a_name_{0} [l](http://e.org/{0}) "
ITEM = "{0}. item {0} with words that wrap over more than one line\n   - inner {0}\n"
LONG = {
    "code": "```python\n" + "".join(map(FUNCTION.format, range(20))) + "```\n",
    "table": "| n | name | what |\n|--:|---|---|\n"
    + "".join(f"| {n} | name{n} | it does {n} {'and more ' * (n % 7)}|\n" for n in range(30)),
    "paragraph": "".join(map(PROSE.format, range(40))),
    "letters": "".join(map("这是第{0}句话。里面有一些内容。".format, range(60))),
    "list": "".join(map(ITEM.format, range(1, 20))),
    "quote": "".join(map("> line {0} of the quote\n".format, range(60))),
    "code in a list": "1. Do:\n\n   ```sh\n"
    + "".join(map("   echo {0}\n".format, range(40)))
    + "   ```\n\n2. See\n",
}
"""Blocks that are taller than a window."""


def streamed(text: str, widths: Sequence[int], *, rows: int = 24) -> tuple[str, str]:
    """Return what was taken of a text that came in pieces, before its end and with it."""
    stream, taken, step = MarkdownStream(has_colours=False), "", 61
    for start in range(0, len(text), step):
        width = widths[start * len(widths) // len(text)]
        stream.feed(text[start : start + step])
        stream._next_search = stream._next_look = 0
        taken += stream.take(width, rows)
        assert len(stream.peek(width, rows)) <= rows // 3
    return taken, taken + stream.finish(widths[-1])


@pytest.mark.long
@pytest.mark.parametrize(("kind", "width"), sampled(product(LONG, [40, 80]), keep=2))
def test_a_tall_block_is_taken_row_by_row_as_it_stays(kind: str, width: int) -> None:
    text = f"Before.\n\n{LONG[kind]}\n\nAfter.\n"
    at_once = MarkdownStream(has_colours=False)
    at_once.feed(text)
    whole = at_once.finish(width)
    early, shown = streamed(LONG[kind], [width])
    assert early.count("\n") > 5  # while it was no finished block
    early, shown = streamed(text, [width])
    if kind == "table":  # its columns are as wide as its first rows and a little more want
        shown, whole = (re.sub("─+", "─", " ".join(each.split())) for each in (shown, whole))
    assert shown == whole


@pytest.mark.parametrize("kind", kept(LONG, "table", "letters"))
def test_a_window_that_changes_its_width_loses_and_doubles_nothing(kind: str) -> None:
    text = f"Before.\n\n{LONG[kind]}\n\nAfter.\n"
    shown, whole = streamed(text, [120, 40, 80, 40])[1], streamed(text, [40])[1]
    letters = [re.sub(r"[\s─▌]", "", each) for each in (shown, whole)]
    if kind == "table":  # columns side by side, or each under the names of the columns
        letters = [
            "".join(sorted(re.sub("name:|what:|n:|n(?=name)", "", each))) for each in letters
        ]
    assert letters[0] == letters[1]


def test_code_and_addresses_can_be_copied() -> None:
    """Neither has a break or a sign that its text does not have."""
    code = "    " + "x" * 90 + " = 1"
    address = "https://example.org/" + "a/" * 40
    text = f"- do\n\n  ```\n  if y:\n  {code}\n  ```\n\n> ```\n> z\n> ```\n\n"
    text += f"> see {address} there\n"
    text += f"\n| name | where |\n|---|---|\n| one | {address} |\n"
    lines = words(text, width=40).splitlines()
    assert {"if y:", code, "z"} <= {*lines}
    assert sum(address in line for line in lines) == 2


def test_a_look_that_may_still_begin_holds_its_line_back() -> None:
    text = "start " + "and **all of this may be bold " + "word " * 100
    early, shown = streamed(f"{text}end**\n", [40], rows=12)
    assert "**" not in early
    assert "**" not in shown
