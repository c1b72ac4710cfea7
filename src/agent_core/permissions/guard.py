"""Decides about every tool call: passes what is allowed, asks, and remembers answers."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Protocol

from agent_core.config.models import NetworkConfig, PermissionsConfig
from agent_core.errors import ErrorCode, PermissionDeniedError
from agent_core.permissions.request import build_grant, build_request, event_payload
from agent_core.redaction import log_failure
from agent_core.redaction.redactor import Redactor
from agent_core.types import (
    Access,
    Decision,
    EventLevel,
    EventType,
    PermissionDecision,
    PermissionRequest,
    RunIdentity,
    ToolCall,
    ToolDefinition,
    ToolPermission,
)

logger = logging.getLogger(__name__)

_MAX_HOSTS_SHOWN = 1_000
_PLAIN = re.compile(r"[a-z0-9._-]+(?::[0-9]*)?|\[?[0-9a-f:.]+\]?(?::[0-9]*)?")

PermissionCallback = Callable[[PermissionRequest], Awaitable[PermissionDecision]]
"""Asks the user. Whatever goes wrong in it counts as a deny."""


class PermissionJournal(Protocol):
    """Where questions and answers are written down."""

    def note(
        self,
        event_type: EventType,
        payload: Mapping[str, Any] | None = None,
        *,
        level: EventLevel = EventLevel.INFO,
        tool_call_id: str | None = None,
    ) -> None:
        """Record an event; it is stored with the next commit."""
        ...

    async def commit(self) -> None:
        """Return when everything noted is stored and visible."""
        ...


class PolicyDecision(StrEnum):
    """What has to happen before a call."""

    ALLOW = "allow"
    ASK = "ask"
    REFUSE = "refuse"


class Policy:
    """The user's standing rules.

    Args:
        config: the `[permissions]` section.
        network: `[tools.network]`; its hosts and domains are united with the network policy's.
    """

    def __init__(self, config: PermissionsConfig, network: NetworkConfig) -> None:
        both = (config.network_policy, network)
        self._hosts = {_host(host) for part in both for host in part.allowed_hosts}
        domains = (name.strip().lower() for part in both for name in part.allowed_domains)
        # An empty entry would allow every host that ends with a dot, `*` every host at all.
        self._domains = tuple(filter(None, (d.removeprefix("*").strip(".") for d in domains)))
        self._refuses_hosts = config.network_policy.default == "deny"
        self._asks_readers = config.readonly_default == "ask"

    def decide(
        self, definition: ToolDefinition, access: Access, hosts: Sequence[str] | None = None
    ) -> PolicyDecision:
        """Judge one call. A refusal here is final; no question follows it.

        Args:
            definition: the tool, with the user's overrides.
            access: what the call would touch.
            hosts: the hosts that a call of a tool tagged `network` names; None for other tools.
        """
        reads = definition.permission is ToolPermission.READONLY
        if hosts is not None:
            if not all(map(self.allows_host, hosts)):
                return PolicyDecision.REFUSE if self._refuses_hosts else PolicyDecision.ASK
            if not hosts:
                return PolicyDecision.ASK  # where the call goes cannot be seen
            if reads and not access.dangerous and access.reason is None:
                return PolicyDecision.ALLOW  # the host was the only question
        if access.asks:
            return PolicyDecision.ASK
        asks_anyway = self._asks_readers and reads and "internal" not in definition.tags
        return PolicyDecision.ASK if asks_anyway else PolicyDecision.ALLOW

    def allows_host(self, host: str) -> bool:
        """Whether a host, with or without a port, needs no question."""
        with_port = host.strip().lower()
        if not _PLAIN.fullmatch(with_port):
            return False  # unclear to some client, whatever it ends with
        name = _host(with_port)
        if name in self._hosts or with_port in self._hosts:
            return True
        return any(name == domain or name.endswith(f".{domain}") for domain in self._domains)


def _host(value: str) -> str:
    """The bare name: lower case, no brackets around IPv6, no port, no dot at the end."""
    name = value.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    if name.count(":") == 1:
        name = name.partition(":")[0]
    return name.rstrip(".")


class PermissionGuard:
    """Decides about every call of one runtime, of one toolkit or of one run folder.

    What was allowed for a session is kept in memory only, and is for the calls that its question
    named. A call with a reason of its own is asked for whatever was allowed before.

    Args:
        callback: asks the user; None means that no question can be asked.
        rules: `[permissions]`; the defaults of the configuration if there is none.
        network: `[tools.network]`; its hosts need no question either.
        allowed: names of tools, or patterns like `mcp.files.*`; None allows all that are not
            denied.
        denied: names or patterns; what is on both lists is denied.
        mode: `ask` follows the rules; with `allow` only the lists decide, and nothing is asked.
        project_dir: shown as the folder of calls that have none of their own.
        redactor: removes secrets from what the user is shown.
        timeout_s: how long one answer may take, in seconds; None waits as long as it takes.
    """

    def __init__(
        self,
        callback: PermissionCallback | None = None,
        rules: PermissionsConfig | None = None,
        *,
        network: NetworkConfig | None = None,
        allowed: Collection[str] | None = None,
        denied: Collection[str] = (),
        mode: Literal["ask", "allow"] = "ask",
        project_dir: Path | None = None,
        redactor: Redactor | None = None,
        timeout_s: float | None = None,
    ) -> None:
        rules = rules or PermissionsConfig()
        self._callback = callback
        self._policy = Policy(rules, network or NetworkConfig())
        self._may_remember = rules.allow_for_session_enabled
        self._lists = (allowed, denied)
        self._mode = mode
        self._project_dir = project_dir or Path.cwd()
        self._redactor = redactor or Redactor({})
        self._timeout_s = timeout_s
        self._grants: dict[str, set[str]] = {}
        self._questions: set[asyncio.Task[PermissionDecision | str]] = set()

    def is_listed(self, name: str) -> bool:
        """Whether the lists of names allow a tool."""
        allowed, denied = self._lists
        if any(fnmatchcase(name, pattern) for pattern in denied):
            return False
        return allowed is None or any(fnmatchcase(name, pattern) for pattern in allowed)

    async def require(
        self,
        call: ToolCall,
        definition: ToolDefinition,
        access: Access,
        run: RunIdentity,
        journal: PermissionJournal,
    ) -> None:
        """Return if the call may run.

        Raises:
            PermissionDeniedError: the lists, the policy or the user said no, or no question can
                be asked; then its code is `access.refusal`.
        """
        if not self.is_listed(definition.name):
            raise _denied(f"the permission lists do not allow {definition.name}")
        if self._mode == "allow":
            return
        hosts: list[str] | None = None
        if "network" in definition.tags:
            from agent_core.permissions.addresses import hosts_in  # noqa: PLC0415 - few tools

            hosts = await asyncio.to_thread(hosts_in, call.arguments)  # arguments may be long
        decision = self._policy.decide(definition, access, hosts)
        if decision is PolicyDecision.ALLOW:
            return
        if decision is PolicyDecision.REFUSE:
            named = ", ".join(hosts or ())[:_MAX_HOSTS_SHOWN]
            raise _denied(
                f"the network policy does not allow {named}; it can be added to"
                " allowed_hosts in [permissions.network_policy]"
            )
        grant = build_grant(call, definition, access, hosts)
        if grant is not None and grant.key in self._grants.get(run.session_id, ()):
            return
        if self._callback is None:
            raise PermissionDeniedError(
                access.refusal,
                f"{definition.name} needs a permission, and this program has no way to ask for it",
            )
        offered = grant if self._may_remember else None
        request = build_request(
            call,
            definition,
            access,
            run,
            hosts=hosts,
            covers=offered.covers if offered else None,
            project_dir=self._project_dir,
            redactor=self._redactor,
        )
        answer = await self._ask(self._callback, request, journal)
        if answer.decision is Decision.DENY:
            reason = f": {answer.reason}" if answer.reason else ""
            raise _denied(f"the user denied {definition.name}{reason}")
        if answer.decision is Decision.ALLOW_FOR_SESSION and offered is not None:
            self._grants.setdefault(run.session_id, set()).add(offered.key)

    def forget(self, session_id: str) -> None:
        """Drop what was allowed for a session that is gone."""
        self._grants.pop(session_id, None)

    async def _ask(
        self, callback: PermissionCallback, request: PermissionRequest, journal: PermissionJournal
    ) -> PermissionDecision:
        """Store the question, put it to the user, and record the answer."""
        call_id = request.metadata["tool_call_id"]
        journal.note(EventType.PERMISSION_REQUESTED, event_payload(request), tool_call_id=call_id)
        await journal.commit()
        # A task of its own: a callback that does not let go must not keep a cancelled run.
        question = asyncio.create_task(
            _call(callback, request, self._redactor), name="permission callback"
        )
        self._questions.add(question)
        question.add_done_callback(self._close_question)
        try:
            await asyncio.wait([question], timeout=self._timeout_s)
            has_ended = question.done()
        finally:
            question.cancel()
        if not has_ended:
            answer = _LATE
        elif question.cancelled():
            answer = "the question was withdrawn"
        else:
            answer = question.result()
        facts = {"request_id": request.request_id, "tool_name": request.tool_name}
        if isinstance(answer, str):
            journal.note(
                EventType.PERMISSION_FAILED,
                {**facts, "decision": Decision.DENY, "error": answer},
                level=EventLevel.WARNING,
                tool_call_id=call_id,
            )
            raise _denied(
                f"{request.tool_name} was not allowed, because there is no answer: {answer}"
            )
        journal.note(
            EventType.PERMISSION_DECIDED,
            {**facts, "decision": answer.decision, "reason": answer.reason},
            tool_call_id=call_id,
        )
        return answer

    def _close_question(self, question: "asyncio.Task[PermissionDecision | str]") -> None:
        self._questions.discard(question)
        if not question.cancelled():
            question.exception()  # retrieved here: the run that asked may have been cancelled


_LATE = "the question was not answered in time"


async def _call(
    callback: Callable[[PermissionRequest], Awaitable[object]],
    request: PermissionRequest,
    redactor: Redactor,
) -> PermissionDecision | str:
    """The callback's answer, or why there is none."""
    try:
        answer = await callback(request)
    except TimeoutError:
        return _LATE
    except Exception as error:  # noqa: BLE001 - every failure counts as a deny
        log_failure(logger, "the permission callback broke", error=error, clean=redactor.text)
        return f"the permission callback broke: {type(error).__name__}"
    if isinstance(answer, PermissionDecision):
        return answer
    return f"the permission callback answered with {type(answer).__name__}, not a decision"


def _denied(message: str) -> PermissionDeniedError:
    return PermissionDeniedError(ErrorCode.PERMISSION_DENIED, message)
