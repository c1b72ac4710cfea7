"""Sessions of many turns: the prompt says what the disk says and what the user said."""

from collections.abc import Callable
from pathlib import Path

import pytest

from isolation import Home
from long_sessions import CHINESE, ENGLISH, SPANISH, Language, LongSession
from sweeps import sampled

LANGUAGES = pytest.mark.parametrize(
    "language", sampled([ENGLISH, CHINESE, SPANISH], keep=1), ids=lambda each: each.name
)
LEAST_SERVED = 0.97
"""Share of a prompt that a cache has to be able to serve between two messages."""


Record = Callable[[str, object], None]


async def is_told_the_truth(
    session: LongSession, turns: int, compactions: int, record: Record
) -> None:
    async with session:
        await session.play(turns, compactions=compactions)
    record("measured", session.report())
    assert not session.faults, "\n".join(session.faults)
    assert session.compactions == compactions
    assert float(session.between) >= LEAST_SERVED


@pytest.mark.long
@LANGUAGES
async def test_a_session_is_told_what_is_so(
    home: Home, project: Path, language: Language, record_property: Record
) -> None:
    await is_told_the_truth(LongSession(home, project, language), 60, 2, record_property)


@pytest.mark.sweep
@pytest.mark.timeout(600)
@LANGUAGES
async def test_a_session_of_300_turns_is_told_what_is_so(
    home: Home, project: Path, language: Language, record_property: Record
) -> None:
    await is_told_the_truth(LongSession(home, project, language), 300, 8, record_property)
