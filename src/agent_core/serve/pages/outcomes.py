"""The outcome of an undo, a switch or a fork, in words."""

from collections.abc import Sequence

from agent_core.serve.pages.frame import Frame
from agent_core.text.pages import fold, plain
from agent_core.types import SwitchResult

_MOST = 200


def moved_notice(frame: Frame, said: str, done: SwitchResult) -> str:
    """Return where a session continues now, and what became of the files, as HTML.

    Args:
        frame: the request.
        said: what was done, in English.
        done: the outcome.
    """
    say = frame.say
    lists: Sequence[tuple[str, Sequence[str]]] = (
        ("Files written", done.restored),
        ("Files removed", done.deleted),
        ("Files that were not changed", done.refused),
        ("Files that no snapshot holds", done.left_out),
        ("Files moved aside", done.moved_aside),
    )
    parts = [f"<p>{plain(say(said))}</p>"]
    for label, paths in lists:
        if paths:
            items = "".join(f"<li><code>{plain(path)}</code></li>" for path in paths[:_MOST])
            title = f"{say(label)}: {len(paths):,}"
            parts.append(fold(plain(title), f"<ul>{items}</ul>", is_open=len(paths) <= 10))
    parts += [f"<p>{plain(remark)}</p>" for remark in done.remarks]
    return f'<div class="notice good" role="status">{"".join(parts)}</div>'
