"""Everyday command lines: the page shows what becomes of them, and none asks without need."""

from pathlib import Path

import pytest

from corpus.everyday import PAGE, Line, outcomes, page_of

pytestmark = pytest.mark.checked

Outcomes = list[tuple[str, list[tuple[Line, list[str], str]]]]


@pytest.fixture
async def found(tmp_path: Path) -> Outcomes:
    return await outcomes(tmp_path.resolve())


async def test_the_page_shows_what_becomes_of_everyday_commands(found: Outcomes) -> None:
    command = "python tests/corpus/everyday.py"
    assert PAGE.read_text(encoding="utf-8") == page_of(found), f"write it anew with: {command}"
    rows = [row for _, rows in found for row in rows]
    assert len(rows) >= 204

    # A line that is harmless is never asked for always, let alone refused.
    for line, words, _ in rows:
        expected = "refused" if line.refused else "asked always" if line.always else None
        for word in words:
            assert word == expected or (expected is None and word in {"unasked", "asked once"}), (
                line.run
            )

    # In a sandbox only the network and reasons of their own ask.
    for line, (off, readers, auto, required), _ in rows:
        assert auto == required
        assert readers == off or readers == "unasked"
        if not line.always and not line.refused:
            assert (off, auto) == ("asked once", "asked once" if line.network else "unasked"), (
                line.run
            )
