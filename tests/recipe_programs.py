"""Runs the programs of examples/recipes as they stand, against a scripted model service."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from isolation import Home
from model_server import ModelServer

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "examples" / "recipes"


def environment(home: Home, server: ModelServer) -> Mapping[str, str]:
    """Return the variables of a recipe's process: its home, and its model."""
    model = f"openai:gpt-5-mini@{server.base_url('openai')}"
    return {**os.environ, "SOONG_AGENT_HOME": str(home.path), "MODEL": model}


def run(
    home: Home, server: ModelServer, program: str, *arguments: str, cwd: Path, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a recipe to its end, with what is typed on its standard input."""
    return subprocess.run(  # noqa: S603 - our own script, in our own interpreter
        [sys.executable, str(RECIPES / f"{program}.py"), *arguments],
        cwd=cwd,
        env={**environment(home, server), "PYTHONWARNINGS": "error"},
        input=typed,
        capture_output=True,
        text=True,
        check=False,
    )
