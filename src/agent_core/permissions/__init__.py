"""Permission of calls: the policy, the user's answers, and the grants of a session."""

from agent_core.permissions.answers import PermissionCallback, UnattendedError
from agent_core.permissions.gate import PermissionGate

__all__ = ["PermissionCallback", "PermissionGate", "UnattendedError"]
