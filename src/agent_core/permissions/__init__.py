"""Permission of calls: the policy, the user's answers, and the grants of a session."""

from agent_core.permissions.guard import PermissionGuard
from agent_core.permissions.questions import PermissionCallback, UnattendedError

__all__ = ["PermissionCallback", "PermissionGuard", "UnattendedError"]
