"""What `--help` says, of every command and of every action of one, and what wrong usage says."""

import re
import shlex
from pkgutil import resolve_name

import pytest

from agent_core.cli.arguments import build_parser, parse
from agent_core.cli.command import execute
from sweeps import sampled
from tables import together


def collect_help(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """The help of a command, and of all that it lists, by their names."""
    assert execute([*words, "--help"]) == 0
    text = capsys.readouterr().out
    found = {" ".join(words): text}
    if words:
        names = re.search(r"^positional arguments:\n  action\n((?:    .*\n)+)", text, re.M)
        listed = re.findall(r"^    (\w+)", names[1], re.M) if names else []
    else:  # by what they are about
        listed = re.findall(r"^  (\w+) {2,}\w", text.partition("\noptions:")[0], re.M)
    for name in listed:
        found |= collect_help(capsys, *words, name)
    return found


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Every help, on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    return collect_help(capsys)


def test_every_help_says_what_the_command_is_for_and_fits_a_terminal(
    shown: dict[str, str],
) -> None:
    assert {"permissions explain", "workspace diff", "sessions fork", "undo"} <= shown.keys()
    assert {"cost", "config show", "completion bash", "agents list", "skills list"} <= shown.keys()
    for name, text in shown.items():
        paragraphs = text.split("\n\n")
        assert paragraphs[0].startswith("usage: "), name
        assert re.match(r"[A-Z].*\.$", paragraphs[1], re.DOTALL), name
        assert max(map(len, text.splitlines())) <= 80, name


@pytest.mark.long
def test_the_help_of_the_program_fits_a_screen_and_names_the_options_of_run(
    shown: dict[str, str],
) -> None:
    lines = shown[""].splitlines()
    assert len(lines) <= 60
    synopsis = shown[""].partition("\n\n")[0]
    options = build_parser().commands["run"].options
    names = {name for each in options for name in each.option_strings} - {"-h", "--help"}
    assert {name for name in names if name not in synopsis} == set()


def test_every_command_has_examples_and_says_what_its_exit_codes_mean(
    shown: dict[str, str],
) -> None:
    leaves = [name for name in shown if name and not any(f"{name} " in each for each in shown)]
    assert len(leaves) > 20
    for name in leaves:
        assert re.search(rf"^  (.*[ (])?soong-agent {name}", shown[name], re.M), name
        assert "xit codes" in shown[name], name


def test_a_command_with_actions_has_an_example_of_each(shown: dict[str, str]) -> None:
    groups = [name for name in shown if name and any(f"{name} " in each for each in shown)]
    assert {"sessions", "memory", "completion"} <= set(groups)
    for name in shown:
        if (group := name.rpartition(" ")[0]) in groups:
            assert re.search(rf"^  .*soong-agent {name}\b", shown[group], re.M), name


@pytest.mark.long
@pytest.mark.timeout(240)  # the parser is built for each command
def test_a_command_alone_says_what_it_says_among_all(shown: dict[str, str]) -> None:
    lines = [name.split() for name in shown if name]
    assert len(lines) > 40
    for words in sampled(lines, keep=12):
        parser = build_parser()
        for word in words:
            parser = parser.commands[word]
        assert parser.format_help() == shown[" ".join(words)], words


def test_every_example_is_understood(shown: dict[str, str]) -> None:
    helps = [text for name, text in shown.items() if name]  # that of all repeats that of run
    lines = re.findall(r"^  ((?:\S.*[|(] ?)?soong-agent .*)$", "\n".join(helps), re.M)
    assert len(lines) > 40
    for line in lines:
        inner = re.search(r"[$<]\((soong-agent .*)\)$", line)
        words = shlex.split(inner[1] if inner else line)
        words = words[words.index("soong-agent") + 1 :]
        ends = [place for place, word in enumerate(words) if word in {"|", "<", ">"}]
        assert parse(words[: ends[0]] if ends else words).command, line


@together(
    ("words", "cure"),
    [
        ("sesions list", "did you mean sessions?"),
        ("sessions lst", "did you mean list?"),
        ("run --pth x hi", "did you mean --path?"),
        ("cost --bye", "did you mean --by?"),
        ("cost --by dya", "did you mean day?"),
        ("run --mode plann hi", "did you mean plan?"),
        ("run --max-usd=-1 hi", "a number above 0 is needed, such as 0.50, not '-1'"),
        ("run --max-usd nan hi", "a number above 0"),
        ("run --max-usd dear hi", "a number above 0"),
        ("run --max-turns 0 hi", "a whole number from 1"),
        ("zzz", 'write "run" first'),
        ("completion", "source <(soong-agent completion bash)"),
        ("store", "for example: soong-agent store migrate"),
        ("what is this", 'soong-agent run "what is this"'),
        ("fix it", 'soong-agent run "fix it"'),
        ("atach run_1 --after 3", "did you mean attach?"),
        ("permisions explain git push", "did you mean permissions?"),
        (f"explain {'the code ' * 40}", 'soong-agent run "…"'),
        ("say 'a\"b$c' now", 'soong-agent run "…"'),
    ],
)
def test_wrong_usage_names_the_nearest_word(
    words: str, cure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(shlex.split(words)) == 2
    said = capsys.readouterr().err
    assert cure in said
    assert len(said.splitlines()) == 2


def test_the_work_of_every_command_is_where_its_name_says() -> None:
    names = {
        parser.get_default("work")
        for command in build_parser().commands.values()
        for parser in (command, *command.commands.values())
    }
    for name in names - {None}:
        assert callable(resolve_name(name)), name
    assert len(names) > 20
