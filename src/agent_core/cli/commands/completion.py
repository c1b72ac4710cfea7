"""The arguments of `soong-agent completion`."""

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import Commands, add_actions, add_command

_WHAT = {
    "bash": ("Bash", "  source <(soong-agent completion bash)", "~/.bashrc"),
    "zsh": ("Zsh", "  source <(soong-agent completion zsh)", "~/.zshrc"),
    "fish": ("Fish", "  soong-agent completion fish | source", "~/.config/fish/config.fish"),
}


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    completion = add_command(commands, "completion", PURPOSES["completion"])
    completion.set_defaults(work="agent_core.cli.completion:print_completion")
    actions = add_actions(completion)
    for shell, (name, line, file) in _WHAT.items():
        what = f"print a script for {name}"
        epilog = (
            f"examples:\n{line}\n\nPut that line into {file} to have it in every shell. It"
            "\ncompletes commands, actions, options and their values, and files.\nExit codes: 0"
            " printed; 2 wrong usage.\n"
        )
        add_command(actions, shell, what, epilog=epilog)
