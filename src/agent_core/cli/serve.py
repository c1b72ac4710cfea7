"""`soong-agent serve`: starts and ends the console."""

import asyncio
import os
import secrets
import socket
import sys
from contextlib import closing, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent_core.cli.exit_codes import COMPLETED, MISUSED, OUTPUT_CLOSED
from agent_core.cli.layout import shown_error
from agent_core.cli.listening import is_loopback, listen, read_token, require_token, say_short
from agent_core.cli.options import Options
from agent_core.cli.setup import build_terminal_redactor, open_runtime, show_warnings
from agent_core.cli.signals import catch_signals
from agent_core.cli.streams import is_output_closed
from agent_core.cli.terminal import exit_code_of
from agent_core.config.databases import find_database_url
from agent_core.config.load import CONFIG_NAME, MODEL_VARIABLE, has_config, load_config, read_setup
from agent_core.config.paths import Setup, resolve_home, resolve_project
from agent_core.disk.replacing import replace_file
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode
from agent_core.installation import extra_command
from agent_core.opening import read_beginning
from agent_core.text import visible

if TYPE_CHECKING:
    from agent_core.api import AgentRuntime
    from agent_core.config.models import ModelConfig
    from agent_core.providers.base import ProviderAdapter
    from agent_core.serve.own_server import Start
    from agent_core.types import PermissionDecision, PermissionRequest

_PACKAGES = ("starlette", "uvicorn", "h11", "ag_ui")
_NO_PROVIDER = "none"
_NO_MODEL = f"{_NO_PROVIDER}:none"
"""The model of a server without a configured one, at which only runs of another one start."""

_KEY_FILE, _KEY_BYTES = "console.key", 32


def serve_console(options: Options) -> int:
    """Serve until a signal arrives, and return the exit code; every error has been shown."""
    if is_output_closed():
        return OUTPUT_CLOSED
    redactor = build_terminal_redactor(os.environ)
    try:
        if (options.tls_cert is None) != (options.tls_key is None):
            raise ValueError("--tls-cert and --tls-key must be given together")
        _require_extra()
        token = read_token(options)
        first, *more = options.projects or [None]
        setup = _read_setup(first)
        redactor = build_terminal_redactor(os.environ, setup)
        if token is not None:
            redactor.learn({"console_token": token})
        show_warnings(_say, redactor)
        if setup.config.model.provider == _NO_PROVIDER:
            _say(f"warning: {redactor.text(str(_no_model(setup.home)))}")
        folders = [setup.project, *map(resolve_project, more)]
        return _listen(options, setup, folders, token)
    except (AgentCoreError, OSError, ValueError) as error:
        _say(f"error: {shown_error(redactor.text(str(error)))}")
        return exit_code_of(error) if isinstance(error, AgentCoreError) else MISUSED


def _require_extra() -> None:
    """Refuse to start without the packages of the extra.

    Raises:
        ConfigError: one is missing.
    """
    try:
        for name in _PACKAGES:
            import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        cure = extra_command("serve")
        what = f"soong-agent serve needs the extra serve; to install it:\n{cure}"
        raise ConfigError(ErrorCode.CONFIG_ERROR, what) from None


def _say(text: str) -> None:
    for line in text.splitlines():
        print(visible(line, one_line=True), file=sys.stderr, flush=True)


def _read_setup(path: "str | Path | None") -> Setup:
    """Return the settings of a folder; without a configured model, sessions are still shown."""
    home = resolve_home()
    is_configured = os.environ.get(MODEL_VARIABLE) or has_config(home)
    model = None if is_configured else _NO_MODEL
    return read_setup(path, home_dir=home, model=model, default_snapshots="turn")


def _no_model(home: Path) -> ConfigError:
    """Return the reason why there is no model, as `soong-agent run` gives it."""
    try:
        load_config(home)
    except ConfigError as error:
        return error
    path, cure = home / CONFIG_NAME, "restart soong-agent serve, which began without it"
    return ConfigError(ErrorCode.CONFIG_ERROR, f"{path} is not used yet; {cure}")


def _read_key(home: Path) -> bytes:
    """Return the secret of a home, which is made at the first start."""
    try:
        return _kept_key(home)
    except OSError as error:
        why = error.strerror or str(error)
        _say(f"warning: {home / _KEY_FILE}: {why}; browsers have to sign in again after a restart")
        return secrets.token_bytes(_KEY_BYTES)


def _kept_key(home: Path) -> bytes:
    path = home / _KEY_FILE
    with suppress(FileNotFoundError):
        key = read_beginning(path, _KEY_BYTES)
        if len(key) == _KEY_BYTES:
            return key
        path.unlink()
    home.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):  # another process has just made it
        replace_file(path, secrets.token_bytes(_KEY_BYTES), home=home, may_exist=False)
    return read_beginning(path, _KEY_BYTES)


def _listen(options: Options, setup: Setup, folders: list[Path], token: str | None) -> int:
    from agent_core.http.serving import Tls  # noqa: PLC0415
    from agent_core.serve.own_server import Start  # noqa: PLC0415 - slow to load

    host, port = options.host or "127.0.0.1", options.port or 0
    with closing(listen(host, port)) as listening:
        is_local = is_loopback(listening.getsockname()[0])
        if token is None and not is_local:
            raise require_token(host)
        cert, key = options.tls_cert, options.tls_key
        if not is_local and cert is None:
            what = "anything sent to this server, including the token, can be read on the way"
            _say(f"warning: {what}; use --tls-cert, or a reverse proxy with TLS")
        if token is not None and (warning := say_short(token)):
            _say(warning)
        start = Start(
            folders=folders,
            open_runtime=partial(_open_runtime, options.read_only),
            key=_read_key(setup.home),
            host=host,
            is_local=is_local,
            token=token,
            tls=Tls(cert, key) if cert is not None and key is not None else None,
            is_shared=find_database_url(setup, os.environ) is not None,
            is_read_only=options.read_only,
        )
        return asyncio.run(_serve(start, listening))


async def _serve(start: "Start", listening: socket.socket) -> int:
    from agent_core.serve.own_server import serve  # noqa: PLC0415 - loaded by now

    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def show(link: str) -> None:
        print(link, flush=True)

    with catch_signals(lambda _: loop.call_soon_threadsafe(stop.set)):
        await serve(start, listening, show=show, stop=stop)
    return COMPLETED


def _open_runtime(is_read_only: bool, folder: Path) -> "AgentRuntime":
    """Return the runtime of a folder, whose questions wait until they are answered.

    They park when the server stops: then they wait without it.
    """
    setup = _read_setup(folder)
    permissions = setup.config.permissions.model_copy(update={"unattended": "park"})
    config = setup.config.model_copy(update={"permissions": permissions})
    runtime = open_runtime(
        replace(setup, config=config), permission_callback=_wait, read_only=is_read_only
    )
    if config.model.provider == _NO_PROVIDER:
        runtime.register_provider(_NO_PROVIDER, partial(_refuse_model, setup.home))
    return runtime


def _refuse_model(home: Path, _: "ModelConfig") -> "ProviderAdapter":
    """Refuse a run that has no model.

    Raises:
        ConfigError: always.
    """
    raise _no_model(home)


async def _wait(_: "PermissionRequest") -> "PermissionDecision":
    """Leave a question to whatever else can answer it, for as long as that takes."""
    return await asyncio.get_running_loop().create_future()
