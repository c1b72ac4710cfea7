"""The user's own commands at fixed points of a run. They may refuse a call, but never change it."""

from agent_core.hooks.file import load_hooks
from agent_core.hooks.run_hooks import HookRunner, RunHooks

__all__ = ["HookRunner", "RunHooks", "load_hooks"]
