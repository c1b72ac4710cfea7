"""What debug keeps: raw traffic and tracebacks, without secrets."""

import asyncio
from pathlib import Path

import pytest

from agent_core import AgentRuntime, RunStatus
from isolation import Home
from model_server import ModelServer
from runtimes import ask

KEY = "sk-" + "0a1b2c3d" * 4


async def test_e5_debug_keeps_raw_exchanges_as_redacted_artifacts_and_clean_up_finds_them(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "the-secret-value")
    async with ModelServer(["hello"]) as server:
        home.write_config(
            '[model]\nprovider = "openai"\nname = "m"\napi_key_env = "MY_KEY"\n'
            f'base_url = "{server.base_url("openai")}"\n'
        )
        async with AgentRuntime(project_dir=project, debug=True) as made:
            await ask(made, f"the-secret-value and {KEY}")
            replay = await made.replay_session("s1")
            (artifact,) = replay.artifacts
            assert artifact.kind == "raw_provider"
            kept = Path(artifact.path)
            text = await asyncio.to_thread(kept.read_text, encoding="utf-8")
            assert "the-secret-value" not in text
            assert KEY not in text
            assert '"messages"' in text
            dry = await made.cleanup_artifacts()
            assert (dry.dry_run, dry.candidates) == (True, [artifact.artifact_id])
            assert await asyncio.to_thread(kept.exists)
            real = await made.cleanup_artifacts(dry_run=False)
            assert real.deleted == [artifact.artifact_id]
            assert not await asyncio.to_thread(kept.exists)


async def test_without_debug_nothing_is_kept(home: Home, project: Path) -> None:
    async with ModelServer(["hello"]) as server:
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        )
        async with AgentRuntime(project_dir=project) as made:
            handle = await ask(made)
            assert handle.status is RunStatus.COMPLETED
            assert (await made.replay_session("s1")).artifacts == []
