"""Every parser of foreign bytes against what nobody writes: one kind of error, or a value."""

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import strategies as st

from agcore.agent import AgentError, JsonPlanParser
from agcore.prompt import PromptError, PromptTemplate
from agent_core.agents.definitions import read_definition
from agent_core.assets.front_matter import parse_front_matter
from agent_core.compact.compactor import summary_of
from agent_core.config.load import load_config
from agent_core.errors import AgentCoreError, ConfigError, SchemaError, ToolError
from agent_core.hooks.answer import HookError, read_answer
from agent_core.hooks.file import HookPoint, load_hooks
from agent_core.mcp.config import read_servers
from agent_core.mcp.readable import parse_message
from agent_core.memory.entry import parse_memory
from agent_core.process import CompletedProcess
from agent_core.process.capture import Output
from agent_core.providers import jsontext
from agent_core.providers.decoding import EventDecoder, JsonLineDecoder
from agent_core.providers.failures import CallError
from agent_core.redaction.redactor import Redactor
from agent_core.tasks.log_format import read_log
from agent_core.text.wildcards import Wildcards
from agent_core.tools.patch import Patch, changes_of, unified_diff
from agent_core.tools.script import PLACEHOLDER, fill_argv, parse_script, placeholders
from agent_core.tools.text import lines_of
from faults.depth import Depth, Tally
from faults.fuzzing import fuzz
from kgent.config.loader import load_config as load_profile
from kgent.errors import KgentError
from task_boards import created, desk_in, step

pytestmark = pytest.mark.timeout(900)

LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r", ""])
TEXT = st.text(st.characters(codec=None), max_size=60)
"""Any code points, surrogates included."""
WORDS = st.text(st.characters(codec="utf-8"), max_size=60)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


def woven(*pieces: str) -> st.SearchStrategy[str]:
    """Text that is mostly made of these pieces."""
    return st.lists(st.sampled_from(pieces) | TEXT, max_size=25).map("".join)


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """These bytes with a few changes: cut, overwritten, repeated, put in."""
    change = st.tuples(
        st.integers(0, len(whole)), st.integers(0, 12), st.binary(max_size=12), st.booleans()
    )

    def changed(changes: list[tuple[int, int, bytes, bool]]) -> bytes:
        found = whole
        for at, length, put, repeats in changes:
            kept = found[at : at + length] * 2 if repeats else b""
            found = found[:at] + put + kept + found[at + length :]
        return found

    return st.lists(change, min_size=1, max_size=4).map(changed)


# streams


STREAM = st.lists(
    st.sampled_from([
        b"data: ", b"data:", b"data", b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b": ping\n",
        b"event: x\n", b"id: 1\n", b"\xef\xbb\xbf", b"{}", b"[DONE]", b'{"a":"\xc3\xa4"}', b"\0",
    ])
    | st.binary(max_size=8),
    max_size=30,
).map(b"".join)  # fmt: skip


@pytest.mark.long
@pytest.mark.faults("parser: server-sent events and JSON lines")
@pytest.mark.parametrize("decoder", [EventDecoder, JsonLineDecoder])
def test_a_stream_has_the_same_payloads_however_it_is_split(
    decoder: type[EventDecoder | JsonLineDecoder], tally: Tally, size: Depth
) -> None:
    def check(body: bytes, cuts: list[int]) -> None:
        whole = decoder()
        expected = [*whole.feed(body), *whole.end()]
        split = decoder()
        found: list[bytes] = []
        start = 0
        for cut in [*sorted(min(cut, len(body)) for cut in cuts), len(body)]:
            found += split.feed(body[start:cut])
            start = cut
        assert [*found, *split.end()] == expected

    fuzz(tally, size, check, STREAM, st.lists(st.integers(0, 200), max_size=12))


# JSON that models write


@pytest.mark.long
@pytest.mark.faults("parser: arguments of tool calls")
def test_arguments_are_an_object_or_a_value_error(tally: Tally, size: Depth) -> None:
    def check(text: str) -> None:
        try:
            value = jsontext.parse_object(text)
        except ValueError:
            return
        json.dumps(value, allow_nan=False).encode()
        assert jsontext.parse_object(jsontext.dump_text(value)) == value

    pieces = woven(
        '{"a":', "}", "[", "]", '"', "1e999", "-0", "\\ud800", "NaN", ",", ":", "1" * 400
    )
    objects = st.dictionaries(WORDS, JSON, max_size=4).map(json.dumps)
    fuzz(tally, size, check, pieces | objects)


@pytest.mark.long
@pytest.mark.faults("parser: plans")
def test_a_plan_is_a_plan_or_an_error_of_agents(tally: Tally, size: Depth) -> None:
    parser = JsonPlanParser()

    def check(text: str) -> None:
        with suppress(AgentError):
            asyncio.run(parser.parse(text, "goal"))

    fences = woven("```json\n", "```", "\n", '{"steps": [', '{"description": "x"}', "]}", ",")
    shaped = st.fixed_dictionaries({"steps": st.lists(JSON, max_size=3)}).map(json.dumps)
    fuzz(tally, size, check, fences | shaped)


@pytest.mark.faults("parser: plans")
def test_a_plan_in_order_is_read_back(tally: Tally, size: Depth) -> None:
    said = st.lists(WORDS.filter(str.strip), min_size=1, max_size=4)

    def check(steps: list[str]) -> None:
        raw = json.dumps({"steps": [{"description": step} for step in steps]})
        plan = asyncio.run(JsonPlanParser().parse(f"Here:\n```json\n{raw}\n```\n", "goal"))
        assert [step.description for step in plan.steps] == steps

    fuzz(tally, size, check, said)


@pytest.mark.faults("parser: summaries")
def test_a_summary_is_text_or_a_value_error(tally: Tally, size: Depth) -> None:
    def check(text: str) -> None:
        with suppress(ValueError, AgentCoreError):
            assert isinstance(summary_of(text), str)

    fuzz(tally, size, check, woven('{"summary": "', '"', "}", "```", "\n", "\\", "\\u00"))


# files of the user and of the project


@pytest.mark.faults("parser: front matter")
def test_front_matter_never_raises(tally: Tally, size: Depth) -> None:
    def check(text: str) -> None:
        found = parse_front_matter(text)
        found.body.encode()
        json.dumps(found.fields, allow_nan=False)
        with suppress(ValueError):
            parse_memory(text, "user/x.md")

    pieces = ("---\n", "a: ", "- ", "[", "]", "{", "}", "&a", "*a", "!!int ", "<<: ", "\t", "? ")
    fuzz(tally, size, check, woven(*pieces, "\n", "'", '"', "|", ">", "id: x\n", "summary: y\n"))


@pytest.mark.faults("parser: ignore files")
def test_ignore_patterns_match_in_time(tally: Tally, size: Depth) -> None:
    def check(content: bytes, path: bytes) -> None:
        Wildcards.parse(content, folders=True).verdict(path)

    parts = st.sampled_from([
        b"*", b"**", b"/", b"?", b"[", b"]", b"[!a-z]", b"[[:alpha:]]", b"\\", b"!", b"#", b" ",
        b"a", b"b", b"\n", b"\r\n", b"*a*a*a*a*b", b"\xff",
    ])  # fmt: skip
    content = st.lists(parts | st.binary(max_size=3), max_size=60).map(b"".join)
    path = st.lists(st.sampled_from([b"a", b"b", b"/", b"aaaaaaaaaaaaaaaa"]), max_size=80)
    fuzz(tally, size, check, content, path.map(b"".join))


def foreign_file(read: Callable[[Path], object], *errors: type[Exception]) -> Callable[..., None]:
    """A check that writes bytes to a file and reads it."""

    def check(path: Path, content: bytes) -> None:
        path.write_bytes(content)
        with suppress(*errors):
            read(path)

    return check


CONFIG = b"""[model]
provider = "openai"
name = "m"
temperature = 0.5
retry = { max_attempts = 2 }
[[agents.worker_pools]]
pool_id = "p"
[[agents.worker_pools.workers]]
agent_definition_id = "x"
[tools.overrides."code.run_command"]
permission = "readonly"
"""
HOOK = {"type": "command", "command": "true", "timeout_ms": 100}
GROUP = {"matcher": {"tool": "code.search"}, "hooks": [HOOK]}
HOOKS = json.dumps({"version": 1, "hooks": {"PreToolUse": [GROUP]}}).encode()
SERVERS = json.dumps(
    {
        "mcpServers": {
            "a": {"command": "x", "args": ["y"], "env": {"A": "b"}},
            "b": {"url": "https://x.test/mcp", "headers": {"A": "b"}},
        }
    }
).encode()
AGENT = b"---\nid: a\nname: A\ndescription: d\n---\nYou.\n"
PROFILE = yaml.safe_dump({
    "kgent": {"schema_version": 1},
    "profile": {"id": "writer", "role": "You write."},
    "runtime": {"engine": "mock", "max_steps": 3},
    "deliverables": {"required": ["deliverables/a.md"]},
}).encode()  # fmt: skip
FILES: dict[str, tuple[bytes, Callable[[Path], object], tuple[type[Exception], ...]]] = {
    "config.toml": (CONFIG, lambda path: load_config(path.parent), (ConfigError,)),
    "hooks.json": (
        HOOKS,
        lambda path: load_hooks(path.parent, max_timeout_ms=60_000),
        (ConfigError,),
    ),
    "mcp.json": (SERVERS, lambda path: read_servers(path.parent, path.parent), (ConfigError,)),
    "agent.md": (AGENT, read_definition, (ConfigError,)),
    "kgent.yaml": (PROFILE, load_profile, (KgentError,)),
}


@pytest.mark.long
@pytest.mark.faults("parser: configuration files")
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_refused_with_its_error(
    name: str, tmp_path: Path, tally: Tally, size: Depth
) -> None:
    whole, read, errors = FILES[name]
    path = tmp_path / name
    foreign_file(read)(path, whole)  # undamaged, it can be read
    check = partial(foreign_file(read, *errors), path)
    fuzz(tally, size, check, damaged(whole) | st.binary(max_size=80))


@pytest.mark.faults("parser: task logs")
def test_a_damaged_log_is_refused_or_a_good_beginning(
    log: bytes, tally: Tally, size: Depth
) -> None:
    def check(found: bytes) -> None:
        with suppress(SchemaError):
            replayed = read_log(found)
            assert replayed.end <= len(found)
            assert read_log(found[: replayed.end]).lines == replayed.lines

    fuzz(tally, size, check, damaged(log) | st.binary(max_size=80))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A real log of a Task."""

    async def made(project: Path) -> bytes:
        async with desk_in(project) as desk:
            await created(desk, step("s1"), step("s2", "s1"))
            worker = desk.worker("run_a")
            await worker.call("claim_step", task_id="t1", step_id="s1")
            done = {"status": "completed", "result_summary": "fine"}
            await worker.call("update_step", task_id="t1", step_id="s1", **done)
            return (desk.folder / "work.wal.jsonl").read_bytes()

    return asyncio.run(made(tmp_path_factory.mktemp("project")))


# diffs and templates


@pytest.mark.faults("parser: diffs")
def test_a_diff_applies_or_is_refused(tally: Tally, size: Depth) -> None:
    pieces = ("@@ -1,2 +1,2 @@\n", "@@ -0,0 +1 @@\n", "--- a/x\n", "+++ b/x\n", "+", "-", " ", "\n")
    remarks = ("\\ No newline at end of file\n", "@@", "diff --git a/x b/x\n", "@@ -9999999999 @@")

    def check(diff: str, text: str) -> None:
        with suppress(ToolError):
            Patch.parse(diff).apply(text, newline="\n")

    fuzz(tally, size, check, woven(*pieces, *remarks), woven("a\n", "b\n", "\r\n"))


@pytest.mark.faults("parser: diffs")
def test_a_diff_that_was_shown_makes_the_new_text(tally: Tally, size: Depth) -> None:
    lines = st.lists(st.sampled_from(["a\n", "b\n", "\n", "c\r\n", "+x\n", "-- y\n"]), max_size=20)
    text = st.tuples(lines, st.sampled_from(["", "a", "\\ No newline", "\r"]))

    def check(old: tuple[list[str], str], new: tuple[list[str], str]) -> None:
        before, after = ("".join([*lines, last]) for lines, last in (old, new))
        if before == after:
            return
        diff = unified_diff(before, after, shown="x")
        changes = changes_of(diff)
        assert changes is not None
        heads = [int(each) for each in re.findall(r"^@@ -(\d+)", diff, re.MULTILINE)]
        done, rest, passed = "", lines_of(before), 0
        for start, change in zip(heads, changes, strict=True):
            assert change.before is not None
            size = len(lines_of(change.before))
            kept = start - (size > 0) - passed
            done += "".join(rest[:kept]) + change.after
            assert "".join(rest[kept : kept + size]) == change.before
            rest = rest[kept + size :]
            passed += kept + size
        assert done + "".join(rest) == after
        if "\r" not in before + after:  # a patch gives new lines the end of the others
            assert Patch.parse(diff).apply(before, newline="\n") == after

    fuzz(tally, size, check, text, text)


@pytest.mark.long
@pytest.mark.faults("parser: templates")
def test_a_template_of_prompts_renders_or_is_refused(tally: Tally, size: Depth) -> None:
    pieces = ("{{", "}}", "{{x}}", "{{#if x}}", "{{else}}", "{{/if}}", "{{#each x}}", "{{/each}}")

    def check(source: str, value: Any) -> None:
        with suppress(PromptError):
            PromptTemplate("t", source).render({"x": value, "this": value})

    fuzz(tally, size, check, woven(*pieces, "{{this}}", "{{> p}}", "{{@index}}", "\n"), JSON)


@pytest.mark.faults("parser: templates")
def test_a_value_stays_one_word_of_a_command(tally: Tally, size: Depth) -> None:
    def check(template: str, value: str) -> None:
        with suppress(ValueError):
            names = list(placeholders(template))
            (filled,) = fill_argv([template], dict.fromkeys(names, value))
            assert filled.count(value) >= len(names)
            assert names or filled == template or PLACEHOLDER.search(template)

    fuzz(tally, size, check, woven("{{", "}}", "{{args.x}}", "args.", "'", " "), WORDS.filter(bool))


@pytest.mark.faults("parser: templates")
def test_a_script_never_contains_a_value(tally: Tally, size: Depth) -> None:
    pieces = ("{{args.x}}", '"', "'", "$(", ")", "`", "#", "\n", "$((", "))", "<<E\n", "E\n", "\\")
    more = ("${", "}", "echo ", ";", "[[ ", " ]]", "case x in ", "esac", "|", ">", "eval ", "=")

    def check(template: str) -> None:
        with suppress(ValueError):
            argv = parse_script(template).argv({"x": "VALUE$(id)"})
            assert "VALUE$(id)" not in argv[2]

    fuzz(tally, size, check, woven(*pieces, *more))


# other processes


@pytest.mark.faults("parser: hooks and servers")
def test_what_a_hook_prints_is_an_answer_or_a_hook_error(tally: Tally, size: Depth) -> None:
    keys = woven('{"decision":', '"deny"', '"allow"', ',"reason":', '"', "}", "null", "[")

    def check(said: str) -> None:
        with suppress(HookError):
            stdout, stderr = Output(said, len(said)), Output("", 0)
            finished = CompletedProcess(exit_code=0, stdout=stdout, stderr=stderr)
            read_answer(finished, 1000, HookPoint.PRE_TOOL_USE)

    fuzz(tally, size, check, keys | JSON.map(json.dumps))


@pytest.mark.faults("parser: hooks and servers")
def test_what_a_server_prints_is_a_message_or_nothing(tally: Tally, size: Depth) -> None:
    parts = ('{"jsonrpc":"2.0"', ',"id":', "1", ',"result":', ',"method":', '"x"', ',"error":')
    message = st.fixed_dictionaries(
        {"jsonrpc": st.just("2.0") | JSON},
        optional={"id": JSON, "result": JSON, "error": JSON, "method": JSON, "params": JSON},
    ).map(json.dumps)
    lines = (woven(*parts, "{", "}", "[", "\\ud800") | message).map(
        lambda text: text.encode("utf-8", "surrogatepass")
    )
    for found in (b'{"id":false}', b'{"id":true,"result":{}}', b'{"id":1e400}', b'{"id":{}}'):
        with tally.case(repr(found)):
            assert parse_message(found) is None
    tally.verdict()
    fuzz(tally, size, parse_message, lines | st.binary(max_size=40))


@pytest.mark.faults("redaction")
def test_a_secret_is_found_wherever_it_stands(tally: Tally, size: Depth) -> None:
    secret = "swordfish-1234-abcd"  # noqa: S105 - nobody's
    redactor = Redactor({"KEY": secret})

    def check(before: str, after: str, cuts: list[int]) -> None:
        text = before + secret + after
        assert secret not in redactor.text(text)
        stream = redactor.stream()
        points = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
        pieces = [text[start:end] for start, end in pairwise(points)]
        shown = "".join(map(stream.feed, pieces)) + stream.finish()
        assert secret not in shown

    fuzz(tally, size, check, TEXT, TEXT, st.lists(st.integers(0, 140), max_size=8))


@pytest.mark.faults("parser: server-sent events and JSON lines")
def test_a_payload_without_end_is_refused_before_it_fills_the_memory(tally: Tally) -> None:
    decoder = JsonLineDecoder()

    def flood() -> None:
        for _ in range(100):
            decoder.feed(b"x" * 1_000_000)

    with tally.case("endless line"), pytest.raises(CallError):
        flood()
    tally.verdict()
