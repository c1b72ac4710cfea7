"""Resolves the home, the project, and the path values of the configuration.

Everything is resolved through symbolic links once, here; later boundary checks compare resolved
paths only. Nothing is created.
"""

import hashlib
import os
import re
from pathlib import Path

from msgspec import Struct

from agent_core.config.models import Config
from agent_core.errors import ConfigError, ErrorCode
from agent_core.opening import is_folder
from agent_core.types.memory_scopes import MEMORY_SHARED

HOME_VARIABLE = "SOONG_AGENT_HOME"
PLACEHOLDERS = ("${SOONG_AGENT_HOME}", "<project>")

_NOWHERE = Path(os.devnull)
"""A file, so that nothing can be found below it."""

_VARIABLE = re.compile(r"\$\{[^}]*\}?")
_UNRESOLVABLE = (OSError, RuntimeError, ValueError)  # a loop of links, no user, a NUL


class Setup(Struct, frozen=True, kw_only=True):
    """A home and a project with the configuration that was accepted for them.

    All paths are absolute and resolved; apart from `home`, `project` and `config_path` they need
    not exist.

    Attributes:
        home: the folder of the user's settings, memory and sessions.
        project: the folder that the agent works on; never a source of settings.
        config_path: the file that `config` was read from.
        session_db: the database of sessions, events and runs, where no other is named.
        sessions_dir: lock files and artifacts, one folder per session.
        memory_dir: long-term memory; always below the home.
        memory_scope: the scope of runs that name none.
        plans_dir: the folder for plans of this project.
        tasks_dir: where Task logs of this project are written, one folder per session; links
            inside the project are not resolved, see `tasks_folder`.
        database_url: the Postgres database that the program names; `find_database_url` also finds
            the one of `[store] url_env`.
        tenant: the tenant whose sessions in that database are visible; None for all.
        write_roots: folders outside the project that tools may write to without asking.
        has_settings: the home's other settings apply: agents, hooks, servers, skills, tools and
            instructions.
        persist: sessions, artifacts and Task logs are written to disk.
        takes_snapshots: runs record the files of the project.
    """

    home: Path
    project: Path
    config_path: Path
    config: Config
    session_db: Path
    sessions_dir: Path
    memory_dir: Path
    plans_dir: Path
    tasks_dir: Path
    database_url: str | None = None
    tenant: str | None = None
    memory_scope: str = MEMORY_SHARED
    write_roots: tuple[Path, ...] = ()
    has_settings: bool = True
    persist: bool = True
    takes_snapshots: bool = False

    def __repr__(self) -> str:  # the address of a database may hold a password
        return f"Setup(home={str(self.home)!r}, project={str(self.project)!r})"

    @property
    def workspaces_dir(self) -> Path:
        """Folder for the files of sessions that every machine can fetch."""
        return self.home / "workspaces"

    @property
    def is_workspace(self) -> bool:
        """True if the project is such a folder: in the home, yet open to tools."""
        return self.persist and self.project.parent == self.workspaces_dir

    @property
    def settings_home(self) -> Path:
        """Folder that the user's other settings are read from."""
        return self.home if self.has_settings else _NOWHERE

    @property
    def writable_home(self) -> Path | None:
        """Folder that the program writes to; None if it writes nothing."""
        return self.home if self.persist else None


def resolve_home(home_dir: str | Path | None = None) -> Path:
    """Return the home: the argument, else `$SOONG_AGENT_HOME`, else `~/.soong-agent`.

    Raises:
        ConfigError: the path cannot be resolved, or is no folder. A missing home is reported
          later, when its configuration is read.
    """
    chosen = home_dir or os.environ.get(HOME_VARIABLE) or "~/.soong-agent"
    try:
        home = Path(chosen).expanduser().resolve()
    except _UNRESOLVABLE as error:
        raise _path_error(f"the home {str(chosen)!r} cannot be resolved: {error}") from error
    if os.path.exists(home) and not os.path.isdir(home):  # noqa: PTH110, PTH112 - they never raise
        raise _path_error(f"the home {home} is not a folder; name one (in code: home_dir=...)")
    return home


def resolve_project(project_dir: str | Path | None = None) -> Path:
    """Return the project: the given folder, the folder of the given file, or the current folder.

    Raises:
        ConfigError: there is no such path.
    """
    if project_dir == "":  # an unset variable in a script, not a choice of the current folder
        raise _path_error("the project path is empty; name an existing folder or file")
    try:
        given = Path.cwd() if project_dir is None else Path(project_dir).expanduser()
        path = given.resolve(strict=True)
    except _UNRESOLVABLE as error:
        shown = "(the current folder)" if project_dir is None else str(project_dir)
        reason = "it does not exist" if isinstance(error, FileNotFoundError) else str(error)
        raise _path_error(
            f"the project {shown} cannot be used: {reason}; name an existing folder or file"
            " (in code: project_dir=...)"
        ) from error
    return path if is_folder(path) else path.parent


def tasks_folder(wal_dir: str, *, home: Path, project: Path) -> Path:
    """Return the folder of a project's Task logs.

    Links inside the project are not followed here; they are refused when the folder is opened,
    because a project must not redirect our files elsewhere.
    """
    folder = expand_path(wal_dir, project, home=home, project=project)
    named = fill_placeholders(wal_dir, home=home, project=project)
    as_named = Path(os.path.normpath(project / Path(named).expanduser()))
    return as_named if as_named.is_relative_to(project) else folder


def database_key(name: str | Path) -> str:
    """Return a key for the names of files in a home that belong to one database."""
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:12]


def expand_path(value: str, base: Path, *, home: Path, project: Path) -> Path:
    """Turn a path value of the configuration into a resolved path.

    `${SOONG_AGENT_HOME}` and `<project>` are replaced and a leading `~` is the user's folder; a
    relative path starts at `base`.

    Raises:
        ConfigError: another variable is used, or the path cannot be resolved.
    """
    check_placeholders(value)
    filled = fill_placeholders(value, home=home, project=project)
    try:
        return (base / Path(filled).expanduser()).resolve()
    except _UNRESOLVABLE as error:
        raise _path_error(f"the path {value!r} cannot be resolved: {error}") from error


def fill_placeholders(value: str, *, home: Path, project: Path) -> str:
    """Replace the two placeholders in a value of the configuration."""
    return value.replace(PLACEHOLDERS[0], str(home)).replace(PLACEHOLDERS[1], str(project))


def check_placeholders(value: str) -> None:
    """Check that a value uses no variable but the known one.

    Raises:
        ConfigError: it does; the message names the variable.
    """
    for found in _VARIABLE.findall(value):
        if found != PLACEHOLDERS[0]:
            known = " and ".join(PLACEHOLDERS)
            raise _path_error(f"unknown placeholder {found} in {value!r}; only {known} are known")


def _path_error(message: str) -> ConfigError:
    return ConfigError(ErrorCode.CONFIG_ERROR, message)
