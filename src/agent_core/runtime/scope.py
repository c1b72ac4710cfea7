"""The state of one run that its tools, summaries and children share."""

from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from agent_core.budgets.meter import Meter
    from agent_core.config.models import ModelConfig
    from agent_core.loop.guards import RunGuards
    from agent_core.runtime.fence import SessionHold
    from agent_core.runtime.project import Surroundings
    from agent_core.runtime.recording import RunRecorder


class RunScope(Struct, eq=False, kw_only=True):
    """Everything that belongs to one run. The run holds it, and its children inherit from it.

    Attributes:
        run_id: the run.
        model: the run's own model, in place of the configured one; its history is summarised
            with this one too.
        meter: pays for its calls; None where nothing limits them.
        surroundings: instruction files, skills and memories as they were when it began.
        checks: the guards of its options at work.
        recorder: records the files that it changes.
        hold: its claim on the session, where other machines may take that over.
        children: the scopes of the children that it has started.
    """

    run_id: str
    model: "ModelConfig | None" = None
    meter: "Meter | None" = None
    surroundings: "Surroundings | None" = None
    checks: "RunGuards | None" = None
    recorder: "RunRecorder | None" = None
    hold: "SessionHold | None" = None
    children: "list[RunScope]" = field(default_factory=list["RunScope"])

    def open_child(self, run_id: str) -> "RunScope":
        """Return the scope of a new child, which sees what this run sees.

        The child's own model and meter are set when its context is made.
        """
        child = RunScope(
            run_id=run_id,
            surroundings=self.surroundings,
            checks=self.checks,
            recorder=self.recorder,
            hold=self.hold,
        )
        self.children.append(child)
        return child

    def meter_of(self, run_id: str) -> "Meter | None":
        """Return the meter of this run or of one of its children."""
        scopes = (self, *self.children)
        return next((scope.meter for scope in scopes if scope.run_id == run_id), None)
