"""The runs that a session shows: its own and those of its children, and none of other sessions."""

from pathlib import Path

import pytest

from agent_core import AgentRuntime, StorageError
from agent_core.errors import ErrorCode
from agent_core.testing import ScriptedProvider


async def test_a_session_shows_no_run_of_another_session(home: object, project: Path) -> None:
    model = ScriptedProvider(["one", "two"])
    async with AgentRuntime(project, model=model) as runtime:
        one, other = runtime.session("one"), runtime.session("other")
        first = await one.run("go")
        await other.run("go")
        assert (await one.inspect_run(first.run_id)).run.run_id == first.run_id
        for run_id in (first.run_id, "run_" + "0" * 28):
            with pytest.raises(StorageError, match=f"there is no run {run_id}") as caught:
                await other.inspect_run(run_id)
            assert caught.value.code == ErrorCode.RUN_NOT_FOUND
        assert (await runtime.inspect_run(first.run_id)).session_id == "one"
