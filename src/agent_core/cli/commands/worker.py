"""The arguments of `soong-agent worker`, `workers` and `queue`."""

import argparse
from math import inf

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import Commands, add_command, port, positive

_WORKER = """\
Execute the runs that are queued in the Postgres database of [store] url_env, up
to --concurrency at once. Start any number of workers, on any number of
machines: a run goes to one of them, and if that one dies, to another. SIGTERM
and Ctrl-C drain the worker: it takes no more runs, lets its runs continue for
--drain-seconds, and hands the rest over to other workers. A second signal ends
it at once. The defaults are read from [worker] in config.toml.
"""
_WORKER_EXAMPLES = """\
examples:
  soong-agent worker
  soong-agent worker --concurrency 8 --places snapshot --queues fast,slow
  soong-agent worker --tenant acme --metrics-port 9090
  soong-agent worker --places host:build-7,snapshot --drain-seconds 600

A place is where the files of a run are: host:<id> is the machine with that
host_id, snapshot is any machine. With --metrics-port it serves /metrics, for
Prometheus, /healthz (200, or 503 when it cannot take a run) and /livez.

Needs the extra postgres; if it is missing, the error says how to install it.
Exit codes: 0 drained; 1 the database failed at the start, or a run could not be
handed over; 2 wrong usage or configuration; 130, 143 ended by a second signal.
"""
_WORKERS = """\
List the workers of the Postgres database of [store] url_env: the machine of
each, the runs it takes, its load, and its last heartbeat.
"""
_WORKERS_EXAMPLES = """\
examples:
  soong-agent workers
  soong-agent workers --json

Exit codes: 0 listed; 1 the database cannot be read; 2 wrong usage or
configuration.
"""
_QUEUE = """\
List the queued and running runs of the database of [store] url_env, with their
workers, oldest first. Standard error names the places, queues and tenants of
listed runs that no live worker takes; in JSON these runs have
"is_without_worker".
"""
_QUEUE_EXAMPLES = """\
examples:
  soong-agent queue
  soong-agent queue --limit 1000 --json

Exit codes: 0 listed; 1 the database cannot be read; 2 wrong usage or
configuration.
"""


def add_parser(commands: Commands) -> None:
    """Add the arguments of the three commands."""
    worker = add_command(
        commands,
        "worker",
        PURPOSES["worker"],
        description=_WORKER,
        epilog=_WORKER_EXAMPLES,
    )
    worker.set_defaults(work="agent_core.cli.worker:run_worker")
    worker.add_argument(
        "--concurrency", type=positive, metavar="<n>", help="runs at once (default: 4)"
    )
    worker.add_argument(
        "--places",
        type=_names,
        metavar="<place>,…",
        help="places whose runs it takes (default: host:<this machine>,snapshot)",
    )
    worker.add_argument(
        "--queues", type=_names, metavar="<queue>,…", help="queues it serves (default: default)"
    )
    worker.add_argument(
        "--tenant", metavar="<tenant>", help="serve only this tenant (default: all)"
    )
    worker.add_argument(
        "--drain-seconds",
        type=_seconds,
        metavar="<s>",
        help="how long runs may continue after SIGTERM (default: 30)",
    )
    worker.add_argument(
        "--metrics-port",
        type=port,
        metavar="<n>",
        help="serve /metrics, /healthz and /livez on this port; 0: any",
    )
    worker.add_argument(
        "--metrics-address",
        default="127.0.0.1",
        metavar="<address>",
        help="address to serve them on; default: 127.0.0.1, only this machine",
    )
    for name, about, examples in (
        ("workers", _WORKERS, _WORKERS_EXAMPLES),
        ("queue", _QUEUE, _QUEUE_EXAMPLES),
    ):
        what = PURPOSES[name]
        listing = add_command(commands, name, what, description=about, epilog=examples)
        listing.set_defaults(work="agent_core.cli.workers:list_workers")
        listing.add_argument("--json", action="store_true", help="one JSON object per line")
        if name == "queue":
            listing.add_argument(
                "--limit",
                type=positive,
                default=100,
                metavar="<n>",
                help="show the oldest ones; default: 100",
            )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _seconds(text: str) -> float:
    """Parse a duration in seconds, 0 or more.

    Raises:
        argparse.ArgumentTypeError: it is not a number, or negative.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < inf:
        raise argparse.ArgumentTypeError(f"seconds are needed, 0 or more, not {text!r}")
    return seconds
