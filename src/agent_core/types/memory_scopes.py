"""The scope of a run's memory: nobody's, everybody's, or the memory of one user.

A scope is named by callers as one word, which is stored with the run. `memory.scopes` says which
folder it stands for.
"""

from msgspec import Struct

MEMORY_OFF = "off"
"""The run recalls nothing, and nothing of it is remembered."""

MEMORY_SHARED = "shared"
"""Everybody who uses the home, or the sessions of the tenant, has this memory."""

USER_SCOPE = "user:"
"""The beginning of the scope of one user; the caller's id of the user follows."""

LONGEST_USER_ID = 256

_FORMS = f"{MEMORY_OFF!r}, {MEMORY_SHARED!r} or '{USER_SCOPE}<id>'"


class MemoryTerms(Struct, frozen=True, kw_only=True):
    """Whose memory the words of a run are for, and which model may read them.

    Attributes:
        scope: of the run's memory.
        model: the run's own, as it is stored: `provider:name`, or a table in JSON. None: the
            configured one.
        needs_object: the model is an object that only the program of the run has.
    """

    scope: str = MEMORY_SHARED
    model: str | None = None
    needs_object: bool = False


def checked_scope(given: object) -> str | None:
    """Return the name of a scope; None, and True, leave the choice to others; False is `off`.

    Raises:
        ValueError: there is no such scope; the message follows the name of an argument.
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
            shown = repr(given)[:80]
            raise ValueError(f"is {_FORMS}, not {shown}")


def _check_user_id(user_id: str) -> None:
    """Refuse an id that is none, or whose reader could take it for another one, or for a path."""
    shown = repr(user_id)[:80]
    if not user_id:
        raise ValueError(f"names no user: put an id behind {USER_SCOPE!r}")
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
