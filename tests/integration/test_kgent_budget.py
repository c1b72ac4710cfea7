"""Budgets of a profile: kept by every engine, and what a run has cost."""

from pathlib import Path
from typing import Any

import pytest

from agent_core.errors import ErrorCode
from agent_core.providers.scripted import Calls, Hangs, Says, ScriptedCall
from agent_core.types import Usage
from kgent import RunOptions, RunResult
from kgent.cli import main
from kgent.engine.base import EngineEvent
from kgent.engine.mock import MockPause
from kgent.review.verification import verify
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.runner import run
from kgent_runs import a_run, calls, lines, profile, state
from model_server import ModelServer, Reply
from sweeps import kept, paired, sampled
from tables import together

ENGINES = pytest.mark.parametrize("engine", kept(["core", "pydantic_ai"], "core"))
PRICE = {"input": 1.0, "output": 2.0}
USED = Usage.from_input_output(1000, 50)
LISTING = ScriptedCall(name="list_files", arguments={"path": "workspace"})
LISTS = Calls(calls=[LISTING], usage=USED)
DONE = Says(text="Done.", usage=USED)


def conduct(
    tmp_path: Path, engine: str, script: list[Reply], budget: dict[str, Any], **model: Any
) -> tuple[RunResult, int]:
    with ModelServer.in_thread(script) as server:
        fields = {"provider": "openai", "name": "m", "base_url": server.base_url("openai")}
        config = profile(
            tmp_path,
            model={**fields, **model},
            runtime={"engine": engine, "budget": budget},
        )
        result = run(config, "Write it.", RunOptions(sandbox=tmp_path / "run"))
        return result, len(server.requests)


def assert_spent(result: RunResult, limit: str) -> None:
    assert (result.status, result.error and result.error.code) == ("failed", "budget_exceeded")
    assert limit in str(result.error)
    assert state(result.sandbox_root)["status"] == "failed"
    assert result.sandbox_root
    assert verify(result.sandbox_root).problems == []


LIMITS = ("requests", "output_tokens", "total_tokens", "input_tokens")


@pytest.mark.parametrize(
    ("engine", "limit"), sampled(paired(["core", "pydantic_ai"], LIMITS), keep=2)
)
def test_a_run_ends_when_its_budget_is_spent(tmp_path: Path, engine: str, limit: str) -> None:
    result, requests = conduct(tmp_path, engine, [LISTS, DONE], {limit: 1})
    assert_spent(result, limit)
    assert requests <= 1


@ENGINES
def test_calls_of_tools_are_counted(tmp_path: Path, engine: str) -> None:
    writing = ScriptedCall(name="write_file", arguments={"path": "workspace/a", "content": "x"})
    script: list[Reply] = [LISTS, Calls(calls=[writing]), "Done."]
    result, _ = conduct(tmp_path, engine, script, {"tool_calls": 1})
    assert_spent(result, "tool_calls")
    assert result.sandbox_root
    made = lines(result.sandbox_root / "logs" / "tools.jsonl")
    assert [call["tool_name"] for call in made if call["status"] == "completed"] == ["list_files"]
    assert not (result.sandbox_root / "workspace" / "a").exists()


@ENGINES
def test_a_run_says_what_it_has_cost(tmp_path: Path, engine: str) -> None:
    result, _ = conduct(tmp_path, engine, [LISTS, DONE], {}, price=PRICE)
    assert result.status == "completed"
    assert state(result.sandbox_root)["cost"] == result.cost
    assert not result.usage_is_estimated
    assert result.cost == pytest.approx(2 * (1000 * 1 + 50 * 2) / 1e6)


@ENGINES
@pytest.mark.parametrize("code", [ErrorCode.CANCELLED, ErrorCode.BUDGET_EXCEEDED], ids=str)
def test_a_call_that_is_cut_off_counts_at_its_estimate(
    tmp_path: Path, engine: str, code: ErrorCode
) -> None:
    stop, heard = Cancellation(), list[str]()

    def hear(event: EngineEvent) -> None:
        heard.append(event.text)
        if "".join(heard).endswith("word " * 50):
            stop.cancel("enough", code=code)

    with ModelServer.in_thread([LISTS, Hangs(text="word " * 50)]) as server:
        model = {"provider": "openai", "name": "m", "base_url": server.base_url("openai")}
        config = profile(
            tmp_path, model={**model, "price": PRICE}, runtime={"engine": engine, "stream": True}
        )
        options = RunOptions(sandbox=tmp_path / "run")
        result = run(config, "Write it.", options, event_callback=hear, cancellation=stop)
    assert result.status == ("incomplete" if code is ErrorCode.CANCELLED else "failed")
    usage = result.usage
    assert result.usage_is_estimated
    assert usage["input_tokens"] > 1000 + 50
    assert usage["output_tokens"] == pytest.approx(50 + 63, abs=1)
    assert usage["model_calls"] == 2
    spent = (usage["input_tokens"] * 1 + usage["output_tokens"] * 2) / 1e6
    assert result.cost == pytest.approx(spent)
    stored = state(result.sandbox_root)
    assert (stored["usage"], stored["usage_is_estimated"]) == (usage, True)
    assert stored["cost"] == result.cost


@ENGINES
def test_an_unknown_price_is_not_free(tmp_path: Path, engine: str) -> None:
    result, _ = conduct(tmp_path, engine, [DONE], {})
    assert result.status == "completed"
    assert state(result.sandbox_root)["cost"] is None


def test_a_budget_in_dollars_is_kept_before_a_call_is_made(tmp_path: Path) -> None:
    result, requests = conduct(tmp_path, "core", ["Done."], {"usd": 1e-6}, price=PRICE)
    assert_spent(result, "usd")
    assert requests == 0


def test_the_mock_keeps_what_it_can_spend(tmp_path: Path) -> None:
    steps = [calls("list_files"), calls("list_files"), "Done."]
    spent = {"requests": 2}, {"tool_calls": 1}, {"wall_s": 0.2}
    for number, budget in enumerate(spent):
        folder = tmp_path / str(number)
        folder.mkdir()
        script = [MockPause(sleep=30)] if "wall_s" in budget else steps
        result = a_run(folder, *script, runtime={"budget": budget})
        assert_spent(result, next(iter(budget)) if "wall_s" not in budget else "wall_s")


@together(
    ("runtime", "model", "reason"),
    [
        (
            {"engine": "pydantic_ai", "budget": {"usd": 1}},
            {},
            "only the engine core can enforce it",
        ),
        ({"engine": "core", "budget": {"usd": 1}}, {}, "the price of openai:m is not known"),
        ({"engine": "core", "budget": {"usd": -1}}, {}, "budget.usd"),
        ({"engine": "core", "budget": {"euros": 1}}, {}, "not a known key"),
        ({"engine": "core", "budget": {"requests": 1.5}}, {}, "budget.requests"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_found_by_validate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], runtime: Any, model: Any, reason: str
) -> None:
    fields = {"provider": "openai", "name": "m", "base_url": "http://127.0.0.1:9/v1", **model}
    config = profile(tmp_path, model=fields, runtime=runtime)
    assert main(["validate", "--config", str(config)]) == 2
    assert reason in capsys.readouterr().err
    profile(
        tmp_path,
        model={**fields, "price": PRICE},
        runtime={"engine": "core", "budget": {"usd": 1, "requests": 3}},
    )
    assert main(["validate", "--config", str(config)]) == 0
