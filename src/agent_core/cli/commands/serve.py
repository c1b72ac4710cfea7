"""The arguments of `soong-agent serve`."""

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import Commands, add_command, add_token, port

_ABOUT = """\
Serve the console: see sessions, answer questions and continue work from a
browser, and from other programs over HTTP. When it is ready, it prints one line
to standard output: a link that signs a browser in, once and within ten minutes.
All other output goes to standard error.
"""
_EPILOG = """\
examples:
  soong-agent serve
  soong-agent serve --project ~/src/shop --project ~/src/site
  soong-agent serve --host 0.0.0.0 --token-env CONSOLE_TOKEN
      --tls-cert cert.pem --tls-key key.pem

New sessions work in the first --project, or else in the current folder; the
console also shows every session of the home, and works in their folders. Runs
ask, whatever [permissions] unattended says: a question waits until it is
answered here, in a terminal (approvals answer) or in another process.

Programs send the token as Authorization: Bearer. An address that others can
reach requires a token. Ctrl-C and SIGTERM cancel its runs, except those that
wait for an answer, which continue once it is given.

Needs the extra serve; if it is missing, the error says how to install it.
Exit codes: 0 ended by Ctrl-C or SIGTERM; 1 the sessions cannot be read; 2 wrong
usage or configuration, no token, or a port that is taken; 130, 143 ended by a
second signal.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    serve = add_command(
        commands,
        "serve",
        PURPOSES["serve"],
        description=_ABOUT,
        epilog=_EPILOG,
    )
    serve.set_defaults(work="agent_core.cli.serve:serve_console")
    serve.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="<address>",
        help="default: 127.0.0.1, only this machine",
    )
    serve.add_argument(
        "--port", type=port, default=8642, metavar="<n>", help="default: 8642; 0 picks a free one"
    )
    serve.add_argument(
        "--project",
        "--path",
        dest="projects",
        action="append",
        metavar="<dir>",
        help="a folder to work in, the first by default; may be repeated (default: the current"
        " folder)",
    )
    add_token(serve)
    serve.add_argument(
        "--tls-cert", metavar="<file>", help="serve HTTPS with this certificate (PEM)"
    )
    serve.add_argument("--tls-key", metavar="<file>", help="the key of the certificate (PEM)")
    serve.add_argument(
        "--read-only", action="store_true", help="show everything, and change nothing"
    )
