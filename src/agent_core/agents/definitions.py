"""The kinds of agents there are: built in, written by the user, registered by a program.

An id has one meaning. Whoever gives it another one says so with `overrides: "<source>:<id>"`, and
replaces the whole definition.
"""

from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agent_core.assets import AGENT_IDS, FrontMatter, load_asset, parse_front_matter
from agent_core.config.models import Config
from agent_core.config.profiles import Profile, resolve_model
from agent_core.errors import ConfigError, ErrorCode, ToolError
from agent_core.tools.schema import json_path
from agent_core.types import AgentDefinition, AgentSource

COMPACT_ID = "default_compact_agent"
MAX_DEFINITION_BYTES = 262_144

_FIELDS = ("id", "name", "description", "model_profile", "suggested_tools", "tags", "overrides")
_MAY_OVERRIDE = {
    AgentSource.BUILTIN: frozenset[AgentSource](),
    AgentSource.USER: frozenset({AgentSource.BUILTIN}),
    AgentSource.CODE: frozenset({AgentSource.BUILTIN, AgentSource.USER}),
}


class AgentDefinitions:
    """Every definition, by source and id. What a program registers may come before the rest.

    A registry is `open` once the user's files have been read: until then what a program
    registers is kept, and checked against the files when they are there.
    """

    def __init__(self) -> None:
        self._by_source: dict[AgentSource, dict[str, AgentDefinition]] = {
            source: {} for source in AgentSource
        }
        for definition in _built_in():
            self._by_source[AgentSource.BUILTIN][definition.agent_definition_id] = definition
        self._is_open = False

    def register(self, definition: AgentDefinition, source: AgentSource | str = "code") -> None:
        """Add a definition of the program's.

        Raises:
            ConfigError: `duplicate_agent_definition`, `invalid_agent_override`, or
                `invalid_agent_definition` (another source than `code`).
        """
        if source != AgentSource.CODE:
            message = f"a program registers agent definitions with source 'code', not {source!r}"
            raise ConfigError(ErrorCode.INVALID_AGENT_DEFINITION, message)
        self._add(definition.model_copy(update={"source": AgentSource.CODE}), "registered in code")
        if self._is_open:
            try:
                self._check_override(definition, AgentSource.CODE, "registered in code")
            except ConfigError:
                del self._by_source[AgentSource.CODE][definition.agent_definition_id]
                raise

    def open(self, home: Path) -> None:
        """Read `<home>/agents/*.md`, and hold all definitions against each other.

        Raises:
            ConfigError: `invalid_agent_definition`, `duplicate_agent_definition` or
                `invalid_agent_override`, naming the file.
        """
        self._by_source[AgentSource.USER] = {}
        places: dict[str, str] = {}
        for path in _files(home / "agents"):
            definition = read_definition(path)
            self._add(definition, str(path), other=places.get(definition.agent_definition_id))
            places[definition.agent_definition_id] = str(path)
        for source in (AgentSource.USER, AgentSource.CODE):
            for definition in self._by_source[source].values():
                place = places.get(definition.agent_definition_id, "registered in code")
                place = place if source is AgentSource.USER else "registered in code"
                self._check_override(definition, source, place)
        self._is_open = True

    def get(self, definition_id: str) -> AgentDefinition:
        """The definition that this id means now.

        Raises:
            ToolError: `validation_error`, naming the ones there are.
        """
        if found := self.find(definition_id):
            return found
        known = ", ".join(sorted(each.agent_definition_id for each in self.listed()))
        message = f"there is no agent definition {definition_id}; there are: {known}"
        details = {"path": "$.agent_definition_id"}
        raise ToolError(ErrorCode.VALIDATION_ERROR, message, details=details)

    def find(self, definition_id: str) -> AgentDefinition | None:
        """The definition that this id means now, if there is one anybody may use."""
        if definition_id == COMPACT_ID:
            return None
        for source in reversed(AgentSource):
            if found := self._by_source[source].get(definition_id):
                return found
        return None

    def listed(self) -> list[AgentDefinition]:
        """What can be used, by id; the agent that compacts is nobody's to use."""
        ids = {each for table in self._by_source.values() for each in table}
        return [found for each in sorted(ids) if (found := self.find(each))]

    @property
    def compact(self) -> AgentDefinition:
        """The internal definition of the agent that summarises."""
        return self._by_source[AgentSource.BUILTIN][COMPACT_ID]

    def profiles(self) -> Iterator[Profile]:
        """The model profiles of all definitions: what they name may hold secrets."""
        return (each.model_profile for each in self.listed())

    def _add(self, definition: AgentDefinition, place: str, *, other: str | None = None) -> None:
        table, key = self._by_source[definition.source], definition.agent_definition_id
        if key in table:
            also = f" and in {other}" if other else ""
            raise _refused(
                ErrorCode.DUPLICATE_AGENT_DEFINITION,
                f"the agent definition {key} is there twice: {place}{also}; "
                "nothing overrides within one source, so rename or remove one",
                key,
            )
        table[key] = definition

    def _check_override(self, definition: AgentDefinition, source: AgentSource, place: str) -> None:
        key = definition.agent_definition_id
        taken = [s for s in _MAY_OVERRIDE[source] if key in self._by_source[s]]
        if definition.overrides is None:
            if taken:
                target = f"{max(taken, key=list(AgentSource).index)}:{key}"
                raise _refused(
                    ErrorCode.DUPLICATE_AGENT_DEFINITION,
                    f"the agent definition {key} ({place}) has the id of {target}; "
                    f'take another id, or say overrides: "{target}"',
                    key,
                )
            return
        named, _, target_id = definition.overrides.partition(":")
        if target_id != key or named not in taken or key == COMPACT_ID:
            raise _refused(
                ErrorCode.INVALID_AGENT_OVERRIDE,
                f"the agent definition {key} ({place}) overrides {definition.overrides!r}, "
                f'which it cannot: it must be "<source>:{key}" of a definition that is there',
                key,
            )


def check_definition(
    definition: AgentDefinition, config: Config, tool_names: Collection[str]
) -> None:
    """Return if the definition fits the configuration and the tools there are.

    A server's tools (`mcp.*`) are known only when it has answered, so any name is taken for them.

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
        raise _refused(ErrorCode.INVALID_AGENT_DEFINITION, message + ", ".join(unknown), key)
    try:
        resolve_model(config, definition.model_profile)
    except ConfigError as error:
        message = f"the agent definition {key} has a model profile that cannot be used: "
        raise _refused(ErrorCode.INVALID_AGENT_DEFINITION, message + error.message, key) from error


def read_definition(path: Path) -> AgentDefinition:
    """Read a user's file: front matter, and the agent's instructions below it.

    Raises:
        ConfigError: `invalid_agent_definition`, naming the file and what is wrong.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_DEFINITION_BYTES + 1)
        if len(raw) > MAX_DEFINITION_BYTES:
            raise ValueError(f"it is larger than {MAX_DEFINITION_BYTES:,} bytes")
        return _parsed(parse_front_matter(raw.decode()))
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        reason = f"{json_path(wrong['loc']).removeprefix('$.')}: {wrong['msg']}"
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    except (OSError, ValueError) as error:
        reason = str(error)
    message = f"the agent definition {path} cannot be used: {reason}"
    raise ConfigError(
        ErrorCode.INVALID_AGENT_DEFINITION, message, details={"path": str(path)}
    ) from None


def _parsed(taken_apart: FrontMatter) -> AgentDefinition:
    fields = taken_apart.fields
    if taken_apart.problem:
        raise ValueError(taken_apart.problem)
    if missing := [name for name in ("id", "name", "description") if not fields.get(name)]:
        raise ValueError(f"its front matter needs {', '.join(missing)}")
    if unknown := sorted(fields.keys() - set(_FIELDS)):
        raise ValueError(f"its front matter has unknown keys: {', '.join(unknown)}")
    given: dict[str, Any] = {key: value for key, value in fields.items() if value is not None}
    return AgentDefinition(
        agent_definition_id=given.pop("id"),
        body=taken_apart.body.strip(),
        source=AgentSource.USER,
        **given,
    )


@cache
def _built_in() -> tuple[AgentDefinition, ...]:
    definitions: list[AgentDefinition] = []
    for asset_id in AGENT_IDS:
        asset = load_asset(asset_id)
        definitions.append(
            AgentDefinition(
                agent_definition_id=asset.fields["id"],
                name=asset.fields["name"],
                description=asset.fields["description"],
                body=asset.text,
                source=AgentSource.BUILTIN,
            )
        )
    return tuple(definitions)


def _files(folder: Path) -> Iterable[Path]:
    try:
        return sorted(path for path in folder.glob("*.md") if not path.name.startswith("."))
    except OSError:
        return []


def _refused(code: ErrorCode, message: str, definition_id: str) -> ConfigError:
    return ConfigError(code, message, details={"agent_definition_id": definition_id})
