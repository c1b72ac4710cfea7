"""The pytest plugin: the fixture `agent_runtime`. It imports nothing until a test asks for it."""

import inspect
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from agent_core.testing import ScriptedRuntime
    from agent_core.text.json_text import JsonObject

FIXTURE = "agent_runtime"


@pytest.fixture
def agent_runtime_options() -> "JsonObject":
    """Arguments of `AgentRuntime` for `agent_runtime`; a test may override this fixture."""
    return {}


@pytest.fixture
def agent_runtime(
    agent_runtime_options: dict[str, Any], tmp_path: Path
) -> Iterator["ScriptedRuntime"]:
    """A `ScriptedRuntime` in memory with an empty folder as project; real models are refused.

    It is for plain tests (`agent_runtime.run_sync`) and for async ones under any plugin that runs
    them in asyncio: it is closed at the end of the test function, in its event loop.
    """
    from agent_core.testing import ScriptedRuntime, allow_real_models  # noqa: PLC0415

    arguments: dict[str, Any] = {"project_dir": tmp_path, **agent_runtime_options}
    with allow_real_models(False):
        yield ScriptedRuntime(**arguments)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Make an async test that uses the fixture close its runtime."""
    if (
        isinstance(item, pytest.Function)
        and FIXTURE in item.fixturenames
        and inspect.iscoroutinefunction(item.obj)
    ):
        item.obj = _closing(item.obj, item)


def _closing(test: Callable[..., Awaitable[None]], item: pytest.Function) -> Callable[..., Any]:
    @wraps(test)
    async def run(*arguments: Any, **fixtures: Any) -> None:
        try:
            await test(*arguments, **fixtures)
        finally:
            await cast("ScriptedRuntime", item.funcargs[FIXTURE]).close()

    return run
