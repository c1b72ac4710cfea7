"""`<home>/rules.toml`: the rules that were made of answers to questions."""

import tomllib
from pathlib import Path

from pydantic import ValidationError

from agent_core.config.problems import problems_of, read_text, unusable
from agent_core.config.rules import PermissionRule, Rules
from agent_core.config.section import Section

RULES_NAME = "rules.toml"


class _Table(Section):
    rules: Rules = []


class _File(Section):
    permissions: _Table = _Table.model_construct()


def read_rules(path: Path) -> list[PermissionRule]:
    """The rules of the file; none if there is no file.

    Raises:
        ConfigError: it cannot be read, or is no file of rules. Names the file and the key.
    """
    try:
        text = read_text(path)
        return [] if text is None else parse_rules(text)
    except ValueError as error:
        raise unusable(path, "rules", str(error)) from None


def parse_rules(text: str) -> list[PermissionRule]:
    """The rules in a text.

    Raises:
        ValueError: it has none; says what is wrong.
    """
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is not valid TOML: {error}") from None
    try:
        return _File.model_validate(table).permissions.rules
    except ValidationError as error:
        raise ValueError("; ".join(map(str, problems_of(error, _File)))) from None
