"""Blocking callers of coroutines, uninterrupted threads, and tasks that end with their run."""

import asyncio
import threading
from pathlib import Path

import pytest

from kgent.engine.base import AgentEngine, AgentResult, AgentRunRequest, EngineStatus
from kgent.engine.mock import MockAgentEngine, MockPause
from kgent.errors import KgentError
from kgent.runtime.blocking import finish_in_thread, run_blocking
from kgent.runtime.cancellation import Cancellation
from kgent_runs import a_run, calls, events, types
from tables import together


async def answer() -> int:
    return 42


def test_a_thread_without_an_event_loop_gets_its_own() -> None:
    assert run_blocking(answer) == 42


async def test_a_thread_with_an_event_loop_blocks_it_and_uses_another() -> None:
    assert run_blocking(answer) == 42


async def test_a_coroutine_runs_in_the_loop_of_another_thread() -> None:
    here = asyncio.get_running_loop()

    async def where() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert await asyncio.to_thread(run_blocking, where, here) is here


async def test_a_thread_does_not_wait_for_itself() -> None:
    with pytest.raises(KgentError, match="await its async form"):
        run_blocking(answer, asyncio.get_running_loop())


async def test_a_function_in_a_thread_is_finished_although_its_caller_is_cancelled() -> None:
    began, may_end, done = threading.Event(), threading.Event(), list[str]()

    def work() -> str:
        began.set()
        may_end.wait()
        done.append("done")
        return "result"

    waiting = asyncio.create_task(finish_in_thread(work))
    await asyncio.to_thread(began.wait)
    waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    may_end.set()
    assert await waiting == "result"
    assert done == ["done"]
    assert waiting.cancelling() == 1


@together("error", [KeyboardInterrupt, SystemExit, ValueError])
async def test_an_error_of_a_thread_reaches_its_caller(error: type[BaseException]) -> None:
    def work() -> None:
        raise error

    with pytest.raises(error):
        await finish_in_thread(work)


async def test_a_task_is_cancelled_with_its_run_and_only_within_the_block() -> None:
    token, task = Cancellation(), asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(token.cancel)
    with pytest.raises(asyncio.CancelledError), token.stopping_task(), token.stopping_task():
        await asyncio.Event().wait()
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # nothing more arrives
    with pytest.raises(asyncio.CancelledError), token.stopping_task():
        await asyncio.Event().wait()


def test_an_engine_may_wrap_another(tmp_path: Path) -> None:
    """The tools of the inner engine are called in the event loop of the run."""

    class Wraps(AgentEngine):
        def run(self, request: AgentRunRequest) -> AgentResult:
            inner = MockAgentEngine([calls("write_file", path="workspace/a", content="x"), "Done."])
            return inner.run(request)

    result = a_run(tmp_path, engine=Wraps())
    assert (result.status, result.final_text) == ("completed", "Done.")
    assert "file.written" in types(result.sandbox_root)


def test_a_blocking_engine_that_stops_on_request_keeps_its_answer(tmp_path: Path) -> None:
    class Waits(AgentEngine):
        def run(self, request: AgentRunRequest) -> AgentResult:
            request.cancellation_token.cancel("enough")
            stopped = request.tools[0].handler({}, request.context)
            assert stopped.error is not None
            assert stopped.error.code == "cancelled"
            reason = request.cancellation_token.reason
            status = EngineStatus.INTERRUPTED
            return AgentResult(status=status, final_text="so far", error=reason)

    result = a_run(tmp_path, MockPause(sleep=0), engine=Waits())
    assert (result.status, result.final_text) == ("incomplete", "so far")
    assert str(result.error) == "cancelled: enough"
    assert events(result.sandbox_root)[-1]["type"] == "run.incomplete"


def test_the_secrets_of_any_engine_reach_no_record(tmp_path: Path) -> None:
    class Knows(AgentEngine):
        def secrets(self, config: object) -> dict[str, str]:
            return {"KEY": "value-of-the-key"}

        def run(self, request: AgentRunRequest) -> AgentResult:
            text = "The key is value-of-the-key."
            return AgentResult(status=EngineStatus.COMPLETED, final_text=text)

    result = a_run(tmp_path, engine=Knows())
    assert result.final_text == "The key is [redacted:KEY]."
    assert result.sandbox_root is not None
    assert "value-of" not in (result.sandbox_root / "transcript.md").read_text(encoding="utf-8")


def test_a_call_by_a_handler_may_wait_for_a_person(tmp_path: Path) -> None:
    class Asks(AgentEngine):
        def run(self, request: AgentRunRequest) -> AgentResult:
            (tool,) = (tool for tool in request.tools if tool.name == "run_command")
            tool.handler({"argv": ["true"]}, request.context)
            raise AssertionError("the call waits")

    result = a_run(
        tmp_path,
        engine=Asks(),
        tools={"shell": {"enabled": True}},
        runtime={"unattended": "park"},
    )
    assert result.status == "waiting_for_user"
    assert [one.tool_name for one in result.requests] == ["run_command"]
