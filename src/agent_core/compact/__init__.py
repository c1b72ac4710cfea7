"""Long histories made short: when, where to cut, what is carried over, one summary.

Nothing here runs a model: `Compactor` asks through `Summarise`, which the runtime implements with
an ordinary run of the compact agent.
"""

from agent_core.compact.compactor import Compaction, Compactor, Limits, Summarise, summary_of
from agent_core.compact.cut import CompactPolicy, Cut, choose_cut, is_prefix, visible_tokens
from agent_core.compact.kept import (
    KeptFacts,
    collect_kept,
    fit_kept,
    render_kept,
    rule_statements,
)
from agent_core.compact.transcript import render_transcript, split_transcript

__all__ = [
    "CompactPolicy",
    "Compaction",
    "Compactor",
    "Cut",
    "KeptFacts",
    "Limits",
    "Summarise",
    "choose_cut",
    "collect_kept",
    "fit_kept",
    "is_prefix",
    "render_kept",
    "render_transcript",
    "rule_statements",
    "split_transcript",
    "summary_of",
    "visible_tokens",
]
