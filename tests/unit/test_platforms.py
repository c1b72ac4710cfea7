"""Where it cannot run, it says so in one line; what only Linux has is not needed elsewhere."""

import subprocess
import sys
from pathlib import Path

import pytest

from agent_core.errors import ToolError
from agent_core.process import Command, Launcher, run
from tables import together

pytestmark = pytest.mark.checked

# A Python whose standard library has what it has on Windows, as far as our modules ask for it.
WINDOWS = """
import os, signal, sys
import asyncio, concurrent.futures, logging, multiprocessing, pathlib, subprocess, tempfile
sys.platform = "win32"
for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
for name in ("fchmod", "fork", "geteuid", "getuid", "killpg", "posix_spawn", "setsid", "waitid",
             "O_CLOEXEC", "O_DIRECTORY", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "O_PATH"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGWINCH"):
    delattr(signal, name)
"""
# And one with what it has on macOS; every module is loaded with it.
MACOS = """
import importlib, os, pkgutil
import agcore, agent_core, kgent
for name in ("O_PATH", "memfd_create", "waitid"):
    delattr(os, name)
for package in (agcore, agent_core, kgent):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


def run_python(system: str, code: str) -> "subprocess.CompletedProcess[str]":
    command = (sys.executable, "-c", system + code)
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603


@together(("program", "module"), [("soong-agent", "agent_core.cli"), ("kgent", "kgent.cli")])
@together("arguments", [["--version"], ["run", "hello"], []], ids=" ".join)
def test_a_command_says_in_one_line_that_windows_is_not_supported(
    program: str, module: str, arguments: list[str]
) -> None:
    done = run_python(WINDOWS, f"from {module} import main\nsys.exit(main({arguments}))")

    assert done.stderr == f"{program} does not run on Windows; install it in WSL 2, as on Linux\n"
    assert done.stdout == ""
    assert done.returncode == 2


@together(
    "wanted",
    [
        "agent_core import AgentRuntime",
        "agent_core import RunOptions",
        "agent_core.testing import ScriptedRuntime",
        "agcore import Agent",
        "agcore import tools",
        "kgent import KgentConfig",
    ],
)
def test_a_program_is_told_the_same_by_its_import(wanted: str) -> None:
    done = run_python(WINDOWS, f"from {wanted}")

    assert done.returncode == 1
    package = wanted.split()[0]
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {package} does not run on Windows")


def test_pytest_is_not_broken_where_the_plugin_cannot_be_used() -> None:
    done = run_python(WINDOWS, "import agent_core.testing.plugin")

    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(90)  # it loads everything
def test_no_module_needs_what_only_linux_has() -> None:
    done = run_python(MACOS, "")

    assert done.returncode == 0, done.stderr


async def test_programs_are_not_started_where_their_end_could_not_be_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr("os.waitid")
    command = Command(argv=[sys.executable, "-c", ""], cwd=tmp_path, env={})
    with pytest.raises(ToolError, match=r"on macOS that takes Python 3\.13 or newer"):
        await run(command, launcher=Launcher(), timeout_s=60)
