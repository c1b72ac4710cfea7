"""Writes the figures of docs/performance.md, and its drawings, from what was measured last.

    python page.py          # from results/performance.json and results/scale.json

`make performance` measures both and calls this. Only what stands between the two marks of the page
is replaced.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

import json
import math
import os
import platform
from html import escape
from pathlib import Path
from statistics import median

from bench import QUIET_SHARE, number
from compare import LIMIT, OURS, PEERS, Results
from scale import CURVES, FLOOR

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "performance.md"
DRAWINGS = PAGE.parent / "performance"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
ROWS = [  # what, scenario, key, whether more is better
    ("one stored run, CPU ms", "seq-db", "cpu_ms", False),
    ("the next message of a session, stored, CPU ms", "next-db", "cpu_ms", False),
    ("a late turn of 50, stored, CPU ms", "loop-db", "tail_cpu_ms", False),
    ("a late turn of 200, stored, CPU ms", "loop200-db", "tail_cpu_ms", False),
    ("200 runs at once, runs/s", "conc", "runs_per_s", True),
    ("200 runs at once, CPU ms a run", "conc", "cpu_ms", False),
    ("200 runs at once, growth MiB", "conc", "growth_mib", False),
    ("an idle session, KiB", "memory", "idle_kib", False),
    ("a session in a run, KiB", "memory", "active_kib", False),
    ("process start to first answer, CPU ms", "cold", "cpu_ms", False),
    ("process start to first answer, ms", "cold", "ms", False),
    ("import, CPU ms", "import", "cpu_ms", False),
    ("a streamed chunk of 2,000, CPU us", "stream2k", "cpu_us", False),
    ("a streamed chunk of 20,000, CPU us", "stream", "cpu_us", False),
]
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #57606a }
  .title { font-weight: 600; fill: #24292f }
  .grid { stroke: #8c959f; stroke-opacity: .3 }
  path { fill: none; stroke-width: 2.5 }
  .a { stroke: #0969da; fill: #0969da } .b { stroke: #bc4c00; fill: #bc4c00 }
  .c { stroke: #8250df; fill: #8250df } .floor { stroke: #57606a; fill: #57606a }
  path.a, path.b, path.c, path.floor { fill: none } path.floor { stroke-dasharray: 5 4 }
  text.a, text.b, text.c, text.floor { stroke: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1 } .title { fill: #e6edf3 }
    .a { stroke: #58a6ff; fill: #58a6ff } .b { stroke: #f0883e; fill: #f0883e }
    .c { stroke: #bc8cff; fill: #bc8cff } .floor { stroke: #9198a1; fill: #9198a1 }
  }
"""
WIDTH, HEIGHT = 720, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 260, 44, 48


def amount(value):
    return f"{value:,}" if value >= 1 else f"{value:g}"


def drawing(curve):
    """One chart; both axes are logarithmic."""
    series = curve["series"]
    xs = [x for points in series.values() for x, _ in points]
    ys = [max(y, 1e-3) for points in series.values() for _, y in points]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys) * 1.001))
    first, last = math.log10(min(xs)), math.log10(max(xs))

    def x_of(x):
        return LEFT + (math.log10(x) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y_of(y):
        share = (math.log10(max(y, 1e-3)) - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text class="title" x="{LEFT}" y="22">{escape(curve["title"])}, CPU ms</text>']
    for power in range(low, high + 1):
        y = y_of(10**power)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        label = amount(10**power if power >= 0 else 10.0**power)
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for x in sorted(set(xs)):
        parts.append(
            f'<text x="{x_of(x):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{amount(x)}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(curve["counted"])}</text>'
    )
    labels = sorted((y_of(points[-1][1]), name) for name, points in series.items())
    for place, (y, name) in enumerate(labels):  # labels that would cover one another move apart
        if place and y - labels[place - 1][0] < 16:
            labels[place] = labels[place - 1][0] + 16, name
    places = {name: y for y, name in labels}
    ours = [name for name in series if not name.startswith(FLOOR)]
    shades = dict(zip(ours, "abc", strict=False))
    for name, points in series.items():
        shade = shades.get(name, "floor")
        line = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        parts.append(f'<path class="{shade}" d="M{line}"/>')
        parts += [
            f'<circle class="{shade}" cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3"/>'
            for x, y in points
        ]
        said = f"{escape(name)}: {number(points[-1][1])} ms"
        parts.append(
            f'<text class="{shade}" x="{x_of(points[-1][0]) + 10:.1f}" y="{places[name] + 4:.1f}">{said}</text>'
        )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>", ""])


def table(results):
    """Ours, the bare loop and every peer, of one run of the harness."""
    found = Results(results)
    peers = [name for name in PEERS if name in results]
    lines = [
        f"| | {OURS} | bare loop | of it | {''.join(f'{p} | ' for p in peers)}of the best |",
        "|---" * (5 + len(peers)) + "|",
    ]
    for what, scenario, key, is_rate in ROWS:
        ours, limit = (found.get(name, scenario, key) for name in (OURS, LIMIT))
        if ours is None:
            continue
        others = [found.get(peer, scenario, key) for peer in peers]
        known = [value for value in others if value is not None]
        best = (max if is_rate else min)(known, default=None)
        cells = [number(value) if value is not None else "-" for value in (ours, limit, *others)]
        ratio, beside = (f"{ours / value:.2f}" if value else "-" for value in (limit, best))
        lines.append(f"| {what} | {' | '.join([*cells[:2], ratio, *cells[2:], beside])} |")
    return lines


def machine():
    system = f"{platform.system()} on {platform.machine()}"
    return f"{os.cpu_count()} cores, {system}, {platform.python_implementation()} {platform.python_version()}"


def disturbance(results):
    """What other work on the machine did to the samples, if it did much."""
    shares = [
        found["wait"]["median"]
        for mine in results.values()
        for found in mine["scenarios"].values()
        if "wait" in found
    ]
    share = median(shares)
    if share < QUIET_SHARE:
        return ""
    return (
        f" **The machine was busy**: processes waited for a core {share:.0%} of the time, so that no"
        " time on the clock means anything here, and ratios of CPU are rough."
    )


def versions(results):
    named = {OURS: OURS, LIMIT: "bare loop"}
    for name in (OURS, LIMIT, *PEERS):
        if name in results:
            found = (
                f"{package} {version}"
                for package, version in sorted(results[name]["versions"].items())
            )
            yield f"- {named.get(name, name)}: {', '.join(found)}"


def main():
    results = json.loads((HERE / "results" / "performance.json").read_text())
    day = results[OURS]["measured"]
    curves = json.loads((HERE / "results" / "scale.json").read_text())
    DRAWINGS.mkdir(exist_ok=True)
    pictures = []
    for name in filter(curves.__contains__, CURVES):
        curve = curves[name]
        (DRAWINGS / f"{name}.svg").write_text(drawing(curve))
        pictures += [
            f"![{curve['title']}: CPU over {curve['counted']}](performance/{name}.svg)",
            "",
        ]
    figures = [
        f"Measured on {day}, on {machine()}; medians.{disturbance(results)}",
        "",
        *table(results),
        "",
        "<details><summary>Versions</summary>",
        "",
        *versions(results),
        "",
        "</details>",
        "",
        "## Cost curves",
        "",
        "Both axes are logarithmic: a level line costs the same however many there are, a diagonal grows in proportion.",
        "The dashed line is the least that such work takes: the bare loop, or the same data read without this project.",
        "",
        *pictures,
    ]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text("\n".join([before + BEGIN, "", *figures, END + after]))


if __name__ == "__main__":
    main()
