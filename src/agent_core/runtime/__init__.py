"""The composition root: what a runtime is made of, and who runs when."""

from agent_core.runtime.factory import Parts
from agent_core.runtime.scheduler import Run, Scheduler
from agent_core.runtime.services import Services, open_services

__all__ = ["Parts", "Run", "Scheduler", "Services", "open_services"]
