"""What people see: real runs in a real terminal, beside screens that were looked at and approved.

Only the sixteen colours of the terminal are used, so that one capture holds for dark and for light.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import Calls, Hangs, Pauses, ScriptedCall, calls
from captures import Key, Recording, record
from isolation import Home
from model_server import ModelServer, Received, Status
from sweeps import kept

pytestmark = pytest.mark.timeout(90)

WIDTHS = kept([40, 80, 200], 40)
CART = """\
def total(prices):
    result = 0
    for price in prices:
        result -= price
    return result
"""
CHECK = """\
#!/bin/sh
if grep -q "+= price" cart.py; then echo "12 passed"; exit 0; fi
i=1; while [ $i -le 30 ]; do echo "test $i ok"; i=$((i + 1)); done
echo "FAILED test_cart.py::test_total - assert -3 == 3"
echo "1 failed, 30 passed" >&2
exit 1
"""
ANSWER = """\
## Done

`total` in **cart.py** subtracted the prices:

| line | before | after |
|---:|---|---|
| 4 | `-=` | `+=` |

```python
result += price  # 加法
```

1. The check passes now 🎉
2. See <https://example.org/a/rather/long/address/of/a/page/about/sums>
"""


def edit(**more: Any) -> ScriptedCall:
    edits = [{"old": "result -= price", "new": "result += price"}]
    return ScriptedCall(
        name="code.edit_file", arguments={"path": "cart.py", "edits": edits, **more}
    )


STORY = (
    Calls(
        reasoning="The check fails. Let me see how.",
        text="Let me run the check first.",
        calls=[ScriptedCall(name="code.run_command", arguments={"argv": ["./check"]})],
    ),
    calls("code.read_file", path="cart.py"),
    Calls(text="The sign is wrong.", calls=[edit()]),
    calls("code.run_command", argv=["./check"]),
    ANSWER,
)


def environment(home: Home, **more: str) -> dict[str, str]:
    return {
        "HOME": os.environ["HOME"],
        "LANG": "C.UTF-8",
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
        "SOONG_AGENT_HOME": str(home.path),
        **more,
    }


def shown(
    home: Home,
    project: Path,
    script: Sequence[Any] | Callable[[Received], Any],
    *arguments: str,
    keys: Sequence[Key] = (),
    columns: int = 80,
    config: str = "",
    env: dict[str, str] | None = None,
    **more: Any,
) -> Recording:
    """The screen of one `run`."""
    with ModelServer.in_thread(script) as server:
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
            f"{config}\n[memory]\nenabled = false\n"
        )
        command = [sys.executable, "-m", "agent_core.cli", "run", "--session-id", "s1"]
        return record(
            [*command, *arguments, "go"],
            env=environment(home, **(env or {})),
            cwd=project,
            columns=columns,
            keys=keys,
            replaced={project.name: "shop-12345678"},
            **more,
        )


@pytest.fixture
def shop() -> Generator[Path]:
    """A project whose check fails. The length of its path decides where lines are wrapped."""
    folder = Path(tempfile.mkdtemp(prefix="shop-", dir="/tmp")).resolve()
    (folder / "cart.py").write_text(CART, encoding="utf-8")
    (folder / "check").write_text(CHECK, encoding="utf-8")
    (folder / "check").chmod(0o755)
    yield folder
    shutil.rmtree(folder)


ASKS = "? help > "
ALLOWED = (Key(ASKS, "a"), Key(ASKS, "y"))


@pytest.mark.sweep
@pytest.mark.parametrize("columns", WIDTHS)
def test_a_check_fails_and_is_mended(home: Home, shop: Path, columns: int) -> None:
    scene = shown(home, shop, STORY, keys=ALLOWED, columns=columns)
    assert scene.code == 0
    scene.check(f"story-{columns}")


@pytest.mark.sweep
def test_without_colours(home: Home, shop: Path) -> None:
    scene = shown(home, shop, STORY, keys=ALLOWED, env={"NO_COLOR": "1"})
    assert re.search(rb"\x1b\[[0-9;]*m", scene.raw) is None
    scene.check("story-no-color")


@pytest.mark.sweep
def test_on_a_dumb_terminal(home: Home, shop: Path) -> None:
    keys = (Key(ASKS, "a\n"), Key(ASKS, "y\n"))
    scene = shown(home, shop, STORY, keys=keys, env={"TERM": "dumb"})
    assert b"\x1b" not in scene.raw
    scene.check("story-dumb")


@pytest.mark.sweep
def test_in_a_pipe(home: Home, shop: Path) -> None:
    with ModelServer.in_thread(STORY) as server:
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
            "[memory]\nenabled = false\n"
        )
        done = subprocess.run(
            [sys.executable, "-m", "agent_core.cli", "run", "--session-id", "s1", "go"],
            env=environment(home),
            cwd=shop,
            input="2\n1\n",
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, ANSWER), done.stderr
    lines = done.stderr.splitlines()
    scene = Recording(lines, [""] * len(lines), b"", 0, {shop.name: "shop-12345678"})
    scene.check("story-piped")


@pytest.mark.sweep
def test_an_edit_that_needs_no_question_shows_its_diff(home: Home, shop: Path) -> None:
    rule = (
        f'[[permissions.rules]]\ndecision = "allow"\ntool = "code.edit_file"\npath = "{shop}/**"\n'
    )
    script = [Calls(calls=[edit()]), "Done."]
    shown(home, shop, script, config=rule, columns=60).check("edit-60")


@pytest.mark.long
@pytest.mark.parametrize("columns", WIDTHS)
def test_every_end_that_a_call_can_have(home: Home, shop: Path, columns: int) -> None:
    def command(script: str, **more: Any) -> Any:
        return calls("code.run_command", argv=["./check", script], **more)

    (shop / "check").write_text('#!/bin/sh\neval "$1"\n', encoding="utf-8")
    script = [
        command("kill -9 $$"),
        command("echo begun; sleep 60", timeout_ms=2500),
        command("exit 0"),
        command(
            "printf '%0300d\\n' 7; printf '10%%\\r100%%\\n'; "
            "printf '\\033[31mred\\033[0m\\033]0;title\\007\\n'"
        ),
        calls("code.read_file", path="missing.py"),
        calls("code.search", query="result", path="."),
        command("never"),
        "Seen.",
    ]
    keys = [Key(ASKS, key) for key in "yyyyn"]
    shown(home, shop, script, keys=keys, columns=columns).check(f"ends-{columns}")


@pytest.mark.sweep
def test_a_silent_model(home: Home, shop: Path) -> None:
    script = [Pauses(seconds=30), "late"]
    keys = [Key(re.compile("waiting for the model [1-9]"))]
    shown(home, shop, script, keys=keys, leave=True).check("waiting-80")


@pytest.mark.sweep
def test_an_answer_that_has_begun(home: Home, shop: Path) -> None:
    script = [Hangs(text=ANSWER.partition("1. The")[0])]
    shown(home, shop, script, keys=[Key(re.compile("model [1-9]"))], leave=True).check("begun-80")


@pytest.mark.sweep
def test_a_command_that_runs(home: Home, shop: Path) -> None:
    (shop / "check").write_text("#!/bin/sh\nsleep 30\n", encoding="utf-8")
    script = [Calls(calls=[ScriptedCall(name="code.run_command", arguments={"argv": ["./check"]})])]
    keys = [Key(ASKS, "y"), Key(re.compile("check [1-9]"))]
    shown(home, shop, script, keys=keys, leave=True).check("running-80")


@pytest.mark.sweep
def test_a_service_that_is_busy(home: Home, shop: Path) -> None:
    script = [Status(429, headers={"Retry-After": "1"}), "At last."]
    scene = shown(home, shop, script, columns=60)
    assert "attempt 1 failed" in scene.text
    assert scene.lines[-1] == "At last."


@pytest.mark.sweep
@pytest.mark.parametrize("columns", kept([40, 80], 80))
def test_a_child_agent(home: Home, shop: Path, columns: int) -> None:
    def answer(asked: Received) -> Any:
        text = asked.text
        if "Look at the cart" not in text:
            allowed = ["code.read_file", "code.search"]
            return calls("agent.create_sub_agent", task="Look at the cart.", allowed_tools=allowed)
        if "create_sub_agent" in text:
            return "It is read."
        if "cart.py" not in text:
            return calls("code.read_file", path="cart.py")
        return "It subtracts."

    shown(home, shop, answer, keys=[], columns=columns).check(f"child-{columns}")


@pytest.mark.long
@pytest.mark.timeout(60)
@pytest.mark.parametrize("columns", kept([40, 80], 40))
def test_a_conversation(home: Home, shop: Path, columns: int) -> None:
    script = [calls("code.read_file", path="cart.py"), "It **subtracts** prices.\n\n- mend it\n"]
    with ModelServer.in_thread(script) as server:
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
            "context_window = 32000\n\n[memory]\nenabled = false\n"
        )
        record(
            [sys.executable, "-m", "agent_core.cli", "chat", "--session-id", "s1"],
            env=home.env(PYTHONDONTWRITEBYTECODE="1"),
            cwd=shop,
            columns=columns,
            keys=[
                Key("sandbox" if columns > 40 else "openai:m ", "what is @cart.py\r"),
                Key("mend it", lambda: time.sleep(2)),  # it is drawn before it is written
                Key("mend it", "/context\r"),
                Key("the cached prefix", "\x04"),
            ],
            replaced={shop.name: "shop-12345678"},
        ).check(f"chat-{columns}")
