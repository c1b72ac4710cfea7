"""Reads the user's rules for permissions, and checks them with their examples."""

import os
from collections.abc import Iterator, Mapping, Sequence

from agent_core.config.load import CONFIG_NAME
from agent_core.config.paths import PLACEHOLDERS, Setup, check_placeholders
from agent_core.config.rules import PermissionRule
from agent_core.errors import ConfigError, ErrorCode
from agent_core.permissions.rules import Rule, RuleSet, Surroundings, find_misfit
from agent_core.permissions.saved_rules import RULES_NAME, read_rules
from agent_core.tools.code.views import read_command
from agent_core.tools.workspace import PathPolicy
from agent_core.types import CommandViews


def load_rules(
    setup: Setup, paths: PathPolicy, *, environ: Mapping[str, str] = os.environ
) -> RuleSet | None:
    """The rules of the configuration and the saved ones; None if there are none.

    Args:
        setup: the settings, and where they are.
        paths: which places tools write to.
        environ: where commands find their programs.

    Raises:
        ConfigError: a rule cannot be used, or does not hold its examples; names it.
    """
    saved = read_rules(setup.settings_home / RULES_NAME)
    written = setup.config.permissions.rules
    if not saved and not written:
        return None
    env = {key: environ[key] for key in setup.config.tools.env_allowlist if key in environ}
    around = Surroundings(
        project=setup.project,
        search_path=env.get("PATH") or os.defpath,
        is_writable=paths.is_below_write_root,
    )
    tables = (*_numbered(CONFIG_NAME, written), *_numbered(RULES_NAME, saved))
    rules = [_build(name, table, around, setup) for name, table in tables]

    def views_of(argv: Sequence[str]) -> CommandViews:
        return read_command(argv, cwd=setup.project, env=env, policy=paths).for_rules

    for rule in rules:
        if problem := find_misfit(rule, views_of):
            raise _unusable(rule.name, problem)
    return RuleSet(rules)


def _numbered(file: str, tables: Sequence[PermissionRule]) -> Iterator[tuple[str, PermissionRule]]:
    for number, table in enumerate(tables, 1):
        yield f"{file}:{number}", table


def _build(name: str, table: PermissionRule, around: Surroundings, setup: Setup) -> Rule:
    home, project = setup.home, setup.project
    paths: list[str] = []
    for path in table.path or ():
        try:
            check_placeholders(path)
        except ConfigError as error:
            raise _unusable(name, error.message) from None
        filled = path.replace(PLACEHOLDERS[0], str(home)).replace(PLACEHOLDERS[1], str(project))
        expanded = os.path.expanduser(filled)  # noqa: PTH111 - a slash at the end stays
        if expanded.startswith("~"):
            raise _unusable(name, f"there is no user whose home {path!r} begins with")
        paths.append(expanded)
    return Rule(name, table, tuple(paths), around)


def _unusable(name: str, problem: str) -> ConfigError:
    file, _, number = name.rpartition(":")
    message = f"rule {number} in [[permissions.rules]] of {file} cannot be used: {problem}"
    return ConfigError(
        ErrorCode.CONFIG_ERROR, message, details={"key": f"permissions.rules[{int(number) - 1}]"}
    )
