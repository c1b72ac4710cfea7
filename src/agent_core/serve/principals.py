"""Principals: the senders of requests, and their rights."""

from collections.abc import Awaitable, Callable, Collection
from typing import Literal

from msgspec import Struct
from starlette.requests import Request

Right = Literal["read", "run", "answer", "admin"]
"""`read`: sessions and runs; `run`: starts, cancels and moves runs and sessions; `answer`: answers
questions; `admin`: workers, the queue, settings and folders of forks."""

ALL: frozenset[Right] = frozenset({"read", "run", "answer", "admin"})


class Principal(Struct, frozen=True):
    """The sender of a request.

    Attributes:
        name: stored with every answer and every run.
        tenant: only sessions of this tenant exist for it; None: those of the runtime's tenant.
        may: what it may do.
    """

    name: str
    tenant: str | None = None
    may: Collection[Right] = frozenset({"read", "run", "answer"})


Auth = Callable[[Request], Principal | Awaitable[Principal | None] | None]
"""Returns the sender of a request; None if it is not known."""
