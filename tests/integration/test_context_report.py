"""`context_report` says what fills the window, and that is what the next request holds."""

from pathlib import Path

import pytest

from agent_core.errors import StorageError
from agent_core.providers.scripted import ScriptedProvider, calls
from agent_core.types import ContextReport, ModelRequest
from isolation import Home
from memories import Reply
from runtimes import CONFIG, ask, runtime

LONG = "The login page is long. " * 300


def tokens(report: ContextReport) -> dict[str, int]:
    return {segment.name: segment.tokens for segment in report.segments}


async def test_the_segments_are_those_of_the_last_request_and_what_was_said_since(
    home: Home, project: Path
) -> None:
    (project / "AGENTS.md").write_text("Write tests first.\n" * 50)
    (project / "big.txt").write_text("word " * 2000)
    script = ScriptedProvider([calls("code.read_file", path="big.txt"), "It is long.", "Yes."])
    async with runtime(home, project, script) as made:
        await ask(made, "read it")
        asked = len(script.requests)
        report = await made.context_report("s1")
        assert len(script.requests) == asked
        assert report.window == 32000
        assert report.used + report.free + report.reserve == report.window
        found = tokens(report)
        assert {"system", "tools", "conversation", "tool results"} <= found.keys()
        assert found["tool results"] > 500 > found["conversation"] > 0
        await ask(made, "sure?")
        built = (await made.replay_session("s1")).events
        use = [e.payload["use"] for e in built if e.event_type == "context_built"][-1]
        after = await made.context_report("s1")
        assert abs(after.used - use["total"]) < 50
        assert after.last_change is None
    async with runtime(home, project, []) as again:
        assert await again.context_report("s1") == after


async def test_what_moved_the_prefix_last_is_named(home: Home, project: Path) -> None:
    async with runtime(home, project, ["One.", "Two."]) as made:
        await ask(made)
        handle = await made.start("again", session_id="s1", instructions="Be brief.")
        await handle.wait()
        report = await made.context_report("s1")
        assert report.last_change is not None
        assert report.last_change.part == "static_system"
        assert (report.last_change.run_id, report.last_change.turn) == (handle.run_id, 1)
        assert "instructions" in tokens(report)


async def test_a_session_that_is_not_there_is_named(home: Home, project: Path) -> None:
    async with runtime(home, project, []) as made:
        with pytest.raises(StorageError, match="s9"):
            await made.context_report("s9")


async def test_a_report_right_after_a_summary_has_what_the_summary_keeps(
    home: Home, project: Path
) -> None:
    def reply(request: ModelRequest) -> Reply:
        is_summary = not request.tools
        return '{"summary": "They talked about the login page at length."}' if is_summary else LONG

    config = CONFIG + "[compact]\nauto_background = false\nkeep_recent_tokens = 6000\n"
    async with runtime(home, project, ScriptedProvider(reply), config=config) as made:
        for number in range(6):
            await ask(made, f"question {number}: please answer in prose")
        await (await made.compact_session("s1")).result()
        report = await made.context_report("s1")
        await ask(made, "and?")
        uses = [
            event.payload["use"]
            for event in (await made.replay_session("s1")).events
            if event.event_type == "context_built" and event.payload.get("tools") != []
        ]
        assert report.used > 6000
        assert abs(report.used - uses[-1]["total"]) < 100
        assert tokens(report)["conversation"] > 3000
