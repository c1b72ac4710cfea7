"""Markdown as it streams: laid out in finished blocks, and harmless whatever it holds."""

import re

import pytest
from rich.cells import cell_len

from agent_core.cli.markdown import MarkdownStream
from sweeps import is_whole

LOOK = re.compile(r"\x1b\[[0-9;]*m")
ACTS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]"
)


def laid_out(text: str, *, step: int = 10_000, width: int = 40) -> str:
    stream = MarkdownStream(has_colours=True)
    shown = ""
    for start in range(0, len(text), step):
        stream.feed(text[start : start + step])
        stream._next_search = 0
        shown += stream.take(width)
        stream.peek(width)
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


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_the_pieces_that_it_comes_in_make_no_difference(step: int) -> None:
    assert laid_out(EVERYTHING, step=step) == laid_out(EVERYTHING)


def test_nothing_that_was_said_is_left_out() -> None:
    shown = words(EVERYTHING, width=80)
    for part in (
        "Title\n\nSome bold and code, a link (http://example.org/x) and http://example.org/y.\n",
        " • one\n • two\n    1 inner\n",
        " 说明  1",
        "▌ quoted\n",
        "  x = 1  # one\n\n  y = 2\n",
        "<b>kept</b> &amp; kept, picture (http://example.org/p.png)\n",
        "[1]: http://example.org/reference\n",
    ):
        assert part in shown


@pytest.mark.parametrize("width", [20, 40, 80])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    text = EVERYTHING + "\n加法" * 50 + "\n\n" + "x" * 300
    assert max(map(cell_len, words(text, width=width).splitlines())) <= width


@pytest.mark.parametrize(
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
@pytest.mark.parametrize("step", [1, 10_000])
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
    assert stream.peek(40) == ["done", "", "  unclosed"]
    assert stream.take(40) == "done\n"
    assert stream.peek(40) == ["", "  unclosed"]
    assert stream.finish(40) == "\n  unclosed\n"
