"""Definitions of agents: built in, written by the user, or registered by a program.

An id has one meaning. A definition that gives it another meaning names the former one as
`overrides: "<source>:<id>"` and replaces it as a whole.
"""

from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agent_core.assets import AGENT_IDS, FrontMatter, load_asset, parse_front_matter
from agent_core.config.load import Profile, resolve_model
from agent_core.config.models import Config
from agent_core.errors import ConfigError, ErrorCode, ToolError
from agent_core.opening import read_text_file
from agent_core.tools.schema import json_path
from agent_core.types import AgentDefinition, AgentSource
from agent_core.types.fields import fault_in_words

COMPACT_ID = "default_compact_agent"
MAX_DEFINITION_BYTES = 262_144

_FIELDS = ("id", "name", "description", "model_profile", "suggested_tools", "tags", "overrides")
_MAY_OVERRIDE = {
    AgentSource.USER: (AgentSource.BUILTIN,),
    AgentSource.CODE: (AgentSource.BUILTIN, AgentSource.USER),
}


class AgentDefinitions:
    """All definitions, by source and id.

    Args:
        home: the folder whose `agents/*.md` are read.
        registered: definitions that a program has registered before.

    Raises:
        ConfigError: `invalid_agent_definition`, `duplicate_agent_definition` or
            `invalid_agent_override`, naming the file.
    """

    def __init__(self, home: Path, registered: Iterable[AgentDefinition] = ()) -> None:
        self._by_source: dict[AgentSource, dict[str, AgentDefinition]] = {
            source: {} for source in AgentSource
        }
        self._places: dict[str, Path] = {}
        for definition in _load_built_in():
            self._by_source[AgentSource.BUILTIN][definition.agent_definition_id] = definition
        for path in _files(home / "agents"):
            self._add(read_definition(path), path)
        for definition in registered:
            self.register(definition)

    def register(self, definition: AgentDefinition) -> None:
        """Add a definition of the program.

        Raises:
            ConfigError: `duplicate_agent_definition`, `invalid_agent_override`.
        """
        self._add(definition.model_copy(update={"source": AgentSource.CODE}), None)

    def get(self, definition_id: str, agents: Iterable[str] = ()) -> AgentDefinition:
        """Return the definition that this id currently means.

        Args:
            definition_id: the id.
            agents: names of agents that are no definitions and could have been meant.

        Raises:
            ToolError: `validation_error`, naming the existing definitions.
        """
        if found := self.find(definition_id):
            return found
        ids = sorted(each.agent_definition_id for each in self.listed())
        known = ", ".join([*agents, *ids])
        message = f"there is no agent definition {definition_id}; there are: {known}"
        details = {"path": "$.agent_definition_id"}
        raise ToolError(ErrorCode.VALIDATION_ERROR, message, details=details)

    def find(self, definition_id: str) -> AgentDefinition | None:
        """Return the definition that this id currently means, if it can be used."""
        if definition_id == COMPACT_ID:
            return None
        for source in reversed(AgentSource):
            if found := self._by_source[source].get(definition_id):
                return found
        return None

    def listed(self) -> list[AgentDefinition]:
        """Return the usable definitions, sorted by id; without the internal compacting agent."""
        ids = {each for table in self._by_source.values() for each in table}
        return [found for each in sorted(ids) if (found := self.find(each))]

    def file_of(self, definition: AgentDefinition) -> Path | None:
        """Return the file of a user's definition."""
        return self._places.get(definition.agent_definition_id)

    def profiles(self) -> Iterator[Profile]:
        """Return the model profiles of all definitions; the settings they name may be secret."""
        return (each.model_profile for each in self.listed())

    def _add(self, definition: AgentDefinition, path: Path | None) -> None:
        key, table = definition.agent_definition_id, self._by_source[definition.source]
        place = str(path) if path else "registered in code"
        if key in table:
            other = f" and in {self._places[key]}" if path else ""
            raise _build_refusal(
                ErrorCode.DUPLICATE_AGENT_DEFINITION,
                f"the agent definition {key} is there twice: {place}{other}; "
                "nothing overrides within one source, so rename or remove one",
                key,
            )
        self._check_override(definition, place)
        table[key] = definition
        if path:
            self._places[key] = path

    def _check_override(self, definition: AgentDefinition, place: str) -> None:
        key = definition.agent_definition_id
        below = [s for s in _MAY_OVERRIDE[definition.source] if key in self._by_source[s]]
        if definition.overrides is None:
            if below:
                target = f"{below[-1]}:{key}"
                raise _build_refusal(
                    ErrorCode.DUPLICATE_AGENT_DEFINITION,
                    f"the agent definition {key} ({place}) has the id of {target}; "
                    f'choose another id, or set overrides: "{target}"',
                    key,
                )
            return
        if key == COMPACT_ID or definition.overrides not in {f"{source}:{key}" for source in below}:
            raise _build_refusal(
                ErrorCode.INVALID_AGENT_OVERRIDE,
                f"the agent definition {key} ({place}) overrides {definition.overrides!r}, "
                f'which it cannot: it must be "<source>:{key}" of a definition that is there',
                key,
            )


def check_definition(
    definition: AgentDefinition, config: Config, tool_names: Collection[str]
) -> None:
    """Check that the definition fits the configuration and the available tools.

    The tools of a server (`mcp.*`) are known only after it has answered, so any such name is
    accepted.

    Raises:
        ConfigError: `invalid_agent_definition`: an unknown suggested tool or model profile.
    """
    key = definition.agent_definition_id
    unknown = [
        name
        for name in definition.suggested_tools
        if name not in tool_names and not name.startswith("mcp.")
    ]
    if unknown:
        message = f"the agent definition {key} suggests tools that do not exist: "
        raise _build_refusal(ErrorCode.INVALID_AGENT_DEFINITION, message + ", ".join(unknown), key)
    try:
        resolve_model(config, definition.model_profile)
    except ConfigError as error:
        message = f"the agent definition {key} has a model profile that cannot be used: "
        raise _build_refusal(
            ErrorCode.INVALID_AGENT_DEFINITION, message + error.message, key
        ) from error


def check_definitions(
    definitions: AgentDefinitions, config: Config, tool_names: Collection[str]
) -> None:
    """Check that all definitions fit, and that the definitions named in the configuration exist.

    Raises:
        ConfigError: `invalid_agent_definition`; `config_error` if a default does not exist.
    """
    for definition in definitions.listed():
        check_definition(definition, config, tool_names)
    for key in ("default_sub_agent_definition", "default_fork_agent_definition"):
        named: str = getattr(config.agents, key)
        if definitions.find(named) is None:
            message = f"agents.{key} names {named!r}, but there is no such agent definition"
            raise ConfigError(ErrorCode.CONFIG_ERROR, message, details={"key": f"agents.{key}"})


def read_definition(path: Path) -> AgentDefinition:
    """Read a user's file: front matter, followed by the agent's instructions.

    Raises:
        ConfigError: `invalid_agent_definition`, naming the file and the fault.
    """
    try:
        raw = read_text_file(path, MAX_DEFINITION_BYTES + 1)
        if len(raw) > MAX_DEFINITION_BYTES:
            raise ValueError(f"it is larger than {MAX_DEFINITION_BYTES:,} bytes")
        raw.decode()
        return _parse_definition(parse_front_matter(raw))
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        reason = fault_in_words(json_path(wrong["loc"]).removeprefix("$."), wrong)
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    except (OSError, ValueError) as error:
        reason = str(error)
    message = f"the agent definition {path} cannot be used: {reason}"
    raise ConfigError(
        ErrorCode.INVALID_AGENT_DEFINITION, message, details={"path": str(path)}
    ) from None


def _parse_definition(parts: FrontMatter) -> AgentDefinition:
    fields = parts.fields
    if parts.problem:
        raise ValueError(parts.problem)
    if missing := [name for name in ("id", "name", "description") if not fields.get(name)]:
        raise ValueError(f"its front matter needs {', '.join(missing)}")
    if unknown := sorted(fields.keys() - set(_FIELDS)):
        raise ValueError(f"its front matter has unknown keys: {', '.join(unknown)}")
    given: dict[str, Any] = {key: value for key, value in fields.items() if value is not None}
    return AgentDefinition.model_validate(
        {
            "agent_definition_id": given.pop("id"),
            "body": parts.body.strip(),
            "source": AgentSource.USER,
            **given,
        }
    )


@cache
def _load_built_in() -> tuple[AgentDefinition, ...]:
    return tuple(
        AgentDefinition.of_checked(
            agent_definition_id=asset.fields["id"],
            name=asset.fields["name"],
            description=asset.fields["description"],
            body=asset.text,
            model_profile=None,
            suggested_tools=[],
            tags=[],
            overrides=None,
            source=AgentSource.BUILTIN,
            metadata={},
        )
        for asset in map(load_asset, AGENT_IDS)
    )


def load_compact_definition() -> AgentDefinition:
    """Return the internal definition of the summarising agent; it is not listed or overridden."""
    return next(each for each in _load_built_in() if each.agent_definition_id == COMPACT_ID)


def _files(folder: Path) -> Iterable[Path]:
    try:
        return sorted(path for path in folder.glob("*.md") if not path.name.startswith("."))
    except OSError:
        return []


def _build_refusal(code: ErrorCode, message: str, definition_id: str) -> ConfigError:
    return ConfigError(code, message, details={"agent_definition_id": definition_id})
