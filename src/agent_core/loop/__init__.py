"""The agent loop. Read `run.py` first; it is one page."""

from agent_core.loop.assembly import NullCollaborators, StandaloneRun, build_run
from agent_core.loop.context import (
    BuiltRequest,
    Compactor,
    ContextSource,
    Guard,
    History,
    OpenRun,
    RunContext,
    RunLimits,
)
from agent_core.loop.model_turn import stream_reply
from agent_core.loop.outcome import Outcome, RunStats, settle
from agent_core.loop.run import conclude, converse, run_agent

__all__ = [
    "BuiltRequest",
    "Compactor",
    "ContextSource",
    "Guard",
    "History",
    "NullCollaborators",
    "OpenRun",
    "Outcome",
    "RunContext",
    "RunLimits",
    "RunStats",
    "StandaloneRun",
    "build_run",
    "conclude",
    "converse",
    "run_agent",
    "settle",
    "stream_reply",
]
