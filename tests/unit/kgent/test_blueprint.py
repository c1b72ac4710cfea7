"""Every module, class, field and function that the design document of kgent names is there."""

import inspect
from importlib import import_module
from typing import Any

from tables import together

MODULES = """
cli errors
config.models config.loader config.prompts
runtime.runner runtime.context runtime.options runtime.ids runtime.state
engine.base engine.pydantic_ai engine.mock
sandbox.workspace sandbox.paths sandbox.manifest
records.context records.events records.transcript records.logs records.errors
skills.models skills.registry skills.loader skills.parser
tools.registry tools.filesystem tools.skills tools.memory tools.permissions tools.results
tools.pydantic_adapter
memory.contract memory.client
governance.deliverables governance.policy governance.results
"""
FIELDS = {
    "config.models:KgentConfig": (
        "kgent model profile skills tools memory workspace deliverables runtime"
    ),
    "config.models:KgentMetaConfig": "schema_version",
    "config.models:ModelConfig": "",
    "config.models:ProfileConfig": "id",
    "config.models:SkillsConfig": "",
    "config.models:ToolsConfig": "shell filesystem",
    "config.models:MemoryConfig": "write_mode",
    "config.models:WorkspaceConfig": "",
    "config.models:DeliverablesConfig": "required",
    "config.models:RuntimeConfig": "",
    "runtime.options:CliOverrides": "sandbox prompt prompt_file session_id task_id run_id",
    "runtime.options:RunOptions": (
        "sandbox session_id task_id run_id stream max_steps timeout_seconds"
    ),
    "runtime.options:RunResult": ("session_id task_id run_id status sandbox_root final_text error"),
    "runtime.context:RunContext": (
        "session_id task_id run_id profile_id config_fingerprint sandbox_root config records"
    ),
    "sandbox.manifest:SandboxManifest": "root writable readonly forbidden created_at",
    "sandbox.manifest:ArtifactRecord": "path kind created_by required content_type",
    "sandbox.manifest:ArtifactManifest": "artifacts updated_at",
    "sandbox.workspace:SandboxWorkspace": "",
    "runtime.state:RunStatus": (
        "pending running completed incomplete failed waiting_for_tool waiting_for_user"
        " review_required revision_required cancelled"
    ),
    "governance.results:GovernanceStatus": "passed failed incomplete blocked",
    "records.events:Event": (
        "event_id sequence run_id session_id task_id type timestamp actor severity summary data"
        " correlation_id parent_event_id"
    ),
    "records.logs:ToolCallRecord": (
        "call_id tool_name action started_at completed_at duration_ms status args_summary"
        " result_summary artifacts error"
    ),
    "skills.models:SkillSummary": "id name description tags path",
    "skills.models:LoadedSkill": (
        "summary instructions references_summary templates_summary declared_permissions"
    ),
    "tools.results:ToolResult": "ok summary data artifacts error",
    "tools.registry:ToolDefinition": "name description input_schema handler",
    "errors:ErrorInfo": "code message category retryable details",
    "engine.base:AgentRunRequest": (
        "context prompt system_prompt tools timeout_seconds max_steps stream cancellation_token"
        " event_callback"
    ),
    "engine.base:AgentResult": "error",
    "memory.contract:MemoryItem": "",
    "memory.contract:MemoryWriteResult": "",
    "tools.permissions:EffectivePermissionPolicy": "",
    "governance.results:PermissionResult": "",
}
FUNCTIONS = {
    "config.loader:load_config": "path",
    "config.loader:apply_cli_overrides": "config overrides",
    "config.loader:fingerprint_config": "config",
    "config.prompts:render_system_prompt": "config skill_index memory_summary sandbox_rules",
    "runtime.runner:run": "config_path prompt options",
    "runtime.ids:new_session_id": "",
    "runtime.ids:new_task_id": "",
    "runtime.ids:new_run_id": "",
    "sandbox.workspace:create_workspace": "context",
    "sandbox.paths:resolve_sandbox_path": "root user_path for_write",
    "records.events:EventRecorder.emit": "self event_type summary data actor severity",
    "records.transcript:TranscriptWriter.append_section": "self title content",
    "records.transcript:TranscriptWriter.finalize": "self context",
    "records.logs:ToolLogger": "",
    "records.errors:ErrorLogger": "",
    "skills.registry:SkillRegistry.discover": "self",
    "skills.registry:SkillRegistry.load_skill": "self skill_id",
    "tools.registry:build_toolsets": "context skills memory",
    "tools.registry:ToolHandler.__call__": "self args context",
    "tools.permissions:build_effective_policy": "config loaded_skills",
    "tools.permissions:check_permission": "policy tool_name action path",
    "memory.contract:MemoryClient.recall_memory": "self query scope limit",
    "memory.contract:MemoryClient.write_memory": "self content scope tags",
    "governance.deliverables:validate_required_deliverables": "",
    "engine.base:AgentEngine.run": "self request",
    "engine.pydantic_ai:PydanticAIAgentEngine.run": "self request",
    "engine.mock:MockAgentEngine.run": "self request",
}
WRITERS = {"events": "EventRecorder", "transcript": "TranscriptWriter"} | {
    "tools": "ToolLogger",
    "errors": "ErrorLogger",
}


def find(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = import_module(f"kgent.{module}")
    for part in path.split("."):
        found = getattr(found, part)
    return found


@together("module", MODULES.split())
def test_its_modules_are_there_and_say_what_they_are(module: str) -> None:
    assert import_module(f"kgent.{module}").__doc__


@together("name", FIELDS)
def test_its_classes_have_their_fields(name: str) -> None:
    found = find(name)
    assert found.__name__ == name.rpartition(":")[2]
    fields = getattr(found, "model_fields", None) or getattr(found, "__members__", None)
    known = set(fields or inspect.signature(found).parameters)
    assert set(FIELDS[name].split()) <= known


@together("name", FUNCTIONS)
def test_its_functions_have_their_parameters(name: str) -> None:
    wanted = FUNCTIONS[name].split()
    parameters = [*inspect.signature(find(name)).parameters][: len(wanted)]
    assert parameters == wanted


def test_the_records_of_a_run_are_its_four_writers(tmp_path: Any) -> None:
    from kgent_runs import a_context  # noqa: PLC0415 - one test

    records = a_context(tmp_path).records
    assert {name: type(getattr(records, name)).__name__ for name in WRITERS} == WRITERS
