"""Tells all that a program can see of how it was started."""

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any


def described(stream: Any) -> list[object]:
    """The properties of a standard stream."""
    return [
        stream.name,
        stream.mode,
        stream.fileno(),
        stream.encoding,
        stream.errors,
        stream.newlines,
        stream.line_buffering,
        stream.write_through,
        stream.isatty(),
        type(stream.buffer).__name__,
    ]


def main() -> None:
    """Print it, and end as the first argument says."""
    umask = os.umask(0)
    descriptors: dict[str, str] = {}
    for each in Path("/proc/self/fd").iterdir():
        if each.exists():  # not the folder itself, which is closed by now
            descriptors[each.name] = str(each.readlink()) if int(each.name) > 2 else ""
    seen = {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "warnings": [sys.warnoptions, warnings.filters[0][0] == "error"],
        "writes_bytecode": not sys.dont_write_bytecode,
        "name": __name__,
        "environ": dict(os.environ),
        "folder": str(Path.cwd()),
        "parent": os.getppid(),
        "is_leader": os.getsid(0) == os.getpid(),
        "group": "own" if os.getpgrp() == os.getpid() else os.getpgrp(),
        "umask": umask,
        "descriptors": descriptors,
        "streams": [described(each) for each in (sys.stdin, sys.stdout, sys.stderr)],
        "signals": [str(signal.getsignal(each)) for each in sorted(signal.valid_signals())],
        "input": sys.stdin.read(),
    }
    sys.stdout.write(json.dumps(seen))
    end: Any = {
        "nothing": None,
        "words": "it is wrong",
        "number": 7,
    }.get(sys.argv[1], 3)
    if sys.argv[1] == "error":
        raise ValueError("it broke")
    if sys.argv[1] == "interrupt":
        raise KeyboardInterrupt
    sys.exit(end)


if __name__ == "__main__":
    main()
