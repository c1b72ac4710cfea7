"""Which version of a file an agent has seen last: what it has not seen, it must not overwrite.

An edit is planned on what was read. If somebody has changed the file since then, the plan may undo
their work, so it has to be read again first. Files that were never read are not looked after.
"""

from collections import OrderedDict
from pathlib import Path

from agent_core.errors import ErrorCode, ToolError

Version = tuple[int, ...]
"""Device, inode, size and time of change: different as soon as the content is."""

_REMEMBERED = 10_000


class FileVersionTracker:
    """What the agents of one runtime have seen, in memory only."""

    def __init__(self) -> None:
        self._versions: OrderedDict[tuple[str, Path], Version] = OrderedDict()

    def written(self, agent_id: str, path: Path, version: Version) -> None:
        """Remember that an agent has made this version of a file, if it had read the one before."""
        if (agent_id, path) in self._versions:
            self.read(agent_id, path, version)

    def read(self, agent_id: str, path: Path, version: Version) -> None:
        """Remember that an agent has read this version of a resolved path."""
        self._versions.pop((agent_id, path), None)  # so that it becomes the newest
        self._versions[agent_id, path] = version
        if len(self._versions) > _REMEMBERED:
            self._versions.popitem(last=False)

    def require_current(self, agent_id: str, path: Path, version: Version, *, shown: str) -> None:
        """Return if the agent has seen this version, or none at all.

        Raises:
            ToolError: `path_conflict`; it knows an older one.
        """
        if self._versions.get((agent_id, path), version) != version:
            raise ToolError(
                ErrorCode.PATH_CONFLICT,
                f"{shown} changed on disk since you read it; read it again",
                details={"reason": "changed_on_disk"},
            )
