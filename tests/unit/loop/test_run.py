"""One run, from prompt to outcome."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from agent_core.errors import ErrorCode
from agent_core.events import EventStream, HeldSession, Journal
from agent_core.extensions import Admit, ExtensionContext, Extensions, JudgedCall
from agent_core.loop import Outcome, RunContext, RunLimits, run_agent
from agent_core.providers.estimates import estimate_blocks
from agent_core.providers.scripted import Calls, Fails, Hangs, Says, ScriptedCall, calls
from agent_core.redaction.redactor import JournalRedactor, Redactor
from agent_core.runtime.session_history import SessionHistory
from agent_core.types import (
    Batch,
    EndReason,
    EventType,
    RunChange,
    RunStatus,
    StopReason,
    TextBlock,
    ToolCall,
    ToolResult,
    Usage,
    user_text,
)
from judging import judged, owners_are_dead
from loop_parts import OWNER, AllowAll, Listening, Session, a_tool, spoken
from tables import together


async def look(arguments: dict[str, Any], context: Any) -> str:
    return "a file"


async def explode(arguments: dict[str, Any], context: Any) -> str:
    raise RuntimeError("boom")


async def hang(arguments: dict[str, Any], context: Any) -> str:
    await asyncio.Event().wait()
    raise AssertionError("nothing ends this wait but a cancellation")


TOOLS = (a_tool("look", look), a_tool("explode", explode, writes=True), a_tool("hang", hang))


async def test_d1_a_plain_answer_ends_the_run_with_its_events_in_order() -> None:
    session = Session([Says(text="hi", chunks=1)])
    ctx = await session.start()
    task = asyncio.create_task(run_agent(ctx, user_text("hello")))
    seen = [event async for event in session.streams[0].read()]
    outcome = await task
    assert outcome.status is RunStatus.COMPLETED
    assert outcome.text == "hi"
    assert [event.event_type for event in seen] == [
        EventType.LOOP_STARTED,
        EventType.MESSAGE_CREATED,
        EventType.CONTEXT_BUILT,
        EventType.MODEL_STARTED,
        EventType.MODEL_TEXT_DELTA,
        EventType.MODEL_COMPLETED,
        EventType.MESSAGE_COMPLETED,
        EventType.LOOP_COMPLETED,
        EventType.RUN_COMPLETED,
    ]
    stored = [event for event in seen if event.event_type is not EventType.MODEL_TEXT_DELTA]
    assert [event.seq for event in stored] == list(range(1, len(stored) + 1))
    assert stored[1].payload == {"role": "user", "node_type": "message"}
    assert [event.run_seq for event in stored] == list(range(1, len(stored) + 1))


async def test_d6_after_success_the_final_answer_is_the_active_node() -> None:
    session = Session([calls("look"), "done"], TOOLS)
    await session.run()
    assert spoken(await session.active_path())[-1] == "assistant: done"


async def test_d7_a_failed_partial_answer_is_kept_but_the_users_message_stays_active() -> None:
    session = Session([Fails(text="half an ", message="gone")])
    outcome = await session.run()
    assert outcome.end_reason is EndReason.FAILED
    assert outcome.error is not None
    assert outcome.error.code is ErrorCode.PROVIDER_ERROR
    partial = (await session.nodes())[-1]
    assert partial.text == "half an "
    assert partial.metadata["partial"] is True
    assert partial.metadata["failed"] is True
    assert spoken(await session.active_path()) == ["user: hello"]
    types = await session.event_types()
    assert EventType.MODEL_FAILED in types
    assert types[-1] is EventType.RUN_FAILED


async def test_a_partial_answer_is_never_sent_to_a_model_again() -> None:
    session = Session([Fails(text="half an "), "fine now"])
    await session.run("first")
    await session.run("second")
    sent = session.scripted.requests[-1].messages
    assert "half" not in "".join(message.model_dump_json() for message in sent)


async def test_d8_readonly_calls_of_one_turn_run_side_by_side() -> None:
    both_running = asyncio.Barrier(2)

    async def meet(arguments: dict[str, Any], context: Any) -> int:
        async with asyncio.timeout(50), both_running:
            return int(arguments["n"])

    turn = Calls(calls=[ScriptedCall(name="meet", arguments={"n": n}) for n in (1, 2)])
    session = Session([turn, "done"], [a_tool("meet", meet)])
    outcome = await session.run()
    assert outcome.status is RunStatus.COMPLETED
    assert [result.is_error for result in await session.results()] == [False, False]
    assert len(session.scripted.requests) == 2


async def test_after_a_failed_write_only_the_calls_that_read_are_run() -> None:
    names = ("look", "explode", "look", "explode", "look")
    session = Session([Calls(calls=[ScriptedCall(name=name) for name in names]), "done"], TOOLS)
    await session.run()
    results = await session.results()
    assert [result.error and result.error.code for result in results] == [
        None,
        ErrorCode.INTERNAL_ERROR,
        None,
        ErrorCode.CANCELLED,
        None,
    ]
    assert results[3].metadata["reason"] == "previous_write_failed"
    assert "boom" in (results[1].error.message if results[1].error else "")


async def test_a_failed_reader_does_not_stop_later_calls() -> None:
    names = ("missing", "look")
    session = Session([Calls(calls=[ScriptedCall(name=name) for name in names]), "done"], TOOLS)
    await session.run()
    codes = [result.error and result.error.code for result in await session.results()]
    assert codes == [ErrorCode.TOOL_NOT_AVAILABLE, None]


async def test_a_refused_change_ends_with_tool_denied_and_stops_later_changes() -> None:
    names = ("explode", "explode")
    script = [Calls(calls=[ScriptedCall(name=name) for name in names]), "done"]
    session = Session(script, TOOLS, guard=AllowAll("explode"))
    await session.run()
    types = await session.event_types()
    assert EventType.TOOL_DENIED in types
    assert EventType.TOOL_STARTED not in types
    assert [result.is_error for result in await session.results()] == [True, True]


async def test_arguments_that_are_not_json_are_answered_for_the_model_to_mend() -> None:
    broken = Calls(calls=[ScriptedCall(name="look", arguments='{"n": ')])
    session = Session([broken, "done"], TOOLS)
    outcome = await session.run()
    assert outcome.status is RunStatus.COMPLETED
    (result,) = await session.results()
    assert result.error is not None
    assert result.error.code is ErrorCode.VALIDATION_ERROR


async def test_two_turns_may_use_the_same_call_id_and_stay_apart() -> None:
    same = Calls(calls=[ScriptedCall(name="look", tool_call_id="call_0")])
    session = Session([same, same, "done"], TOOLS)
    await session.run()
    ids = [result.tool_call_id for result in await session.results()]
    assert len(set(ids)) == 2
    asked = [call for node in await session.nodes() for call in node.calls]
    assert [call.tool_call_id for call in asked] == ids
    assert asked[1].metadata["raw_tool_call_id"] == "call_0"


async def test_d5_cancelling_while_the_model_speaks_keeps_the_text_and_closes_the_stream() -> None:
    session = Session([Hangs(text="half an ")])
    ctx = await session.start()
    task = asyncio.create_task(run_agent(ctx, user_text("hello")))
    types: list[EventType] = []
    async for event in session.streams[0].read():
        types.append(event.event_type)
        if event.event_type is EventType.MODEL_TEXT_DELTA:
            task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert types[-2:] == [EventType.LOOP_ABORTED, EventType.RUN_CANCELLED]
    run = await session.store.run(ctx.run.run_id)
    assert run is not None
    assert run.end_reason is EndReason.ABORTED_STREAMING
    partial = (await session.nodes())[-1]
    assert partial.metadata["aborted"] is True
    assert spoken(await session.active_path()) == ["user: hello"]


async def test_cancelling_while_a_tool_runs_answers_every_call() -> None:
    names = ("hang", "look", "explode")
    session = Session([Calls(calls=[ScriptedCall(name=name) for name in names])], TOOLS)
    ctx = await session.start()
    task = asyncio.create_task(run_agent(ctx, user_text("hello")))
    async for event in session.streams[0].read():
        if event.event_type is EventType.TOOL_COMPLETED:  # the other reader has ended
            task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    run = await session.store.run(ctx.run.run_id)
    assert run is not None
    assert run.end_reason is EndReason.ABORTED_TOOLS
    results = await session.results()
    assert len(results) == 3
    aborted = [result for result in results if result.metadata.get("aborted")]
    assert [result.error and result.error.code for result in aborted] == [ErrorCode.CANCELLED] * 2
    assert spoken(await session.active_path()) == ["user: hello"]


async def test_a_call_that_is_cancelled_at_the_question_is_said_not_to_have_begun() -> None:
    asked = asyncio.Event()

    class Waiting(AllowAll):
        async def admit_tool_call(
            self, context: ExtensionContext, judged: JudgedCall, proceed: Admit
        ) -> float | None:
            asked.set()
            await asyncio.Event().wait()

    session = Session([calls("look")], TOOLS, guard=Waiting())
    task = asyncio.create_task(run_agent(await session.start(), user_text("hello")))
    await asked.wait()
    task.cancel()
    await asyncio.wait([task])
    (result,) = await session.results()
    assert result.error is not None
    assert "before this call began" in result.error.message
    assert spoken(await session.active_path())[0] == "user: hello"
    assert (await session.active_path())[-1].results == [result]  # the next message sees the turn


async def test_a_run_that_never_answers_ends_at_its_turn_limit() -> None:
    session = Session([calls("look")] * 3, TOOLS, limits=RunLimits(max_turns=3))
    outcome = await session.run()
    assert outcome.end_reason is EndReason.MAX_TURNS
    assert outcome.error is not None
    assert outcome.error.code is ErrorCode.MAX_TURNS
    assert spoken(await session.active_path())[-1] == "result ok"


async def test_an_answer_that_was_cut_off_is_continued_and_joined() -> None:
    cut = StopReason.MAX_TOKENS
    session = Session([Says(text="one, ", stop_reason=cut), Says(text="two", stop_reason=cut), "!"])
    outcome = await session.run()
    assert outcome.status is RunStatus.COMPLETED
    assert outcome.text == "one, two!"


async def test_an_answer_that_stays_cut_off_fails_after_three_continuations() -> None:
    session = Session([Says(text="on and ", stop_reason=StopReason.MAX_TOKENS)] * 4)
    outcome = await session.run()
    assert outcome.end_reason is EndReason.MAX_OUTPUT_TOKENS_RECOVERY
    assert outcome.error is not None
    assert outcome.error.code is ErrorCode.MAX_OUTPUT_TOKENS


async def test_calls_begin_a_new_answer_and_a_new_count_of_its_pieces() -> None:
    piece = Says(text="piece ", stop_reason=StopReason.MAX_TOKENS)
    session = Session([piece, calls("look")] * 4 + ["done"], TOOLS)
    outcome = await session.run()
    assert outcome.status is RunStatus.COMPLETED
    assert outcome.text == "done"


async def test_a_stop_hook_sends_the_model_on_at_most_eight_times_in_a_row() -> None:
    hooks = Listening(*["not yet"] * 20)
    session = Session(["done"] * 9, hooks=hooks)
    outcome = await session.run()
    assert outcome.status is RunStatus.COMPLETED
    types = await session.event_types()
    assert types.count(EventType.STOP_HOOK_PREVENTED) == 8


async def test_hooks_hear_of_each_step_in_order() -> None:
    session = Session([calls("look"), "done"], TOOLS)
    await session.run("hello")
    assert session.hooks.heard == [
        "session_start",
        "prompt hello",
        "before look",
        "after look",
        "stop",
    ]


async def test_usage_of_all_turns_is_added_up() -> None:
    spent = Usage(input_tokens=10, output_tokens=2, total_tokens=12)
    first = Calls(calls=[ScriptedCall(name="look")], usage=spent)
    session = Session([first, Says(text="done", usage=spent)], TOOLS)
    outcome = await session.run()
    assert outcome.usage.total_tokens == 24


async def test_a_secret_of_the_configuration_reaches_no_node_and_no_event() -> None:
    async def leak(arguments: dict[str, Any], context: Any) -> str:
        return "key is hunter2hunter2"

    session = Session(
        [calls("leak"), "the key hunter2hunter2"],
        [a_tool("leak", leak)],
        secrets={"API_KEY": "hunter2hunter2"},
    )
    await session.run("what is hunter2hunter2")
    written = [item.model_dump_json() for item in (*await session.nodes(), *await session.events())]
    assert "hunter2" not in "".join(written)
    assert "[redacted:API_KEY]" in "".join(written)


async def test_a_call_left_open_by_a_dead_process_is_answered_once_and_not_run_again() -> None:
    ran: list[int] = []

    async def write(arguments: dict[str, Any], context: Any) -> str:
        ran.append(1)
        await asyncio.Event().wait()
        return "never"

    session = Session([calls("write"), "I will look first"], [a_tool("write", write, writes=True)])
    ctx = await session.start()
    task = asyncio.create_task(run_agent(ctx, user_text("go")))
    async for event in session.streams[0].read():
        if event.event_type is EventType.TOOL_STARTED:
            break
    before = dict(session.store.__dict__)
    await judged(session.store, owners_are_dead).close_lost_runs()  # as after a kill
    task.cancel()
    await asyncio.wait([task])
    outcome = await session.run("what happened?")
    assert before.keys() == session.store.__dict__.keys()
    assert outcome.status is RunStatus.COMPLETED
    assert ran == [1]
    (closed,) = [r for r in await session.results() if r.metadata.get("reason")]
    assert closed.error is not None
    assert closed.error.details["reason"] == "interrupted_effect_unknown"
    assert spoken(await session.active_path()) == [
        "user: go",
        "calls write({})",
        "result error",
        "user: what happened?",
        "assistant: I will look first",
    ]


async def test_a_result_that_says_it_is_an_error_is_a_failed_call_also_without_a_reason() -> None:
    async def refuse(arguments: dict[str, Any], context: Any) -> ToolResult:
        return ToolResult(is_error=True, content=[TextBlock(text="no such page")])

    session = Session([calls("look"), "done"], [a_tool("look", refuse)])
    await session.run()
    assert EventType.TOOL_FAILED in await session.event_types()
    assert EventType.TOOL_COMPLETED not in await session.event_types()


async def test_a_reply_that_stopped_for_an_error_is_not_a_finished_turn() -> None:
    session = Session([Says(text="half an", stop_reason=StopReason.ERROR)])
    outcome = await session.run()
    assert outcome.status is RunStatus.FAILED
    assert outcome.error is not None
    assert outcome.error.code is ErrorCode.PROVIDER_ERROR
    assert (await session.nodes())[-1].is_partial


@pytest.mark.parametrize("leaving", [asyncio.CancelledError(), SystemExit(3)], ids=repr)
async def test_a_tool_that_cancels_itself_or_leaves_the_program_has_failed_like_any_other(
    leaving: BaseException,
) -> None:
    async def leave(arguments: dict[str, Any], context: Any) -> str:
        raise leaving

    session = Session([calls("leave"), "went on"], [a_tool("leave", leave)])
    outcome = await session.run()
    assert outcome.status is RunStatus.COMPLETED
    (result,) = await session.results()
    assert result.error is not None
    assert result.error.code is ErrorCode.INTERNAL_ERROR
    assert type(leaving).__name__ in result.error.message


@pytest.mark.parametrize("together", [1, 2])
async def test_d5_a_tool_that_swallows_its_cancellation_does_not_keep_the_run_going(
    together: int,
) -> None:
    begun = asyncio.Event()

    async def insist(arguments: dict[str, Any], context: Any) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done all the same"
        raise AssertionError("nothing ends this wait but a cancellation")

    insisting = Calls(calls=[ScriptedCall(name="insist")] * together)
    session = Session([insisting, "never"], [a_tool("insist", insist)])
    run = asyncio.create_task(session.run())
    await begun.wait()
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    types = await session.event_types()
    assert types[-1] is EventType.RUN_CANCELLED
    assert types.count(EventType.MODEL_STARTED) == 1
    results = await session.results()
    assert [result.is_error for result in results] == [False] * together


async def test_d7_a_note_to_the_model_is_not_where_the_conversation_rests() -> None:
    cut_off = Says(text="the beginning", stop_reason=StopReason.MAX_TOKENS)
    session = Session([cut_off, Fails()])
    await session.run()
    assert spoken(await session.active_path()) == ["user: hello", "assistant: the beginning"]


def allowing(ctx: RunContext) -> Extensions:
    return Extensions(ctx.extensions.context, [AllowAll(), Listening()])


class ParkedGuard(AllowAll):
    """Waits forever at the tool of that name, as a question without an answer does."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.reached = asyncio.Event()

    async def admit_tool_call(
        self, context: ExtensionContext, judged: JudgedCall, proceed: Admit
    ) -> float | None:
        waited = await super().admit_tool_call(context, judged, proceed)
        if judged.call.name == self._name:
            self.reached.set()
            await asyncio.Event().wait()
        return waited


async def test_a_run_that_goes_on_makes_the_calls_that_had_not_begun_and_keeps_its_figures() -> (
    None
):
    ran: list[str] = []

    async def write(arguments: dict[str, Any], context: Any) -> str:
        ran.append(context.tool_call_id)
        return "written"

    script = [
        Calls(
            calls=[
                ScriptedCall(name="write", arguments={"n": 1}, tool_call_id="call_a"),
                ScriptedCall(name="look", tool_call_id="call_b"),
            ]
        ),
        "all done",
    ]
    guard = ParkedGuard("write")
    session = Session(script, [a_tool("write", write, writes=True), *TOOLS], guard=guard)
    left = await session.start()
    parked = asyncio.create_task(run_agent(left, user_text("go")))
    await guard.reached.wait()
    await left.journal.commit()
    waiting = RunChange(status=RunStatus.WAITING, turn_count=1, usage=Usage(total_tokens=5))
    run = left.run
    await session.store.append(
        Batch(session_id="s1", agent_id=run.agent_id, run_id=run.run_id, run=waiting)
    )

    journal = Journal(
        run,
        store=session.store,
        stream=EventStream(),
        redactor=JournalRedactor(Redactor({})),
        estimate=estimate_blocks,
        held=HeldSession(OWNER),
    )
    history = SessionHistory(session.store, "s1", is_new=False)
    again = replace(left, journal=journal, history=history, extensions=allowing(left))
    journal.begin()
    outcome = await run_agent(again, user_text("go"))

    assert (outcome.status, outcome.text, outcome.turns) == (RunStatus.COMPLETED, "all done", 2)
    assert outcome.usage.total_tokens >= 5
    assert ran == ["call_a"]
    assert spoken(await session.active_path()) == [
        "user: go",
        'calls write({"n": 1})',
        "calls look({})",
        "result ok",
        "result ok",
        "assistant: all done",
    ]
    parked.cancel()
    await asyncio.wait([parked])


async def test_a_call_that_had_begun_is_not_made_again_by_the_run_that_goes_on() -> None:
    ran: list[str] = []

    async def write(arguments: dict[str, Any], context: Any) -> str:
        ran.append(context.tool_call_id)
        started.set()
        await asyncio.Event().wait()
        return "never"

    started = asyncio.Event()
    session = Session([calls("write"), "I will look"], [a_tool("write", write, writes=True)])
    left = await session.start()
    interrupted = asyncio.create_task(run_agent(left, user_text("go")))
    await started.wait()

    journal = Journal(
        left.run,
        store=session.store,
        stream=EventStream(),
        redactor=JournalRedactor(Redactor({})),
        estimate=estimate_blocks,
        held=HeldSession(OWNER),
    )
    history = SessionHistory(session.store, "s1", is_new=False)
    outcome = await run_agent(replace(left, journal=journal, history=history), user_text("go"))

    assert outcome.status is RunStatus.COMPLETED
    assert len(ran) == 1
    (closed,) = await session.results()
    assert closed.error is not None
    assert closed.error.details["reason"] == "interrupted_effect_unknown"
    interrupted.cancel()
    await asyncio.wait([interrupted])


async def go_on(session: Session, left: RunContext) -> Outcome:
    """Go on with a run as another process does, which has only what is stored."""
    journal = Journal(
        left.run,
        store=session.store,
        stream=EventStream(),
        redactor=JournalRedactor(Redactor({})),
        estimate=estimate_blocks,
        held=HeldSession(OWNER),
    )
    history = SessionHistory(session.store, "s1", is_new=False)
    again = replace(left, journal=journal, history=history, extensions=allowing(left))
    journal.begin()
    return await run_agent(again, user_text("go"))


async def test_calls_after_a_write_of_unknown_effect_are_made_by_the_run_that_goes_on() -> None:
    ran: list[str] = []

    async def write(arguments: dict[str, Any], context: Any) -> str:
        ran.append(context.tool_call_id)
        if context.tool_call_id == "call_a":
            started.set()
            await asyncio.Event().wait()
        return "written"

    started = asyncio.Event()
    two = [ScriptedCall(name="write", tool_call_id=f"call_{name}") for name in "ab"]
    session = Session([Calls(calls=two), "I will look"], [a_tool("write", write, writes=True)])
    left = await session.start()
    interrupted = asyncio.create_task(run_agent(left, user_text("go")))
    await started.wait()

    outcome = await asyncio.wait_for(go_on(session, left), 50)

    assert outcome.status is RunStatus.COMPLETED
    assert ran == ["call_a", "call_b"]
    reasons = {
        r.tool_call_id: r.error and r.error.details["reason"] for r in await session.results()
    }
    assert reasons == {"call_a": "interrupted_effect_unknown", "call_b": None}
    interrupted.cancel()
    await asyncio.wait([interrupted])


class SlowAfterTool(Listening):
    """Hangs once a call is answered, as a hook does while its process is killed."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    async def after_tool_call(
        self, context: ExtensionContext, call: ToolCall, result: ToolResult
    ) -> None:
        self.reached.set()
        await asyncio.Event().wait()


async def test_calls_after_a_failed_write_are_not_made_by_the_run_that_goes_on() -> None:
    ran: list[str] = []

    async def write(arguments: dict[str, Any], context: Any) -> str:
        ran.append(context.tool_call_id)
        raise RuntimeError("the disk is full")

    async def look(arguments: dict[str, Any], context: Any) -> str:
        ran.append(context.tool_call_id)
        return "seen"

    two = [ScriptedCall(name="write", tool_call_id=f"call_{name}") for name in "ab"]
    two.insert(1, ScriptedCall(name="look", tool_call_id="call_look"))
    hooks = SlowAfterTool()
    tools = [a_tool("write", write, writes=True), a_tool("look", look)]
    session = Session([Calls(calls=two), "I will look"], tools, hooks=hooks)
    left = await session.start()
    interrupted = asyncio.create_task(run_agent(left, user_text("go")))
    await hooks.reached.wait()
    await left.journal.commit()

    outcome = await asyncio.wait_for(go_on(session, replace(left, extensions=allowing(left))), 50)

    assert outcome.status is RunStatus.COMPLETED
    assert ran == ["call_a", "call_look"]
    last = {result.tool_call_id: result for result in await session.results()}["call_b"]
    assert last.error is not None
    assert last.error.details["reason"] == "previous_write_failed"
    interrupted.cancel()
    await asyncio.wait([interrupted])


@together("name", ["failed", "synthetic", "partial", "aborted"])
async def test_what_a_tool_says_of_its_result_does_not_hide_it_from_the_model(name: str) -> None:
    async def check(arguments: dict[str, Any], context: Any) -> ToolResult:
        return ToolResult(
            tool_call_id=context.tool_call_id,
            tool_name="check",
            content=[TextBlock(text="3 passed, 1 failed")],
            metadata={name: 1},
        )

    session = Session([calls("check"), "I see"], [a_tool("check", check)])
    await session.run()
    (shown,) = [
        block
        for message in session.scripted.requests[-1].messages
        for block in message.content
        if block.type == "tool_result"
    ]
    assert shown.content == [TextBlock(text="3 passed, 1 failed")]
    assert shown.metadata[name] == 1
    (node,) = [node for node in await session.active_path() if node.results]
    assert not node.is_partial
