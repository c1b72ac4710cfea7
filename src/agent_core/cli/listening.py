"""The socket of a server, and the token that its clients send, as its command line names them."""

import ipaddress
import os
import socket
from pathlib import Path

from agent_core.cli.options import Options
from agent_core.opening import read_text_file

_LONGEST = 4096
_BACKLOG = 2_048
_SHORT = 16


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 is a free one.

    Raises:
        ValueError: the port is taken, or there is no such address.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With the protocol named, event loops set TCP_NODELAY on the connections they accept.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        why = error.strerror or str(error)
        raise ValueError(f"cannot listen on {host} port {port}: {why}") from None
    return listening


def read_token(options: Options) -> str | None:
    """Return the token that the command line names; None if it names none.

    Raises:
        ValueError: the file cannot be read, or there is no token in it, or in the variable.
    """
    if options.token_file is not None:
        where = f"the first line of {options.token_file}"
        token = _first_line(Path(options.token_file))
    elif options.token_env is not None:
        where = f"the environment variable {options.token_env}"
        token = os.environ.get(options.token_env, "").strip()
    else:
        return None
    if not token or not token.isascii() or not token.isprintable():
        raise ValueError(f"{where} holds no token")
    return token


def _first_line(file: Path) -> str:
    try:
        beginning = read_text_file(file, _LONGEST)
    except OSError as error:
        why = error.strerror or str(error)
        raise ValueError(f"the token's file {file} cannot be read: {why}") from None
    lines = beginning.decode(errors="replace").splitlines()
    return lines[0].strip() if lines else ""


def require_token(host: str) -> ValueError:
    """Return the error for a server without a token that others can reach."""
    cure = "name one with --token-env or --token-file"
    return ValueError(f"{host} can be reached by others, so it needs a token; {cure}")


def say_short(token: str) -> str | None:
    """Return the warning about a token that can be guessed; None for a longer one.

    It matters on loopback as well, where every user and program of the machine can try tokens.
    """
    if len(token) >= _SHORT:
        return None
    return f"warning: a token of fewer than {_SHORT} characters can be guessed"


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches an address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
