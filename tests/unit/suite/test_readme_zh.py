"""The Chinese README has the sections, the code and the links of the English one, in its order."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")

_BLOCK = re.compile(r"^```[\s\S]*?^```$|(?<=\n\n)(?: {4}.*\n)+", re.MULTILINE)


def prose(text: str) -> str:
    return _BLOCK.sub("", text)


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ .*$", prose(text), re.MULTILINE)


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)]+)\)", prose(text))


def test_the_blocks_of_code_are_the_same() -> None:
    blocks = _BLOCK.findall(ENGLISH)
    assert len(blocks) > 5
    assert _BLOCK.findall(CHINESE) == blocks


def test_there_are_as_many_sections_of_each_level_in_the_same_order() -> None:
    english, chinese = (
        [heading.partition(" ")[0] for heading in headings(text)] for text in (ENGLISH, CHINESE)
    )
    assert chinese == english


def test_the_links_lead_to_the_same_places() -> None:
    english, chinese = links(ENGLISH), links(CHINESE)
    assert english.pop(0) == "README.zh-CN.md"
    assert chinese.pop(0) == "README.md"
    assert len(chinese) == len(english)
    # Words stand in another order within a sentence.
    outside = [sorted(each for each in every if each[0] != "#") for every in (english, chinese)]
    assert outside[0] == outside[1]


def test_tables_and_lists_have_as_many_entries() -> None:
    for entry in (r"^\|.*\|$", r"^- "):
        counts = [len(re.findall(entry, prose(text), re.MULTILINE)) for text in (ENGLISH, CHINESE)]
        assert counts[0] == counts[1]


def test_names_in_code_style_are_the_same() -> None:
    english, chinese = (set(re.findall(r"`([^`]+)`", prose(text))) for text in (ENGLISH, CHINESE))
    assert {" ".join(each.split()) for each in english} == {
        " ".join(each.split()) for each in chinese
    }
