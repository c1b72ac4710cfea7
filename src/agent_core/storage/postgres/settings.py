"""Connections to PostgreSQL on which everything is set that the program relies on.

A role, a database or a server may have other settings. Behind a pooler, each transaction may be
executed by another server process, which also serves other clients: nothing that an earlier
transaction has left is relied on there, and nothing is left behind.
"""

import math
import os
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg
from psycopg import Connection, IsolationLevel, Pipeline, RawCursor, Transaction
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.sql import SQL, Literal
from psycopg.types.numeric import Int8Dumper

from agent_core.errors import ConfigError, ErrorCode
from agent_core.storage.postgres.faults import DATABASE
from agent_core.storage.postgres.statements import (
    NumberLoader,
    PostgresRow,
    TextDumper,
    TimeLoader,
    make_rows,
)

SILENCE_S = 45.0
"""Seconds that a server may take to answer a statement: it may be large, or wait for another."""
IDLE_S = 10.0
"""Seconds that a transaction may wait for its process, which may be paused."""

_REACH_S = 10
_REACH: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "application_name": "soong-agent",
}
"""Settings with which libpq detects that the server is gone."""

_FORMATS: Mapping[str, str | None] = {
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
}
"""Settings that decide how values are read and written."""

_LIMITS: Mapping[str, str | None] = {
    "default_transaction_isolation": "read committed",
    "lock_timeout": "0",
    # Jobs look rows up by their keys: the planner, which cannot know how short a path is, would
    # read whole tables to join them.
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "max_parallel_workers_per_gather": "0",  # it would read all sessions for those of a tenant
    "jit": "off",  # compiling takes longer than these statements
}

_OF_CONNECTION: Mapping[str, str | None] = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
"""Settings of a server process that serves this connection alone."""

_LEFT_BY_OTHERS = ("role", "search_path", "synchronous_commit", "row_security")
"""Settings that a transaction behind a pooler takes from the role, the database or the server,
whatever another client has set.
"""

_UNBOUND = "set_config('soong.tenant', '', TRUE)"
_BOUND = """set_config('soong.tenant', ${}, TRUE), set_config('search_path',
    quote_ident(current_schema() || '_of_tenant') || ', ' || current_setting('search_path'),
    TRUE)"""
"""Restricts a transaction to the rows of one tenant."""

_WHO = """SELECT pid, CAST(extract(epoch FROM backend_start) AS TEXT),
    current_setting('server_version_num'),
    (SELECT setting = 'on' AND source IN ('user', 'database user') FROM pg_settings
        WHERE name = 'default_transaction_read_only')
    FROM pg_stat_activity WHERE pid = pg_backend_pid()"""
WRITING = b"BEGIN ISOLATION LEVEL READ COMMITTED"
READING = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_FIRST_WITH_IDLE_SESSION_TIMEOUT = 140_000
_FIRST_WITH_TRANSACTION_TIMEOUT = 170_000


class Answering(Connection[PostgresRow]):
    """A connection that is closed when an answer does not come.

    A proxy can accept bytes and drop them while TCP stays up.

    Attributes:
        silence_s: seconds that an answer may take to begin, or to continue.
        is_silent: an answer has taken longer.
        is_pooled: each transaction may be executed by another server process.
        process: pid and start of the server process, if it serves only this connection.
    """

    silence_s = math.inf
    is_silent = False
    is_pooled = False
    process: tuple[int, str] | None = None
    _begin = b"BEGIN"
    _settings: tuple[str, Sequence[str]] | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether a statement needs no transaction with settings around it."""
        return self._settings is None

    def settle(self, tenant: str | None, idle_s: float) -> None:
        """Set everything that jobs rely on: now, or for each transaction.

        A tenant is always bound for each transaction.

        Raises:
            psycopg.Error: the server refuses a setting.
        """
        row = self.execute(_WHO, prepare=False).fetchone()
        pid, began, version, is_reader = row or (0, "", "0", False)
        settings: dict[str, str | None] = {
            **_FORMATS,
            **_LIMITS,
            "idle_in_transaction_session_timeout": f"{math.ceil(idle_s * 1000)}ms",
            "statement_timeout": "60s" if self.silence_s < math.inf else "0",
        }
        if int(version) >= _FIRST_WITH_TRANSACTION_TIMEOUT:
            settings["transaction_timeout"] = "120s" if self.silence_s < math.inf else "0"
        self.is_pooled = pid != self.info.backend_pid
        if self.is_pooled:
            self.prepare_threshold = None  # another server process does not know the statement
            self.isolation_level = IsolationLevel.READ_COMMITTED
            self.read_only = False if is_reader else None
            self._begin = WRITING + (b" READ WRITE" if is_reader else b"")
            settings = {**dict.fromkeys(_LEFT_BY_OTHERS), **settings}
            self._settings = _as_statement(settings, tenant)
            with self.transaction():
                self._set_zone(is_local=True)
                row = self.execute("SELECT current_setting('TimeZone')").fetchone()
            settings["TimeZone"] = row[0] if row else None
            self._settings = _as_statement(settings, tenant)
        else:
            self.process = (pid, began)
            settings |= _OF_CONNECTION
            if int(version) >= _FIRST_WITH_IDLE_SESSION_TIMEOUT:
                settings["idle_session_timeout"] = "0"
            if is_reader:
                settings["default_transaction_read_only"] = "off"
            text, values = _as_statement(settings, is_local=False)
            self.execute(text.encode(), values, prepare=False)
            self._set_zone(is_local=False)
            if tenant is not None:
                self._settings = _as_statement({}, tenant)

    def begin(self, how: bytes | None = None) -> None:
        """Begin a transaction with the settings; by default one that writes."""
        self.execute(how or self._begin)
        self.apply_settings()

    def bind(self, tenant: str) -> None:
        """Restrict the current transaction to the rows of one tenant."""
        self.execute(f"SELECT {_BOUND.format(1)}".encode(), [tenant])

    @contextmanager
    def together(self) -> Generator[Pipeline | None]:
        """Send statements without waiting for each answer; one after another behind a pooler.

        PgBouncer 1.18 now and then answers nothing more to a client that does not wait.
        """
        if self.is_pooled:
            yield None
        else:
            with self.pipeline() as pipeline:
                yield pipeline

    def apply_settings(self) -> None:
        """Apply the settings that end with the transaction."""
        if self._settings is not None:
            text, values = self._settings
            self.execute(text.encode(), values)

    @contextmanager
    def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> Generator[Transaction]:
        """See `psycopg.Connection.transaction`; the outermost one begins with the settings."""
        is_outermost = self.info.transaction_status == TransactionStatus.IDLE
        with super().transaction(savepoint_name, force_rollback) as transaction:
            if is_outermost:
                self.apply_settings()
            yield transaction

    def _set_zone(self, *, is_local: bool) -> None:
        """Count days by this machine's time zone, or by the server's where it does not know it."""
        attempt = SQL("""BEGIN PERFORM set_config('TimeZone', {}, {});
            EXCEPTION WHEN invalid_parameter_value THEN NULL; END""")
        body = attempt.format(Literal(_zone()), Literal(is_local)).as_string(self)
        self.execute(SQL("DO {}").format(Literal(body)), prepare=False)

    def wait(self, gen: PQGen[Any], *values: Any, **options: Any) -> Any:
        """See `psycopg.Connection.wait`."""
        return super().wait(self._in_time(gen), *values, **options)

    def _in_time(self, answer: PQGen[Any]) -> PQGen[Any]:
        heard_at = time.monotonic()
        try:
            wanted = next(answer)
            while True:
                ready = yield wanted
                if ready:
                    heard_at = time.monotonic()
                elif time.monotonic() > heard_at + self.silence_s:
                    self.is_silent = True
                    self.close()
                    raise psycopg.OperationalError("the server does not answer")
                wanted = answer.send(ready)
        except StopIteration as end:
            return end.value


def connect(
    url: str,
    *,
    tenant: str | None = None,
    silence_s: float = math.inf,
    idle_s: float = IDLE_S,
    reach_s: int = _REACH_S,
) -> Answering:
    """Open a connection, which is in no transaction.

    A process that is paused in a transaction loses it, and its locks, after `idle_s`.

    Args:
        url: see `PostgresSessionStore.open`.
        tenant: the same.
        silence_s: seconds that an answer may take before the connection is closed.
        idle_s: seconds that the server waits for the next statement of a transaction.
        reach_s: seconds that connecting may take, unless the address says otherwise.

    Raises:
        ConfigError: the address is invalid.
        psycopg.Error: the server cannot be reached, or refuses the user.
    """
    try:
        reach = {**_REACH, "connect_timeout": reach_s}
        given = {**reach, **conninfo_to_dict(url), "client_encoding": "utf8"}
        address = make_conninfo("", **given)
    except psycopg.ProgrammingError:  # it repeats the address
        message = f"libpq cannot read the address of {DATABASE}; check the part after its host"
        raise ConfigError(ErrorCode.CONFIG_ERROR, message) from None
    connection = Answering.connect(
        address,
        autocommit=True,
        prepare_threshold=0,  # at once: later, psycopg loses count of what a pipeline has aborted
        row_factory=make_rows,
        cursor_factory=RawCursor[Any],
    )
    try:
        connection.silence_s = silence_s
        connection.prepared_max = 300
        connection.adapters.register_dumper(str, TextDumper)
        connection.adapters.register_dumper(int, Int8Dumper)
        connection.adapters.register_loader("numeric", NumberLoader)
        connection.adapters.register_loader("timestamptz", TimeLoader)
        connection.settle(tenant, idle_s)
    except BaseException:
        connection.close()
        raise
    return connection


def _zone() -> str:
    """Return this machine's time zone, by which days are counted."""
    zone = os.environ.get("TZ", "").removeprefix(":") or os.path.realpath("/etc/localtime")
    return zone.rpartition("zoneinfo/")[2] if "zoneinfo/" in zone else zone


def _as_statement(
    settings: Mapping[str, str | None], tenant: str | None = None, *, is_local: bool = True
) -> tuple[str, Sequence[str]]:
    """Return a statement that makes settings, and its parameters; None is the server's default.

    With `is_local` they end with the transaction, which belongs to the tenant.
    """
    values = [value for value in settings.values() if value is not None]
    numbers = count(1)
    words = [
        f"set_config('{name}', {'NULL' if value is None else f'${next(numbers)}'}, {is_local})"
        for name, value in settings.items()
    ]
    if tenant is not None:
        words.append(_BOUND.format(next(numbers)))
        values.append(tenant)
    elif is_local:
        words.append(_UNBOUND)
    return f"SELECT {', '.join(words)}", values
