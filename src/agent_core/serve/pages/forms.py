"""The form that starts a run, and its fields."""

from collections.abc import Mapping
from typing import Any

from agent_core.errors import ErrorCode
from agent_core.loop.options import NO_OPTIONS, RunOptions
from agent_core.serve.pages.frame import Frame
from agent_core.serve.problems import HttpProblem
from agent_core.text.pages import plain
from agent_core.types import Mode

_MODES = {
    "": "as the settings say",
    "ask": "ask before changes",
    "accept-edits": "edit files without asking",
    "plan": "only make a plan",
}
_KINDS: Mapping[str, tuple[Mode, str]] = {
    "": ("normal", "one agent"),
    "orchestrator": ("orchestrator", "an orchestrator with workers"),
}


def message_form(frame: Frame, target: str, *, extra: str = "") -> str:
    """Return the form for a message.

    Args:
        frame: the request.
        target: the address that the form is sent to, as HTML.
        extra: further fields, as HTML.
    """
    say = frame.say
    modes = _options(frame, _MODES)
    kinds = _options(frame, {name: words for name, (_, words) in _KINDS.items()})
    return (
        f'<form method="post" action="{target}"><div class="field">'
        f'<label for="message">{say("Message")}</label>'
        '<textarea id="message" name="message" required></textarea></div>'
        f'<div class="row"><div class="field short"><label for="permissions">'
        f'{say("Permissions")}</label><select id="permissions" name="permission_mode">{modes}'
        f'</select></div><div class="field short"><label for="mode">{say("Agents")}</label>'
        f'<select id="mode" name="mode">{kinds}</select></div>{extra}'
        f'<button class="main">{say("Send")}</button></div></form>'
    )


def _options(frame: Frame, choices: Mapping[str, str]) -> str:
    return "".join(
        f'<option value="{plain(value)}">{plain(frame.say(words))}</option>'
        for value, words in choices.items()
    )


def chosen_mode(fields: Mapping[str, str]) -> Mode:
    """Return the mode of a run as a form has it.

    Raises:
        HttpProblem: 400: there is no such mode.
    """
    return _choice(fields, "mode", _KINDS)[0]


def options_of(fields: Mapping[str, str]) -> RunOptions[Any]:
    """Return the options of a run as a form has them.

    Raises:
        HttpProblem: 400: there is no such permission mode.
    """
    _choice(fields, "permission_mode", _MODES)
    match fields.get("permission_mode", ""):
        case "ask" | "accept-edits" | "plan" as chosen:
            return RunOptions(permission_mode=chosen)
        case _:
            return NO_OPTIONS


def _choice(fields: Mapping[str, str], name: str, choices: Mapping[str, Any]) -> Any:
    given = fields.get(name, "")
    if given not in choices:
        known = ", ".join(filter(None, choices))
        detail = f"there is no {name} {given!r}; there are: {known}"
        raise HttpProblem(400, detail, code=ErrorCode.VALIDATION_ERROR)
    return choices[given]
