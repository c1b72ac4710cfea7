"""The page of a run: what is on it, that nothing on it acts, and how it looks in a browser."""

import os
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from agent_core.text.pages import render_markdown
from browser import CHROMIUM
from kgent.cli import main
from kgent.review.page import render_document, render_page
from kgent.review.report import read_report
from kgent.review.verification import verify
from kgent_forgery import edit_state
from kgent_pages import a_full_run, picture
from kgent_runs import a_run, calls
from tables import together

BASELINES = Path(__file__).parent / "kgent_page"


class Outline(HTMLParser):
    """Headings, landmarks and addresses of a page, in their order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self._is_heading = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"href", "src"}]
        self._is_heading = tag in {"h1", "h2"}

    def handle_data(self, data: str) -> None:
        if self._is_heading:
            self.headings.append(data)
            self._is_heading = False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and its page."""
    place = tmp_path_factory.mktemp("page")
    a_full_run(place)
    assert main(["show", str(place / "run"), "--html", str(place / "page.html")]) == 0
    return place


def test_a_page_without_a_file_is_written_to_standard_output(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for more in ([], ["-"]):
        assert main(["show", str(folder / "run"), "--html", *more]) == 0
        assert capfdbinary.readouterr().out.startswith(b"<!doctype html>")


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "page.html").read_text(encoding="utf-8")


def test_the_outcome_comes_first_and_what_it_rests_on_after_it(page: str) -> None:
    outline = Outline(page)
    assert outline.headings == [
        *("rain-reporter", "Outcome", "Answer", "Deliverables", "Conversation", "Tool calls"),
        *("Errors", "Files", "Prompt and profile", "Events", "Evidence"),
    ]
    assert [tag for tag in outline.tags if tag in {"header", "main", "footer"}] == [
        *("header", "main", "footer"),
    ]
    assert page.index(">incomplete<") < page.index("<h1>")
    assert "The folder is sound" in page
    assert "<strong>three</strong>" in page  # of the answer
    assert '<html lang="en">' in page


def test_deliverables_are_rendered_and_linked(page: str, folder: Path) -> None:
    assert "<h4>Rain in spring</h4>" in page
    assert '<th scope="col">rain in mm</th>' in page
    assert "&quot;rainy&quot;: [" in page
    assert 'src="data:image/png;base64,' in page
    links = [one for one in Outline(page).addresses if one.startswith("./")]
    assert "./run/deliverables/report.md" in links
    assert all((folder / link).exists() for link in links)


def test_nothing_on_the_page_acts_or_fetches(page: str) -> None:
    outline = Outline(page)
    assert {*outline.tags}.isdisjoint({"script", "iframe", "object", "link", "form", "base"})
    known = ("./", "data:image/", "https://example.org/station")
    assert [one for one in outline.addresses if not one.startswith(known)] == []
    assert "default-src 'none'" in page
    assert "unsafe-inline" not in page
    assert "&lt;script&gt;alert(2)" in page


HOSTILE = {
    "script": "<script>alert(1)</script>",
    "event": '<img src=x onerror="alert(1)">',
    "link": "[x](javascript:alert(1)) [y](data:text/html;base64,AA) [z](file:///etc/passwd)",
    "reference": "[x]\n\n[x]: javascript:alert(1)",
    "autolink": "<javascript:alert(1)>",
    "image": "![x](https://example.org/track.png)",
    "attribute": '[x](https://example.org/"onmouseover="alert(1))',
    "heading": "# <svg onload=alert(1)>",
    "table": "| <b onclick=alert(1)> |\n|---|\n| </table></div><script> |",
    "controls": "\x1b[31mred\x07",
    "spoof": "a\u202eb",
    "deep": "> " * 500 + "x",
}


@together("name", HOSTILE)
def test_a_hostile_document_is_inert(name: str) -> None:
    for path in ("a.md", "a.csv", "a.json", "a.txt", "a"):
        shown = render_document(path, HOSTILE[name].encode())
        found = Outline(shown)
        assert {*found.tags} <= {
            *("p", "pre", "div", "table", "thead", "tbody", "tr", "th", "td", "h4", "a"),
            *("blockquote", "code"),
        }
        assert all(one.startswith("https://example.org/") for one in found.addresses)
        assert not re.search(r"<[^>]*\son\w+=", shown)
        assert "\x1b" not in shown
        assert "\u202e" not in shown


@pytest.mark.sweep
@together("content", [b"", b"\xff\xfe\x00", b"{" * 5000, b'"' * 999, b"a,b\n" * 9999])
@together("path", ["a.md", "a.csv", "a.json", "a.txt", "a.tsv"])
def test_any_content_can_be_shown(path: str, content: bytes) -> None:
    assert render_document(path, content)


def test_a_drawing_cannot_act() -> None:
    shown = render_document("a.svg", b"<svg><script>alert(1)</script></svg>")
    assert Outline(shown).tags == ["img"]


def test_the_answer_of_a_run_without_a_conversation_is_shown(tmp_path: Path) -> None:
    result = a_run(tmp_path, calls("list_files"), "It is *done*.\n```\nx\n```")
    assert result.sandbox_root is not None
    page = render_page(read_report(result.sandbox_root))
    assert "<em>done</em>" in page


def test_checks_parameters_and_what_does_not_fit_are_in_the_outcome(tmp_path: Path) -> None:
    result = a_run(
        tmp_path,
        calls("write_file", path="deliverables/a.json", content="[1]"),
        "Done.",
        parameters={"to": {"type": "string", "default": "<Ada>"}},
        deliverables={"required": [{"path": "deliverables/a.json", "schema": {"type": "object"}}]},
        checks=[["test", "-f", "deliverables/a.json"], ["test", "-f", "nothing"]],
    )
    assert result.sandbox_root is not None
    page = render_page(read_report(result.sandbox_root), verify(result.sandbox_root))
    outcome = page.partition('<h2 id="answer">')[0]
    assert "to = &lt;Ada&gt;" in outcome
    assert '<li class="bad">deliverables/a.json: ' in outcome
    assert "<code>test -f deliverables/a.json</code>: passed" in outcome
    assert '<li class="bad">check <code>test -f nothing</code>' in outcome


def test_a_changed_folder_is_said_to_be_changed(tmp_path: Path) -> None:
    root = a_full_run(tmp_path)
    (root / "deliverables" / "report.md").write_text("other", encoding="utf-8")
    (root / "deliverables" / "chart.png").unlink()
    assert main(["show", str(root), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "The folder is not as the run left it" in page
    assert "deliverables/report.md was changed" in page
    assert "It cannot be read any more." in page


@pytest.mark.sweep
@together(
    ("ended", "took"),
    [
        ("2026-03-01T10:00:59.9+00:00", "59 s"),
        ("2026-03-01T10:59:05+00:00", "59 min 5 s"),
        ("2026-03-01T11:30:05+00:00", "1 h 30 min 5 s"),
        ("2026-03-04T12:31:05+00:00", "74 h 31 min 5 s"),
        ("2026-03-01T09:59:58+00:00", None),
        ("2026-03-01T10:00:05", None),
        ("soon", None),
    ],
)
def test_the_page_says_how_long_a_run_took(tmp_path: Path, ended: str, took: str | None) -> None:
    root = a_run(tmp_path, "Done.").sandbox_root
    assert root is not None
    edit_state(root, started_at="2026-03-01T10:00:00+00:00", ended_at=ended)
    page = render_page(read_report(root))
    assert ("Took" in page) == (took is not None)
    assert took is None or took in page.partition("Took")[2][:60]


@pytest.mark.sweep
@together("name", ["report.md", "rows.csv", "data.json", "notes.txt"])
def test_a_file_that_has_grown_to_terabytes_is_not_shown(tmp_path: Path, name: str) -> None:
    steps = calls("write_file", path=f"deliverables/{name}", content="x")
    root = a_run(tmp_path, steps).sandbox_root
    assert root
    os.truncate(root / "deliverables" / name, 1 << 42)
    assert main(["show", str(root), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "It is too large to be shown here" in page
    assert len(page) < 100_000


def test_headings_of_a_document_stand_below_those_of_the_page() -> None:
    shown = render_markdown("# one\n\n## two\n\n#### four\n")
    assert [tag for tag in Outline(shown).tags if tag != "div"] == ["h4", "h5", "h6"]


def luminance(colour: str) -> float:
    short = colour.removeprefix("#")
    full = "".join(digit * 2 for digit in short) if len(short) == 3 else short
    parts = [int(full[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_text_has_enough_contrast_light_and_dark(page: str) -> None:
    palettes = re.findall(r":root\{([^}]*)\}", page)
    assert len(palettes) == 3  # light, dark, print
    for palette in palettes:
        colours = dict(re.findall(r"--(\w+):(#\w+)", palette))
        for text in ("text", "muted", "link", "good", "fair", "bad", "busy"):
            for ground in ("page", "soft"):
                pair = sorted((luminance(colours[text]), luminance(colours[ground])))
                assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (text, ground, colours)


# --- in a browser ---------------------------------------------------------------------------------

LOOKS = [(400, "light"), (400, "dark"), (800, "light"), (1600, "dark"), (800, "dark"),
         (1600, "light"), (800, "print")]  # fmt: skip


def take_picture(folder: Path, width: int, look: str) -> Any:
    """The upper part of the page as the browser draws it in a frame of that width."""
    from PIL import Image  # noqa: PLC0415 - only where there is a browser

    text = (folder / "page.html").read_text(encoding="utf-8")
    if look == "print":
        text = text.replace("@media print", "@media all")
        text = re.sub(r"style-src 'sha256-[^']*'", "style-src 'unsafe-inline'", text)
    (folder / f"{look}.html").write_text(text, encoding="utf-8")
    frame = f'<style>body{{margin:0;background:#f0f}}iframe{{border:0}}</style><iframe src="{look}.html" width="{width}" height="1400"></iframe>'  # noqa: E501
    (folder / "frame.html").write_text(f"<!doctype html>{frame}", encoding="utf-8")
    assert CHROMIUM is not None
    shot = folder / f"{width}-{look}.png"
    scheme = 0 if look == "dark" else 1
    subprocess.run(  # noqa: S603 - the browser of this machine
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
         "--no-first-run", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--hide-scrollbars", f"--user-data-dir={folder / 'browser'}",
         f"--blink-settings=preferredColorScheme={scheme}",
         f"--window-size={max(width, 500)},1400", f"--screenshot={shot}",
         (folder / "frame.html").as_uri()],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    with Image.open(shot) as image:
        return image.convert("RGB").crop((0, 0, width, 1390))


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize(
    ("width", "look"),
    [
        pytest.param(*each, marks=() if number == 0 else pytest.mark.sweep)
        for number, each in enumerate(LOOKS)
    ],
)
def test_the_page_looks_as_it_did(folder: Path, width: int, look: str) -> None:
    """Compared roughly, as a thumbnail: fonts differ from machine to machine.

    With UPDATE_BASELINES=1 the baseline is written anew.
    """
    from PIL import Image, ImageChops, ImageStat  # noqa: PLC0415

    taken = take_picture(folder, width, look)
    ground = (0x14, 0x18, 0x1D) if look == "dark" else (255, 255, 255)
    edge = taken.crop((width - 3, 0, width, taken.height))
    if look != "print":  # where paper has the margins
        drawn = ImageChops.difference(edge, Image.new("RGB", edge.size, ground)).getbbox()
        assert drawn is None, "something is wider than the page"
    small = taken.resize((80, 140), Image.Resampling.BOX).convert("L")
    baseline = BASELINES / f"{width}-{look}.png"
    if os.environ.get("UPDATE_BASELINES"):
        small.save(baseline, optimize=True)
    with Image.open(baseline) as image:
        known = image.convert("L")
    difference = ImageStat.Stat(ImageChops.difference(known, small)).mean[0]
    spread = ImageStat.Stat(known).stddev[0]
    assert difference < max(4.0, spread / 2), f"{difference:.1f} from {baseline.name}"
    assert abs(ImageStat.Stat(small).stddev[0] - spread) < spread / 2


def test_the_picture_of_the_tests_is_one() -> None:
    assert picture().startswith(b"\x89PNG")
