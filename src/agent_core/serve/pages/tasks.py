"""Tasks as graphs: each step below the one it depends on."""

from collections.abc import Sequence

from agent_core.api import AgentRuntime
from agent_core.history.page import COLOURS
from agent_core.serve.pages.frame import Frame
from agent_core.tasks.model import TaskDocument, TaskStep
from agent_core.text.pages import fold, plain

_MOST_STEPS = 500
_MOST_TASKS = 20


async def task_graphs(frame: Frame, runtime: AgentRuntime, session_id: str) -> str:
    """Return the Tasks of a session, as HTML.

    Args:
        frame: the request.
        runtime: acts in the folder of the session.
        session_id: the session.
    """
    tenant = frame.visit.tenant
    page = await runtime.pages.tasks(_MOST_TASKS, session_id=session_id, tenant=tenant)
    return "".join(_task(frame, task) for task in page.items)


def _task(frame: Frame, task: TaskDocument) -> str:
    say = frame.say
    colour = COLOURS.get(task.status, "busy")
    label = (
        f"{plain(task.title or task.task_id)}"
        f' <span class="{colour}">{plain(say(task.status))}</span>'
        f' <span class="muted">{plain(say.count(len(task.steps), "step"))}</span>'
    )
    shown = _parents_first(task.steps[:_MOST_STEPS])
    below: dict[str | None, list[TaskStep]] = {}
    known = {step.step_id for step in shown}
    for step in shown:
        above = next((each for each in step.depends_on_step_ids if each in known), None)
        below.setdefault(above, []).append(step)
    body = _steps(frame, below)
    if (more := len(task.steps) - _MOST_STEPS) > 0:
        body += f"<p>{say.count(more, 'more step')}</p>"
    return fold(label, body, is_open=not task.status.is_terminal)


def _steps(frame: Frame, below: dict[str | None, list[TaskStep]]) -> str:
    """Return the steps as nested lists, without recursion: a chain may be long."""
    parts: list[str] = ['<ul class="steps">']
    waiting: list[TaskStep | str] = ["</ul>", *reversed(below.get(None, []))]
    while waiting:
        step = waiting.pop()
        if isinstance(step, str):
            parts.append(step)
            continue
        parts.append(f"<li>{_step(frame, step)}")
        children = below.get(step.step_id, [])
        waiting.append("</li>")
        if children:
            parts.append("<ul>")
            waiting += ["</ul>", *reversed(children)]
    return "".join(parts)


def _step(frame: Frame, step: TaskStep) -> str:
    say = frame.say
    colour = COLOURS.get(step.status, "busy")
    facts: list[str] = []
    if len(step.depends_on_step_ids) > 1:
        facts.append(say("after {steps}", steps=", ".join(step.depends_on_step_ids)))
    if not step.required:
        facts.append(say("optional"))
    if step.result_summary:
        facts.append(step.result_summary)
    run = ""
    if step.claimed_by_run_id:
        url = frame.address("runs", step.claimed_by_run_id)
        run = f' <a href="{url}">{say("its run")}</a>'
    about = f' <span class="muted">{plain(" · ".join(facts))}</span>' if facts else ""
    return (
        f'<span class="{colour}">{plain(say(step.status))}</span>'
        f" {plain(step.title or step.step_id)}{about}{run}"
    )


def _parents_first(steps: Sequence[TaskStep]) -> list[TaskStep]:
    """Return steps in order of creation, but none before the first one it depends on."""
    by_id = {step.step_id: step for step in steps}
    placed: dict[str, TaskStep] = {}
    for step in steps:
        chain = [step]
        while parents := [by_id[each] for each in chain[-1].depends_on_step_ids if each in by_id]:
            if parents[0].step_id in placed or parents[0] in chain:
                break
            chain.append(parents[0])
        placed |= {each.step_id: each for each in reversed(chain)}
    return list(placed.values())
