"""The arguments of `soong-agent doctor`."""

from agent_core.cli.options import Commands, add_command, add_path

_EXAMPLES = """\
examples:
  soong-agent doctor
  soong-agent doctor --model openai:gpt-5 --json

The model is asked for one short answer. Nothing is written. Exit codes: 0 all
that is needed is there, 1 something is broken; each line says what helps.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    doctor = add_command(
        commands, "doctor", "check whether everything a run needs is there", epilog=_EXAMPLES
    )
    doctor.set_defaults(work="agent_core.cli.doctor:examine_all")
    add_path(doctor)
    doctor.add_argument(
        "--model", metavar="<provider:name>", help="the model to ask, such as openai:gpt-5"
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
