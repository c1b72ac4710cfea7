"""Decides about every tool call: passes what is allowed, asks, and remembers answers."""

import asyncio
import re
from collections.abc import Collection, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from agent_core.config.models import NetworkConfig, PermissionsConfig
from agent_core.permissions.questions import (
    PermissionCallback,
    PermissionJournal,
    Questions,
    denied,
)
from agent_core.permissions.request import build_grant, build_request
from agent_core.redaction.redactor import Redactor
from agent_core.types import (
    Access,
    Decision,
    RunIdentity,
    ToolCall,
    ToolDefinition,
    ToolPermission,
)

_MAX_HOSTS_SHOWN = 1_000
_PLAIN = re.compile(r"[a-z0-9._-]+(?::[0-9]*)?|\[?[0-9a-f:.]+\]?(?::[0-9]*)?")


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
        self._policy = Policy(rules, network or NetworkConfig())
        self._may_remember = rules.allow_for_session_enabled
        self._lists = (allowed, denied)
        self._mode = mode
        self._project_dir = project_dir or Path.cwd()
        self._redactor = redactor or Redactor({})
        self.questions = Questions(
            callback, self._redactor, unattended=rules.unattended, timeout_s=timeout_s
        )
        self._grants: dict[str, set[str]] = {}

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
            ParkedError: the run is to wait for the user's answer.
        """
        if not self.is_listed(definition.name):
            raise denied(f"the permission lists do not allow {definition.name}")
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
            raise denied(
                f"the network policy does not allow {named}; it can be added to"
                " allowed_hosts in [permissions.network_policy]"
            )
        grant = build_grant(call, definition, access, hosts)
        if grant is not None and grant.key in self._grants.get(run.session_id, ()):
            return
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
        answer = await self.questions.ask(
            request, journal, call=call, definition=definition, access=access, run=run
        )
        if answer.decision is Decision.DENY:
            reason = f": {answer.reason}" if answer.reason else ""
            raise denied(f"the user denied {definition.name}{reason}")
        if answer.decision is Decision.ALLOW_FOR_SESSION and offered is not None:
            self._grants.setdefault(run.session_id, set()).add(offered.key)

    def forget(self, session_id: str) -> None:
        """Drop what was allowed for a session that is gone."""
        self._grants.pop(session_id, None)
