"""The user's rules: the calls that are allowed unasked, that ask, and that are refused.

A rule that allows covers exactly its words and no more. A rule that denies or asks applies to
everything it may mean: another spelling of a path or of a program's name, paths below a folder, a
word that is known only when a command runs.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Literal

from msgspec import Struct

from agent_core.config.paths import check_placeholders, fill_placeholders
from agent_core.config.rules import PermissionRule
from agent_core.disk.globs import PathGlobs
from agent_core.errors import ConfigError, ErrorCode
from agent_core.text import quoted
from agent_core.types import (
    Access,
    CommandView,
    CommandViews,
    RunIdentity,
    ToolDefinition,
)

_BUNDLE = re.compile(r"-[A-Za-z\d]{0,3}|--.*")
"""Options by their letters; a longer word may hold a value: `-oNew`."""

_PLAIN_LINE = re.compile(r"[\w/.-]+(?: +[\w@%+:,./=-]+)*", re.ASCII)
"""A command line that no shell is needed to read."""


class RuleSubject(Struct, frozen=True, kw_only=True):
    """The subjects of a call that rules can name.

    Attributes:
        tool: the canonical name; None for an example of a rule, which is for its tools.
        agents: the caller: the role, and the id of the definition; None for an example.
        hosts: of a network call or of a command; None for other calls.
        paths: resolved.
        met: resolved paths a command reads below the folders that it names.
        places: the paths that are a reason of their own to ask, or outside the project.
        command: the programs a command would run.
        cwd: the folder it would run in.
        kinds: the values of `only` that fit the call; None for an example.
    """

    tool: str | None = None
    agents: frozenset[str] | None = None
    hosts: Sequence[str] | None = None
    paths: Sequence[str] = ()
    met: Sequence[str] = ()
    places: Sequence[str] = ()
    command: CommandViews | None = None
    cwd: str = "/"
    kinds: frozenset[str] | None = None


class RuleContext(Struct, frozen=True, kw_only=True):
    """The context in which the words of rules are read.

    Attributes:
        home: of the program, for paths that begin with its placeholder.
        project: a resolved folder: relative paths start there.
        search_path: the folders where commands are looked up.
        is_writable: tells whether tools may write to a path: such a program is not the user's.
    """

    home: Path
    project: Path
    search_path: str
    is_writable: Callable[[Path], bool]

    def build(self, name: str, table: PermissionRule) -> "Rule":
        """Return a rule with its paths expanded.

        Args:
            name: its place: `config.toml#2`.
            table: as it is written.

        Raises:
            ConfigError: a path cannot be used; names the rule.
        """
        try:
            paths = tuple(map(self.expand, table.path or ()))
        except ConfigError as error:
            raise unusable_rule(name, error.message) from None
        return Rule(name, table, paths, self)

    def expand(self, path: str) -> str:
        """Return the path of a rule with its placeholders and `~` filled in.

        Raises:
            ConfigError: it names a placeholder or a user that there is not.
        """
        check_placeholders(path)
        filled = fill_placeholders(path, home=self.home, project=self.project)
        expanded = os.path.expanduser(filled)  # noqa: PTH111 - a slash at the end stays
        if expanded.startswith("~"):
            message = f"{quoted(path)} begins with the home of a user who does not exist"
            raise ConfigError(ErrorCode.CONFIG_ERROR, message)
        return expanded

    def build_all(self, file: str, tables: Iterable[PermissionRule]) -> list["Rule"]:
        """The rules of a file, named by their place in it."""
        return [self.build(f"{file}#{at}", table) for at, table in enumerate(tables, 1)]

    def find_program(self, name: str) -> str | None:
        """Return the file of a bare name, links followed, where tools do not write."""
        for folder in map(Path, self.search_path.split(os.pathsep)):
            if folder.is_absolute() and (found := shutil.which(name, path=str(folder))):
                real = Path(os.path.realpath(found))
                if not self.is_writable(Path(found)) and not self.is_writable(real):
                    return str(real)
        return None


class Rule(Struct, frozen=True, dict=True):
    """One rule, ready to be matched.

    Attributes:
        name: its place: `config.toml#2` is the second rule there.
        table: as it is written.
        paths: its paths, expanded.
        around: the context in which its words are read.
    """

    name: str
    table: PermissionRule
    paths: tuple[str, ...]
    around: RuleContext

    def __str__(self) -> str:
        reason = f" ({self.table.reason})" if self.table.reason else ""
        return f"rule {self.name}{reason}"

    def concerns(self, named: RuleSubject) -> bool:
        """Return whether a rule that denies or asks applies: the call may mean all its keys."""
        table = self.table
        hosts, command = named.hosts or (), named.command
        return (
            self._is_for(named)
            and self._is_of_kind(named)
            and (table.host is None or any(self._may_mean(host) for host in hosts))
            and (table.path is None or self._touches(named))
            and (
                table.command is None
                or (command is not None and any(map(self._concerns_view, command.views)))
            )
        )

    def covers(self, named: RuleSubject) -> bool:
        """Return whether the rule allows the whole call and its reason, except the command's words.

        Only rules that name commands, or the tool for them, decide about a command.
        """
        table = self.table
        if table.host is not None and not (named.hosts and all(map(self._means, named.hosts))):
            return False
        if not self._is_of_kind(named):
            return False
        if table.path is None:
            if named.places and table.only != "reads":
                return False
        elif not (paths := self._read_paths(named)) or not all(map(self._open.cover, paths)):
            return False
        if named.command is None:
            return table.command is None and table.only != "reads" and self._is_for(named)
        is_for_commands = (table.command, table.tool) != (None, None) or table.only == "reads"
        return is_for_commands and self._is_for(named)

    @property
    def is_for_every_command(self) -> bool:
        """Return whether its words are a single `*`."""
        return self.table.command == [["*"]]

    def allows_writes(self, views: Iterable[CommandView]) -> bool:
        """Return whether its paths cover the files that redirections write."""
        if self.table.command is None or self.is_for_every_command:
            return True
        written = [path for view in views for path in view.writes]
        return not written or (self.table.path is not None and all(map(self._open.cover, written)))

    def allows_view(self, view: CommandView, cwd: str, *, is_example: bool = False) -> bool:
        """Return whether its words cover one program of a command, and its paths the `*`."""
        words = self.table.command
        if words is None:
            return True
        rest = words[-1] == ["*"]
        exact = words[:-1] if rest else words
        known = view.argv if view.unknown_from is None else view.argv[: view.unknown_from]
        if len(known) < len(exact) or (not rest and len(view.argv) != len(exact)):
            return False
        if self.table.host is not None and view.unknown_from is not None:
            return False  # it may be any host
        if self.table.path is not None and not self._covers_words(view, len(exact), cwd):
            return False
        if not exact:
            return view.unknown_from != 0
        is_program = any(self._is_program(name, view, is_example=is_example) for name in exact[0])
        return is_program and all(
            word in choices for word, choices in zip(known[1:], exact[1:], strict=False)
        )

    @cached_property
    def _open(self) -> PathGlobs:
        return PathGlobs.exact(self.paths, self.around.project)

    @cached_property
    def _closed(self) -> PathGlobs:
        return PathGlobs.generous(self.paths, self.around.project)

    def _is_for(self, named: RuleSubject) -> bool:
        tools, agents = self.table.tool, self.table.agent
        is_tool = (
            tools is None
            or named.tool is None
            or any(fnmatchcase(named.tool, name) for name in tools)
        )
        return is_tool and (
            agents is None or named.agents is None or not named.agents.isdisjoint(agents)
        )

    def _is_of_kind(self, named: RuleSubject) -> bool:
        """Return whether `only` admits the call."""
        only = self.table.only
        return only is None or named.kinds is None or only in named.kinds

    def _read_paths(self, named: RuleSubject) -> set[str]:
        """Return the paths that a rule with `path` has to cover to allow a call.

        A command that only reads may name none: it reads the folder that it runs in.
        """
        folder = [named.cwd] if self.table.only == "reads" and named.command else []
        return {*named.paths, *named.places, *folder}

    def _entered(self, named: RuleSubject) -> Iterator[str]:
        """The paths of a call; of a command also the folder and the programs it names by a path."""
        yield from named.paths
        for view in named.command.views if named.command else ():
            if view.argv and "/" in view.argv[0]:
                called = os.path.join(named.cwd, view.argv[0])  # noqa: PTH118
                yield from (os.path.normpath(called), os.path.realpath(called))
        if named.command is not None and named.cwd != str(self.around.project):
            yield named.cwd

    def _touches(self, named: RuleSubject) -> bool:
        is_named = any(map(self._closed.touch, self._entered(named)))
        return is_named or self._closed.find_touched(named.met) is not None

    def may_concern_files(self, named: RuleSubject) -> bool:
        """Return whether it denies or asks for paths that a call may read without naming them."""
        table = self.table
        is_restriction = table.decision != "allow" and table.path is not None
        return is_restriction and table.host is None and self._is_for(named)

    def _means(self, host: str) -> bool:
        from agent_core.permissions.addresses import is_host  # noqa: PLC0415 - few rules

        return any(is_host(host, name) for name in self.table.host or ())

    def _may_mean(self, host: str) -> bool:
        from agent_core.permissions.addresses import may_be_host  # noqa: PLC0415 - few rules

        return any(may_be_host(host, name) for name in self.table.host or ())

    def _covers_words(self, view: CommandView, start: int, cwd: str) -> bool:
        """Return whether the words from `start` on are only options, numbers and covered paths.

        A word may be a file that does not exist yet, and an unknown word may be any file.
        """
        if view.unknown_from is not None or view.only_reads:
            return view.unknown_from is None
        for word in view.argv[max(start, 1) :]:
            name = word
            if word.startswith("-"):
                name = word.partition("=")[2] or ("" if _BUNDLE.fullmatch(word) else word[2:])
            if name and not name.isdecimal() and "://" not in name:
                path = os.path.join(cwd, os.path.expanduser(name))  # noqa: PTH111, PTH118
                if not self._open.cover(os.path.realpath(path)):
                    return False
        return True

    def _is_program(self, name: str, view: CommandView, *, is_example: bool) -> bool:
        """Return whether the name in a rule is the program of a view, and not just its name."""
        called = view.argv[0]
        if _name(called) != _name(name):  # one file may be many programs
            return False
        if view.program is None:
            return is_example and called == name  # it is not installed here
        # A link in the project is no program of the system, wherever it leads.
        is_own = view.file is not None and self.around.is_writable(Path(view.file))
        if "/" in name:
            path = self.around.project / name
            if is_own:
                return _found_at(path) == _found_at(Path(view.file or ""))
            return os.path.realpath(path) == view.program
        if is_own or ("/" in called and not called.startswith("/")):
            return False
        return view.program in {name, self.around.find_program(name)}

    def _concerns_view(self, view: CommandView) -> bool:
        words = self.table.command or []
        rest = words[-1] == ["*"]
        exact = words[:-1] if rest else words
        known = view.argv if view.unknown_from is None else view.argv[: view.unknown_from]
        if exact and not (known and any(self._may_be_program(name, view) for name in exact[0])):
            return False
        both = zip(known[1:], exact[1:], strict=False)
        if not all(word in choices for word, choices in both):
            return False
        if len(known) > len(exact):
            return rest
        return len(known) == len(exact) or view.unknown_from is not None

    def _may_be_program(self, name: str, view: CommandView) -> bool:
        called, program = view.argv[0], view.program or ""
        if "/" in name:
            real = os.path.realpath(self.around.project / name)
            return real == program or name == called
        names = {_name(called), _name(program)}
        return name.casefold() in {each.casefold() for each in names}


def _kinds(access: Access) -> frozenset[str]:
    """Return the values of `only` that fit a call."""
    fitting = {
        "reads": access.command is not None and access.reads,
        "edits": access.edits,
    }
    return frozenset(kind for kind, fits in fitting.items() if fits)


def _found_at(path: Path) -> str:
    """Return a path with the links in front of its last part followed."""
    folder, name = os.path.split(os.path.normpath(path))
    return f"{os.path.realpath(folder)}/{name}"


def _name(program: str) -> str:
    return program.rpartition("/")[2]


def unusable_rule(name: str, problem: str) -> ConfigError:
    """The error for a rule that cannot be used: `config.toml#2` is the second one there."""
    file, _, number = name.rpartition("#")
    message = f"rule {number} in [[permissions.rules]] of {file} cannot be used: {problem}"
    details = {"key": f"permissions.rules[{int(number) - 1}]"} if number.isdecimal() else {}
    return ConfigError(ErrorCode.CONFIG_ERROR, message, details=details)


def find_misfit(rule: Rule, views_of: Callable[[list[str]], CommandViews]) -> str | None:
    """Return the first fault of the examples of a rule, or None.

    Args:
        rule: a rule.
        views_of: returns the programs a command runs; a command line is one for a shell.
    """
    for key, wanted in (("match", True), ("not_match", False)):
        for example in getattr(rule.table, key):
            named = _named_by(rule, example, views_of)
            if _fits_example(rule, named) == wanted:
                continue
            if not wanted:
                return f"the example {example!r} of not_match fits the rule"
            problem = named.command.problem if named.command else None
            why = f": {problem}" if problem else ""
            return f"the example {example!r} of match does not fit the rule{why}"
    return None


def _named_by(
    rule: Rule, example: str | list[str], views_of: Callable[[list[str]], CommandViews]
) -> RuleSubject:
    """Return the subjects of an example: it belongs to the first of the rule's keys but `agent`."""
    from agent_core.permissions.addresses import hosts_in  # noqa: PLC0415 - few rules

    table, text = rule.table, example if isinstance(example, str) else " ".join(example)
    is_command = table.command is not None or table.only == "reads"
    if is_command or isinstance(example, list):
        words = ["sh", "-c", example] if isinstance(example, str) else example
        if isinstance(example, str) and _PLAIN_LINE.fullmatch(example):
            words = example.split()
        views = views_of(words)
        named = [word for view in views.views for word in view.argv[1:] if word[:1] != "-"]
        redirected = [path for view in views.views for path in (*view.reads, *view.writes)]
        paths = (*named, *redirected)
        return RuleSubject(
            hosts=hosts_in({"argv": words}, views.views) if table.host is not None else None,
            paths=[os.path.realpath(rule.around.project / path) for path in paths],
            command=views,
            cwd=str(rule.around.project),
        )
    if table.path is not None or table.only is not None:
        path = os.path.realpath(rule.around.project / os.path.expanduser(text))  # noqa: PTH111
        return RuleSubject(paths=[path])
    if table.host is not None:
        return RuleSubject(hosts=hosts_in({"host": text}))
    if table.tool is not None:
        return RuleSubject(tool=text)
    return RuleSubject(agents=frozenset({text}))


def _fits_example(rule: Rule, named: RuleSubject) -> bool:
    if rule.table.decision != "allow":
        return rule.concerns(named)
    if not rule.covers(named):
        return False
    if (command := named.command) is None:
        return True
    return (
        command.problem is None
        and bool(command.views)
        and rule.allows_writes(command.views)
        and all(rule.allows_view(view, named.cwd, is_example=True) for view in command.views)
    )


class RuleSet:
    """All rules together: deny before ask before allow, whatever their order.

    Attributes:
        rules: the rules in force.
        around: the context for further rules.
    """

    def __init__(self, rules: Iterable[Rule], around: RuleContext) -> None:
        self.rules = tuple(rules)
        self.around = around

    def replace_saved(self, file: str, tables: Iterable[PermissionRule]) -> None:
        """Replace the rules of a file with these."""
        others = [rule for rule in self.rules if not rule.name.startswith(f"{file}#")]
        self.rules = (*others, *self.around.build_all(file, tables))

    @property
    def have_hosts(self) -> bool:
        """Return whether a rule is about hosts."""
        return any(rule.table.host is not None for rule in self.rules)

    def named(
        self,
        definition: ToolDefinition,
        access: Access,
        run: RunIdentity,
        hosts: Sequence[str] | None,
    ) -> RuleSubject:
        """Return the subjects of a call."""
        target = access.target or "(not known)"
        return RuleSubject(
            tool=definition.name,
            agents=frozenset(filter(None, (run.role, run.agent_definition_id))),
            hosts=hosts,
            paths=access.paths,
            met=access.met,
            places=access.places or ((access.paths or (target,)) if access.reason else ()),
            command=access.command,
            cwd=access.cwd or str(self.around.project),
            kinds=_kinds(access),
        )

    def find(self, decision: Literal["deny", "ask"], named: RuleSubject) -> Rule | None:
        """The first rule that denies, or asks for, the call."""
        mine = (rule for rule in self.rules if rule.table.decision == decision)
        return next((rule for rule in mine if rule.concerns(named)), None)

    def find_possible(self, named: RuleSubject) -> Rule | None:
        """Return a rule about paths that may be about what a command opens without naming it."""
        if named.command is None or not named.command.unseen:
            return None
        return next((rule for rule in self.rules if rule.may_concern_files(named)), None)

    def may_allow(self, tool_name: str) -> bool:
        """Return whether a rule may allow some call of a tool."""
        return any(
            rule.table.decision == "allow"
            and any(fnmatchcase(tool_name, each) for each in rule.table.tool or ("*",))
            for rule in self.rules
        )

    def find_allowing(self, named: RuleSubject) -> list[Rule]:
        """Return the rules that allow the call together; none if a part of it is not covered.

        One rule covers a call. A command may run several programs: each needs a rule, and the
        command is not allowed if its programs are not known with certainty.
        """
        fitting = [
            rule for rule in self.rules if rule.table.decision == "allow" and rule.covers(named)
        ]
        if named.command is None or not fitting:
            return fitting[:1]
        command = named.command
        if command.problem is not None:
            return self._find_allowing_all(fitting, command)
        fitting = [rule for rule in fitting if rule.allows_writes(named.command.views)]
        found: dict[str, Rule] = {}
        for view in named.command.views:
            rule = next((rule for rule in fitting if rule.allows_view(view, named.cwd)), None)
            if rule is None:
                return []
            found[rule.name] = rule
        return list(found.values())

    def _find_allowing_all(self, fitting: Iterable[Rule], command: CommandViews) -> list[Rule]:
        """Return a rule for every command, even if the programs of the command are uncertain.

        If rules deny or ask for commands, an uncertain program may be one they name.
        """
        if command.asks_anyway or any(
            rule.table.decision != "allow" and rule.table.command is not None for rule in self.rules
        ):
            return []
        return [rule for rule in fitting if rule.is_for_every_command][:1]
