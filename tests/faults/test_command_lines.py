"""Commands from a grammar, run for real where a rule allows them: nothing else may come of it.

A rule set allows a few programs that only read. Every other program in the search path notes that
it was run, and so do the programs of the project; what is written is seen in the project.
"""

import asyncio
import os
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from random import Random

import pytest

from command_lines import CommandLines, make_program
from faults.depth import PARTS, Depth, Tally

pytestmark = pytest.mark.timeout(900)


def words(text: str) -> list[str]:
    return text.split(" ")


READERS = words("echo cat ls head wc true printf test [ cd set")
PROGRAMS = words(
    "cat ls head wc env nice timeout nohup xargs find bash dash true echo printf test ["
)
CANARIES = words("canary rm x y 1 a.txt E")
FILES = {"a.txt": "canary\n", "b.txt": "a.txt b.txt\n", "sub/c": "x\n", "-x": "", "c d": "canary"}
SCRIPTS = [
    "echo a; ls",
    "cat a.txt | head -1",
    "echo \"a b\" 'c d' e",
    'echo $(ls) "$(cat a.txt)" `ls`',
    "cat <<E\nhi\nE\nls",
    "cat <<'E'\n$(canary)\nE\nls",
    "cat <<E | head -1\n hi\nE\n",
    "if [ -f a.txt ]; then ls; else echo b; fi",
    "for x in a b; do echo $x; done",
    "while false; do ls; done; echo",
    "case a in b) ls;; *) echo c;; esac",
    "(cd sub; ls) & { echo a; }",
    "echo a # canary\nls",
    "! ls && echo a || echo b",
    "ls > /dev/null 2>&1 < a.txt",
    "nice -n 5 cat a.txt",
    "timeout 5 env cat a.txt",
    'eval "echo a"',
    'trap "echo a" EXIT; ls',
    'bash -c "echo a; ls"',
    "sh -c 'echo a | cat'",
    "time ls",
    'echo ${x} ${x:-a} $x "$@" $((1+2))',
    "echo a\\ b \\; \\# c",
    "cat <(ls) <(echo a)",
    "echo $'a' \"b\"",
    "find . -name a.txt -exec cat {} \\;",
    "ls | xargs echo",
    "command ls; exec echo a",
    'echo "`ls`" "a\nb"',
    'test "$x" = a || echo b',
    "echo a \\\n b",
    "echo a{1}b @{u} ^x %y",
    'cat <<< "a"',
    "echo 'canary' \"canary\" ; #canary\nls",
    'cat "c d" -x',
    "ls *.txt [ab].txt ?.txt",
]
PIECES = [
    *words("; & && || | |& \n ( ) { } < > >> 2> 2>&1 << <<E \nE\n <<< <( >( &> >&"),
    *words("$( ` \" ' \\ \\\n # $ ${ ${x $x $1 $@ $(( )) (( [[ ]] [ ]"),
    *words("if then elif fi while do done case esac in ;; a) *) ! !( ?( @( * ? ~ = x= $' $\""),
    *words("\\' \\\" \\` \\# \\; {a,b} {x}> {PATH}> a.txt x y -c -x , .. % ^ + - -- 0 1 2"),
    *words("\r \x0b \x0c \u00a0 \u2028 é canary \ncanary\n ;canary; |canary $(canary) `canary`"),
    *words('"$(canary)" <(canary) ${x:-`canary`} ${x:-$(canary)} E E\n #\n \'\n \\\\'),
    *(" ", "  ", "\t", " #", "\\ ", "{ ", " }", "; then ", "; fi", "; do ", "; done", "for x in "),
    *("time ", "exec ", "eval ", "command ", "builtin ", "coproc ", "trap ", "function f", "f()"),
    *("x=1 ", "PATH=. ", "nice ", "env ", "timeout 5 ", "xargs ", "find . ", "-exec ", " {} "),
    *("bash -c ", "sh -c ", "> /dev/null ", "&canary ", "./canary", "rm x", "cd sub", "set -e"),
]


def scripts(seed: int) -> Iterator[list[str]]:
    """Scripts that are almost what a rule allows."""
    random = Random(seed)  # noqa: S311 - the same every time
    while True:
        text = random.choice(SCRIPTS)
        if random.random() < 0.3:
            text += random.choice([";", "\n", " && ", " | ", " "]) + random.choice(SCRIPTS)
        for _ in range(random.randint(1, 5)):
            at, to = random.randint(0, len(text)), random.randint(0, len(text))
            match random.randint(0, 9):
                case 0:
                    text = text[:at] + text[at + random.randint(1, 4) :]
                case 1:
                    text = text[:at] + text[min(at, to) : max(at, to)] + text[at:]
                case _:
                    text = text[:at] + random.choice(PIECES) + text[at:]
        yield [random.choice(["bash", "bash", "sh", "dash"]), "-c", text]


WRAPPERS = words("env nice timeout nohup xargs find bash sh dash")
WRAPPED = [
    *words("- -- -n 5 -5 -n5 -i -u PATH -S -C sub -0 -I {} -I{} -L 1 -P 2 -r -t -x -d , -s KILL"),
    *words("-k 1s 5m 0 -o L -e -c 3 -w -f -p --foreground a=1 a-b=1 PATH=. = -exec -execdir -ok ;"),
    *words("+ . -name a.txt -true -eu pipefail -l --adjustment=3 --null -E eof echo cat ls canary"),
    *words("rm ./canary x y b.txt -a --arg-file=b.txt --argv0=x $0"),
    *("ls; canary", "echo a", 'canary "$@"', "{} x", "-vS", "canary x", "-Scanary"),
]


def wrapped(seed: int) -> Iterator[list[str]]:
    """Commands behind wrappers, with options that are almost right."""
    random = Random(seed)  # noqa: S311 - the same every time
    while True:
        argv: list[str] = []
        for _ in range(random.randint(1, 3)):
            argv.append(random.choice(WRAPPERS))
            argv += random.choices(WRAPPED, k=random.randint(0, 3))
        yield argv + random.choice([["ls"], ["cat", "a.txt"], ["canary"], ["bash", "-c", "ls"]])


def contents(folder: Path) -> list[tuple[str, int, int]]:
    files = ((path, path.lstat()) for path in folder.rglob("*"))
    return sorted((str(path), info.st_mtime_ns, info.st_size) for path, info in files)


@pytest.mark.faults("command lines that a rule allows")
async def test_what_a_rule_allows_runs_and_writes_nothing_else(
    tmp_path: Path, depth: Depth, tally: Tally
) -> None:
    project, programs, home = tmp_path / "project", tmp_path / "bin", tmp_path / "home"
    for folder in (project / "sub", programs, home):
        folder.mkdir(parents=True)
    for name, text in FILES.items():
        (project / name).write_text(text, encoding="utf-8")
    noted = tmp_path / "noted"
    for path in (*(programs / name for name in CANARIES), project / "canary", project / "nice"):
        make_program(path, f"#!/bin/sh\necho \"$0 $*\" >> '{noted}'\n")
    for name in PROGRAMS:
        if (found := shutil.which(name)) is None:
            pytest.skip(f"there is no {name} here")
        (programs / name).symlink_to(os.path.realpath(found))
    (programs / "sh").symlink_to("dash")
    lines = CommandLines(
        project,
        home,
        rules=[
            {"decision": "allow", "command": [READERS, "*"]},
            {"decision": "allow", "command": ["find", ".", "-name", "*"]},
        ],
        environ={"PATH": str(programs), "HOME": str(home / "none"), "LC_ALL": "C.UTF-8"},
    )
    before = contents(project)
    every = chain.from_iterable(zip(scripts(1 + depth.part), wrapped(1 + depth.part), strict=False))
    allowed = 0
    for _ in range(depth.some(20_000 // PARTS, 120)):
        argv = next(every)
        judged = await lines.judge(argv)
        if judged.decision != "allow":
            continue
        assert judged.action is not None
        allowed += 1
        with tally.case(repr(argv)):
            async with asyncio.timeout(20):
                await judged.action.run()
            assert not noted.exists(), noted.read_text(encoding="utf-8")
            assert contents(project) == before
    assert allowed > depth.some(250, 4)
    tally.verdict()
