"""Which files `accept-edits` lets the file tools write without a question."""

import os
from pathlib import Path

from agent_core.process.protected import REPOSITORY, ProtectedFiles
from agent_core.tools.workspace import ResolvedPath, Workspace


def is_plain_edit(workspace: Workspace, place: ResolvedPath) -> bool:
    """Whether writing a file changes the project, and nothing else.

    Not where it may hold a secret, is protected, belongs to a repository's own folder or names
    its hooks, or has another name elsewhere; and in no project that holds the user's own folder.
    Blocks on files.
    """
    project, path = workspace.boundaries.project, place.path
    own_folder = Path(os.path.realpath(Path("~").expanduser()))
    if place.sensitive or project not in path.parents or own_folder.is_relative_to(project):
        return False
    if path.exists() and path.stat().st_nlink > 1:
        return False
    patterns = [*REPOSITORY, *workspace.protect]
    protected = ProtectedFiles(patterns, project=project, folders=[project])
    return not protected.is_protected(path)
