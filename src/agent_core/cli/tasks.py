"""`soong-agent tasks show`: a look at a Task's log, whoever is working on it."""

import os
import shutil
import sys
from pathlib import Path

from agent_core.cli.options import COMPLETED, FAILED, MISUSED, TaskOptions
from agent_core.cli.pictures import as_svg, rendered, task_tree
from agent_core.cli.secrets import terminal_redactor
from agent_core.config.load import read_setup
from agent_core.errors import ConfigError
from agent_core.redaction.visible import visible
from agent_core.tasks.log_store import StoredTask, StoredTasks, stored_tasks

_PIPE_WIDTH = 120
_PLAIN_LINES = str.maketrans("│├└─·…", "|+`--.")


def show(options: TaskOptions) -> int:
    """Print the Task, or write its picture, and return the exit code."""
    try:
        setup = read_setup(options.path)
    except ConfigError as error:
        return _complain(error.message, MISUSED)
    clean = terminal_redactor(os.environ, setup).text
    found = stored_tasks(setup.tasks_dir, project_dir=setup.project, session_id=options.session_id)
    mine = [each for each in found.tasks if each.task_id == options.task_id]
    if not mine:
        return _complain(clean(_missing(options.task_id, found)), FAILED)
    if others := [each.session_id for each in mine[1:]]:
        _say(f"also in session {', '.join(others)}: choose with --session-id")
    picture = task_tree(mine[0].dag, clean=clean, session_id=mine[0].session_id)
    if options.svg is None:
        _print(rendered(picture, width=_width(), is_coloured=_is_coloured()))
        return COMPLETED
    return _write(Path(options.svg), as_svg(picture, title=clean(_title(mine[0]))))


def _write(path: Path, svg: str) -> int:
    try:
        path.write_text(svg, encoding="utf-8")
    except OSError as error:
        return _complain(f"{path} cannot be written: {error.strerror}", FAILED)
    _say(f"written to {path}")
    return COMPLETED


def _missing(task_id: str, found: StoredTasks) -> str:
    known = ", ".join(dict.fromkeys(each.task_id for each in found.tasks)) or "none"
    problems = "".join(f"\n{problem}" for problem in found.problems)
    return f"there is no Task {task_id} in this project; there are: {known}{problems}"


def _title(task: StoredTask) -> str:
    return f"Task {task.task_id}"


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH


def _is_coloured() -> bool:
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def _print(text: str) -> None:
    """Write the tree, its lines in ASCII where the terminal knows no others."""
    encoding = sys.stdout.encoding
    if not encoding.lower().startswith("utf"):
        text = text.translate(_PLAIN_LINES)
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))


def _say(text: str) -> None:
    sys.stderr.write(visible(text) + "\n")


def _complain(text: str, code: int) -> int:
    _say(f"error: {text}")
    return code
