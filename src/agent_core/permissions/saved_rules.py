"""`<home>/rules.toml`: the rules that were made of answers to questions."""

import json
import logging
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agent_core.config.positions import problem_of
from agent_core.config.problems import problems_of, read_text, unusable, with_lines
from agent_core.config.removal import remove_table
from agent_core.config.rules import PermissionRule, Rules
from agent_core.config.section import Section
from agent_core.disk.replacing import replace_file, writing_alone
from agent_core.errors import AgentCoreError
from agent_core.permissions.request import WideGrant
from agent_core.permissions.rules import RuleSet, RuleSubject
from agent_core.redaction.redactor import Redactor
from agent_core.text import visible
from agent_core.text.shell import command_line
from agent_core.types import (
    Access,
    Decision,
    RunIdentity,
    ToolDefinition,
    ToolPermission,
)

logger = logging.getLogger(__name__)

RULES_NAME = "rules.toml"
LOCK_NAME = "rules.lock"
_GLOB = re.compile(r"([*?[{])")


class _Table(Section):
    rules: Rules = []


class _File(Section):
    permissions: _Table = _Table.model_construct()


def read_rules(path: Path) -> list[PermissionRule]:
    """Return the rules of the file; none if there is no file.

    Raises:
        ConfigError: it cannot be read, or is not a file of rules. Names the file and the key.
    """
    try:
        text = read_text(path)
        return [] if text is None else parse_rules(text)
    except ValueError as error:
        raise unusable(path, "rules", str(error)) from None


def parse_rules(text: str) -> list[PermissionRule]:
    """Return the rules in a text.

    Raises:
        ValueError: it has none; names the fault.
    """
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is not valid TOML: {problem_of(text, error)}") from None
    try:
        return _File.model_validate(table).permissions.rules
    except ValidationError as error:
        raise ValueError("; ".join(with_lines(problems_of(error, _File), text))) from None


def remove_rule(home: Path, number: int, rule: PermissionRule) -> None:
    """Remove a rule from the file; the rest stays as it is, comments included.

    Args:
        home: where the file is.
        number: the place of the rule among those of the file, from 1.
        rule: the rule that has to be there.

    Raises:
        ConfigError: the rule is not there, or the file cannot be used as it is.
        OSError: it cannot be written.
    """
    from tomlkit import parse  # noqa: PLC0415 - slow to import, and used here only

    path = home / RULES_NAME
    with writing_alone(home / LOCK_NAME):
        rules = read_rules(path)
        if rules[number - 1 : number] != [rule]:
            message = f"it has changed: its rule {number} is another one now"
            raise unusable(path, "rules", message)
        del rules[number - 1]
        document = parse(read_text(path) or "")
        remove_table(document, "permissions", "rules", number - 1)
        after = document.as_string()
        if path.is_symlink():
            raise unusable(path, "rules", "it is a link, which a file would replace")
        if parse_rules(after) != rules:
            message = "a rule cannot be removed without touching the others: edit the file"
            raise unusable(path, "rules", message)
        replace_file(path, after.encode(), home=home)


class SavedRules:
    """Adds rules to the file, and to the rules in force.

    Args:
        home: where the file is.
        rules: what is in force.
        redactor: a rule with a secret in it is not offered.

    Attributes:
        rules: what is in force.
    """

    def __init__(self, home: Path, rules: RuleSet, redactor: Redactor) -> None:
        self._home = home
        self.rules = rules
        self._redactor = redactor

    def propose(
        self,
        definition: ToolDefinition,
        access: Access,
        run: RunIdentity,
        hosts: Sequence[str] | None,
    ) -> str | None:
        """Return the narrowest rule that allows calls like this one, as written in the file.

        None if no rule says just that: for a call with a reason of its own, one of an own tool
        that is remembered with its arguments, and a command that runs several programs or is not
        understood. For a tool of an MCP server it is the rule for the tool, whatever its arguments.
        """
        subject = _subject(definition, access, hosts, self.rules.around.is_writable)
        if subject is None:
            return None
        return self._written(subject, self.rules.named(definition, access, run, hosts))

    def propose_wide(
        self, wide: WideGrant, definition: ToolDefinition, access: Access, run: RunIdentity
    ) -> str | None:
        """Return the rule that gives the wider answer of this session to every session."""
        kind = {Decision.ALLOW_READS: "reads", Decision.ALLOW_EDITS: "edits"}[wide.decision]
        below = f"{_escaped(Path(wide.project)).rstrip('/')}/**"
        subject = [("path", below), ("only", kind)]
        return self._written(subject, self.rules.named(definition, access, run, None))

    def _written(self, subject: list[tuple[str, Any]], named: RuleSubject) -> str | None:
        """Return the text of a rule; None if it cannot be written, or does not allow the call.

        Args:
            subject: its keys, and their values.
            named: the subjects of the call.
        """
        lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in subject]
        text = "\n".join(["[[permissions.rules]]", 'decision = "allow"', *lines, ""])
        if visible(text) != text or self._redactor.text(text) != text:
            return None
        try:
            (table,) = parse_rules(text)
        except ValueError:
            return None
        rule = self.rules.around.build(RULES_NAME, table)
        return text if RuleSet([rule], self.rules.around).find_allowing(named) else None

    def save(self, text: str) -> None:
        """Append a rule to the file, and put it in force.

        The rest of the file stays unchanged, comments included. Nothing is written if the file
        would no longer be a file of rules.

        Raises:
            ConfigError: the file cannot be used as it is.
            OSError: it cannot be written.
        """
        path = self._home / RULES_NAME
        with writing_alone(self._home / LOCK_NAME):
            try:
                before = read_text(path) or ""
                known = parse_rules(before)
            except ValueError as error:
                raise unusable(path, "rules", str(error)) from None
            (rule,) = parse_rules(text)
            if rule not in known:
                joint = "" if not before else "\n" if before.endswith("\n") else "\n\n"
                after = f"{before}{joint}{text}"
                try:
                    if parse_rules(after) != [*known, rule]:
                        raise ValueError("a rule cannot be added after the file's present content")
                    if path.is_symlink():
                        raise ValueError("it is a link, which a file would replace")
                except ValueError as error:
                    raise unusable(path, "rules", str(error)) from None
                known = [*known, rule]
                self.rules.around.build_all(RULES_NAME, known)  # or nothing is written
                # The mode is for its user only, whatever it was.
                replace_file(path, after.encode(), home=self._home)
        self.rules.replace_saved(RULES_NAME, known)

    def save_or_warn(self, text: str) -> None:
        """Write a rule as `save` does, and log why it could not be."""
        try:
            self.save(text)
        except (AgentCoreError, OSError) as error:
            # The call itself is allowed: a rule that was not saved means the next call asks again.
            logger.warning("the rule was not saved: %s", self._redactor.text(str(error)))


def _subject(
    definition: ToolDefinition,
    access: Access,
    hosts: Sequence[str] | None,
    is_writable: Callable[[Path], bool],
) -> list[tuple[str, Any]] | None:
    """Return the keys of a rule about a call; None if a rule cannot express it."""
    if access.reason is not None:
        return None
    tool = ("tool", definition.name)
    if access.command is not None:
        views = access.command.views
        if access.command.problem is not None or len(views) != 1 or views[0].writes:
            return None
        (view,) = views
        words = [*view.argv]
        if view.unknown_from is not None or words[-1:] == ["*"]:
            return None
        if access.target != command_line(words):  # a wrapper was looked through
            return None
        # A link of the project is named by itself: it is no program of the system.
        if view.file is not None and is_writable(Path(view.file)):
            words[0] = view.file
        elif "/" in words[0]:
            words[0] = str(view.program)
        return [tool, ("command", words)]
    if "mcp" in definition.tags:
        return [tool, ("host", [*hosts])] if hosts else [tool]
    only_reads = definition.permission is ToolPermission.READONLY and not access.dangerous
    if len(access.paths) == 1 and "code" in definition.tags:
        path = Path(access.paths[0])
        if only_reads or not access.edits:
            return [tool, ("path", _escaped(path))]
        folder = f"{_escaped(path.parent).rstrip('/')}/*"
        return [tool, ("path", folder), ("only", "edits")]
    if not only_reads or "dangerous" in definition.tags or hosts == []:
        return None
    return [tool, ("host", [*hosts])] if hosts else [tool]


def _escaped(path: Path) -> str:
    return _GLOB.sub(r"[\1]", str(path))
