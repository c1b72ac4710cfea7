"""Find a packaged text by its id, once; check at the start that all of them exist."""

import json
from contextlib import suppress
from functools import cache
from pathlib import Path

from msgspec import Struct

from agent_core.errors import ConfigError, ErrorCode
from agent_core.opening import read_text
from agent_core.text.json_text import JsonObject

SYSTEM_IDS = (
    "system.core",
    "system.tool_protocol",
    "system.todo",
    "system.permissions",
    "system.multi_agent",
    "system.memory",
    "system.instruction_catalog",
)
"""Parts of the static system prompt, in their order."""

_OTHER_IDS = (
    # texts around dynamic blocks
    "system.agent_definition",
    "system.skill_catalog",
    "system.memory_catalog",
    "system.tool_catalog",
    "system.mcp_servers",
    "system.runtime_state",
    # instructions for model calls outside runs: summaries, extraction and recall of memories
    "system.compact_history",
    "system.compact_turn",
    "system.compact_focus",
    "system.memory_extraction",
    "system.memory_recall",
    # messages of chat commands
    "chat.init",
)

AGENT_IDS = (
    "agent.default_sub_agent",
    "agent.default_fork_agent",
    "agent.default_worker_agent",
    "agent.default_compact_agent",
)

_TEMPLATES = {
    "template.plan.default": "templates/plan_template.md",
    "template.task_dag.default": "templates/task_template.md",
    "template.config.default": "templates/config_default.toml",
}

REQUIRED_ASSETS = (*SYSTEM_IDS, *_OTHER_IDS, *AGENT_IDS, *_TEMPLATES)


class Asset(Struct, frozen=True):
    """A packaged text.

    Attributes:
        asset_id: `system.core`, `template.plan.default`, `agent.default_sub_agent`, …
        text: the text without its head and without blank lines around it.
        fields: the head's `key: value` lines: `name`, `description`, `template_version`, …
    """

    asset_id: str
    text: str
    fields: dict[str, str]

    @property
    def version(self) -> str:
        """The template's version, recorded with every node made from it."""
        return self.fields.get("template_version", "1")


@cache
def load_asset(asset_id: str) -> Asset:
    """Read a packaged text; results are cached.

    Raises:
        ConfigError: there is no such text, or it is empty: the installation is broken.
    """
    kind, _, name = asset_id.partition(".")
    folder = {"system": "prompts/system", "chat": "prompts/chat", "agent": "agents"}.get(kind)
    place = f"{folder}/{name}.md" if folder else _TEMPLATES.get(asset_id, asset_id)
    text, head = "", ""
    with suppress(OSError, ValueError):
        text = read_text(Path(__file__).parent / place)
    if place.endswith(".md") and text.startswith("---\n"):
        # Our own heads have one `key: value` a line, so that no YAML parser has to be loaded.
        head, _, text = text[4:].partition("\n---\n")
    if not text.strip():
        message = f"the packaged text {asset_id} ({place}) is missing or empty"
        raise ConfigError(ErrorCode.CONFIG_ERROR, f"{message}; install soong-agent again")
    pairs = (line.partition(":") for line in head.splitlines())
    return Asset(asset_id, text.strip(), {key.strip(): value.strip() for key, _, value in pairs})


@cache
def load_schemas() -> dict[str, JsonObject]:
    """Return the schemas of built-in tools by the full name of the type of their arguments.

    Tools that most runs have are described too, by their names: their modules are loaded for calls.
    `make reference` writes them; to build the types and their schemas takes a tenth of a start.
    """
    return json.loads(read_text(Path(__file__).parent / "tool_schemas.json"))


def check_assets() -> None:
    """Check at the start, rather than in the middle of a run, that the package is complete.

    Raises:
        ConfigError: names the first text that is missing or empty.
    """
    for asset_id in REQUIRED_ASSETS:
        load_asset(asset_id)
