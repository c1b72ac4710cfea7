"""Commands that reach for the network, as far as their words tell.

A program without the network may fail and print nothing, as `curl -s` does. Its words are the
only trace of what it tried. They decide about a hint, and about nothing else.
"""

import re
from pathlib import Path

from agent_core.tools.shells import words_of
from agent_core.types import CommandView, CommandViews

_ADDRESS = re.compile(r"\b(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_REMOTE = re.compile(r"(?:[\w.-]+@)?[\w.-]+:(?!:)\S*")
"""A file of another machine, as `scp` and `rsync` name it."""

_CLIENTS = words_of(
    """
    aria2c aws az curl dig doggo drill ftp gcloud gh glab gsutil host http https lftp lynx mosh
    mtr nc ncat netcat nslookup ping ping6 rclone s3cmd scp sftp ssh sshpass telnet tracepath
    traceroute w3m websocat wget whois xh
    """
)
"""Programs that do nothing without the network."""

_FETCH = words_of(
    """
    add ci clone create deploy download fetch get i info init install login ls-remote mod outdated
    publish pull push restore search submodule sync update upgrade view
    """
)
_FETCHING = words_of(
    """
    apk apt apt-get brew bun bundle cargo composer conda deno dnf docker dotnet flutter gem go
    helm mamba mix npm pacman pip pip3 pipenv pnpm podman poetry terraform tofu uv yarn yum
    """
)
"""Programs that need it for some of what they do. Git is not among them: it says why it fails."""


def reaches_for_network(command: CommandViews) -> bool:
    """Return whether the words of a command name an address or a client of the network."""
    return any(map(_reaches, command.views))


def _reaches(view: CommandView) -> bool:
    if not view.argv:
        return False
    name, words = Path(view.argv[0]).name, view.argv[1:]
    if name in _CLIENTS or any(map(_ADDRESS.search, words)):
        return True
    if name == "rsync":
        return any(map(_REMOTE.fullmatch, words))
    if re.fullmatch(r"python[\d.]*", name) and words[:2] == ("-m", "pip"):
        name, words = "pip", words[2:]
    return name in _FETCHING and not _FETCH.isdisjoint(words)
