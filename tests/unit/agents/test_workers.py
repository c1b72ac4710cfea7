"""Workers: their ids, their tools, and who is chosen."""

from pathlib import Path
from typing import Any

import pytest

from agent_core.agents.definitions import AgentDefinitions
from agent_core.agents.workers import PoolWorker, WorkerPools
from agent_core.config.models import AgentsConfig
from agent_core.errors import ConfigError, ErrorCode, ToolError
from agent_core.tasks.graph import Dag
from agent_core.tasks.model import Task, TaskStep
from agent_core.types import utc_now
from agent_core.types.tools import CODE_READERS
from tables import together

DEFINITION = "default_worker_agent"


def config(*pools: tuple[str, list[dict[str, Any]]]) -> AgentsConfig:
    made = [
        {
            "pool_id": pool_id,
            "workers": [{"agent_definition_id": DEFINITION, **worker} for worker in workers],
        }
        for pool_id, workers in pools
    ]
    return AgentsConfig.model_validate({"worker_pools": made})


def workers(tmp_path: Path, *pools: tuple[str, list[dict[str, Any]]]) -> WorkerPools:
    return WorkerPools(config(*pools), AgentDefinitions(tmp_path))


def dag(**pools: str | None) -> Dag:
    now = utc_now()
    header = Task(
        task_id="t1",
        wal_path="x",
        created_by_agent_id="a",
        created_by_run_id="r",
        created_at=now,
        updated_at=now,
    )
    made = Dag(header)
    for step_id, pool_id in pools.items():
        made.put(TaskStep(step_id=step_id, worker_pool_id=pool_id, updated_at=now))
    return made


def test_ids_depend_on_session_pool_and_worker_alone() -> None:
    worker = PoolWorker("p", "w", DEFINITION, None)
    others = [
        worker.agent_id("s2"),
        PoolWorker("q", "w", DEFINITION, None).agent_id("s1"),
        PoolWorker("p", "v", DEFINITION, None).agent_id("s1"),
    ]
    assert worker.agent_id("s1") == PoolWorker("p", "w", "another", CODE_READERS).agent_id("s1")
    assert worker.agent_id("s1") not in others
    assert len(worker.agent_id("s1")) <= 128


def test_a_worker_without_an_id_gets_one_from_its_place(tmp_path: Path) -> None:
    found = workers(tmp_path, ("p", [{}, {"worker_id": "anna"}, {}]), ("q", [{}]))
    assert [worker.worker_id for worker in found.all] == [
        f"p-1-{DEFINITION}",
        "anna",
        f"p-3-{DEFINITION}",
        f"q-1-{DEFINITION}",
    ]


def test_a_long_pool_name_makes_no_id_too_long(tmp_path: Path) -> None:
    (worker,) = workers(tmp_path, ("p" * 128, [{}])).all
    assert len(worker.worker_id) <= 128


def test_an_id_that_was_derived_and_is_taken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="derived"):
        workers(tmp_path, ("p", [{}, {"worker_id": f"p-1-{DEFINITION}"}]))


@together(
    ("ceiling", "asked", "granted"),
    [
        (None, None, CODE_READERS),
        (None, ["code.write_file"], {*CODE_READERS, "code.write_file"}),
        (["mine"], None, {"mine"}),
        (["mine", "yours"], ["mine"], {"mine"}),
        (["mine"], [], set[str]()),
        ([], None, set[str]()),
    ],
)
def test_what_a_dispatch_grants(
    ceiling: list[str] | None, asked: list[str] | None, granted: set[str]
) -> None:
    worker = PoolWorker("p", "w", DEFINITION, None if ceiling is None else frozenset(ceiling))
    assert worker.granted(asked) == granted


def test_the_first_idle_one_that_may_have_the_tools_goes(tmp_path: Path) -> None:
    found = workers(
        tmp_path,
        ("p", [{"worker_id": "reader", "allowed_tools": ["code.search"]}]),
        ("q", [{"worker_id": "any"}, {"worker_id": "other"}]),
    )
    tools = ("code.write_file",)
    first = found.select(dag(s1=None), "s", tools=tools)
    found.claim(first.agent_id("s"), "run_1")
    second = found.select(dag(s1=None), "s", tools=tools)
    found.claim(second.agent_id("s"), "run_2")
    with pytest.raises(ToolError) as busy:
        found.select(dag(s1=None), "s", tools=tools)
    assert [first.worker_id, second.worker_id] == ["any", "other"]
    assert busy.value.code is ErrorCode.WORKER_POOL_BUSY
    # Another session has workers of the same configuration, and they are idle.
    assert found.select(dag(s1=None), "s2", tools=tools).worker_id == "any"


def test_tools_that_no_worker_may_have_are_an_argument_that_does_not_fit(tmp_path: Path) -> None:
    found = workers(tmp_path, ("p", [{"allowed_tools": ["code.search"]}]))
    with pytest.raises(ToolError) as caught:
        found.select(dag(s1=None), "s", tools=("code.write_file",))
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


def test_steps_of_another_pool_are_not_for_a_worker(tmp_path: Path) -> None:
    found = workers(tmp_path, ("p", [{"worker_id": "a"}]), ("q", [{"worker_id": "b"}]))
    steps = dag(s1="q", s2=None)
    assert found.select(steps, "s", step_ids=("s1",)).worker_id == "b"
    assert found.select(steps, "s", step_ids=("s1", "s2")).pool_id == "p"
    with pytest.raises(ToolError) as caught:
        found.select(steps, "s", step_ids=("s1",), pool_id="p")
    assert caught.value.code is ErrorCode.WORKER_NOT_AVAILABLE


def test_an_empty_task_can_have_a_worker_too(tmp_path: Path) -> None:
    found = workers(tmp_path, ("p", [{"worker_id": "a"}]))
    assert found.select(dag(), "s").worker_id == "a"


def test_a_release_that_comes_late_frees_no_other_run(tmp_path: Path) -> None:
    found = workers(tmp_path, ("p", [{}]))
    found.claim("agent_1", "run_1")
    found.release("agent_1", "run_1")
    found.claim("agent_1", "run_2")
    found.release("agent_1", "run_1")
    assert found.run_of("agent_1") == "run_2"


def test_a_pool_whose_workers_have_no_definition_is_none(tmp_path: Path) -> None:
    unknown = [{"agent_definition_id": "nobody"}]
    with pytest.raises(ConfigError, match="nobody") as caught:
        workers(tmp_path, ("p", unknown)).require_any(set())
    assert caught.value.code is ErrorCode.CONFIG_ERROR
    workers(tmp_path, ("p", unknown), ("q", [{}])).require_any(set())
