"""Edits judged: of ordinary files of the project, or of files that other programs obey."""

import os
from pathlib import Path

from msgspec import Struct

from agent_core.process.protected import REPOSITORY, ProtectedFiles
from agent_core.tools.code.obeyed import is_obeyed
from agent_core.tools.workspace import ResolvedPath, Workspace


class JudgedEdit(Struct, frozen=True):
    """The kind of file that an edit writes.

    Attributes:
        is_ordinary: writing it changes the project, and nothing else; such an edit needs no
            question in the mode `accept-edits`, and is covered by answers about edits.
        is_obeyed: other programs execute or obey it.
    """

    is_ordinary: bool
    is_obeyed: bool


def judge_edit(workspace: Workspace, place: ResolvedPath) -> JudgedEdit:
    """Judge the file that an edit writes. Blocks on files.

    It is ordinary in the project, but not where it may hold a secret, is protected, belongs to a
    repository's own folder, has another name elsewhere, or is executed or obeyed by other
    programs; and not in a project that contains the user's home folder.
    """
    project, path = workspace.boundaries.project, place.path
    root = workspace.boundaries.root_of(path)
    if root is None or root == path:
        return JudgedEdit(is_ordinary=False, is_obeyed=False)
    if is_obeyed(path, root=root):
        return JudgedEdit(is_ordinary=False, is_obeyed=True)
    own_folder = Path(os.path.realpath(Path("~").expanduser()))
    is_ordinary = (
        not place.sensitive
        and project in path.parents
        and not own_folder.is_relative_to(project)
        and not _has_other_name(path)
        and not _is_protected(workspace, path)
    )
    return JudgedEdit(is_ordinary=is_ordinary, is_obeyed=False)


def _has_other_name(path: Path) -> bool:
    return path.exists() and path.stat().st_nlink > 1


def _is_protected(workspace: Workspace, path: Path) -> bool:
    project = workspace.boundaries.project
    patterns = [*REPOSITORY, *workspace.protect]
    return ProtectedFiles(patterns, project=project, folders=[project]).is_protected(path)
