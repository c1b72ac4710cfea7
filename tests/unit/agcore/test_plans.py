"""Phase 4b: plans, what makes them, and who carries them out."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agcore.agent import (
    Agent,
    AgentError,
    AgentSession,
    JsonPlanParser,
    Plan,
    PlanningAgent,
    Step,
    StepStatus,
    TaskAgent,
)
from agcore.agent.plan_text import read_steps
from agcore.llm import (
    ChatMessage,
    ChatRequest,
    ChatResponse,
    HookEvent,
    LlmError,
    MockProvider,
)
from agent_parts import Watches, bundle, cancel_once, cpu_seconds
from tables import together

DONE = ChatResponse(ChatMessage.assistant_text("done"))


def planner(provider: MockProvider, *, stop_on_failure: bool = True) -> PlanningAgent:
    session = AgentSession(Agent("helper"), "s1", bundle(provider))
    return PlanningAgent(session, stop_on_failure=stop_on_failure)


def test_phase4a_a_step_begins_pending() -> None:
    step = Step(0, "do something")
    assert (step.index, step.description) == (0, "do something")
    assert step.status.is_pending
    assert not step.status.is_terminal


def test_phase4a_states_differ() -> None:
    assert [status for status in StepStatus if status.is_pending] == [StepStatus.PENDING]
    assert [status for status in StepStatus if status.is_terminal] == [
        StepStatus.COMPLETED,
        StepStatus.FAILED,
        StepStatus.SKIPPED,
    ]


EDGES = {
    ("pending", "running"),
    ("pending", "skipped"),
    ("running", "completed"),
    ("running", "failed"),
    ("running", "skipped"),
}


@together("to", [*StepStatus, "running", "unknown", None])
@together("state", StepStatus)
def test_setting_the_status_jumps_over_no_state(state: StepStatus, to: Any) -> None:
    step = Step(0, "x")
    if state not in {StepStatus.PENDING, StepStatus.SKIPPED}:
        step.status = StepStatus.RUNNING
    if state not in {StepStatus.PENDING, StepStatus.RUNNING}:
        step.status = state
    assert step.status is state
    if (state, to) in EDGES:
        step.status = to
        assert step.status is StepStatus(to)
    else:
        with pytest.raises(AgentError.Other, match=f"is {state} and cannot become {to}"):
            step.status = to
        assert step.status is state


def test_a_plan_has_an_id_a_goal_and_steps() -> None:
    plan = Plan(id="p1", goal="test goal", steps=[Step(0, "first"), Step(1, "second")])
    assert (plan.id, [step.index for step in plan.steps]) == ("p1", [0, 1])
    assert Plan("g", []).id != Plan("g", []).id


def test_phase4a_a_step_moves_one_way() -> None:
    completed, failed, skipped = (Step(number, "x") for number in range(3))
    completed.start()
    completed.complete(DONE)
    failed.start()
    failed.fail(error := AgentError.Other("no"))
    skipped.skip()
    assert (completed.status, completed.response) == (StepStatus.COMPLETED, DONE)
    assert (failed.status, failed.error) == (StepStatus.FAILED, error)
    assert skipped.status is StepStatus.SKIPPED
    for step in (completed, failed, skipped):
        before = step.status
        for move in (step.start, step.skip, lambda s=step: s.complete(DONE)):
            with pytest.raises(AgentError.Other, match="cannot become"):
                move()
        assert step.status is before
    with pytest.raises(AgentError.Other):
        Step(0, "x").complete(DONE)
    with pytest.raises(AgentError.Other):
        Step(0, "x").fail(error)


@together(
    "raw",
    [
        '{"steps": [{"description": "step one"}, {"description": "step two"}]}',
        'So:\n```json\n{"steps": [{"description": "step one"}, {"description": "step two"}]}\n```',
        '```\n{"steps": [{"description": "step one"}, {"description": "step two"}]}\n```',
    ],
)
async def test_phase4b_a_plan_is_read_alone_or_from_a_fenced_block(raw: str) -> None:
    plan = await JsonPlanParser().parse(raw, "my goal")
    assert plan.goal == "my goal"
    assert [(s.index, s.description) for s in plan.steps] == [(0, "step one"), (1, "step two")]
    assert all(step.status.is_pending for step in plan.steps)


@together(
    ("raw", "reason"),
    [
        ("not json", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", 'no array "steps"'),
        ("[]", 'no array "steps"'),
        ("[1, 2]", 'no array "steps"'),
        ('"steps"', 'no array "steps"'),
        ('Sure: {"plan": "walk"}. Fine?', 'no array "steps"'),
        ('```json\n{"plan": "walk"}\n```', 'no array "steps"'),
        ('{"steps": [{"description": "a"}, {"description": "b', "not JSON: Unterminated"),
        ('{"steps": [{"description": "a"}, {"description": "b"}', "not JSON"),
        ('{"steps": [{"description": "a", "with": [{"description": "b"}', "not JSON"),
        ('[{"description": "a"}, {}]', 'step 1 of the plan has no "description"'),
        ('<think>{"steps": [{"description": "draft"}]}</think>No.', "not JSON"),
        ('{"steps": "one"}', 'no array "steps"'),
        ('{"steps": []}', "no steps"),
        ('{"steps": [{"description": "a"}, {}]}', 'step 1 of the plan has no "description"'),
        ('{"steps": [{"description": " "}]}', 'step 0 of the plan has no "description"'),
        ('{"steps": [7]}', 'step 0 of the plan has no "description"'),
    ],
)
async def test_phase4b_what_is_no_plan_says_why(raw: str, reason: str) -> None:
    with pytest.raises(AgentError.PlanParse, match=reason):
        await JsonPlanParser().parse(raw, "goal")


STEPS = '[{"description": "step one"}, {"description": "step two"}]'
PLAN = f'{{"steps": {STEPS}}}'


@together(
    "raw",
    [
        f'<think>\nMaybe {{"steps": [{{"description": "draft"}}]}}?\n</think>\n\n{PLAN}',
        f'Let me think [out loud: {{first}} this, a 5" pipe, then that.\n\n{PLAN}',
        f'Draft: {{"steps": [{{"description": "draft"}}]}}. Better:\n{PLAN}',
        f"Here is the plan:\n\n{PLAN}\n\nShall I begin? (See [1] and {{2}}.)",
        f"```bash\nls {{a,b}} [x]\n```\nand\n```json\n{PLAN}\n```\nthen\n```\nls\n```",
        f"```json\n{PLAN}",
        f"```{PLAN}```",
        f"~~~JSON\n{PLAN}\n~~~",
        f"{PLAN}\n```",
        '{"steps": [{"description": "step one"}, {"description": "step two"},],}',
        '{"steps": [{"description": "step one",},\n {"description": "step two"}\n , ]\n}',
        STEPS,
        f"The steps: {STEPS}.",
        f"```\n{STEPS}\n```",
        f'{{"goal": "g", "steps": {STEPS}, "notes": ["none"]}}',
        f"\ufeff{PLAN}",
    ],
)
async def test_a_plan_is_found_in_what_models_write(raw: str) -> None:
    plan = await JsonPlanParser().parse(raw, "goal")
    assert [step.description for step in plan.steps] == ["step one", "step two"]


@together(
    "description",
    [
        "Write\n```bash\nls\n```\nto the file",
        'Answer {"steps": [{"description": "not this"}]}',
        "Delete [a, b,] and {c,}",
        "Say </think> and <think>",
        'a "quoted" word, and a \\ backslash',
        "雪 \U0001f600",
    ],
)
@together("around", ["{}", "```json\n{}\n```", "<think>Hm, [so</think>{}"])
async def test_what_stands_in_a_description_stays_there(description: str, around: str) -> None:
    document = json.dumps({"steps": [{"description": description}, {"description": "end"}]})
    plan = await JsonPlanParser().parse(around.replace("{}", document), "goal")
    assert [step.description for step in plan.steps] == [description, "end"]
    spared = document.replace("]}", ",]}")  # a comma too many, in strings too if there is one
    if "]}" not in description:
        plan = await JsonPlanParser().parse(around.replace("{}", spared), "goal")
        assert [step.description for step in plan.steps] == [description, "end"]


async def test_a_line_break_in_a_description_is_taken_as_it_is() -> None:
    raw = '{"steps": [{"description": "Write\n```\nls\n```\n"}]}'
    plan = await JsonPlanParser().parse(raw, "goal")
    assert plan.steps[0].description == "Write\n```\nls\n```\n"


PIECES = ["[", "{", "]", "}", '"', "\\", ",", ":", "```", "\n", " ", "x", '"steps"', "<think>", "1"]


@given(st.lists(st.sampled_from([*PIECES, "</think>", PLAN, '{"description": "a"}']), max_size=40))
def test_whatever_a_model_writes_there_is_a_plan_or_a_reason(pieces: list[str]) -> None:
    try:
        steps = read_steps("".join(pieces))
    except AgentError.PlanParse:
        return
    assert steps
    assert all(step.strip() for step in steps)


@together(
    "unit",
    [*PIECES, '["', '{"a":', '[{"', '{"steps": [', "[1,", '\\"', ', "', '"\\"', "<think>[", ",  "],
)
def test_reading_takes_time_in_proportion_to_the_text(unit: str) -> None:
    """16 times as much takes 16 times as long: 256 times, if it were looked through again."""

    def read(size: int) -> Callable[[], object]:
        text = unit * (size // len(unit))

        def work() -> None:
            with suppress(AgentError.PlanParse):
                read_steps(text)

        return work

    assert cpu_seconds(read(64_000)) < 80 * cpu_seconds(read(4_000)) + 0.02


async def test_phase4b_a_goal_is_planned_and_every_step_is_a_turn() -> None:
    provider = MockProvider(
        ['{"steps": [{"description": "look"}, {"description": "leap"}]}', "looked", "leapt"]
    )
    agent: TaskAgent = planner(provider)
    plan = await agent.run("Cross the {{river}}")
    assert plan.is_complete
    assert [step.response.text for step in plan.steps if step.response] == ["looked", "leapt"]
    sent = [request.messages[-1].text for request in provider.requests]
    assert "Cross the {{river}}" in sent[0]
    assert sent[1:] == ["look", "leap"]


async def test_phase4b_a_given_plan_is_carried_out_and_the_hook_runs_for_each_step() -> None:
    watches = Watches(HookEvent.ON_PLAN_STEP_COMPLETE)
    parts = bundle(MockProvider(["a", "b"]), hooks=watches.executor)
    agent = PlanningAgent(AgentSession(Agent("helper"), "s1", parts))
    plan = Plan.of("goal", ["first", "second"])
    await agent.execute_plan(plan)
    assert [step.status for step in plan.steps] == [StepStatus.COMPLETED] * 2
    assert [context.plan_step_index for context in watches.seen] == [0, 1]
    assert agent.session.turn_index() == 2


async def test_phase4b_a_failure_stops_the_plan_and_leaves_the_rest_pending() -> None:
    agent = planner(MockProvider(["a", LlmError.Other("down"), "c"]))
    plan = Plan.of("goal", ["1", "2", "3"])
    with pytest.raises(AgentError.Llm, match="down"):
        await agent.execute_plan(plan)
    assert [step.status.value for step in plan.steps] == ["completed", "failed", "pending"]
    assert plan.steps[1].error is not None
    assert agent.plan is plan
    await agent.execute_plan(plan)  # goes on where nothing has happened yet
    assert [step.status.value for step in plan.steps] == ["completed", "failed", "completed"]


async def test_phase4b_or_it_goes_on_by_setting() -> None:
    agent = planner(MockProvider(["a", LlmError.Other("down"), "c"]), stop_on_failure=False)
    plan = Plan.of("goal", ["1", "2", "3"])
    await agent.execute_plan(plan)
    assert [step.status.value for step in plan.steps] == ["completed", "failed", "completed"]


async def test_phase4b_an_answer_that_is_no_plan_is_an_error() -> None:
    with pytest.raises(AgentError.PlanParse):
        await planner(MockProvider(["I would rather not."])).run("goal")


async def test_an_answer_that_is_no_plan_is_asked_for_once_more_with_the_reason() -> None:
    provider = MockProvider(["Sure!", f"Sorry: {PLAN}", "a", "b"])
    agent = planner(provider)
    plan = await agent.run("the goal")
    assert plan.is_complete
    again = provider.requests[1].messages[-1].text
    assert "the goal" in again
    assert "the plan is not JSON" in again


async def test_after_the_second_answer_that_is_no_plan_it_gives_up() -> None:
    provider = MockProvider(["Sure!", "{}", PLAN])
    with pytest.raises(AgentError.PlanParse, match='no array "steps"'):
        await planner(provider).run("goal")
    assert len(provider.requests) == 2


async def test_a_step_that_is_cancelled_does_not_run_for_ever() -> None:
    begun = asyncio.Event()

    class Hangs(MockProvider):
        async def chat(self, request: ChatRequest) -> ChatResponse:
            begun.set()
            await asyncio.Event().wait()
            return await super().chat(request)

    agent, plan = planner(Hangs()), Plan.of("goal", ["1"])
    await cancel_once(begun, agent.execute_plan(plan))
    assert plan.steps[0].status is StepStatus.FAILED
