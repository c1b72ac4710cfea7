"""A real model, where there is one: its addresses, and homes that are configured for it."""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import aiohttp
import pytest

from isolation import REAL_HOME, Home, fresh_folder

BASE_URL = "SOONG_AGENT_E2E_BASE_URL"
OLLAMA_URL = "SOONG_AGENT_E2E_OLLAMA_URL"
MODEL = "gemma4"
START_TIMEOUT_S = 30.0

BUILT_IN = {
    "agent.create_sub_agent",
    "agent.fork_agent",
    "agent.list_agent_definitions",
    "agent.plan_template",
    "code.edit_file",
    "code.list_dir",
    "code.read_file",
    "code.run_command",
    "code.search",
    "code.write_file",
    "internal.load_skill",
    "internal.recall_memory",
}
"""What a main agent is offered. Half a billion parameters do better with one tool than with all."""


@dataclass(frozen=True)
class RealModel:
    """A service with a model behind it."""

    provider: Literal["openai", "ollama"]
    base_url: str

    def configure(self, home: Home, *, tools: set[str]) -> None:
        """Write a config that offers the model only `tools`, and keeps its prompts small."""
        disabled = ", ".join(f'"{name}"' for name in sorted(BUILT_IN - tools))
        home.write_config(f"""
[model]
provider = "{self.provider}"
name = "{MODEL}"
base_url = "{self.base_url}"
context_window = 8192
max_output_tokens = 256
temperature = 0.0
timeout_ms = 120000

[runtime]
max_turns = 6

[memory]
enabled = false

[tools]
disabled = [{disabled}]
""")


@pytest.fixture(scope="session")
def openai_model() -> RealModel:
    """A real model behind an OpenAI-compatible server."""
    base_url = os.environ.get(BASE_URL)
    if not base_url:
        pytest.skip(f"no real model: {BASE_URL} names no OpenAI-compatible server")
    return RealModel("openai", base_url)


@pytest.fixture(scope="session")
def ollama_model() -> Iterator[RealModel]:
    """The model `gemma4` behind Ollama: one that runs, one we start, or one we are told of."""
    standard = f"http://{os.environ.get('OLLAMA_HOST', '127.0.0.1:11434')}"
    if has_model(standard):
        yield RealModel("ollama", standard)
    elif (program := shutil.which("ollama")) and not answers(standard):
        with running_ollama(program, standard):
            if not has_model(standard):
                pytest.skip(f"Ollama has no model {MODEL}; `ollama pull {MODEL}` brings it")
            yield RealModel("ollama", standard)
    elif told := os.environ.get(OLLAMA_URL):
        yield RealModel("ollama", told)
    else:
        pytest.skip(f"no real model: Ollama with {MODEL} is not here, and {OLLAMA_URL} is not set")


@pytest.fixture(params=["openai", "ollama"])
def each_model(request: pytest.FixtureRequest) -> RealModel:
    """Both, one after the other."""
    model: RealModel = request.getfixturevalue(f"{request.param}_model")
    return model


@pytest.fixture(params=["openai", pytest.param("ollama", marks=pytest.mark.sweep)])
def real_model(request: pytest.FixtureRequest) -> RealModel:
    """One of them; both in full runs."""
    model: RealModel = request.getfixturevalue(f"{request.param}_model")
    return model


@contextmanager
def running_ollama(program: str, url: str) -> Generator[None]:
    """`ollama serve` for as long as it is needed, with the models of the person who runs this."""
    env = {**os.environ, "HOME": os.environ[REAL_HOME]}
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(  # noqa: S603 - the Ollama that PATH has
        [program, "serve"], env=env, stdout=quiet, stderr=quiet
    )
    try:
        wait_for_an_answer(url)
        yield
    finally:
        server.terminate()
        server.wait(timeout=START_TIMEOUT_S)


def wait_for_an_answer(url: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answers(url):
        if time.monotonic() > deadline:
            pytest.fail(f"`ollama serve` does not answer at {url} after {START_TIMEOUT_S:.0f} s")
        time.sleep(0.2)


def answers(url: str) -> bool:
    return asyncio.run(models_at(url)) is not None


def has_model(url: str) -> bool:
    return any(name.split(":")[0] == MODEL for name in asyncio.run(models_at(url)) or ())


async def models_at(url: str) -> list[str] | None:
    """The models a server has, or None if nobody answers."""
    timeout = aiohttp.ClientTimeout(total=3)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url}/api/tags") as response,
        ):
            return [model["name"] for model in (await response.json())["models"]]
    except (aiohttp.ClientError, TimeoutError):
        return None


@pytest.fixture
def orchard() -> Path:
    """A small real project: three files with names nobody would guess, below a short path.

    The path is part of the prompt, and a long one takes a small model's mind off its task.
    """
    project = fresh_folder("project", "orchard")
    (project / "README.md").write_text("# Orchard\n\nNotes about trees.\n", encoding="utf-8")
    (project / "apples.py").write_text("TREES = 12\n", encoding="utf-8")
    (project / "codeword.txt").write_text("The codeword is marmalade.\n", encoding="utf-8")
    return project
