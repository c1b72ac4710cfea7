"""Writes docs/everyday-commands.md: what becomes of everyday command lines.

`python tests/corpus/everyday.py` writes it anew.
"""

import asyncio
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a test it is there anyway

from agent_core.process.confinement import Abilities
from command_lines import CommandLines, Judged, make_program

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "everyday-commands.md"
GROUPS: list[dict[str, Any]] = tomllib.loads((HERE / "everyday.toml").read_text("utf-8"))["group"]
MODES = ("off", "readers", "auto", "required")
PROGRAMS = """
    [ alembic awk basename bash black bun cargo cat chmod clang-format cmake column comm coverage cp
    ctest curl cut dash date deno df diff docker du echo env file find g++ gcc gdb gh git go gofmt
    gradle grep gzip head helm id java javac jq just kubectl ldd less ln ls make md5sum mkdir mv
    mvn mypy nice ninja nl nm node npm npx patch perl pip pnpm poetry ps psql pwd pyright pytest
    python3 realpath redis-cli rg rm rsync ruff rustc sed sha256sum sort sqlite3 stat tail tar tee
    terraform timeout touch tox tr tree tsc uname uniq unzip uv wc wget which whoami xargs yarn zip
    """
WORDS = {"allow": "unasked", "ask": "asked once", "deny": "refused", "refuse": "refused"}


@dataclass(frozen=True)
class Line:
    """One command line of the corpus."""

    run: str
    network: bool = False
    always: str | None = None
    refused: str | None = None


def lines_of(group: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the lines of a group."""
    for each in group["lines"]:
        yield Line(each) if isinstance(each, str) else Line(**each)


def make_project(base: Path) -> Path:
    """Make a project as people have it, and programs, below a folder."""
    project = base / "project"
    for name in (
        *("src", "tests", "lib", "bin", ".venv/bin", "node_modules/.bin", "build"),
        *(".git/objects", ".git/refs", ".git/hooks", ".husky/_"),
    ):
        (project / name).mkdir(parents=True)
    for name in ("home", "user/.ssh", "bin", "outside"):
        (base / name).mkdir() if "/" not in name else (base / name).mkdir(parents=True)
    for name in PROGRAMS.split():
        make_program(base / "bin" / name)
    (base / "bin" / "sh").symlink_to("dash")
    own = ("bin/tool", "gradlew", "configure", ".venv/bin/pytest", ".venv/bin/pip")
    for name in (*own, "node_modules/.bin/jest"):
        make_program(project / name)
    (project / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n", encoding="utf-8")
    (project / ".venv/bin/python").symlink_to(base / "bin" / "python3")
    (project / "link-out").symlink_to(base / "outside")
    texts = {
        ".env": "PASSWORD=1\n",
        ".env.example": "PASSWORD=\n",
        ".gitignore": "node_modules/\n.env\n",
        ".git/HEAD": "ref: refs/heads/main\n",
        ".git/config": "[core]\n\tbare = false\n\thooksPath = .husky/_\n[pull]\n\trebase = true\n"
        '[branch "main"]\n\tremote = origin\n\tvscode-merge-base = origin/main\n',
        ".git/hooks/pre-commit": "#!/bin/sh\n",
        ".husky/_/pre-commit": "#!/bin/sh\n",
        "README.md": "",
        "package.json": "{}",
        "src/app.py": "def main(): ...\n",
        "tests/test_app.py": "",
        "lib/a.py": "",
    }
    for name, text in texts.items():
        (project / name).write_text(text, encoding="utf-8")
    for name in [
        "build.log",
        "data.csv",
        "names.txt",
        "old.txt",
        "new.txt",
        "src.tgz",
        "fix.patch",
    ]:
        (project / name).write_text("", encoding="utf-8")
    return project


def sandboxed(base: Path, mode: str) -> CommandLines:
    """Return the commands of the project in one mode; a sandbox asks for nothing inside."""
    settings = f'[sandbox]\nmode = "{mode}"\nask_inside = false\n'
    settings = {"off": "", "readers": '[permissions]\nreaders = "allow"\n'}.get(mode, settings)
    environ = {"PATH": str(base / "bin"), "HOME": str(base / "user")}
    return CommandLines(
        base / "project", base / "home", rules=(), environ=environ, settings=settings
    )


async def judge(lines: CommandLines, line: Line, base: Path, mode: str) -> tuple[str, Judged]:
    """Return what becomes of a line, in the words of the page."""
    text = line.run.replace("{home}", str(base / "home"))
    is_confined = mode in {"auto", "required"}
    options = {"network": True} if line.network and is_confined else {}
    judged = await lines.judge(shlex.split(text), **options)
    word = WORDS[judged.decision]
    if word == "asked once" and judged.action and judged.action.access.reason:
        word = "asked always"
    return word, judged


def reason_of(line: Line, judged: Judged) -> str:
    """Return why the page says this of a line."""
    if given := line.always or line.refused:
        return given
    if judged.action is None:
        return judged.because
    covers = "word for word" if " as exactly: " in judged.scope else "with its reading options"
    network = "; in a sandbox the network" if line.network else ""
    return f"a command, covered {covers}{network}"


async def outcomes(base: Path) -> list[tuple[str, list[tuple[Line, list[str], str]]]]:
    """Return the lines of all groups, with what becomes of each in every mode."""
    project = make_project(base)
    assert project.is_dir()
    everything = Abilities(
        landlock=6, seccomp=True, namespaces=True, network_namespace=True, renames=True
    )
    found: list[tuple[str, list[tuple[Line, list[str], str]]]] = []
    home = str(base / "user")
    with (
        patch("agent_core.process.sandbox.probe", lambda: everything),
        patch.dict("os.environ", {"HOME": home}),
    ):
        kept = {mode: sandboxed(base, mode) for mode in MODES}
        for group in GROUPS:
            rows: list[tuple[Line, list[str], str]] = []
            for line in lines_of(group):
                judged = [await judge(kept[mode], line, base, mode) for mode in MODES]
                reason = reason_of(line, judged[0][1])
                rows.append((line, [word for word, _ in judged], reason))
            found.append((group["name"], rows))
    return found


HEAD = """\
# Everyday commands

This page shows the decisions about {count} everyday command lines, without rules and earlier
answers. `python tests/corpus/everyday.py` generates it from
[`everyday.toml`](../tests/corpus/everyday.toml), with the real settings, tool and guard; a test
compares both. The rules behind it are in [permissions](permissions.md).

- **unasked**: it runs without a question.
- **asked once**: an answer for the session covers it. "With its reading options" is the program
  with any of its [reading options](answers.md#commands-known-to-read-only) and paths of the
  project; "word for word" is exactly this command.
- **asked always**: it has a reason of its own, and every answer is for one call.
- **refused**: no answer allows it; a rule with its path can.

The columns are the modes of the [sandbox](sandbox.md); "readers" is `off` with `[permissions]
readers = "allow"`, or after the answer `r` to a first question. `auto` and `required` are shown
with `ask_inside = false` on a system that can enforce every rule; with the default, `true`, they
ask like `off`. The project has a `.env`, a virtual environment, hooks, and usual settings of git.
Commands that need the network request it, which asks in a sandbox.
"""


def page_of(found: list[tuple[str, list[tuple[Line, list[str], str]]]]) -> str:
    """Return the text of the page."""
    count = sum(len(rows) for _, rows in found)
    parts = [HEAD.format(count=count)]
    for name, rows in found:
        parts.append(
            f"\n## {name}\n\n| command | off | readers | auto | required | reason to ask |\n"
        )
        parts.append("|---|---|---|---|---|---|\n")
        for line, words, reason in rows:
            shown = line.run.replace("|", "\\|").replace("{home}", "~/.soong-agent")
            cells = " | ".join(words)
            parts.append(f"| `{shown}` | {cells} | {reason} |\n")
    return "".join(parts)


def main() -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(page_of(asyncio.run(outcomes(Path(folder).resolve()))), encoding="utf-8")


if __name__ == "__main__":
    main()
