"""Runs a command whose terminal is its standard input: `python on_terminal.py command words`."""

import fcntl
import os
import runpy
import signal
import sys
import termios
from pathlib import Path


def main() -> None:
    """Take the terminal, and become the command."""
    command = sys.argv[1:]
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # A suite that ignores a hang-up must not hand that on.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    is_loaded = command[:2] == [sys.executable, "-m"] and command[2] in sys.modules
    if not is_loaded:
        os.execvp(command[0], command)  # noqa: S606 - there is no shell to want
    sys.path[0] = str(Path.cwd())
    sys.argv = command[2:]
    runpy.run_module(command[2], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
