"""Loads the user's permission rules and checks them against their examples."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from agent_core.config.load import CONFIG_NAME
from agent_core.config.paths import Setup
from agent_core.permissions.rules import RuleContext, RuleSet, find_misfit, unusable_rule
from agent_core.permissions.saved_rules import RULES_NAME, read_rules
from agent_core.process.environment import command_environment
from agent_core.tools.code.views import read_command
from agent_core.tools.workspace import PathPolicy
from agent_core.types import CommandViews


def rule_context(
    setup: Setup, paths: PathPolicy, *, environ: Mapping[str, str] = os.environ
) -> RuleContext:
    """Return how the words of rules are read; takes the arguments of `load_rules`."""
    env = command_environment(setup.config.tools.env_allowlist, environ)
    return RuleContext(
        home=setup.home,
        project=setup.project,
        search_path=env.get("PATH") or os.defpath,
        is_writable=paths.is_below_write_root,
    )


def load_rules(
    setup: Setup, paths: PathPolicy, *, environ: Mapping[str, str] = os.environ
) -> RuleSet:
    """Load the rules of the configuration and the saved rules.

    Args:
        setup: the settings and their paths.
        paths: says which places tools write to.
        environ: environment in which commands find their programs.

    Raises:
        ConfigError: a rule cannot be used, or does not hold for its examples; names the rule.
    """
    saved = read_rules(setup.settings_home / RULES_NAME)
    env = command_environment(setup.config.tools.env_allowlist, environ)
    around = rule_context(setup, paths, environ=environ)
    rules = RuleSet((), around)
    rules.replace_saved(CONFIG_NAME, setup.config.permissions.rules)
    rules.replace_saved(RULES_NAME, saved)

    # An example is about words: it holds in every project, whatever its PATH contains.
    folders = around.search_path.split(os.pathsep)
    env["PATH"] = os.pathsep.join(folder for folder in folders if Path(folder).is_absolute())
    policy = PathPolicy(Path(os.devnull))  # nothing is below a file
    is_writable = policy.is_below_write_root
    anywhere = replace(around, search_path=env["PATH"], is_writable=is_writable)

    def views_of(argv: Sequence[str]) -> CommandViews:
        return read_command(argv, cwd=setup.project, env=env, policy=policy).for_rules

    for rule in rules.rules:
        if problem := find_misfit(replace(rule, around=anywhere), views_of):
            raise unusable_rule(rule.name, problem)
    return rules
