"""The form in which a server accepts a conversation, and its words when it refuses another one.

Chat templates of some models refuse two messages of the user in a row, or a message of the user
right after the result of a call. Mistral's service does, and so do the templates of Gemma, Mistral
and others in llama.cpp, vLLM, LM Studio and Ollama. Some services want the reasoning of all answers
back, and some refuse it. The words are from public bug reports, or guessed; the tests say which.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

RoleOrder = Literal["free", "no_user_after_tool", "alternate"]
"""`free` is any order. In the others, neighbours of one role are one message, the first message is
the user's, and an answer is between a result and the user; `alternate` also has one call in each
answer."""

_MAKER = r"(users?|assistants?|tools?|models?|functions?)"
_REFUSED = (
    r"(?i)\b(roles?|messages?|turns?|requests?|conversations?)\b[^.;]{0,80}\b(alternat|interleav)"
    r"|\b(alternat|interleav)\w*[^.;]{0,60}\b(roles?|messages?|turns?|user|assistant)\b"
    rf"|\b(successive|consecutive|multiple|two)\W+{_MAKER}\W[^.;]{{0,40}}\b(messages?|roles?|turns?)"
    r"|unexpected role|invalid_request_message_order"
    rf"|\b{_MAKER}\b\W{{0,3}}(role |message |turn )?(after|following)\W+(role\W+|a )?{_MAKER}\b"
    r"|only supports single tool-?calls|turn comes immediately after"
    r"|(expected last role|last message|must end with|ends? with)\b[^.;]{0,40}\b(user|tool)\b"
    r"|(ending|ends?) with an? (model|assistant)|assistant message prefill"
)
_AFTER_RESULT = r"(?i)\buser\b\W{0,3}(role |message )?after\W+(role\W+|a )?tool\b"
_MISPLACED = (
    rf"(?i)\b(roles?|{_MAKER})\b|\b(messages?|turns?) (order|sequence)\b",
    r"(?i)\b(roles?|messages?|turns?|query|conversation|history)\b",
    (
        r"(?i)\b(consecutive|successive|in a row|back-to-back|adjacent|repeat\w*|sequence|order"
        r"|same role|take turns|after|before|follow\w*|preced\w*|first|last|begin\w*|start\w*"
        r"|ends?|no user)\b"
    ),
)
"""In one sentence: whose message it is, that it is a message, and where it is.

Other words than those above are understood by these; a wrong guess costs two more requests."""
_SENTENCE_END = r"[.;](?=\s|$)|\n"
_OF_A_TEMPLATE = r"(?i)template|jinja"
_NO_SYSTEM = (
    r"(?i)\b(system|developer)\W+(roles?|messages?|prompts?|instructions?)\b[^.;]{0,20}"
    r"(not|n't|un)[ -]?(support|enabled|allowed|permitted|accepted|available)"
    r"|not (support|allow|accept)[^.;]{0,20}\b(system|developer)\W+"
    r"(role|message|prompt|instruction)"
    r"|only [^.;]{0,20}\busers?\W+(and )?assistant\W[^.;]{0,20}"
    r"\broles? (are|is) (supported|allowed)"
    r"|only [^.;]{0,40}\broles? are supported, got .?system"
    r"|(not one of|should be|must be( one of)?|expected( one of)?)\W+user\W+"
    r"((or|and)\W+)?assistant\b"
    r"|(unsupported|unknown|unexpected|invalid|unrecogni[sz]ed)( message)? role\W+"
    r"(system|developer)"
)

ReasoningHistory = Literal["own", "always", "never"]
"""`own` is the reasoning that a model wrote, as it came; `always` is also an empty one where an
answer has none, and one without a signature; `never` is none."""

_REASONING = r"\b(reasoning(_content|_details)?|thinking|thoughts?)\b"
_WANTED = (
    rf"(?i){_REASONING}[^.;]{{0,60}}\b(missing|required|must (also )?be|needs? to be)\b"
    rf"|\b(missing|requires?|must (include|have|contain))\b[^.;]{{0,40}}{_REASONING}"
)
_UNWANTED = (
    rf"(?i){_REASONING}[^;]{{0,80}}(unsupported|n[o']t (supported|permitted|allowed|valid|accepted)"
    rf"|extra inputs|extra_forbidden|display purposes)"
    rf"|(unknown|unexpected|unrecogni[sz]ed|unsupported|extra|additional)[^.;]{{0,60}}{_REASONING}"
    rf"|remove[^.;]{{0,20}}{_REASONING}|(invalid|corrupted)[^.;]{{0,20}}signature"
)


class HistoryForm(Struct, frozen=True):
    """The form of conversations that a server accepts for one model."""

    order: RoleOrder = "free"
    system_role: bool = True
    reasoning: ReasoningHistory = "own"


DEMAND = "accepted_form"
"""Detail of a refusal: the form of the conversation that it asks for."""

Demand = Mapping[Literal["order", "system_role", "reasoning"], Any]


def demand_in(explanation: str, *, is_fault: bool = False) -> Demand:
    """Return the form that a refusal asks for; empty if it is about something else.

    Args:
        explanation: the words of the refusal.
        is_fault: the server reports it as a fault of its own, such as an error of a template.
    """
    if re.search(_NO_SYSTEM, explanation):
        return {"system_role": False}
    if re.search(_REFUSED, explanation):
        is_after = re.search(_AFTER_RESULT, explanation)
        return {"order": "no_user_after_tool" if is_after else "alternate"}
    if re.search(_WANTED, explanation):
        return {"reasoning": "always"}
    if re.search(_UNWANTED, explanation):
        return {"reasoning": "never"}
    if is_fault and not re.search(_OF_A_TEMPLATE, explanation):
        return {}
    is_misplaced = any(
        all(re.search(part, sentence) for part in _MISPLACED)
        for sentence in re.split(_SENTENCE_END, explanation)
    )
    return {"order": "no_user_after_tool"} if is_misplaced else {}
