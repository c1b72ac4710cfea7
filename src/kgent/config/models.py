"""The types of a profile: every section and key with its default."""

import math
import re
from collections.abc import Iterable
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from agent_core.config.model_names import model_fields
from agent_core.config.models import (
    BudgetConfig,
    Bytes,
    Count,
    PriceConfig,
    Tokens,
    VariableName,
)
from agent_core.config.section import Section
from agent_core.config.services import provider_named, public_service
from agent_core.text.json_text import JsonObject
from agent_core.types.options import Temperature
from kgent.errors import LONGEST_NAME, expand_home

DELIVERABLES = "deliverables"
SQLITE = "sqlite:"
"""The prefix of a memory provider that is a database; the file name follows it."""
DEFAULT_SANDBOX = "runs/{run_id}"
SANDBOX_PLACEHOLDERS = ("{session_id}", "{task_id}", "{run_id}")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]")


def _require_short_names(parts: Iterable[str]) -> None:
    """Refuse a path with a name that is too long for a file system.

    Raises:
        ValueError: it has one.
    """
    if any(len(part.encode("utf-8", "replace")) > LONGEST_NAME for part in parts):
        raise ValueError(f"has a name in it of more than {LONGEST_NAME} bytes")


Lines = Annotated[list[str], BeforeValidator(lambda it: [it] if isinstance(it, str) else it)]
"""A list of texts; a single text may be given without a list."""


SecretName = Annotated[VariableName, Field(min_length=1)]


Seconds = Annotated[float, Field(gt=0, le=604_800)]


def _as_written(value: object) -> object:
    """Return a number or a date as the text that is written in the file."""
    is_written = isinstance(value, int | float | date) and not isinstance(value, bool)
    return str(value) if is_written else value


class KgentMetaConfig(Section):
    """Information about the profile itself."""

    schema_version: Literal[1]
    name: str | None = None
    version: Annotated[str, BeforeValidator(_as_written)] | None = None


class ModelConfig(Section):
    """The model, and the name of the environment variable that holds its key.

    A string, here or as `name` without a `provider`, gives provider and model: `openai:gpt-5`, with
    the address of another server after an `@`. Without `api_key_env` the key of a public service is
    read from its usual variable, and no other server gets a key.

    `path` is the model file of provider `local`, or the script of provider `scripted` and of the
    `mock` engine; relative to the profile. `fallbacks` are models that are tried, in order, when a
    model fails before it has answered.
    """

    provider: str | None = Field(default=None, min_length=1)
    name: str | None = Field(default=None, min_length=1)
    base_url: str | None = None
    api_key_env: VariableName | None = None
    path: str | None = Field(default=None, min_length=1)
    context_window: Tokens = 32_768
    max_output_tokens: Tokens = 4096
    temperature: Temperature | None = None
    price: PriceConfig = Field(default_factory=PriceConfig)
    fallbacks: list["ModelConfig"] = []

    @property
    def key_variable(self) -> str | None:
        """The environment variable that holds the key; None, or empty, if no key is sent."""
        if self.api_key_env is not None or self.provider is None:
            return self.api_key_env
        service = public_service(self.provider, self.base_url)
        return service.key if service else None

    @field_validator("fallbacks")
    @classmethod
    def _one_level(cls, value: "list[ModelConfig]") -> "list[ModelConfig]":
        for model in value:
            if not model.provider or not model.name:
                raise ValueError("must name provider and model, like openai:gpt-5")
            if model.fallbacks:
                raise ValueError("are tried in order; a fallback has no fallbacks of its own")
        return value

    @model_validator(mode="before")
    @classmethod
    def _read_string(cls, given: Any) -> Any:
        table = {"name": given} if isinstance(given, str) else given
        match table:
            case {"provider": str() as provider}:
                provider = provider_named(provider)
                service = public_service(provider, table.get("base_url"))
                key = service.key if service and service.is_compatible else None
                named = {"api_key_env": key} if key and table.get("api_key_env") is None else {}
                return {**table, **named, "provider": provider}
            case {"name": str() as name} if ":" in name or isinstance(given, str):
                table = {**table, **model_fields(name)}
                service = public_service(table["provider"], table.get("base_url"))
                if service is None:
                    return table
                window = service.window_of(table["name"])
                known = {} if window is None else {"context_window": window}
                return {"api_key_env": service.key, **known, **table}
            case _:
                return table


class ProfileConfig(Section):
    """The role of the agent and its instructions."""

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}$")
    role: str = Field(min_length=1, pattern=r"\S")
    responsibilities: Lines = []
    style: Lines = []
    constraints: Lines = []


ParameterValue = str | int | float | bool


ParameterName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]


class ParameterSpec(Section):
    """A parameter whose value is given with a run, and replaces `{{ name }}` in texts.

    It is required if it has no `default`, unless `required` is false. `value` is the value for one
    run; only a profile that was written by a run contains it.
    """

    type: Literal["string", "integer", "number", "boolean"] = "string"
    default: ParameterValue | None = None
    required: bool | None = None
    choices: list[ParameterValue] | None = Field(default=None, min_length=1)
    description: str = ""
    value: ParameterValue | None = None

    @property
    def is_required(self) -> bool:
        """Return whether a run has to provide a value."""
        return self.default is None if self.required is None else self.required

    @model_validator(mode="after")
    def _values_fit(self) -> Self:
        for value in (self.default, self.value, *(self.choices or ())):
            if value is not None and not has_parameter_type(value, self.type):
                raise ValueError(f"has a value that is not of its type, {self.type}")
        for value in (self.default, self.value):
            if value is not None and self.choices is not None and value not in self.choices:
                raise ValueError("has a value that is not one of its choices")
        if self.required and self.default is not None:
            raise ValueError("is required and has a default: leave out one of them")
        return self


def has_parameter_type(value: ParameterValue, kind: str) -> bool:
    """Return whether a value has the given type of parameter."""
    match kind:
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            is_number = not isinstance(value, bool | str)
            return is_number and math.isfinite(value)
        case "boolean":
            return isinstance(value, bool)
        case _:
            return isinstance(value, str)


class PathSpec(Section):
    """A path with options; a path alone stands for it without any."""

    model_config = ConfigDict(serialize_by_alias=True)

    path: str = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value


class InputSpec(PathSpec):
    """A file or folder that the run gets as `inputs/<name>`.

    The name is `as`, by default the last part of the path. An `optional` input may be missing.
    """

    name: str | None = Field(default=None, alias="as")
    optional: bool = False

    @field_validator("name")
    @classmethod
    def _inside(cls, value: str | None) -> str | None:
        path = PurePosixPath(value or "-")
        if value is not None and (value == "" or path.is_absolute() or path.parts == ()):
            raise ValueError("must be a path below inputs/, like data.csv")
        if ".." in path.parts or "\0" in str(path):
            raise ValueError("must be a path below inputs/, without '..'")
        _require_short_names(path.parts)
        return None if value is None else str(path)


class SkillsConfig(Section):
    """The folders of skills, and the skills that the run can use.

    `paths` are folders of skills, or skills themselves. `enabled` lists ids; without it (or with
    `true`) every skill found can be used, with `false` none.
    """

    paths: Lines = []
    enabled: list[str] | None = None

    @field_validator("enabled", mode="before")
    @classmethod
    def _all_or_none(cls, value: object) -> object:
        if isinstance(value, bool):
            return None if value else []
        return value


class FilesystemConfig(Section):
    """Access to files in the run folder."""

    enabled: bool = True
    write: bool = True
    delete: bool = False
    max_file_bytes: Bytes = 200_000


class ShellConfig(Section):
    """Programs that may be run, listed by name."""

    enabled: bool = False
    allowed_commands: list[str] = []


class McpServerSpec(Section):
    """An MCP server, and the names of its tools that the model gets.

    The server is started (`command`) or reached over HTTP (`url`). Secrets come from the
    environment: `env` (variables for the process), `headers` and `api_key_env` (a bearer token)
    contain names of variables.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")
    tools: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    command: str | None = Field(default=None, min_length=1)
    args: list[str] = []
    env: dict[str, SecretName] = {}
    cwd: str | None = Field(default=None, min_length=1)
    url: str | None = Field(default=None, min_length=1)
    headers: dict[str, SecretName] = {}
    api_key_env: SecretName | None = None
    timeout_seconds: Seconds = 30

    @field_validator("env", mode="before")
    @classmethod
    def _same_names(cls, value: Any) -> Any:
        if isinstance(value, list):
            return {str(name): name for name in cast("list[object]", value)}
        return value

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("must have either a command or a url")
        if self.url is not None and (self.args or self.env or self.cwd):
            raise ValueError("has a url: args, env and cwd are for a command")
        if self.command is not None and (self.headers or self.api_key_env):
            raise ValueError("has a command: headers and api_key_env are for a url")
        if len(set(self.tools)) < len(self.tools):
            raise ValueError("lists a tool twice")
        return self

    def tool_name(self, name: str) -> str:
        """Return the name under which the model sees a tool of the server."""
        return _NOT_PLAIN.sub("_", f"mcp_{self.name}_{name}")

    @property
    def secret_names(self) -> list[str]:
        """Return the environment variables that the server needs."""
        key = [self.api_key_env] if self.api_key_env else []
        return [*self.env.values(), *self.headers.values(), *key]


class ToolsConfig(Section):
    """The tools that the model can use.

    `mcp` is a list of servers, or a mapping from names to servers.
    """

    filesystem: FilesystemConfig = Field(default_factory=FilesystemConfig)
    shell: ShellConfig = Field(default_factory=ShellConfig)
    mcp: list[McpServerSpec] = []

    @field_validator("mcp", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        servers = cast("JsonObject", value).items()
        return [{"name": n, **s} if isinstance(s, dict) else s for n, s in servers]

    @field_validator("mcp")
    @classmethod
    def _each_once(cls, value: list[McpServerSpec]) -> list[McpServerSpec]:
        if len({server.name for server in value}) < len(value):
            raise ValueError("has two servers of one name")
        return value


class MemoryConfig(Section):
    """A memory outside the run folder.

    `scopes` restricts the scopes that may be used; empty means any. `provider: sqlite:<file>`
    stores the memory in a database of the toolkit, relative to the profile; any other name is a
    label for a memory that is given in code.
    """

    enabled: bool = True
    provider: str | None = Field(default=None, min_length=1)
    write_mode: Literal["candidate", "disabled", "external"] = "candidate"
    scopes: list[str] = []


class WorkspaceConfig(Section):
    """The place of the run folder, relative to the profile; it may contain ids in braces."""

    sandbox: str = Field(default=DEFAULT_SANDBOX, min_length=1)

    @field_validator("sandbox")
    @classmethod
    def _known_placeholders(cls, value: str) -> str:
        rest = value
        for known in SANDBOX_PLACEHOLDERS:
            rest = rest.replace(known, "")
        if "{" in rest or "}" in rest:
            raise ValueError(f"may hold {', '.join(SANDBOX_PLACEHOLDERS)} and no other braces")
        return value


class DeliverableSpec(PathSpec):
    """A file that must exist when the run ends.

    `schema` is a JSON Schema for its content, or the path of a file that contains one.
    """

    kind: str = "deliverable"
    content_type: str | None = None
    allow_empty: bool = False
    content_schema: JsonObject | str | None = Field(default=None, alias="schema")

    @field_validator("path")
    @classmethod
    def _below_deliverables(cls, value: str) -> str:
        parts = PurePosixPath(value).parts
        if len(parts) < 2 or parts[0] != DELIVERABLES or ".." in parts or "\0" in value:
            raise ValueError(f"must be a path below {DELIVERABLES}/, like {DELIVERABLES}/report.md")
        _require_short_names(parts)
        return str(PurePosixPath(value))


class DeliverablesConfig(Section):
    """The files that the run has to produce.

    With `review` a person decides about them: a run that would be completed then ends as
    `review_required`.
    """

    required: list[DeliverableSpec] = []
    review: bool = False

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        paths = [deliverable.path for deliverable in self.required]
        twice = sorted({path for path in paths if paths.count(path) > 1})
        if twice:
            raise ValueError(f"lists twice: {', '.join(twice)}")
        return self


class CheckSpec(Section):
    """A program that runs in the run folder after the model has ended; it must exit with 0."""

    argv: list[Annotated[str, Field(pattern=r"^[^\x00]*$")]] = Field(min_length=1)
    timeout_seconds: Seconds = 120

    @model_validator(mode="before")
    @classmethod
    def _from_argv(cls, value: Any) -> Any:
        return {"argv": cast("object", value)} if isinstance(value, list) else value

    @field_validator("argv")
    @classmethod
    def _named(cls, value: list[str]) -> list[str]:
        if not value[0]:
            raise ValueError("must begin with the name of a program")
        return value


class RuntimeConfig(Section):
    """Limits of a run, and its engine.

    `timeout_seconds` applies to the engine's part. `budget` is the most that the run may spend.
    `nudges` is the number of times that the model is asked to continue if it ends before its
    deliverables exist. `unattended` decides about a program that `allowed_commands` does not name:
    it is denied, or the run is parked until a person has answered.
    """

    stream: bool = False
    max_steps: Count = 20
    timeout_seconds: Seconds = 600
    nudges: Annotated[int, Field(ge=0, le=20)] = 1
    unattended: Literal["deny", "park"] = "deny"
    engine: Literal["core", "pydantic_ai", "mock"] = "core"
    budget: BudgetConfig = Field(default_factory=BudgetConfig)


class KgentConfig(Section):
    """A complete profile."""

    kgent: KgentMetaConfig
    profile: ProfileConfig
    model: ModelConfig = Field(default_factory=ModelConfig)
    inputs: list[InputSpec] = []
    parameters: dict[ParameterName, ParameterSpec] = {}
    skills: SkillsConfig = Field(default_factory=SkillsConfig)
    tools: ToolsConfig = Field(default_factory=ToolsConfig)
    memory: MemoryConfig = Field(default_factory=MemoryConfig)
    workspace: WorkspaceConfig = Field(default_factory=WorkspaceConfig)
    deliverables: DeliverablesConfig = Field(default_factory=DeliverablesConfig)
    checks: list[CheckSpec] = []
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)
    _base: Path = PrivateAttr(default=Path())

    def based_at(self, folder: Path) -> Self:
        """Return a copy of the profile whose relative paths start at `folder`."""
        placed = self.model_copy()
        placed._base = folder  # noqa: SLF001 - private field of its own copy
        return placed

    def place(self, path: str) -> Path:
        """Return the absolute form of a path in the profile. Links are not followed.

        Raises:
            KgentError: category `config`; it begins with the home of a user who does not exist.
        """
        return expand_home(path if path.startswith("~") else self._base / path)
