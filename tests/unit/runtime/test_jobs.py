import asyncio
import logging

import pytest

from agent_core.errors import ErrorCode, StorageError
from agent_core.runtime.background import Jobs


class Ended:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


async def test_closing_waits_for_what_is_under_way() -> None:
    jobs, done, ended = Jobs(grace_s=5), list[str](), Ended()

    async def work() -> None:
        await asyncio.sleep(0.02)
        done.append("work")

    jobs.start("s1", work(), name="a", then=ended)
    await jobs.close()
    assert (done, ended.count) == (["work"], 1)


async def test_closing_cancels_what_takes_too_long_and_what_is_patient_at_once() -> None:
    jobs, ended = Jobs(grace_s=0.02), Ended()
    forever = asyncio.Event()
    jobs.start("s1", asyncio.wait_for(forever.wait(), None), name="a", then=ended)  # pyright: ignore[reportArgumentType]
    jobs.start("s2", asyncio.sleep(60), name="b", then=ended, is_patient=True)
    await jobs.close()
    assert ended.count == 2


async def test_a_job_that_is_cancelled_before_it_began_is_told_to_have_ended() -> None:
    jobs, ended = Jobs(grace_s=5), Ended()
    jobs.start("s1", asyncio.sleep(60), name="a", then=ended)
    jobs.start("s1", asyncio.sleep(60), name="b", then=ended)
    jobs.start("s2", asyncio.sleep(60), name="a", then=ended)
    jobs.stop("s1", name="a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ended.count == 1
    await jobs.cancel("s1")
    assert ended.count == 2
    await jobs.cancel("s2")
    await jobs.cancel("unknown")
    assert ended.count == 3


async def test_a_job_that_breaks_is_logged_and_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    jobs, ended = Jobs(grace_s=5), Ended()

    async def broken() -> None:
        raise ValueError("broken")

    with caplog.at_level(logging.ERROR):
        jobs.start("s1", broken(), name="a", then=ended)
        await jobs.close()
    assert ended.count == 1
    assert "a of s1 broke" in caplog.text


async def test_a_job_whose_session_is_deleted_ends_quietly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    jobs, ended = Jobs(grace_s=5), Ended()

    async def late() -> None:
        raise StorageError(ErrorCode.SESSION_NOT_FOUND, "there is no session s1")

    with caplog.at_level(logging.DEBUG):
        jobs.start("s1", late(), name="a", then=ended)
        await jobs.close()
    assert ended.count == 1
    assert caplog.text == ""
