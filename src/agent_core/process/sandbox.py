"""Applies `[sandbox]` to the programs that are started: gives each of them a confinement.

It covers commands, hooks, declarative tools and stdio MCP servers. A program writes to the project,
to the allowed roots and to a temporary folder of its own, which is removed with it; inside of
those, protected files stay unchanged. `agent_core.process.confinement` enforces it.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import partial
from pathlib import Path
from typing import Literal, Self

from msgspec import Struct
from msgspec.structs import replace

from agent_core.aio import finish_uncancelled
from agent_core.config.models import SandboxConfig
from agent_core.config.paths import Setup, expand_path, fill_placeholders
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.errors import ErrorCode, ToolError
from agent_core.process.child import Command
from agent_core.process.confinement import Confinement, Hole, Rule, missing, nearest, probe
from agent_core.process.hidden import HiddenFiles
from agent_core.process.protected import REPOSITORY, ProtectedFiles
from agent_core.process.repository_states import find_outer, find_replaceable
from agent_core.process.repository_watch import RepositoryWatch
from agent_core.process.settings_copies import SettingsCopies, find_settings

_INSTALLATION = (Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[1])
"""Folders this program runs from: in the project's environment, commands could change it."""

_LOCKED = (
    "sessions/.owners",
    "snapshots",
    *("rules.lock", "config.lock", "mcp.lock", "memory-backlog.lock"),
)
"""Files in the home that the program locks, besides the database and memory."""

_MEMORY = (".lock", "users", "tenants")
"""The lock of the shared memory, and the memories of users and tenants: they are for their runs."""

_MOST_HOLES = 5
_UNHELD: frozenset[Rule] = frozenset(("attributes", "signals"))
"""Rules that Landlock alone cannot enforce, which `ask_inside = false` accepts there."""

_CACHES = {
    "npm_config_cache": "~/.npm",
    "PIP_CACHE_DIR": "~/.cache/pip",
    "UV_CACHE_DIR": "~/.cache/uv",
    "YARN_CACHE_FOLDER": "~/.cache/yarn",
    "BUN_INSTALL_CACHE_DIR": "~/.bun/install/cache",
    "COMPOSER_CACHE_DIR": "~/.cache/composer",
    "GOCACHE": "~/.cache/go-build",
}
"""The variables that tell package managers where their cache is, and where it is without them."""

Kind = Literal["command", "tool", "own"]
"""Owner of a program: the model's command; a tool of the user's that the model calls; a hook or a
server of the user's own."""


class Sandbox(Struct, frozen=True, kw_only=True):
    """The `[sandbox]` of one runtime; None is used where its mode is off.

    Attributes:
        config: the settings.
        write: resolved folders and files that programs may write to, caches among them.
        read: other paths that they may read; None is everything.
        home: of the program; the user's own programs may read what the user has put there.
        own: places of the program itself, which must not change.
        protected: finds further protected files for commands and tools, whose repositories are
            watched.
        protected_from_own: the same, for programs of the user's own.
        hidden: finds files that programs cannot open.
        watch: looks for repositories that commands and tools made.
        unfinished: notes of temporary folders.
        copies_root: where folders with copies of settings are made: in the home, which programs
            never write to, or in the folder for temporary files if nothing is kept in the home.
    """

    config: SandboxConfig
    write: tuple[Path, ...]
    read: tuple[Path, ...] | None
    home: Path
    own: tuple[Path, ...]
    protected: ProtectedFiles
    protected_from_own: ProtectedFiles
    hidden: HiddenFiles
    watch: RepositoryWatch
    unfinished: UnfinishedWrites
    copies_root: Path

    @classmethod
    def of(cls, setup: Setup, *, own: Iterable[Path]) -> Self:
        """The sandbox that a configuration describes, which does not say that it is off.

        Args:
            setup: the settings and paths.
            own: the places of the program itself, resolved.
        """
        config, tools = setup.config.sandbox, setup.config.tools
        home, project, notes = setup.home, setup.project, setup.writable_home
        place = partial(expand_path, base=project, home=home, project=project)
        if config.write is None:
            write = [project, *setup.write_roots]
            if tools.allow_tmp_write:
                write.append(Path(tempfile.gettempdir()).resolve())
        else:
            write = [place(path) for path in config.write]
        if project in write and (repository := find_outer(project)) is not None:
            write.append(Path(repository))
        patterns = REPOSITORY if config.protect is None else config.protect
        protected = partial(
            ProtectedFiles,
            [fill_placeholders(each, home=home, project=project) for each in patterns],
            project=project,
            folders=write,
        )
        return cls(
            config=config,
            write=tuple(dict.fromkeys([*write, *(place(path) for path in config.caches)])),
            read=None if config.read == "all" else tuple(place(path) for path in config.read),
            home=home,
            own=(*own, *(place.resolve() for place in _INSTALLATION)),
            protected=protected(is_watched=config.protect is None),
            protected_from_own=protected(),
            hidden=HiddenFiles(
                setup.session_db,
                places=(
                    *(home / name for name in _LOCKED),
                    *(setup.memory_dir / name for name in _MEMORY),
                ),
                folders=(*write, home),
            ),
            watch=RepositoryWatch(write, home=notes),
            unfinished=UnfinishedWrites(notes and notes / "unfinished", is_optional=True),
            copies_root=notes or Path(tempfile.gettempdir()).resolve(),
        )

    def tell_network(self, plan: "SandboxPlan") -> str | None:
        """Tell why a command has no network, and what grants it; None if it has, or may have."""
        if plan.confinement.network or any(hole.rule == "network" for hole in plan.holes):
            return None
        if self.config.network == "off":
            return 'no network, as [sandbox] network = "off"; with "ask" a call can ask for it'
        return (
            "no network: a call of code.run_command with network = true asks for it,"
            ' and [sandbox] network = "on" grants it to every command'
        )

    def has_network(self, kind: Kind, *, wanted: bool = False) -> bool:
        """Return whether a program has the network.

        Args:
            kind: owner of the program.
            wanted: the call, or the tool's tags, say that it needs it.
        """
        if self.config.network == "ask":
            return wanted or kind == "own"
        return self.config.network == "on"

    def plan(
        self,
        kind: Kind,
        *,
        wants_network: bool = False,
        is_git: bool = False,
        runs_git: bool = True,
        makes_repository: bool = False,
    ) -> "SandboxPlan":
        """Decide the limits of one program, and the parts that cannot be enforced; blocks on files.

        Args:
            kind: the owner of the program.
            wants_network: it needs the network.
            is_git: it is Git, and replaces only files that it tracks.
            runs_git: it may run Git, which may write settings.
            makes_repository: it is Git, and may make the repository of the project.

        Raises:
            ToolError: `tool_not_available`; a rule that is required cannot be kept.
        """
        plan = self.examine(
            kind,
            wants_network=wants_network,
            is_git=is_git,
            runs_git=runs_git,
            makes_repository=makes_repository,
        )
        required = plan.confinement.required
        wanted = list(dict.fromkeys(hole.text for hole in plan.holes if hole.rule in required))
        if wanted:
            raise ToolError(
                ErrorCode.TOOL_NOT_AVAILABLE,
                f"the sandbox is required, but this system cannot enforce it: {'; '.join(wanted)};"
                ' see `soong-agent doctor`, or set [sandbox] mode = "auto"',
                details={"reason": "sandbox_missing", "missing": wanted},
            )
        return plan

    def examine(
        self,
        kind: Kind,
        *,
        wants_network: bool = False,
        is_git: bool = False,
        runs_git: bool = True,
        makes_repository: bool = False,
    ) -> "SandboxPlan":
        """Decide the same, also where a rule that is required cannot be kept."""
        config, read, write = self.config, self.read, [str(path) for path in self.write]
        if read is not None and kind != "command":
            read = (*read, self.home)
        required: set[Rule] = set()
        if config.mode == "required":
            required = {"write", "network"}
            required |= {"read"} if read is not None else set()
            required |= {"protect"} if config.protect is not None else set()
        # Missing files of our own are not kept from being made: this program may need to make them.
        own = (str(path) for path in self.own if nearest(str(path), write) and path.exists())
        protected = self.protected_from_own if kind == "own" else self.protected
        found = protected.find(makes_repository=makes_repository)
        tracked = find_replaceable([*found.paths, *found.left]) if is_git else []
        found = replace(found, paths=[path for path in found.paths if path not in tracked])
        copied, absent = list[str](), list[str]()
        if runs_git and kind != "own" and config.protect is None and self._can_copy():
            copied = find_settings(found.paths)
            absent = [path for path in found.unwanted if path.endswith("/config.worktree")]
        unwanted = [path for path in found.unwanted if path not in absent]
        hidden, unhidden = self.hidden.find()
        confinement = Confinement(
            write=tuple(write),
            read=None if read is None else tuple(map(str, read)),
            protect=tuple(dict.fromkeys([*own, *found.paths])),
            hidden=tuple(hidden),
            network=self.has_network(kind, wanted=wants_network),
            required=frozenset(required),
        )
        holes = missing(confinement, probe())
        holes += [Hole(rule="protect", text=text) for text in found.holes]
        holes += [Hole(rule="hidden", text=text) for text in unhidden]
        return SandboxPlan(
            self,
            confinement,
            tuple(holes),
            tuple(unwanted),
            tuple(tracked),
            tuple(copied),
            tuple(absent),
            must_ask=bool(tracked) or self._must_ask(confinement, holes),
        )

    def _can_copy(self) -> bool:
        """Return whether a program can get copies of settings that no other program can write."""
        is_reachable = self.copies_root != self.home and nearest(
            str(self.copies_root), map(str, self.write)
        )
        return probe().has_copies and not is_reachable

    def _must_ask(self, confinement: Confinement, holes: list[Hole]) -> bool:
        """Return whether a command asks because of limits that this system cannot enforce.

        If only Landlock is available, limits beyond Landlock do not count, since the watch puts the
        settings of repositories back. Files that the user protects make the command ask.
        """
        able = probe()
        if able.has_mounts or not able.landlock or self.config.protect is not None:
            return bool(holes)
        found = confinement.protect
        own = {str(path) for path in self.own}
        left = missing(replace(confinement, protect=tuple(own.intersection(found))), able)
        held = {hole.text for hole in missing(confinement, able)} - {hole.text for hole in left}
        return any(hole.rule not in _UNHELD and hole.text not in held for hole in holes)


class SandboxPlan(Struct, frozen=True):
    """The limits of one program.

    Attributes:
        sandbox: the sandbox with these rules.
        confinement: the limits, without its temporary folder.
        holes: the limits that this system cannot enforce.
        unwanted: files that are not there yet, and are removed if the program makes them.
        tracked: protected paths that Git may replace, because it tracks them or may bring them.
        copied: settings of repositories of which the program gets a copy.
        absent: such settings that do not exist, and that Git would read.
        must_ask: the holes are such that a command is asked for despite `ask_inside = false`.
    """

    sandbox: Sandbox
    confinement: Confinement
    holes: tuple[Hole, ...] = ()
    unwanted: tuple[str, ...] = ()
    tracked: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    must_ask: bool = False

    @property
    def holds_protected(self) -> bool:
        """Return whether this system keeps protected paths from being written."""
        able = probe()
        return able.has_mounts or able.sandbox_exec is not None

    @property
    def words(self) -> str:
        """Describe the limits to the person who is asked."""
        it, read = self.confinement, self.confinement.read
        said = [f"on, network {'on' if it.network else 'off'}"]
        said.append(f"writes only to {', '.join([*it.write, 'a temporary folder of its own'])}")
        if read is not None:
            said.append(f"reads only there, what programs need, and {', '.join(read) or 'no more'}")
        texts = [f"Git can replace {path}, which is protected" for path in self.tracked]
        texts = list(dict.fromkeys([*texts, *(hole.text for hole in self.holes)]))
        if more := texts[_MOST_HOLES:]:
            texts[_MOST_HOLES:] = [f"and {len(more)} more"]
        if texts:
            said.append(f"but {'; '.join(texts)}")
        return ", ".join(said)

    def watch(self) -> AbstractAsyncContextManager[list[str]]:
        """Look at repositories before and after the program; see `RepositoryWatch.watch`."""
        return self.sandbox.watch.watch(
            restores=True, replaceable=self.tracked, holds_roots=probe().has_mounts
        )

    @asynccontextmanager
    async def confine(
        self, command: Command, *, left_out: list[str] | None = None
    ) -> AsyncGenerator[Command]:
        """Return the command as it may run: confined, with a temporary folder removed after it.

        Args:
            command: what to start.
            left_out: gets in the end texts about the settings of repositories that were not kept.

        Raises:
            ToolError: `internal_error`; the folder cannot be made.
        """
        scratch, it = self._scratch(), self.confinement
        copies = SettingsCopies(
            self.copied,
            self.absent,
            root=self.sandbox.copies_root,
            unfinished=self.sandbox.unfinished,
        )
        try:
            try:
                folder = await finish_uncancelled(asyncio.to_thread(scratch.__enter__))
                await finish_uncancelled(asyncio.to_thread(copies.make))
            except OSError as error:
                message = f"no temporary folder can be made for the program: {error}"
                raise ToolError(ErrorCode.INTERNAL_ERROR, message, retryable=True) from error
            protect = dict.fromkeys((*it.protect, *(path for path, _ in copies.pairs)))
            yield replace(
                command,
                env={**command.env, **_own_variables(command.env, folder, it.write)},
                confinement=replace(
                    it,
                    write=(*it.write, folder),
                    protect=tuple(protect),
                    copies=tuple(copies.pairs),
                ),
            )
        finally:
            said = await finish_uncancelled(asyncio.to_thread(copies.take_over))
            if left_out is not None:
                left_out += said
            await finish_uncancelled(asyncio.to_thread(scratch.__exit__, None, None, None))

    @contextmanager
    def _scratch(self) -> Generator[str]:
        """Make a folder; the next start removes one that a killed process has left."""
        root = Path(tempfile.gettempdir()).resolve()
        with self.sandbox.unfinished.noted(root, is_folder=True) as name:
            folder = root / name
            folder.mkdir(mode=0o700)
            try:
                yield str(folder)
            finally:
                for path in map(Path, self.unwanted):
                    with suppress(OSError):
                        if not _is_below_link(path):
                            path.unlink()
                _remove(folder)


def _own_variables(env: Mapping[str, str], folder: str, write: Sequence[str]) -> dict[str, str]:
    """Return the variables that lead programs to the temporary folder of their call.

    A cache that can be written to, or that the user has put elsewhere, stays where it is.
    """
    option = f"-Djava.io.tmpdir={folder}"
    java = f'"{option}"' if " " in folder else option
    found = {"TMPDIR": folder}
    found["JAVA_TOOL_OPTIONS"] = " ".join(filter(None, (env.get("JAVA_TOOL_OPTIONS"), java)))
    for name, usual in _CACHES.items():
        place = os.path.realpath(os.path.expanduser(usual))  # noqa: PTH111 - there may be no home
        if name not in env and not nearest(place, write):
            found[name] = f"{folder}/caches/{name.lower()}"
    return found


def _is_below_link(path: Path) -> bool:
    """Return whether a path now leads elsewhere, because a program put a link above it."""
    return os.path.realpath(path.parent) != str(path.parent)


def _remove(folder: Path) -> None:
    """Remove a folder, whatever its program has done to the permissions in it."""

    def open_up(do: Callable[[str], object], path: str, _failure: object) -> None:
        with suppress(OSError):
            for closed in (Path(path).parent, Path(path)):
                if closed.is_relative_to(folder) and not closed.is_symlink():
                    closed.chmod(0o700)
            do(path)

    shutil.rmtree(folder, onerror=open_up)
    if folder.exists():  # what could not be listed can be now
        shutil.rmtree(folder, ignore_errors=True)
