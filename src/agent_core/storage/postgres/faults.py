"""Translates psycopg's errors into messages that say what a person can do.

None of them names the address of the database: an address that is parsed wrongly may have a part of
the password in place of the host.
"""

import psycopg

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.rows import unstorable

DATABASE = "the Postgres database of the sessions"

_MEANINGS = {
    "08": "cannot be reached; check that the server runs, and the network",
    "statements": "is reached through a pooler that gives connections away within a transaction;"
    " set its pool_mode = transaction or session, or use the server's own address",
    "closed": "cannot be reached: nothing listens there; check that the server runs, and its port",
    "host": "cannot be reached: its host name is unknown; check the address, in which @ and / of a"
    " password are written %40 and %2F",
    "port": "cannot be reached: the port in its address is invalid; check the address",
    "tls": "cannot be reached: its encryption is not what the address asks for; check sslmode, and"
    " the server's certificate",
    "53": "has no room or no free connection; check its disk, memory and max_connections",
    "57": "was stopped, or ended the statement; try again when it runs, and check its timeouts",
    "58": "cannot be read or written; check the disk of the server",
    "28": "refuses the user or the password; check them in the address",
    "3D": "does not exist; create it, or correct its name in the address",
    "42501": "has tables that the user of the address may not use; soong-agent store check names"
    " the missing rights",
    "25006": "is read-only; use the address of the primary server",
    "55P03": "is held by another process; wait for it to finish, or end it",
    "23505": "has a row of this id already; use another one",
    "44": "does not let one tenant write into the sessions of another",
    "40": "is held by another process; wait for it to finish, or end it",
    "XX": "is damaged, or its server has a fault; look at the server's log",
}
"""Keyed by error code or error class."""

_LASTING = {"statements", "23505", "28", "3D", "42501", "44", "XX", "port"}

_REFUSALS = {
    "statement pooling mode": "statements",
    "password authentication failed": "28",
    "no password supplied": "28",
    "no pg_hba.conf entry": "28",
    'role "': "28",
    'database "': "3D",
    "too many clients": "53",
    "remaining connection slots": "53",
    "Connection refused": "closed",
    "No such file or directory": "closed",  # a socket of this machine
    "resolve host": "host",
    "translate host name": "host",
    "invalid port number": "port",
    "invalid integer value": "port",
    "SSL": "tls",
    "certificate": "tls",
}
"""Messages of libpq, which has no codes, for a server that accepts no connection."""

_AGAIN = {"40001", "40P01", "53300", "55P03", "57P03"}
"""Codes after which another attempt may succeed: deadlocks, a starting or full server."""


def is_passing(error: psycopg.Error) -> bool:
    """Return whether another attempt may succeed on this connection, or on a new one."""
    return error.sqlstate in _AGAIN


def is_broken(error: psycopg.Error) -> bool:
    """Return whether the connection is lost or was never made: the server is silent, or ends it."""
    is_of_connection = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return is_of_connection and error.sqlstate in {None, "08P01", "57P01", "57P02"}


def explain(error: Exception) -> Exception:
    """Return the error for the caller: a `StorageError` for everything that PostgreSQL refuses."""
    if not isinstance(error, psycopg.Error):
        return unstorable(error)
    name, code = type(error).__name__, error.sqlstate
    if error.diag.constraint_name == "sessions_pkey":  # of a tenant, invisible to the others
        message = "a session of another tenant has this id; use another id"
        return StorageError(ErrorCode.VALIDATION_ERROR, message, details={"option": "session_id"})
    if code in {None, "08P01"} and isinstance(error, psycopg.OperationalError):
        text = str(error)
        code = next((code for said, code in _REFUSALS.items() if said in text), "08")
    known = next((key for key in (code, (code or "")[:2]) if key in _MEANINGS), None)
    meaning = _MEANINGS[known] if known else f"refused a write or a query ({name})"
    return StorageError(
        ErrorCode.STORAGE_ERROR,
        f"{DATABASE} {meaning}",
        retryable=known is not None and known not in _LASTING,
        details={"postgres": name},
    )
