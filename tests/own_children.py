"""The children of the test process: what a test has left behind is what was not there before."""

from pathlib import Path


def own_children() -> set[int]:
    """The processes that this one has started and not waited for, dead ones included."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (thread / "children").read_text(encoding="ascii").split()}
    return found
