"""Tools: what they do, what they refuse, and what they write down about it."""

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kgent.config.loader import load_config
from kgent.errors import ErrorCategory, ErrorInfo
from kgent.memory.client import NoMemory
from kgent.memory.contract import MemoryItem, MemoryWriteResult
from kgent.runtime.context import RunContext
from kgent.skills.registry import SkillRegistry
from kgent.tools.calls import MAX_DATA_BYTES
from kgent.tools.permissions import build_effective_policy, check_permission
from kgent.tools.results import ToolResult
from kgent_runs import a_context, answer, events, lines, profile, skill, toolset
from tables import together


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    return a_context(tmp_path)


def do(context: RunContext, tool: str, /, **args: Any) -> ToolResult:
    return answer(toolset(context)[tool], context, **args)


def code_of(result: ToolResult) -> str:
    assert not result.ok
    assert result.error is not None
    return result.error.code


# --- which tools there are ------------------------------------------------------------------------


def test_dangerous_tools_are_disabled_by_default(context: RunContext) -> None:
    assert sorted(toolset(context)) == [
        "grep_files",
        "list_files",
        "list_skills",
        "load_skill",
        "read_file",
        "recall_memory",
        "write_file",
        "write_memory",
    ]


def test_dangerous_tools_appear_when_enabled(tmp_path: Path) -> None:
    context = a_context(
        tmp_path, tools={"filesystem": {"delete": True}, "shell": {"enabled": True}}
    )
    assert {"delete_file", "run_command"} <= set(toolset(context))


@together(
    ("sections", "absent"),
    [
        ({"memory": {"write_mode": "disabled"}}, {"write_memory"}),
        ({"memory": {"enabled": False}}, {"write_memory", "recall_memory"}),
        ({"tools": {"filesystem": {"write": False}}}, {"write_file"}),
        ({"tools": {"filesystem": {"enabled": False}}}, {"read_file", "write_file", "grep_files"}),
    ],
)
def test_what_is_disabled_is_absent(
    tmp_path: Path, sections: dict[str, Any], absent: set[str]
) -> None:
    assert absent.isdisjoint(toolset(a_context(tmp_path, **sections)))


def test_deny_rules_win_over_the_profile(tmp_path: Path) -> None:
    context = a_context(tmp_path, tools={"shell": {"enabled": True, "allowed_commands": ["ls"]}})
    assert "run_command" in toolset(context)
    skills = SkillRegistry([skill(tmp_path / "skills")])
    tools = toolset(context, skills=skills, denied=["run_command"])
    assert "run_command" not in tools
    loaded = answer(tools["load_skill"], context, skill_id="reporting")
    assert loaded.data is not None
    assert loaded.data["not_granted"] == ["run_command"]


def test_the_strongest_rule_gives_the_reason(tmp_path: Path) -> None:
    config = load_config(profile(tmp_path, tools={"filesystem": {"write": False}}))
    policy = build_effective_policy(config, [], denied=["run_*"])
    reasons = [
        check_permission(policy, *call).reason
        for call in (
            ("run_command", "execute", "../x"),
            ("write_file", "write", "../x"),
            ("write_file", "write", "workspace/x"),
            ("read_file", "read", "workspace/x"),
        )
    ]
    assert reasons == [
        "the runtime denies the tool run_command",
        "'..' is not allowed in paths; name the place itself",
        "the profile does not enable the tool write_file",
        None,
    ]


def test_the_sandbox_bounds_what_the_profile_enables(tmp_path: Path) -> None:
    context = a_context(tmp_path, tools={"filesystem": {"delete": True}})
    places = ["/etc/passwd", "run.json", "archive", "workspace", "../run"]
    refused = [do(context, "delete_file", path=place) for place in places]
    outside, record = "permission_denied", "write_outside_allowed_roots"
    assert [code_of(one) for one in refused] == [outside, record, record, record, outside]
    assert {one.error.category for one in refused if one.error} == {ErrorCategory.SANDBOX}


def test_skills_grant_nothing(tmp_path: Path, context: RunContext) -> None:
    skills = SkillRegistry([skill(tmp_path / "skills").parent])
    tools = toolset(context, skills=skills)
    result = answer(tools["load_skill"], context, skill_id="reporting")
    assert result.data is not None
    assert result.data["not_granted"] == ["run_command"]
    assert "run_command" not in tools
    (loaded,) = (e for e in events(context.sandbox_root) if e["type"] == "skill.loaded")
    assert loaded["data"]["not_granted"] == ["run_command"]


# --- files ----------------------------------------------------------------------------------------


def test_a_file_is_written_read_listed_and_found(context: RunContext) -> None:
    written = do(context, "write_file", path="workspace/a.md", content="one\ntwo (2)\n")
    assert (written.ok, written.artifacts) == (True, ["workspace/a.md"])
    read = do(context, "read_file", path="workspace/a.md")
    assert read.data is not None
    assert read.data["content"] == "one\ntwo (2)\n"
    listed = do(context, "list_files", path="workspace")
    assert listed.data is not None
    assert [entry["path"] for entry in listed.data["entries"]] == ["workspace/a.md"]
    found = do(context, "grep_files", pattern="two (2)", regex=False, path="workspace")
    assert found.data is not None
    assert found.data["matches"] == [{"path": "workspace/a.md", "line": 2, "text": "two (2)"}]


def test_writing_again_replaces(context: RunContext) -> None:
    do(context, "write_file", path="deliverables/a.md", content="old")
    result = do(context, "write_file", path="deliverables/a.md", content="new")
    assert result.data == {"path": "deliverables/a.md", "bytes": 3, "created": False}
    assert (context.sandbox_root / "deliverables" / "a.md").read_text() == "new"


def test_a_refused_path_is_in_events_and_errors(context: RunContext, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x", encoding="utf-8")
    for tool, args in [
        ("read_file", {"path": str(tmp_path / "secret")}),
        ("write_file", {"path": "run.json", "content": "{}"}),
        ("list_files", {"path": "../"}),
        ("grep_files", {"pattern": "x", "path": "/etc"}),
    ]:
        assert code_of(do(context, tool, **args)) in {
            "permission_denied",
            "write_outside_allowed_roots",
        }
    types = [event["type"] for event in events(context.sandbox_root)]
    assert types == ["tool.started", "file.rejected", "tool.blocked"] * 4
    errors = lines(context.sandbox_root / "logs" / "errors.jsonl")
    assert len(errors) == 4
    assert all(error["category"] == "sandbox" for error in errors)


def test_a_file_beyond_the_limit_is_not_written_and_can_be_read(tmp_path: Path) -> None:
    context = a_context(tmp_path, tools={"filesystem": {"max_file_bytes": 10}})
    refused = do(context, "write_file", path="workspace/a", content="x" * 11)
    assert code_of(refused) == "validation_error"
    assert not (context.sandbox_root / "workspace" / "a").exists()
    (context.sandbox_root / "workspace" / "b").write_text("x" * 11)
    read = do(context, "read_file", path="workspace/b")
    assert read.data
    assert read.data["content"] == "x" * 11


def test_a_large_file_is_read_in_pages_whatever_its_lines(tmp_path: Path) -> None:
    context = a_context(tmp_path)
    text = "é" * 30_000  # one line, of characters of two bytes
    (context.sandbox_root / "workspace" / "long").write_text(text, encoding="utf-8")
    by_line = do(context, "read_file", path="workspace/long").data
    assert by_line
    assert by_line["truncated_lines"] == [1]
    pages, offset = list[str](), 0
    while offset is not None:
        answer = do(context, "read_file", path="workspace/long", offset=offset, limit=4097)
        assert answer.data
        pages.append(answer.data["content"])
        offset = answer.data["next_offset"]
    assert "".join(pages) == text
    past = do(context, "read_file", path="workspace/long", offset=10**9).data
    assert past
    assert (past["content"], past["truncated"], past["bytes"]) == ("", False, 60_000)


def test_a_page_by_bytes_obeys_the_boundaries(tmp_path: Path) -> None:
    context = a_context(tmp_path)
    refused = do(context, "read_file", path="/etc/hostname", offset=0)
    assert code_of(refused) == "permission_denied"
    (context.sandbox_root / "workspace" / "b").write_bytes(b"\0\xff")
    binary = do(context, "read_file", path="workspace/b", offset=0).data
    assert binary
    assert (binary["binary"], binary["content"]) == (True, "")


def test_a_file_is_deleted_only_where_that_is_enabled(tmp_path: Path) -> None:
    context = a_context(tmp_path, tools={"filesystem": {"delete": True}})
    target = context.sandbox_root / "workspace" / "a"
    target.write_text("x")
    assert do(context, "delete_file", path="workspace/a").ok
    assert not target.exists()
    assert code_of(do(context, "delete_file", path="workspace/a")) == "file_not_found"
    assert code_of(do(context, "delete_file", path="run.json")) == "write_outside_allowed_roots"
    assert (context.sandbox_root / "run.json").exists()


def test_the_folders_of_skills_can_be_read(context: RunContext, tmp_path: Path) -> None:
    folder = skill(tmp_path / "skills")
    (folder / "references").mkdir()
    (folder / "references" / "a.md").write_text("guide")
    tools = toolset(context, skills=SkillRegistry([folder.parent]))
    path = str(folder.resolve() / "references" / "a.md")
    result = answer(tools["read_file"], context, path=path)
    assert result.data is not None
    assert result.data["content"] == "guide"


# --- the contract ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "place"),
    [({}, "$.path"), ({"path": 3}, "$.path"), ({"path": "a", "mode": "x"}, "$.mode")],
)
def test_arguments_that_do_not_fit_are_told_with_their_place(
    context: RunContext, args: dict[str, Any], place: str
) -> None:
    result = do(context, "read_file", **args)
    assert code_of(result) == "validation_error"
    assert place in result.summary


def test_the_summary_is_one_bounded_line() -> None:
    result = ToolResult(ok=True, summary="a\nb" * 1000)
    assert "\n" not in result.summary
    assert len(result.summary) <= 301
    with pytest.raises(ValueError, match="summary"):
        ToolResult(ok=True, summary="")


def test_a_tool_call_record_has_all_that_an_audit_needs(context: RunContext) -> None:
    definition = toolset(context)["write_file"]
    args: dict[str, Any] = {"path": "workspace/a.md", "content": "y" * 5000}
    answer(definition, context, call_id="call_7", **args)
    (record,) = lines(context.sandbox_root / "logs" / "tools.jsonl")
    assert record["call_id"] == "call_7"
    assert (record["tool_name"], record["action"]) == ("write_file", "write")
    assert record["status"] == "completed"
    assert record["duration_ms"] >= 0
    assert record["started_at"] < record["completed_at"]
    assert record["args_summary"]["content"].endswith("… (5000 characters)")
    assert record["result_summary"] == "created workspace/a.md (5000 bytes)"
    assert record["artifacts"] == ["workspace/a.md"]
    assert record["error"] is None
    assert {e["correlation_id"] for e in events(context.sandbox_root)} == {"call_7"}


def test_large_data_becomes_an_artifact(context: RunContext) -> None:
    for number in range(400):
        (context.sandbox_root / "workspace" / f"{'long' * 20}-{number}").touch()
    result = do(context, "list_files", path="workspace", limit=2000)
    assert result.ok
    assert result.data is not None
    assert result.data["truncated"] is True
    (kept,) = result.artifacts
    assert kept.startswith("archive/tool-output/")
    assert (context.sandbox_root / kept).stat().st_size > MAX_DATA_BYTES
    assert do(context, "read_file", path=kept).ok


def test_a_secret_that_the_end_of_a_preview_runs_through_is_replaced(
    context: RunContext,
) -> None:
    folder = context.sandbox_root / "workspace"
    for number in range(400):
        (folder / f"{'long' * 20}-{number}").touch()
    whole = do(context, "list_files", path="workspace", limit=2000)
    assert whole.data is not None
    beginning = whole.data["beginning"].removesuffix("…")
    left = beginning[-12:].lstrip()
    secret = f"{left}-a-value-nobody-guesses-4711"
    context.records.redactor.learn({"KEY": secret})
    context.records.transcript.append_section("Run", whole.data["beginning"])
    told = context.records.redactor.payload(whole.data)
    assert told["beginning"] == f"{beginning.removesuffix(left)}[redacted:KEY]…"
    transcript = (context.sandbox_root / "transcript.md").read_text(encoding="utf-8")
    assert "[redacted:KEY]…" in transcript


def test_a_tool_that_breaks_is_an_answer_without_a_traceback(context: RunContext) -> None:
    class Broken(NoMemory):
        def recall_memory(self, query: str, scope: str, limit: int) -> list[MemoryItem]:
            raise RuntimeError("boom")

    tool = toolset(context, memory=Broken())["recall_memory"]
    result = answer(tool, context, query="x")
    assert result.error == ErrorInfo(
        code="internal_error", message="RuntimeError: boom", category=ErrorCategory.TOOL
    )
    assert "Traceback" not in result.model_dump_json()
    assert lines(context.sandbox_root / "logs" / "errors.jsonl")[0]["correlation_id"] == "call_1"


# --- memory ---------------------------------------------------------------------------------------


class Recalling:
    """A memory that remembers what it was asked."""

    def __init__(self, *items: MemoryItem, accepts: bool = True) -> None:
        self.items = list(items)
        self.asked: list[tuple[str, str, int]] = []
        self.written: list[tuple[str, str, list[str]]] = []
        self._accepts = accepts

    def recall_memory(self, query: str, scope: str, limit: int) -> list[MemoryItem]:
        self.asked.append((query, scope, limit))
        return self.items

    def write_memory(self, content: str, scope: str, tags: list[str]) -> MemoryWriteResult:
        self.written.append((content, scope, tags))
        return MemoryWriteResult(accepted=self._accepts, memory_id="m1", summary="as you wish")


def test_a_memory_in_candidate_mode_becomes_a_line_of_the_archive(context: RunContext) -> None:
    memory = Recalling()
    tools = toolset(context, memory=memory)
    args: dict[str, Any] = {"content": "It rained.", "scope": "weather", "tags": ["facts"]}
    result = answer(tools["write_memory"], context, **args)
    assert result.artifacts == ["archive/candidate-memory.jsonl"]
    (line,) = lines(context.sandbox_root / "archive" / "candidate-memory.jsonl")
    assert (line["content"], line["scope"], line["tags"]) == ("It rained.", "weather", ["facts"])
    assert memory.written == []


def test_a_memory_in_external_mode_reaches_the_client(tmp_path: Path) -> None:
    context = a_context(tmp_path, memory={"write_mode": "external"})
    memory = Recalling()
    result = answer(
        toolset(context, memory=memory)["write_memory"], context, content="x", scope="s"
    )
    assert result.data == {"memory_id": "m1"}
    assert memory.written == [("x", "s", [])]
    refusing = toolset(context, memory=Recalling(accepts=False))
    refused = answer(refusing["write_memory"], context, content="x")
    assert code_of(refused) == "memory_write_failed"


def test_scopes_bound_what_is_recalled_and_written(tmp_path: Path) -> None:
    context = a_context(tmp_path, memory={"scopes": ["mine"]})
    memory = Recalling(MemoryItem(content="a", scope="mine"), MemoryItem(content="b", scope="x"))
    tools = toolset(context, memory=memory)
    found = answer(tools["recall_memory"], context, query="q")
    assert found.data is not None
    assert [item["content"] for item in found.data["items"]] == ["a"]
    recalled = answer(tools["recall_memory"], context, query="q", scope="x")
    written = answer(tools["write_memory"], context, content="c", scope="x")
    assert (code_of(recalled), code_of(written)) == ("validation_error", "validation_error")


# --- commands -------------------------------------------------------------------------------------


@pytest.fixture
def shell(tmp_path: Path) -> RunContext:
    allowed = [sys.executable, "sh"]
    return a_context(tmp_path, tools={"shell": {"enabled": True, "allowed_commands": allowed}})


@pytest.mark.parametrize(
    "encoding", ["gb18030", "utf-16", "utf-8-sig"], ids=["GBK", "UTF-16", "UTF-8 with a mark"]
)
def test_a_text_keeps_its_encoding_and_line_ends(context: RunContext, encoding: str) -> None:
    file = context.sandbox_root / "workspace" / "a.txt"
    text = "请检查这个单位是否正确。\n年龄和地址\n"
    file.write_bytes(text.replace("\n", "\r\n").encode(encoding))
    page = do(context, "read_file", path="workspace/a.txt").data
    assert page is not None
    assert page["content"] == text
    pages, offset = list[str](), 0
    while offset is not None:
        part = do(context, "read_file", path="workspace/a.txt", offset=offset, limit=9).data
        assert part is not None
        assert part["encoding"] == page["encoding"]
        pages.append(part["content"])
        offset = part["next_offset"]
    assert "".join(pages) == text.replace("\n", "\r\n")
    new = text + "第三行\n"
    written = do(context, "write_file", path="workspace/a.txt", content=new).data
    assert file.read_bytes() == new.replace("\n", "\r\n").encode(encoding)
    assert written is not None
    assert written["bytes"] == file.stat().st_size


def test_an_allowed_command_runs_in_the_workspace_with_a_small_environment(
    shell: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-very-secret")
    result = do(shell, "run_command", argv=["sh", "-c", "pwd -P; env; exit 3"])
    assert result.ok
    assert result.data is not None
    assert result.data["exit_code"] == 3
    assert result.data["stdout"].startswith(str(shell.sandbox_root / "workspace"))
    assert "SOME_API_KEY" not in result.data["stdout"]


@pytest.mark.parametrize("program", ["rm", "/bin/sh", "./sh", "sh "])
def test_a_command_that_is_not_listed_is_blocked(shell: RunContext, program: str) -> None:
    assert code_of(do(shell, "run_command", argv=[program])) == "permission_denied"
    assert events(shell.sandbox_root)[-1]["type"] == "tool.blocked"


def test_long_output_is_kept_whole_as_an_artifact(shell: RunContext) -> None:
    program = "print('x' * 100_000)"
    result = do(shell, "run_command", argv=[sys.executable, "-c", program])
    (kept,) = result.artifacts
    assert (shell.sandbox_root / kept).stat().st_size == 100_001
    assert result.data is not None
    assert result.data["whole_output"] == [kept]


def test_a_running_command_ends_when_the_run_is_to_stop(shell: RunContext) -> None:
    (tool,) = (tool for tool in toolset(shell).values() if tool.name == "run_command")
    timer = threading.Timer(0.3, shell.cancellation.cancel)
    timer.start()
    began = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        answer(tool, shell, argv=["sh", "-c", "echo so far; sleep 60"])
    assert time.monotonic() - began < 30
    assert code_of(answer(tool, shell, argv=["sh"], call_id="call_2")) == "cancelled"
    records = lines(shell.sandbox_root / "logs" / "tools.jsonl")
    assert [record["error"]["code"] for record in records] == ["cancelled", "cancelled"]
    (kept,) = records[0]["artifacts"]
    assert "so far" in (shell.sandbox_root / kept).read_text(encoding="utf-8")


def test_a_command_whose_time_is_up_says_so_and_what_it_had_written(shell: RunContext) -> None:
    argv = ["sh", "-c", "echo begun; sleep 60"]
    result = do(shell, "run_command", argv=argv, timeout_seconds=1)
    assert code_of(result) == "timeout"
    assert result.data is not None
    assert (result.data["stdout"], result.data["timed_out"]) == ("begun\n", True)
    assert events(shell.sandbox_root)[-1]["type"] == "tool.failed"
