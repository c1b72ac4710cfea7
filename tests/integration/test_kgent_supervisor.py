"""The commands of a run share one supervisor, which is gone when the run is over."""

import os
import time
from pathlib import Path

from kgent.engine.mock import MockCall
from kgent_runs import a_run

WHO = "read -r a b c supervisor d < /proc/$PPID/stat; echo $supervisor >> supervisors"


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_commands_of_a_run_share_a_supervisor_that_ends_with_it(tmp_path: Path) -> None:
    call = MockCall(tool="run_command", args={"argv": ["sh", "-c", WHO]})
    shell = {"shell": {"enabled": True, "allowed_commands": ["sh"]}}
    result = a_run(tmp_path, call, call, call, tools=shell)
    assert result.sandbox_root is not None
    lines = (result.sandbox_root / "workspace" / "supervisors").read_text("utf-8").split()
    assert len(lines) == 3
    assert len(set(lines)) == 1
    end = time.monotonic() + 60
    while is_running(int(lines[0])) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_running(int(lines[0]))


def test_a_command_that_ends_the_supervisor_does_not_end_the_run(tmp_path: Path) -> None:
    killing = f"{WHO}; kill -9 $supervisor"
    argvs = [["sh", "-c", killing], ["sh", "-c", WHO]]
    script = [MockCall(tool="run_command", args={"argv": argv}) for argv in argvs]
    shell = {"shell": {"enabled": True, "allowed_commands": ["sh"]}}
    result = a_run(tmp_path, *script, tools=shell)
    assert result.sandbox_root is not None
    lines = (result.sandbox_root / "workspace" / "supervisors").read_text("utf-8").split()
    assert len(set(lines)) == 2
