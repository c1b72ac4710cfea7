"""What people see in a conversation: commands, lists and a run at work, beside approved screens."""

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import calls
from captures import Key, Shown, record
from isolation import Home
from model_server import ModelServer
from runtimes import ask, runtime
from sweeps import kept

pytestmark = pytest.mark.timeout(120)

WIDTHS = pytest.mark.parametrize("columns", kept([40, 80, 120], 40))
READY = "openai:m · ask"
ENTER = "\r"
CART = """\
def total(prices):
    result = 0
    for price in prices:
        result -= price
    return result
"""
EDITS = [{"old": "result -= price", "new": "result += price"}]
SLOW = """\
#!/bin/sh
for i in 1 2 3 4 5 6 7; do
    echo "step $i of a check that prints lines longer than a narrow window"
done
until [ -e end ]; do sleep 0.05; done
"""
REPLY = "`total` **adds** the prices now:\n\n```python\nresult += price\n```\n"


@pytest.fixture
def shop() -> Generator[Path]:
    """A folder whose path has the same length in each run."""
    folder = Path(tempfile.mkdtemp(prefix="shop-", dir="/tmp")).resolve()
    yield folder
    shutil.rmtree(folder)


@contextmanager
def serving(home: Home, script: Sequence[Any]) -> Generator[None]:
    with ModelServer.in_thread(script) as server:
        server.facts |= {"/v1/models": {"data": [{"id": "m"}, {"id": "larger"}]}}
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
            "context_window = 32000\n[memory]\nenabled = false\n[model_overrides.quick]\n"
            'name = "small"\n'
        )
        yield


@pytest.mark.long
@WIDTHS
def test_a_continued_session_its_state_its_changes_and_a_list(
    home: Home, shop: Path, columns: int
) -> None:
    (shop / "cart.py").write_text(CART, encoding="utf-8")
    command = [sys.executable, "-m", "agent_core.cli"]
    more = ["run", "--session-id", "s1", "--mode", "accept-edits", "Mend the sum."]
    with serving(home, [calls("code.edit_file", path="cart.py", edits=EDITS), REPLY]):
        subprocess.run(  # noqa: S603 - our own command
            [*command, *more],
            env=home.env(),
            cwd=shop,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        )
        scene = record(
            [*command, "chat", "--session-id", "s1"],
            env=home.env(),
            cwd=shop,
            columns=columns,
            keys=[
                Key(READY, f"/status{ENTER}"),
                Key("instructions", f"/diff{ENTER}"),
                Key(Shown(r"\(this\s+session\)"), f"/model{ENTER}"),
                Key(Shown("larger(.|\n)*find:(.|\n)*Esc leaves . 3")),
            ],
            replaced={shop.name: "shop-12345678"},
            leave=True,
            seconds=25,
        )
    first, last = (
        next(at for at, line in enumerate(scene.lines) if line.startswith(name))
        for name in ("version ", "model ")
    )
    del scene.lines[first:last], scene.looks[first:last]  # its length decides where it is wrapped
    scene.check(f"continued-{columns}")


@pytest.mark.long
@WIDTHS
def test_a_question_a_running_command_and_messages_that_wait(
    home: Home, shop: Path, columns: int
) -> None:
    (shop / "check").write_text(SLOW, encoding="utf-8")
    (shop / "check").chmod(0o755)
    with serving(home, [calls("code.run_command", argv=["./check"]), "It passes."]):
        record(
            [sys.executable, "-m", "agent_core.cli", "chat"],
            env=home.env(),
            cwd=shop,
            columns=columns,
            keys=[
                Key(READY, f"check it{ENTER}"),
                Key(Shown(r"\? help > "), "y"),
                Key("step 7", f"and the tests, too{ENTER}"),
                Key("waiting: ", f"/queue then write a summary of what was done{ENTER}"),
                Key("queued: "),
                Key(Shown("check [1-9]+ s(.|\n)*queued: then(.|\n)*openai:m")),
            ],
            replaced={shop.name: "shop-12345678"},
            leave=True,
            seconds=25,
        ).check(f"working-{columns}")


TALKED = {
    "shop": ["Mend the sum in cart.py, please", "小计为什么是负数", "What does total do?"],
    "yard": ["Sweep the yard, and say what was under the leaves"],
}


@pytest.mark.long
@WIDTHS
@pytest.mark.parametrize(
    ("name", "typed", "last"),
    [
        ("resume", "/resume", r"find:(.|\n)*leaves . 3(?!\+)"),
        pytest.param(
            "sessions", "/sessions --all", r"find:(.|\n)*leaves . 4(?!\+)", marks=pytest.mark.sweep
        ),
        pytest.param(
            "found", "/resume", r"find: total(.|\n)*leaves . 1(?!\+)", marks=pytest.mark.sweep
        ),
        ("model", "/model", r"larger(.|\n)*find:(.|\n)*leaves . 3(?!\+)"),
    ],
)
def test_lists_to_choose_from(
    home: Home, shop: Path, columns: int, name: str, typed: str, last: str
) -> None:
    yard = shop.with_name(shop.name.replace("shop-", "yard-"))
    yard.mkdir()

    async def talk() -> None:
        for folder in (yard, shop):
            messages = TALKED[folder.name[:4]]
            async with runtime(home, folder, ["Done."] * len(messages)) as made:
                for number, message in enumerate(messages):
                    await ask(made, message, session_id=f"{folder.name[:4]}-{number}")

    try:
        asyncio.run(talk())
        with serving(home, []):
            keys = [Key(READY, f"{typed}{ENTER}")]
            if name == "found":
                keys.append(Key(Shown("find:"), "total"))
            record(
                [sys.executable, "-m", "agent_core.cli", "chat"],
                env=home.env(),
                cwd=shop,
                columns=columns,
                rows=16,
                keys=[*keys, Key(Shown(last))],
                replaced={shop.name: "shop-12345678", yard.name: "yard-12345678"},
                leave=True,
                seconds=25,
            ).check(f"{name}-{columns}")
    finally:
        shutil.rmtree(yard)
