"""The Chinese pages have the sections, the code and the links of the English ones, in order."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.checked

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs"
TRANSLATIONS: dict[Path, Path] = {
    ROOT / "README.zh-CN.md": ROOT / "README.md",
    **{page: PAGES / page.relative_to(PAGES / "zh") for page in sorted(PAGES.glob("zh/**/*.md"))},
}

_BLOCK = re.compile(r"^```[\s\S]*?^```$|(?<=\n\n)(?: {4}.*\n)+", re.MULTILINE)

both = pytest.mark.parametrize(
    ("chinese", "english"),
    TRANSLATIONS.items(),
    ids=[page.relative_to(ROOT).as_posix() for page in TRANSLATIONS],
)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    return _BLOCK.sub("", text_of(page))


def levels(page: Path) -> list[str]:
    """Return the marks of the headings: `#`, `##` and so on."""
    return re.findall(r"^(#+) ", prose(page), re.MULTILINE)


def links(page: Path) -> list[str]:
    """Return where the links of a page lead, without places inside pages and the other language."""
    targets = re.findall(r"\]\(([^)#]+)", prose(page))
    found: list[str] = []
    for target in targets:
        if "://" not in target:
            path = (page.parent / target).resolve()
            path = TRANSLATIONS.get(path) or path
            if path == TRANSLATIONS.get(page, page):
                continue
            target = path.relative_to(ROOT).as_posix()
        found.append(target)
    return sorted(found)  # words stand in another order within a sentence


@both
def test_the_blocks_of_code_are_the_same(chinese: Path, english: Path) -> None:
    assert _BLOCK.findall(text_of(chinese)) == _BLOCK.findall(text_of(english))


@both
def test_there_are_as_many_sections_of_each_level_in_the_same_order(
    chinese: Path, english: Path
) -> None:
    assert levels(chinese) == levels(english)


@both
def test_the_links_lead_to_the_same_places(chinese: Path, english: Path) -> None:
    assert links(chinese) == links(english)


@both
def test_a_translation_links_to_its_original_and_is_linked_there(
    chinese: Path, english: Path
) -> None:
    for page, other in ((chinese, english), (english, chinese)):
        targets = re.findall(r"\]\(([^)#]+)\)", prose(page))
        assert other in {(page.parent / target).resolve() for target in targets}


@both
def test_tables_and_lists_have_as_many_entries(chinese: Path, english: Path) -> None:
    for entry in (r"^\|.*\|$", r"^- "):
        counts = [len(re.findall(entry, prose(page), re.MULTILINE)) for page in (chinese, english)]
        assert counts[0] == counts[1]


@both
def test_names_in_code_style_are_the_same(chinese: Path, english: Path) -> None:
    names = [
        {" ".join(name.split()) for name in re.findall(r"`([^`]+)`", prose(page))}
        for page in (chinese, english)
    ]
    assert names[0] == names[1]
