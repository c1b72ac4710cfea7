"""Plans: their steps, parsing them from a model's answer, and agents that execute them."""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from inspect import isawaitable
from typing import Any, Protocol

from agcore.agent.error import AgentConfigError, AgentError, OtherAgentError, PlanParseError
from agcore.agent.plan_text import read_steps
from agcore.agent.session import AgentSession
from agcore.llm import ChatResponse, HookContext, HookEvent
from agcore.prompt import PromptTemplate
from agent_core.text import kind_of
from agent_core.types import new_id

PLAN_PROMPT = PromptTemplate(
    "plan",
    """\
Make a plan to reach the goal below, in as few steps as it takes. Each step will be given to you
alone, so say in it all that it needs. Do nothing of it yet.

Goal: {{ goal }}

Answer with JSON alone, in this form:
{"steps": [{"description": "what to do first"}, {"description": "what to do next"}]}""",
)


class StepStatus(StrEnum):
    """The state of a step: pending, running, and then one of the three ends."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def is_pending(self) -> bool:
        """True if the step has not begun."""
        return self is StepStatus.PENDING

    @property
    def is_terminal(self) -> bool:
        """True if the step has ended."""
        return self in {StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.SKIPPED}


_BEFORE = {
    StepStatus.RUNNING: {StepStatus.PENDING},
    StepStatus.COMPLETED: {StepStatus.RUNNING},
    StepStatus.FAILED: {StepStatus.RUNNING},
    StepStatus.SKIPPED: {StepStatus.PENDING, StepStatus.RUNNING},
}


class Step:
    """One step of a plan. An invalid transition raises `AgentError.Other` and changes nothing.

    Attributes:
        index: its position in the plan, from 0.
        description: what to do.
        response: the answer that it was completed with.
        error: why it failed, once failed.
    """

    def __init__(self, index: int, description: str) -> None:
        self.index = index
        self.description = description
        self._status = StepStatus.PENDING
        self.response: ChatResponse | None = None
        self.error: AgentError | None = None

    def __repr__(self) -> str:
        return f"Step({self.index}, {self.description!r}, {self.status.value})"

    @property
    def status(self) -> StepStatus:
        """Its state. Setting it moves the step along, without an answer or an error."""
        return self._status

    @status.setter
    def status(self, to: StepStatus) -> None:
        if to not in _BEFORE or self._status not in _BEFORE[to]:
            now = self._status.value
            raise OtherAgentError(f"step {self.index} is {now} and cannot become {to}")
        self._status = StepStatus(to)

    def start(self) -> None:
        """Start the step."""
        self.status = StepStatus.RUNNING

    def complete(self, response: ChatResponse) -> None:
        """Complete the step."""
        self.status = StepStatus.COMPLETED
        self.response = response

    def fail(self, error: AgentError) -> None:
        """Fail the step with an error."""
        self.status = StepStatus.FAILED
        self.error = error

    def skip(self) -> None:
        """Skip the step, whether or not it has started."""
        self.status = StepStatus.SKIPPED


@dataclass(frozen=True, slots=True)
class Plan:
    """A goal and its steps."""

    goal: str
    steps: Sequence[Step]
    id: str = field(default_factory=lambda: new_id("plan"))

    @classmethod
    def of(cls, goal: str, descriptions: Sequence[str]) -> "Plan":
        """Build a plan with one pending step per description."""
        return cls(goal, [Step(index, text) for index, text in enumerate(descriptions)])

    @property
    def is_complete(self) -> bool:
        """True if every step has ended."""
        return all(step.status.is_terminal for step in self.steps)


class PlanParser(Protocol):
    """Parses plans; implement it for another format."""

    @abstractmethod
    async def parse(self, raw: str, goal: str) -> Plan:
        """Read the plan from a model's answer.

        Raises:
            AgentError: `PlanParse`; there is no plan, with the reason.
        """
        ...


class JsonPlanParser:
    """Parses `{"steps": [{"description": "…"}, …]}`, or the bare list, from a reply.

    Reasoning before it, prose and code fences around it, and trailing commas are ignored. If there
    are several plans, the last one counts.
    """

    async def parse(self, raw: str, goal: str) -> Plan:
        """See `PlanParser.parse`."""
        return Plan.of(goal, await asyncio.to_thread(read_steps, raw))


class TaskAgent(Protocol):
    """Reaches goals in steps."""

    @abstractmethod
    async def run(self, goal: str) -> Plan:
        """Make a plan for the goal and execute it.

        Raises:
            AgentError: there is no plan, or it could not be executed.
        """
        ...

    @abstractmethod
    async def execute_plan(self, plan: Plan) -> None:
        """Execute a plan; the state of its steps shows the progress.

        Raises:
            AgentError: it could not be executed.
        """
        ...


class PlanningAgent:
    """The reference implementation: asks the session's agent for a plan and submits its steps.

    If its session has a conversation, every step sees the earlier answers.

    Args:
        session: the session whose turns are the plan and its steps.
        parser: parses the plan.
        stop_on_failure: a failed step ends the plan, and later steps stay pending;
            otherwise the plan continues with the next step.
        prompt: asks for the plan; `{{ goal }}` is replaced.
    """

    def __init__(
        self,
        session: AgentSession[Any, Any],
        *,
        parser: PlanParser | None = None,
        stop_on_failure: bool = True,
        prompt: PromptTemplate = PLAN_PROMPT,
    ) -> None:
        self.session = session
        self.plan: Plan | None = None
        """The plan of the last `run` or `execute_plan`, even if that failed."""
        self._parser = parser or JsonPlanParser()
        self._stop_on_failure = stop_on_failure
        self._prompt = prompt

    async def run(self, goal: str) -> Plan:
        """See `TaskAgent.run`. If an answer has no plan, asks once more, with the reason.

        Raises:
            AgentError: `PlanParse`, or what the turn or a step failed with.
        """
        prompt = self._prompt.render({"goal": goal})
        reply = await self.session.submit_turn(prompt)
        try:
            plan = await self._parse(reply.text, goal)
        except PlanParseError as error:
            plan = await self._ask_again(prompt, goal, error)
        await self.execute_plan(plan)
        return plan

    async def _ask_again(self, prompt: str, goal: str, error: PlanParseError) -> Plan:
        again = f"{prompt}\n\nYour previous answer is not a plan: {error.message}."
        try:
            reply = await self.session.submit_turn(again)
        except AgentError as failure:
            raise error from failure
        return await self._parse(reply.text, goal)

    async def _parse(self, raw: str, goal: str) -> Plan:
        parsed: object = self._parser.parse(raw, goal)  # a parser may be written without async
        plan: Any = await parsed if isawaitable(parsed) else parsed
        if isinstance(plan, Plan):
            return plan
        what = type(self._parser).__name__
        raise AgentConfigError(f"{what}.parse returned {kind_of(plan)}; return a Plan")

    async def execute_plan(self, plan: Plan) -> None:
        """See `TaskAgent.execute_plan`. Steps that have already ended are skipped.

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
        context = HookContext(
            event=HookEvent.ON_PLAN_STEP_COMPLETE,
            response=response,
            plan_step_index=step.index,
            session_id=self.session.session_id,
            agent_name=self.session.agent.name,
        )
        await self.session.bundle.hook_executor.execute(context)
