"""The user's own commands at fixed points of a run. They may refuse; they never rewrite."""

from agent_core.hooks.config import HookEvent, HookFile, load_hooks
from agent_core.hooks.points import HookJournal, RunHooks
from agent_core.hooks.runner import HookRunner

__all__ = ["HookEvent", "HookFile", "HookJournal", "HookRunner", "RunHooks", "load_hooks"]
