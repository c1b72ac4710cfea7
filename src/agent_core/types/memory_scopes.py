"""The memory scope of a run: no memory, the shared memory, or the memory of one user.

Callers name a scope by one word, which is stored with the run. `memory.scopes` maps it to a folder.
"""

from msgspec import Struct

from agent_core.text import shown_value

MEMORY_OFF = "off"
"""The run recalls nothing, and nothing of it is remembered."""

MEMORY_SHARED = "shared"
"""Memory shared by everybody who uses the home, or by the sessions of the tenant."""

USER_SCOPE = "user:"
"""Prefix of the scope of one user; the caller's id of the user follows."""

LONGEST_USER_ID = 256

_FORMS = f"{MEMORY_OFF!r}, {MEMORY_SHARED!r} or '{USER_SCOPE}<id>'"


MEMORY_CURSOR, MEMORY_SPANS = "memory_cursor", "memory_spans"
"""The keys in the metadata of a session for how far it has been searched for memories."""


class MemoryTerms(Struct, frozen=True, kw_only=True):
    """The memory that a run's messages are for, and the model that may read them.

    Attributes:
        scope: scope of the run's memory.
        model: the run's own model, as it is stored: `provider:name`, or a table in JSON. None for
            the configured one.
        needs_object: the model is an object that only the run's program has.
    """

    scope: str = MEMORY_SHARED
    model: str | None = None
    needs_object: bool = False


def checked_scope(given: object) -> str | None:
    """Return the name of a scope; None for None and True, which choose nothing; `off` for False.

    Raises:
        ValueError: there is no such scope; the message continues the name of an argument.
    """
    match given:
        case None | True:
            return None
        case False:
            return MEMORY_OFF
        case str() if given in {MEMORY_OFF, MEMORY_SHARED}:
            return given
        case str() if given.startswith(USER_SCOPE):
            _check_user_id(given.removeprefix(USER_SCOPE))
            return given
        case _:
            raise ValueError(f"is {_FORMS}, not {shown_value(given)}")


def _check_user_id(user_id: str) -> None:
    """Refuse an id that is empty, or that could be mistaken for another one or for a path."""
    shown = shown_value(user_id)
    if not user_id:
        raise ValueError(f"names no user: put an id after {USER_SCOPE!r}")
    if len(user_id) > LONGEST_USER_ID:
        raise ValueError(
            f"names a user with an id of {len(user_id)} characters: give one of at most"
            f" {LONGEST_USER_ID}, such as a hash of it"
        )
    is_path = user_id in {".", ".."} or "/" in user_id or "\\" in user_id
    if is_path or user_id != user_id.strip() or not user_id.isprintable():
        raise ValueError(
            f"names the user {shown}: an id has printable characters without / and \\, and no"
            " space at its ends"
        )
