"""Gives a command its settings and runtime, and keeps secrets out of its output."""

import asyncio
import errno
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent_core.agents.definitions import AgentDefinitions
from agent_core.cli.layout import shown_error
from agent_core.cli.options import Options
from agent_core.cli.terminal import (
    OutputClosedError,
    Style,
    Terminal,
    exit_code_of,
    report_closed_output,
)
from agent_core.config.load import (
    MODEL_VARIABLE,
    config_secrets,
    has_config,
    load_config,
    read_setup,
)
from agent_core.config.paths import Setup, resolve_home
from agent_core.config.problems import lacks_only_a_model
from agent_core.errors import AgentCoreError, ConfigError
from agent_core.redaction import Redactor
from agent_core.secret_shapes import kind_of_name
from agent_core.text import Clean

if TYPE_CHECKING:
    from pathlib import Path

    from agent_core.api import AgentRuntime
    from agent_core.mcp import ElicitationCallback
    from agent_core.mcp.toolsets import McpToolset
    from agent_core.permissions import PermissionCallback

NO_MODEL = "ollama:none"
"""Placeholder for the model of commands that ask none, if no model is configured."""


def read_command_setup(path: "str | Path | None", model: str | None) -> Setup:
    """Return the settings for a project, as the user has named it; `model` is from `--model`.

    Raises:
        ConfigError: a setting cannot be used; the message names the place and the cure.
    """
    if model is None:
        return read_setup(path, default_snapshots="turn")
    home = resolve_home()
    config = load_config(home, model=model)
    return read_setup(path, config=config, home_dir=home, default_snapshots="turn")


def open_runtime(
    setup: Setup,
    *,
    permission_callback: "PermissionCallback | None" = None,
    elicitation_callback: "ElicitationCallback | None" = None,
    toolsets: "Sequence[McpToolset]" = (),
    saves_rules: bool = False,
    read_only: bool = False,
) -> "AgentRuntime":
    """Return the runtime of a command; see `AgentRuntime`.

    Args:
        setup: the settings of the command.
        permission_callback: as for `AgentRuntime`.
        elicitation_callback: as for `AgentRuntime`.
        toolsets: as for `AgentRuntime`.
        saves_rules: questions offer rules for all sessions, if the settings do not say otherwise.
        read_only: the command only shows what is stored.
    """
    from agent_core.api import AgentRuntime  # noqa: PLC0415 - not every command needs one

    config = setup.config
    if saves_rules and config.permissions.save_rules is None:
        permissions = config.permissions.model_copy(update={"save_rules": True})
        config = config.model_copy(update={"permissions": permissions})
    return AgentRuntime(
        project_dir=setup.project,
        home_dir=setup.home,
        config=config,
        persist=setup.persist,
        read_only=read_only,
        permission_callback=permission_callback,
        elicitation_callback=elicitation_callback,
        toolsets=toolsets,
        default_snapshots="turn",
    )


def run_on_terminal(
    options: Options,
    path: str | None,
    work: Callable[[Setup, Terminal, Clean], int | Coroutine[Any, Any, int]],
    *,
    asks_model: bool = True,
) -> int:
    """Do a command that looks at the disk, and return its exit code; every error is shown.

    Args:
        options: may hold the way in which a coroutine is run.
        path: the project, as the user has named it.
        work: gets the settings, the terminal, and the function that takes secrets out of a text; a
            coroutine is run to its end.
        asks_model: whether it may ask a model; otherwise none has to be configured.
    """
    terminal = Terminal(sys.stdout, sys.stderr, environ=os.environ)
    clean = build_terminal_redactor(os.environ).text
    try:
        home = resolve_home()
        is_configured = os.environ.get(MODEL_VARIABLE) or has_config(home)
        if asks_model:
            setup = read_setup(path)
        elif is_configured:
            setup = _read_without_model(path, home)
        else:  # the model of `run --model` is not known here
            setup = read_setup(path, home_dir=home, model=NO_MODEL)
            setup = replace(setup, persist=setup.session_db.exists())
        clean = build_terminal_redactor(os.environ, setup).text
        done = work(setup, terminal, clean)
        return done if isinstance(done, int) else (options.run_loop or asyncio.run)(done)
    except OutputClosedError as closed:
        return report_closed_output(closed, terminal)
    except (AgentCoreError, OSError, ValueError) as error:
        terminal.line(f"error: {shown_error(clean(_told(error)))}", Style.BAD)
        return exit_code_of(error)


def _read_without_model(path: str | None, home: "Path") -> Setup:
    """Return the settings, with a placeholder if the file names no model: `config set` adds it."""
    try:
        return read_setup(path)
    except ConfigError as error:
        if not lacks_only_a_model(error):
            raise
    return read_setup(path, home_dir=home, model=NO_MODEL)


def _told(error: Exception) -> str:
    """Return the text of an error; of one of the system: the file, what is wrong, and the cure."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    return f"{where}{error.strerror}{'; free some space' if is_full else ''}"


def build_terminal_redactor(environ: Mapping[str, str], setup: Setup | None = None) -> Redactor:
    """Return a redactor that knows variables whose names promise a secret, and configured secrets.

    The runtime's own redactor cleans events. This one is for errors before there is a runtime,
    for log lines that come past it, and for what lies on the disk: it may have been written by
    hand, or before a secret was known. A file of settings that cannot be read adds nothing.

    Args:
        environ: the environment.
        setup: whose secrets are known too: keys of models, and what MCP servers are given.
    """
    redactor = Redactor({name: value for name, value in environ.items() if kind_of_name(name)})
    if setup is not None:
        redactor.learn(config_secrets(setup.config, environ=environ))
        with suppress(AgentCoreError):
            profiles = AgentDefinitions(setup.home).profiles()
            redactor.learn(config_secrets(setup.config, *profiles, environ=environ))
        if (setup.home / "mcp.json").exists():
            # Only loaded for users who have servers.
            from agent_core.mcp import (  # noqa: PLC0415
                read_servers,
                secret_values,
                stored_secrets,
            )

            with suppress(AgentCoreError):
                servers = read_servers(setup.home, setup.project)
                redactor.learn(secret_values(servers) | stored_secrets(setup.home))
    return redactor


class _LogLines(logging.Handler):
    def __init__(self, show: Callable[[str], object], redactor: Redactor) -> None:
        super().__init__(logging.WARNING)
        self._show = show
        self._redactor = redactor

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelno
        prefix = f"{record.levelname.lower()}: " if level >= logging.WARNING else ""
        if not getattr(record, "of_handle", False):  # shown when the run begins
            self._show(self._redactor.text(f"{prefix}{record.getMessage()}"))


def show_warnings(
    show: Callable[[str], object], redactor: Redactor, *, progress_of: Sequence[str] = ()
) -> None:
    """Show warnings from the log, without secrets and without tracebacks, from now on.

    Of the modules in `progress_of` what goes well is shown as well.
    """
    lines = _LogLines(show, redactor)
    for name in progress_of:
        lines.setLevel(logging.INFO)
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger().handlers = [lines]
    logging.captureWarnings(capture=True)
    logging.getLogger("mcp").propagate = False  # faults of a server are reported as events
