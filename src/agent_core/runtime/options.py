"""Arguments of a runtime's caller; everything else is built from the configuration."""

import os
import re
import weakref
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct, field

from agent_core.errors import ArgumentError
from agent_core.text import kind_of, not_a_list, shown_value, with_article
from agent_core.text.json_text import JsonValue
from agent_core.types import SESSION_ID_PATTERN, AgentDefinition
from agent_core.types.lanes import check_tenant
from agent_core.types.memory_scopes import checked_scope

if TYPE_CHECKING:
    from agent_core.config.models import Config, ModelConfig
    from agent_core.config.paths import Setup
    from agent_core.extensions import Extension
    from agent_core.loop.options import Agent, AnyAgent
    from agent_core.mcp import ElicitationCallback
    from agent_core.permissions import PermissionCallback
    from agent_core.providers.base import ProviderAdapter, ProviderRegistry
    from agent_core.runtime.stores import OpenedStore
    from agent_core.storage.sqlite import SqliteSessionStore
    from agent_core.telemetry.spans import Telemetry
    from agent_core.tools.base import Tool
    from agent_core.tools.registry import ToolRegistry
    from agent_core.tools.toolsets import AnyTool, Toolset


class InMemory(Struct, frozen=True):
    """Contents of a runtime that writes nothing; they last as long as the runtime object.

    `task_logs` holds open file descriptors, by session and by name.
    """

    store: "SqliteSessionStore"
    artifacts: dict[str, bytes]
    task_logs: defaultdict[str, dict[str, int]]


class RuntimeOptions(Struct, kw_only=True, dict=True, weakref=True):
    """The arguments of `AgentRuntime`, and what was registered with it.

    `store` was opened by a worker, for the runtimes of all its projects. Registries are created on
    first use: creating a runtime imports no provider and no tool.
    """

    project_dir: str | Path | None = None
    config_path: str | Path | None = None
    config: "Config | Mapping[str, JsonValue] | None" = None
    model: "str | ModelConfig | ProviderAdapter | None" = None
    home_dir: str | Path | None = None
    persist: bool = True
    read_only: bool = False
    session_db_path: str | Path | None = None
    database_url: str | None = None
    tenant: str | None = None
    memory: str | bool | None = None
    store: "OpenedStore | None" = None
    permission_callback: "PermissionCallback | None" = None
    elicitation_callback: "ElicitationCallback | None" = None
    provider_registry: "ProviderRegistry | None" = None
    tool_registry: "ToolRegistry | None" = None
    own_tools: "Sequence[Tool]" = ()
    agents: "Sequence[Agent[Any]]" = ()
    handoffs: "Sequence[Agent[Any]]" = ()
    toolsets: "Sequence[Toolset]" = ()
    extensions: "Sequence[Extension]" = ()
    definitions: list[AgentDefinition] = field(default_factory=list[AgentDefinition])
    debug: bool = False
    default_snapshots: Literal["off", "turn"] = "off"
    telemetry: "Telemetry | Literal[False] | None" = None

    def __post_init__(self) -> None:
        """Check all that can be checked without reading files or variables.

        Raises:
            ArgumentError: an argument cannot be used, or not together with another one.
        """
        self._check_places()
        self._check_objects()
        if self.model is not None or self.config is not None:
            _check_configuration(self.model, self.config)
        if self.permission_callback is not None or self.elicitation_callback is not None:
            from agent_core.callbacks import check_callback  # noqa: PLC0415 - few have any

            check_callback("permission_callback", self.permission_callback, "request")
            check_callback("elicitation_callback", self.elicitation_callback, "request")
        if self.extensions:
            from agent_core.loop.option_checks import checked_extensions  # noqa: PLC0415 - likewise

            checked_extensions(self.extensions)

    def _check_places(self) -> None:
        for name in ("project_dir", "config_path", "home_dir", "session_db_path", "database_url"):
            if getattr(self, name) == "":
                raise ArgumentError(f"{name} is empty; is a variable not set?", name)
        is_in_code = self.config is not None or self.model is not None
        if self.config_path is not None and is_in_code:
            message = "config_path names a file, and config or model say that none is read"
            raise ArgumentError(f"{message}; give one", "config_path")
        if self.session_db_path is not None and not self.persist:
            message = "session_db_path names a file, and persist=False says that none is kept"
            raise ArgumentError(f"{message}; give one", "session_db_path")
        if "://" in str(self.session_db_path or ""):
            message = "session_db_path is a file; the address of a database is a database_url"
            raise ArgumentError(message, "session_db_path")
        if self.database_url is not None:
            from agent_core.config.databases import check_database_url  # noqa: PLC0415 - few have

            check_database_url(self.database_url, "database_url", is_argument=True)
        if self.tenant is not None:
            check_tenant(self.tenant)
        try:
            checked_scope(self.memory)
        except ValueError as error:
            raise ArgumentError(f"memory {error}", "memory") from None

    def _check_objects(self) -> None:
        """Check the classes of objects that few programs make."""
        if self.provider_registry is not None:
            from agent_core.providers.base import ProviderRegistry  # noqa: PLC0415

            _require_class("provider_registry", self.provider_registry, ProviderRegistry)
        if self.tool_registry is not None:
            from agent_core.tools.registry import ToolRegistry  # noqa: PLC0415

            _require_class("tool_registry", self.tool_registry, ToolRegistry)
        if self.toolsets:
            from agent_core.tools.toolsets import Toolset  # noqa: PLC0415

            for at, each in enumerate(self.toolsets):
                _require_class("toolsets", each, Toolset, f"toolsets[{at}]")
        if self.telemetry is not None and self.telemetry is not False:
            from agent_core.telemetry.spans import Telemetry  # noqa: PLC0415

            if not isinstance(self.telemetry, Telemetry):  # pyright: ignore[reportUnnecessaryIsInstance] - a program's
                message = f"must be a Telemetry, False or None, not {kind_of(self.telemetry)}"
                raise ArgumentError(f"telemetry {message}", "telemetry")

    def __repr__(self) -> str:  # the address of a database may hold a password
        return f"RuntimeOptions(project_dir={str(self.project_dir)!r})"

    def read_setup(self) -> "Setup":
        """Read the settings of the home for the project.

        Raises:
            ConfigError: the home, the project or the configuration cannot be used.
        """
        from agent_core.config.load import read_setup  # noqa: PLC0415

        return read_setup(
            self.project_dir,
            self.config_path,
            config=self.config,
            model=self.model,
            home_dir=self.home_dir,
            session_db_path=self.session_db_path,
            database_url=self.database_url,
            tenant=self.tenant,
            memory=self.memory,
            persist=self.persist,
            default_snapshots=self.default_snapshots,
        )

    def give(self, tools: "Sequence[AnyTool]") -> None:
        """Give every run these tools.

        Raises:
            AgentCoreError, ConfigError: `validation_error`: one is no tool.
        """
        from agent_core.loop.option_checks import runtime_tools  # noqa: PLC0415

        self.own_tools, toolsets = runtime_tools(tools)
        self.toolsets = (*self.toolsets, *toolsets)

    def know(self, agents: "Sequence[AnyAgent[Any]]", handoffs: "Sequence[AnyAgent[Any]]") -> None:
        """Let every run start these agents, or hand its conversation over to them.

        Raises:
            AgentCoreError: `validation_error`: one is no agent, or two have the same name.
        """
        from agent_core.loop.options import checked_agents  # noqa: PLC0415

        self.agents = checked_agents("agents", agents)
        self.handoffs = checked_agents("handoffs", handoffs)

    @property
    def providers(self) -> "ProviderRegistry":
        """Registry of the caller's providers, with the built-in ones."""
        from agent_core.providers.base import ProviderRegistry  # noqa: PLC0415

        if self.provider_registry is None:
            self.provider_registry = ProviderRegistry()
        return self.provider_registry

    @property
    def tools(self) -> "ToolRegistry":
        """Registry of the caller's tools, with the built-in ones."""
        from agent_core.tools.registry import ToolRegistry  # noqa: PLC0415

        if self.tool_registry is None:
            self.tool_registry = ToolRegistry()
        return self.tool_registry

    @cached_property
    def in_memory(self) -> InMemory:
        """Contents kept in memory across openings of the runtime."""
        from agent_core.storage.sqlite import SqliteSessionStore  # noqa: PLC0415

        kept = InMemory(SqliteSessionStore.in_memory(), {}, defaultdict(dict))
        weakref.finalize(self, _close_all, kept.task_logs)
        return kept


def given_items(name: str, given: object) -> tuple[Any, ...]:
    """Return the items of an argument that is a list.

    Raises:
        ArgumentError: it is no list.
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ArgumentError(not_a_list(name, cast("object", given)), name)
    return tuple(cast("Iterable[Any]", given))


def _require_class(name: str, given: object, kind: type, place: str = "") -> None:
    if not isinstance(given, kind):
        message = f"{place or name} must be {with_article(kind.__name__)}, not {kind_of(given)}"
        raise ArgumentError(message, name)


def _check_configuration(model: object, config: object) -> None:
    """Check the form of a model and the class of a configuration; its keys are checked later.

    Raises:
        ArgumentError: one cannot be used.
    """
    if isinstance(model, str):
        from agent_core.config.model_names import model_fields  # noqa: PLC0415 - loaded with it

        try:
            model_fields(model)
        except ValueError as error:
            raise ArgumentError(f"model {error}", "model") from None
    elif model is not None:
        from agent_core.config.models import ModelConfig, as_model  # noqa: PLC0415

        if not isinstance(as_model(model), ModelConfig):
            message = "model must be 'provider:name', a ModelConfig or an adapter, not"
            raise ArgumentError(f"{message} {kind_of(model)}", "model")
    if config is not None and not isinstance(config, Mapping):
        from agent_core.config.models import Config  # noqa: PLC0415

        if not isinstance(config, Config):
            message = f"config must be a Config or a dict, not {kind_of(config)}"
            raise ArgumentError(f"{message}; a file is named by config_path", "config")


def checked_session_id(session_id: object) -> str:
    """Return a session id.

    Raises:
        AgentCoreError: `validation_error`: it is invalid.
    """
    if isinstance(session_id, str) and re.fullmatch(SESSION_ID_PATTERN, session_id):
        return session_id
    shown = shown_value(session_id)
    message = f"the session id {shown} is invalid: use 1 to 64 letters, digits, _ or -"
    raise ArgumentError(message, "session_id")


def project_folder(project: str | Path | None) -> str | None:
    """Return the path under which sessions store a project; it blocks.

    Raises:
        AgentCoreError: `validation_error`: it cannot be a path.
    """
    if project is None:
        return None
    try:
        folder = Path(project).expanduser().resolve()
        return str(folder.parent if folder.is_file() else folder)
    except (ValueError, RuntimeError, OSError) as error:  # a NUL, an unknown user, a loop of links
        message = f"the project is not the path of a folder: {error}"
        raise ArgumentError(message, "project") from None


def _close_all(task_logs: Mapping[str, dict[str, int]]) -> None:
    for logs in task_logs.values():
        for descriptor in logs.values():
            os.close(descriptor)
