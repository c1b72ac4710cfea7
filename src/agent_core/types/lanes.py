"""The names by which runs are handed out: tenants, hosts, queues, places, and their lanes."""

import platform
import re
from collections.abc import Collection

from msgspec import Struct

from agent_core.errors import AgentCoreError, ErrorCode

NAME_PATTERN = r"[A-Za-z0-9_.\-]{1,40}"
"""A tenant, or a host."""

QUEUE_PATTERN = r"[A-Za-z0-9_\-]{1,24}"

PLACE_PATTERN = rf"snapshot|host:{NAME_PATTERN}"
"""Where the files of a run are: in its session's latest snapshot, or on a host."""

SNAPSHOT = "snapshot"
"""The place of sessions whose files every machine can have."""

PROTOCOL = 1
"""Of what a queued run is, and how it is taken up: another number is for other versions."""

_LANE = (
    rf"(?P<queue>{QUEUE_PATTERN})/(?P<place>{PLACE_PATTERN})"
    rf"/(?P<tenant>(?:{NAME_PATTERN})?)/(?P<protocol>[0-9]{{1,9}})"
)
HERE = "here/"
"""How the lane of a run begins that only its own process may take."""


class Lane(Struct, frozen=True, kw_only=True):
    """The kind of worker that may take a run; as text it is the name of a queue of Procrastinate.

    Attributes:
        tenant: whose session it is; None: of no tenant.
    """

    queue: str
    place: str
    tenant: str | None = None
    protocol: int = PROTOCOL

    def __str__(self) -> str:
        return f"{self.queue}/{self.place}/{self.tenant or ''}/{self.protocol}"

    def suits(
        self,
        places: Collection[str],
        queues: Collection[str],
        tenant: str | None,
        protocol: int = PROTOCOL,
    ) -> bool:
        """Whether who takes this takes runs of the lane; `tenant` None is all."""
        return (
            self.protocol == protocol
            and self.place in places
            and self.queue in queues
            and (tenant is None or self.tenant == tenant)
        )

    def say_no_worker(self) -> str:
        """The message that no worker takes these runs, with the command to start one."""
        whose = f", and of tenant {self.tenant}" if self.tenant else ""
        if self.protocol != PROTOCOL:
            whose += f", of protocol {self.protocol}: that is another version of the program"
        return (
            f"no worker is alive that takes runs of place {self.place} and queue {self.queue}"
            f"{whose}; start one: soong-agent worker --places {self.place} --queues {self.queue}"
        )

    @classmethod
    def parse(cls, text: str) -> "Lane | None":
        """The lane that a text names; None if it is that of a run that its own process takes."""
        found = re.fullmatch(_LANE, text)
        if found is None:
            return None
        return cls(
            queue=found["queue"],
            place=found["place"],
            tenant=found["tenant"] or None,
            protocol=int(found["protocol"]),
        )


def own_place(host_id: str | None = None) -> str:
    """The place of runs whose files are on this machine; by default it has the name of the host."""
    return f"host:{host_id or re.sub(r'[^A-Za-z0-9_.-]', '-', platform.node())[:40] or 'localhost'}"


def lane_of_process(run_id: str) -> str:
    """The name of the lane of a run that no other process than its own may take."""
    return f"{HERE}{run_id}"


class Placement(Struct, frozen=True, kw_only=True):
    """Who is to carry a run out, as its caller says it; None leaves that to the settings.

    Attributes:
        here: this process, after what is queued before it in the session.
        place: where the files are: `host:<id>`, or `snapshot`.
        tenant: whose session it is.
        queue: the workers that take it.
        queue_timeout_s: how long a run of this process waits for its turn.
    """

    here: bool | None = None
    place: str | None = None
    tenant: str | None = None
    queue: str | None = None
    queue_timeout_s: float | None = None

    def given(self) -> list[tuple[str, object]]:
        """What its caller says, by name."""
        values = ((name, getattr(self, name)) for name in PLACED)
        return [(name, value) for name, value in values if value is not None]

    def require_one_machine(self) -> None:
        """Refuse what takes a queue; `here=True` is how it is without one.

        Raises:
            AgentCoreError: `validation_error`, which names the argument.
        """
        for name, value in self.given():
            if name == "here" and value:
                continue
            message = (
                f"{name} says who carries the run out, and where: that takes a Postgres database"
                " ([store] url_env, or database_url); leave it out"
            )
            details = {"option": name}
            raise AgentCoreError(ErrorCode.VALIDATION_ERROR, message, details=details)


ANYWHERE = Placement()
"""A run whose caller says nothing of that."""

PLACED = Placement.__struct_fields__
"""The names of what a caller may say."""
