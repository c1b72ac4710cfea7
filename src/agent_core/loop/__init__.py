"""The agent loop. Read `run.py` first; it is one page."""

from agent_core.loop.assembly import StandaloneRun, build_run
from agent_core.loop.context import (
    ContextSource,
    HistorySource,
    NoHistory,
    Outcome,
    PathCompactor,
    ResumePoint,
    RunContext,
    RunLimits,
    RunStats,
    settle,
)
from agent_core.loop.inbox import MESSAGE_ID, Inbox
from agent_core.loop.model_turn import require_whole, stream_reply
from agent_core.loop.run import conclude, converse, run_agent, settle_parked

__all__ = [
    "MESSAGE_ID",
    "ContextSource",
    "HistorySource",
    "Inbox",
    "NoHistory",
    "Outcome",
    "PathCompactor",
    "ResumePoint",
    "RunContext",
    "RunLimits",
    "RunStats",
    "StandaloneRun",
    "build_run",
    "conclude",
    "converse",
    "require_whole",
    "run_agent",
    "settle",
    "settle_parked",
    "stream_reply",
]
