"""Two runs compared: equal ones are the same wherever they ran, and no contradiction is missed."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import Calls, Says, ScriptedCall, calls
from agent_core.types import Usage
from kgent import RunOptions
from kgent.cli import main
from kgent.engine.mock import MockAgentEngine, MockStep
from kgent.review.comparison import RunTexts, compare_runs
from kgent.runtime.runner import run
from kgent_runs import calls as mock_call, profile, skill
from model_server import ModelServer, Reply
from sweeps import kept, sampled

ENGINES = pytest.mark.parametrize("engine", kept(["core", "pydantic_ai"], "core"))
PLACES = ("one", "another-place/of-a-longer-name")
LONG = "x" * 300


def together(*made: tuple[str, dict[str, Any]]) -> Calls:
    return Calls(calls=[ScriptedCall(name=name, arguments=args) for name, args in made])


def command(script: str) -> Calls:
    return calls("run_command", argv=["sh", "-c", script])


READS = together(
    ("list_files", {"path": ".", "recursive": True}),
    ("read_file", {"path": "prompt.md"}),
    ("read_file", {"path": "run.json"}),
    ("list_skills", {}),
    ("load_skill", {"skill_id": "reporting"}),
)
SCRIPT: list[Reply] = [
    READS,
    command("seq 20000"),
    command("pwd; pwd > place; date -Is > day; ln -s day link"),
    calls("write_memory", content=f"rain {LONG}"),
    calls("fly", to="the moon"),
    calls("write_file", path="/etc/passwd", content="x"),
    calls("write_file", path="deliverables/report.md", content="It rained.\n"),
    Says(text="It rained.\nThe end.", reasoning="Clouds."),
]


def a_profile(folder: Path, engine: str, base_url: str, **sections: Any) -> Path:
    folder.mkdir(parents=True)
    skill(folder / "skills")
    fields: dict[str, Any] = {
        "model": {"provider": "openai", "name": "m", "base_url": base_url},
        "runtime": {"engine": engine, "nudges": 0},
        "skills": {"paths": ["skills"]},
        "tools": {"shell": {"enabled": True, "allowed_commands": ["sh"]}},
        "deliverables": {"required": ["deliverables/report.md"]},
    }
    return profile(folder, **{**fields, **sections})


def conduct(
    folder: Path,
    first: Sequence[Reply],
    second: Sequence[Reply],
    *,
    engine: str = "core",
    told: Sequence[str] = ("clouds\n", "clouds\n"),
    sections: Sequence[dict[str, Any]] = ({}, {}),
) -> tuple[Path, Path]:
    """Run two scripts in two places; `told` is a file that is no input and can be printed."""
    with ModelServer.in_thread([*first, *second]) as server:
        for place, text, more in zip(PLACES, told, sections, strict=True):
            path = a_profile(folder / place, engine, server.base_url("openai"), **more)
            (folder / place / "told").write_text(text, encoding="utf-8")
            run(path, "Report.", RunOptions(sandbox=folder / place / "run"))
        server.assert_complete()
    return folder / PLACES[0] / "run", folder / PLACES[1] / "run"


def areas(one: Path, other: Path) -> dict[str, str]:
    return {found.path: found.area for found in compare_runs(one, other)}


@ENGINES
def test_equal_runs_are_the_same_in_any_place(
    tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = conduct(tmp_path, SCRIPT, SCRIPT, engine=engine)
    assert compare_runs(one, other) == []
    capsys.readouterr()
    assert main(["diff", str(one), str(other)]) == 0
    assert capsys.readouterr().out == "no difference\n"
    assert main(["diff", str(one), str(other), "--output-format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"same": True, "differences": []}
    moved = tmp_path / "moved"
    shutil.copytree(other, moved, symlinks=True)
    assert compare_runs(one, moved) == []


@pytest.mark.sweep
def test_equal_runs_of_the_mock_are_the_same(tmp_path: Path) -> None:
    steps: list[MockStep] = [
        mock_call("list_files", path="."),
        mock_call("write_memory", content="rain"),
        mock_call("run_command", argv=["sh", "-c", "pwd; seq 200"]),
        mock_call("write_file", path="deliverables/report.md", content="It rained.\n"),
        "It rained.",
    ]
    roots = [tmp_path / place / "run" for place in PLACES]
    for root in roots:
        path = a_profile(root.parent, "mock", "http://x.test")
        run(path, "Report.", RunOptions(sandbox=root), engine=MockAgentEngine(steps))
    assert compare_runs(*roots) == []


@pytest.mark.long
def test_a_longer_path_in_a_result_is_no_difference(tmp_path: Path) -> None:
    printed = {"pwd": 60, "pwd; exit 3": 60, "pwd; sleep 9": 1}
    made = [
        calls("run_command", argv=["sh", "-c", each], timeout_seconds=limit)
        for each, limit in printed.items()
    ]
    script = [*(each.model_dump(mode="json") for each in made), "Done."]
    roots = [tmp_path / place / "run" for place in PLACES]
    for root in roots:
        model = {"model": {"provider": "scripted", "name": "m", "path": "script.json"}}
        path = a_profile(root.parent, "core", "", **model)
        (root.parent / "script.json").write_text(json.dumps(script), encoding="utf-8")
        run(path, "Report.", RunOptions(sandbox=root))
    counted = [json.loads((root / "run.json").read_bytes())["usage"] for root in roots]
    assert counted[0]["input_tokens"] != counted[1]["input_tokens"]
    assert compare_runs(*roots) == []


def test_tokens_and_cost_of_equal_messages_are_no_difference(tmp_path: Path) -> None:
    used = (
        Usage(input_tokens=10, output_tokens=2, cost=0.1),
        Usage(input_tokens=11, cache_read_tokens=8, output_tokens=3, cost=0.2),
    )
    one, other = conduct(tmp_path, *([Says(text="Yes.", usage=usage)] for usage in used))
    assert areas(one, other) == {}


@pytest.mark.sweep
def test_an_external_memory_gives_new_ids_to_equal_memories(tmp_path: Path) -> None:
    script: list[Reply] = [calls("write_memory", content="rain"), "Done."]
    memory = {"memory": {"provider": "sqlite:memory.db", "write_mode": "external"}}
    one, other = conduct(tmp_path, script, script, sections=(memory, memory))
    assert "kgent::mem_" in (one / "archive" / "conversation.jsonl").read_text(encoding="utf-8")
    assert areas(one, other) == {}


REPORT = calls("write_file", path="deliverables/report.md", content="It rained.\n")
PRINTS = command("cat ../../told")
CONTRADICTIONS: dict[str, tuple[list[Reply], list[Reply], set[str]]] = {
    "the answer": (
        [REPORT, "It is safe."],
        [REPORT, "It is not safe."],
        {"answer", "conversation"},
    ),
    "a time in the answer": (
        ["It is due on 2031-05-01T10:00:00Z."],
        ["It is due on 2031-05-01T11:00:00Z."],
        {"answer", "conversation"},
    ),
    "an id in the answer": (
        ["It is order 4711-a."],
        ["It is order 4711-b."],
        {"answer", "conversation"},
    ),
    "a blank in the answer": (["Yes"], ["Yes "], {"answer", "conversation"}),
    "the reasoning": (
        [Says(text="Yes.", reasoning="It rained.")],
        [Says(text="Yes.", reasoning="It snowed.")],
        {"conversation"},
    ),
    "an argument beyond what the log shows": (
        [command(f": {LONG}a"), "Yes."],
        [command(f": {LONG}b"), "Yes."],
        {"conversation"},
    ),
    "the order of calls": (
        [command("true"), command(":"), "Yes."],
        [command(":"), command("true"), "Yes."],
        {"conversation", "records"},
    ),
    "the order of calls in one turn": (
        [together(("read_file", {"path": "prompt.md"}), ("list_skills", {})), "Yes."],
        [together(("list_skills", {}), ("read_file", {"path": "prompt.md"})), "Yes."],
        {"conversation", "records"},
    ),
    "a call that was refused": (
        [calls("read_file", path="prompt.md"), "Yes."],
        [calls("read_file", path="/etc/passwd"), "Yes."],
        {"conversation", "records"},
    ),
    "a text beside a call": (
        [Calls(calls=[ScriptedCall(name="list_skills")], text="I look."), "Yes."],
        [Calls(calls=[ScriptedCall(name="list_skills")], text="I do not look."), "Yes."],
        {"conversation"},
    ),
    "the model calls": (
        [calls("list_skills"), "Yes."],
        ["Yes."],
        {"run", "conversation", "records"},
    ),
    "a deliverable": (
        [calls("write_file", path="deliverables/report.md", content=f"{LONG}a"), "Yes."],
        [calls("write_file", path="deliverables/report.md", content=f"{LONG}b"), "Yes."],
        {"conversation", "deliverables"},
    ),
    "where a link leads": (
        [command("ln -s a link"), "Yes."],
        [command("ln -s b link"), "Yes."],
        {"conversation", "records", "workspace"},
    ),
    "a file beside the records": (
        [command("echo a > ../more"), "Yes."],
        [command("echo b > ../more"), "Yes."],
        {"conversation", "records", "workspace"},
    ),
    "a memory beyond what the log shows": (
        [calls("write_memory", content=f"{LONG}a"), "Yes."],
        [calls("write_memory", content=f"{LONG}b"), "Yes."],
        {"conversation", "records"},
    ),
}


OF_BOTH_ENGINES = [  # the protocol that Pydantic AI asks in does not have the service's reasoning
    name for name in CONTRADICTIONS if name != "the reasoning"
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "engine"),
    kept(
        [
            *((name, "core") for name in CONTRADICTIONS),
            *((name, "pydantic_ai") for name in sampled(OF_BOTH_ENGINES, keep=1)),
        ],
        ("the order of calls", "core"),
        ("the model calls", "core"),
    ),
)
def test_two_runs_differ_in(tmp_path: Path, engine: str, name: str) -> None:
    first, second, expected = CONTRADICTIONS[name]
    one, other = conduct(tmp_path, first, second, engine=engine)
    assert {*areas(one, other).values()} - {"run"} == expected - {"run"}
    assert "run" not in expected or "run" in areas(one, other).values()
    assert areas(one, one) == {}
    assert main(["diff", str(one), str(other)]) == 1


RESULTS = {
    "a short result": "clouds\n",
    "a result that is kept as a file": "x\n" * 40_000 + "clouds\n",
}


@pytest.mark.parametrize(
    ("engine", "name"),
    sampled(
        [
            *(("core", name) for name in RESULTS),
            *(("pydantic_ai", name) for name in sampled(RESULTS, keep=1)),
        ],
        keep=1,
    ),
)
def test_two_runs_with_equal_calls_and_answers_differ_in_the_results(
    tmp_path: Path, engine: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script: list[Reply] = [PRINTS, REPORT, "Done."]
    told = RESULTS[name], RESULTS[name].replace("clouds", "sunny!")
    one, other = conduct(tmp_path, script, script, engine=engine, told=told)
    found = {each.area for each in compare_runs(one, other)}
    assert found == ({"conversation"} if "short" in name else {"records"}) | (
        found & {"conversation"}
    )
    capsys.readouterr()
    assert main(["diff", str(one), str(other)]) == 1
    out = capsys.readouterr().out
    if "short" in name:
        assert "changed  archive/conversation.jsonl (conversation)" in out
        assert "    -content[0].content.data.stdout| clouds\n" in out
        assert "    +content[0].content.data.stdout| sunny!\n" in out


def test_two_runs_of_the_mock_differ_in_what_they_write_and_answer(tmp_path: Path) -> None:
    roots: list[Path] = []
    for place, word in zip(PLACES, "ab", strict=True):
        root = tmp_path / place / "run"
        path = a_profile(root.parent, "mock", "http://x.test")
        steps: list[MockStep] = [mock_call("write_memory", content=LONG + word), f"It is {word}."]
        run(path, "Report.", RunOptions(sandbox=root), engine=MockAgentEngine(steps))
        roots.append(root)
    assert areas(*roots) == {
        "transcript.md": "answer",
        "archive/candidate-memory.jsonl": "records",
        "archive/conversation.jsonl": "conversation",
    }


def test_two_runs_differ_in_a_verdict_and_in_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check = {"checks": [["grep", "-q", "clouds", "../told"]]}
    script: list[Reply] = [REPORT, "Done."]
    one, other = conduct(
        tmp_path, script, script, told=("clouds\n", "sun\n"), sections=(check, check)
    )
    assert areas(one, other)["run.json"] == "run"
    capsys.readouterr()
    assert main(["diff", str(one), str(other)]) == 1
    out = capsys.readouterr().out
    assert "-checks[0].is_passed: true" in out
    assert "+checks[0].is_passed: false" in out


@pytest.mark.sweep
def test_two_runs_differ_in_the_model(tmp_path: Path) -> None:
    more: list[dict[str, Any]] = []
    with ModelServer.in_thread(["Done.", "Done."]) as server:
        for place, name in zip(PLACES, ("small", "large"), strict=True):
            model = {"provider": "openai", "name": name, "base_url": server.base_url("openai")}
            path = a_profile(tmp_path / place, "core", "", model=model)
            run(path, "Report.", RunOptions(sandbox=tmp_path / place / "run"))
            more.append(model)
    found = areas(*(tmp_path / place / "run" for place in PLACES))
    assert found == {"run.json": "run", "config.yaml": "config"}


def cut_conversation(root: Path) -> None:
    file = root / "archive" / "conversation.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[:-1]), encoding="utf-8")


def tear_conversation(root: Path) -> None:
    file = root / "archive" / "conversation.jsonl"
    file.write_bytes(file.read_bytes()[:-20])


def edit_messages(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(root: Path) -> None:
        file = root / "archive" / "conversation.jsonl"
        messages = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for message in messages:
            change(message)
        text = "".join(json.dumps(message) + "\n" for message in messages)
        file.write_text(text, encoding="utf-8")

    return edit


def edit_blocks(**fields: Any) -> Callable[[Path], None]:
    def change(message: dict[str, Any]) -> None:
        for block in message["content"]:
            block.update({key: value for key, value in fields.items() if key in block})

    return edit_messages(change)


EDITS: dict[str, Callable[[Path], object]] = {
    "a message is cut off": cut_conversation,
    "a message is torn": tear_conversation,
    "there is no conversation": lambda root: (root / "archive" / "conversation.jsonl").unlink(),
    "the roles": edit_messages(lambda message: message.update(role="user")),
    "a result is no error": edit_blocks(is_error=True),
    "the names of calls": edit_blocks(name="other"),
    "a message has something else": edit_messages(lambda message: message.update(more=1)),
    "a message has something else instead of its time": edit_messages(
        lambda message: (message.pop("created_at"), message.update(more=1))
    ),
    "blocks have something else": edit_messages(
        lambda message: [block.update(more=1) for block in message["content"] if "name" in block]
    ),
    "a message is no list of blocks": edit_messages(lambda message: message.update(content="x")),
    "blocks are of another kind": edit_blocks(type="image"),
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two equal runs, which tests copy."""
    script: list[Reply] = [PRINTS, "Done."]
    one, other = conduct(tmp_path_factory.mktemp("originals"), script, script)
    copies = [shutil.copytree(root, root.parent / "copy", symlinks=True) for root in (one, other)]
    assert areas(*copies) == {}
    return one, other


@pytest.fixture
def equal(originals: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """A copy of two equal runs."""
    one, other = (
        shutil.copytree(root, tmp_path / place / "run", symlinks=True)
        for root, place in zip(originals, PLACES, strict=True)
    )
    return one, other


@pytest.mark.parametrize("name", sampled(EDITS, keep=2))
def test_no_difference_of_the_conversation_is_overlooked(
    equal: tuple[Path, Path], name: str
) -> None:
    one, other = equal
    EDITS[name](other)
    (found,) = [each for each in compare_runs(one, other) if each.area == "conversation"]
    assert found.change == ("removed" if "no conversation" in name else "changed")
    assert found.diff


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("one\n", "one", ["-one", "+one", "\\ No newline at end of file"]),
        ("one\r\n", "one\n", ["-one\r", "+one"]),
        ("a\u2028b\n", "a\nb\n", ["-a\u2028b", "+a", "+b"]),
    ],
)
def test_a_changed_line_end_is_in_the_diff_of_a_file(
    equal: tuple[Path, Path], before: str, after: str, changed: list[str]
) -> None:
    for root, text in zip(equal, (before, after), strict=True):
        (root / "notes.txt").write_bytes(text.encode())
    (found,) = (each for each in compare_runs(*equal) if each.path.endswith("notes.txt"))
    assert found.diff[3:] == changed


def test_different_values_have_different_lines(equal: tuple[Path, Path]) -> None:
    texts = RunTexts(equal[0])
    values: list[object] = [
        *([["a"], ["b"]], [["a", "b"]], ["a", "b"], ["a\nb"], "a\nb", "a\\nb"),
        *({"a": {"b": 1}}, {"a.b": 1}, {"a": []}, {"a": {}}, {"a": None}, {"a": ""}, {}, []),
    ]
    lines = [tuple(texts.json_lines(value)) for value in values]
    assert len(set(lines)) == len(values)


IRRELEVANT: dict[str, Callable[[Path], object]] = {
    "times and ids": edit_messages(
        lambda message: (
            message.update(created_at="2020-01-01T00:00:00+00:00"),
            [
                block.update(tool_call_id=f"other-{block['tool_call_id']}")
                for block in message["content"]
                if "tool_call_id" in block
            ],
        )
    ),
    "the order of keys": edit_messages(
        lambda message: message.update(
            content=[dict(reversed(block.items())) for block in message["content"]]
        )
    ),
}


@pytest.mark.parametrize("name", IRRELEVANT)
def test_times_ids_and_the_order_of_keys_do_not_count(equal: tuple[Path, Path], name: str) -> None:
    one, other = equal
    IRRELEVANT[name](other)
    assert areas(one, other) == {}


def test_calls_that_end_in_another_order_are_the_same(tmp_path: Path) -> None:
    script: list[Reply] = [READS, "Done."]
    one, other = conduct(tmp_path, script, script)
    log = other / "logs" / "tools.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    log.write_text("".join(reversed(lines)), encoding="utf-8")
    assert areas(one, other) == {}


@pytest.mark.sweep
def test_a_forged_folder_is_compared_all_the_same(tmp_path: Path) -> None:
    one, other = conduct(tmp_path, ["Done."], ["Done."])
    state = json.loads((other / "run.json").read_text(encoding="utf-8"))
    state |= {"created_at": "0001-01-01T00:00:00+00:00", "ended_at": "9999-12-31T23:59:59+00:00"}
    state |= {"sandbox_root": "", "config_path": "/", "run_id": "o"}
    (other / "run.json").write_text(json.dumps(state), encoding="utf-8")
    nested = '{"role": "user", "content": ' + "[" * 100_000
    (other / "archive" / "conversation.jsonl").write_text(nested, encoding="utf-8")
    (other / "archive" / "model").mkdir(exist_ok=True)
    os.mkfifo(other / "archive" / "model" / "pipe")
    assert areas(one, other)["archive/conversation.jsonl"] == "conversation"
    assert main(["diff", str(one), str(other)]) == 1
    lone = {"role": "user", "content": [{"type": "text", "text": "\ud800"}]}
    (other / "archive" / "conversation.jsonl").write_text(json.dumps(lone), encoding="utf-8")
    assert main(["diff", str(one), str(other)]) == 1
