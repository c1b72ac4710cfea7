"""Runs a Python program as a warm copy where another program than the tests starts it.

`python -S -E warm_client.py ADDRESS program.py words`: this process hands its streams to the copy,
passes signals on, and ends as the copy does. The copy is killed when this process is.
"""

import json
import os
import signal
import socket
import sys
from types import FrameType


def main() -> None:
    """Have the words run by the process that listens at the address, or run them here."""
    address, *words = sys.argv[1:]
    asked = socket.socket(socket.AF_UNIX)
    try:
        asked.connect(address)
    except OSError:
        os.execv(sys.executable, [sys.executable, *words])  # noqa: S606 - there is no shell to want

    def pass_on(number: int, _: FrameType | None) -> None:
        asked.send(bytes([number]))

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, pass_on)
    job = {"words": words, "folder": os.getcwd(), "environ": dict(os.environ)}  # noqa: PTH109
    told = json.dumps(job).encode()
    socket.send_fds(asked, [len(told).to_bytes(4, "big")], [0, 1, 2])
    asked.sendall(told)
    code = int.from_bytes(asked.recv(4, socket.MSG_WAITALL), "big", signed=True)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
