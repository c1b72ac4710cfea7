"""The pages of the workers and of the settings."""

import json
from collections import Counter

from starlette.responses import Response

from agent_core.errors import ConfigError
from agent_core.serve.pages.frame import Frame, framed
from agent_core.text.pages import plain, section, table
from agent_core.types.lanes import Lane
from agent_core.types.workers import QueuedRun, WorkerRecord

_MOST_RUNS = 200


@framed
async def show_workers(frame: Frame) -> Response:
    """Return the page of the workers: their lanes, their load, and the dead ones."""
    frame.visit.require("admin")
    say, visit = frame.say, frame.visit
    title = say("Workers")
    try:
        workers = await visit.runtime.workers(tenant=visit.tenant)
        runs = await visit.runtime.queue(_MOST_RUNS, tenant=visit.tenant)
    except ConfigError:
        why = say("Workers need a Postgres database. Here, runs execute in the server's process.")
        return frame.page(title, f"<h1>{title}</h1><p>{why}</p>")
    none = f"<p>{say('There are none.')}</p>"
    parts = [
        f"<h1>{title}</h1>",
        _lanes(frame, runs),
        section(say("Processes"), _workers(frame, workers) or none, key="processes"),
        section(say("Queue"), _queue(frame, runs) or none, key="queue"),
    ]
    return frame.page(title, "\n".join(parts))


def _lanes(frame: Frame, runs: list[QueuedRun]) -> str:
    """Return a notice for each lane whose runs no worker takes."""
    untaken = Counter(
        Lane(queue=run.queue, place=run.place, tenant=run.tenant, protocol=run.protocol)
        for run in runs
        if run.is_without_worker
    )
    return "".join(
        f'<p class="notice bad">{plain(frame.say.count(count, "run"))}:'
        f" {plain(frame.say('no worker takes runs of this lane'))}: {plain(_lane(lane))}</p>"
        for lane, count in untaken.items()
    )


def _lane(lane: Lane) -> str:
    parts = (lane.queue, lane.place, lane.tenant, str(lane.protocol))
    return " · ".join(part for part in parts if part)


def _workers(frame: Frame, workers: list[WorkerRecord]) -> str:
    say = frame.say
    head = ("Worker", "State", "Load", "Places", "Queues", "Last heartbeat")
    rows = [
        (
            "<br>".join(
                (
                    _id(each.worker_id),
                    plain(f"{each.host}, {each.pid}"),
                    f'<span class="muted">{_id(f"{each.version} ({each.protocol})")}</span>',
                )
            ),
            _state(frame, each),
            plain(say("{running} of {most}", running=each.running, most=each.concurrency)),
            plain(", ".join(each.places)),
            plain(", ".join(filter(None, (*each.queues, each.tenant)))),
            frame.moment(each.heartbeat_at),
        )
        for each in workers
    ]
    return table(tuple(map(say, head)), rows, say=say)


def _id(text: str) -> str:
    """Return a long name, which is broken where a narrow column needs it."""
    return f'<code class="id">{plain(text)}</code>' if text else ""


def _state(frame: Frame, worker: WorkerRecord) -> str:
    if not worker.is_alive:
        return f'<span class="bad">{frame.say("dead")}</span>'
    if worker.is_draining:
        return f'<span class="fair">{frame.say("draining")}</span>'
    return f'<span class="good">{frame.say("alive")}</span>'


def _queue(frame: Frame, runs: list[QueuedRun]) -> str:
    say = frame.say
    head = ("Run", "Status", "Lane", "Worker", "Takeovers", "Queued")
    rows = [
        (
            f'<a href="{frame.address("runs", each.run_id)}">{_id(each.run_id)}</a>',
            plain(say(each.status)),
            plain(" · ".join(filter(None, (each.queue, each.place, each.tenant)))),
            _id(each.worker_id or "")
            or (plain(say("no worker")) if each.is_without_worker else ""),
            f"{each.takeovers:,}",
            frame.moment(each.queued_at),
        )
        for each in runs
    ]
    return table(tuple(map(say, head)), rows, say=say)


@framed
async def show_settings(frame: Frame) -> Response:
    """Return the page of the settings, each with the place that its value comes from."""
    frame.visit.require("admin")
    say = frame.say
    title = say("Settings")
    rows: list[tuple[str, str, str]] = []
    for each in await frame.visit.runtime.settings():
        value = say("not set")
        if each.value is not None:
            value = json.dumps(each.value, ensure_ascii=False, default=str)
        if each.is_set is not None:
            value += f" ({say('set') if each.is_set else say('not set')})"
        origin = plain(say(each.origin))
        rows.append((f"<code>{plain(each.key)}</code>", f"<code>{plain(value)}</code>", origin))
    head = tuple(map(say, ("Setting", "Value", "From")))
    hint = say("They are read-only here: change them in config.toml, or with soong-agent config.")
    return frame.page(title, f"<h1>{title}</h1><p>{hint}</p>{table(head, rows, say=say)}")
