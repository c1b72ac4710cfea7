"""`make demo`: one whole run of the real command line on a copy of hello-project.

    make demo                             # the model's replies are read from hello-replies.json
    make demo MODEL=path/to/model.gguf    # a model in this process (installs the extra `local`)
    make demo DEMO_HOME=~/.soong-agent    # the model of a home that you have configured

Everything but the model's words is real in all three: the tools, the permission prompt, the
session in SQLite, the file that is changed. Where nobody sits at the keyboard, the prompt is
answered with "1", allow once.
"""

import argparse
import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE / "hello-project"
REPLIES = HERE / "hello-replies.json"
REQUEST = "The greeting of this project has a typo. Find it and fix it."

REPLAYED = """\
A replay: the model's replies come from {replies}, recorded once.
Tools, permissions and storage are real, and so is the file that changes.
"""
SCRIPTED = """\
[model]
provider = "scripted"
name = "replay"
path = {path}
context_window = 32768
"""
IN_PROCESS = """\
[model]
provider = "local"
name = {name}
path = {path}
context_window = 8192
max_output_tokens = 512
temperature = 0.0
timeout_ms = 600000

[memory]
enabled = false

[tools]  # a small model does better with few tools
disabled = [
    "code.run_command", "code.search", "code.write_file",
    "agent.create_sub_agent", "agent.fork_agent", "agent.list_agent_definitions",
    "agent.plan_template", "internal.load_skill", "internal.recall_memory",
]
"""


def prepare_home(work: Path, options: argparse.Namespace) -> Path:
    """The home to run in, and a word about where the answers will come from."""
    if options.home:
        print(f"The model is the one that {options.home}/config.toml names.")
        return options.home.expanduser().resolve()
    home = work / "home"
    home.mkdir()
    if options.model:
        model = options.model.expanduser().resolve()
        config = IN_PROCESS.format(name=json.dumps(model.stem), path=json.dumps(str(model)))
        print(f"The model is {model.name}, in the process of the command.")
    else:
        config = SCRIPTED.format(path=json.dumps(str(REPLIES)))
        print(REPLAYED.format(replies=REPLIES.relative_to(HERE.parent)), end="")
    (home / "config.toml").write_text(config, encoding="utf-8")
    return home


def show_changes(project: Path) -> None:
    """What the run left on disk."""
    for before in sorted(PROJECT.iterdir()):
        old, new = (p.read_text(encoding="utf-8") for p in (before, project / before.name))
        lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
        changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
        if changed:
            print(f"Changed on disk: {project / before.name}")
            print(*(f"  {line}" for line in changed), sep="\n")
            return
    print(f"Same as at the start: {project}")


def take_back(command: list[str], project: Path, environment: Mapping[str, str]) -> None:
    """Undo what was done, redo it, and go on in a copy of the project."""
    place = ["--path", str(project)]
    listed = subprocess.run(
        [*command, "sessions", "list", *place], env=environment, capture_output=True, text=True
    )
    session = listed.stdout.split()[0]
    copy = project.with_name("another-try")
    for arguments in (["undo"], ["redo"], ["sessions", "fork", session, "--into", str(copy)]):
        print(f"\n$ soong-agent {' '.join([*arguments, *place])}\n", flush=True)
        subprocess.run([*command, *arguments, *place], env=environment, check=False)
        show_changes(copy if "fork" in arguments else project)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a GGUF file")
    parser.add_argument("--home", type=Path, help="a home with a config.toml")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="soong-agent-demo-")).resolve()
    project = work / "hello-project"
    shutil.copytree(PROJECT, project)
    home = prepare_home(work, options)

    command = [str(Path(sys.executable).with_name("soong-agent"))]
    arguments = ["run", "--path", str(project), REQUEST]
    watched = sys.stdin.isatty()
    if not watched:
        print("Nobody is at the keyboard: every permission prompt is answered with 1, allow once.")
    print(f'\n$ soong-agent run --path {project} "{REQUEST}"\n', flush=True)
    environment = {**os.environ, "SOONG_AGENT_HOME": str(home)}
    done = subprocess.run(
        [*command, *arguments],
        env=environment,
        input=None if watched else "1\n" * 20,
        text=True,
        check=False,
    )
    refused = done.returncode == 2  # a wrong configuration: nothing has run
    if not refused and (home / "sessions.sqlite").exists():
        print()
        show_changes(project)
        take_back(command, project, environment)
        print(f"\nThe session is in {home}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
