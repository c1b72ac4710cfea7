"""`cancel()` returns once everything it has caused is stored."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

from agent_core import (
    AgentRuntime,
    ErrorCode,
    ModelRequest,
    RunError,
    RunHandle,
    RunStatus,
    TextBlock,
    ToolContext,
    tool,
)
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider, calls
from agent_core.types import EventType, JsonBlock, ToolResultBlock
from agent_core.types.event_details import ToolEnded
from casts import Cast
from isolation import Home
from runtimes import CONFIG, Asked, runtime

LATE = f"{CONFIG}\n[runtime]\ncancel_timeout_ms = 50\n"


class Clinging:
    """A tool that does not let go before this context is left.

    Args:
        progress: how often it says how far it is.
    """

    def __init__(self, progress: int = 0) -> None:
        self.began = asyncio.Event()
        self._release = asyncio.Event()

        @tool(permission="readonly")
        async def cling(context: ToolContext) -> str:
            """Do not let go."""
            for each in range(progress):
                context.progress(f"{each}")
            self.began.set()
            while not self._release.is_set():
                with suppress(asyncio.CancelledError):
                    await self._release.wait()
            return "at last"

        self.tool = cling

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._release.set()

    async def start(self, made: AgentRuntime) -> RunHandle[Any]:
        """A run that is inside the tool."""
        made.register_tool(self.tool)
        handle = await made.start("go", session_id="s1")
        await self.began.wait()
        return handle


async def stored_kinds(made: AgentRuntime, run_id: str) -> list[EventType]:
    return [event.event_type for event in (await made.replay_run(run_id)).events]


async def test_a_cancellation_that_took_too_long_is_stored_when_cancel_returns(
    home: Home, project: Path
) -> None:
    made = runtime(home, project, [calls("cling"), "done"], config=LATE)
    async with made:
        with Clinging() as clinging:
            handle = await clinging.start(made)
            assert (await handle.cancel()).timed_out
            assert EventType.CANCEL_TIMEOUT in await stored_kinds(made, handle.run_id)


async def test_another_runtime_sees_that_a_cancellation_took_too_long(
    home: Home, project: Path
) -> None:
    made = runtime(home, project, [calls("cling"), "done"], config=LATE)
    async with made, runtime(home, project, config=LATE) as other:
        with Clinging() as clinging:
            handle = await clinging.start(made)
            await handle.cancel()
            assert EventType.CANCEL_TIMEOUT in await stored_kinds(other, handle.run_id)


async def test_a_reader_that_is_slow_does_not_hold_cancel_up(home: Home, project: Path) -> None:
    made = runtime(home, project, [calls("cling"), "done"], config=LATE)
    async with made:
        with Clinging(progress=1_000) as clinging:  # more than is kept for a reader
            made.register_tool(clinging.tool)
            handle = await made.start("go", session_id="s1")
            events = handle.events()
            await anext(events)  # and no further
            await clinging.began.wait()
            async with asyncio.timeout(20):
                assert (await handle.cancel()).timed_out
            assert EventType.CANCEL_TIMEOUT in await stored_kinds(made, handle.run_id)
            await events.aclose()


async def test_cancelling_twice_stores_one_timeout(home: Home, project: Path) -> None:
    made = runtime(home, project, [calls("cling"), "done"], config=LATE)
    async with made:
        with Clinging() as clinging:
            handle = await clinging.start(made)
            both = await asyncio.gather(handle.cancel(), handle.cancel())
            assert all(each.timed_out for each in both)
            kinds = await stored_kinds(made, handle.run_id)
            assert kinds.count(EventType.CANCEL_TIMEOUT) == 1


@pytest.mark.parametrize("child_timeout_ms", [20, 5_000])
async def test_what_a_cancellation_asks_of_children_is_stored_when_cancel_returns(
    home: Home, project: Path, child_timeout_ms: int
) -> None:
    config = f"{LATE}[agents]\nchild_cancel_timeout_ms = {child_timeout_ms}\n"
    played = Cast({
        "go": [calls("agent.create_sub_agent", task="cling", allowed_tools=["cling"]), "done"],
        "cling": [calls("cling"), "done"],
    })  # fmt: skip
    made = runtime(home, project, played, config=config)
    async with made:
        with Clinging() as clinging:
            handle = await clinging.start(made)
            result = await handle.cancel()
            kinds = await stored_kinds(made, handle.run_id)
            assert EventType.CHILD_AGENT_CANCEL_REQUESTED in kinds
            if result.timed_out:
                assert EventType.CANCEL_TIMEOUT in kinds
            else:
                assert EventType.CHILD_AGENT_CANCEL_TIMEOUT in kinds
                assert kinds[-1] is EventType.RUN_CANCELLED


async def test_a_run_of_another_process_is_cancelled_and_found_late(
    home: Home, project: Path, database_url: str
) -> None:
    def opened() -> AgentRuntime:
        return AgentRuntime(project_dir=project, home_dir=home.path, database_url=database_url)

    home.write_config(LATE)
    provider = ScriptedProvider([calls("cling"), "done"])
    made = opened()
    made.register_provider("custom", lambda _: provider)
    async with made, opened() as other:
        with Clinging() as clinging:
            made.register_tool(clinging.tool)
            handle = await made.start("go", session_id="s1", here=True)
            await clinging.began.wait()
            elsewhere = await other.attach(handle.run_id)
            assert (await elsewhere.cancel()).timed_out
            assert EventType.CANCEL_TIMEOUT in await stored_kinds(other, handle.run_id)


async def test_a_cancelled_command_is_answered_with_its_output(home: Home, project: Path) -> None:
    script = "echo so far; echo why >&2; sh -c 'touch began; exec sleep 60' & wait"
    command = calls("code.run_command", argv=["sh", "-c", script])
    provider = ScriptedProvider([command, "and so it ends"])
    made = runtime(home, project, provider, permission_callback=Asked("allow_once"))
    async with made:
        handle = await made.start("go", session_id="s1")
        while not (project / "began").exists():  # noqa: ASYNC110 - nothing signals a new file
            await asyncio.sleep(0.01)
        assert not (await handle.cancel()).timed_out
        ends = [each.details for each in (await made.replay_run(handle.run_id)).events]
        await made.run("what has it said?", session_id="s1")
    (ended,) = [each for each in ends if isinstance(each, ToolEnded)]
    (stopped,) = [each for each in ended.remarks if "left running, and stopped:" in each]
    assert "sleep 60" in stopped  # which the shell may not have become yet
    of_runs = [request for request in provider.requests if "run_id" in request.metadata]
    sent = [block for message in of_runs[-1].messages for block in message.content]
    (result,) = [block for block in sent if isinstance(block, ToolResultBlock)]
    assert result.error is not None
    assert result.error.code is ErrorCode.CANCELLED
    (block,) = result.content
    assert isinstance(block, JsonBlock)
    assert (block.data["stdout"], block.data["stderr"]) == ("so far\n", "why\n")
    assert any("sleep 60" in line for line in block.data["left_running_and_stopped"])


class Stepping:
    """A tool that says when it is called, and returns when it may."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()

        @tool(permission="readonly")
        async def step() -> str:
            """Take a step."""
            self.began.set()
            await self.may_end.wait()
            return "taken"

        self.tool = step


async def test_a_run_is_cancelled_after_its_turn(home: Home, project: Path) -> None:
    stepping = Stepping()
    model = ScriptedProvider(
        [Calls(calls=[ScriptedCall(name="step"), ScriptedCall(name="step")]), "on we go"]
    )
    async with runtime(home, project, model, config=LATE) as made:
        made.register_tool(stepping.tool)
        handle = await made.start("go", session_id="s1")
        await stepping.began.wait()
        result = await handle.cancel(after_turn=True)
        assert (result.status, result.timed_out) == (RunStatus.RUNNING, True)
        stepping.may_end.set()
        assert await handle.wait() is RunStatus.CANCELLED
        with pytest.raises(RunError) as caught:
            await handle.result()
        assert caught.value.code is ErrorCode.CANCELLED
        assert len(model.requests) == 1
        await made.run("and then?", session_id="s1")
    answers = [each for message in model.requests[1].messages for each in message.content]
    results = [each for each in answers if isinstance(each, ToolResultBlock)]
    assert [each.content for each in results] == [[TextBlock(text="taken")]] * 2


async def test_a_run_that_gives_its_answer_in_its_last_turn_completes(
    home: Home, project: Path
) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    async def answer(_: ModelRequest) -> AsyncGenerator[str]:
        began.set()
        await may_end.wait()
        yield "done"

    async with runtime(home, project, ScriptedProvider(answer), config=LATE) as made:
        handle = await made.start("go")
        await began.wait()
        await handle.cancel(after_turn=True)
        message_id = await handle.send("one more thing")  # there is no turn left for it
        may_end.set()
        assert (await handle.result()).text == "done"
        (waiting,) = await made.waiting_messages(handle.session_id)
        assert waiting.message_id == message_id
        assert (await handle.cancel(after_turn=True)).status is RunStatus.COMPLETED


async def test_cancelling_still_works_in_the_last_turn(home: Home, project: Path) -> None:
    stepping = Stepping()
    async with runtime(home, project, [calls("step")], config=LATE) as made:
        made.register_tool(stepping.tool)
        handle = await made.start("go")
        await stepping.began.wait()
        assert (await handle.cancel(after_turn=True)).timed_out
        assert (await handle.cancel()).status is RunStatus.CANCELLED


async def test_a_run_that_is_in_no_turn_is_cancelled_at_once(home: Home, project: Path) -> None:
    stepping = Stepping()
    script = ScriptedProvider([calls("step"), "done"])
    async with runtime(home, project, script, config=LATE) as made:
        made.register_tool(stepping.tool)
        first = await made.start("go", session_id="s1")
        await stepping.began.wait()
        queued = await made.start("go", session_id="s1")
        assert (await queued.cancel(after_turn=True)).status is RunStatus.CANCELLED
        stepping.may_end.set()
        assert await first.wait() is RunStatus.COMPLETED


async def test_a_turn_that_waits_for_an_answer_is_the_last_one_afterwards(
    home: Home, project: Path
) -> None:
    """The run is asked to end while it works; then a call of the turn waits for an answer."""
    stepping = Stepping()
    config = f'{LATE}[permissions]\nunattended = "park"\n'
    model = ScriptedProvider([
        Calls(
            calls=[
                ScriptedCall(name="step"),
                ScriptedCall(
                    name="code.write_file", arguments={"path": "a.txt", "content": "a"}
                ),
            ]
        ),
        "done",
    ])  # fmt: skip
    async with runtime(home, project, model, config=config) as made:
        made.register_tool(stepping.tool)
        handle = await made.start("go", session_id="s1")
        await stepping.began.wait()
        await handle.cancel(after_turn=True)
        stepping.may_end.set()
        assert await handle.wait() is RunStatus.WAITING
        (question,) = handle.pending_requests
        again = await made.answer(question, "allow_once")
        assert await again.wait() is RunStatus.CANCELLED
    assert (project / "a.txt").read_text(encoding="utf-8") == "a"
    assert len(model.requests) == 1


async def test_a_run_of_another_process_is_cancelled_after_its_turn(
    home: Home, project: Path, database_url: str
) -> None:
    stepping = Stepping()
    home.write_config(LATE)
    provider = ScriptedProvider([calls("step"), "done"])
    made, other = (
        AgentRuntime(project_dir=project, home_dir=home.path, database_url=database_url)
        for _ in range(2)
    )
    made.register_provider("custom", lambda _: provider)
    async with made, other:
        made.register_tool(stepping.tool)
        handle = await made.start("go", here=True)
        await stepping.began.wait()
        elsewhere = await other.attach(handle.run_id)
        assert (await elsewhere.cancel(after_turn=True)).timed_out
        stepping.may_end.set()
        assert await elsewhere.wait() is RunStatus.CANCELLED
        assert len(provider.requests) == 1
