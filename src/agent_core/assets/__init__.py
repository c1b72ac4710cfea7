"""The texts shipped with the program: prompts, agents, templates. Code never holds a prompt."""

from agent_core.assets.front_matter import FrontMatter, parse_front_matter, read_fields
from agent_core.assets.load import (
    AGENT_IDS,
    REQUIRED_ASSETS,
    SYSTEM_IDS,
    check_assets,
    load_asset,
    load_schemas,
)

__all__ = [
    "AGENT_IDS",
    "REQUIRED_ASSETS",
    "SYSTEM_IDS",
    "FrontMatter",
    "check_assets",
    "load_asset",
    "load_schemas",
    "parse_front_matter",
    "read_fields",
]
