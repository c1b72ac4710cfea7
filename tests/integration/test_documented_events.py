"""What the pages say of events: their payloads, and how another process reads them along."""

import asyncio
import re
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from agent_core import EventType, RunStatus, RuntimeEvent
from agent_core.providers.scripted import Calls, Fails, Hangs, ScriptedCall, calls
from isolation import Home
from runtimes import Asked, ask, collect, runtime

ROOT = Path(__file__).parents[2]
TABLE = re.compile(r"^\| `(\w+)` \| ((?:[^`|]*)`([a-z_ ]+)`.*) \|$", re.M)


def payload_keys() -> dict[str, tuple[set[str], bool]]:
    """Per event the keys that the page names, and whether these are all."""
    page = (
        (ROOT / "docs" / "events.md")
        .read_text(encoding="utf-8")
        .partition("keys of `event.payload`")[2]
    )
    rows = TABLE.findall(page)
    return {event: (set(keys.split()), "and others" not in row) for event, row, keys in rows}


async def test_events_have_the_payload_keys_of_the_page(home: Home, project: Path) -> None:
    (project / "a.txt").write_text("x", encoding="utf-8")
    script = [
        calls("code.read_file", path="a.txt"),
        calls("code.write_file", path="b.txt", content="x"),
        calls("code.edit_file", nonsense=1),
        "Done.",
        Fails(),
    ]
    events: list[RuntimeEvent] = []
    async with runtime(home, project, script, permission_callback=Asked("allow_once")) as made:
        for _ in range(2):
            events += await collect(await made.start("go", session_id="s1"))
    seen = {event.event_type.value: event for event in events}
    documented = payload_keys()
    assert len(documented) == 12
    for name, (keys, is_all) in documented.items():
        payload = set(seen[name].payload)
        assert (payload == keys) if is_all else (payload > keys), name
    reply = next(e for e in events if e.event_type is EventType.MODEL_COMPLETED)
    assert set(reply.payload["tool_calls"][0]) == {"tool_call_id", "name"}
    error = seen["run_failed"].payload["error"]
    assert {"type", "code", "message", "retryable", "details"} <= set(error)
    page = (ROOT / "docs" / "events.md").read_text(encoding="utf-8").partition("typed record](")[2]
    example: dict[str, Any] = {}
    program = page.partition("```python\n")[2].partition("async def main")[0]
    exec(program, example)  # noqa: S102 - our page
    said = [text for event in events if (text := example["describe"](event))]
    assert any(re.fullmatch(r"code\.read_file took \d+ ms", text) for text in said)
    assert any(text.startswith("code.edit_file failed: the arguments of ") for text in said)
    assert any(re.fullmatch(r"\d+ tokens", text) for text in said)
    begun = {e.tool_call_id for e in events if e.event_type is EventType.TOOL_STARTED}
    assert len(begun) == 2
    assert seen["tool_failed"].tool_call_id not in begun | {None}


@pytest.mark.long
@pytest.mark.parametrize("first", ["Looking.", ""])
@pytest.mark.parametrize("half", ["Half a", ""])
async def test_the_text_of_a_run_that_did_not_complete_is_what_has_come_of_its_last_reply(
    first: str, half: str, home: Home, project: Path
) -> None:
    one = Calls(text=first, calls=[ScriptedCall(name="code.list_dir", arguments={"path": "."})])
    script = [one, Fails(text=half), one, Hangs(text=half)]
    async with runtime(home, project, script) as made:
        failed = await ask(made)
        assert (failed.status, failed.result_text) == (RunStatus.FAILED, half or first)
        cancelled = await made.start("again")
        requests = 0
        async with aclosing(cancelled.events()) as events:
            async for event in events:
                requests += event.event_type is EventType.MODEL_STARTED
                has_begun = event.event_type is EventType.MODEL_TEXT_DELTA or not half
                if requests == 2 and has_begun:
                    break
        await cancelled.cancel()
        assert (cancelled.status, cancelled.result_text) == (RunStatus.CANCELLED, half or first)


async def test_another_process_reads_a_run_along(home: Home, project: Path) -> None:
    async with runtime(home, project, [Hangs(text="Wait")]) as made:
        handle = await made.start("go", session_id="s1")
        program = ROOT / "examples" / "sessions" / "follow_run.py"
        reader = await asyncio.create_subprocess_exec(
            *(sys.executable, str(program), handle.run_id),
            cwd=project,
            env=home.env(PYTHONWARNINGS="error"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert reader.stdout is not None
        lines = [(await reader.stdout.readline()).decode().strip()]
        assert handle.status is RunStatus.RUNNING
        await handle.cancel()
        rest, _ = await reader.communicate()
    lines += rest.decode().split()
    assert reader.returncode == 0
    assert (lines[0], lines[-1]) == ("loop_started", "run_cancelled")
