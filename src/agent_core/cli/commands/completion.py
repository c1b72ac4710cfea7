"""The arguments of `soong-agent completion`."""

from collections.abc import Callable

from agent_core.cli.options import Commands, Options, add_actions, add_command

_WHAT = {
    "bash": ("Bash", "  source <(soong-agent completion bash)", "~/.bashrc"),
    "zsh": ("Zsh", "  source <(soong-agent completion zsh)", "~/.zshrc"),
    "fish": ("Fish", "  soong-agent completion fish | source", "~/.config/fish/config.fish"),
}


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    completion = add_command(
        commands, "completion", "print what lets a shell complete commands and options"
    )
    completion.set_defaults(load=_load)
    actions = add_actions(completion)
    for shell, (name, line, file) in _WHAT.items():
        what = f"print a script for {name}"
        epilog = (
            f"examples:\n{line}\n\nWith that line in {file} it is there in every shell. It"
            "\ncompletes commands, actions, options and their values, and files.\nExit codes: 0"
            " printed; 2 wrong usage.\n"
        )
        add_command(actions, shell, what, epilog=epilog)


def _load() -> Callable[[Options], int]:
    from agent_core.cli.completion import print_completion  # noqa: PLC0415 - as for every command

    return print_completion
