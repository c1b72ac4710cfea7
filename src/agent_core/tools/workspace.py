"""The place a path given by a model really leads to, and the actions allowed there.

Links are resolved before anything is checked, and every answer is about the resolved path: a
name alone decides nothing, since `..`, a link or another spelling may lead anywhere.
"""

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from msgspec import Struct, field

from agent_core.artifacts.store import ArtifactStore
from agent_core.config.models import ToolsConfig
from agent_core.config.paths import Setup, fill_placeholders
from agent_core.disk.globs import PathGlobs
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.errors import AgentCoreError, ErrorCode, PermissionDeniedError, ToolError
from agent_core.process import Launcher
from agent_core.process.environment import command_environment
from agent_core.text import shortened
from agent_core.text.folding import fold
from agent_core.tools.base import ArtifactWriter, Prepare, Tool, ToolContext
from agent_core.tools.files import FileVersionTracker
from agent_core.tools.registry import model_tool
from agent_core.tools.schema import Arguments
from agent_core.tools.sensitive import SensitivePaths, user_homes
from agent_core.tools.values import storable_text
from agent_core.types import (
    Access,
    ContentBlock,
    Draft,
    ErrorPayload,
    ToolKind,
    ToolPermission,
    ToolResult,
)
from agent_core.types.tools import CODE_READERS

if TYPE_CHECKING:
    from agent_core.process import CompletedProcess, Output
    from agent_core.process.repository_watch import RepositoryWatch
    from agent_core.process.sandbox import Sandbox, SandboxPlan

_DATABASE = ("", "-wal", "-shm", "-journal")
_FOR_MODELS = ("AGENTS.md", "CLAUDE.md", "rules", "skills")
_LONGEST_PATH = 4096
_PACKAGES = frozenset({"dist-packages", "node_modules", "site-packages"})
"""Folders of installed packages, in a project."""
_MAX_LINKS_SEARCHED = 100_000
_MOST_DENIED = 20

_SYSTEM = ("/bin/", "/lib/", "/lib32/", "/lib64/", "/nix/store/", "/sbin/", "/snap/", "/usr/")
"""Folders that package managers of the system fill."""


ARTIFACT = "artifact:"
"""Prefix of the path of an artifact; a file of such a name is read as `./artifact:…`."""


def path_to_read(name: str) -> str:
    """Return a relative path as a tool reads it: `./` begins a name that would mean another."""
    return f"./{name}" if name.startswith((ARTIFACT, "~")) else name


class ResolvedPath(Struct, frozen=True, kw_only=True):
    """A resolved path and the facts known about it.

    Attributes:
        path: absolute, no links in it; the last parts need not exist.
        shown: how a model and a person read it: relative to the project where it is inside.
        writable: inside the project or an allowed root.
        sensitive: likely to hold a secret, by the name that was given or where it leads.
        is_own: holds settings, history or memory of the program itself.
    """

    path: Path
    shown: str
    writable: bool
    sensitive: bool
    is_own: bool = False

    @property
    def is_closed(self) -> bool:
        """Return whether reading it needs a question."""
        return self.sensitive or self.is_own


class ProgramPlaces(Struct, frozen=True, kw_only=True):
    """Resolved folders and files of the program itself; they need not exist.

    Attributes:
        protected: never written to.
        own: those of them that are read only after a question.
        readable: places below `own` that models may read: instructions, skills, a project.
        free: a folder below `protected` that may be written: the project of a session.
    """

    protected: tuple[Path, ...] = ()
    own: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    free: Path | None = None


_NO_PLACES = ProgramPlaces()


class PathPolicy:
    """Decides which places may be read and written.

    Args:
        project: the project, resolved.
        write_roots: resolved folders outside it that may be written to.
        program: the places of the program itself.
        sensitive: entries of `tools.sensitive_paths`, see `SensitivePaths`.
        homes: home folders, in which hidden entries are sensitive.
        denied: paths that the user's rules keep out of a listing or a search of a folder above.
    """

    def __init__(
        self,
        project: Path,
        *,
        write_roots: Iterable[Path] = (),
        program: ProgramPlaces = _NO_PLACES,
        sensitive: Sequence[str] = (),
        homes: Iterable[Path] = (),
        denied: PathGlobs | None = None,
    ) -> None:
        self.project = project
        self.free = program.free
        self._denied = denied
        self.protected = program.protected
        self._own = program.own
        self._own_folded = _Folders.of(map(_fold, self._own))
        self._readable = _Folders.of(program.readable)
        self._write_roots = (project, *write_roots)
        self._sensitive = SensitivePaths(
            sensitive, project=project, homes=homes, roots=(*self._write_roots, *self._own)
        )

    @classmethod
    def of(cls, setup: Setup) -> Self:
        """The boundaries a configuration draws."""
        tools = setup.config.tools
        scratch = [_temporary_folder()] if tools.allow_tmp_write else []
        database = [setup.session_db.with_name(setup.session_db.name + end) for end in _DATABASE]
        home, project = setup.home, setup.project
        readable = [home / name for name in _FOR_MODELS]
        if home in project.parents:
            readable.append(project)
        config = (setup.config_path, *_linked_files(home))
        own = (home, *config, setup.memory_dir, setup.sessions_dir, *database)
        return cls(
            project,
            write_roots=(*setup.write_roots, *scratch),
            program=ProgramPlaces(
                protected=(*own, setup.tasks_dir),
                own=own,
                readable=tuple(readable),
                free=project if setup.is_workspace else None,
            ),
            sensitive=_filled(tools.sensitive_paths, setup),
            homes=user_homes(os.environ.get("HOME")),
            denied=_denied_paths(setup),
        )

    @property
    def name_patterns(self) -> Sequence[str]:
        """The sensitive patterns about a name, whatever the folder, that no template fits."""
        names = [name for name in self._sensitive.names if not name.endswith("*")]
        return [*names, *(f"{folder}/" for folder in self._sensitive.folders)]

    def resolve(self, given: str, *, base: Path | None = None) -> ResolvedPath:
        """Follow a path to where it leads.

        Args:
            given: relative to `base`, absolute, or beginning with `~`.
            base: a resolved folder; the project by default.

        Raises:
            ToolError: `validation_error`; no path can look like this.
        """
        if not given or "\0" in given:
            raise _no_path(given, "it is empty or has a NUL in it")
        try:
            if len(os.fsencode(given)) > _LONGEST_PATH:
                raise _no_path(given, "it is longer than any path")
            named = Path(given).expanduser() if given.startswith("~") else Path(given)  # not ./~
            named = (base or self.project) / named
            path = Path(os.path.realpath(named))
        except (OSError, ValueError, RuntimeError) as error:
            raise _no_path(given, str(error)) from error
        return ResolvedPath(
            path=path,
            shown=self.shown(path),
            writable=self.is_below_write_root(path),
            sensitive=self.is_sensitive(named) or self.is_sensitive(path),
            is_own=self._is_own(path, is_same=_is_below_same_folder(path, self._own)),
        )

    def is_below_write_root(self, path: Path) -> bool:
        """Return whether it is inside the project or another folder that tools write to."""
        return self.root_of(path) is not None

    def root_of(self, path: Path) -> Path | None:
        """Return the project, or the other folder that tools write to, in which a path is."""
        return next((root for root in self._write_roots if path.is_relative_to(root)), None)

    def shown(self, path: Path) -> str:
        """Return the path as people read it, and as `resolve` takes it: relative in the project."""
        text, project = str(path), str(self.project)
        if text == project:
            return "."
        return path_to_read(text.removeprefix(project.rstrip("/") + "/"))

    def is_sensitive(self, path: Path) -> bool:
        """Return whether the name or folder of an absolute path is one that secrets have."""
        return self._sensitive.hold(path)

    def is_closed(self, path: Path) -> bool:
        """Return whether a listing or a search of a folder above leaves a resolved path out."""
        if self._denied is not None and self._denied.touch(str(path)):
            return True
        return self.is_sensitive(path) or self._is_own(path)

    def find_denied(self, paths: Iterable[str]) -> str | None:
        """Return the first path that a rule of the user's keeps from tools that read."""
        return None if self._denied is None else self._denied.find_touched(paths)

    @property
    def denies_paths(self) -> bool:
        """Return whether a rule of the user's keeps paths from tools that read."""
        return self._denied is not None

    def find_secrets(self, paths: Iterable[str]) -> list[str]:
        """Return the places that a reader of folders above them may not read unasked.

        The certificates and templates of installed packages are no secrets, in the project and in
        the folders of the system.

        Args:
            paths: many resolved paths, as text.
        """
        packages = f"{str(self.project).rstrip('/')}/"

        def is_secret(path: str) -> bool:
            is_package = path.startswith(packages) and not _PACKAGES.isdisjoint(path.split("/"))
            if is_package or path.startswith(_SYSTEM):
                return self._sensitive.hold_place(path)
            return self._sensitive.hold_text(path)

        own = bool(self._own)
        return [path for path in paths if is_secret(path) or (own and self._is_own(Path(path)))]

    def find_outside(self, paths: Iterable[str]) -> list[str]:
        """Return the paths, of many resolved ones, that are in no folder tools write to."""
        roots = tuple(f"{str(root).rstrip('/')}/" for root in self._write_roots)
        exact = {str(root) for root in self._write_roots}
        return [path for path in paths if not path.startswith(roots) and path not in exact]

    def refuse_protected(self, place: ResolvedPath) -> None:
        """Keep the program's own files from being written, under whatever name.

        Raises:
            PermissionDeniedError: it is one of them; no permission changes that.
        """
        if self.is_protected(place.path) or self.is_linked_from_protected([place.path]):
            raise PermissionDeniedError(
                ErrorCode.PERMISSION_DENIED,
                f"{place.path} belongs to the program itself; tools do not write there",
                details={"reason": "program_home"},
            )

    def is_protected(self, path: Path) -> bool:
        """Return whether a path is at or below one of the program's own places, in any spelling."""
        folded, protected = _fold(path), self.protected
        if self._is_free(path):
            protected = [root for root in protected if self._is_free(root)]
        if any(folded.is_relative_to(_fold(root)) for root in protected):
            return True
        return _is_below_same_folder(path, protected)

    def is_linked_from_protected(self, paths: Iterable[Path]) -> bool:
        """Return whether a path is a hard link to a protected file, or too many files to be sure.

        Only files with several names are looked at.
        """
        statuses = (_status(path, follow=False) for path in paths)
        wanted = {
            (status.st_dev, status.st_ino)
            for status in statuses
            if status and status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode)
        }
        if not wanted:
            return False
        files = (
            Path(folder, name)
            for root in self.protected
            for folder, _, names in os.walk(root)
            for name in names
            if self._is_free(root) or not self._is_free(Path(folder))
        )
        for count, file in enumerate(files):
            if _identity(file) in wanted or count > _MAX_LINKS_SEARCHED:
                return True  # found, or too many files to be sure
        return False

    def _is_free(self, path: Path) -> bool:
        return self.free is not None and path.is_relative_to(self.free)

    def _is_own(self, path: Path, *, is_same: bool = False) -> bool:
        text = str(path)
        return not self._readable.hold(text) and (is_same or self._own_folded.hold(fold(text)))


def _filled(patterns: Iterable[str], setup: Setup) -> list[str]:
    return [fill_placeholders(each, home=setup.home, project=setup.project) for each in patterns]


def _linked_files(home: Path) -> list[Path]:
    """Return the files elsewhere that links in the home lead to: settings kept with dotfiles."""
    try:
        with os.scandir(home) as entries:
            links = [Path(entry) for entry in entries if entry.is_symlink() and entry.is_file()]
        return [link.resolve() for link in links]
    except OSError:
        return []


def _denied_paths(setup: Setup) -> PathGlobs | None:
    """Return the paths that rules of the configuration keep from every agent's reading tools."""
    patterns: list[str] = []
    for rule in setup.config.permissions.rules:
        tools = rule.tool or ["*"]
        reads = any(fnmatchcase(name, tool) for name in CODE_READERS for tool in tools)
        if rule.decision == "deny" and rule.path and reads and not (rule.command or rule.host):
            filled = _filled(rule.path if rule.agent is None else (), setup)
            patterns += map(os.path.expanduser, filled)
    return PathGlobs.generous(patterns, setup.project) if patterns else None


class _Folders(Struct, frozen=True):
    """Folders as text: whether a path is one of them or below one is a matter of its beginning."""

    exact: frozenset[str]
    beginnings: tuple[str, ...]

    @classmethod
    def of(cls, folders: Iterable[Path]) -> Self:
        names = frozenset(map(str, folders))
        return cls(names, tuple(f"{name.rstrip('/')}/" for name in names))

    def hold(self, path: str) -> bool:
        return path in self.exact or path.startswith(self.beginnings)


def _is_below_same_folder(path: Path, roots: Iterable[Path]) -> bool:
    """Return whether a path is below a root, by another spelling or mount of the same folder."""
    above = {_identity(part) for part in (path, *path.parents)}
    return any(identity and identity in above for identity in map(_identity, roots))


def _no_path(given: str, reason: str) -> ToolError:
    message = f"{shortened(given, 200)!r} is not a usable path: {reason}"
    return ToolError(ErrorCode.VALIDATION_ERROR, message)


def _fold(path: Path) -> Path:
    return Path(fold(str(path)))


def _identity(path: Path) -> tuple[int, int] | None:
    status = _status(path)
    return (status.st_dev, status.st_ino) if status else None


def _status(path: Path, *, follow: bool = True) -> os.stat_result | None:
    try:
        return path.stat(follow_symlinks=follow)
    except OSError:
        return None


class Reading(Struct, frozen=True):
    """Effects on the conversation of reading a file, beyond the text in the result.

    Attributes:
        already_loaded: the conversation has this very version of the file.
        adds: what to put into the conversation.
    """

    already_loaded: bool = False
    adds: Sequence[Draft] = ()


class ReadingRegister(Protocol):
    """Recognises files that are more than files, such as instructions."""

    def offers(self, path: Path, /) -> bool:
        """Return whether the user has put the file at this resolved path before the model."""
        ...

    def in_order(self, path: Path, /) -> AbstractAsyncContextManager[None]:
        """Held while the file at this resolved path is read.

        Reads that mean something to the conversation take place in the order of their calls.
        """
        ...

    async def note(self, path: Path, context: ToolContext, /) -> Reading:
        """Called with the resolved path of a text file that was just read."""
        ...


def _watch_of(setup: Setup, sandbox: "Sandbox | None") -> "Callable[[], RepositoryWatch]":
    """Return a function that returns the project's watch, which is made for the first program."""

    @cache
    def watch() -> "RepositoryWatch":
        from agent_core.process.repository_watch import RepositoryWatch  # noqa: PLC0415

        if sandbox is not None:
            return sandbox.watch
        return RepositoryWatch([setup.project, *setup.write_roots], home=setup.writable_home)

    return watch


class Workspace(Struct, frozen=True, kw_only=True):
    """The collaborators of the code tools, the same for every call.

    Attributes:
        boundaries: resolves paths, and decides where writing asks or is refused.
        limits: sizes and times.
        env: the whole environment of commands.
        asks_to_read: reading asks too (`permissions.readonly_default = "ask"`).
        plans_dir: folder of plans, with restricted file names and no overwriting.
        register: recognises instruction files.
        seen: which versions of files the agents know.
        launcher: starts programs.
        sandbox: confines programs; None: they run unconfined.
        unfinished: notes of writes in progress.
        watch: returns what looks for repositories that a program made; None: no search.
        protect: the places that `[sandbox]` protects besides the settings of repositories.
        artifacts: the artifacts that can be read; None: there are none.
    """

    boundaries: PathPolicy
    limits: ToolsConfig = field(default_factory=ToolsConfig)
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    asks_to_read: bool = False
    plans_dir: Path | None = None
    register: ReadingRegister | None = None
    seen: FileVersionTracker = field(default_factory=FileVersionTracker)
    launcher: Launcher = field(default_factory=Launcher)
    sandbox: "Sandbox | None" = None
    unfinished: UnfinishedWrites
    watch: "Callable[[], RepositoryWatch] | None" = None
    protect: Sequence[str] = ()
    artifacts: ArtifactStore | None = None

    @classmethod
    def of(
        cls,
        setup: Setup,
        *,
        launcher: Launcher,
        sandbox: "Sandbox | None" = None,
        environ: Mapping[str, str] = os.environ,
        register: ReadingRegister | None = None,
    ) -> Self:
        """The workspace a configuration describes."""
        tools = setup.config.tools
        watch = _watch_of(setup, sandbox)
        home = setup.writable_home
        if home is not None and any((home / "unfinished").glob("repositories-*")):
            watch().recover()
        return cls(
            boundaries=PathPolicy.of(setup),
            limits=tools,
            env=command_environment(tools.env_allowlist, environ),
            asks_to_read=setup.config.permissions.readonly_default == "ask",
            launcher=launcher,
            sandbox=sandbox,
            unfinished=UnfinishedWrites.at(setup.writable_home),
            watch=watch,
            plans_dir=setup.plans_dir,
            register=register,
            protect=_filled(setup.config.sandbox.protect or (), setup),
        )

    def look(self, place: ResolvedPath, *, summary: str, line: int | None = None) -> Access:
        """Return the access of reading a file: it asks if it may hold a secret or is our own."""
        own = "program_home" if place.is_own else None
        reason = "sensitive" if place.sensitive else own
        if reason and self.register and self.register.offers(place.path):
            reason = None
        return Access(
            confined=self._confined,
            asks=reason is not None or self.asks_to_read,
            scope=str(place.path),
            summary=summary,
            target=str(place.path),
            paths=(str(place.path),),
            line=line,
            reason=reason,
        )

    @property
    def _confined(self) -> str | None:
        return self.sandbox and "on, for programs; this tool touches only what is named here"

    def change(
        self, place: ResolvedPath, *, summary: str, diff: str | None, is_alone: bool = False
    ) -> Access:
        """Return the access of writing a file: always asked for, refused outside without a person.

        Agreeing for the session covers the files of the same folder, except those with a reason
        of their own and those that are asked for alone.

        Args:
            place: the file.
            summary: the change, on one line.
            diff: the change.
            is_alone: other programs execute or obey the file, so that an answer is for it only.
        """
        folder, reason = place.path.parent, "sensitive" if place.sensitive else None
        refusal = ErrorCode.PERMISSION_DENIED
        if not place.writable:
            reason, refusal = "outside_roots", ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS
        return Access(
            confined=self._confined,
            asks=True,
            scope=f"the file {place.path}" if is_alone else f"the files in {folder}, not below it",
            summary=summary,
            target=str(place.path),
            paths=(str(place.path),),
            reason=reason,
            diff=diff,
            refusal=refusal,
        )


def code_tool(
    name: str,
    arguments: type[Arguments],
    prepare: Prepare,
    *,
    kind: ToolKind,
    permission: ToolPermission = ToolPermission.READONLY,
    tag: str = "filesystem",
    keeps_own_limits: bool = False,
) -> Tool:
    """Make a `code.*` tool, described by the docstring of its argument model.

    Args:
        name: without the `code.` in front.
        arguments: what `prepare` takes; its schema is what the model sees.
        prepare: works out what a call would touch, without doing it.
        kind: what its calls do.
        permission: whether it only reads.
        tag: beside `code` and the permission.
        keeps_own_limits: the general limit of results does not apply.
    """
    return model_tool(
        f"code.{name}",
        arguments,
        prepare,
        permission=permission,
        tags={"code", permission.value, tag},
        keeps_own_limits=keeps_own_limits,
        is_side_effect_free=permission is ToolPermission.READONLY,
        kind=kind,
    )


async def keep_output(
    output: "Output", name: str, artifact: ArtifactWriter, faults: list[str]
) -> str | None:
    """Make an artifact of output that was cut; return its id, or None if the text has all of it.

    The program has run: output that cannot be kept is no failure of the call.

    Args:
        output: what a program wrote to one stream; its spool file is read.
        name: the stream, for people.
        artifact: the writer of the call's context.
        faults: gets the reason why the whole output is not kept.
    """
    if output.spool is None:
        return None
    summary = f"{name} of a command, {output.size_bytes} bytes"
    try:
        return await artifact(
            output.spool, filename=f"{name}.txt", mime_type="text/plain", summary=summary
        )
    except (AgentCoreError, OSError) as error:
        faults.append(f"the whole {name} could not be kept: {error}")
        return None


def show_denial(
    plan: "SandboxPlan | None",
    finished: "CompletedProcess",
    *,
    cwd: Path,
    context: ToolContext,
    connects: bool = True,
) -> dict[str, list[str]]:
    """Return the refusals of the sandbox that a program's output reports; shown at once.

    Args:
        plan: what it may touch; None if it is not confined.
        finished: the program, ended.
        cwd: where it ran.
        context: of the call.
        connects: it may have tried to reach the network.
    """
    if plan is None:
        return {}
    from agent_core.process.denials import find_denial  # noqa: PLC0415 - in a sandbox only

    said = f"{finished.stderr.text}\n{finished.stdout.text}"
    denial = find_denial(said, plan.confinement, cwd=cwd, connects=connects)
    if denial is None:
        return {}
    kept = denial.named(_MOST_DENIED)
    context.progress(f"blocked by the sandbox: {', '.join(kept)}")
    return {"blocked_by_sandbox": kept}


def show_disabled(disabled: Sequence[str], *, context: ToolContext) -> dict[str, list[str]]:
    """Return what was disabled of repositories after a program, for the result; shown at once."""
    if not disabled:
        return {}
    kept = list(disabled[:_MOST_DENIED])
    if more := len(disabled) - len(kept):
        kept.append(f"… (+{more} more)")
    for text in kept:
        context.progress(f"repository disabled: {text}")
    return {"disabled_repositories": kept}


def show_left_running(
    finished: "CompletedProcess", *, context: ToolContext
) -> dict[str, list[str]]:
    """Return the programs that were stopped with the one that started them; shown at once."""
    if not finished.left_running:
        return {}
    lines = [shortened(storable_text(line), 200) for line in finished.left_running]
    context.progress(f"left running, and stopped: {'; '.join(lines)}")
    return {"left_running_and_stopped": lines}


def _temporary_folder() -> Path:
    """Return the folder of temporary files; `tempfile` writes into it to find it."""
    import tempfile  # noqa: PLC0415 - slow to import, and few projects may write there

    return Path(tempfile.gettempdir()).resolve()


def timeout_result(program: str, timeout_ms: int, content: Sequence[ContentBlock]) -> ToolResult:
    """Return the result of a program that ran out of time, with its output so far."""
    message = f"{program} was stopped after {timeout_ms} ms"
    details = {"timed_out": True, "timeout_ms": timeout_ms}
    error = ErrorPayload.of(ToolError(ErrorCode.TIMEOUT, message, details=details))
    return ToolResult(content=list(content), is_error=True, error=error)
