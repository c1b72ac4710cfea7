"""A line for a shell: read back as the words it was made of, and readable."""

import shlex
import subprocess
from itertools import product

import pytest

from agent_core.text.shell import command_line
from tables import together


@together(
    ("words", "line"),
    [
        (["ls", "-l"], "ls -l"),
        (["echo", "a b", ""], "echo 'a b' ''"),
        (["python3", "-c", "print('灯')"], "python3 -c \"print('灯')\""),
        (["awk", '{print $1, "x"}'], "awk '{print $1, \"x\"}'"),
        (["sh", "-c", 'echo "it\'s"'], 'sh -c "echo \\"it\'s\\""'),
        (["sh", "-c", r"printf '%d\n' 7"], r'''sh -c "printf '%d\n' 7"'''),
        (["echo", "it's!"], "echo 'it'\"'\"'s!'"),
    ],
)
def test_words_are_quoted_as_a_person_would(words: list[str], line: str) -> None:
    assert command_line(words) == line


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_reads_the_same_words(shell: str) -> None:
    words = ["".join(word) for word in product("'\"$`\\!\n a", repeat=3)]
    script = f"printf '%s\\0' {command_line(words)}"
    done = subprocess.run([shell, "-c", script], capture_output=True, check=True)  # noqa: S603
    assert done.stdout.decode().split("\0")[:-1] == words
    assert shlex.split(command_line(words)) == words
