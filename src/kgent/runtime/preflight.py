"""Checks of a profile before a run; `run` refuses the problems, and `validate` reports them.

Nothing is started, sent or written.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from agent_core.budgets.prices import Prices
from agent_core.text import quoted
from kgent.config.models import KgentConfig
from kgent.config.parameters import fill_config, set_parameters
from kgent.engine.base import AgentEngine, AsyncAgentEngine, core_model, each_model
from kgent.errors import KgentError, Record, config_error
from kgent.memory.client import check_memory
from kgent.runtime.ids import RunIds
from kgent.sandbox.inputs import check_inputs, find_inputs
from kgent.sandbox.workspace import resolve_run_folder
from kgent.skills.registry import SkillRegistry
from kgent.tools.mcp import build_servers


class UsableProfile(Record):
    """The skills and inputs of a usable profile, and the variables that are not set here.

    A run needs the variables, which contain keys; a profile can be checked without them.
    """

    skills: list[str]
    inputs: list[str]
    unset_variables: list[str]


async def validate_profile(config: KgentConfig, engine: AgentEngine) -> UsableProfile:
    """Check everything that could prevent a run here, including what a run only finds out later.

    `engine` is the one that the profile names.

    Raises:
        KgentError: it cannot be run, for the reasons in the message.
    """
    config = _filled(config)
    await refuse_obstacles(config, engine)
    registry = SkillRegistry.of(config)
    skills, inputs = registry.discover(), find_inputs(config)
    registry.hashes()  # reads every file that a run would copy
    if unreachable := list(_find_unreachable_servers(config)):
        raise config_error("\n".join(unreachable))
    await check_memory(config)
    check_inputs(inputs, resolve_run_folder(config, RunIds.new()))
    return UsableProfile(
        skills=[skill.id for skill in skills],
        inputs=[one.name for one in inputs],
        unset_variables=_unset_variables(config),
    )


async def refuse_obstacles(
    config: KgentConfig, engine: AgentEngine, *, is_given: bool = False
) -> None:
    """Refuse a profile that cannot be run here.

    Args:
        config: the profile, its parameters filled in as far as they are known.
        engine: the engine of the run.
        is_given: the engine was given in code, so the profile need not name all that it uses.

    Raises:
        KgentError: category `config`; the message lists the obstacles, one per line.
    """
    found = list(_find_obstacles(config))
    if not is_given:
        found += _find_missing_means(config)
        if await _lacks_price(config):
            model = config.model
            found.append(
                f"runtime.budget.usd: the price of {model.provider}:{model.name} is not known; give"
                " it in model.price, or set on_unknown_price to ignore_usd"
            )
    if isinstance(engine, AsyncAgentEngine) and not found:
        await engine.check(config)
    if found:
        raise config_error("\n".join(found))


def _filled(config: KgentConfig) -> KgentConfig:
    """Fill in the parameters, unless a required one has no value."""
    try:
        return fill_config(set_parameters(config, {}))
    except KgentError:
        specs = config.parameters.values()
        if any(spec.is_required and spec.value is None for spec in specs):
            return config
        raise


def _find_obstacles(config: KgentConfig) -> Iterator[str]:
    try:
        build_servers(config, {name: "x" for one in config.tools.mcp for name in one.secret_names})
    except KgentError as error:
        yield error.message
    try:
        SkillRegistry.of(config)
    except KgentError as error:
        yield f"skills.paths: {error.message}"
    for server in config.tools.mcp:
        program = server.command
        if program is not None and "/" not in program and shutil.which(program) is None:
            yield f"tools.mcp: {server.name}: {_no_program(program)}"


def _find_missing_means(config: KgentConfig) -> Iterator[str]:
    """List what a run lacks if it only has the means that its profile names."""
    for one in each_model(config):
        if one.model.path is not None and not config.place(one.model.path).is_file():
            yield f"model.path: there is no file {config.place(one.model.path)}"
    budget = config.runtime.budget
    if budget.usd is not None and config.runtime.engine != "core":
        yield "runtime.budget.usd: only the engine core can enforce it"
    files, shell = config.tools.filesystem, config.tools.shell
    can_write = (files.enabled and files.write) or (shell.enabled and shell.allowed_commands)
    if config.deliverables.required and not can_write and not config.tools.mcp:
        yield "deliverables.required: no enabled tool can write them"
    for number, check in enumerate(config.checks):
        program = check.argv[0]
        is_in_folder = "/" in program and not Path(program).is_absolute()
        if not is_in_folder and "{{" not in program and shutil.which(program) is None:
            yield f"checks[{number}]: {_no_program(program)}"


def _no_program(name: str) -> str:
    return f"there is no program {quoted(name, 200)} in PATH; give its path, or another program"


async def _lacks_price(config: KgentConfig) -> bool:
    """Return whether a budget in US dollars cannot be kept, because the price is not known."""
    model, budget = config.model, config.runtime.budget
    if budget.usd is None or config.runtime.engine != "core" or _ignores_unknown_prices(config):
        return False
    is_named = bool(model.provider and model.name)
    return is_named and await Prices().of(core_model(config)) is None


def _find_unreachable_servers(config: KgentConfig) -> Iterator[str]:
    """List the servers that cannot be started, which would fail the run."""
    for server in config.tools.mcp:
        if server.cwd is not None and not config.place(server.cwd).is_dir():
            yield f"tools.mcp: {server.name}: there is no folder {config.place(server.cwd)}"
        program = Path(server.command or "")
        if program.is_absolute() and not os.access(program, os.X_OK):
            yield f"tools.mcp: {server.name}: there is no program {quoted(str(program), 200)}"


def _ignores_unknown_prices(config: KgentConfig) -> bool:
    """Return whether the profile itself allows unknown prices; the default is for sessions."""
    budget = config.runtime.budget
    is_said = "on_unknown_price" in budget.model_fields_set
    return is_said and budget.on_unknown_price == "ignore_usd"


def _unset_variables(config: KgentConfig) -> list[str]:
    models = each_model(config) if config.runtime.engine != "mock" else []
    names = [
        *(one.model.key_variable for one in models),
        *(name for one in config.tools.mcp for name in one.secret_names),
    ]
    return [name for name in dict.fromkeys(names) if name and not os.environ.get(name)]
