"""Plans: read from what a model wrote, carried out step by step, and what happens on failure.

Runs offline, with a mock for a model: python examples/agcore/task_agent_demo.py
"""

import asyncio

from agcore.agent import (
    Agent,
    AgentBuilder,
    AgentError,
    AgentSession,
    JsonPlanParser,
    Plan,
    PlanningAgent,
    Step,
    StepStatus,
)
from agcore.llm import (
    HookContext,
    HookEvent,
    HookExecutor,
    HookResult,
    LlmError,
    MockProvider,
)
from agcore.tools import ToolRegistry

PLAN = """\
Here is my plan:
```json
{"steps": [{"description": "Look up the weather."}, {"description": "Choose what to wear."}]}
```"""


class Ticks:
    """Prints every step that is done."""

    async def execute(self, context: HookContext) -> HookResult:
        print(f"  step {context.plan_step_index} is done")
        return HookResult.allow()


def session(provider: MockProvider) -> AgentSession:
    hooks = HookExecutor()
    hooks.register(HookEvent.ON_PLAN_STEP_COMPLETE, Ticks())
    bundle = (
        AgentBuilder().provider(provider).tool_registry(ToolRegistry()).hook_executor(hooks).build()
    )
    return AgentSession(Agent("planner", "You plan and do."), "plans", bundle)


def show(plan: Plan) -> None:
    for step in plan.steps:
        outcome = step.response.text if step.response else step.error or ""
        print(f"  {step.index} {step.status:<9} {step.description} {outcome}".rstrip())


async def main() -> None:
    print("Why an answer is no plan:")
    for raw in ("I would rather not.", "{}", '{"steps": []}', '{"steps": [{"text": "?"}]}'):
        try:
            await JsonPlanParser().parse(raw, "anything")
        except AgentError.PlanParse as error:
            print(f"  {error}")

    print("\nA goal, planned by the model and carried out:")
    agent = PlanningAgent(session(MockProvider([PLAN, "Sunny.", "A hat."])))
    show(await agent.run("Get dressed for today"))

    print("\nA plan made by hand, and a step that fails:")
    provider = MockProvider(["Sunny.", LlmError.Other("the model is down"), "Gone."])
    agent = PlanningAgent(session(provider))
    plan = Plan.of("Get out", ["Look out.", "Find the key.", "Leave."])
    try:
        await agent.execute_plan(plan)
    except AgentError as error:
        print(f"  stopped: {error}")
    show(plan)

    print("\nSteps move one way:")
    step = Step(0, "once")
    print(f"  {step.status}: pending {step.status.is_pending}, ended {step.status.is_terminal}")
    step.status = StepStatus.RUNNING
    step.fail(AgentError.Other("the service is down"))
    print(f"  {step.status}: pending {step.status.is_pending}, ended {step.status.is_terminal}")
    try:
        step.status = StepStatus.RUNNING
    except AgentError as error:
        print(f"  {error}")


if __name__ == "__main__":
    asyncio.run(main())
