"""`soong-agent agents` and `skills`: lists them as runs would find them."""

import json
from collections.abc import Iterator

from agent_core.agents.definitions import AgentDefinitions
from agent_core.cli.exit_codes import COMPLETED
from agent_core.cli.options import Options
from agent_core.cli.setup import run_on_terminal
from agent_core.cli.terminal import Style, Terminal
from agent_core.config.paths import Setup
from agent_core.context.messages import WindowShares
from agent_core.context.skills import find_skills
from agent_core.text import Clean, plural, visible
from agent_core.text.json_text import JsonObject
from agent_core.types import AgentSource

_NAME = 22


def list_catalog(options: Options) -> int:
    """List the kinds of agents or the skills, and return the exit code."""

    def show(setup: Setup, terminal: Terminal, clean: Clean) -> int:
        rows = [*(_agents(setup) if options.command == "agents" else _skills(setup))]
        for row in rows:
            if options.json:
                terminal.text(f"{clean(json.dumps(row, ensure_ascii=False))}\n")
            else:
                name, *facts = (value for key, value in row.items() if value and key != "file")
                shown = f"{name:<{_NAME}} {'  '.join(map(_words, facts))}"
                terminal.entry(visible(clean(shown), one_line=True))
        if options.command == "skills":
            catalog = find_skills(setup.settings_home)
            for problem in catalog.problems:
                terminal.line(f"skipped: {clean(problem)}", Style.WARN)
            room = WindowShares.share_out(setup.config.model, setup.config.context).catalog
            if hidden := catalog.left_out(room):
                terminal.line(
                    f"{plural(hidden, 'skill')} at the end of this list cannot be seen by the"
                    f" model: names may take {room:,} tokens, an eighth of its context window",
                    Style.WARN,
                )
            if not rows:
                terminal.line(f"there is no skill in {setup.home / 'skills'}", Style.DIM)
        return COMPLETED

    return run_on_terminal(options, options.path, show, asks_model=False)


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)  # pyright: ignore[reportUnknownArgumentType]


def _agents(setup: Setup) -> Iterator[JsonObject]:
    """Return the definitions, without those replaced by another one of the same id."""
    definitions, pools = AgentDefinitions(setup.settings_home), setup.config.agents.worker_pools
    for each in definitions.listed():
        workers = [
            f"worker of {pool.pool_id}"
            for pool in pools
            for worker in pool.workers
            if worker.agent_definition_id == each.agent_definition_id
        ]
        profile = each.model_profile
        named = profile if isinstance(profile, str) else None
        yield {
            "id": each.agent_definition_id,
            "source": each.source.value,
            "description": each.description,
            "model": named or ("a model of its own" if profile else None),
            "workers": workers,
            "file": str(definitions.file_of(each)) if each.source is AgentSource.USER else None,
        }


def _skills(setup: Setup) -> Iterator[JsonObject]:
    for each in find_skills(setup.settings_home).skills:
        yield {"name": each.name, "description": each.description, "file": str(each.path)}
