"""Evaluations with `pydantic-evals`: cases and models, and answers from recordings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_evals", reason="the package pydantic-evals is not installed")

from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import EqualsExpected

from agent_core import AgentRuntime, ModelRequest, TextBlock, Usage, tool
from agent_core.providers.scripted import Reply, Says, ScriptedProvider, calls
from agent_core.testing.evals import eval_task, evaluate


@tool(permission="readonly")
def stock(item: str) -> int:
    """How many of an item are left."""
    return {"lamp": 12, "chair": 3}[item]


@dataclass
class Answer:
    item: str
    count: int


def shop(plus: int = 0) -> ScriptedProvider:
    """A model that looks into the stock, and adds something to what it finds."""

    def answer(request: ModelRequest) -> Reply | str:
        first = request.messages[0].content[0]
        assert isinstance(first, TextBlock)
        item = first.text.split()[-1]
        if len(request.messages) == 1:
            return calls("stock", item=item)
        count = {"lamp": 12, "chair": 3}[item] + plus
        text = f'{{"item": "{item}", "count": {count}}}'
        return Says(text=text, usage=Usage.from_input_output(100, 10))

    return ScriptedProvider(answer)


def dataset() -> Dataset[str, Answer, None]:
    return Dataset(
        name="stock",
        cases=[
            Case(name="lamps", inputs="lamp", expected_output=Answer("lamp", 12)),
            Case(name="chairs", inputs="chair", expected_output=Answer("chair", 3)),
        ],
        evaluators=[EqualsExpected()],
    )


async def test_every_case_is_run_with_every_model(project: Path) -> None:
    models = {"right": shop(), "wrong": shop(1)}
    async with AgentRuntime(project, model=shop(), persist=False) as runtime:
        reports = await evaluate(
            runtime, dataset(), models, message=_asked, tools=[stock], output_type=Answer
        )
        session_id = reports["right"].cases[0].attributes["session_id"]
        assert len(await runtime.session(str(session_id)).messages()) == 4
    assert {name: [case.name for case in report.cases] for name, report in reports.items()} == {
        "right": ["lamps", "chairs"],
        "wrong": ["lamps", "chairs"],
    }
    passed = {
        name: [_has_passed(case) for case in report.cases] for name, report in reports.items()
    }
    assert passed == {"right": [True, True], "wrong": [False, False]}
    (case, _) = reports["right"].cases
    assert case.output == Answer("lamp", 12)
    assert case.metrics["output_tokens"] > 10
    assert "lamps" in reports["right"].render()


async def test_answers_come_from_recordings_until_a_request_changes(project: Path) -> None:
    cache = project / "cache"
    model = shop()

    async def run(text: str) -> list[bool]:
        async with AgentRuntime(project, model=model, persist=False) as runtime:
            reports = await evaluate(
                runtime,
                dataset(),
                cache=cache,
                project_dir=project,
                message=_asked,
                tools=[stock],
                output_type=Answer,
                instructions=text,
            )
        return [_has_passed(case) for case in reports["default"].cases]

    assert await run("Look.") == [True, True]
    assert len(model.requests) == 4
    assert len(list(cache.rglob("*.yaml"))) == 2
    assert await run("Look.") == [True, True]
    assert len(model.requests) == 4
    assert await run("Look well.") == [True, True]
    assert len(model.requests) == 8
    assert await run("Look well.") == [True, True]
    assert len(model.requests) == 8


async def test_a_task_serves_a_dataset_of_ones_own(project: Path) -> None:
    async with AgentRuntime(project, model=shop(), persist=False) as runtime:
        task = eval_task(runtime, message=_asked, tools=[stock], output_type=Answer)
        report = await dataset().evaluate(task, progress=False)
    assert all(map(_has_passed, report.cases))
    assert report.failures == []


async def test_a_run_that_fails_is_a_failure_of_its_case(project: Path) -> None:
    async with AgentRuntime(project, model=ScriptedProvider([]), persist=False) as runtime:
        reports = await evaluate(runtime, dataset(), message=_asked)
    assert len(reports["default"].failures) == 2


def _asked(item: str) -> str:
    return f"How many are left of {item}"


def _has_passed(case: Any) -> bool:
    return all(each.value for each in case.assertions.values())
