"""Interface of a database for the jobs of `storage`: SQLite has it, `postgres` adapts to it."""

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeVar

from agent_core.errors import ConfigError, ErrorCode, StorageError

Result = TypeVar("Result")


class FoundRow(Protocol):
    """A row of a result, indexed by number or by column name."""

    def keys(self) -> list[str]:
        """Return the names of the columns, in order."""
        ...

    def __getitem__(self, key: Any, /) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """The number of changed rows."""
        ...

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection inside a transaction, owned by the thread that runs the job.

    Statements use only SQL that both databases read. Parameters are `?` or `:name`. A parameter
    that is compared only with NULL is cast, so that its type is known.
    """

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), /) -> Cursor:
        """Execute one statement."""
        ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object:
        """Execute one statement for every row of parameters."""
        ...


Job = Callable[[Connection], Result]

Named = Literal["session_id", "run_id", "agent_id", "request_id", "hold_id"]
"""Kinds of ids by which a job's session is found."""


class JobWriter(Protocol):
    """Runs writing jobs, each in one transaction."""

    def submit(
        self,
        job: Job[Result],
        about: str | None = None,
        /,
        *,
        by: Named = "session_id",
        is_small: bool = False,
    ) -> asyncio.Future[Result]:
        """Run a job now or later, completely or not at all; in the order of calls per session.

        A job must depend only on its connection and its own inputs: it may be run again.

        Args:
            job: the job.
            about: an id that leads to the session; None if the job concerns several sessions, or
                none.
            by: the kind of that id.
            is_small: running it costs less than handing it to a thread.
        """
        ...


class JobReader(Protocol):
    """Runs reading jobs, each on one snapshot of the database."""

    async def read(self, query: Job[Result], *, is_single: bool = False) -> Result:
        """Run a query.

        Args:
            query: the query.
            is_single: it is one statement, which needs no transaction around it.

        Raises:
            StorageError: the database cannot be read, or is closed.
        """
        ...


class NoWriter:
    """Refuses every write: the database stays as it is."""

    def submit(
        self,
        job: Job[Result],  # noqa: ARG002 - it is refused
        about: str | None = None,  # noqa: ARG002
        /,
        *,
        by: Named = "session_id",  # noqa: ARG002
        is_small: bool = False,  # noqa: ARG002
    ) -> asyncio.Future[Result]:
        """Refuse a job."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        future.set_exception(self.refusal())
        return future

    @staticmethod
    def refusal() -> StorageError:
        """Return the error for a change."""
        message = (
            "this runtime was opened with read_only=True; open one without it to change anything"
        )
        return StorageError(ErrorCode.STORAGE_ERROR, message)


@contextmanager
def needing_postgres() -> Generator[None]:
    """Report a failed import in the block as missing packages for Postgres.

    Raises:
        ConfigError: a package for Postgres is missing.
    """
    try:
        yield
    except ImportError as error:
        from agent_core.installation import extra_command  # noqa: PLC0415 - rarely missing

        message = f"a Postgres database needs the extra postgres ({error}); to install it:"
        command = extra_command("postgres")
        raise ConfigError(ErrorCode.CONFIG_ERROR, f"{message}\n{command}") from None
