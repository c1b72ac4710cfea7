"""What those who use workers are told: of keys that are missing, of the way back, of answers."""

import asyncio
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pydantic import BaseModel

from agent_core import AgentRuntime
from agent_core.providers.scripted import Hangs
from isolation import Home
from model_server import ModelServer
from worker_processes import URL_VARIABLE, Workers, workers, write_config

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def crew(home: Home, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setenv(URL_VARIABLE, database_url)
    with workers(home, database_url) as made:
        yield made


def left_at_a_terminal(command: list[str], environ: dict[str, str], words: str) -> str:
    """What a command shows on a terminal that is left with Ctrl-C once these words are there."""
    ours, theirs = pty.openpty()
    shown, is_left = "", False
    with subprocess.Popen(  # noqa: S603 - our own command
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
    ) as process:
        os.close(theirs)
        with suppress(OSError):  # it has ended
            while piece := os.read(ours, 65_536):
                shown += piece.decode()
                if words in shown and not is_left:
                    is_left = True
                    process.send_signal(signal.SIGINT)
    os.close(ours)
    return shown


async def test_who_leaves_a_run_has_what_it_said_above_the_word_how_to_come_back(
    home: Home, project: Path, crew: Workers, database_url: str
) -> None:
    with ModelServer.in_thread([Hangs(text="half a sentence, no more")]) as server:
        write_config(home, server)
        await asyncio.to_thread(crew.start)
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            run_id = (await runtime.start("go")).run_id
            shown = await asyncio.to_thread(
                left_at_a_terminal,
                [sys.executable, "-m", "agent_core.cli", "attach", run_id],
                home.env(**{URL_VARIABLE: database_url}, TERM="xterm"),
                "half a sentence",
            )
            assert shown.count("left; the run continues") == 1
            assert shown.rindex("half a sentence") < shown.index("left; the run continues")
            await (await runtime.attach(run_id)).cancel()


async def test_a_worker_without_a_key_says_so_before_its_runs_fail_of_it(
    home: Home, project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread([]) as server:
        write_config(home, server)
        text = (home.path / "config.toml").read_text(encoding="utf-8")
        home.write_config(text.replace('name = "m"', 'name = "m"\napi_key_env = "NOT_THERE"'))
        worker = await asyncio.to_thread(crew.start)
        missing = "the environment variable NOT_THERE is not set: runs that use openai:m fail"
        assert missing in worker.text
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            handle = await runtime.start("go")
            await handle.wait()
        await asyncio.to_thread(worker.wait_for, f"{handle.run_id} is failed: config_error: ")
        assert handle.error is not None
        assert " ".join(handle.error.message.split()) in worker.text


class Stock(BaseModel):
    item: str
    left: int


async def test_who_starts_a_run_has_its_answer_in_the_type_that_it_asked_for(
    home: Home, project: Path, crew: Workers
) -> None:
    said = '{"item": "lamp", "left": 12}'
    with ModelServer.in_thread([said, said]) as server:
        write_config(home, server)
        await asyncio.to_thread(crew.start)
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            handle = await runtime.start("go", output_type=Stock)
            result = await handle.result()
            assert (result.output, result.text) == (Stock(item="lamp", left=12), said)
            elsewhere = await (await runtime.attach(handle.run_id)).result()
            assert elsewhere.output == {"item": "lamp", "left": 12}
            handle = await runtime.start("again", output_type=Stock)
            parts = [part async for part in handle.partial_output()]
            assert parts[-1] == Stock(item="lamp", left=12)
            assert {type(part) for part in parts} == {Stock}
