"""Programs that run others, and shells: one table for all that read commands.

`tools/commands.py` judges the scripts of declarative tools, `tools/code/` the commands of models.
"""

import re
from collections.abc import Mapping

from agent_core.tools.options import OptionTable


def words_of(text: str) -> frozenset[str]:
    """Return the words of a table."""
    return frozenset(text.split())


SHELLS = words_of("ash bash dash sh")
"""Shells whose language this program can read."""

OTHER_SHELLS = words_of(
    """
    csh elvish fish hush ksh loksh mksh nu oil oksh osh posh rbash rksh sash tcsh xonsh yash zsh
    """
)

ALL_SHELLS = SHELLS | OTHER_SHELLS

SHELL_COMMANDS = words_of(
    """
    . : [ alias bg bind break builtin caller cd chdir command compgen complete compopt
    continue coproc
    declare dirs disown echo enable eval exec exit export false fc fg getopts hash help history
    jobs kill let local logout mapfile popd printf pushd pwd read readarray readonly return set
    shift shopt source suspend test times trap true type typeset ulimit umask unalias unset wait
    """
)
"""All commands that a shell brings itself."""

WRAPPERS: Mapping[str, OptionTable] = {
    "command": OptionTable(leading=True),
    "env": OptionTable(leading=True),
    "exec": OptionTable(leading=True),
    "ionice": OptionTable("-t --ignore", "-cn --class --classdata", leading=True),
    "nice": OptionTable("", "-n --adjustment", counts=True, leading=True),
    "nohup": OptionTable(leading=True),
    "setsid": OptionTable("-cfw --ctty --fork --wait", leading=True),
    "stdbuf": OptionTable("", "-eio --error --input --output", leading=True),
    "time": OptionTable("-p", leading=True),
    "timeout": OptionTable(
        "-v --foreground --preserve-status --verbose", "-ks --kill-after --signal", leading=True
    ),
    "xargs": OptionTable(
        "-0rtx --exit --no-run-if-empty --null --verbose",
        "-dILnPs --delimiter --max-args --max-chars --max-procs",
        leading=True,
    ),
}
"""Programs that only start the one behind them, with the options that are known."""

STARTERS: Mapping[str, OptionTable] = {
    **WRAPPERS,
    "busybox": OptionTable(leading=True),
    "doas": OptionTable("-n", leading=True),
    "sudo": OptionTable("-EHSn", leading=True),
    "toybox": OptionTable(leading=True),
}
"""The same with programs that rules see beside the one that they start."""

SEVERAL_IN_ONE = words_of("busybox toybox")
AS_ANOTHER_USER = words_of("doas gosu pkexec run0 runuser su su-exec sudo sudoedit")

JOINERS = words_of("entr flock hyperfine parallel screen script sshpass systemd-run tmux watch")
"""Programs that run the command in their words, some through a shell."""

RUNNERS = JOINERS | words_of(
    """
    bwrap chpst chroot chrt choom dbus-run-session eatmydata fakeroot firejail ltrace nsenter
    numactl prlimit proot rlwrap setarch setpriv softlimit strace taskset unbuffer unshare valgrind
    """
)
"""Programs that run others, with options that are in no table."""

INTERPRETERS = words_of(
    """
    awk bc bun cmd dc deno ed emacs ex expect gawk gdb gsed guile ipython julia lua luajit m4 mawk
    nawk node nodejs osascript perl php powershell pwsh pypy python rscript ruby scheme sed tclsh
    vi vim wish
    """
)
"""Programs that run a text in a language of their own, by names without a version."""

RUN_INPUT = ALL_SHELLS | (INTERPRETERS - {"gsed", "sed"}) | words_of("at batch crontab parallel")
"""Programs that run what they read, if they are given nothing else to run."""

_VERSION = r"[-.\d]+$"


def bare_name(program: str) -> str:
    """Return the name of a program without its folder and, for a language, its version."""
    name = program.rpartition("/")[2].lower()
    bare = re.sub(_VERSION, "", name)
    return bare if bare in INTERPRETERS or bare in ALL_SHELLS else name


FIND_ACTIONS = words_of("-exec -execdir -ok -okdir")
"""Options of `find` that start the command behind them."""
