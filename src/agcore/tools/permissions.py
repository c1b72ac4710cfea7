"""Permissions of tools: lists of names, and the engine's rules if the user can be asked."""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from agcore.tools.error import ToolPermissionError
from agent_core.api.arguments import checks_arguments
from agent_core.callbacks import check_callback
from agent_core.config.models import PermissionsConfig
from agent_core.config.paths import resolve_home
from agent_core.errors import ArgumentError
from agent_core.permissions import PermissionCallback, PermissionGate
from agent_core.permissions.gate import ToolLists, UserRules
from agent_core.redaction import Redactor
from agent_core.text import kind_of

if TYPE_CHECKING:
    from agent_core.permissions.rules import RuleSet


class Permission(StrEnum):
    """Answer of the lists to a name."""

    ALLOWED = "allowed"
    DENIED = "denied"


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionConfig:
    """Rules about tools.

    Attributes:
        allowed: names, or patterns like `mcp.files.*`; None allows all that are not denied.
        denied: names or patterns; a name on both lists is denied.
        ask: asks the user before calls that write, are dangerous or reach a host, by the
            engine's rules; without it, every call of a registered tool is allowed.
        rules: the engine's rules for asking; its `rules` deny with or without `ask`.
    """

    allowed: frozenset[str] | None = None
    denied: frozenset[str] = frozenset()
    ask: PermissionCallback | None = None
    rules: PermissionsConfig = field(default_factory=PermissionsConfig)

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ArgumentError: one is of a wrong type, or `ask` cannot be called with a request.
        """
        for name in ("allowed", "denied"):
            names: object = getattr(self, name)
            if names is None and name == "allowed":
                continue
            if isinstance(names, str) or not isinstance(names, Collection):
                raise ArgumentError(f"{name} must be a set of names, not {kind_of(names)}", name)
            for each in cast("Collection[object]", names):
                if not isinstance(each, str):
                    raise ArgumentError(f"{name} must hold names, not {kind_of(each)}", name)
            object.__setattr__(self, name, frozenset(cast("Collection[str]", names)))
        if not isinstance(self.rules, PermissionsConfig):  # pyright: ignore[reportUnnecessaryIsInstance] - a program's
            reason = f"rules must be a PermissionsConfig, not {kind_of(self.rules)}"
            raise ArgumentError(reason, "rules")
        check_callback("ask", self.ask, "request")

    @classmethod
    def allow_all(cls) -> "PermissionConfig":
        """Allow every tool."""
        return cls()

    @classmethod
    def white_list(cls, names: Iterable[str]) -> "PermissionConfig":
        """Allow only these tools."""
        return cls(allowed=_as_set(names))

    @classmethod
    def black_list(cls, names: Iterable[str]) -> "PermissionConfig":
        """Allow every tool but these."""
        return cls(denied=_as_set(names))


def _as_set(names: Iterable[str]) -> frozenset[str]:
    """Return names as a set; something else as it is, for the check of the fields."""
    is_list = isinstance(names, Iterable) and not isinstance(names, str)  # pyright: ignore[reportUnnecessaryIsInstance] - a program's
    return frozenset(names) if is_list else cast("frozenset[str]", names)


@cache
def _allow_all() -> PermissionConfig:
    """Return the rules of a registry without any: each run makes a checker of them."""
    return PermissionConfig()


@checks_arguments(constructor=True)
class PermissionChecker(PermissionGate):
    """The engine's permission gate with the rules of a `PermissionConfig`.

    Args:
        config: the rules; without them every tool is allowed.
        secrets: keeps secrets out of the user's questions.

    Raises:
        ArgumentError: an argument has a wrong type.
    """

    def __init__(
        self, config: PermissionConfig | None = None, secrets: Redactor | None = None
    ) -> None:
        self.config = config = config or _allow_all()
        self._secrets = secrets or Redactor({})
        super().__init__(
            config.ask,
            config.rules,
            rules=UserRules(rules=_build_rules(config.rules) if config.rules.rules else None),
            lists=ToolLists(
                allowed=config.allowed,
                denied=config.denied,
                mode="ask" if config.ask else "allow",
            ),
            redactor=self._secrets,
        )

    def learn(self, secrets: Mapping[str, str]) -> None:
        """Keep these values out of the user's questions."""
        self._secrets.learn(secrets)

    def of_child(self, *, asks: bool) -> "PermissionChecker":
        """Return the checker for the tools of an agent that this one's agent calls.

        The names on the allow list are tools of the calling agent, so that list is not applied.

        Args:
            asks: the user is asked, too; otherwise the other agent's own checker does that.
        """
        ask = self.config.ask if asks else None
        return PermissionChecker(replace(self.config, allowed=None, ask=ask), self._secrets)

    def permission(self, name: str) -> Permission:
        """Return the answer of the lists to a name."""
        return Permission.ALLOWED if self.is_listed(name) else Permission.DENIED

    def check(self, name: str) -> None:
        """Check that the lists allow the name.

        Raises:
            ToolError: `PermissionDenied`.
        """
        if not self.is_listed(name):
            raise ToolPermissionError(name, f"the permission lists do not allow {name}")


def _build_rules(config: PermissionsConfig) -> "RuleSet":
    """Build a program's rules; relative paths start at the current folder, as in tools."""
    from agent_core.permissions.rules import RuleContext, RuleSet  # noqa: PLC0415 - few have any

    project = Path.cwd().resolve()
    around = RuleContext(
        home=resolve_home(),
        project=project,
        search_path=os.environ.get("PATH", os.defpath),
        is_writable=lambda path: path.is_relative_to(project),
    )
    rules = RuleSet((), around)
    rules.replace_saved("rules", config.rules)
    return rules
