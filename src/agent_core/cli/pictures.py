"""Pictures of Tasks: a tree of steps, for a terminal, for a pipe, or as an SVG file."""

from collections.abc import Iterable
from io import StringIO
from itertools import islice
from typing import TYPE_CHECKING

from agent_core.tasks.graph import Dag
from agent_core.tasks.model import TaskStep, TaskStepStatus, shown_time
from agent_core.text import Clean, plural, shortened, visible
from agent_core.types import utc_now

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

_STYLES = {
    "pending": "dim",
    "ready": "cyan",
    "claimed": "yellow",
    "running": "yellow",
    "blocked": "magenta",
    "completed": "green",
    "failed": "red",
    "cancelled": "dim",
}
_LONGEST = 200
_MOST_STEPS = 500
_MOST_OBSTACLES = 5

_SVG = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; \
line-height: {line_height}px; }}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; font-weight: bold; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""The frame of a picture. The library's own one loads fonts from the network; this one does not."""


def build_tree(dag: Dag, *, clean: Clean, session_id: str | None = None) -> "Tree":
    """Build a tree of a Task, each step below the one it depends on, with cleaned texts.

    A step that depends on several is shown once, below the first, and names the rest.
    """
    from rich.text import Text  # noqa: PLC0415 - only loaded for pictures
    from rich.tree import Tree  # noqa: PLC0415

    task = dag.task
    status = (task.status.value, _STYLES[task.status.value])
    head = Text.assemble((_line(task.task_id, clean), "bold"), " ", status)
    if title := _line(task.title, clean):
        head.append(f" · {title}")
    if session_id is not None:
        head.append(f"  (session {session_id})", "dim")
    tree = Tree(head)
    branches: dict[str, Tree] = {}
    steps = list(dag.steps())
    for step in _parents_first(steps[:_MOST_STEPS]):
        above = next((branches[d] for d in step.depends_on_step_ids if d in branches), tree)
        status = (f"{step.status.value:<9}", _STYLES[step.status.value])
        label = Text.assemble(status, " ", _describe_step(dag, step, clean))
        branches[step.step_id] = above.add(label)
    if (more := len(steps) - _MOST_STEPS) > 0:
        tree.add(Text(f"… and {plural(more, 'more step')}", "dim"))
    return tree


def render_tree(tree: "Tree", *, width: int, is_coloured: bool) -> str:
    """The tree as lines of at most `width` columns."""
    console = _console(width, is_coloured=is_coloured)
    with console.capture() as captured:
        console.print(tree, no_wrap=True, overflow="ellipsis", crop=True)
    return captured.get()


def render_svg(tree: "Tree", *, title: str, width: int = 100) -> str:
    """The tree as an SVG document that needs nothing from the network."""
    console = _console(width, is_coloured=True, records=True)
    console.print(tree)
    return console.export_svg(title=visible(title, one_line=True), code_format=_SVG)


def summary_lines(dag: Dag, *, clean: Clean) -> list[str]:
    """Return the state of a Task and each of its steps, in plain lines."""
    task = dag.task
    counts = ", ".join(f"{count} {status}" for status, count in dag.counts().items())
    lines = [f"task {_line(task.task_id, clean)} {task.status}: {counts or 'no steps'}"]
    steps = islice(dag.steps(), _MOST_STEPS)
    lines += [f"  {step.status:<9} {_describe_step(dag, step, clean)}" for step in steps]
    if (more := dag.count() - _MOST_STEPS) > 0:
        lines.append(f"  … and {plural(more, 'more step')}")
    return lines


def _console(width: int, *, is_coloured: bool, records: bool = False) -> "Console":
    from rich.console import Console  # noqa: PLC0415 - only loaded for pictures

    return Console(
        file=StringIO(),
        width=width,
        record=records,
        force_terminal=is_coloured,
        color_system="standard" if is_coloured else None,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
    )


def _describe_step(dag: Dag, step: TaskStep, clean: Clean) -> str:
    is_done = step.status is TaskStepStatus.COMPLETED
    after = step.depends_on_step_ids if len(step.depends_on_step_ids) > 1 else ()
    obstacles = dag.obstacles(step.step_id) if step.status is TaskStepStatus.PENDING else ()
    stuck = ", ".join(f"{each.step_id} ({each.status})" for each in obstacles[:_MOST_OBSTACLES])
    has_ended = step.has_ended_lease(utc_now())
    claimed_by = step.claimed_by_agent_id if step.status.is_claim else None
    reason = (step.result_summary if is_done else None) or dag.explain(step)
    parts = [
        _line(step.step_id, clean),
        _line(step.title, clean),
        f"by {_line(claimed_by, clean)}" if claimed_by else "",
        f"lease ended at {shown_time(step.lease_expires_at)}" if has_ended else "",
        f"cannot begin: {_line(stuck, clean)}" if stuck else "",
        f"after {_line(', '.join(after), clean)}" if after else "",
        "" if step.required else "optional",
        _line(reason, clean),
    ]
    return " · ".join(filter(None, parts))


def _parents_first(steps: Iterable[TaskStep]) -> list[TaskStep]:
    """In order of creation, but nothing before the first thing it depends on."""
    by_id = {step.step_id: step for step in steps}
    placed: dict[str, TaskStep] = {}
    for step in by_id.values():
        chain = [step]
        while parents := [by_id[d] for d in chain[-1].depends_on_step_ids if d in by_id][:1]:
            if parents[0].step_id in placed:
                break
            chain += parents
        placed |= {each.step_id: each for each in reversed(chain)}
    return list(placed.values())


def _line(text: str, clean: Clean) -> str:
    return shortened(visible(" ".join(clean(text).split()), one_line=True), _LONGEST)
