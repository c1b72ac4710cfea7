"""Find a packaged text by its id, once; and make sure at the start that all of them are there."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from agent_core.errors import ConfigError, ErrorCode

SYSTEM_IDS = (
    "system.core",
    "system.tool_protocol",
    "system.todo",
    "system.permissions",
    "system.multi_agent",
    "system.memory",
    "system.instruction_catalog",
)
"""The static system prompt, in its order."""

FRAME_IDS = (
    "system.agent_definition",
    "system.skill_catalog",
    "system.memory_catalog",
    "system.runtime_state",
)
"""The words around dynamic blocks."""

JOB_IDS = (
    "system.compact_history",
    "system.compact_turn",
    "system.memory_extraction",
    "system.memory_recall",
)
"""What the models behind the scenes are told: to summarise, to remember, to choose memories."""

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

REQUIRED_ASSETS = (*SYSTEM_IDS, *FRAME_IDS, *JOB_IDS, *AGENT_IDS, *_TEMPLATES)


@dataclass(frozen=True, slots=True)
class Asset:
    """A packaged text.

    Attributes:
        asset_id: `system.core`, `template.plan.default`, `agent.default_sub_agent`, …
        text: without its head, stripped of blank lines around it.
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
    """Read a packaged text; the second time it costs nothing.

    Raises:
        ConfigError: there is no such text, or it is empty: the installation is broken.
    """
    place = _place(asset_id)
    try:
        raw = files("agent_core.assets").joinpath(place).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _broken(asset_id, place) from error
    head, text = _split(raw) if place.endswith(".md") else ({}, raw)
    if not text.strip():
        raise _broken(asset_id, place)
    return Asset(asset_id, text.strip(), head)


def check_assets() -> None:
    """Fail at the start, not in the middle of a run, if the package is incomplete.

    Raises:
        ConfigError: naming the first text that is missing or empty.
    """
    for asset_id in REQUIRED_ASSETS:
        load_asset(asset_id)


def _place(asset_id: str) -> str:
    kind, _, name = asset_id.partition(".")
    if kind == "system":
        return f"prompts/system/{name}.md"
    if kind == "agent":
        return f"agents/{name}.md"
    return _TEMPLATES.get(asset_id, asset_id)


def _split(raw: str) -> tuple[dict[str, str], str]:
    """Take our own heads apart: one `key: value` a line, so that no YAML parser is loaded."""
    if not raw.startswith("---\n"):
        return {}, raw
    head, _, text = raw[4:].partition("\n---\n")
    pairs = (line.partition(":") for line in head.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}, text


def _broken(asset_id: str, place: str) -> ConfigError:
    message = (
        f"the packaged text {asset_id} ({place}) is missing or empty; install soong-agent again"
    )
    return ConfigError(ErrorCode.CONFIG_ERROR, message)
