"""What people see: real runs in a real terminal, beside screens that were looked at and approved.

Only the sixteen colours of the terminal are used, so that one capture holds for dark and for light.
"""

import shutil
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import calls
from captures import Key, Recording, record
from isolation import Home
from model_server import ModelServer

WIDTHS = (40, 80, 200)
TEST = """\
from cart import total


def test_total():
    assert total([1, 2]) == 3
"""
CART = """\
def total(prices):
    result = 0
    for price in prices:
        result -= price
    return result
"""


def shown(
    home: Home,
    project: Path,
    script: Sequence[Any],
    *,
    keys: Sequence[Key] = (),
    columns: int = 80,
    config: str = "",
    message: str = "go",
    env: dict[str, str] | None = None,
    **more: Any,
) -> Recording:
    """The screen of one `run`."""
    with ModelServer.in_thread(script) as server:
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
            f"{config}\n[memory]\nenabled = false\n"
        )
        return record(
            [sys.executable, "-m", "agent_core.cli", "run", "--session-id", "s1", message],
            env=home.env(PYTHONDONTWRITEBYTECODE="1", **(env or {})),
            cwd=project,
            columns=columns,
            keys=keys,
            replaced={project.name: "shop-12345678"},
            **more,
        )


@pytest.fixture
def shop() -> Generator[Path]:
    """A project whose test fails. The length of its path decides where lines are wrapped."""
    folder = Path(tempfile.mkdtemp(prefix="shop-", dir="/tmp")).resolve()
    (folder / "cart.py").write_text(CART, encoding="utf-8")
    (folder / "test_cart.py").write_text(TEST, encoding="utf-8")
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("columns", WIDTHS)
def test_an_answer(home: Home, shop: Path, columns: int) -> None:
    scene = shown(home, shop, ["It is all there."], columns=columns)
    assert scene.code == 0
    scene.check(f"answer-{columns}")


def test_a_read(home: Home, shop: Path) -> None:
    script = [calls("code.read_file", path="cart.py"), "It adds prices up."]
    shown(home, shop, script).check("read-80")
