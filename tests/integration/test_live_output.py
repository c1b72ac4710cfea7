"""What a command prints is seen while it runs, at the terminal and by `/last`."""

import sys
from pathlib import Path
from typing import Any

import pytest

from agent_core import EventType, RunStatus, RuntimeEvent
from agent_core.providers.scripted import calls
from captures import Key, Recording, record
from isolation import Home
from model_server import ModelServer
from runtimes import Asked, collect, runtime
from sweeps import kept

pytestmark = pytest.mark.timeout(90)

READY, ENTER, CTRL_D = "sandbox off", "\r", "\x04"
SLOW = """\
#!/bin/sh
i=1; while [ $i -le 9 ]; do echo "step $i"; i=$((i + 1)); done
printf 'at 10 %%\\rat 20 %%\\r\\033[31mat 30 %%'
until [ -e on ]; do sleep 0.05; done
printf '\\rat 90 %%\\nstep 10\\n'
until [ -e end ]; do sleep 0.05; done
echo the last step
"""


def converse(home: Home, project: Path, keys: list[Key], *words: str, **more: Any) -> Recording:
    script = project / "slow"
    script.write_text(SLOW)
    script.chmod(0o700)
    with ModelServer.in_thread([calls("code.run_command", argv=["./slow"]), "All done."]) as server:
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
            "context_window = 32000\n[memory]\nenabled = false\n"
        )
        command = [sys.executable, "-m", "agent_core.cli", *words]
        return record(command, env=home.env(), cwd=project, keys=keys, **more)


@pytest.mark.parametrize("columns", kept([40, 120], 40))
def test_run_shows_the_last_lines_in_place_and_then_the_folded_result(
    home: Home, project: Path, columns: int
) -> None:
    keys = [
        Key("? help", "y"),
        Key("│ at 30 %", (project / "on").touch),
        Key("│ step 10", (project / "end").touch),
    ]
    scene = converse(home, project, keys, "run", "go", columns=columns)
    assert scene.code == 0
    shown = [line for line in scene.lines if "│" in line or "before these" in line]
    assert [line.strip() for line in shown] == [
        "… 7 lines before these",
        "│ step 8",
        "│ step 9",
        "│ at 90 %",
        "│ step 10",
        "│ the last step",
    ]
    assert "10 %" not in scene.raw.decode().replace("100 %", "")


def test_last_follows_a_running_command_until_a_key(home: Home, project: Path) -> None:
    keys = [
        Key(READY, f"go{ENTER}"),
        Key("? help", "y"),
        Key("│ at 30 %", f"/last{ENTER}"),
        Key("step 4", (project / "on").touch),
        Key("at 90 %", "x"),
        Key("│ step 10", (project / "end").touch),
        Key("All done.", "\x7f" + CTRL_D),
    ]
    scene = converse(home, project, keys, "chat")
    assert scene.code == 0
    for number in range(1, 8):  # the folded result repeats the later ones
        assert scene.lines.count(f"step {number}") == 1, scene.text
    assert scene.lines.count("at 90 %") == 1
    assert "the last step" not in scene.lines


async def test_output_is_an_event_that_is_not_stored(home: Home, project: Path) -> None:
    (project / "slow").write_text(SLOW)
    script = [calls("code.run_command", argv=["sh", "slow"]), "Done."]
    async with runtime(home, project, script, permission_callback=Asked("allow_once")) as made:
        handle = await made.start("go", session_id="s1")
        seen: list[RuntimeEvent] = []
        async for event in handle.events():
            seen.append(event)
            if event.event_type is EventType.TOOL_OUTPUT:
                (project / "on").touch()
                (project / "end").touch()
        assert handle.status is RunStatus.COMPLETED
        first = next(each for each in seen if each.event_type is EventType.TOOL_OUTPUT)
        started = next(each for each in seen if each.event_type is EventType.TOOL_STARTED)
        assert first.seq is None
        assert first.tool_call_id == started.tool_call_id
        assert first.payload["text"].startswith("step 1\nstep 2\n")
        replayed = await collect(await made.attach(handle.run_id))
        assert EventType.TOOL_OUTPUT not in {each.event_type for each in replayed}
