"""Names used to distribute runs: tenants, hosts, queues, places, and their lanes."""

import platform
import re
from collections.abc import Collection

from msgspec import Struct

from agent_core.errors import ArgumentError
from agent_core.text import shown_value

NAME_PATTERN = r"[A-Za-z0-9_.\-]{1,40}"
"""Pattern of a tenant or a host."""

QUEUE_PATTERN = r"[A-Za-z0-9_\-]{1,24}"

PLACE_PATTERN = rf"snapshot|host:{NAME_PATTERN}"
"""Pattern of the place of a run's files: its session's latest snapshot, or a host."""

SNAPSHOT = "snapshot"
"""The place of sessions whose files every machine can have."""

PROTOCOL = 1
"""Version of the protocol of queued runs; runs with another number are for other versions."""

_LANE = (
    rf"(?P<queue>{QUEUE_PATTERN})/(?P<place>{PLACE_PATTERN})"
    rf"/(?P<tenant>(?:{NAME_PATTERN})?)/(?P<protocol>[0-9]{{1,9}})"
)
HERE = "here/"
"""Prefix of the lane of a run that only its own process may take."""


def check_tenant(tenant: object) -> None:
    """Check the name of a tenant.

    Raises:
        ArgumentError: the name is invalid.
    """
    if not isinstance(tenant, str) or not re.fullmatch(NAME_PATTERN, tenant):
        message = "the tenant is invalid: use 1 to 40 letters, digits, _, - or .,"
        raise ArgumentError(f"{message} not {shown_value(tenant)}", "tenant")


class Lane(Struct, frozen=True, kw_only=True):
    """The kind of worker that may take a run; as text it is the name of a Procrastinate queue.

    Attributes:
        tenant: tenant of the session; None if it has none.
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
        """Return whether a worker of these settings takes the lane's runs; None takes all."""
        return (
            self.protocol == protocol
            and self.place in places
            and self.queue in queues
            and (tenant is None or self.tenant == tenant)
        )

    def say_no_worker(self) -> str:
        """Return the message that no worker takes these runs, with the command to start one."""
        whose = f", and of tenant {self.tenant}" if self.tenant else ""
        if self.protocol != PROTOCOL:
            whose += f", of protocol {self.protocol}: that is another version of the program"
        return (
            f"no worker is alive that takes runs of place {self.place} and queue {self.queue}"
            f"{whose}; start one: soong-agent worker --places {self.place} --queues {self.queue}"
        )

    @classmethod
    def parse(cls, text: str) -> "Lane | None":
        """Parse a lane; None for the lane of a run that only its own process takes."""
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
    """Return the place of runs whose files are on this machine; named after the host by default."""
    return f"host:{host_id or re.sub(r'[^A-Za-z0-9_.-]', '-', platform.node())[:40] or 'localhost'}"


def lane_of_process(run_id: str) -> str:
    """Return the name of the lane of a run that only its own process may take."""
    return f"{HERE}{run_id}"


class Placement(Struct, frozen=True, kw_only=True):
    """The caller's choice of who executes a run; None leaves it to the settings.

    Attributes:
        here: this process executes it, after earlier queued runs of the session.
        place: place of the files: `host:<id>`, or `snapshot`.
        tenant: tenant of the session.
        queue: queue of the workers that take it.
        queue_timeout_s: seconds that a run of this process waits for its turn.
        questions_wait: the worker's questions wait for an answer, whatever its settings say.
    """

    here: bool | None = None
    place: str | None = None
    tenant: str | None = None
    queue: str | None = None
    queue_timeout_s: float | None = None
    questions_wait: bool | None = None

    def given(self) -> list[tuple[str, object]]:
        """Return the choices of the caller, by name."""
        values = ((name, getattr(self, name)) for name in PLACED)
        return [(name, value) for name, value in values if value is not None]

    def require_one_machine(self) -> None:
        """Refuse choices that need a queue; `here=True` is the same as no choice.

        Raises:
            AgentCoreError: `validation_error`, which names the argument.
        """
        for name, value in self.given():
            if name == "here" and value:
                continue
            message = (
                f"{name} says who carries the run out, and where: that takes a Postgres database"
                ": set [store] url_env (in code: or database_url), or leave it out"
            )
            raise ArgumentError(message, name)


ANYWHERE = Placement()
"""A placement without any choices."""

PLACED = Placement.__struct_fields__
"""The names of the choices."""
