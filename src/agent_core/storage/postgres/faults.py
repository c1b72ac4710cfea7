"""Translates psycopg's errors into messages that say what a person can do.

None of them names the address of the database: an address that is parsed wrongly may have a part of
the password in place of the host.
"""

import re

import psycopg

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.rows import unstorable

DATABASE = "the Postgres database of the sessions"

_MEANINGS = {
    "08": "cannot be reached; check that the server runs, and the network",
    "08P01": "is reached through a pooler that ended the connection; check its limits and its log",
    "statements": "is reached through a pooler that gives connections away within a transaction;"
    " set its pool_mode = transaction or session, or use the server's own address",
    "options": "is reached through a pooler that refuses a parameter of the address, such as"
    " options; remove it, and set it for the role: ALTER ROLE ... SET",
    "pooler": "is reached through a pooler that cannot reach the server; check that the server"
    " runs, and the log of the pooler",
    "closed": "cannot be reached: nothing listens there; check that the server runs, and its port",
    "silent": "does not answer; check that a Postgres server listens at the host and port of the"
    " address, and the network",
    "host": "cannot be reached: its host name is unknown; check the address, in which @ and / of a"
    " password are written %40 and %2F",
    "port": "cannot be reached: the port in its address is invalid; check the address",
    "tls": "cannot be reached: its encryption is not what the address asks for; check sslmode, and"
    " the server's certificate",
    "53": "has no room; check its disk and memory",
    "53300": "takes no more connections: a limit of the server, the database or the user is"
    " reached; end some connections, or raise max_connections or CONNECTION LIMIT",
    "57": "was stopped, or ended the statement; try again when it runs, and check its timeouts",
    "57P03": "is starting, stopping or recovering; try again when it runs",
    "57P04": "does not exist any more: it was dropped",
    "58": "cannot be read or written; check the disk of the server",
    "28": "refuses the user or the password; check them in the address",
    "3D": "does not exist; create it, or correct its name in the address",
    "3F000": "has no schema for the tables: none of the search_path of the user exists; create one",
    "55000": "takes no connections: it is closed to everybody (ALLOW_CONNECTIONS)",
    "CONNECT": "may not be used by the user of the address; GRANT CONNECT ON DATABASE gives the"
    " right",
    "42501": "has tables that the user of the address may not use; soong-agent store check names"
    " the missing rights",
    "25006": "is read-only: a standby, or held so for a while; wait, or use the address of the"
    " primary server",
    "55P03": "is held by another process; wait for it to finish, or end it",
    "23505": "has a row of this id already; use another one",
    "44": "does not let one tenant write into the sessions of another",
    "40": "is held by another process; wait for it to finish, or end it",
    "XX": "is damaged, or its server has a fault; look at the server's log",
}
"""Keyed by error code or error class."""

_LASTING = {
    *("23505", "28", "3D", "3F000", "42501", "44", "55000", "57P04", "XX"),
    *("CONNECT", "options", "port", "statements"),
}

_REFUSALS = {
    "statement pooling mode": "statements",
    "unsupported startup parameter": "options",
    "too many connections": "53300",
    "too many clients": "53300",
    "connection slots": "53300",
    "no more connections allowed": "53300",
    "Max client connections reached": "53300",
    "max clients reached": "53300",
    "Tenant or user not found": "28",
    "starting up": "57P03",
    "shutting down": "57P03",
    "recovery mode": "57P03",
    "not yet accepting connections": "57P03",
    "not accepting connections": "57P03",
    "not currently accepting connections": "55000",
    'permission denied for database ""': "CONNECT",
    "is read-only": "25006",
    "hot standby mode": "25006",
    "authentication failed": "28",
    "no password supplied": "28",
    "pg_hba.conf": "28",
    "no such user": "28",
    "not permitted to log in": "28",
    'role "" does not exist': "28",
    'database "" does not exist': "3D",
    "no such database": "3D",
    "server login has been failing": "pooler",
    "pgbouncer cannot connect": "pooler",
    "query_wait_timeout": "53300",
    "timeout expired": "silent",
    "Connection refused": "closed",
    "No such file or directory": "closed",  # a socket of this machine
    "resolve host": "host",
    "translate host name": "host",
    "invalid port number": "port",
    "invalid integer value": "port",
    "SSL": "tls",
    "certificate": "tls",
}
"""Messages, without the names in them, of a connection that is not made: libpq tells no code then.
"""

_NAMES = re.compile(r'"[^"]*"')
_BREAKS = {None, "08000", "08003", "08006", "08P01", "57P01", "57P02", "57P05"}
_READ_ONLY = "25006"
_AGAIN = {"40001", "40P01", "53300", "55P03", "57P03", _READ_ONLY}
"""Codes of deadlocks and of a starting, full or read-only server: another attempt may succeed."""


def is_passing(error: psycopg.Error) -> bool:
    """Return whether another attempt may succeed on this connection, or on a new one."""
    return error.sqlstate in _AGAIN


def is_read_only(error: psycopg.Error) -> bool:
    """Return whether the server takes no writes; after a failover the address leads to another."""
    return error.sqlstate == _READ_ONLY


def read_only_error() -> StorageError:
    """Return the error for a write while the server takes none."""
    meaning = _MEANINGS[_READ_ONLY]
    return StorageError(ErrorCode.STORAGE_ERROR, f"{DATABASE} {meaning}", retryable=True)


def is_broken(error: psycopg.Error) -> bool:
    """Return whether the connection is lost or was never made: the server is silent, or ends it."""
    is_of_connection = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return is_of_connection and error.sqlstate in _BREAKS


def explain(error: Exception) -> Exception:
    """Return the error for the caller: a `StorageError` for everything that PostgreSQL refuses."""
    if not isinstance(error, psycopg.Error):
        return unstorable(error)
    name, code = type(error).__name__, error.sqlstate
    if error.diag.constraint_name == "sessions_pkey":  # of a tenant, invisible to other tenants
        message = "a session of another tenant has this id; use another id"
        return StorageError(ErrorCode.VALIDATION_ERROR, message, details={"option": "session_id"})
    if code in {None, "08P01"} and isinstance(error, psycopg.OperationalError):
        text = _NAMES.sub('""', str(error))
        code = next((code for said, code in _REFUSALS.items() if said in text), code or "08")
    known = next((key for key in (code, (code or "")[:2]) if key in _MEANINGS), None)
    meaning = _MEANINGS[known] if known else f"refused a write or a query ({name})"
    return StorageError(
        ErrorCode.STORAGE_ERROR,
        f"{DATABASE} {meaning}",
        retryable=known is not None and known not in _LASTING,
        details={"postgres": name},
    )
