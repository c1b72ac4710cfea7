"""The tokens of a run with everything below it: children, summaries, the choice of memories."""

from pathlib import Path

import pytest

import summarising
from agent_core import ModelRequest, Role, RunError, Usage
from agent_core.providers.scripted import (
    Calls,
    Fails,
    Reply,
    Says,
    ScriptedCall,
    ScriptedProvider,
    calls,
)
from casts import Cast
from isolation import Home
from runtimes import CONFIG, runtime

PRICED = CONFIG + "[model.price]\ninput = 1.0\noutput = 10.0\n"
QUIET = "\n[memory]\nenabled = false\n"


def used(given: int, taken: int) -> Usage:
    return Usage.from_input_output(given, taken)


def child(task: str) -> Calls:
    call = ScriptedCall(
        name="agent.create_sub_agent", arguments={"task": task, "allowed_tools": []}
    )
    return Calls(calls=[call], usage=used(100, 10))


async def test_a_run_alone_has_used_all_of_it(home: Home, project: Path) -> None:
    model = ScriptedProvider([Says(text="done", usage=used(100, 10))])
    async with runtime(home, project, model, config=PRICED) as made:
        result = await made.run("go")
        again = await (await made.attach(result.run_id)).result()
    assert result.usage.total_tokens == result.total_usage.total_tokens == 110
    assert result.cost == result.total_cost == pytest.approx(0.0002)
    assert again.total_usage.total_tokens == 110


async def test_children_count_whoever_reads_the_result(home: Home, project: Path) -> None:
    played = Cast({
        "go": [child("help"), Says(text="done", usage=used(200, 20))],
        "help": [Says(text="helped", usage=used(1000, 100))],
    })  # fmt: skip
    async with runtime(home, project, played, config=PRICED) as made:
        result = await made.run("go", session_id="s1")
    assert result.usage.total_tokens == 330
    assert result.total_usage.total_tokens == 1430
    assert result.total_usage.input_tokens == 1300
    assert result.cost == pytest.approx(0.0006)
    assert result.total_cost == pytest.approx(0.0026)
    async with runtime(home, project, config=PRICED) as other:
        again = await (await other.attach(result.run_id)).result()
        (costs,) = await other.costs()
    assert again.total_usage == result.total_usage
    assert again.total_cost == pytest.approx(result.total_cost)
    assert costs.usage.total_tokens == 1430


async def test_a_failed_run_says_what_its_children_have_cost(home: Home, project: Path) -> None:
    played = Cast({
        "go": [child("help"), Fails(message="no")],
        "help": [Says(text="helped", usage=used(1000, 100))],
    })  # fmt: skip
    async with runtime(home, project, played) as made:
        with pytest.raises(RunError) as caught:
            await made.run("go")
    assert caught.value.result.total_usage.total_tokens >= 1210


async def test_a_summary_counts_once(home: Home, project: Path) -> None:
    config = f"{CONFIG}{QUIET}\n[compact]\nkeep_recent_tokens = 400\nauto_background = false\n"
    async with runtime(home, project, summarising.model(), config=config) as made:
        for number in range(4):
            result = await made.run(f"question {number} {'x' * 4000}", session_id="s1")
            assert result.total_usage == result.usage
        handle = await made.compact_session("s1")
        result = await handle.result()
        runs = await made.session_runs("s1")
    summaries = [run.usage.total_tokens for run in runs if run.parent_run_id == handle.run_id]
    assert result.usage.total_tokens == sum(summaries) > 0
    assert result.total_usage.total_tokens == sum(summaries)


async def test_the_choice_of_memories_counts(home: Home, project: Path) -> None:
    def reply(request: ModelRequest) -> Reply | str:
        if request.metadata.get("purpose"):
            return Says(text='{"memory_ids": ["mem_7"]}', usage=used(500, 5))
        if request.messages[-1].role is not Role.USER or len(request.messages) > 2:
            return Says(text="tabs", usage=used(100, 10))
        made = calls("internal.recall_memory", query="tabs or spaces")
        return made.model_copy(update={"usage": used(100, 10)})

    home.write("memory/MEMORY.md", "- [mem_7](user/tabs.md) user: Prefers tabs\n")
    home.write("memory/user/tabs.md", "---\nid: mem_7\nsummary: Prefers tabs\n---\nTabs.\n")
    async with runtime(home, project, ScriptedProvider(reply)) as made:
        result = await made.run("tabs?")
        again = await (await made.attach(result.run_id)).result()
    assert result.usage.total_tokens == 220
    assert result.total_usage.total_tokens == 725
    async with runtime(home, project) as other:
        again = await (await other.attach(result.run_id)).result()
    assert again.total_usage.total_tokens == 725


async def test_a_run_that_waited_counts_its_children_before(home: Home, project: Path) -> None:
    config = f'{CONFIG}{QUIET}\n[permissions]\nunattended = "park"\n'
    write = ScriptedCall(name="code.write_file", arguments={"path": "a.txt", "content": "a"})
    played = Cast({
        "go": [
            child("help"),
            Calls(calls=[write], usage=used(100, 10)),
            Says(text="done", usage=used(100, 10)),
        ],
        "help": [Says(text="helped", usage=used(1000, 100))],
    })  # fmt: skip
    async with runtime(home, project, played, config=config) as made:
        waiting = await made.run("go")
        assert waiting.total_usage.total_tokens == 1320
        handle = await made.answer(waiting.pending_requests[0], "allow_once")
        assert (await handle.result()).total_usage.total_tokens == 1430
