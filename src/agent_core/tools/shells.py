"""Programs that run others: one table for all that read commands.

`tools/commands.py` judges the scripts of declarative tools, `tools/code/` the commands of models.
"""

from collections.abc import Mapping

from agent_core.tools.options import OptionTable


def words_of(text: str) -> frozenset[str]:
    """The words of a table."""
    return frozenset(text.split())


SHELLS = words_of("ash bash dash sh")
"""Shells whose language this program can read."""

OTHER_SHELLS = words_of(
    """
    csh elvish fish hush ksh loksh mksh nu oil oksh osh posh rbash rksh sash tcsh xonsh yash zsh
    """
)

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

JOINERS = words_of("entr flock hyperfine parallel screen script sshpass systemd-run tmux watch")
"""Programs that run the command in their words, some through a shell."""

FIND_ACTIONS = words_of("-exec -execdir -ok -okdir")
"""Options of `find` that start the command behind them."""
