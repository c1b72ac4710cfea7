"""Agents that reach a goal step by step."""

import asyncio
from typing import Protocol

from agcore.agent.errors import AgentError, OtherAgentError
from agcore.agent.plan import Plan, Step
from agcore.agent.plan_parser import JsonPlanParser, PlanParser
from agcore.agent.session import AgentSession
from agcore.llm import HookContext, HookEvent
from agcore.prompt import PromptTemplate

PLAN_PROMPT = PromptTemplate(
    "plan",
    """\
Make a plan to reach the goal below, in as few steps as it takes. Each step will be given to you
alone, so say in it all that it needs. Do nothing of it yet.

Goal: {{ goal }}

Answer with JSON alone, in this form:
{"steps": [{"description": "what to do first"}, {"description": "what to do next"}]}""",
)


class TaskAgent(Protocol):
    """Somebody who reaches goals."""

    async def run(self, goal: str) -> Plan:
        """Make a plan for the goal and carry it out.

        Raises:
            AgentError: there is no plan, or it could not be carried out.
        """
        ...

    async def execute_plan(self, plan: Plan) -> None:
        """Carry a plan out; its steps say how far that got.

        Raises:
            AgentError: it could not be carried out.
        """
        ...


class PlanningAgent:
    """The reference: asks the session's agent for a plan, then gives it the steps one by one.

    With a conversation in its session every step sees what those before it have said.

    Args:
        session: where plan and steps are turns.
        parser: reads the plan.
        stop_on_failure: a step that fails ends the plan, and the steps after it stay pending;
            otherwise it goes on with the next.
        prompt: asks for the plan; `{{ goal }}` is filled in.
    """

    def __init__(
        self,
        session: AgentSession,
        *,
        parser: PlanParser | None = None,
        stop_on_failure: bool = True,
        prompt: PromptTemplate = PLAN_PROMPT,
    ) -> None:
        self.session = session
        self.plan: Plan | None = None
        """The plan of the last `run` or `execute_plan`, also if that failed."""
        self._parser = parser or JsonPlanParser()
        self._stop_on_failure = stop_on_failure
        self._prompt = prompt

    async def run(self, goal: str) -> Plan:
        """See `TaskAgent.run`.

        Raises:
            AgentError: `PlanParse`, or what the turn or a step failed with.
        """
        reply = await self.session.submit_turn(self._prompt.render({"goal": goal}))
        plan = await self._parser.parse(reply.text, goal)
        await self.execute_plan(plan)
        return plan

    async def execute_plan(self, plan: Plan) -> None:
        """See `TaskAgent.execute_plan`. Steps that have ended already are left alone.

        Raises:
            AgentError: a step failed, and failures stop the plan.
        """
        self.plan = plan
        for step in plan.steps:
            if not step.status.is_terminal:
                await self._execute(step)

    async def _execute(self, step: Step) -> None:
        step.start()
        try:
            response = await self.session.submit_turn(step.description)
        except AgentError as error:
            step.fail(error)
            if self._stop_on_failure:
                raise
            return
        except asyncio.CancelledError:
            step.fail(OtherAgentError("the step was cancelled"))
            raise
        step.complete(response)
        context = HookContext(event=HookEvent.ON_PLAN_STEP_COMPLETE, plan_step_index=step.index)
        await self.session.bundle.hook_executor.execute(context)
