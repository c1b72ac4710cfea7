"""Decides from the settings and the run's mode alone which calls need a question.

A note before the user's message names the mode, so that the content of a prompt cache stays valid:
the tools are the same in every mode, and calls are refused.
"""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum

from agent_core.config.models import NetworkConfig, PermissionsConfig
from agent_core.types import Access, ToolDefinition, ToolPermission

_PLAIN = r"[a-z0-9._-]+(?::[0-9]*)?|\[?[0-9a-f:.]+\]?(?::[0-9]*)?"
PLAN_MODE = (
    "The user has chosen plan mode: nothing but a plan may be written in this run. Whatever could"
    " change something else is refused: writing other files, commands that are not known to only"
    " read, tools that are not read-only, and the same for agents you start. Look at what you need"
    " to know, and answer with a plan: what you would change, where, in which order, and how to"
    " check it. If the user wants the plan as a file, agent__plan_template says where it goes."
)
PLAN_MODE_IS_OVER = (
    "Plan mode is over: changes are possible again, as far as the user's permissions allow."
)
_BUILT_IN = ("agent.", "internal.")
"""Prefixes of tools for the conversation and its plan; no other tool has such a name."""


class PolicyDecision(StrEnum):
    """The step that has to come before a call."""

    ALLOW = "allow"
    ASK = "ask"
    REFUSE = "refuse"


class Policy:
    """The settings for calls that no rule of the user's decides.

    Args:
        config: the `[permissions]` section.
        network: `[tools.network]`; its hosts and domains are united with the network policy's.
    """

    def __init__(self, config: PermissionsConfig, network: NetworkConfig) -> None:
        both = (config.network_policy, network)
        self._hosts = {_parted(host) for part in both for host in part.allowed_hosts}
        domains = (name.strip().lower() for part in both for name in part.allowed_domains)
        # An empty entry would allow every host that ends with a dot, `*` every host at all.
        self._domains = tuple(filter(None, (d.removeprefix("*").strip(".") for d in domains)))
        self._refuses_hosts = config.network_policy.default == "deny"
        self.asks_readers = config.readonly_default == "ask"

    def decide(
        self, definition: ToolDefinition, access: Access, hosts: Sequence[str] | None = None
    ) -> PolicyDecision:
        """Judge one call. A refusal here is final: the user is not asked.

        Args:
            definition: the tool, with the user's overrides.
            access: what the call would touch.
            hosts: the hosts that a call of a tool tagged `network` names; None for other tools.
        """
        reads = definition.permission is ToolPermission.READONLY
        if hosts is not None:
            if self.refuses(hosts):
                return PolicyDecision.REFUSE
            if not all(map(self.allows_host, hosts)):
                return PolicyDecision.ASK
            if not hosts:
                return PolicyDecision.ASK  # the destination of the call is unknown
            if reads and not access.dangerous and access.reason is None:
                return PolicyDecision.ALLOW  # the host was the only question
        if access.asks:
            return PolicyDecision.ASK
        asks_anyway = self.asks_readers and reads and "internal" not in definition.tags
        return PolicyDecision.ASK if asks_anyway else PolicyDecision.ALLOW

    @property
    def allows_some_host(self) -> bool:
        """Return whether there are hosts that need no question."""
        return bool(self._hosts or self._domains)

    def refuses(self, hosts: Iterable[str]) -> bool:
        """Return whether one of the hosts is refused rather than asked for."""
        return self._refuses_hosts and not all(map(self.allows_host, hosts))

    def allows_host(self, host: str) -> bool:
        """Return whether a host needs no question: an entry with a port covers that port only."""
        with_port = host.strip().lower()
        if not re.fullmatch(_PLAIN, with_port):
            return False  # unclear to some client, whatever it ends with
        name, port = _parted(with_port)
        if (name, "") in self._hosts or (name, port) in self._hosts:
            return True
        return any(name == domain or name.endswith(f".{domain}") for domain in self._domains)


def _parted(value: str) -> tuple[str, str]:
    """Return the bare name, lower case and without brackets or a dot at the end, and the port."""
    name, port = value.strip().lower(), ""
    if name.startswith("["):
        name, _, rest = name[1:].partition("]")
        port = rest.removeprefix(":")
    elif name.count(":") == 1:
        name, _, port = name.partition(":")
    return name.rstrip("."), port


def may_change(definition: ToolDefinition, access: Access) -> bool:
    """Return whether a call could change more than the run's own records and plans, if known.

    Known to only read: tools of permission `readonly` that are not dangerous, and commands that
    consist of programs and options that only read. A tool that writes files counts as
    changing, whatever permission the settings give it.
    """
    if definition.name.startswith(_BUILT_IN) or access.only_reads or access.writes_plan:
        return False
    is_dangerous = access.dangerous or not definition.tags.isdisjoint({"write", "dangerous"})
    writes = definition.permission is ToolPermission.WRITE or access.diff is not None
    return writes or is_dangerous
