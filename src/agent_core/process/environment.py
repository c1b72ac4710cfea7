"""Environment variables of commands, declarative tools and hooks."""

from collections.abc import Collection, Mapping

INHERITED = frozenset({"LANG", "TZ", "TERM", "USER", "LOGNAME"})
"""Inherited in any case, with `LC_*`: text, times and the user are wrong without them."""

UNATTENDED = {"EDITOR": "true", "GIT_EDITOR": "true", "PAGER": "cat", "GIT_PAGER": "cat"}
"""Nobody can use an editor or a pager of a command: these take what they are given and end."""


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
    """Return the names in the environment of a command that its allowlist brings, sorted.

    What every command gets is left out: a question does not list it, and its answer holds in a
    process without a terminal or a locale too.
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


def is_unattended(name: str, value: str) -> bool:
    """Return whether a variable is an editor or a pager that ends at once."""
    return UNATTENDED.get(name) == value
