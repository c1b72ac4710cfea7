"""The arguments of `soong-agent doctor`."""

from collections.abc import Callable

from agent_core.cli.options import Commands, Options, add_path


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    doctor = commands.add_parser("doctor", help="check whether everything a run needs is there")
    doctor.set_defaults(load=_load)
    add_path(doctor)
    doctor.add_argument(
        "--model", metavar="<provider:name>", help="the model to ask, such as openai:gpt-5"
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object")


def _load() -> Callable[[Options], int]:
    from agent_core.cli.doctor import examine_all  # noqa: PLC0415 - help must not wait for it

    return examine_all
