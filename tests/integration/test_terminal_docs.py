"""The recipes of docs/terminal.md, run as they stand by a shell."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import warm
from isolation import Home
from model_server import ModelServer, Received, Reply

pytestmark = pytest.mark.timeout(300)

PAGE = (Path(__file__).parents[2] / "docs" / "terminal.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"^```sh\n(.*?)^```", PAGE[PAGE.index("## Recipes") :], re.DOTALL | re.M)
SCHEMA = {"type": "object", "properties": {"modules": {"type": "array"}}, "required": ["modules"]}
ANSWER = '{"modules": ["one"]}'


def git(project: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=project, check=True, capture_output=True)  # noqa: S603, S607


def test_every_recipe_does_what_it_says(home: Home, project: Path) -> None:
    (project / "schema.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    (project / "a.txt").write_text("a heron\n", encoding="utf-8")
    git(project, "init", "-q")
    git(project, "add", "a.txt")
    asked: list[str] = []

    def answer(received: Received) -> Reply:
        asked.append(received.text)
        return ANSWER

    with ModelServer.in_thread(answer) as server:
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
            "[model.price]\ninput = 1.0\noutput = 1.0\n[memory]\nenabled = false\n"
        )
        warm.write_command(home.path / "bin")
        path = f"{home.path / 'bin'}:{Path(sys.executable).parent}:{home.env()['PATH']}"
        for recipe in RECIPES:
            done = subprocess.run(  # noqa: S603 - our own page
                ["bash", "-euc", recipe],  # noqa: S607
                cwd=project,
                env=home.env(PATH=path),
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, (recipe, done.stderr)
    assert len(asked) == len(RECIPES) == 5
    assert "a heron" in asked[0]
    assert (project / "message.txt").read_text() == f"{ANSWER}\n"
    assert (project / "plan.md").read_text() == f"{ANSWER}\n"
    assert json.loads((project / "modules.json").read_text()) == json.loads(ANSWER)
    assert json.loads((project / "events.jsonl").read_text().splitlines()[-1])["text"] == ANSWER


def test_the_page_names_every_option_of_a_run() -> None:
    help_of_run = subprocess.run(
        [sys.executable, "-m", "agent_core.cli", "run", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    options = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", help_of_run, re.M)) - {"--help"}
    assert len(options) > 10
    assert {option for option in options if f"`{option}" not in PAGE} == set()
