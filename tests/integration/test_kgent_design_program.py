"""A program that is written from the design document of kgent alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from kgent.config.loader import apply_cli_overrides, fingerprint_config, load_config
from kgent.engine.base import AgentEngine, AgentResult, AgentRunRequest, EngineStatus
from kgent.engine.mock import MockAgentEngine
from kgent.errors import KgentError
from kgent.governance.results import GovernanceStatus
from kgent.memory.contract import MemoryClient, MemoryItem, MemoryWriteResult
from kgent.runtime.context import RunContext
from kgent.runtime.ids import new_run_id, new_session_id, new_task_id
from kgent.runtime.options import CliOverrides, RunOptions
from kgent.runtime.runner import run
from kgent.runtime.state import RunStatus
from kgent.sandbox.manifest import ArtifactManifest, SandboxManifest
from kgent.sandbox.paths import resolve_sandbox_path
from kgent.tools.permissions import build_effective_policy, check_permission
from kgent.tools.registry import ToolDefinition
from kgent.tools.results import ToolResult
from kgent_runs import a_context, events, profile, skill

OWED = {"required": ["deliverables/report.md"]}


class Remembers(MemoryClient):
    def recall_memory(self, query: str, scope: str, limit: int) -> list[MemoryItem]:
        return [MemoryItem(content="It rained.", scope=scope)][:limit]

    def write_memory(self, content: str, scope: str, tags: list[str]) -> MemoryWriteResult:
        return MemoryWriteResult(accepted=True)


class Reporter(AgentEngine):
    """Calls the tools by their handlers, as the document draws them."""

    def __init__(self) -> None:
        self.results: dict[str, ToolResult] = {}

    def run(self, request: AgentRunRequest) -> AgentResult:
        context, tools = request.context, {tool.name: tool for tool in request.tools}
        assert isinstance(context, RunContext)
        assert all(isinstance(tool, ToolDefinition) for tool in request.tools)
        for name, args in (
            ("load_skill", {"skill_id": "reporting"}),
            ("recall_memory", {"query": "rain", "scope": "", "limit": 3}),
            ("write_memory", {"content": "It rained.", "scope": "", "tags": ["rain"]}),
            ("read_file", {"path": "../kgent.yaml"}),
            ("write_file", {"path": "deliverables/report.md", "content": "# Rain\n"}),
        ):
            self.results[name] = tools[name].handler(args, context)
        context.records.events.emit("prompt.rendered", "a note", {"by": "engine"}, actor="engine")
        context.records.transcript.append_section("Notes", "It rained.")
        return AgentResult(status=EngineStatus.COMPLETED, final_text="Done.")


def test_an_engine_of_the_document_runs(tmp_path: Path) -> None:
    skill(tmp_path / "skills")
    path = profile(tmp_path, skills={"paths": ["skills"]}, deliverables=OWED)
    engine, options = (
        Reporter(),
        RunOptions(
            sandbox=tmp_path / "run",
            session_id=new_session_id(),
            task_id=new_task_id(),
            run_id=new_run_id(),
            max_steps=3,
            timeout_seconds=30,
        ),
    )
    result = run(path, "Write it.", options, engine=engine, memory=Remembers())
    assert (result.status, result.final_text) == (RunStatus.completed, "Done.")
    assert (result.session_id, result.run_id) == (options.session_id, options.run_id)
    refused = engine.results.pop("read_file")
    assert refused.error is not None
    assert (refused.ok, refused.error.category) == (False, "sandbox")
    assert all(one.ok for one in engine.results.values())
    root = tmp_path / "run"
    assert (root / "archive" / "candidate-memory.jsonl").exists()
    manifest = SandboxManifest.model_validate_json((root / "sandbox-manifest.json").read_bytes())
    assert manifest.root == root
    made = ArtifactManifest.model_validate_json((root / "artifact-manifest.json").read_bytes())
    assert "deliverables/report.md" in {one.path for one in made.artifacts if one.required}
    assert [one["sequence"] for one in events(root)] == [*range(1, len(events(root)) + 1)]


def test_a_request_may_be_made_by_hand(tmp_path: Path) -> None:
    context = a_context(tmp_path)
    fields: dict[str, Any] = {"cancellation_token": None, "event_callback": None}
    limits = {"timeout_seconds": None, "max_steps": None, "stream": False}
    request = AgentRunRequest(
        context=context, prompt="x", system_prompt="y", tools=[], **limits, **fields
    )
    assert MockAgentEngine(["Done."]).run(request).final_text == "Done."


def test_the_mock_engine_leaves_what_is_missing(tmp_path: Path) -> None:
    result = run(
        profile(tmp_path, deliverables=OWED), "Write it.", RunOptions(sandbox=tmp_path / "run")
    )
    state = json.loads((tmp_path / "run" / "run.json").read_text())
    assert result.status == state["status"] == "incomplete"
    assert result.error is not None
    assert state["failure_reason"].startswith(result.error.code)


def test_paths_are_resolved_within_the_folder(tmp_path: Path) -> None:
    context = a_context(tmp_path)
    root = context.sandbox_root
    assert resolve_sandbox_path(root, "run.json", for_write=False) == root / "run.json"
    assert resolve_sandbox_path(root, "workspace/a", for_write=True) == root / "workspace" / "a"
    (root / "workspace" / "out").symlink_to("/etc")
    refused = ("/etc/passwd", "../kgent.yaml", "workspace/../run.json", "workspace/out/passwd")
    for place, for_write in [*((place, False) for place in refused), ("run.json", True)]:
        with pytest.raises(KgentError) as caught:
            resolve_sandbox_path(root, place, for_write=for_write)
        assert caught.value.category == "sandbox"


def test_overrides_and_permissions_are_decided_without_a_run(tmp_path: Path) -> None:
    config = load_config(profile(tmp_path))
    moved = apply_cli_overrides(config, CliOverrides(sandbox=tmp_path / "there", prompt="x"))
    assert moved.workspace.sandbox == str(tmp_path / "there")
    assert fingerprint_config(moved) == fingerprint_config(config)
    policy = build_effective_policy(config, [])
    for tool, action, place in (
        ("run_command", "execute", None),
        ("delete_file", "delete", "workspace/a"),
        ("write_file", "write", "archive/a"),
        ("write_file", "write", "../a"),
        ("read_file", "read", "/etc/passwd"),
    ):
        decision = check_permission(policy, tool, action, place)
        assert decision.status is GovernanceStatus.blocked, (tool, place)
        assert decision.reason
    assert check_permission(policy, "write_file", "write", "deliverables/a").is_allowed
