"""What the jobs of `storage` ask of a database: SQLite has it, and `postgres` brings it along."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

Result = TypeVar("Result")


class FoundRow(Protocol):
    """A row of a result, by number or by the name of a column."""

    def keys(self) -> list[str]:
        """The names of the columns, in order."""
        ...

    def __getitem__(self, key: Any, /) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...


class Cursor(Protocol):
    """What a statement has found."""

    @property
    def rowcount(self) -> int:
        """How many rows it has changed."""
        ...

    def fetchone(self) -> Any:
        """The next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """The rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection inside of a transaction, which belongs to the thread that runs the job.

    Statements keep to what both databases read. Parameters are `?` or `:name`. A parameter that is
    compared with NULL alone is cast, so that its type is known.
    """

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), /) -> Cursor:
        """Carry out one statement."""
        ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object:
        """Carry out one statement for every row of parameters."""
        ...


Job = Callable[[Connection], Result]

Named = Literal["session_id", "run_id", "agent_id", "request_id", "hold_id"]
"""What the id is of that a job names."""


class JobWriter(Protocol):
    """Carries out jobs that write, each in one transaction."""

    def submit(
        self,
        job: Job[Result],
        about: str | None = None,
        /,
        *,
        by: Named = "session_id",
        is_small: bool = False,
    ) -> asyncio.Future[Result]:
        """Do a job now or later, wholly or not at all; jobs of one session in the order of calls.

        A job must depend on nothing but its connection and its own inputs: it may be done again.

        Args:
            job: what to do.
            about: an id that leads to the session; None if the job is about many, or none.
            by: what that id is of.
            is_small: it costs less than handing it over to a thread.
        """
        ...


class JobReader(Protocol):
    """Carries out jobs that only read, each on one snapshot of the database."""

    async def read(self, query: Job[Result], *, is_single: bool = False) -> Result:
        """Run a query.

        Args:
            query: what to read.
            is_single: it is one statement, which needs no transaction around it.

        Raises:
            StorageError: the database cannot be read, or is closed.
        """
        ...
