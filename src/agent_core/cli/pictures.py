"""Pictures of Tasks: a tree of steps, for a terminal, for a pipe, or as an SVG file."""

from collections.abc import Iterable
from io import StringIO
from typing import TYPE_CHECKING

from agent_core.cli.secrets import Clean
from agent_core.redaction.visible import shortened, visible
from agent_core.tasks.graph import Dag
from agent_core.tasks.model import Step, StepStatus

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text
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


def task_tree(dag: Dag, *, clean: Clean, session_id: str | None = None) -> "Tree":
    """A Task with its steps below what they depend on, its texts cleaned.

    A step that depends on several is shown once, below the first, and names the others.
    """
    from rich.text import Text  # noqa: PLC0415 - only for those who look
    from rich.tree import Tree  # noqa: PLC0415

    task = dag.task
    head = Text.assemble(
        (_line(task.task_id, clean), "bold"), " ", (task.status.value, _STYLES[task.status.value])
    )
    if title := _line(task.title, clean):
        head.append(f" · {title}")
    if session_id is not None:
        head.append(f"  (session {session_id})", "dim")
    tree = Tree(head)
    branches: dict[str, Tree] = {}
    waiting = list(dag.steps())
    for step in _parents_first(waiting[:_MOST_STEPS]):
        above = next((branches[d] for d in step.depends_on_step_ids if d in branches), tree)
        branches[step.step_id] = above.add(_step(dag, step, clean))
    if (more := len(waiting) - _MOST_STEPS) > 0:
        tree.add(Text(f"… and {more} more steps", "dim"))
    return tree


def rendered(picture: "Tree", *, width: int, is_coloured: bool) -> str:
    """The picture as lines of at most `width` columns."""
    console = _console(width, is_coloured=is_coloured)
    with console.capture() as captured:
        console.print(picture, no_wrap=True, overflow="ellipsis", crop=True)
    return captured.get()


def as_svg(picture: "Tree", *, title: str, width: int = 100) -> str:
    """The picture as an SVG document that needs nothing from the network."""
    console = _console(width, is_coloured=True, records=True)
    console.print(picture)
    return console.export_svg(title=visible(title, one_line=True), code_format=_SVG)


def summary_lines(dag: Dag, *, clean: Clean) -> list[str]:
    """How a Task stands, in plain lines: itself, and each of its steps."""
    task = dag.task
    counts = ", ".join(f"{count} {status}" for status, count in dag.counts().items())
    lines = [f"task {_line(task.task_id, clean)} {task.status}: {counts or 'no steps'}"]
    lines += [f"  {step.status:<9} {_words(dag, step, clean)}" for step in _first(dag.steps())]
    if (more := dag.count() - _MOST_STEPS) > 0:
        lines.append(f"  … and {more} more steps")
    return lines


def _console(width: int, *, is_coloured: bool, records: bool = False) -> "Console":
    from rich.console import Console  # noqa: PLC0415 - only for those who look

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


def _step(dag: Dag, step: Step, clean: Clean) -> "Text":
    from rich.text import Text  # noqa: PLC0415 - only for those who look

    return Text.assemble(
        (f"{step.status.value:<9}", _STYLES[step.status.value]), " ", _words(dag, step, clean)
    )


def _words(dag: Dag, step: Step, clean: Clean) -> str:
    parts = [_line(step.step_id, clean)]
    if title := _line(step.title, clean):
        parts.append(title)
    if step.status.is_claim and step.claimed_by_agent_id:
        parts.append(f"by {_line(step.claimed_by_agent_id, clean)}")
    if len(step.depends_on_step_ids) > 1:
        parts.append(f"after {_line(', '.join(step.depends_on_step_ids), clean)}")
    if not step.required:
        parts.append("optional")
    said = step.result_summary if step.status is StepStatus.COMPLETED else None
    if said := _line(said or dag.reasons.get(step.step_id, ""), clean):
        parts.append(said)
    return " · ".join(parts)


def _parents_first(steps: Iterable[Step]) -> list[Step]:
    """In order of creation, but nothing before the first thing it depends on."""
    by_id = {step.step_id: step for step in steps}
    placed: dict[str, Step] = {}
    for step in by_id.values():
        chain = [step]
        while (above := _first_above(chain[-1], by_id)) is not None and above.step_id not in placed:
            chain.append(above)
        placed |= {each.step_id: each for each in reversed(chain)}
    return list(placed.values())


def _first_above(step: Step, by_id: dict[str, Step]) -> Step | None:
    return next((by_id[each] for each in step.depends_on_step_ids if each in by_id), None)


def _first(steps: Iterable[Step]) -> list[Step]:
    return [step for step, _ in zip(steps, range(_MOST_STEPS), strict=False)]


def _line(text: str, clean: Clean) -> str:
    return shortened(visible(" ".join(clean(text).split()), one_line=True), _LONGEST)
