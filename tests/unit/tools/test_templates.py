"""What a model fills in is one word, whatever it is."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from agent_core.tools.script import fill_argv, parse_script, placeholders
from shell_templates import LOADED, REFUSED, RUN
from sweeps import examples
from tables import together

SHELLS = sorted(
    {os.path.realpath(shell) for shell in map(shutil.which, ["sh", "dash", "bash"]) if shell}
)

PROBE = """#!/bin/sh
printf '%s\\0' "$#" "$@" >> "$SEEN"
"""
HOSTILE = [
    *(
        "$(touch pwned)",
        "`touch pwned`",
        "; touch pwned",
        "\ntouch pwned\n",
        "a\n#",
        "' touch pwned '",
    ),
    *(
        '"; touch pwned; "',
        "a b  c",
        "*",
        "?",
        "[a-z]",
        "~",
        "~root",
        "$HOME",
        "${HOME}",
        "\\",
        "\\\\",
    ),
    *(
        "'",
        '"',
        "",
        "-n",
        "--",
        "-v",
        "a[$(touch pwned)]",
        "{a,b}",
        "<(ls)",
        "> pwned",
        "|sh",
        "EOF",
    ),
    *("&& touch pwned", "\t", " ", "\r\n", "größe", "漢字😀", "\x01\x7f\x80\x81\x88", "%s%n", "!!"),
    *("#", "x" * 5000, "))", "esac", "fi", "$((1))", "soong_arg_1"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bin")
    probe = folder / "probe"
    probe.write_text(PROBE, encoding="utf-8")
    probe.chmod(0o755)
    return folder


def seen_by_probe(
    place: Path, shell: str, template: str, arguments: dict[str, Any]
) -> list[list[str]]:
    """What the probe is given, call by call, when the script runs with these arguments."""
    work = place / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    seen = place / "seen"
    seen.write_text("", encoding="utf-8")
    argv = parse_script(template).argv(arguments)
    subprocess.run(  # noqa: S603
        [shell, *argv[1:]],
        cwd=work,
        env={"PATH": f"{place}:{os.environ['PATH']}", "HOME": "/home/me", "SEEN": str(seen)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=10,
    )
    assert list(work.iterdir()) == [], "a value has become a command"
    return list(calls_in(seen.read_bytes()))


def calls_in(seen: bytes) -> Iterator[list[str]]:
    words = iter(seen.decode().split("\0")[:-1])
    for count in words:
        yield [next(words) for _ in range(int(count))]


def test_a_vector_is_filled_element_by_element() -> None:
    argv = ["--n={{args.n}}", "{{ args.text }}", "{{args.flag}}", "{{args.list}}", "{{args.blank}}"]
    arguments = {"n": 3, "text": "a b; c", "flag": True, "list": [1, "x"], "blank": ""}
    assert fill_argv(argv, arguments) == ["--n=3", "a b; c", "true", '[1,"x"]', ""]


def test_an_element_that_is_one_placeholder_is_left_out_with_its_argument() -> None:
    argv = ["a", "{{args.none}}", "{{ args.absent }}", "--x={{args.absent}}", "z"]
    assert fill_argv(argv, {"none": None}) == ["a", "--x=", "z"]


def test_a_value_that_looks_like_a_template_is_not_filled_again() -> None:
    assert fill_argv(["{{args.a}}"], {"a": "{{args.b}}", "b": "no"}) == ["{{args.b}}"]


@together("template", ["{{x}}", "{{args}}", "{{args.a b}}", "{{env.HOME}}", "{{}}"])
def test_nothing_else_is_a_template(template: str) -> None:
    with pytest.raises(ValueError, match="is not of the form"):
        list(placeholders(template))


def test_the_text_that_the_shell_reads_is_the_same_whatever_the_values_are() -> None:
    script = parse_script("grep -n {{args.x}} {{args.y}}; echo {{args.x}}")
    first, second = script.argv({"x": "a", "y": "b"}), script.argv({"x": "$(id)", "y": "\n"})
    assert first[:3] == second[:3]
    assert second[3:] == ["/bin/sh", "$(id)", "\n"]


def test_a_script_without_placeholders_may_be_anything() -> None:
    script = "cat <<E\nx\nE\n[[ a == a ]] && eval 'echo $((1))'; #"
    assert parse_script(script).argv({"x": "y"}) == ["/bin/sh", "-c", script]


@together("template", [*RUN, *LOADED])
def test_a_placeholder_that_is_a_plain_word_is_fine(template: str) -> None:
    assert parse_script(template).fields


@together(("template", "reason"), REFUSED)
def test_a_placeholder_that_could_become_shell_text_is_refused(template: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"placeholder|line|form") as refused:
        parse_script(template)
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 400


def test_the_refusal_names_the_line_the_placeholder_and_the_cure() -> None:
    with pytest.raises(ValueError, match="line 3") as refused:
        parse_script("echo a\necho b\ncat # {{args.secret}}\n")
    assert "{{args.secret}} is in a comment" in str(refused.value)
    assert "make it an argument of a command" in str(refused.value)


@pytest.mark.long
@together("shell", SHELLS)
@together("template", RUN)
def test_a_program_gets_exactly_the_values(place: Path, shell: str, template: str) -> None:
    """Filled with plain words the script shows where the values go; hostile ones go there, too."""
    plain = {"x": "PLAINX", "y": "PLAINY", "n": 7, "b": True, "l": [1, "a b"]}
    expected = seen_by_probe(place, shell, template, plain)
    assert expected
    assert any("PLAIN" in word or word == "7" for words in expected for word in words)
    x, y = "\n".join(HOSTILE), "'\"`$(touch pwned)\\"
    assert seen_by_probe(place, shell, template, {**plain, "x": x, "y": y}) == [
        [word.replace("PLAINX", x).replace("PLAINY", y) for word in words] for words in expected
    ]


@pytest.mark.long
@together("shell", SHELLS)
@together("value", HOSTILE)
def test_a_hostile_value_arrives_as_it_is(place: Path, shell: str, value: str) -> None:
    template = 'probe {{args.x}} "a{{args.x}}b" --x={{args.x}}'
    given = seen_by_probe(place, shell, template, {"x": value})
    assert given == [[value, f"a{value}b", f"--x={value}"]]


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.sampled_from([RUN[0], RUN[1], *RUN[3:6], *RUN[7:12]]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40),
    st.sampled_from(SHELLS),
)
def test_any_value_arrives_as_it_is(place: Path, template: str, value: str, shell: str) -> None:
    plain = {"x": "PLAINX", "y": "PLAINY"}
    script = parse_script(template)
    words = seen_by_probe(place, shell, template, plain)
    given = seen_by_probe(place, shell, template, {"x": value, "y": value})
    assert script.argv({"x": value, "y": value})[2] == script.text
    assert given == [
        [w.replace("PLAINX", value).replace("PLAINY", value) for w in each] for each in words
    ]


FRAGMENTS = st.sampled_from(
    [
        *(
            "{{args.x}}",
            " ",
            "\n",
            "'",
            '"',
            "`",
            "$(",
            ")",
            "((",
            "))",
            "\\",
            "$",
            "#",
            ";",
            "&",
            "|",
        ),
        *("probe ", "echo ", "<<E", "E", "{", "}", "[", "]", "=", ">", "<", "x", "eval ", "sh -c "),
        *(
            "${x:-",
            "case a in ",
            "a) ",
            "esac",
            "for i in ",
            "do ",
            "done",
            "if ",
            "then ",
            "fi",
            "~",
        ),
    ]
)


@settings(
    max_examples=examples(400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(FRAGMENTS, min_size=1, max_size=9).map("".join), st.sampled_from(SHELLS))
def test_a_script_of_any_pieces_is_refused_or_runs_no_value(
    place: Path, template: str, shell: str
) -> None:
    try:
        parse_script(template)
    except ValueError:
        return
    if "{{args.x}}" not in template:
        return
    value = "';\"\ntouch pwned $(touch pwned) `touch pwned`; touch pwned #\n[a[$(touch pwned)]]"
    if ">" not in template and "<" not in template:
        seen_by_probe(place, shell, template, {"x": value})
