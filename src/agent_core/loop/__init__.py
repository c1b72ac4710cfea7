"""The agent loop. Read `run.py` first; it is one page."""

from agent_core.aio import to_the_end
from agent_core.loop.assembly import NullCollaborators, StandaloneRun, build_run
from agent_core.loop.context import (
    BuiltRequest,
    Compactor,
    ContextSource,
    Guard,
    History,
    RunContext,
    RunLimits,
)
from agent_core.loop.outcome import Outcome, RunStats, error_payload, settle
from agent_core.loop.run import conclude, converse, run_agent

__all__ = [
    "BuiltRequest",
    "Compactor",
    "ContextSource",
    "Guard",
    "History",
    "NullCollaborators",
    "Outcome",
    "RunContext",
    "RunLimits",
    "RunStats",
    "StandaloneRun",
    "build_run",
    "conclude",
    "converse",
    "error_payload",
    "run_agent",
    "settle",
    "to_the_end",
]
