"""Messages that a user sends to a run while it works."""

from agent_core.types.content import Frozen, SafeId, UtcDatetime
from agent_core.types.records import RunPrompt


class WaitingMessage(Frozen):
    """A message that was sent to a run and that its model has not seen.

    Attributes:
        prompt: the message, without secrets.
        is_taken: the process that executes the run is delivering it.
        created_at: when it was sent.
    """

    message_id: SafeId
    session_id: SafeId
    run_id: SafeId
    prompt: RunPrompt
    is_taken: bool = False
    created_at: UtcDatetime
