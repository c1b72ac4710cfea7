"""A real PgBouncer before a test's server: clients share its connections to each database.

It comes from Debian's package `pgbouncer`. It refuses root, so under root it runs as `nobody`.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import create_connection, socket

from postgres import NOBODY, Server

UNAVAILABLE = "no PgBouncer: install Debian's package (apt-get install pgbouncer)"


def find_pgbouncer() -> str | None:
    """Return the path of the program; None if it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextmanager
def pooled(server: Server, *, mode: str = "transaction", size: int = 1) -> Generator[int]:
    """Start a pooler with this many connections per database; yield its port."""
    program = find_pgbouncer()
    assert program is not None
    with tempfile.TemporaryDirectory(dir=server.folder) as name, socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        probe.close()
        folder = Path(name)
        users = folder / "users"
        users.write_text(f'"soong" "{server.password}"\n"guest" "{server.password}"\n', "utf-8")
        settings = folder / "pgbouncer.ini"
        settings.write_text(
            f"""[databases]
* = host=127.0.0.1 port={server.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = plain
auth_file = {users}
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 200
server_login_retry = 1
""",
            "utf-8",
        )
        user = NOBODY if os.geteuid() == 0 else None
        if user is not None:
            for path in (folder, users, settings):
                os.chown(path, user, user)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - the program that was found
                (program, "-q", str(settings)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                user=user,
                group=user,
            )
        try:
            while True:
                assert process.poll() is None, (folder / "log").read_text("utf-8")
                with suppress(OSError), create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.01)
            yield port
        finally:
            process.kill()
            process.wait()
