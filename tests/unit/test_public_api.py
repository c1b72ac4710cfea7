"""What a program that embeds the runtime relies on: names, strictness, codes."""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import agent_core
from agent_core import AgentRuntime, ErrorCode
from agent_core.types import Frozen
from isolation import Home
from tables import together

pytestmark = pytest.mark.checked

STABLE = (
    "AgentRuntime",
    "RunHandle",
    "RunResult",
    "RunError",
    "RunOptions",
    "Session",
    "Budget",
    "BudgetPool",
    "GuardContext",
    "GuardStop",
    "Extension",
    "ExtensionContext",
    "AskModel",
    "RunTool",
    "AnyModel",
    "AnyTool",
    "PermissionCallback",
    "ToolReturn",
    "on_answer",
    "on_message",
    "on_tool_call",
    "on_tool_result",
    "Agent",
    "AnyAgent",
    "OfferContext",
    "Worker",
    "Page",
    "Pages",
    "RunReport",
    "SessionPage",
    "Tasks",
    "TaskDocument",
    "TaskEvent",
    "TaskStatus",
    "TaskStep",
    "TaskStepStatus",
    "Config",
    "UserMessage",
    "RuntimeEvent",
    "EventType",
    "RunStatus",
    "RunMode",
    "EndReason",
    "Node",
    "Role",
    "ReplayResult",
    "InspectResult",
    "CancelResult",
    "CleanupResult",
    "DeleteSessionResult",
    "SwitchResult",
    "UndoState",
    "WorkspaceDiff",
    "FileChange",
    "PermissionRequest",
    "PermissionDecision",
    "Decision",
    "ToolDefinition",
    "ToolPermission",
    "ToolResult",
    "Tool",
    "ToolCall",
    "ToolContext",
    "tool",
    "AgentDefinition",
    "ContentBlock",
    "TextBlock",
    "JsonBlock",
    "ToolCallBlock",
    "ToolResultBlock",
    "ArtifactRefBlock",
    "ReasoningBlock",
    "ImageBlock",
    "ProviderToolBlock",
    "CitationBlock",
    "ModelRequest",
    "ModelMessage",
    "SystemBlock",
    "ModelEvent",
    "ModelStarted",
    "ModelTextDelta",
    "ModelReasoningDelta",
    "ToolCallDelta",
    "ModelRetry",
    "ModelCompleted",
    "StopReason",
    "ModelFailed",
    "ModelConfig",
    "Usage",
    "ProviderAdapter",
    "ProviderRegistry",
    "ToolRegistry",
    "AgentCoreError",
    "ArgumentError",
    "ConfigError",
    "ProviderError",
    "ToolError",
    "ToolRetry",
    "Toolset",
    "McpHttp",
    "McpStdio",
    "StorageError",
    "SchemaError",
    "PermissionDeniedError",
    "TaskError",
    "ErrorCode",
    "ErrorPayload",
)

CODES = (
    "validation_error",
    "schema_error",
    "config_error",
    "permission_denied",
    "tool_not_available",
    "timeout",
    "cancelled",
    "internal_error",
    "max_turns",
    "max_output_tokens",
    "output_invalid",
    "budget_exceeded",
    "guard_stopped",
    "provider_error",
    "unsupported_capability",
    "provider_auth_failed",
    "provider_rate_limited",
    "provider_timeout",
    "prompt_too_long",
    "empty_reply",
    "content_filtered",
    "storage_error",
    "migration_failed",
    "session_active",
    "session_elsewhere",
    "session_not_found",
    "node_not_found",
    "run_not_found",
    "run_ended",
    "artifact_not_found",
    "approval_not_found",
    "already_answered",
    "path_conflict",
    "file_not_found",
    "text_not_found",
    "ambiguous_edit",
    "patch_apply_failed",
    "patch_path_mismatch",
    "write_outside_allowed_roots",
    "invalid_agent_definition",
    "duplicate_agent_definition",
    "invalid_agent_override",
    "child_agent_limit_exceeded",
    "worker_busy",
    "worker_not_available",
    "worker_pool_busy",
    "task_not_found",
    "task_terminal",
    "task_not_dispatchable",
    "task_not_completable",
    "dependency_cycle",
    "step_not_found",
    "step_not_ready",
    "step_already_claimed",
    "step_already_claimed_by_run",
    "step_has_dependents",
    "step_not_cancellable",
    "no_step_claimed",
    "task_wal_unavailable",
    "memory_recall_failed",
    "memory_write_failed",
    "skill_not_found",
    "skill_load_failed",
    "hook_failed",
    "mcp_server_failed",
    "tool_error",
)


def test_a1_every_stable_name_can_be_imported_and_nothing_else_is_promised() -> None:
    assert sorted(agent_core.__all__) == sorted(STABLE)
    for name in STABLE:
        assert getattr(agent_core, name) is not None


def test_importing_the_package_loads_neither_adapters_nor_extras() -> None:
    heavy = ("httptools", "mcp", "rich", "jsonschema", "xllamacpp", "sqlite3", "charset_normalizer")
    code = (
        "import sys, agent_core; from agent_core import AgentRuntime, tool;"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_is_an_attribute_error() -> None:
    name = "Nothing"
    with pytest.raises(AttributeError, match="Nothing"):
        _ = getattr(agent_core, name)


def boundary_types() -> list[type[BaseModel]]:
    found = (getattr(agent_core, name) for name in STABLE)
    return [each for each in found if isinstance(each, type) and issubclass(each, BaseModel)]


@together("kind", boundary_types(), ids=lambda kind: kind.__name__)
def test_a3_an_unknown_field_is_refused(kind: type[BaseModel]) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate({"no_such_field": 1})
    assert "no_such_field" in {str(error["loc"][0]) for error in caught.value.errors()}


@together("kind", Frozen.__subclasses__(), ids=lambda kind: kind.__name__)
def test_shared_types_are_strict_about_fields_and_do_not_change(kind: type[BaseModel]) -> None:
    assert kind.model_config.get("extra") == "forbid"
    assert kind.model_config.get("frozen") is True


def test_a4_the_error_codes_are_complete() -> None:
    assert sorted(ErrorCode) == sorted(CODES)


@together(
    "kind",
    [
        agent_core.AgentCoreError,
        agent_core.ConfigError,
        agent_core.ProviderError,
        agent_core.StorageError,
        agent_core.SchemaError,
        agent_core.ToolError,
        agent_core.PermissionDeniedError,
        agent_core.TaskError,
    ],
)
def test_every_error_carries_code_message_and_details(kind: Any) -> None:
    error = kind("timeout", "it took too long", retryable=True, details={"seconds": 3})
    assert (error.code, str(error), error.retryable) == (
        ErrorCode.TIMEOUT,
        "it took too long",
        True,
    )
    assert error.details == {"seconds": 3}


def test_making_a_runtime_loads_nothing_that_only_a_run_needs() -> None:
    program = (
        "import json, sys; from agent_core import AgentRuntime; AgentRuntime();"
        " print(json.dumps(sorted({n.split('.')[1] for n in sys.modules if '.' in n"
        " and n.startswith('agent_core.')})))"
    )
    done = subprocess.run(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    known = {"aio", "api", "errors", "keywords", "loading", "runtime", "text", "types"}
    assert set(json.loads(done.stdout)) <= known


def test_a_run_without_tools_loads_nothing_of_what_it_does_not_do(
    home: Home, project: Path
) -> None:
    program = f"""
import asyncio, json, sys
from agent_core import AgentRuntime
from agent_core.providers.scripted import ScriptedProvider

async def main():
    runtime = AgentRuntime({str(project)!r})
    runtime.register_provider("custom", lambda _: ScriptedProvider(["done"]))
    async with runtime:
        assert await (await runtime.start("hello")).wait() == "completed"

asyncio.run(main())
print(json.dumps(sorted(sys.modules)))
"""
    home.write_config('[model]\nprovider = "custom"\nname = "scripted"\n')
    done = subprocess.run(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    of_other_runs = {
        "agent_core.agents.orchestrator",
        "agent_core.compact.compactor",
        "agent_core.compact.kept",
        "agent_core.hooks",
        "agent_core.mcp",
        "agent_core.memory.extraction",
        "agent_core.permissions.addresses",
        "agent_core.runtime.mentions",
        "agent_core.tasks",
        "agent_core.tools.declarative",
        "agent_core.tools.deferred",
        "agent_core.types.answers",
        "agent_core.types.approvals",
        "agent_core.types.questions",
        "agent_core.types.workspace",
        "aiohttp",
        "difflib",
        "jsonschema",
        "mcp",
        "yaml",
    }
    assert of_other_runs & set(json.loads(done.stdout)) == set()


def test_pythons_own_errors_name_the_class_that_programs_use() -> None:
    methods = [getattr(AgentRuntime, name) for name in dir(AgentRuntime) if name[0] != "_"]
    functions = [each for each in methods if inspect.isfunction(each)]
    assert len(functions) > 50
    for each in functions:
        assert inspect.unwrap(each).__qualname__ == f"AgentRuntime.{each.__name__}"
