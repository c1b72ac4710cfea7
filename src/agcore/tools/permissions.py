"""Which tools may be called: lists of names, and the engine's rules if somebody can be asked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from agcore.tools.errors import ToolPermissionError, from_core
from agent_core.config.models import PermissionsConfig
from agent_core.errors import PermissionDeniedError
from agent_core.permissions import PermissionCallback, PermissionGuard
from agent_core.redaction import Redactor
from agent_core.types import Access, RunIdentity, ToolCall, ToolDefinition


class Permission(StrEnum):
    """What the lists say about a name."""

    ALLOWED = "allowed"
    DENIED = "denied"


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionConfig:
    """Rules about tools.

    Attributes:
        allowed: names, or patterns like `mcp.files.*`; None allows all that are not denied.
        denied: names or patterns; a name on both lists is denied.
        ask: asks the user before calls that write, are dangerous or reach a host, by the
            engine's rules; without it, whoever registered a tool has agreed to its calls.
        rules: the engine's rules for asking.
    """

    allowed: frozenset[str] | None = None
    denied: frozenset[str] = frozenset()
    ask: PermissionCallback | None = None
    rules: PermissionsConfig = field(default_factory=PermissionsConfig)

    @classmethod
    def allow_all(cls) -> "PermissionConfig":
        """Every tool."""
        return cls()

    @classmethod
    def white_list(cls, names: Iterable[str]) -> "PermissionConfig":
        """These tools and no others."""
        return cls(allowed=frozenset(names))

    @classmethod
    def black_list(cls, names: Iterable[str]) -> "PermissionConfig":
        """Every tool but these."""
        return cls(denied=frozenset(names))


class PermissionChecker:
    """Says no in time: before a call is looked at, and before it is run."""

    def __init__(self, config: PermissionConfig | None = None) -> None:
        self._config = config or PermissionConfig()
        self._redactor = Redactor({})
        ask, rules = self._config.ask, self._config.rules
        self._guard = PermissionGuard(ask, rules, redactor=self._redactor) if ask else None

    def learn(self, secrets: Mapping[str, str]) -> None:
        """Keep these out of what the user is asked."""
        self._redactor.learn(secrets)

    def permission(self, name: str) -> Permission:
        """What the lists say."""
        config = self._config
        if _is_on(name, config.denied):
            return Permission.DENIED
        if config.allowed is not None and not _is_on(name, config.allowed):
            return Permission.DENIED
        return Permission.ALLOWED

    def check(self, name: str) -> None:
        """Return if the lists allow the name.

        Raises:
            ToolError: `PermissionDenied`.
        """
        if self.permission(name) is Permission.DENIED:
            raise ToolPermissionError(name, f"the permission lists do not allow {name}")

    async def require(
        self, call: ToolCall, definition: ToolDefinition, access: Access, run: RunIdentity
    ) -> None:
        """Return if the call, which has been looked at, may run; asks if there are rules to ask.

        Raises:
            ToolError: `PermissionDenied`.
        """
        if self._guard is None:
            return
        try:
            await self._guard.require(call, definition, access, run, _Unwritten())
        except PermissionDeniedError as error:
            raise from_core(call.name, error) from error


class _Unwritten:
    """Questions and answers are not stored anywhere here."""

    def note(self, *_what: object, **_more: object) -> None:
        """Let it pass."""

    async def commit(self) -> None:
        """Nothing waits."""


def _is_on(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
