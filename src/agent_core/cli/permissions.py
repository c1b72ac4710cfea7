"""`soong-agent permissions`: explains decisions about calls, and shows rules and answers."""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

from pydantic import ValidationError

from agent_core.api import AgentRuntime
from agent_core.cli.config_file import ConfigFile
from agent_core.cli.exit_codes import COMPLETED, FAILED, MISUSED
from agent_core.cli.nearby import resolve_session
from agent_core.cli.options import Options
from agent_core.cli.settings import check_rules
from agent_core.cli.setup import build_terminal_redactor, open_runtime, run_on_terminal
from agent_core.cli.terminal import Style, Terminal
from agent_core.config.load import CONFIG_NAME
from agent_core.config.paths import Setup
from agent_core.config.positions import find_line, find_lines
from agent_core.config.problems import Problem, problems_of, read_text
from agent_core.config.rules import PermissionRule
from agent_core.errors import ConfigError, validation_error
from agent_core.permissions.saved_rules import RULES_NAME, remove_rule
from agent_core.runtime.permission_rules import load_rules, rule_context
from agent_core.text import Clean, listed, quoted, visible
from agent_core.text.json_text import JsonObject
from agent_core.text.shell import command_line
from agent_core.tools.workspace import PathPolicy
from agent_core.types import CommandView, CommandViews, PermissionExplanation, PermissionGrant

_IN_MEMORY = (
    "answers for a session are kept in the memory of their process; it alone can show and forget"
    ' them. [permissions] remember_scope = "session_stored" stores them'
)


def manage_permissions(options: Options) -> int:
    """Explain a call, show or change rules, or forget answers, and return the exit code."""
    act = {
        "add": _add,
        "explain": _explain,
        "forget": _forget,
        "list": _list,
        "remove": _remove,
    }[options.action]
    return run_on_terminal(options, options.path, partial(act, options), asks_model=False)


async def _explain(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    call = _named_call(options)
    if isinstance(call, str):
        terminal.line(f"error: {call}; see soong-agent permissions explain --help", Style.BAD)
        return MISUSED
    async with open_runtime(setup, saves_rules=sys.stdin.isatty(), read_only=True) as runtime:
        session_id = options.session_id and await resolve_session(runtime, options.session_id)
        found = await runtime.explain_permission(
            *call,
            session_id=session_id,
            agent=options.agent,
            permission_mode=options.mode or "ask",
        )
    if options.json:
        found_json = json.loads(clean(json.dumps(found.model_dump())))
        text = json.dumps(found_json, indent=2, ensure_ascii=False)
        # Parts of a name that are no UTF-8 are written as JSON escapes them.
        terminal.text(f"{text.encode('utf-8', 'backslashreplace').decode()}\n")
        return COMPLETED
    for name, value in _facts(found):
        for line in value.split("\n"):
            terminal.text(f"{name:<17}{visible(clean(line), one_line=True)}\n")
            name = ""
    return COMPLETED


def _named_call(options: Options) -> tuple[str, JsonObject] | str:
    """Return the named tool and its arguments, or an error about the options."""
    if options.words:
        if options.tool not in {None, "code.run_command"} or options.args is not None:
            return "give the words of a command, or --tool and --args"
        return "code.run_command", {"argv": options.words}
    if options.tool is None and options.args is None:
        return "name a command after --, or a tool with --tool"
    try:
        arguments: object = json.loads(options.args or "{}")
    except (ValueError, RecursionError) as error:
        return f"--args is not JSON: {error}"
    if not isinstance(arguments, dict):
        return "--args is not a JSON object"
    return options.tool or "code.run_command", cast("JsonObject", arguments)


_MOST_MET = 20
_CONDITIONS = ("tool", "path", "host", "agent")
"""The options of `permissions add` that name calls by what they are about."""


def _shown_some(paths: Sequence[str]) -> str:
    more = len(paths) - _MOST_MET
    return "\n".join((*paths[:_MOST_MET], *([f"… (+{more} more)"] if more > 0 else [])))


def _command_facts(command: CommandViews) -> Iterator[tuple[str, str]]:
    yield "runs", "\n".join(map(_shown_view, command.views)) or "no program"
    if command.problem:
        yield "not by a rule", command.problem
    elif command.unseen:
        yield "not known", f"{command.unseen}: rules with a path may be about it"


def _facts(found: PermissionExplanation) -> Iterator[tuple[str, str]]:
    yield "decision", found.decision
    yield "because of", found.by
    yield "tool", found.tool_name
    if found.target:
        yield "target", found.target
    if found.cwd:
        yield "in", found.cwd
    if found.command is not None:
        yield from _command_facts(found.command)
    if found.reason:
        yield "its own reason", "\n".join((found.reason, *found.places))
    elif found.paths:
        yield "paths", "\n".join(found.paths)
    if found.met:
        yield "opens below", _shown_some(found.met)
    if found.hosts is not None:
        yield "hosts", ", ".join(found.hosts) or "none that can be seen"
    yield "sandbox", found.confined or "off for this call"
    if found.no_network:
        yield "network", found.no_network.replace("no network", "none", 1)
    yield from _answer_facts(found)
    if found.failure:
        yield "fails anyway", found.failure
    if found.refusal:
        yield "the model reads", found.refusal


def _answer_facts(found: PermissionExplanation) -> Iterator[tuple[str, str]]:
    if found.decision == "ask" or found.covers:
        yield "for the session", found.covers or "this call only"
    if found.wide:
        yield "or wider", found.wide
    if found.rule:
        yield "always", found.rule.rstrip()
    if found.wide_rule:
        yield "always, wider", found.wide_rule.rstrip()


def _shown_view(view: CommandView) -> str:
    known = view.argv if view.unknown_from is None else view.argv[: view.unknown_from]
    words = [command_line(known), *(["…"] if view.unknown_from is not None else [])]
    redirections = [f"< {path}" for path in view.reads] + [f"> {path}" for path in view.writes]
    return " ".join([*words, *redirections, f"({view.program or 'not found'})"])


async def _list(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    async with open_runtime(setup, read_only=True) as runtime:
        session_id = options.session_id and await resolve_session(runtime, options.session_id)
        grants = await runtime.permission_grants(session_id)
    show_rules(setup, terminal, clean)
    if setup.config.permissions.remember_scope != "session_stored":
        terminal.line(_IN_MEMORY, Style.DIM)
    show_grants(grants, terminal, clean)
    return COMPLETED


def _add(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    named = {
        "tool": options.rule_tools,
        "command": [*options.words],
        "path": options.rule_paths,
        "host": options.rule_hosts,
        "agent": options.rule_agents,
        "only": options.only,
        "reason": options.reason,
    }
    rule = {"decision": options.decision} | {key: value for key, value in named.items() if value}
    if not setup.config_path.exists():
        message = "error: there is no config.toml yet; soong-agent config set model <provider:name>"
        terminal.line(f"{message} writes one", Style.BAD)
        return MISUSED
    try:
        typed = PermissionRule.model_validate(rule)
        fault = _fault_of_typed(typed, setup)
    except ValidationError as error:
        fault, typed = _in_typed_words(problems_of(error, PermissionRule)[0], options), None
    if typed is None or fault:
        text = visible(clean(f"error: nothing was written: {fault}"), one_line=True)
        terminal.line(text, Style.BAD)
        return MISUSED
    file = ConfigFile(setup.home, build_terminal_redactor(os.environ, setup), check_rules)
    done = file.add_rule(rule)
    said = "added" if done.before != done.after else "there already"
    terminal.text(f"{visible(clean(describe_rule(typed)), one_line=True)}\n")
    terminal.line(f"{said}: {done.key}, {CONFIG_NAME}:{done.line}", Style.DIM)
    return COMPLETED


def _remove(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    rules = {rule.name: rule.table for rule in load_rules(setup, PathPolicy.of(setup)).rules}
    if options.id not in rules:
        names = f"the rules are {listed([*rules])}" if rules else "there are none"
        message = f"there is no rule {quoted(options.id)}; {names}"
        terminal.line(visible(f"error: {message}", one_line=True), Style.BAD)
        return FAILED
    rule = rules[options.id]
    file, _, number = options.id.partition("#")
    if file == RULES_NAME:
        remove_rule(setup.settings_home, int(number), rule)
    else:
        redactor = build_terminal_redactor(os.environ, setup)
        ConfigFile(setup.home, redactor, check_rules).remove_rule(int(number), rule)
    terminal.text(f"{visible(clean(describe_rule(rule)), one_line=True)}\n")
    terminal.line(f"removed from {file}", Style.DIM)
    return COMPLETED


def _in_typed_words(problem: Problem, options: Options) -> str:
    """Return what is wrong with a rule, in the words of its command line."""
    key = problem.key.partition(".")[0].partition("[")[0]
    program = next(iter(options.words), "")
    if key == "command" and "/" not in program and len(program.split()) > 1:
        line = " ".join([program, *map(shlex.quote, options.words[1:])])
        return f"{quoted(program)} is one word; write each by itself: -- {line}"
    named = (getattr(options, f"rule_{name}s") for name in _CONDITIONS)
    if not key and not (program or options.only or any(named)):
        names = ", ".join(f"--{name}" for name in _CONDITIONS)
        return f"the rule covers no calls; name a command after --, or add {names} or --only"
    subject = "the command" if key == "command" else f"--{key}" if key else "the rule"
    return f"{subject} {problem.message}"


def _fault_of_typed(rule: PermissionRule, setup: Setup) -> str:
    """Return why a rule cannot be added; empty if it can."""
    around = rule_context(setup, PathPolicy.of(setup))
    for path in rule.path or ():
        try:
            around.expand(path)
        except ConfigError as error:
            return f"--path {quoted(path)} cannot be used: {error.message}"
    for at, other in enumerate(setup.config.permissions.rules):
        if other.subject == rule.subject and other.decision != rule.decision:
            text = read_text(setup.config_path) or ""
            line = find_line(find_lines(text, with_headers=True), f"permissions.rules[{at}]")
            place = f"{CONFIG_NAME}:{line}" if line else CONFIG_NAME
            said = f"{place} has a rule for exactly these calls, which says {other.decision}"
            return f"{said}; edit it there"
    return ""


_DECIDES = {"allow": "allows without a question", "ask": "asks before", "deny": "denies"}


def describe_rule(rule: PermissionRule) -> str:
    """Return in one sentence which calls a rule is about, and what it does."""
    parts: list[str] = []
    if rule.command is not None:
        rest = rule.command[-1] == ["*"]
        exact = rule.command[:-1] if rest else rule.command
        words = " ".join(" or ".join(map(shlex.quote, word)) for word in exact)
        if not exact:
            parts.append("every command")
        else:
            parts.append(f"the command {words}, {'with any words after it' if rest else 'exactly'}")
    elif rule.tool is None:
        parts.append("calls of every tool")
    if rule.tool is not None:
        parts.append(f"{'by' if parts else 'calls of'} {' or '.join(rule.tool)}")
    kinds = {"reads": "that only read", "edits": "that only edit ordinary files", None: ""}
    parts.append(kinds[rule.only])
    if rule.path is not None:
        parts.append(f"on {' or '.join(rule.path)}")
        if any(path[:1] not in {"/", "~", "<", "$"} for path in rule.path):
            parts.append("(in whichever project is open)")
    if rule.host is not None:
        parts.append(f"to {' or '.join(rule.host)}")
    if rule.agent is not None:
        parts.append(f"by the agent {' or '.join(rule.agent)}")
    where = "" if rule.path is not None else ", in every project"
    return f"{_DECIDES[rule.decision]}: {' '.join(filter(None, parts))}{where}"


def show_rules(setup: Setup, terminal: Terminal, clean: Clean) -> None:
    """Show the rules in force in a project."""
    rules = load_rules(setup, PathPolicy.of(setup)).rules
    for rule in rules:
        words = [f"{key} = {_compact(value)}" for key, value in rule.table.subject.items()]
        reason = f"  ({rule.table.reason})" if rule.table.reason else ""
        line = f"{rule.name:<16} {rule.table.decision:<6} {', '.join(words)}{reason}"
        terminal.entry(visible(clean(line), one_line=True))
    if not rules:
        terminal.line("no rules", Style.DIM)


def show_grants(
    grants: Sequence[PermissionGrant], terminal: Terminal, clean: Clean, *, session_id: str = ""
) -> None:
    """Show remembered answers.

    Args:
        grants: the answers.
        terminal: where they are shown.
        clean: removes secrets.
        session_id: the session of a chat, which is not spelled out.
    """
    for grant in grants:
        is_own = grant.session_id == session_id
        where = "this session" if is_own else f"session {grant.session_id}"
        line = f"{grant.grant_id}  {where}  {clean(grant.covers)}"
        terminal.entry(visible(line, one_line=True))
    if not grants:
        terminal.line("there is no stored answer", Style.DIM)


def _compact(value: str | list[Any]) -> str:
    """Return a value as written by hand: a list of one item as that item."""
    if isinstance(value, str):
        return json.dumps(value)
    items = [_compact(item) if isinstance(item, list) else json.dumps(item) for item in value]  # pyright: ignore[reportUnknownArgumentType]
    return items[0] if len(items) == 1 else f"[{', '.join(items)}]"


async def _named(runtime: AgentRuntime, prefix: str) -> str:
    """Return the only stored answer, or session with some, with this prefix; else the prefix.

    Raises:
        AgentCoreError: `validation_error`: several do; nothing is forgotten.
    """
    grants = await runtime.permission_grants()
    ids = sorted({name for grant in grants for name in (grant.grant_id, grant.session_id)})
    found = [name for name in ids if name.startswith(prefix)]
    if prefix in ids or not found:
        return prefix
    if len(found) > 1:
        message = f"{prefix} begins several ids: {listed(found)}; nothing was forgotten"
        raise validation_error(message)
    return found[0]


async def _forget(options: Options, setup: Setup, terminal: Terminal, _: Clean) -> int:
    async with open_runtime(setup) as runtime:
        count = await runtime.forget_permissions(await _named(runtime, options.id))
    if count:
        terminal.line(f"forgotten: {count} {'answer' if count == 1 else 'answers'}")
        return COMPLETED
    terminal.line(
        f"error: no stored answer and no session with answers is named {options.id}", Style.BAD
    )
    if setup.config.permissions.remember_scope != "session_stored":
        terminal.line(_IN_MEMORY, Style.DIM)
    return FAILED
