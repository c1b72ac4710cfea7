"""Long histories made short: when, where to cut, what core carries over, one summary.

Nothing here runs a model. `Compactor` asks a `CompactRunner`, which the runtime implements with an
ordinary run of the compact agent.
"""

from collections.abc import Sequence

from agent_core.compact.answer import summary_of
from agent_core.compact.compactor import Compaction, Compactor, CompactRunner, Limits
from agent_core.compact.cut import Cut, choose_cut, visible_tokens
from agent_core.compact.kept import Kept, collect_kept, fitted, rendered
from agent_core.compact.policy import CompactPolicy
from agent_core.compact.rules import rule_statements
from agent_core.types import Node

__all__ = [
    "CompactPolicy",
    "CompactRunner",
    "Compaction",
    "Compactor",
    "Cut",
    "Kept",
    "Limits",
    "choose_cut",
    "collect_kept",
    "fitted",
    "is_prefix",
    "rendered",
    "rule_statements",
    "summary_of",
    "visible_tokens",
]


def is_prefix(covered: Sequence[Node], path: Sequence[Node]) -> bool:
    """Whether a path still begins with what was summarised; in a tree its last node says it."""
    place = len(covered) - 1
    return place < len(path) and covered[place].node_id == path[place].node_id
