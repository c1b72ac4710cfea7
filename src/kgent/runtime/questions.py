"""Questions to a person: whether a call may be made that the profile does not allow."""

import threading
from collections.abc import Iterable, Mapping

from agent_core.errors import ParkedError
from agent_core.text.json_text import JsonValue
from agent_core.tools.values import storable
from agent_core.types import new_id
from kgent.errors import ErrorCategory, ErrorInfo, KgentError, denial
from kgent.records.lines import now
from kgent.runtime.state import RequestRecord

WAITING = "waiting_for_user"
"""The code of a call, and of a run, that waits for an answer."""


class AttemptQuestions:
    """Decides about the calls of one attempt that the profile does not allow.

    Args:
        parks: whether a person is asked; if not, every such call is denied.
        attempt: the number of the attempt.
        earlier: the questions of all attempts so far.
        open_calls: ids of the calls that have no result yet; only these can use an answer, once.
    """

    def __init__(
        self,
        *,
        parks: bool = False,
        attempt: int = 1,
        earlier: Iterable[RequestRecord] = (),
        open_calls: Iterable[str] = (),
    ) -> None:
        self._parks = parks
        self._attempt = attempt
        self._lock = threading.Lock()
        self._all = list(earlier)
        unused = set(open_calls)
        self._answers = {
            one.tool_call_id: one for one in self._all if one.answer and one.tool_call_id in unused
        }

    @property
    def all(self) -> list[RequestRecord]:
        """Return the questions of all attempts, with their answers."""
        with self._lock:
            return list(self._all)

    def admit(
        self, refusal: KgentError, *, call_id: str, tool: str, arguments: Mapping[str, JsonValue]
    ) -> None:
        """Return if a person has allowed this call.

        Raises:
            KgentError: a person has denied it, or no person is asked; then it is `refusal`.
            ParkedError: the run waits for the answer.
        """
        with self._lock:
            answered = self._answers.pop(call_id, None)
            if answered is not None and answered.answer == "allow":
                return
            if answered is not None:
                why = f": {answered.reason}" if answered.reason else ""
                raise denial(f"a person has denied this call{why}")
            if not self._parks:
                raise refusal
            asked = next(
                (one for one in self._all if not one.answer and one.tool_call_id == call_id), None
            )
            if asked is None:
                asked = RequestRecord(
                    request_id=new_id("req"),
                    attempt=self._attempt,
                    tool_call_id=call_id,
                    tool_name=tool,
                    arguments=storable(dict(arguments)),
                    asked_at=now(),
                )
                self._all.append(asked)
        raise ParkedError(asked.request_id)


def waiting_error(request_ids: Iterable[str]) -> ErrorInfo:
    """Build the reason of a call or a run that waits for an answer."""
    listed = ", ".join(request_ids)
    return ErrorInfo(
        code=WAITING,
        message=f"a person has to answer {listed}",
        category=ErrorCategory.GOVERNANCE,
        details={"requests": listed.split(", ")},
    )
