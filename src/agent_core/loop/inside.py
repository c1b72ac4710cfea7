"""Context variable that identifies the run the current code works for.

A run is a task, and its tools, callbacks, guards and children inherit that task's context
variables. This is the engine's only context variable: it tells `start` that it is called inside a
run, which no argument could.
"""

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol
from weakref import ReferenceType

from msgspec import Struct
from msgspec.structs import replace

from agent_core.loop.context import Outcome


class Ending(Protocol):
    """A run that may have ended."""

    @property
    def outcome(self) -> Outcome | None:
        """The end of the run; None before."""
        ...


class Inside(Struct, frozen=True, kw_only=True):
    """A run of a user, seen from code that works for it.

    Attributes:
        run: weak reference to the run: code that inherits the variable does not keep it in memory.
        run_id: the run that the code works for: this run, or one of its children.
        outer: the run, of any runtime, inside which it was started.
    """

    run: "ReferenceType[Ending]"
    run_id: str
    outer: "Inside | None" = None

    @property
    def has_ended(self) -> bool:
        """Return whether the run has ended, so that nothing waits for its code any more."""
        run = self.run()
        return run is None or run.outcome is not None


_inside: ContextVar[Inside | None] = ContextVar("agent_core_inside", default=None)


def enter_run(run: "ReferenceType[Ending]", run_id: str) -> None:
    """Note that the current task executes a run."""
    outer = None
    for each in reversed([*enclosing_runs()]):  # ended runs are not kept
        outer = replace(each, outer=outer)
    _inside.set(Inside(run=run, run_id=run_id, outer=outer))


def enter_child(run_id: str) -> None:
    """Note that the current task executes a child of the run that started it."""
    if (inside := _inside.get()) is not None:
        _inside.set(replace(inside, run_id=run_id))


def enclosing_runs() -> Iterator[Inside]:
    """Yield the runs that the current code works for and that have not ended, innermost first."""
    inside = _inside.get()
    while inside is not None:
        if not inside.has_ended:
            yield inside
        inside = inside.outer
