"""Draws the terminal of a real run as a picture: `python docs/picture.py docs/terminal.svg`.

A scripted model service answers; all else is real: the command in a pseudo-terminal, the tests that
fail, the file that is changed, the questions and the keys that answer them.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
sys.path.insert(0, str(TESTS))

from agent_core.providers.scripted import Calls, Pauses, Says, ScriptedCall, calls  # noqa: E402
from agent_core.types import Usage  # noqa: E402
from captures import Key, Recording, record  # noqa: E402
from model_server import ModelServer  # noqa: E402

COLUMNS = 88
MESSAGE = "the tests fail: find out why and fix it"
FILES = ROOT / "examples" / "tutorials" / "terminal"
RUN = calls("code.run_command", argv=["python", "-m", "unittest"])
EDIT = {"old": "result * discount", "new": "result * (1 - discount)"}
ANSWER = """\
## Fixed

`total` in **cart.py** charged the discount instead of taking it off:

```python
return result * (1 - discount)
```

Both tests pass now. Callers without a discount got `0.0` before, and get the sum.
"""
SCRIPT = [
    Pauses(seconds=1.2),
    Calls(
        reasoning="The tests fail. I should see how before I look at the code. " * 4,
        text="Let me run the tests first.",
        calls=RUN.calls,
    ),
    Calls(
        calls=[
            ScriptedCall(name="code.read_file", arguments={"path": "cart.py"}),
            ScriptedCall(name="code.search", arguments={"query": "total(", "path": "."}),
        ]
    ),
    Calls(
        text="Both tests multiply by the discount; what is left is `1 - discount`.",
        calls=[
            ScriptedCall(name="code.edit_file", arguments={"path": "cart.py", "edits": [EDIT]}),
        ],
    ),
    RUN,
    Says(text=ANSWER, usage=Usage.from_input_output(11_482, 641)),
]
ASKS = "? help > "


def record_run() -> Recording:
    """The terminal of the run, to its end."""
    folder = Path(tempfile.mkdtemp(prefix="picture-")).resolve()
    project, home = folder / "shop", folder / "home"
    try:
        shutil.copytree(FILES, project)
        home.mkdir()
        with ModelServer.in_thread(SCRIPT) as server:
            model = f'provider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"'
            price = "[model.price]\ninput = 0.5\noutput = 3.0"
            settings = f"[model]\n{model}\n{price}\n[memory]\nenabled = false\n"
            (home / "config.toml").write_text(settings, encoding="utf-8")
            own = str(Path(sys.executable).resolve())
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            return record(
                [sys.executable, "-m", "agent_core.cli", "run", "--session-id", "shop", MESSAGE],
                env={
                    "HOME": str(folder),
                    "LANG": "C.UTF-8",
                    "PATH": path,
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "PYTHONPATH": os.pathsep.join(sys.path),
                    "SOONG_AGENT_HOME": str(home),
                },
                cwd=project,
                columns=COLUMNS,
                keys=[Key(ASKS, "a"), Key(ASKS, "y")],
                replaced={
                    f"{folder}/": "~/",
                    f"{Path(sys.executable).parent}/": "",
                    own: "/usr/bin/python3",
                },
            )
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Run, and draw the screen."""
    scene = record_run()
    if scene.code != 0:
        sys.exit(scene.text)
    prompt = f'$ soong-agent run "{MESSAGE}"'
    Path(sys.argv[1]).write_text(scene.svg(prompt, title="soong-agent"), encoding="utf-8")


if __name__ == "__main__":
    main()
