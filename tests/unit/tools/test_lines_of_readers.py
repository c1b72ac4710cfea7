"""Patterns, loops and pipes of readers, under `readers = "allow"`: covered, or asked for."""

import os
import shlex
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from command_lines import CommandLines, Judged, make_program
from tables import together

PROGRAMS = """
    [ basename bash cat cmp cut dash diff dirname echo env file find git grep head less ls my-tool
    printf python3 rg rm sed seq sort stat strings tac tail tee test tr uniq wc xargs
"""
Judge = Callable[[Sequence[str]], Awaitable[Judged]]

COVERED = [
    # patterns
    "cat src/*.md | head",
    "head -n5 src/*.py",
    "wc -l src/*.py tests/*.py",
    "grep -n main src/*.py",
    "grep -n main src/*/*.py",
    "grep -n -e main -- *.txt",
    "sed -n 1,5p src/?.py",
    "cat src/[ab].py",
    "cat src/[a-c].py",
    'cat "src/"*.py',
    "cat $PROJECT/src/*.py",
    "cat .github/*.yml",
    "ls *.nothing",
    "ls -d */",
    "echo src/*.py",
    "diff src/a.py src/b*.py",
    "cd src && cat *.py",
    "wc -l *.txt | tail -n 1",
    "wc -l src/*.py | sort -rn | head -n 3",
    "sort -u *.txt",
    # loops over words
    'for f in src/*.py; do wc -l "$f"; done',
    "for f in src/*.py; do wc -l $f; done",
    "for f in src/*.py; do wc -l ${f}; done",
    'for f in a.txt "b c.txt"; do cat "$f"; done',
    "for f in a.txt src/a.py; do cat $f | head -n 3; done",
    'for f in src/*.py; do echo "== $f"; head -n 5 "$f"; done',
    'for f in src/*.py; do wc -l < "$f"; done',
    'for f in src/*.py; do [ -f "$f" ] && cat "$f"; done',
    'for f in src/*.py; do if test -s "$f"; then cat "$f"; fi; done',
    'for f in src/*.py; do printf "%s\\n" "$f"; grep -c def "$f"; done',
    'for d in src tests; do ls "$d"; done',
    'for d in src tests; do cat "$d"/*.py; done',
    "for d in src tests; do cat $d/*.py; done",
    'for f in src/*.py; do echo "$f: $(wc -l < "$f")"; done',
    'for f in src/*.py; do if grep -q main "$f"; then echo "$f"; fi; done',
    'for f in src/*.py; do basename "$f" .py; done',
    "for f in src/*.py\ndo\n  head -n 1 $f\ndone",
    'for d in src tests; do for f in "$d"/*.py; do wc -l "$f"; done; done',
    "for d in src tests; do for f in $d/*.py; do wc -l $f; done; done",
    'for i in 1 2 3; do sed -n "${i}p" a.txt; done',
    "for n in a b; do cmp src/$n.py tests/$n.py; done",
    'for word in main def; do grep -n "$word" src/*.py; done',
    'cd src && for f in *.py; do wc -l "$f"; done',
    # loops over lines
    'while read -r line; do echo "$line"; done < a.txt',
    'while IFS= read -r line; do printf "%s\\n" "$line"; done < a.txt',
    'cat a.txt | while read line; do echo "> $line"; done',
    'while read -r name value; do echo "$value"; done < a.txt',
    "find src -name '*.py' | while read -r f; do wc -l \"$f\"; done",
    'find src -name \'*.py\' | while IFS= read -r f; do echo "$f"; head -n 2 "$f"; done',
    'rg -l main src | while read -r f; do head -n 3 "$f"; done',
    # names that another program finds
    "find src -name '*.py' -exec grep -n main {} +",
    "find src -name '*.py' -exec grep -n main {} \\;",
    "find . -name '*.py' -type f -exec wc -l {} +",
    "find src -name '*.py' -exec grep -q main {} \\; -print",
    "find src -name '*.py' | xargs grep -n main",
    "find src -name '*.py' | head -n 20 | xargs wc -l",
    "find src -name '*.py' 2>/dev/null | xargs cat",
    "find src -name '*.py' -print0 | xargs -0 grep -n main",
    "find src -name '*.py' | xargs -I{} head -n 2 {}",
    "find src -name '*.py' | xargs -n 1 basename",
    "find src -name '*.py' | grep -v test | xargs grep -n main",
    'for i in $(seq 1 3); do sed -n "${i}p" a.txt; echo $i; done',
    'for i in $(seq 3); do sed -n "${i}p" a.txt; done',
    "find src -name '*.py' | xargs",
    "find . -name '*.py' -type f | sort | head -n 20",
    "find src -name '*.py' | sort | xargs head -n 1",
    "grep -l main src/*.py | xargs wc -l",
    "grep -rl main src | xargs wc -l",
    "rg -l main src | xargs head -n 3",
    "rg --files src | xargs wc -l",
    "wc -l $(find src -name '*.py')",
    "for f in $(find src -name '*.py'); do head -n 3 $f; done",
    'for f in $(grep -rl main src); do wc -l "$f"; done',
]
ASKED = [
    # patterns that reach more than is known
    "cat .*",
    "cat .e*",
    "cat */.e*",
    "cat ../*",
    "cat src/../*",
    "cat src/*/../*.txt",
    "cat links/*",
    "cat lin*/notes.txt",
    "cat /etc/*.conf",
    "cat ~/*",
    "cat {a,b}.txt",
    "cat src/[[:alpha:]].py",
    "cat src/[[.a.]].py",
    "cat src/[!a].py x[a/b]y",
    "echo /etc/*",
    "cat keys/*",
    "cat *.pem",
    "ls -d keys/.*",
    # names that become options, or no names of files
    "cd odd && cat *",
    'cd odd && for f in *; do cat "$f"; done',
    "grep odd/* a.txt",
    "grep *",
    "sed -n *",
    "uniq src/*.py",
    "uniq a.txt src/[a].py",
    "find *.txt -delete",
    "rg --pre cat src/*.py",
    # loops
    "for f in split/*; do cat $f; done",
    'for f in "a.txt .env"; do cat $f; done',
    'for f in .env; do cat "$f"; done',
    'for f in *; do cat "$f/../../outside/notes.txt"; done',
    'for f in src/*; do cat "$f/../.env"; done',
    'for f in e*; do cat ".$f"; done',
    'for f in env; do cat ".$f"; done',
    'for f in src/*.py; do cat "../$f"; done',
    "for f in /etc/passwd; do cat $f; done",
    'for f in links/*; do cat "$f"; done',
    "for f in src/*.py; do rm $f; done",
    "for f in cat rm; do $f a.txt; done",
    'for o in -n -i; do sed "$o" p a.txt; done',
    'for f in src/*.py; do f=/etc/passwd; cat "$f"; done',
    'for f in a.txt; do read -r f; cat "$f"; done',
    'for f in a.txt; do for f in src/*.py; do :; done; cat "$f"; done',
    'for f in a.txt; do :; done; cat "$f"',
    'for f in $(cat a.txt); do cat "$f"; done',
    'for f in $(echo /etc/passwd); do cat "$f"; done',
    'for f in "$(find src -name x)"; do cat "$f"; done',
    'for f in $x; do cat "$f"; done',
    'for f; do cat "$f"; done',
    'for f in src/*.py; do cat "${f%.py}.txt"; done',
    "for f in src/*.py; do cat < $f; done",
    'for f in links/*; do cat < "$f"; done',
    'for f in keys/*; do cat < "$f"; done',
    'for f in src/*.py; do echo x > "$f"; done',
    'for f in src/*.py; do sh -c "cat $f"; done',
    "for f in src/*.py; do eval cat $f; done",
    # lines
    'while read -r f; do cat "$f"; done < a.txt',
    'cat a.txt | while read -r f; do cat "$f"; done',
    "while read -r line; do echo $line; done < a.txt",
    'while read -r PATH; do echo "$PATH"; done < a.txt',
    'while read -r -u 3 line; do echo "$line"; done < a.txt',
    "find src -name '*.py' | while read -r f; do head -c 3; cat \"$f\"; done",
    "find src -name '*.py' | while read -r f; do cat; cat \"$f\"; done",
    "find src -name '*.py' | while read -r f; do cat - \"$f\"; done",
    "find src -name '*.py' | while read -r f; do cat /dev/stdin; cat \"$f\"; done",
    "find src -name '*.py' | while read -r f; do tr a b; cat \"$f\"; done",
    "find src -name '*.py' | while read -r f; do echo /etc/passwd | xargs cat; done",
    "find src -name '*.py' | { head -c 3; xargs cat; }",
    'find src -name \'*.py\' | while read -r f; do echo "$(head -c 3)"; cat "$f"; done',
    "find src -name '*.py' | while read -r f; do cat \"$f\"; done < a.txt",
    "find src -name '*.py' | while read -r f; do f=x; cat \"$f\"; done",
    "find split | while read -r f; do cat $f; done",
    # what is printed is more than names, or names are taken apart
    "find . -exec cat {} +",
    "find . -name '*.py' -o -exec cat {} +",
    "find links -exec cat {} +",
    "find links -name '*.txt' -exec cat {} +",
    "find src -exec rm {} +",
    "find src -execdir cat {} +",
    "find src -ok cat {} \\;",
    "find src -exec grep -r x {} +",
    "find src -exec uniq {} +",
    "find src -exec sed {} a.txt \\;",
    "find src -exec cat ./{} \\;",
    "find src -exec sh -c 'cat \"$1\"' _ {} \\;",
    "find src -fprint out.txt -exec cat {} +",
    "find . | xargs cat",
    "find links | xargs cat",
    "find split | xargs cat",
    "find split -print0 | xargs cat",
    "find src | xargs -0 cat",
    "find src | xargs -d, cat",
    "find src | xargs -a a.txt cat",
    "find src | xargs cat < a.txt",
    "find src | xargs cat <<< /etc/passwd",
    "find src 2>&1 | xargs cat",
    "find src |& xargs cat",
    "find src -printf '/etc/passwd\\n' | xargs cat",
    "find src -ls | xargs cat",
    "find src | sed s,^,/etc/, | xargs cat",
    "find src | cut -c 2- | xargs cat",
    "find src | head -c 9 | xargs cat",
    "find src | grep -o py | xargs cat",
    "find src | xargs grep -r x",
    "find src | xargs uniq",
    "find src | xargs rm",
    "find src | xargs git show",
    "find src | xargs sh -c 'cat \"$@\"'",
    "ls src | xargs cat",
    "cat a.txt | xargs cat",
    "echo /etc/passwd | xargs cat",
    "echo .env | xargs cat",
    "grep -rn main src | xargs cat",
    "grep -r -o -l main src | xargs cat",
    "rg -l main odd | xargs cat",
    "rg --json main src | xargs cat",
    "echo main | grep -l main | xargs cat",
    "grep -l main - src/a.py | xargs cat",
    "echo main | rg -l main | xargs cat",
    "rg -l main < a.txt | xargs cat",
    "git ls-files -s | xargs cat",
    "git ls-files -o | xargs cat",
    "git ls-files ':/keys' | xargs cat",
    "git ls-files -z | xargs -0 cat",
    'for i in $(seq 100000); do sed -n "${i}p" a.txt; done',
    'for i in $(seq -f /etc/passwd 1); do cat "$i"; done',
    "xargs cat",
    "cat $(cat a.txt)",
    "cat $(echo .env)",
    "cat \"$(find src -name '*.py')\"",
    "cat $(find src -name '*.py' 2>&1)",
    "cat $(find src; echo /etc/passwd)",
    "(find src; echo /etc/passwd) | xargs cat",
    "{ find src; echo /etc/passwd; } | xargs cat",
    "find src | (read -r x; xargs cat)",
    "./cat src/*.py",
    "cat src/*.py | ./cat",
    "cat src/*.py > out.txt",
    "sort -o out.txt src/*.py",
    "sort --compress-program=./cat src/*.py",
    "sort -T src src/*.py",
    "sort --files0-from=a.txt",
    "my-tool src/*.py",
]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """Return a function that decides about commands of a project full of traps."""
    base = tmp_path_factory.mktemp("lines")
    project = base / "project"
    folders = "src/deep tests keys odd split links .github .git/objects .git/refs"
    for name in [
        *(f"project/{each}" for each in folders.split()),
        "home",
        "user",
        "bin",
        "outside",
    ]:
        (base / name).mkdir(parents=True)
    for name in PROGRAMS.split():
        make_program(base / "bin" / name)
    (base / "bin" / "sh").symlink_to("dash")
    make_program(project / "cat")
    names = """
        a.txt src/a.py src/b.py src/c.py src/deep/d.py src/n.md tests/a.py tests/b.py .github/x.yml
        .env keys/k.pem keys/.env odd/-f.py odd/x.py split/plain.txt env out.log
    """
    for name in names.split():
        (project / name).write_text("main\n", encoding="utf-8")
    for name in ("b c.txt", "split/a .env", ".git/HEAD"):
        (project / name).write_text("", encoding="utf-8")
    (base / "outside/notes.txt").write_text("", encoding="utf-8")
    (project / "links/notes.txt").symlink_to(base / "outside/notes.txt")
    (project / "links/id.py").symlink_to(base / "user")
    commands = CommandLines(
        project,
        base / "home",
        rules=(),
        environ={"PATH": str(base / "bin"), "HOME": str(base / "user")},
        settings='[permissions]\nreaders = "allow"\n',
    )

    async def judge(argv: Sequence[str]) -> Judged:
        return await commands.judge([word.replace("$PROJECT", str(project)) for word in argv])

    return judge


def _argv(line: str) -> Sequence[str]:
    """Return a line for bash, or without a shell where none is needed."""
    is_alone = (
        line.startswith("find ") and not any(sign in line for sign in "|>;&")
    ) or "\\;" in line
    return shlex.split(line) if is_alone else ["bash", "-c", line]


@pytest.mark.long
@together("line", COVERED)
async def test_lines_of_readers_in_the_project_are_covered(judge: Judge, line: str) -> None:
    judged = await judge(_argv(line))
    assert judged.decision == "allow", judged.because


@together("line", ASKED)
async def test_lines_that_may_do_more_ask(judge: Judge, line: str) -> None:
    judged = await judge(_argv(line))
    assert judged.decision in {"ask", "refuse"}


@together(
    "line",
    [
        "git ls-files | xargs wc -l",
        "git ls-files '*.py' | head -n 3 | xargs grep -n main",
        "for f in $(git ls-files src); do head -n 1 $f; done",
        "cd src && git ls-files | xargs cat",
    ],
)
async def test_files_that_git_lists_are_judged_by_its_index(tmp_path: Path, line: str) -> None:
    project, bin_folder = tmp_path / "project", tmp_path / "bin"
    for folder in (project / "src", bin_folder, tmp_path / "home", tmp_path / "user"):
        folder.mkdir(parents=True)
    for name in PROGRAMS.split():
        make_program(bin_folder / name)
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "user")}

    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=project, env=environ, check=True, capture_output=True)  # noqa: S603, S607

    async def decide() -> str:
        judged = await CommandLines(
            project,
            tmp_path / "home",
            rules=(),
            environ={"PATH": str(bin_folder), "HOME": str(tmp_path / "user")},
            settings='[permissions]\nreaders = "allow"\n',
        ).judge(["bash", "-c", line])
        return judged.decision

    for name in ("src/a.py", "src/b.txt", ".env"):
        (project / name).write_text("main\n", encoding="utf-8")
    git("init", "-q")
    git("add", "src")
    assert await decide() == "allow"
    (project / "src" / ".env").write_text("", encoding="utf-8")
    (project / "src" / "a name.py").write_text("", encoding="utf-8")
    (project / "src" / "-e.py").write_text("", encoding="utf-8")
    (project / "src" / "out.py").symlink_to(tmp_path / "user")
    for trap in (".env", "a name.py", "-e.py", "out.py"):
        git("add", "-f", "--", f"src/{trap}")
        assert await decide() == "ask", trap
        git("rm", "-q", "--cached", "--", f"src/{trap}")
    assert await decide() == "allow"
