"""What a runtime opens and closes: nothing before the configuration is accepted, all at the end."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent_core.errors import AgentCoreError, ConfigError, ErrorCode, StorageError
from agent_core.providers.base import ProviderRegistry
from agent_core.providers.scripted import Hangs, ScriptedProvider
from agent_core.runtime.options import RuntimeOptions
from agent_core.runtime.run import RunProgress, RunRequest
from agent_core.runtime.services import open_services
from agent_core.testing import ScriptedRuntime
from agent_core.types import AgentDefinition, ClaimedRun, NewRun, RunMode, RunStatus, user_text
from isolation import Home
from runtimes import CONFIG


class Closing(ScriptedProvider):
    closed = False

    async def close(self) -> None:
        self.closed = True


def options(home: Home, project: Path, provider: ScriptedProvider) -> RuntimeOptions:
    home.write_config(CONFIG)
    registry = ProviderRegistry()
    registry.register("custom", lambda _: provider)
    return RuntimeOptions(project_dir=project, home_dir=home.path, provider_registry=registry)


async def test_a_broken_definition_is_refused_before_a_database_is_made(
    home: Home, project: Path
) -> None:
    given = options(home, project, ScriptedProvider([]))
    given.definitions.append(
        AgentDefinition(
            agent_definition_id="x", name="x", description="x", suggested_tools=["no.such_tool"]
        )
    )
    with pytest.raises(ConfigError) as caught:
        async with open_services(given):
            pass
    assert caught.value.code is ErrorCode.INVALID_AGENT_DEFINITION
    assert not (home.path / "sessions.sqlite").exists()


async def test_closing_cancels_runs_closes_adapters_and_gives_sessions_back(
    home: Home, project: Path
) -> None:
    provider = Closing([Hangs()])
    async with open_services(options(home, project, provider)) as services:
        run = await services.runs.start(user_text("go"), session_id="s1", mode=RunMode.NORMAL)
        while not provider.requests:  # noqa: ASYNC110 - the model is asked soon
            await asyncio.sleep(0.01)
    assert run.status is RunStatus.CANCELLED
    assert provider.closed
    async with open_services(options(home, project, ScriptedProvider(["on"]))) as services:
        session = await services.store.session("s1")
        assert session is not None
        assert session.owner is None
        again = await services.runs.start(user_text("go"), session_id="s1", mode=RunMode.NORMAL)
        assert await services.runs.wait(again.identity.run_id) is RunStatus.COMPLETED


async def test_a_session_is_changed_only_while_no_run_uses_it(home: Home, project: Path) -> None:
    provider = ScriptedProvider([Hangs()])
    async with open_services(options(home, project, provider)) as services:
        run = await services.runs.start(user_text("go"), session_id="s1", mode=RunMode.NORMAL)
        with pytest.raises(StorageError) as caught:
            await services.sessions.delete("s1")
        assert caught.value.code is ErrorCode.SESSION_ACTIVE
        await services.runs.cancel(run.identity.run_id)
        assert (await services.sessions.delete("s1")).deleted
        assert await services.store.session("s1") is None


async def test_closing_waits_for_a_run_whose_turn_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, go = asyncio.Event(), asyncio.Event()
    made = ScriptedRuntime(["never said"])
    services = await made._home.services()
    pipeline, store = services.runs.pipeline, services.store
    events_after = store.events_after

    async def turn(opening: NewRun, _: float | None) -> tuple[Any, ClaimedRun]:
        return SimpleNamespace(run_id=opening.run_id), await store.open_run(opening)

    async def read_late(run_id: str, seq: int) -> Any:
        reading.set()
        await go.wait()
        return await events_after(run_id, seq)

    async def start_in_turn(request: RunRequest) -> RunProgress:
        return await pipeline.start_in_turn(dispatcher, request, None)

    dispatcher: Any = SimpleNamespace(turn=turn, heartbeat_s=1)
    monkeypatch.setattr(store, "events_after", read_late)
    monkeypatch.setattr(pipeline, "start", start_in_turn)
    starting = asyncio.create_task(made.start("hello", "s1"))
    await reading.wait()
    closing = asyncio.create_task(made.close())
    await asyncio.wait([closing], timeout=0.3)
    assert not closing.done()
    go.set()
    with pytest.raises(AgentCoreError, match="being closed"):
        await starting
    await closing
