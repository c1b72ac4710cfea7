"""Whether a call may run: the policy, the user's answers, and what was allowed for a session."""

from agent_core.permissions.guard import PermissionGuard
from agent_core.permissions.questions import PermissionCallback, UnattendedError

__all__ = ["PermissionCallback", "PermissionGuard", "UnattendedError"]
