"""What must not be lost goes with a request that leaves exchanges out, without any summary."""

from pathlib import Path

import pytest

from agent_core import AgentRuntime, EventType, ModelRequest, RunStatus
from agent_core.providers.scripted import Fails, ScriptedProvider
from integration.test_compaction import Answer, Reply, is_compact, long_answer, said, split
from isolation import Home
from runtimes import ask, runtime
from sweeps import kept

SMALL = """
[model]
provider = "custom"
name = "script"
context_window = 8192

[memory]
enabled = false

[compact]
"""
OFF = SMALL + "enabled = false\n"
FAILING = SMALL + "keep_recent_tokens = 400\nreserve_tokens = 6000\n"


def fails(_: ModelRequest) -> Reply:
    return Fails(message="no")


def says_nothing(_: ModelRequest) -> Reply:
    return '{"summary": "ok"}'


async def talk(made: AgentRuntime, turns: int) -> None:
    await ask(made, "Mend the login page. Always keep the comments.")
    await ask(made, "Never push to main! 不要改接口。")
    for number in range(turns):
        handle = await ask(made, f"What about part {number}? It is long.")
        assert await handle.wait() is RunStatus.COMPLETED


@pytest.mark.parametrize(
    ("config", "compact"),
    kept([(OFF, fails), (FAILING, fails), (FAILING, says_nothing)], (FAILING, fails)),
)
async def test_rules_and_goal_stay_where_compaction_is_off_or_fails(
    home: Home, project: Path, config: str, compact: Answer
) -> None:
    provider = split(long_answer, compact)
    async with runtime(home, project, provider, config=config) as made:
        await talk(made, 14)
    last = [request for request in provider.requests if not is_compact(request)][-1]
    text = said(last)
    head = text.partition("<kept>")[2].partition("</kept>")[0]
    for line in (
        "Mend the login page.",
        "- Always keep the comments.",
        "- Never push to main!",
        "- 不要改接口。",
        "What about part 13?",
    ):
        assert line in head
    assert text.count("<kept>") == 1
    assert "- What about part 3? It is long." in head
    assert "What about part 3?" not in text.partition("</kept>")[2]
    assert len(head) // 4 <= 8192 // 4


async def test_the_oldest_rules_that_do_not_fit_go_to_one_artifact(
    home: Home, project: Path
) -> None:
    provider = split(long_answer, fails)
    rules = " ".join(f"Never do thing {n:03} in this project, ever." for n in range(250))
    async with runtime(home, project, provider, config=OFF) as made:
        await ask(made, "Mend the login page.")
        for part in range(5):
            await ask(made, rules[part * len(rules) // 5 : (part + 1) * len(rules) // 5])
        await talk(made, 8)
        artifacts = [
            a for a in (await made.replay_session("s1")).artifacts if a.kind == "compaction"
        ]
    head = said(provider.requests[-1]).partition("<kept>")[2].partition("</kept>")[0]
    assert "Mend the login page." in head
    assert "- Never push to main!" in head
    assert "Never do thing 000" not in head
    assert any(artifact.artifact_id in head for artifact in artifacts)


async def test_a_failing_summariser_is_tried_again_after_pauses_that_grow(
    home: Home, project: Path
) -> None:
    provider = split(long_answer, fails)
    async with runtime(home, project, provider, config=FAILING) as made:
        await talk(made, 10)
        session = (await made.replay_session("s1")).session
    tried = sum(map(is_compact, provider.requests))
    assert tried == 1
    assert session.metadata["compact_pause"]["failures"] == 1
    async with runtime(home, project, provider, config=FAILING) as made:
        await ask(made, "And in another process?")
        assert sum(map(is_compact, provider.requests)) == tried
        handle = await made.compact_session("s1")
        assert await handle.wait() is RunStatus.FAILED
        page = await made.replay_session("s1")
    assert sum(map(is_compact, provider.requests)) == tried + 1
    assert page.session.metadata["compact_pause"]["failures"] == 2
    assert sum(e.event_type is EventType.COMPACT_FAILED for e in page.events) == 2


@pytest.mark.sweep
async def test_a_summary_that_succeeds_ends_the_pauses(home: Home, project: Path) -> None:
    answers: list[Reply] = [Fails(message="no")]
    summary = '{"summary": "The login page is being mended, part by part, and rules are kept."}'
    provider = ScriptedProvider(
        lambda r: (answers.pop() if answers else summary) if is_compact(r) else long_answer(r)
    )
    async with runtime(home, project, provider, config=FAILING) as made:
        await talk(made, 6)
        handle = await made.compact_session("s1")
        assert await handle.wait() is RunStatus.COMPLETED
        session = (await made.replay_session("s1")).session
    assert "compact_pause" not in session.metadata
