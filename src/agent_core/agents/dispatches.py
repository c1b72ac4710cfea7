"""The workers that an orchestrator run has sent without waiting, and their results."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from agent_core.errors import ErrorCode, ToolError
from agent_core.tools.agent_tools import WaitWorkers
from agent_core.types import JsonBlock, ToolResult


@dataclass(frozen=True, slots=True)
class _Dispatch:
    """A dispatch that was answered before its worker had ended.

    `handle` is that answer; `work` returns the result and raises nothing.
    """

    handle: Mapping[str, Any]
    work: "asyncio.Task[ToolResult]"


class Dispatches:
    """Keeps every result until its run is over; a result can be asked for more than once."""

    def __init__(self) -> None:
        self._sent: dict[str, _Dispatch] = {}
        self._collected: set[str] = set()

    def add(self, handle: Mapping[str, Any], work: "asyncio.Task[ToolResult]") -> None:
        """Keep a dispatch that has just been answered with this handle."""
        self._sent[handle["child_run_id"]] = _Dispatch(handle, work)

    def uncollected(self, agent_id: str) -> list[str]:
        """The runs of a worker that have ended and whose results were not asked for."""
        return [
            run_id
            for run_id, sent in self._sent.items()
            if sent.handle["worker_agent_id"] == agent_id
            and sent.work.done()
            and run_id not in self._collected
        ]

    async def collect(self, asked: WaitWorkers) -> dict[str, Any]:
        """Wait for runs as long as they take or `timeout_ms` lasts, and return their results.

        Without `run_ids` these are all runs that were not collected yet. A run that is not done
        is listed as running.

        Raises:
            ToolError: `validation_error`, a run id is unknown or the list is empty.
        """
        run_ids = self._named(asked.run_ids)
        waiting = [work for run_id in run_ids if not (work := self._sent[run_id].work).done()]
        if waiting:
            limit_s = None if asked.timeout_ms is None else asked.timeout_ms / 1000
            await asyncio.wait(waiting, timeout=limit_s)
        workers = [self._view(run_id) for run_id in run_ids]
        running = [each["child_run_id"] for each in workers if each["status"] == "running"]
        return {"workers": workers, "running_run_ids": running}

    async def close(self, left_behind: Collection[str]) -> None:
        """Let every result be recorded; runs that were left behind are not waited for."""
        for run_id in left_behind:
            self._sent[run_id].work.cancel()
        if self._sent:
            await asyncio.wait([sent.work for sent in self._sent.values()])

    def run_ids(self) -> list[str]:
        """Every run, in the order of the dispatches."""
        return list(self._sent)

    def _named(self, run_ids: Collection[str] | None) -> list[str]:
        if run_ids is None:
            return [run_id for run_id in self._sent if run_id not in self._collected]
        unknown = [run_id for run_id in run_ids if run_id not in self._sent]
        if unknown or not run_ids:
            what = f"unknown runs: {', '.join(unknown[:10])}" if unknown else "no run"
            message = (
                f"run_ids names {what}; they are the child_run_id of dispatches with wait=false in "
                "this run. Leave it out to wait for all"
            )
            details = {"path": "$.run_ids", "unknown_run_ids": unknown[:50]}
            raise ToolError(ErrorCode.VALIDATION_ERROR, message, details=details)
        return list(dict.fromkeys(run_ids))

    def _view(self, run_id: str) -> dict[str, Any]:
        sent = self._sent[run_id]
        if not sent.work.done():
            return dict(sent.handle)
        self._collected.add(run_id)
        result = sent.work.result()
        view: dict[str, Any] = {**sent.handle, "status": "failed"}
        for block in result.content:
            if isinstance(block, JsonBlock):
                view |= block.data
                view["status"] = block.data["worker_result"]["status"]
        if result.error is not None:
            view["error"] = result.error.model_dump(mode="json", exclude_none=True)
        return view
