"""Which paths a recording leaves out: patterns as in ignore files, but for what git tracks."""

import os
from collections.abc import Iterable

from agent_core.text.wildcards import Wildcards


class Exclusions:
    """The patterns of `exclude`.

    Args:
        patterns: as lines of a `.gitignore` at the top of the workspace.
        tracked: paths that git tracks, relative to the workspace.
    """

    def __init__(self, patterns: Iterable[str], tracked: Iterable[bytes] = ()) -> None:
        lines = os.fsencode("\n".join(patterns))
        self._of_files = Wildcards.parse(lines, folders=False)
        self._of_folders = Wildcards.parse(lines, folders=True)
        kept: set[bytes] = set()
        for path in tracked:
            parts = path.split(b"/")
            above = [b"/".join(parts[:count]) for count in range(1, len(parts))]
            if any(self.fit(folder, is_folder=True) for folder in above) or self.fit(
                path, is_folder=False
            ):
                kept |= {path, *above}
        self.tracked = frozenset(kept)

    def fit(self, path: bytes, *, is_folder: bool) -> bool:
        """Whether a pattern means this path itself."""
        patterns = self._of_folders if is_folder else self._of_files
        return patterns.verdict(path) is True

    def is_tracked(self, path: bytes) -> bool:
        """Whether git tracks it, or something in it, though a pattern means it."""
        return path in self.tracked
