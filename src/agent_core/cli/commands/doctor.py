"""The arguments of `soong-agent doctor`."""

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import Commands, add_command, add_path

_EXAMPLES = """\
examples:
  soong-agent doctor
  soong-agent doctor --model openai:gpt-5 --json

Calls the model once for a short answer, and writes nothing. Each problem has a
fix. Exit codes: 0 everything needed works, 1 something is broken.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    doctor = add_command(commands, "doctor", PURPOSES["doctor"], epilog=_EXAMPLES)
    doctor.set_defaults(work="agent_core.cli.doctor:examine_all")
    add_path(doctor)
    doctor.add_argument(
        "--model", metavar="<provider:name>", help="the model, such as openai:gpt-5"
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
