"""What a model fills in is one word, whatever it is."""

import subprocess

import pytest
from hypothesis import given, settings, strategies as st

from agent_core.tools.templates import check_shell, filled_argv, filled_shell, placeholders


def test_a_vector_is_filled_element_by_element() -> None:
    argv = ["--n={{args.n}}", "{{ args.text }}", "{{args.flag}}", "{{args.none}}", "{{args.list}}"]
    arguments = {"n": 3, "text": "a b; c", "flag": True, "none": None, "list": [1, "x"]}
    assert filled_argv(argv, arguments) == ["--n=3", "a b; c", "true", "", '[1,"x"]']


def test_a_value_that_looks_like_a_template_is_not_filled_again() -> None:
    assert filled_argv(["{{args.a}}"], {"a": "{{args.b}}", "b": "no"}) == ["{{args.b}}"]


@pytest.mark.parametrize("template", ["{{x}}", "{{args}}", "{{args.a b}}", "{{env.HOME}}", "{{}}"])
def test_nothing_else_is_a_template(template: str) -> None:
    with pytest.raises(ValueError, match="is not of the form"):
        list(placeholders(template))


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30))
def test_a_shell_reads_a_value_as_the_one_word_it_is(value: str) -> None:
    script = "printf %s {{args.a}} # it's \"nothing\n"
    check_shell(script)
    done = subprocess.run(  # noqa: S603
        ["/bin/sh", "-c", filled_shell(script, {"a": value})], capture_output=True, check=True
    )
    assert done.stdout.decode() == value


@pytest.mark.parametrize(
    "script",
    [
        *("echo '{{args.a}}'", 'echo "{{args.a}}"', 'echo "$(echo {{args.a}})"'),
        *("echo `ls {{args.a}}`", "cat <<EOF\n{{args.a}}\nEOF", "cat <<-'E'\n{{args.a}}\nE"),
        *("# it's\necho '{{args.a}}'", "echo \\\"x'{{args.a}}'", "echo a#b'{{args.a}}'"),
    ],
)
def test_a_placeholder_where_quoting_would_not_hold_is_refused(script: str) -> None:
    with pytest.raises(ValueError, match="placeholder"):
        check_shell(script)


@pytest.mark.parametrize(
    "script",
    [
        *("echo {{args.a}}", "echo 'x' {{args.a}} \"y\"", "grep {{args.a}} <<< x", "cat <<E\nE"),
        *("echo \\' {{args.a}}", "echo $(ls {{args.a}})", "# don't\necho {{args.a}}", "echo it"),
    ],
)
def test_a_placeholder_that_is_a_plain_word_is_fine(script: str) -> None:
    check_shell(script)
