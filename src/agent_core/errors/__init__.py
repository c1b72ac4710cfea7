"""Every error the core raises on purpose, and the code each one carries."""

from agent_core.errors.codes import ErrorCode
from agent_core.errors.exceptions import (
    AgentCoreError,
    ConfigError,
    PermissionDeniedError,
    ProviderError,
    SchemaError,
    StorageError,
    TaskError,
    ToolError,
)

__all__ = [
    "AgentCoreError",
    "ConfigError",
    "ErrorCode",
    "PermissionDeniedError",
    "ProviderError",
    "SchemaError",
    "StorageError",
    "TaskError",
    "ToolError",
]
