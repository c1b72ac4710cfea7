"""Whether a database responds, and what the log says while it does not."""

import logging
from typing import Any, cast

import pytest

from agent_core.api.database import Database
from agent_core.errors import ErrorCode, StorageError


class Store:
    """A store that fails with each of these reasons in turn, and then responds."""

    def __init__(self, *reasons: str) -> None:
        self._reasons = list(reasons)

    async def respond(self, *, to_writes: bool) -> None:
        if self._reasons and not to_writes:
            raise StorageError(ErrorCode.STORAGE_ERROR, self._reasons.pop(0))


async def test_the_log_says_once_why_it_does_not_respond(caplog: pytest.LogCaptureFixture) -> None:
    store = cast("Any", Store("the disk is broken", "the disk is broken", "no more"))

    async def opened() -> Any:
        return store

    database = Database(opened, lambda: store)
    with caplog.at_level(logging.INFO):
        answers = [await database.responds() for _ in range(2)]
        assert await database.responds(to_writes=True)  # does not end the outage of what reads
        answers += [await database.responds() for _ in range(3)]
    assert answers == [False, False, False, True, True]
    levels = [
        (each.levelname, "the disk is broken" in each.getMessage()) for each in caplog.records
    ]
    assert levels == [("WARNING", True), ("INFO", False)]
