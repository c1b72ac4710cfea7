"""What a permission for a command covers.

Agreeing to a program for a session means its name, its file and the folder it runs in. That would
mean nothing for a program that runs what its arguments say: those are remembered by all of their
arguments.
"""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from agent_core.errors import ToolError
from agent_core.tools.paths import Boundaries

_SHELLS = "sh bash dash ash zsh ksh mksh fish csh tcsh rbash busybox toybox pwsh elvish nu xonsh"
_INTERPRETERS = (
    "python pypy ipython perl ruby irb node nodejs deno bun ts-node tsx lua luajit php tclsh wish "
    "expect osascript rscript r julia java jshell scala groovy kotlin ghci runghc swift elixir erl "
    "iex guile racket sbcl clisp emacs vi vim nvim view ex ed awk gawk mawk nawk sed bc dc gdb "
    "lldb sqlite psql mysql gnuplot octave"
)
_LAUNCHERS = (
    "env xargs parallel nice ionice nohup timeout time stdbuf setsid chrt taskset unshare nsenter "
    "chroot su sudo doas pkexec runuser setpriv capsh ssh scp sftp rsync screen tmux script watch "
    "strace ltrace valgrind perf entr flock find fd fdfind tar zip 7z rpm dpkg systemd-run at "
    "batch crontab start-stop-daemon daemonize direnv command exec ld.so ld-linux-x86-64.so less "
    "more man"
)
_BUILDERS = (
    "git hg svn jj gh make gmake bmake cmake ctest ninja meson bazel bazelisk buck gradle gradlew "
    "mvn mvnw ant sbt npm npx pnpm pnpx yarn corepack pip pipx uv uvx poetry pdm hatch tox nox "
    "pytest py.test coverage conda mamba just task rake bundle bundler gem composer cargo rustup "
    "rustc go gcc g++ cc clang ld dotnet msbuild mix stack cabal nix nix-shell nix-build docker "
    "podman nerdctl kubectl helm vagrant terraform ansible ansible-playbook pre-commit"
)
RUNS_OTHERS = frozenset(" ".join((_SHELLS, _INTERPRETERS, _LAUNCHERS, _BUILDERS)).split())

_MAX_WORDS = 1000
_BETWEEN_WORDS = re.compile(r"[\s'\"=;|&<>()`]+")
_VERSION = re.compile(r"[-.\d]+\Z")


def scope_of(boundaries: Boundaries, program: Path, argv: Sequence[str], *, cwd: Path) -> str:
    """What an `allow_for_session` of this command would cover.

    The name it is called by counts as well as its file: one file may be many programs. People
    read it in the question; every word is quoted, so that no two commands read the same.
    """
    real = Path(os.path.realpath(program))
    scope = shlex.quote(str(program))
    if real != program:
        scope += f" ({shlex.quote(str(real))})"
    if _runs_others(boundaries, program, real):
        scope += f" as {shlex.join(argv)}"
    return f"{scope} in {shlex.quote(str(cwd))}"


def names_protected(boundaries: Boundaries, argv: Sequence[str], *, cwd: Path) -> bool:
    """Does an argument name the program's own files? For the prompt; no boundary."""
    if boundaries.is_protected(cwd):
        return True
    words = islice(dict.fromkeys(_words(argv)), _MAX_WORDS)
    return any(_is_protected(boundaries, word, cwd) for word in words if word)


def _runs_others(boundaries: Boundaries, program: Path, real: Path) -> bool:
    names = {path.name.casefold() for path in (program, real)}
    if any(name in RUNS_OTHERS or _VERSION.sub("", name) in RUNS_OTHERS for name in names):
        return True
    # What can be rewritten from one call to the next, or is a script, says nothing by its name.
    return boundaries.resolve(str(real)).writable or _is_script(real)


def _is_script(program: Path) -> bool:
    try:
        with program.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return True


def _words(argv: Sequence[str]) -> Iterator[str]:
    """The arguments, and the words of those that are options or scripts."""
    for argument in argv:
        yield argument
        yield from (word for word in _BETWEEN_WORDS.split(argument) if word != argument)


def _is_protected(boundaries: Boundaries, word: str, cwd: Path) -> bool:
    if "SOONG_AGENT_HOME" in word or any(str(root) in word for root in boundaries.protected):
        return True
    expanded = word.replace("${HOME}", "~", 1).replace("$HOME", "~", 1)
    try:
        return boundaries.is_protected(boundaries.resolve(expanded, base=cwd).path)
    except ToolError:  # no path at all
        return False
