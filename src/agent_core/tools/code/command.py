"""`code.run_command`: a program with its arguments, never a shell string."""

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import structs
from pydantic import Field

from agent_core import process
from agent_core.disk.folders import folder_address
from agent_core.errors import ErrorCode, ToolError
from agent_core.process.environment import configured_names
from agent_core.process.starts import explain_exit
from agent_core.text import shortened
from agent_core.text.json_text import JsonObject
from agent_core.text.shell import command_line
from agent_core.tools.base import Action, CutCallError, Tool, ToolContext
from agent_core.tools.files import disk_errors
from agent_core.tools.schema import Arguments
from agent_core.tools.values import storable_text
from agent_core.tools.workspace import (
    PathPolicy,
    ResolvedPath,
    Workspace,
    code_tool,
    keep_output,
    show_denial,
    show_disabled,
    show_left_running,
    timeout_result,
)
from agent_core.types import (
    BY_NETWORK,
    Access,
    CommandView,
    CommandViews,
    JsonBlock,
    ToolPermission,
    ToolResult,
)

if TYPE_CHECKING:
    from agent_core.process.live import LiveOutput
    from agent_core.process.sandbox import Sandbox, SandboxPlan
    from agent_core.tools.code.opened import Met
    from agent_core.tools.code.programs import CommandLine
    from agent_core.tools.code.views import ReadCommand

_MAX_ARGUMENT = 131_071
"""Longest single argument that Linux accepts, in bytes."""
_MAX_WORDS = 5_000

_BETWEEN = r"[\s'\"=;|&<>()`,:{}]+"
_ADDRESS = r"(?i)\b(?!file:)[a-z][a-z0-9+.-]{0,31}://[^\s'\"`;|&<>()]*"
_DIVISION = r"(?<=\w\s)//?(?=\s\w)"
_HOME_VARIABLE = re.compile(r"\$(?:HOME\b|\{HOME\})")
_FOLDER_VARIABLE = re.compile(r"(?:\$PWD\b|\$\{PWD\}|~\+)(?=/|$)")
_OF_ANOTHER_PROCESS = (Path("/proc"), Path("/dev"))  # the target depends on the process that looks
_LONGEST_BUNDLE = 32
_OF_THE_SHELL = frozenset(
    (":", "break", "cd", "continue", "exit", "read", "return", "set", "shift", "wait")
)
"""Shell commands without a file of their own, which change nothing outside the shell."""

_REPLACING = frozenset(
    (
        *("checkout", "cherry-pick", "merge", "mv", "pull", "rebase", "reset", "restore"),
        *("revert", "rm", "stash", "status", "switch"),
    )
)
"""Commands of Git that replace or remove tracked files, or show what was done."""

_EXECUTING = ("-x", "--ex", "--up")
"""The beginnings of options that run something; Git takes every beginning that is clear."""

_MAKING = frozenset(
    ("add", "branch", "checkout", "commit", "init", "log", "rev-parse", "show", "status", "switch")
)
"""The commands of Git with which a repository is made and first used."""

_INIT = re.compile(r"-q|--quiet|-b|--initial-branch(?:=.*)?|[^-].*", re.DOTALL)
"""Words of `git init` that bring in no hooks."""

_TESTS = frozenset(("[", "test"))
_PATH = r"(?=.*[/.])[^-\s'\"=;|&<>()`,:{}$*?\[][^\s'\"=;|&<>()`,:{}$*?\[]*"
"""Word that is read as a path even if nothing of that name exists yet."""


class RunCommand(Arguments):
    """Run a program. For pipes, globs or variables argv starts a shell.

    No input; background processes are stopped.
    """

    argv: Annotated[list[str], Field(min_length=1)]
    cwd: Annotated[str, Field(min_length=1)] = "."
    timeout_ms: Annotated[int | None, Field(ge=1)] = None


class SandboxedCommand(RunCommand):
    """Run a program in a sandbox. For pipes, globs or variables argv starts a shell.

    No input, minimal environment; background processes are stopped. It writes to the project and
    $TMPDIR only. What the sandbox blocks can be run again with `outside_sandbox`, which asks the
    user.
    """

    outside_sandbox: bool = False


class OfflineCommand(SandboxedCommand):
    """Run a program in a sandbox. For pipes, globs or variables argv starts a shell.

    No input, minimal environment; background processes are stopped. It writes to the project and
    $TMPDIR only, and has no network without `network`. What the sandbox blocks can be run again
    with `outside_sandbox`. Both ask the user.
    """

    network: bool = False


def run_command(workspace: Workspace) -> Tool:
    """The tool, for one workspace."""
    arguments: type[RunCommand] = RunCommand
    if sandbox := workspace.sandbox:
        arguments = OfflineCommand if sandbox.config.network == "ask" else SandboxedCommand

    async def prepare(arguments: RunCommand, context: ToolContext) -> Action:
        return await asyncio.to_thread(_prepare, workspace, arguments, context)

    return code_tool(
        "run_command",
        arguments,
        prepare,
        kind="execute",
        permission=ToolPermission.WRITE,
        tag="dangerous",
        keeps_own_limits=True,
    )


def _prepare(workspace: Workspace, arguments: RunCommand, context: ToolContext) -> Action:
    timeout_ms = arguments.timeout_ms or workspace.limits.default_timeout_ms
    if timeout_ms > workspace.limits.max_timeout_ms:
        message = f"timeout_ms must be at most {workspace.limits.max_timeout_ms}"
        raise ToolError(ErrorCode.VALIDATION_ERROR, message, details={"path": "$.timeout_ms"})
    for number, argument in enumerate(arguments.argv):
        problem = None
        if len(argument) > _MAX_ARGUMENT:
            problem = "is too long for an argument; put it into a file"
        elif storable_text(argument) != argument:
            problem = "has a NUL or a lone surrogate, which no argument can hold"
        if problem is not None:
            path = f"$.argv[{number}]"
            message = f"argv[{number}] {problem}"
            raise ToolError(ErrorCode.VALIDATION_ERROR, message, details={"path": path})
    place = workspace.boundaries.resolve(arguments.cwd)
    if not place.writable:
        raise ToolError(
            ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS,
            f"{place.path} is outside the project; commands run inside it",
            details={"cwd": str(place.path)},
        )
    if not place.path.is_dir():
        raise ToolError(ErrorCode.FILE_NOT_FOUND, f"there is no folder {place.shown} to run in")
    program = process.find_program(arguments.argv[0], cwd=place.path, env=workspace.env)
    policy = workspace.boundaries
    # How commands are read is much code, and most processes judge none.
    from agent_core.tools.code.places import may_be_read  # noqa: PLC0415
    from agent_core.tools.code.programs import CommandLine, session_scope  # noqa: PLC0415
    from agent_core.tools.code.views import read_command  # noqa: PLC0415

    read = read_command(arguments.argv, cwd=place.path, env=workspace.env, policy=policy)
    met, guessed = _meet_all(read, place.path), _meet_guesses(policy, read, place.path)
    reason, places, paths = _find_named_places(policy, read, met, program=program, cwd=place.path)
    command = CommandLine(
        program=program,
        argv=arguments.argv,
        cwd=place.path,
        env=workspace.env,
        reason=reason,
        opens_only_what_may_be_read=read.unseen is None
        and policy.find_denied(met.opened) is None
        and not (read.history and policy.denies_paths),
        policy=policy,
    )
    changes_nothing = _changes_nothing(read, command) and _expands_inside(read, command)
    is_written = not (read.expanded or read.gives_names)
    if reason == "outside_roots" and changes_nothing and is_written and read.unseen is None:
        is_free = all(map(may_be_read, {*places, *policy.find_outside(met.opened)}))
        reason = None if is_free else reason
        command = structs.replace(command, reason=reason, opens_outside=True)
    views = replace(read.for_rules, problem=None) if changes_nothing else read.for_rules
    shown = command_line(arguments.argv)
    access = Access(
        asks=True,
        scope=session_scope(command),
        summary=shown,
        target=shown,
        cwd=str(place.path),
        env_names=configured_names(workspace.env),
        dangerous=True,
        reason=reason,
        places=places,
        paths=paths,
        met=(*met.opened, *met.tracked, *guessed.opened),
        command=views,
    )
    opens_freely = reason is None and command.opens_only_what_may_be_read
    is_as_written = all(view.unknown_from is None for view in read.views) and not read.problems
    access = replace(
        access,
        only_reads=changes_nothing and is_as_written and context.run.permission_mode == "plan",
        reads=changes_nothing and opens_freely,
    )
    argv = [str(program), *arguments.argv[1:]]
    plan = None
    if workspace.sandbox is not None:
        access, plan = _confine(workspace.sandbox, arguments, access)
    run_it = partial(_run, workspace, place, argv, timeout_ms, context, plan)
    return Action(access, partial(run_it, access=access, connects=not changes_nothing))


def _meet_all(read: "ReadCommand", cwd: Path) -> "Met":
    """Return the entries that the programs of a command reach below the folders they open."""
    from agent_core.tools.code.opened import Met, meet  # noqa: PLC0415 - see above

    met = Met()
    for opening in read.openings:
        for base in read.bases(cwd):
            meet(opening, base, met)
    if not met.is_complete and read.unseen is None:
        read.unseen = "it reads more files than can be checked"
    if met.splits_names and read.unseen is None:
        read.unseen = "it would split names that have blanks or special characters"
    if met.shows_history:
        read.history = "it may show files of earlier commits"
    return met


def _meet_guesses(policy: PathPolicy, read: "ReadCommand", cwd: Path) -> "Met":
    """Return the entries a command with unknown options may reach; rules allow no secret there."""
    from agent_core.tools.code.opened import Met, meet  # noqa: PLC0415 - see above

    guessed = Met()
    for opening in read.guesses:
        meet(opening, cwd, guessed)
    found = [*policy.find_secrets(guessed.opened), *policy.find_outside(guessed.opened)]
    if found:
        read.problems.append(f"{read.unseen}: it may be {found[0]}")
    return guessed


def _changes_nothing(read: "ReadCommand", command: "CommandLine") -> bool:
    """Return whether everything that a command runs only reads, in each folder it works in."""
    from agent_core.tools.code.programs import reading_subcommand  # noqa: PLC0415 - see above
    from agent_core.tools.code.views import READS_A_LINE  # noqa: PLC0415

    def reads(view: CommandView, argvs: Sequence[Sequence[str]], cwd: Path) -> bool:
        name = view.argv[0]
        if view.program is None or view.program == name:
            return name in _OF_THE_SHELL | _TESTS
        if name in _TESTS:
            return not command.policy.is_below_write_root(Path(view.program))
        try:
            program = process.find_program(name, cwd=cwd, env=command.env)
        except ToolError:  # not from this folder
            return False
        all_of_it = (
            structs.replace(command, program=program, argv=argv, cwd=cwd) for argv in argvs
        )
        return all(reading_subcommand(each, may_start=True) is not None for each in all_of_it)

    is_clear = bool(read.views) and {READS_A_LINE}.issuperset(read.problems)
    return is_clear and all(
        view.argv
        and (view.unknown_from is None or number in read.sure)
        and not view.writes
        and reads(view, read.sure.get(number) or (view.argv,), cwd)
        for number, view in enumerate(read.views)
        for cwd in (command.cwd, *read.folders)
    )


def _expands_inside(read: "ReadCommand", command: "CommandLine") -> bool:
    """Return whether all that expanded words stand for is in the project, and may be read."""
    policy = command.policy
    places = (
        place
        for base in read.bases(command.cwd)
        for name in read.expanded
        for place in _resolve(policy, name, base)
    )
    return all(place.writable and not place.sensitive for place in places)


def _confine(
    sandbox: "Sandbox", arguments: RunCommand, access: Access
) -> tuple[Access, "SandboxPlan | None"]:
    """Return a call with the plan of its sandbox; None: it runs outside, which always asks.

    Raises:
        ToolError: `tool_not_available`; the sandbox is required, and cannot be kept.
    """
    runs_outside = isinstance(arguments, SandboxedCommand) and arguments.outside_sandbox
    has_network = isinstance(arguments, OfflineCommand) and arguments.network
    if (runs_outside or has_network) and access.command is not None:
        problem = "it runs outside the sandbox" if runs_outside else "it has network access"
        views = replace(access.command, problem=problem, asks_anyway=True)
        access = replace(access, command=views)
    if runs_outside:
        reason = access.reason if access.reason == "program_home" else "outside_sandbox"
        confined = "off for this call, which runs outside of it"
        return replace(access, reason=reason, confined=confined), None
    is_git = access.command is not None and _only_replaces_tracked(access.command, sandbox)
    plan = sandbox.plan(
        "command",
        wants_network=has_network,
        is_git=is_git,
        runs_git=access.command is None or _may_run_git(access.command),
        makes_repository=access.command is not None and _makes_repository(access.command, sandbox),
    )
    if access.command is not None:
        _refuse_halves(access.command, plan, Path(access.cwd or os.curdir))
    scope = f"{access.scope}, in the sandbox{', with network access' if has_network else ''}"
    asks = sandbox.config.ask_inside or plan.must_ask or bool(access.reason) or has_network
    asked_by = None
    if has_network:
        asked_by = BY_NETWORK
    elif sandbox.config.ask_inside:
        asked_by = "[sandbox] ask_inside = true"
    elif plan.must_ask:
        asked_by = "[sandbox] ask_inside: it does not count, as not every rule can be enforced here"
    access = replace(
        access,
        confined=plan.words,
        no_network=sandbox.tell_network(plan),
        scope=scope,
        asks=asks,
        asked_by=asked_by,
        env_names=tuple(sorted({*access.env_names, "TMPDIR"})),
    )
    return access, plan


def _refuse_halves(command: CommandViews, plan: "SandboxPlan", cwd: Path) -> None:
    """Refuse what Git would do by halves, because it cannot write its settings.

    Raises:
        ToolError: `permission_denied`; nothing has been done.
    """
    from agent_core.tools.code import git_commands  # noqa: PLC0415 - in a sandbox only

    names = (Path(view.argv[0]).name for view in command.views if view.argv)
    if "git" not in names or not plan.holds_protected:
        return
    _refuse_half_a_tree(command, plan, cwd)
    found = git_commands.find_settings_change(command, cwd)
    if found is None:
        return
    settings = git_commands.settings_of(cwd)
    if found.startswith("git lfs"):
        settings = settings and os.path.join(os.path.dirname(settings), "hooks")  # noqa: PTH118, PTH120
    if settings in plan.confinement.protect and settings not in plan.copied:
        raise ToolError(
            ErrorCode.PERMISSION_DENIED,
            f"{found} was not started: it writes {settings}, which is read-only in the sandbox"
            ' (rule "protect"), and would be left half done; call it with outside_sandbox',
            details={"reason": "protected", "path": settings},
        )


def _refuse_half_a_tree(command: CommandViews, plan: "SandboxPlan", cwd: Path) -> None:
    """Refuse to replace the files of a working tree of which some cannot be written.

    Raises:
        ToolError: `permission_denied`; nothing has been done.
    """
    from agent_core.process.confinement import nearest  # noqa: PLC0415 - in a sandbox only
    from agent_core.process.repository_states import find_replaceable  # noqa: PLC0415 - likewise
    from agent_core.tools.code import git_commands  # noqa: PLC0415 - likewise
    from agent_core.tools.code.repositories import find_top  # noqa: PLC0415 - likewise

    replacing = git_commands.find_tree_change(command, cwd)
    if replacing is None or (top := find_top(replacing[1])) is None:
        return
    if not nearest(str(top), plan.confinement.write):
        path, rule, cure = str(top), "write", "call it with outside_sandbox"
        why = f"it replaces files all over {top}, which cannot be written"
    elif kept := find_replaceable([*filter(os.path.lexists, plan.confinement.protect)]):
        path, rule, cure = kept[0], "protect", "run it as a separate command"
        why = f"it may replace {path}, which other programs may not write"
    else:
        return
    raise ToolError(
        ErrorCode.PERMISSION_DENIED,
        f'{replacing[0]} was not started: {why} in the sandbox (rule "{rule}"), and it would be'
        f" done by halves; {cure}",
        details={"reason": "protected", "path": path},
    )


def _may_run_git(command: CommandViews) -> bool:
    """Return whether a command may run Git; only known programs that run no others may not.

    Programs that do not run Git see the real settings: no copies have to be made for them.
    """
    from agent_core.tools.code.readers import is_known  # noqa: PLC0415 - in a sandbox only

    names = [Path(view.argv[0]).name for view in command.views if view.argv]
    return command.problem is not None or any(
        name == "git" or not (name in _OF_THE_SHELL or is_known(name)) for name in names
    )


def _only_replaces_tracked(command: CommandViews, sandbox: "Sandbox") -> bool:
    """Return whether all that runs is Git with words that make it replace files that it tracks."""

    def replaces(words: Sequence[str]) -> bool:
        return words[0] in _REPLACING and not any(word.startswith(_EXECUTING) for word in words)

    return _is_only_git(command, sandbox, replaces)


def _makes_repository(command: CommandViews, sandbox: "Sandbox") -> bool:
    """Return whether all that runs is Git with words that make a repository without settings."""

    def makes(words: Sequence[str]) -> bool:
        if words[0] == "init":
            return all(map(_INIT.fullmatch, words[1:]))
        return words[0] in _MAKING

    is_made = any(view.argv[1:2] == ("init",) for view in command.views)
    return is_made and _is_only_git(command, sandbox, makes)


def _is_only_git(
    command: CommandViews, sandbox: "Sandbox", fits: Callable[[Sequence[str]], bool]
) -> bool:
    """Return whether all that runs is Git of the system, with words that fit, and the shell."""
    from agent_core.process.confinement import nearest  # noqa: PLC0415 - in a sandbox only

    write = list(map(str, sandbox.write))

    def is_git(view: CommandView) -> bool:
        words = view.argv
        if words and view.program == words[0]:
            return view.program in _OF_THE_SHELL
        return (
            len(words) > 1
            and view.program is not None
            and Path(words[0]).name == "git"
            and not nearest(view.program, write)
            and fits(words[1:])
        )

    views = command.views
    return command.problem is None and all(
        is_git(view) and view.unknown_from is None and not view.writes for view in views
    )


async def _run(
    workspace: Workspace,
    place: ResolvedPath,
    argv: list[str],
    timeout_ms: int,
    context: ToolContext,
    plan: "SandboxPlan | None",
    *,
    access: Access,
    connects: bool,
) -> JsonObject | ToolResult:
    async with AsyncExitStack() as stack:
        stack.enter_context(disk_errors(place.shown))
        address = stack.enter_context(folder_address(place.path))
        command = process.Command(argv=argv, cwd=address, env=workspace.env)
        left_out, disabled = list[str](), list[str]()
        if plan is not None:  # settings are taken over when all else has been looked at
            confined = plan.confine(command, left_out=left_out)
            command = await stack.enter_async_context(confined)
            disabled = await stack.enter_async_context(plan.watch())
        elif workspace.watch is not None:
            watch = workspace.watch().watch(restores=False)
            disabled = await stack.enter_async_context(watch)
        finished = await process.run(
            command,
            launcher=workspace.launcher,
            timeout_s=timeout_ms / 1000,
            stdout_limit_bytes=workspace.limits.stdout_limit_bytes,
            stderr_limit_bytes=workspace.limits.stderr_limit_bytes,
            takes_cut=True,
            live=_live_output(context, stack),
        )
    try:
        faults: list[str] = []
        keep = partial(keep_output, artifact=context.artifact, faults=faults)
        answer: JsonObject = {
            "exit_code": finished.exit_code,
            "stdout": finished.stdout.text,
            "stderr": finished.stderr.text,
            "stdout_artifact_id": await keep(finished.stdout, "stdout"),
            "stderr_artifact_id": await keep(finished.stderr, "stderr"),
            "truncated": finished.stdout.truncated or finished.stderr.truncated,
            "timed_out": finished.timed_out,
        }
        if faults:
            answer["not_kept"] = "; ".join(faults)
        denial = show_denial(plan, finished, cwd=place.path, context=context, connects=connects)
        answer |= denial
        is_silent = not (finished.stdout.text.strip() or finished.stderr.text.strip())
        has_failed = finished.exit_code != 0 or is_silent or bool(denial)
        if has_failed and access.no_network and connects:
            answer |= _show_missing_network(access, denial, context=context)
        answer |= show_disabled([*disabled, *left_out], context=context)
        answer |= show_left_running(finished, context=context)
        said = finished.stderr.text
        if why := explain_exit(finished.exit_code, argv, said, cwd=place.path, env=workspace.env):
            answer["not_started"] = why
    finally:
        finished.discard()
    if finished.cancelled:
        raise CutCallError(ToolResult(content=[JsonBlock(data=answer)], is_error=True))
    if finished.timed_out:
        return timeout_result(argv[0], timeout_ms, [JsonBlock(data=answer)])
    return answer


def _live_output(context: ToolContext, stack: AsyncExitStack) -> "LiveOutput | None":
    """Return what shows the output of a command while it runs, if anybody would see it."""
    if context.show_output is None:
        return None
    from agent_core.process.live import LiveOutput  # noqa: PLC0415 - for runs that are watched

    return stack.enter_context(LiveOutput(context.show_output))


def _show_missing_network(
    access: Access, denial: Mapping[str, Any], *, context: ToolContext
) -> dict[str, Any]:
    """Return why a command that failed had no network, if it reached for it; shown at once."""
    from agent_core.process.denials import THE_NETWORK  # noqa: PLC0415 - in a sandbox only
    from agent_core.tools.code.networking import reaches_for_network  # noqa: PLC0415 - see above

    is_told = THE_NETWORK in denial.get("blocked_by_sandbox", ())
    may_be_it = not denial and access.command is not None and reaches_for_network(access.command)
    if not (is_told or may_be_it):
        return {}
    text = f"this command had {access.no_network}"
    context.progress(text)
    return {"no_network": text}


def _find_named_places(
    policy: PathPolicy, read: "ReadCommand", met: "Met", *, program: Path, cwd: Path
) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    """Resolve the places that a command opens, as far as they are known, and its other words.

    A word of which it is not known what it is for is resolved whole, and in the pieces that
    options, scripts and addresses are made of. This is what a person has to see. It is no
    boundary: a script can build a path in other ways.

    Returns why the command needs a question whatever was allowed before; the places that are
    the reason: the program's own files, else those likely to hold secrets and those outside the
    project and the allowed roots; and all paths that it names, as far as a word is known to be one.
    """
    from agent_core.tools.code.repositories import find_top  # noqa: PLC0415 - see above
    from agent_core.tools.code.views import STREAMS  # noqa: PLC0415

    words = list(islice(dict.fromkeys(_words(read.words)), _MAX_WORDS + 1))
    opened = dict.fromkeys(word for each in read.openings for word in (*each.paths, *each.places))
    places, paths = [*_resolve(policy, str(cwd), cwd)], list(map(str, read.starts))
    places += (place for start in paths for place in _resolve(policy, start, cwd))
    for base in read.bases(cwd):
        for word in dict.fromkeys((*words[:_MAX_WORDS], *islice(opened, _MAX_WORDS))):
            if Path(os.path.normpath(base / word)) in STREAMS:
                continue
            found = list(_resolve(policy, word, base))
            is_path = word in opened or re.fullmatch(_PATH, word)
            likely = [str(each.path) for each in found[:1]] if is_path else []
            names = [str(each.path) for each in found]
            # A name may be too long for `Path.exists`.
            paths += [name for name in names if name in likely or os.path.exists(name)]  # noqa: PTH110
            places += found
        top = find_top(base) if read.from_top else None
        for word in read.from_top if top is not None else ():
            found = list(_resolve(policy, word, top or base))
            paths += [str(each.path) for each in found]
            places += found
    programs = [program, *(Path(view.program) for view in read.views if view.program)]
    own = [str(each.path) for each in places if policy.is_protected(each.path)]
    own += [str(each) for each in programs if policy.is_protected(Path(os.path.realpath(each)))]
    own += _own_names(policy, read.words, known=frozenset(own), cwd=cwd)
    own += filter(None, map(_changed_settings, read.views))
    if policy.is_linked_from_protected(place.path for place in places):
        own.append("a hard link to a file of the program")
    sensitive = [str(each.path) for each in places if each.sensitive]
    outside = [str(each.path) for each in places if not each.writable]
    if len(words) > _MAX_WORDS or len(opened) > _MAX_WORDS:
        outside.append(f"more than {_MAX_WORDS} words")
    named = tuple(f"{place.rstrip('/')}/" for place in (*own, *sensitive))
    met_beside = [path for path in met.opened if not path.startswith(named)]
    sensitive += policy.find_secrets(met_beside)
    named = tuple(f"{place.rstrip('/')}/" for place in (*own, *sensitive, *outside))
    outside += policy.find_outside(path for path in met_beside if not path.startswith(named))
    reason = "sensitive" if sensitive else "outside_roots" if outside else None
    reason = "program_home" if own else reason
    roots = tuple(f"{path.rstrip('/')}/" for path in paths)
    paths += [path for path in met.opened if not path.startswith(roots) and path not in paths]
    return reason, tuple(dict.fromkeys([*own, *sensitive, *outside])), tuple(dict.fromkeys(paths))


_OWN_PROGRAM = r"(?:.*/)?soong-agent|agent_core(?:\.cli(?:\.__main__)?)?"
_CHANGES = {
    "config": ("set", "unset"),
    "permissions": ("add", "remove", "forget"),
    "mcp": ("add", "add-json", "remove", "login"),
    "approvals": ("answer",),
}
"""Commands of the program itself that change what it may do."""


def _changed_settings(view: CommandView) -> str | None:
    """Return the words of a command of the program itself that changes the user's settings.

    It names no file, and yet writes those that tools do not write.
    """
    own = [at for at, word in enumerate(view.argv) if re.fullmatch(_OWN_PROGRAM, word)]
    rest = view.argv[own[0] + 1 :] if own else ()
    for at, word in enumerate(rest):
        actions = _CHANGES.get(word, ())
        if action := next((each for each in rest[at + 1 :] if each in actions), None):
            return f"soong-agent {word} {action}"
    return None


def _own_names(
    policy: PathPolicy, words: Iterable[str], *, known: frozenset[str], cwd: Path
) -> Iterator[str]:
    """Return the words that name one of the program's places and are not known to be paths.

    No rule for paths covers what such a word may expand to.
    """
    roots = (rf"(?i:{re.escape(str(root))})(?![\w.-])" for root in policy.protected)
    names_own = re.compile("|".join(("SOONG_AGENT_HOME", *roots)))
    if policy.free is not None:  # words that name the project name a place of the program's, too
        free = re.compile(rf"{re.escape(str(policy.free))}(?![\w.:-])")
        words = [word for word in words if names_own.search(free.sub(".", word))]
    for word in filter(names_own.search, words):
        if known.isdisjoint(str(place.path) for place in _resolve(policy, word, cwd)):
            yield shortened(word, 500)


def _words(argv: Iterable[str]) -> Iterator[str]:
    """Yield the words and the pieces of options and scripts; addresses are not paths.

    Each word is yielded unchanged, without the `@` of a file with arguments, and as the value
    behind a short option.
    """
    for argument in argv:
        pieces = re.split(_BETWEEN, re.sub(_DIVISION, " ", re.sub(_ADDRESS, " ", argument)))
        for word in (argument, *(piece for piece in pieces if piece != argument)):
            if word:
                yield word
            if word.startswith("@"):
                yield word.lstrip("@")
            if word.startswith("-") and not word.startswith("--"):
                # The value may begin behind any letter of a bundle: `-xflink` is `-x -f link`.
                yield from (word[start:] for start in range(2, min(len(word), _LONGEST_BUNDLE)))


def _resolve(policy: PathPolicy, word: str, cwd: Path) -> Iterator[ResolvedPath]:
    """Yield the places a word leads to, read as a program does and as a shell does."""
    expanded = _FOLDER_VARIABLE.sub(".", _HOME_VARIABLE.sub("~", word, count=1), count=1)
    for form in dict.fromkeys((word, expanded, f"./{word}" if word.startswith("~") else word)):
        try:
            place = policy.resolve(form, base=cwd)
        except ToolError:  # no path at all
            continue
        named = Path(os.path.normpath(cwd / form))
        if any(named.is_relative_to(folder) for folder in _OF_ANOTHER_PROCESS):
            place = structs.replace(place, path=named, writable=False)
        yield place
