"""`soong-agent cost`: shows the cost of runs, as tables or as JSON."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from agent_core.api import AgentRuntime
from agent_core.cli.exit_codes import COMPLETED
from agent_core.cli.layout import cells, fitted, window_size
from agent_core.cli.options import Options
from agent_core.cli.setup import open_runtime, run_on_terminal
from agent_core.cli.terminal import Style, Terminal
from agent_core.config.paths import Setup
from agent_core.history.figures import format_dollars, format_tokens
from agent_core.text import Clean, plural, visible
from agent_core.text.json_text import JsonObject
from agent_core.types import CostSummary, CostUnit

_TABLES: Sequence[CostUnit] = ("day", "model", "project", "session")
_SHORT, _LONG = 10, 100
_WIDEST = 100
_FIGURES = 41
"""Columns of the figures behind a name."""
_NARROW = 60
"""A terminal that has fewer columns shows no numbers of runs."""


def show_costs(options: Options) -> int:
    """Show the costs, and return the exit code."""
    return run_on_terminal(options, None, partial(_show, options), asks_model=False)


async def _show(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    limit = options.limit or (_LONG if options.by else _SHORT)
    tables: dict[CostUnit, list[CostSummary]] = {}
    wanted: list[CostUnit] = ["all", *([options.by] if options.by else _TABLES)]
    async with open_runtime(setup, read_only=True) as runtime:
        for by in wanted:
            tables[by] = await runtime.costs(
                by, since=options.since, project=options.path, limit=limit + 1
            )
        short_ids = await _short_ids(runtime) if sys.stdout.isatty() else {}
    if options.json:
        total = tables.pop("all")
        shown: JsonObject = {"total": _figures(total[0], clean) if total else None}
        for by, rows in tables.items():
            shown[by] = [_figures(row, clean) for row in rows[:limit]]
        terminal.text(json.dumps(shown, indent=2, ensure_ascii=False) + "\n")
        return COMPLETED
    (*totals,) = tables.pop("all")
    if not totals:
        terminal.line(_there_are_none(options, clean))
        return COMPLETED
    for by, rows in tables.items():
        terminal.text(f"by {by}\n")
        terminal.text("".join(_table(rows[:limit], short_ids, clean)))
        if len(rows) > limit:
            terminal.text(f"  … more: soong-agent cost --by {by} --limit {10 * limit}\n")
        terminal.text("\n")
    (total,) = totals
    name = f"in all, {plural(total.sessions, 'session')}"
    terminal.text(_line(name, total, _columns([name])))
    if total.unpriced:
        remark = f"the price of {plural(total.unpriced, 'run')} is not known; [model] price sets it"
        terminal.line(remark, Style.DIM)
    if total.usage.is_estimated:
        remark = (
            "~ some calls ended without a report of their tokens: these are estimated or missing,"
        )
        remark += " and so is their cost"
        for line in terminal.wrap(remark):
            terminal.line(line, Style.DIM)
    return COMPLETED


async def _short_ids(runtime: AgentRuntime) -> dict[str, str]:
    """Return the beginnings that name the sessions used last: titles need the room."""
    summaries = await runtime.session_summaries(limit=_LONG)
    return {each.session_id: each.short_id for each in summaries}


def _there_are_none(options: Options, clean: Clean) -> str:
    when = "since then" if options.since else "has been stored"
    if not options.path:
        return f"no run {when}"
    project = str(Path(options.path).expanduser().resolve())
    return f"no run of {visible(clean(project), one_line=True)} {when}"


def _table(
    rows: Sequence[CostSummary], short_ids: Mapping[str, str], clean: Clean
) -> Iterator[str]:
    """Yield the lines of a table."""
    names: list[str] = []
    for row in rows:
        key = short_ids.get(row.key, row.key)
        name = key if row.title is None else f"{key}  {row.title}"
        names.append(visible(clean(name), one_line=True))
    columns = _columns(names)
    for name, row in zip(names, rows, strict=True):
        yield _line(name, row, columns)


def _columns(names: Iterable[str]) -> int:
    """Return how wide a table is: as the terminal, or so that another program gets whole names."""
    columns = min(window_size(sys.stdout).columns, _WIDEST)
    if sys.stdout.isatty():
        return columns
    return max([columns, *(cells(name) + _FIGURES for name in names)])


def _line(name: str, row: CostSummary, columns: int) -> str:
    """Return a line of a table of so many columns."""
    runs = f"{plural(row.runs, 'run'):>10}" if columns >= _NARROW else ""
    room = max(columns - len(runs) - 31, 10)
    text = fitted(name, room)
    text += " " * (room - cells(text))
    tokens = (
        f"{'~' if row.usage.is_estimated else ''}{format_tokens(row.usage.total_tokens)} tokens"
    )
    return f"  {text}{runs}{tokens:>14} {_price(row):>13}\n"


def _price(row: CostSummary) -> str:
    """Return the sum in dollars; `unknown` if no cost is known, with `+ ?` if a part is not."""
    if row.unpriced and not row.known_cost:
        return "unknown"
    return f"{format_dollars(row.known_cost)}{' + ?' if row.unpriced else ''}"


def _figures(row: CostSummary, clean: Clean) -> JsonObject:
    found: JsonObject = json.loads(clean(row.model_dump_json(exclude={"usage"})))
    usage = row.usage.model_dump(exclude={"raw_usage"})
    return {**{key: value for key, value in found.items() if value is not None}, "usage": usage}
