"""The first start, without a configuration: lists the models here, and offers to write settings.

Nothing is written without a yes, and no key leaves the machine.
"""

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any, cast

from msgspec import Struct

from agent_core.cli.layout import shown_error
from agent_core.cli.lines import InputLines
from agent_core.cli.options import Options
from agent_core.cli.setup import build_terminal_redactor
from agent_core.cli.terminal import Style, Terminal
from agent_core.config.load import CONFIG_NAME, MODEL_VARIABLE, has_config
from agent_core.config.models import ModelConfig
from agent_core.config.paths import resolve_home, resolve_project
from agent_core.config.servers import ollama_address
from agent_core.config.services import public_service
from agent_core.errors import AgentCoreError, ConfigError
from agent_core.opening import open_descriptor
from agent_core.text import visible
from agent_core.text.json_text import JsonObject

_PROBE_S = 1.0
_MOST_ENTRIES = 20_000
_MOST_NAMES = 8
_DEEPEST = 6
_MODELS = {
    "openai": "gpt-5-mini",
    "anthropic": "claude-sonnet-4-5",
    "gemini": "gemini-2.5-pro",
}
"""A model of each service whose key may be in the environment."""
_MODEL_FOLDERS = (
    "models",
    "Downloads",
    ".cache/llama.cpp",
    ".cache/lm-studio/models",
    ".cache/huggingface/hub",
    ".lmstudio/models",
    "Library/Caches/llama.cpp",
)


class FoundModel(Struct, frozen=True):
    """A model that could be used right away.

    Attributes:
        what: the place where it was found.
        settings: the `[model]` section that uses it.
    """

    what: str
    settings: dict[str, str]

    @property
    def section(self) -> str:
        """The lines to write."""
        rows = [f"{key} = {json.dumps(value)}" for key, value in self.settings.items()]
        return "\n".join(["[model]", *rows])

    @property
    def name(self) -> str:
        """The same as `--model` takes it."""
        settings = self.settings
        if settings["provider"] == "local":
            return f"local:{settings['path']}"
        at = f"@{settings['base_url']}" if "base_url" in settings else ""
        return f"{settings['provider']}:{settings['name']}{at}"


_EXAMPLE = FoundModel("", {"provider": "openai", "name": _MODELS["openai"]})
_OWN_SERVER = "openai:my-model@http://127.0.0.1:8000/v1"


def is_first_start(options: Options) -> bool:
    """Return whether no model is named, and there is no configuration that could name one."""
    if options.model is not None or os.environ.get(MODEL_VARIABLE):
        return False
    try:
        return not has_config(resolve_home())
    except AgentCoreError:
        return False


def set_up(options: Options) -> bool:
    """Show the models found and the settings to write, and return whether they were written.

    They are written if the user agrees on a terminal.
    """
    redactor = build_terminal_redactor(os.environ)
    terminal = Terminal(sys.stdout, sys.stderr, environ=os.environ)
    # Only a first start writes.
    from agent_core.cli.config_file import ConfigFile  # noqa: PLC0415
    from agent_core.cli.settings import check_rules  # noqa: PLC0415

    home = resolve_home()
    config = home / CONFIG_NAME
    problem = f"error: there is no configuration yet: {config} does not exist"
    for part in terminal.wrap(redactor.text(problem)):
        terminal.line(part, Style.BAD)
    found = asyncio.run(find_models(options.path))
    lines = [*describe(found, config, command=options.command or "chat")]
    shown: list[str] = []
    for line in map(redactor.text, lines):
        shown += [line] if line.startswith("  ") else terminal.wrap(line)
    offered = found or [_EXAMPLE]
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        for line in shown:
            terminal.line(line)
        return False
    chosen = asyncio.run(_offer(terminal, shown, offered))
    if chosen is None:
        terminal.line("nothing was written")
        return False
    try:
        ConfigFile(home, redactor, check_rules).create(f"{chosen.section}\n")
    except FileExistsError:
        terminal.line(f"error: nothing was written: {config} exists already", Style.BAD)
        return False
    except OSError as error:
        message = f"error: {config} cannot be written: {error.strerror or error}"
        terminal.line(redactor.text(message), Style.BAD)
        return False
    except ConfigError as error:
        terminal.line(f"error: {shown_error(redactor.text(error.message))}", Style.BAD)
        return False
    terminal.line(f"wrote {config}", Style.GOOD)
    return True


async def _offer(
    terminal: Terminal, shown: Sequence[str], offered: Sequence[FoundModel]
) -> FoundModel | None:
    """Show the settings, and return those that the user wants to have written; None is a no."""
    question = "\nWrite it now? [y/N] "
    if len(offered) > 1:
        question = f"\nWrite one now? 1 to {len(offered)}, y is 1 [N] "
    lines = InputLines(sys.stdin.fileno())
    answer = (await terminal.enter(lines, question, "soong-agent", shown) or "").strip().casefold()
    if answer in {"y", "yes"}:
        return offered[0]
    is_number = answer.isdecimal() and len(offered) > 1 and 1 <= int(answer) <= len(offered)
    return offered[int(answer) - 1] if is_number else None


def describe(found: Sequence[FoundModel], config: Path, *, command: str) -> Iterator[str]:
    """Yield the lines about the models found and the settings to write."""
    if not found:
        keys = ", ".join(f"${service.key}" for _, service in _services())
        scheme, _, place = ollama_address(os.environ).partition("://")
        place = place.rpartition("@")[2]  # a password is not shown
        yield f"Found no Ollama at {scheme}://{place}, no key in {keys}, and no GGUF file."
        yield f"Start Ollama and pull a model, or set a key; then write into {config}, say:"
        found = [_EXAMPLE]
    else:
        yield "Found:"
        for number, each in enumerate(found, 1):
            at = f"{number}  " if len(found) > 1 else ""
            yield f"  {at}{visible(each.what, one_line=True)}"
        these = "one of these" if len(found) > 1 else "this"
        yield f"Write {these} into {config}:"
    for each in found:
        yield ""
        for line in each.section.splitlines():
            yield f"  {line}"
    yield ""
    words = ["soong-agent", command, "--model", found[0].name]
    words += ["what to do"] * (command == "run")
    yield f"or name a model for this start only: {shlex.join(words)}"
    if found == [_EXAMPLE]:
        yield f"for a model on your own server, write {_OWN_SERVER}"


def cure_of(found: Sequence[FoundModel]) -> str:
    """Return the models found and the settings to write, in one line."""
    if not found:
        return "write it with [model] provider and name, or name a model with --model"
    first = found[0]
    keys = ", ".join(f"{key} = {json.dumps(value)}" for key, value in first.settings.items())
    seen = "; ".join(each.what for each in found)
    return f"found: {seen}. Write [model] {keys}, or name it with --model {shlex.quote(first.name)}"


async def find_models(project: str | None) -> list[FoundModel]:
    """Look for an Ollama that runs, for keys in the environment, and for GGUF files."""
    ollama, files = await asyncio.gather(_ask_ollama(), asyncio.to_thread(_look_for_files, project))
    return [*ollama, *_look_for_keys(), *files]


async def _ask_ollama() -> list[FoundModel]:
    from agent_core.providers.base import ProviderRegistry  # noqa: PLC0415 - needs the HTTP modules
    from agent_core.providers.http_provider import HttpProvider  # noqa: PLC0415

    url = ollama_address(os.environ)
    listed: Any = None
    try:
        adapter = ProviderRegistry().create(
            ModelConfig(provider="ollama", name="none", base_url=url)
        )
        try:
            async with asyncio.timeout(_PROBE_S):
                if isinstance(adapter, HttpProvider):
                    listed = (await adapter.look_up("/api/tags")).get("models")
        finally:
            await adapter.close()
    except (AgentCoreError, TimeoutError, OSError, ValueError):
        return []
    if not isinstance(listed, list):
        return []
    entries = cast("list[object]", listed)
    tables = [cast("JsonObject", entry) for entry in entries if isinstance(entry, dict)]
    names = [table.get("name") for table in tables]
    fit = [name for name in names if isinstance(name, str) and name and "embed" not in name]
    if not fit:
        return []
    more = f" and {len(fit) - _MOST_NAMES} more" if len(fit) > _MOST_NAMES else ""
    what = f"Ollama at {url} has {', '.join(fit[:_MOST_NAMES])}{more}"
    place = {} if url == ollama_address({}) else {"base_url": url}
    return [FoundModel(what, {"provider": "ollama", "name": fit[0], **place})]


def _services() -> Iterator[tuple[str, Any]]:
    for provider in _MODELS:
        if (service := public_service(provider, None)) is not None:
            yield provider, service


def _look_for_keys() -> Iterator[FoundModel]:
    for provider, service in _services():
        if service.key and os.environ.get(service.key, "").strip():
            settings = {"provider": provider, "name": _MODELS[provider]}
            yield FoundModel(f"${service.key} is set, for {service.host}", settings)


def _look_for_files(project: str | None) -> list[FoundModel]:
    """The GGUF files of the project and of the folders where programs keep models."""
    folders = [Path.home() / name for name in _MODEL_FOLDERS]
    with suppress(AgentCoreError):
        folders.insert(0, resolve_project(project))
    ends_at, left = monotonic() + _PROBE_S, _MOST_ENTRIES
    found: dict[str, FoundModel] = {}
    for folder in folders:
        depth = len(folder.parts)
        for where, inner, names in os.walk(folder):
            left -= len(names) + len(inner)
            if left < 0 or monotonic() > ends_at:
                return [*found.values()]
            if len(Path(where).parts) - depth >= _DEEPEST:
                inner.clear()
            inner[:] = [name for name in inner if name not in {".git", "node_modules", ".venv"}]
            for name in sorted(names):
                path = str(Path(where, name))
                if name.lower().endswith(".gguf") and _is_model_file(path):
                    what = f"a model file, {path}"
                    if find_spec("xllamacpp") is None:
                        from agent_core.installation import extra_command  # noqa: PLC0415

                        what += f" (needs the extra local: {extra_command('local')})"
                    found[os.path.realpath(path)] = FoundModel(
                        what, {"provider": "local", "name": Path(name).stem, "path": path}
                    )
                    if len(found) == _MOST_NAMES:
                        return [*found.values()]
    return [*found.values()]


def _is_model_file(path: str) -> bool:
    """Return whether a file begins like a GGUF file; only the first of several parts counts."""
    name = Path(path).name
    is_other_part = "-of-" in name and "-00001-of-" not in name
    if is_other_part or "mmproj" in name or not path.isprintable():
        return False
    try:
        descriptor = open_descriptor(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file, suppress(OSError):
        return file.read(4) == b"GGUF"
    return False
