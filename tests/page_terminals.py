"""Terminals that run the blocks of a page: each names its terminal in its first line."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

EVERY = "every terminal"


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """The terminals and commands of a page, in their order."""
    found = re.findall(
        r"^```bash\n# (?:terminal: )?(.*?)\n(.*?)^```$", page.read_text("utf-8"), re.S | re.M
    )
    return [(title, commands) for title, commands in found]


@dataclass(frozen=True)
class Terminals:
    """A copy of an example in which the blocks of its page are run.

    A terminal keeps its folder and the variables that it exports from block to block, as the
    reader's does.
    """

    page: Path
    folder: Path
    environment: dict[str, str]
    _states: dict[str, Path] = field(default_factory=dict[str, Path])

    def command(self, terminal: str, commands: str) -> tuple[str, ...]:
        """Build the command that runs a block in a terminal.

        What follows a comma in the name of a terminal only reminds of what has changed in it.
        """
        name = terminal.partition(",")[0]
        if name in self._states:
            begin = f". {shlex.quote(str(self._states[name]))}\n"
        else:
            self._states[name] = self.folder.parent / f"terminal-{len(self._states)}"
            (begin,) = (text for title, text in blocks_of(self.page) if title == EVERY)
        state = shlex.quote(str(self._states[name]))
        keep = f"{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} > {state}\n"
        return "bash", "-euo", "pipefail", "-c", f"{begin}trap {shlex.quote(keep)} EXIT\n{commands}"

    def run(self, terminal: str, commands: str) -> str:
        """Run a block to its end; what it prints, on both streams."""
        return _printed(self.command(terminal, commands), self.folder, self.environment)

    def ask(self, *words: str) -> str:
        """Run a command of ours that is not on the page; what it prints, on both streams."""
        home = {"SOONG_AGENT_HOME": str(self.folder / "home"), "SCALE_MODEL_KEY": "no-key-needed"}
        command = [sys.executable, "-m", "agent_core.cli", *words]
        return _printed(command, self.folder / "project", self.environment | home)

    @contextmanager
    def running(self, terminal: str, commands: str) -> Generator[subprocess.Popen[bytes]]:
        """A block that goes on until Ctrl-C."""
        with subprocess.Popen(  # noqa: S603 - the page of this repository
            self.command(terminal, commands),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            process_group=0,
        ) as process:
            try:
                yield process
            finally:
                os.killpg(process.pid, signal.SIGINT)
                process.wait(timeout=60)


def _printed(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run a command that has to succeed, and return what it prints on both streams."""
    done = subprocess.run(  # noqa: S603 - of the page, or our own
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(claim: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < end
        time.sleep(0.5)  # to look costs a process
