import os
import shutil
import subprocess
from pathlib import Path
from random import Random
from time import process_time

import pytest

from agent_core.errors import ToolError
from agent_core.text.wildcards import MAX_LINE_BYTES, MAX_WILDCARD_BYTES, Glob, Wildcards
from sweeps import sampled
from tables import together

NAMES = (
    *(
        "a",
        "b",
        "ab",
        "aab",
        "abc",
        "a.b",
        ".a",
        "x-y",
        "[a]",
        "a]",
        "A",
        "1",
        "é",
        "a b",
        "a ",
        "!a",
    ),
    *("#a", "a\\b", "foo", "foobar", "fo", "aaaaab", "^", "-", "a-c", "*"),
)
PIECES = (
    *("a", "b", "ab", "*", "**", "?", "/", "/", "[ab]", "[!a]", "[^b]", "[a-c]", "[]a]", "[]-a]"),
    *(
        "[[:alpha:]]",
        "[[:digit:]x]",
        "[[:foo:]]",
        "[a/b]",
        "[",
        "]",
        "\\",
        "\\*",
        "\\[",
        "\\ ",
        "!",
    ),
    *("#", " ", "-", "[a-]", "[-a]", "[\\]a]", "[a\\-c]", ".", "foo", "**/", "/**", "/**/", "***"),
    *(
        "[[:alpha]",
        "[[:x]",
        "[]",
        "[!]",
        "[]]",
        "é",
        "[é]",
        "\\/",
        "a*b",
        "*.b",
        "[b-a]",
        "[a-\\c]",
    ),
    *("[^^]", "\r"),
)
HOSTILE = (
    b"*a*a*a*a*a*b",
    b"**/*a*a*a*a*a*b",
    b"a/**/a/**/a/**/b",
    b"*" * 1000 + b"b",
    b"?*" * 400 + b"b",
    b"*[!x]" * 200 + b"c",
    b"a*" * 500 + b"b",
    b"**/" * 300 + b"b",
    b"/".join([b"*a*"] * 200) + b"/b",
    b"[a-z]" * 200 + b"*b",
    b"x/" + b"*a" * 500,
)
LONG_PATHS = (
    b"a" * 255,
    b"/".join([b"a"] * 2000),
    b"/".join([b"a" * 255] * 16),
    b"x/" + b"a" * 4000,
)


def verdict_by_git_rules(content: bytes, path: bytes) -> bool | None:
    """A folder that is excluded takes all below it along."""
    folders, files = (Wildcards.parse(content, folders=each) for each in (True, False))
    parts = path.split(b"/")
    above = (b"/".join(parts[:count]) for count in range(1, len(parts)))
    return True if any(folders.verdict(each) for each in above) else files.verdict(path)


@pytest.mark.skipif(shutil.which("git") is None, reason="git judges the patterns")
@pytest.mark.parametrize("seed", sampled(range(3), keep=1))
def test_patterns_mean_what_they_mean_to_git(tmp_path: Path, seed: int) -> None:
    random = Random(seed)  # noqa: S311 - a corpus that is the same every time
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True, env=env)  # noqa: S603
    paths = sorted(
        {"/".join(random.choices(NAMES, k=random.randint(1, 4))) for _ in range(150)} | set(NAMES)
    )
    asked = "\0".join(paths).encode() + b"\0"
    for _ in range(20):
        lines = ["".join(random.choices(PIECES, k=random.randint(1, 6))) for _ in range(3)]
        content = "\n".join(lines).encode() + b"\n"
        (tmp_path / ".gitignore").write_bytes(content)
        told = subprocess.run(  # noqa: S603
            [*git, "check-ignore", "-v", "-n", "-z", "--no-index", "--stdin"],
            input=asked,
            capture_output=True,
            env=env,
            check=False,
        )
        fields = told.stdout.split(b"\0")
        for pattern, path in zip(fields[2::4], fields[3::4], strict=False):
            expected = not pattern.startswith(b"!") if pattern else None
            assert verdict_by_git_rules(content, path) is expected, (content, path)


@together("pattern", HOSTILE)
@together("path", LONG_PATHS, ids=len)
def test_no_pattern_takes_long_for_any_path(pattern: bytes, path: bytes) -> None:
    started = process_time()
    Wildcards.parse(pattern, folders=True).verdict(path)
    assert process_time() - started < 5


@pytest.mark.long
def test_a_file_full_of_patterns_is_bounded() -> None:
    evil = b"\n".join(b"**/*a*a*a%d" % number for number in range(20_000))
    started = process_time()
    patterns = Wildcards.parse(evil, folders=True)
    patterns.verdict(b"/".join([b"a" * 255] * 16))
    assert process_time() - started < 10


def test_what_is_beyond_the_bounds_is_passed_over() -> None:
    long_line = b"b" * (MAX_LINE_BYTES + 1) + b"\na*\n"
    assert Wildcards.parse(long_line, folders=True).verdict(b"ax") is True
    full = b"x*\n" * MAX_WILDCARD_BYTES + b"late*\n"
    assert Wildcards.parse(full, folders=True).verdict(b"later") is None
    assert Wildcards.parse(full, folders=True).verdict(b"xy") is True


@together("content", [b"", b"\n\n", b"# a\n", b"\0a\n", b"/\n", b"!\n", b"[\n", b"a\\\n"])
def test_what_is_no_pattern_decides_nothing(content: bytes) -> None:
    assert Wildcards.parse(content, folders=True).verdict(b"a") is None


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_a_pattern() -> None:
    patterns = Wildcards.parse(b"\xef\xbb\xbfout\r\n*.log\r\n", folders=True)
    assert (patterns.verdict(b"out"), patterns.verdict(b"deep/x.log")) == (True, True)


@together(
    ("glob", "path", "is_wanted"),
    [
        ("src/**/*.{ts,tsx}", "src/a/b/c.tsx", True),
        ("src/**/*.{ts,tsx}", "src/c.ts", True),
        ("src/**/*.{ts,tsx}", "lib/c.ts", False),
        ("src/", "src/a/b.py", True),
        ("src/a", "src/a/b.py", True),
        ("src/*/b.py", "src/a/x/b.py", False),
        ("/top/*.py", "top/x.py", True),
        ("src/[!a]*", "src/abc", False),
        ("a/\ud800*", "a/b", False),
    ],
)
def test_a_glob_with_folders_is_checked_on_each_path(glob: str, path: str, is_wanted: bool) -> None:
    assert Glob(glob).matches(path) is is_wanted


def test_no_glob_takes_long() -> None:
    glob = Glob("x/**/*a*a*a*a*a*b")
    started = process_time()
    for number in range(1000):
        glob.matches(f"x/{'a' * 200}/{'a' * 200}{number}")
    assert process_time() - started < 5


@together("glob", ["a/" + "x" * 2000, "a/" + "{a,b}" * 20, "a/{" + "," * 500 + "}", "a\nb"])
def test_a_glob_without_measure_is_refused(glob: str) -> None:
    with pytest.raises(ToolError) as refused:
        Glob(glob)
    assert refused.value.details == {"path": "$.glob"}
