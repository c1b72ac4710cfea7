"""The path of one run through the code: modules entered, functions called, frames deep.

    python bench/run_path.py [--toolkit] [--list]

`--toolkit` measures `agcore.Agent` instead of the runtime; `--list` prints every module with its number of calls and functions, and the deepest stacks.

The run has two turns and one tool call, goes through `AgentRuntime`, and is the second one of its
session, so that what is only done once is not counted.
"""

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from agent_core import AgentRuntime
from agent_core.providers.scripted import Says, ScriptedProvider, calls
from agent_core.types import Usage

_PACKAGES = "/agent_core/", "/agcore/"
_CONFIG = '[model]\nprovider = "custom"\nname = "scripted"\ncontext_window = 32000\n'


@dataclass(slots=True)
class RunPath:
    """What was entered while a program was watched."""

    functions: Counter[str] = field(default_factory=Counter[str])
    stacks: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])

    def enter(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call, if it is one of a function of ours."""
        if event != "call" or not _is_ours(frame):
            return
        self.functions[_name(frame)] += 1
        stack: list[str] = []
        above: FrameType | None = frame
        while above is not None:
            if _is_ours(above):
                stack.append(_name(above))
            above = above.f_back
        self.stacks.add(tuple(reversed(stack)))

    def __str__(self) -> str:
        return (
            f"{len(self.modules())} modules, {len(self.functions)} functions, "
            f"{max(map(len, self.stacks))} frames deep, {self.functions.total()} calls"
        )

    def modules(self) -> dict[str, list[str]]:
        """The functions that were entered, by module."""
        found: dict[str, list[str]] = {}
        for name in sorted(self.functions):
            found.setdefault(name.partition(":")[0], []).append(name)
        return found

    def listing(self, *, least_depth: int) -> str:
        """Every module with its calls and functions, then the stacks of at least that depth."""
        modules = [
            f"{sum(self.functions[name] for name in names):6} calls {len(names):4} functions  {path}"
            for path, names in self.modules().items()
        ]
        deep = [stack for stack in self.stacks if len(stack) >= least_depth]
        stacks = [
            f"{len(stack)} frames:\n  " + "\n  ".join(stack)
            for stack in sorted(deep, key=lambda stack: (-len(stack), stack))
        ]
        return "\n".join([*modules, *stacks])


@contextmanager
def _watched(enter: Callable[[FrameType, str, Any], None]) -> Any:
    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def measure(folder: Path) -> RunPath:
    """Run twice in one session of a new home below `folder`, and watch the second run."""
    project, home = folder / "project", folder / "home"
    project.mkdir()
    home.mkdir(mode=0o700)
    (project / "a.txt").write_text("hello\n")
    (home / "config.toml").write_text(_CONFIG)
    runtime = AgentRuntime(project_dir=project, home_dir=home)
    runtime.register_provider("custom", lambda _: _script("code.read_file"))
    seen = RunPath()
    async with runtime:
        await (await runtime.start("first", session_id="s")).wait()
        with _watched(seen.enter):
            handle = await runtime.start("second", session_id="s")
            status = await handle.wait()
        if status != "completed":
            raise RuntimeError(f"the run ended {status}: {handle.error}")
    return seen


async def measure_toolkit() -> RunPath:
    """Run an agent of the toolkit twice, with a tool, and watch the second run."""
    from agcore import Agent, tool  # noqa: PLC0415 - the runtime needs nothing of it

    @tool(permission="readonly")
    def read_file(path: str) -> str:
        """Read a file."""
        return f"{path} says hello"

    agent = Agent("reader", "You read files.", model=_script("read_file"), tools=[read_file])
    await agent.run("first")
    seen = RunPath()
    with _watched(seen.enter):
        await agent.run("second")
    return seen


def _script(tool_name: str) -> ScriptedProvider:
    """Return a model for two runs of two turns with one call."""
    # With what a service reports: estimating it is the script's own work.
    usage = Usage.from_input_output(100, 10)
    call = calls(tool_name, path="a.txt").model_copy(update={"usage": usage})
    return ScriptedProvider([call, Says(text="done", usage=usage)] * 2)


def _is_ours(frame: FrameType) -> bool:
    return any(package in frame.f_code.co_filename for package in _PACKAGES)


def _module(frame: FrameType) -> str:
    path = frame.f_code.co_filename
    return next(path.split(package)[-1] for package in _PACKAGES if package in path)


def _name(frame: FrameType) -> str:
    return f"{_module(frame)}:{frame.f_code.co_qualname}"


if __name__ == "__main__":
    if "--toolkit" in sys.argv:
        result = asyncio.run(measure_toolkit())
    else:
        with tempfile.TemporaryDirectory() as temporary:
            result = asyncio.run(measure(Path(temporary)))
    print(result)
    if "--list" in sys.argv:
        print(result.listing(least_depth=max(map(len, result.stacks)) - 1))
