"""Environment variables of commands, declarative tools and hooks."""

import re
from collections.abc import Collection, Mapping

HOOK = "SOONG_AGENT_HOOK"
"""Names the event of the hook that a program works for; no hooks run in runs that it starts."""

INHERITED = frozenset({"LANG", "TZ", "TERM", "USER", "LOGNAME", HOOK})
"""Inherited in any case, with `LC_*`: text, times and the user are wrong without them."""

UNATTENDED = {
    **dict.fromkeys(("EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR"), "true"),
    **dict.fromkeys(("PAGER", "GIT_PAGER"), "cat"),
    "GIT_TERMINAL_PROMPT": "0",
}
"""Variables that make editors, pagers and prompts of a command end at once: no user is there.

Git takes its variables before its settings: a `core.editor` or `sequence.editor` is not started.
"""


def command_environment(names: Collection[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Build the environment of a command.

    Args:
        names: `env_allowlist`; its variables are inherited as they are, editors and pagers too.
        environ: the environment of this process.
    """
    inherited = {
        name: value
        for name, value in environ.items()
        if name in names or name in INHERITED or name.startswith("LC_")
    }
    return UNATTENDED | inherited


def configured_names(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names in the environment of a command that its allowlist adds, sorted.

    Variables of every command are left out: a question does not list them, and its answer is also
    valid in a process without a terminal or a locale.
    """
    return tuple(
        sorted(
            name
            for name, value in env.items()
            if name not in INHERITED
            and not name.startswith("LC_")
            and not is_unattended(name, value)
        )
    )


_HARMLESS = (
    r"PATH|HOME|TMPDIR|LANG|LC_[A-Z]+|TZ|TERM|USER|LOGNAME|SHELL|PWD|COLUMNS|LINES|NO_COLOR"
    rf"|{HOOK}"
)
"""Variables that no program that only reads takes options or programs from."""


def changing_names(env: Mapping[str, str]) -> list[str]:
    """Return the variables that may change the effect of a program that only reads, sorted.

    With one of them no command is known to only read.
    """
    return sorted(
        name
        for name, value in env.items()
        if not re.fullmatch(_HARMLESS, name) and not is_unattended(name, value)
    )


def is_unattended(name: str, value: str) -> bool:
    """Return whether a variable is an editor, a pager or a prompt that ends at once."""
    return UNATTENDED.get(name) == value
