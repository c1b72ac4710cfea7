"""Compares pages in a browser with small approved pictures.

    await settle(page, {str(project): "/home/you/shop"})
    await check(page, "session-360-dark", to=tmp_path)

The pictures are in `tests/captures/console/`; `make captures` writes them anew: look at what has
changed before you commit it.

A picture shows where everything is and in which colour, not what is written: every character is the
same box, from the font `tests/blocks.ttf` (a glyph for spaces, a box for all other characters), so
that pictures do not depend on the fonts of a machine. Ids, times and numbers are replaced before,
and a long table is cut. A page is drawn smaller, a narrow one to a width of 160 points, and
compared in cells of eight by eight points.
"""

import base64
import io
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops, ImageDraw
from playwright.async_api import Page

from captures import FOLDER, REWRITE

PICTURES = FOLDER / "console"
CELL = 8
TOLERANCE = 12
"""Difference of the mean of a colour in a cell, of 255, that nobody has to look at."""
_HIGHEST = 3_000
"""Pixels of a page; a longer one is cut."""
_ROWS = 12
"""Rows of a table; the settings get new ones with every version."""
_NARROW, _LEAST_SCALE = 160, 1 / 5
_COLOURS = 64
_NOTHING = (255, 0, 255)

_NORMAL = """([replaced, rows]) => {
  for (const time of document.querySelectorAll('time')) time.textContent = 'Jan 1, 2026, 1:00 PM';
  for (const meter of document.querySelectorAll('meter')) meter.value = meter.max / 2;
  for (const body of document.querySelectorAll('tbody'))
    [...body.rows].slice(rows).forEach(row => row.remove());
  const settle = text => {
    for (const [old, fresh] of replaced) text = text.replaceAll(old, fresh);
    return text
      .replace(/\\bown_[\\w.]+/g, 'own_00')
      .replace(/\\b(sess|run|req|agent|node|call|task|step)_[0-9a-f]{8,}/g, '$1_00')
      .replace(/\\b\\d+ m \\d+ s\\b|\\b\\d+([.]\\d+)? (ms|s)\\b/g, '00 s')
      .replace(/\\d[\\d.,]*/g, '00');
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const shown = settle(walker.currentNode.data);
    if (shown !== walker.currentNode.data) walker.currentNode.data = shown;
  }
  for (const field of document.querySelectorAll('input[type=text], textarea'))
    field.value = settle(field.value);
}"""


@cache
def _style() -> str:
    font = base64.b64encode(Path(__file__).with_name("blocks.ttf").read_bytes()).decode()
    return (
        f"@font-face{{font-family:Blocks;src:url(data:font/ttf;base64,{font})}}"
        "*,::before,::after{font-family:Blocks!important;transition:none!important;"
        "animation:none!important;caret-color:transparent!important}"
    )


async def settle(page: Page, replaced: Mapping[str, str]) -> None:
    """Show the same on every machine; the page's context must have been opened with `bypass_csp`.

    Args:
        page: a page that has been loaded.
        replaced: texts that differ between machines, and what is shown for them.
    """
    await page.locator("time:not([data-is-local])").first.wait_for(state="detached")
    await page.add_style_tag(content=_style())
    await page.evaluate("document.fonts.load('16px Blocks')")
    await page.evaluate(_NORMAL, [[*map(list, replaced.items())], _ROWS])


async def taken(page: Page) -> Image.Image:
    """Return the small picture of a page."""
    shot = await page.screenshot(full_page=True, animations="disabled", caret="hide")
    with Image.open(io.BytesIO(shot)) as opened:
        picture = opened.convert("RGB")
    picture = picture.crop((0, 0, picture.width, min(picture.height, _HIGHEST)))
    viewport = page.viewport_size
    assert viewport is not None
    scale = max(_NARROW / viewport["width"], _LEAST_SCALE)
    size = (round(picture.width * scale), round(picture.height * scale))
    return _resized(picture, size)


def _resized(
    picture: Any, size: tuple[int, int], how: Image.Resampling = Image.Resampling.BOX
) -> Image.Image:
    return picture.resize(size, how)


def unlike(approved: Image.Image, shown: Image.Image) -> list[tuple[int, int]]:
    """Return the cells that differ, as column and row; also those that only one picture has."""
    width, height = (max(pair) for pair in zip(approved.size, shown.size, strict=True))
    if abs(approved.height - shown.height) == 1:  # a row of points was rounded away
        height -= 1
    cells = (-(-width // CELL), -(-height // CELL))
    means: list[Image.Image] = []
    for picture in (approved, shown):
        canvas = Image.new("RGB", (cells[0] * CELL, cells[1] * CELL), _NOTHING)
        canvas.paste(picture.crop((0, 0, picture.width, min(height, picture.height))), (0, 0))
        means.append(_resized(canvas, cells))
    bands = ImageChops.difference(*means).split()
    worst = ImageChops.lighter(ImageChops.lighter(bands[0], bands[1]), bands[2]).tobytes()
    numbers = (at for at, much in enumerate(worst) if much > TOLERANCE)
    return [(at % cells[0], at // cells[0]) for at in numbers]


def beside(
    approved: Image.Image, shown: Image.Image, cells: Sequence[tuple[int, int]]
) -> Image.Image:
    """Return both pictures beside each other, with a frame around each cell that differs."""
    width, height = (max(pair) for pair in zip(approved.size, shown.size, strict=True))
    made = Image.new("RGB", (2 * width + CELL, height), _NOTHING)
    pen = ImageDraw.Draw(made)
    for picture, at in ((approved, 0), (shown, width + CELL)):
        made.paste(picture, (at, 0))
        for x, y in cells:
            box = (at + x * CELL, y * CELL, at + (x + 1) * CELL, (y + 1) * CELL)
            pen.rectangle(box, outline=(255, 0, 0))
    return _resized(made, (made.width * 3, made.height * 3), Image.Resampling.NEAREST)


def approved_picture(name: str) -> Image.Image:
    """Return the approved picture of this name."""
    with Image.open(PICTURES / f"{name}.png") as opened:
        return opened.convert("RGB")


async def check(page: Page, name: str, *, to: Path) -> None:
    """Compare a page that is settled with the approved picture, or write that anew.

    Args:
        page: the page.
        name: of the picture.
        to: the folder for a picture of the difference.
    """
    shown = await taken(page)
    file = PICTURES / f"{name}.png"
    if os.environ.get(REWRITE):
        PICTURES.mkdir(exist_ok=True)
        if not file.exists() or unlike(approved_picture(name), shown):
            method, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
            shown.quantize(_COLOURS, method, dither=dither).save(file, optimize=True)
    assert file.exists(), f"there is no picture {file.name}; `make captures` makes it"
    approved = approved_picture(name)
    if cells := unlike(approved, shown):
        path = to / f"{name}-difference.png"
        beside(approved, shown, cells).save(path)
        pytest.fail(
            f"{file.name} differs in {len(cells)} places (approved and shown: {path});"
            " `make captures` writes it anew"
        )
