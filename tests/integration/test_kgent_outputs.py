"""What a run must deliver: schemas, checks, and one chance to mend what is amiss."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import Fails, calls as model_calls
from kgent import RunOptions, RunResult
from kgent.cli import main
from kgent.engine.mock import MockContinuation
from kgent.review.verification import verify
from kgent.runtime.runner import run
from kgent_runs import a_run, calls, events, lines, profile, state, types
from model_server import ModelServer, Reply
from sweeps import kept, sampled
from tables import together

ENGINES = pytest.mark.parametrize("engine", kept(["core", "pydantic_ai"], "core"))
ROWS = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "price": {"type": ["number", "null"]}},
    "required": ["id", "price"],
    "additionalProperties": False,
}
CHOICES = {
    "properties": {
        "id": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "price": {"enum": [2, 3]},
    },
}
ROW_BY_REFERENCE = {
    "type": "array",
    "items": {"$ref": "#/$defs/row"},
    "$defs": {
        "id": {"type": ["integer", "null"]},
        "price": {"oneOf": [{"const": 2}, {"const": 3}]},
        "row": {"properties": {"id": {"$ref": "#/$defs/id"}, "price": {"$ref": "#/$defs/price"}}},
    },
}
MERGED = "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 60))


def delivered(tmp_path: Path, name: str, content: str, schema: Any, **spec: Any) -> RunResult:
    """A run that writes one deliverable with a schema."""
    path = f"deliverables/{name}"
    required = [{"path": path, "schema": schema, **spec}]
    step = calls("write_file", path=path, content=content)
    return a_run(tmp_path, step, deliverables={"required": required})


@pytest.mark.parametrize(
    ("name", "content", "schema"),
    sampled(
        [
            ("a.json", '{"id": 1}', {"type": "object", "required": ["id"]}),
            ("a.yaml", "when: 2024-01-01\n", {"properties": {"when": {"type": "string"}}}),
            ("a.csv", "id,price\n1,2.5\n2,\n", ROWS),
            ("a.csv", "id,price\n1,2\n", {"type": "array", "items": ROWS, "minItems": 1}),
            ("a.csv", "id,price\n1,2\n,3\n", CHOICES),
            ("a.csv", "id,price\n1,2\n,3\n", ROW_BY_REFERENCE),
            ("a.yaml", "a: &a {b: 1}\nc: {<<: [*a, *a], d: *a}\n", {"required": ["a", "c"]}),
            ("a.yaml", "# nothing\n", {"type": "null"}),
        ],
        keep=2,
    ),
)
def test_content_that_fits_its_schema_completes_a_run(
    tmp_path: Path, name: str, content: str, schema: Any
) -> None:
    result = delivered(tmp_path, name, content, schema)
    assert (result.status, result.invalid) == ("completed", {})
    assert result.sandbox_root
    assert "JSON Schema" in (result.sandbox_root / "effective-system-prompt.md").read_text()


@pytest.mark.parametrize(
    ("name", "content", "schema", "reason"),
    sampled(
        [
            ("a.json", '{"id": "x"}', {"properties": {"id": {"type": "integer"}}}, "$.id: 'x'"),
            ("a.json", "{'id': 1}", {}, "it is not JSON"),
            ("a.json", '{"a": NaN}', {}, "NaN is not a number that JSON has"),
            ("a.json", '{"a": 1, "a": 2}', {}, "given twice"),
            ("a.json", "[" * 100_000, {}, "nested too deeply"),
            ("a.yaml", "a: [", {}, "it is not YAML"),
            ("a.yaml", "1: b\n", {"patternProperties": {"a": {}}}, "a key that is not text"),
            ("a.yaml", f"a0: &a0 {{b: 1}}\n{MERGED}", {}, "repeats itself"),
            ("a.yaml", "a: &a [*a]\n", {}, "contains itself"),
            ("a.yaml", f"0x{'f' * 9000}", {"type": "string"}, "it cannot be compared"),
            ("a.json", "1" * 500, {"multipleOf": 0.1}, "it cannot be compared"),
            ("a.csv", "id\n1\n", ROWS, "it lacks the columns: price"),
            ("a.csv", "id,price,x\n", ROWS, "does not have: x"),
            ("a.csv", "id,price\n1,2\nx,2\n", ROWS, "line 3.id: 'x' is not of type 'integer'"),
            ("a.csv", "id,price\n1\n", ROWS, "line 2: 1 value, and the header has 2"),
            ("a.csv", "id,id\n1,1\n", ROWS, "a column twice: id"),
            ("a.csv", "id,price\n", {"type": "array", "minItems": 1}, "does not fit"),
            ("a.csv", 'id,price\n"1,2\n', ROWS, "it is not CSV"),
        ],
        keep=3,
    ),
)
def test_content_that_does_not_fit_is_incomplete(
    tmp_path: Path, name: str, content: str, schema: Any, reason: str
) -> None:
    result = delivered(tmp_path, name, content, schema)
    assert result.status == "incomplete"
    assert reason in result.invalid[f"deliverables/{name}"]
    assert result.error
    assert result.error.code == "deliverable_invalid"
    assert state(result.sandbox_root)["invalid"] == result.invalid
    assert result.sandbox_root
    assert verify(result.sandbox_root).problems == []


def test_a_schema_in_a_file_is_part_of_the_resolved_profile(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps({"type": "array"}))
    result = delivered(tmp_path, "a.txt", "{}", "schema.json", content_type="application/json")
    assert "is not of type 'array'" in result.invalid["deliverables/a.txt"]
    first = state(result.sandbox_root)["config_fingerprint"]
    (tmp_path / "schema.json").write_text(json.dumps({"type": "object"}))
    other = tmp_path / "other"
    second = run(tmp_path / "kgent.yaml", "x", RunOptions(sandbox=other))
    assert state(second.sandbox_root)["config_fingerprint"] != first
    assert result.sandbox_root
    assert verify(result.sandbox_root).problems == []


@together(
    ("spec", "reason"),
    [
        ({"path": "deliverables/a.json", "schema": "none.json"}, "cannot be read"),
        ({"path": "deliverables/a.json", "schema": "kgent.txt"}, "no object"),
        ({"path": "deliverables/a.json", "schema": {"type": "thing"}}, "cannot be used"),
        ({"path": "deliverables/a.json", "schema": {"$ref": "http://x.test/"}}, "not in it"),
        ({"path": "deliverables/a.md", "schema": {}}, "JSON, YAML and CSV"),
        (
            {"path": "deliverables/a.md", "shema": {}},
            "did you mean deliverables.required[0].schema",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_found_by_validate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, Any], reason: str
) -> None:
    (tmp_path / "kgent.txt").write_text("just text")
    config = profile(tmp_path, deliverables={"required": [spec]})
    assert main(["validate", "--config", str(config)]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert "deliverables.required[0].schema" in said


# --- checks -------------------------------------------------------------------------------------


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_checks_run_in_the_run_folder_after_the_engine(tmp_path: Path) -> None:
    write = calls("write_file", path="deliverables/a.md", content="x")
    reads = python("print(open('deliverables/a.md').read())")
    result = a_run(tmp_path, write, checks=[reads, ["true"]])
    assert result.status == "completed"
    assert [check.is_passed for check in result.checks] == [True, True]
    root = result.sandbox_root
    assert root
    assert result.checks[0].output
    assert (root / result.checks[0].output).read_text() == "x\n"
    assert "- check `true`: passed" in (root / "transcript.md").read_text()
    assert verify(root).problems == []


@pytest.mark.parametrize(
    ("check", "reason"),
    sampled(
        [
            (
                python("print('two rows lack a price'); raise SystemExit(3)"),
                "exit code 3: two rows",
            ),
            (["no-such-program"], "there is no program"),
            ({"argv": ["sleep", "60"], "timeout_seconds": 0.2}, "it took longer than 0.2 s"),
            (python("import os; os.kill(os.getpid(), 9)"), "it ended with exit code"),
        ],
        keep=1,
    ),
)
def test_a_check_that_fails_makes_a_run_incomplete(tmp_path: Path, check: Any, reason: str) -> None:
    result = a_run(tmp_path, checks=[check, ["true"]])
    assert result.status == "incomplete"
    assert result.error
    assert result.error.code == "check_failed"
    assert reason in (result.checks[0].reason or "")
    assert result.checks[1].is_passed
    assert state(result.sandbox_root)["checks"][0]["is_passed"] is False


@pytest.mark.sweep
def test_what_a_check_leaves_behind_is_judged(tmp_path: Path) -> None:
    write = calls("write_file", path="deliverables/a.md", content="x")
    required = {"required": ["deliverables/a.md"]}
    removes = python("import os; os.remove('deliverables/a.md')")
    result = a_run(tmp_path, write, checks=[removes], deliverables=required)
    assert (result.status, result.missing) == ("incomplete", ["deliverables/a.md"])
    assert result.sandbox_root
    assert verify(result.sandbox_root).problems == []


@pytest.mark.parametrize(
    "name", kept(["prompt.md", "config.yaml", "events.jsonl", "logs/tools.jsonl"], "events.jsonl")
)
def test_a_check_that_edits_a_record_fails_the_run(tmp_path: Path, name: str) -> None:
    result = a_run(tmp_path, checks=[python(f"open({name!r}, 'a').write('x')")])
    assert result.status == "failed"
    assert result.error
    assert result.error.code == "records_changed"
    assert name in result.error.message


def test_a_deliverable_that_cannot_be_looked_at_is_missing(tmp_path: Path) -> None:
    path = "deliverables/" + "/".join(["x" * 200] * 25)  # longer than a system call takes
    result = a_run(tmp_path, deliverables={"required": [path]})
    assert (result.status, result.missing) == ("incomplete", [path])
    assert result.sandbox_root
    assert verify(result.sandbox_root).problems == []


def test_a_deliverable_with_a_name_no_file_can_have_is_refused(tmp_path: Path) -> None:
    required = {"required": ["deliverables/{{ to }}.md"]}
    config = profile(tmp_path, deliverables=required, parameters={"to": {}})
    result = run(config, "x", RunOptions(parameters={"to": "ä" * 150}))
    assert result.is_blocked
    assert "more than 255 bytes" in str(result.error)


@pytest.mark.sweep
def test_what_a_check_prints_is_bounded(tmp_path: Path) -> None:
    flood = python("print('x' * 10_000_000)")
    result = a_run(tmp_path, checks=[flood])
    assert result.sandbox_root
    assert result.checks[0].output
    assert (result.sandbox_root / result.checks[0].output).stat().st_size < 100_000


@together("check", ["true", [], [""], ["a\0b"], {"argv": ["true"], "cwd": "x"}])
def test_a_check_that_is_no_command_is_refused(tmp_path: Path, check: Any) -> None:
    config = profile(tmp_path, checks=[check])
    assert main(["validate", "--config", str(config)]) == 2


# --- one more chance ------------------------------------------------------------------------------

WRITES = model_calls("write_file", path="deliverables/a.json", content='{"id": 1}')
WRITES_BADLY = model_calls("write_file", path="deliverables/a.json", content='{"id": "x"}')


def conduct(
    tmp_path: Path, engine: str, script: list[Reply], **sections: Any
) -> tuple[RunResult, list[str]]:
    schema = {"properties": {"id": {"type": "integer"}}}
    required = [{"path": "deliverables/a.json", "schema": schema}]
    with ModelServer.in_thread(script) as server:
        config = profile(
            tmp_path,
            model={"provider": "openai", "name": "m", "base_url": server.base_url("openai")},
            deliverables={"required": required},
            runtime={"engine": engine, **sections.pop("runtime", {})},
            **sections,
        )
        result = run(config, "Write it.", RunOptions(sandbox=tmp_path / "run"))
        return result, [request.text for request in server.requests]


@pytest.mark.long
@ENGINES
@pytest.mark.parametrize(
    ("first", "said"),
    [([], "deliverables/a.json`: it does not exist"), ([WRITES_BADLY], "is not of type 'integer'")],
    ids=["missing", "invalid"],
)
def test_the_model_is_asked_once_more_in_the_same_conversation(
    tmp_path: Path, engine: str, first: list[Reply], said: str
) -> None:
    script = [*first, "I am done.", WRITES, "Now it is."]
    result, requests = conduct(tmp_path, engine, script)
    assert (result.status, result.final_text) == ("completed", "Now it is.")
    assert said in requests[len(first) + 1]
    assert "I am done." in requests[len(first) + 1]
    root = result.sandbox_root
    nudges = [e for e in events(root) if e["type"] == "nudge.sent"]
    assert len(nudges) == 1
    assert types(root).count("deliverable.check.completed") == 1
    assert state(root)["usage"]["model_calls"] == len(requests)


@pytest.mark.sweep
@ENGINES
def test_a_failed_check_is_shown_to_the_model(tmp_path: Path, engine: str) -> None:
    check = python("import json; assert json.load(open('deliverables/a.json'))['id'] == 2, 'two!'")
    better = model_calls("write_file", path="deliverables/a.json", content='{"id": 2}')
    script: list[Reply] = [WRITES, "Done.", better, "Redone."]
    result, requests = conduct(tmp_path, engine, script, checks=[check])
    assert result.status == "completed"
    assert "two!" in requests[2]


@ENGINES
@pytest.mark.parametrize(
    "rest",
    sampled([["No."], [Fails(message="the service is down")], []], keep=2),
    ids=sampled(["says no", "fails", "has no step left"], keep=2),
)
def test_a_run_is_incomplete_when_asking_again_does_not_help(
    tmp_path: Path, engine: str, rest: list[Reply]
) -> None:
    runtime = {"max_steps": 1} if not rest else {}
    result, requests = conduct(tmp_path, engine, ["Done.", *rest], runtime=runtime)
    assert result.status == "incomplete"
    assert result.error
    assert result.error.code == "deliverable_missing"
    assert len(requests) >= 1 + len(rest)


@ENGINES
def test_a_model_is_not_asked_again_where_the_profile_says_so(tmp_path: Path, engine: str) -> None:
    result, requests = conduct(tmp_path, engine, ["Done."], runtime={"nudges": 0})
    assert (result.status, len(requests)) == ("incomplete", 1)


@pytest.mark.sweep
def test_a_script_can_go_on_after_it_was_asked_again(tmp_path: Path) -> None:
    write = calls("write_file", path="deliverables/a.md", content="x")
    more = MockContinuation(nudged=[write, "Now it is there."])
    required = {"required": ["deliverables/a.md"]}
    result = a_run(tmp_path, "Done.", more, deliverables=required)
    assert (result.status, result.final_text) == ("completed", "Now it is there.")
    (tmp_path / "again").mkdir()
    done = a_run(tmp_path / "again", write, "Done.", more, deliverables=required)
    assert done.final_text == "Done."
    assert len(lines((done.sandbox_root or Path()) / "logs" / "tools.jsonl")) == 1
