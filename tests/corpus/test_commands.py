"""What becomes of every command line of the corpus, by the way that production takes."""

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from command_lines import CommandLines, make_program
from tables import together

CORPUS = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
PROGRAMS = """
    awk bash busybox cat chroot cp curl dash date dd dig docker doas echo entr env file find fish
    flock gawk git grep head hostname hyperfine ionice less ls make man my-tool nice node nohup npm
    nslookup parallel perl ping pwd pwsh pytest python3 rg rm rsync scp screen script sed setsid
    sort split ssh sshpass stdbuf strace su sudo tail tar tee test timeout tmux tree true uniq vim
    watch wc xargs zip zsh
    printf [
"""


@dataclass(frozen=True)
class Case:
    """One line of the corpus."""

    where: str
    rules: str
    run: str | list[str]
    expect: str
    because: str = ""
    covers: str = ""


def cases() -> Iterator[Any]:
    for number, group in enumerate(CORPUS["class"]):
        for each in group["cases"]:
            case = Case(where=group["name"], rules=group["rules"], **each)
            shown = each["run"] if isinstance(each["run"], str) else shlex.join(each["run"])
            words = re.sub(r"[^!-~]+", "_", shown)[:60]
            yield pytest.param(case, id=f"{number}-{each['expect']}-{words}")


@dataclass(frozen=True)
class Place:
    """The folders of a case."""

    project: Path
    home: Path
    outside: Path
    bin: Path

    def fill(self, text: str) -> str:
        for name in ("project", "home", "outside", "bin"):
            text = text.replace(f"{{{name}}}", str(getattr(self, name)))
        return text


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A project with a plain repository, links out of it, and programs of its own."""
    base = tmp_path_factory.mktemp("corpus")
    found = Place(*(base / name for name in ("project", "home", "outside", "bin")))
    for folder in ("src", "sub", "out", ".git/objects", ".git/refs", ".git/hooks"):
        (found.project / folder).mkdir(parents=True)
    for folder in (found.home, found.outside / "notes", found.bin):
        folder.mkdir(parents=True)
    for name in PROGRAMS.split():
        make_program(found.bin / name)
    (found.bin / "sh").symlink_to("dash")
    for name in ("tool", "git", "nice", "bash"):
        make_program(found.project / name)
    texts = {
        "a.txt": "a\n",
        "src/b.py": "b\n",
        ".env": "KEY=1\n",
        "sub/.keep": "",
        ".git/config": "[core]\n\tbare = false\n",
        ".git/HEAD": "ref: refs/heads/main\n",
    }
    for name, text in texts.items():
        (found.project / name).write_text(text, encoding="utf-8")
    (found.outside / "notes.txt").write_text("", encoding="utf-8")
    (found.project / "out-link").symlink_to(found.outside)
    (found.project / "sub" / "secret").symlink_to("/etc/passwd")
    (found.project / "to-home").symlink_to(found.home)
    (found.project / "linked-git").symlink_to(found.bin / "git")
    (found.project / "linked-rm").symlink_to(found.bin / "rm")
    (found.project / "link").mkdir()
    (found.project / "link" / "git").symlink_to(found.bin / "git")
    return found


@pytest.fixture(scope="module")
def lines(place: Place) -> Callable[[str], CommandLines]:
    """The commands of the project under a set of rules."""

    @cache
    def lines(name: str) -> CommandLines:
        rules = json.loads(place.fill(json.dumps(CORPUS["rules"][name])))
        environ = {"PATH": str(place.bin), "HOME": str(place.outside / "user")}
        return CommandLines(place.project, place.home, rules=rules, environ=environ)

    return lines


@together("case", list(cases()))
async def test_commands(lines: Callable[[str], CommandLines], place: Place, case: Case) -> None:
    words = case.run if isinstance(case.run, list) else shlex.split(case.run)
    judged = await lines(case.rules).judge([place.fill(word) for word in words])
    assert judged.decision == case.expect, f"{case.where}: {judged.because}"
    assert case.because in judged.because
    if case.covers:
        assert (" as exactly: " in judged.scope) is (case.covers == "exact")


def test_the_corpus_has_at_least_300_lines() -> None:
    assert len(list(cases())) >= 300


@together(
    ("argv", "because"),
    [
        (["bash", "-c", "ls;" * 1_000], "too long"),
        (["bash", "-c", "ls " + "a" * 20_000], "too long"),
        (["bash", "-c", "a|" * 10_000], "too long"),
        (["bash", "-c", "{ " * 100 + "ls" + "; }" * 100], "nested too deep"),
        (["nice"] * 100 + ["ls"], "more than is looked at"),
        (["bash", "-c", ";".join(f"bash -c 'ls {n}'" for n in range(50))], "more than"),
        (["bash", "-c", "cat " + " ".join(f"*{n}" for n in range(100))], "pattern"),
        (["bash", "-c", "cat /*/*/*/*"], "pattern"),
    ],
    ids=["signs", "size", "pipes", "groups", "wrappers", "scripts", "patterns", "stars"],
)
async def test_what_is_too_much_to_be_looked_at_is_asked_for(
    lines: Callable[[str], CommandLines], argv: list[str], because: str
) -> None:
    judged = await lines("all").judge(argv)
    assert judged.decision == "ask"
    assert because in judged.because
