"""The tutorials: their programs are the files of examples/tutorials, and print what they show."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import warm
from agent_core.providers.scripted import Calls, Says, ScriptedCall, calls
from agent_core.types import Usage
from isolation import Home
from model_server import ModelServer, Reply
from sweeps import kept, sampled
from tables import together

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "tutorials"
EXAMPLES = ROOT / "examples" / "tutorials"
CODE = re.compile(r"^<!-- (\S+) -->\n```\w+\n(.*?)^```$", re.S | re.M)
SHOWN = re.compile(r"^    \$ (.+)\n((?:    (?!\$ ).*\n)*)", re.M)
LOOKS = Calls(calls=[ScriptedCall(name="stock", arguments={"item": "lamp"})])
COUNTED = Usage(input_tokens=440, output_tokens=28, total_tokens=468)
TWELVE = Says(text="Twelve lamps are left.", usage=COUNTED)
EMMA = calls("free_copies", title="Emma")
BOTH = Says(
    text="Yes, there are two copies of Emma.",
    usage=Usage(input_tokens=180, output_tokens=25, total_tokens=205),
)
FREE = calls("final_answer", title="Emma", can_borrow=True)


def shown(page: str) -> dict[str, str]:
    """Return the commands of a page, with what it shows as their output."""
    text = (PAGES / page).read_text(encoding="utf-8")
    return {
        command: re.sub(r"^    ", "", output, flags=re.M) for command, output in SHOWN.findall(text)
    }


def run(
    home: Home, folder: Path, script: Sequence[Reply], *arguments: str, types: str = ""
) -> subprocess.CompletedProcess[str]:
    with ModelServer.in_thread(script) as server:
        model = f"openai:gpt-5-mini@{server.base_url('openai')}"
        environ = {**os.environ, "SOONG_AGENT_HOME": str(home.path), "PYTHONWARNINGS": "error"}
        done = subprocess.run(  # noqa: S603 - our own program, in our own interpreter
            [sys.executable, *arguments],
            cwd=folder,
            env={**environ, "MODEL": model, "OPENAI_API_KEY": "k"},
            input=types,
            capture_output=True,
            text=True,
            check=False,
        )
        server.assert_complete()
    assert done.returncode == 0, done.stderr
    # The fake is at a private address, whose models have no price.
    said = [line for line in done.stderr.splitlines() if not line.startswith("the price of ")]
    assert said == []
    return done


@together("page", sorted(path.name for path in PAGES.glob("*.md")))
def test_the_code_of_a_page_is_the_file_that_it_names(page: str) -> None:
    found = CODE.findall((PAGES / page).read_text(encoding="utf-8"))
    assert found
    for name, code in found:
        assert (ROOT / name).read_text(encoding="utf-8") == code, name


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "script", "types", "prompt"),
    sampled(
        [
            ("sdk/shop.py", [LOOKS, TWELVE], "", ""),
            ("sdk/watch.py", [LOOKS, TWELVE], "", ""),
            (
                "sdk/order.py",
                [
                    calls("stock", item="chair"),
                    calls("order", item="chair", amount=10),
                    "You said no, so I ordered nothing.",
                ],
                "n\n",
                "Allow it? [y/n] ",
            ),
            (
                "sdk/offer.py",
                [
                    calls("stock", item="chair"),
                    calls("final_answer", item="chair", amount=3, available=False),
                ],
                "",
                "",
            ),
            ("agcore/library.py", [EMMA, FREE], "", ""),
            ("agcore/stream.py", [EMMA, BOTH], "", ""),
            (
                "agcore/team.py",
                [
                    calls("librarian", message="Is Emma free?"),
                    EMMA,
                    FREE,
                    "Welcome! You can borrow Emma today.",
                ],
                "",
                "",
            ),
        ],
        keep=3,
    ),
)
def test_a_program_prints_what_the_page_shows(
    home: Home, project: Path, program: str, script: Sequence[Reply], types: str, prompt: str
) -> None:
    done = run(home, project, script, str(EXAMPLES / program), types=types)
    output = done.stdout.replace(prompt, f"{prompt}{types}") if prompt else done.stdout
    page, _, name = program.partition("/")
    assert neutral(output) == neutral(shown(f"{page}.md")[f"python {name}"])
    assert list(project.iterdir()) == []


def neutral(output: str) -> str:
    return re.sub(r"run_\w{4}…", "run_….", output)


@pytest.mark.parametrize(
    ("program", "answers", "kept"),
    sampled(
        [
            (
                "sdk/talk.py",
                {
                    "I am Ada. What do you sell?": "Hello, Ada. We sell lamps and chairs.",
                    "What is my name?": "Ada.",
                },
                "shop-data",
            ),
            (
                "agcore/visitor.py",
                {
                    "I am Ada, and I like long books.": "Hello, Ada!",
                    "What shall I read?": "Then you may like Middlemarch, Ada.",
                },
                "visitors.sqlite",
            ),
        ],
        keep=1,
    ),
)
def test_a_conversation_continues_when_the_program_is_started_again(
    home: Home, project: Path, program: str, answers: dict[str, str], kept: str
) -> None:
    page, _, name = program.partition("/")
    for question, answer in answers.items():
        done = run(home, project, [answer], str(EXAMPLES / program), question)
        expected = shown(f"{page}.md")[f'python {name} "{question}"']
        assert done.stdout == expected == f"{answer}\n"
    assert [path.name for path in project.iterdir()] == [kept]


@pytest.mark.sweep
@pytest.mark.parametrize("page", kept(["sdk", "agcore"], "sdk"))
def test_the_tests_of_a_tutorial_pass(home: Home, project: Path, page: str) -> None:
    for path in (EXAMPLES / page).glob("*.py"):
        (project / path.name).write_bytes(path.read_bytes())
    (name,) = (path.name for path in project.glob("test_*.py"))
    plain = ("-q", "-p", "no:cacheprovider", "-W", "ignore", name)
    done = run(home, project, [], "-m", "pytest", *plain)
    assert shown(f"{page}.md")[f"pytest -q {name}"].strip() in done.stdout


KGENT = EXAMPLES / "kgent"
REPORT = """\
# Report

1. Bridge at mile 4: repair three planks. Closed.
2. North gate: new sign.

14 deer at the lake, 3 of them young.
"""
INCOMPLETE = '[{"place": "bridge at mile 4"}]'
ACTIONS = '[{"place": "bridge at mile 4", "action": "replace three planks"}]'


def writes(name: str, content: str) -> Calls:
    return calls("write_file", path=f"deliverables/{name}", content=content)


READS = calls("read_file", path="inputs/notes.md")
JOBS: dict[str, list[Reply]] = {
    "kgent run --config kgent.yaml": [READS, writes("report.md", REPORT), "The report is written."],
    "kgent run --config checked.yaml": [
        READS,
        writes("report.md", REPORT),
        writes("actions.json", INCOMPLETE),
        "Done.",
        writes("actions.json", ACTIONS),
        "Corrected.",
    ],
    "kgent revise": [writes("report.md", REPORT.replace("1. ", "1. Urgent: ")), "Done."],
    "kgent rerun": [READS, writes("report.md", REPORT), "The report is written."],
}


@pytest.mark.long
def test_the_commands_of_the_kgent_tutorial_print_what_it_shows(
    home: Home, project: Path, tmp_path: Path
) -> None:
    warm.write_command(tmp_path, "kgent", "kgent")
    path = os.pathsep.join([str(tmp_path), on_path()])
    text = (PAGES / "kgent.md").read_text(encoding="utf-8")
    commands = SHOWN.findall(text)
    script = [
        reply
        for command, _ in commands
        for start, replies in JOBS.items()
        if command.startswith(start)
        for reply in replies
    ]
    with ModelServer.in_thread(script) as server:
        for each in KGENT.iterdir():
            address = f'name: gpt-5-mini, base_url: "{server.base_url("openai")}",'
            profile = each.read_text(encoding="utf-8").replace("name: gpt-5-mini,", address)
            (project / each.name).write_text(profile, encoding="utf-8")
        for command, output in commands:
            done = subprocess.run(  # noqa: S602 - the line of our own page
                command,
                shell=True,
                cwd=project,
                env={
                    **home.env(),
                    "OPENAI_API_KEY": "k",
                    "PATH": path,
                },
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            expected = re.sub(r"^    ", "", output, flags=re.M)
            assert hidden(done.stdout + done.stderr) == expected, command
        server.assert_complete()
    assert len(list((project / "north" / "attempts").iterdir())) == 2


def on_path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def hidden(output: str) -> str:
    """Return an output without the values that a page cannot show."""
    output = re.sub(r"\b[0-9a-f]{64}\b", "…", output)
    return re.sub(r"^(folder +)/\S+/", r"\1…/", output, flags=re.M)
