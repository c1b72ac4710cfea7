"""The agent loop. Read `run.py` first; it is one page."""

from agent_core.loop.context import (
    BuiltRequest,
    Compactor,
    ContextSource,
    Guard,
    RunContext,
    RunLimits,
)
from agent_core.loop.outcome import Outcome, error_payload, settle
from agent_core.loop.run import run_agent

__all__ = [
    "BuiltRequest",
    "Compactor",
    "ContextSource",
    "Guard",
    "Outcome",
    "RunContext",
    "RunLimits",
    "error_payload",
    "run_agent",
    "settle",
]
