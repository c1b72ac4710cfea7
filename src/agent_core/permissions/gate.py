"""Decides about every tool call: allows it, asks the user, or refuses it; remembers answers."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from agent_core.config.models import NetworkConfig, PermissionsConfig
from agent_core.config.rules import RuleDecision
from agent_core.errors import ErrorCode, PermissionDeniedError, StorageError
from agent_core.extensions import (
    Admit,
    Extension,
    ExtensionContext,
    JudgedCall,
    Rank,
    find_none,
)
from agent_core.permissions.answers import PermissionCallback, call_back, denial_of, denied
from agent_core.permissions.policy import Policy, PolicyDecision, may_change
from agent_core.permissions.questions import PermissionJournal, Questions
from agent_core.permissions.request import (
    ALWAYS,
    WIDE_DECISIONS,
    Grant,
    WideGrant,
    build_grant,
    build_request,
    build_wide_grant,
    rule_of,
    shown_line,
)
from agent_core.redaction.redactor import Redactor
from agent_core.types import (
    Access,
    Decision,
    PermissionMode,
    RunIdentity,
    ToolCall,
    ToolDefinition,
    ToolPermission,
    new_id,
    utc_now,
)

if TYPE_CHECKING:
    from agent_core.permissions.rules import RuleSet
    from agent_core.permissions.saved_rules import SavedRules
    from agent_core.storage.store import SessionStore
    from agent_core.types import PermissionDecision, PermissionGrant, PermissionRequest


logger = logging.getLogger(__name__)

_MAX_SHOWN = 1_000
_PLAN = "plan mode"
_COMMAND = "code.run_command"
_EDITS = frozenset({"code.write_file", "code.edit_file"})


class Verdict(Struct, frozen=True, kw_only=True):
    """The decision about a call, and the reason.

    Attributes:
        decision: `allow`, `ask` or `deny`.
        by: the source of the decision: a rule, a remembered answer, a setting.
        grant: the coverage of an answer for the session, given or possible; None: this call
            only.
        wide: the wider answer that the question offers, or None.
        always: the rule that would allow such calls from now on, where it can be saved.
        asked_by: the user's rule that asks, if one does.
        hosts: the hosts that a network call, or a command, names; None for others.
        refusal: the message to the model about a denied call.
    """

    decision: RuleDecision
    by: str
    grant: Grant | None = None
    wide: WideGrant | None = None
    always: str | None = None
    asked_by: str | None = None
    hosts: Sequence[str] | None = None
    refusal: str = ""


class UserRules(Struct, frozen=True, kw_only=True):
    """The user's rules.

    Attributes:
        rules: the rules that there are; None if there are none.
        open_saved: opens the file to which the answer "always" adds a rule; None: no rules are
            added.
    """

    rules: "RuleSet | None" = None
    open_saved: "Callable[[], SavedRules] | None" = None


class ToolLists(Struct, frozen=True, kw_only=True):
    """The tools that may be called, by name.

    Attributes:
        allowed: names of tools, or patterns like `mcp.files.*`; None allows all tools that
            are not denied.
        denied: names or patterns; a tool on both lists is denied.
        mode: `ask` follows the settings; with `allow` every call of a tool that the lists allow
            is allowed unless a rule refuses it.
    """

    allowed: Collection[str] | None = None
    denied: Collection[str] = ()
    mode: Literal["ask", "allow"] = "ask"

    def allow(self, name: str) -> bool:
        """Return whether a tool of this name may be called."""
        if self.denied and any(fnmatchcase(name, pattern) for pattern in self.denied):
            return False
        return self.allowed is None or any(fnmatchcase(name, each) for each in self.allowed)


class PermissionGate(Extension):
    """Decides about every call of one runtime, of one toolkit or of one run folder.

    A grant for a session covers the calls that its question named. A call with a reason of its own
    asks whatever was allowed before.

    Args:
        callback: asks the user; None means that no question can be asked.
        config: `[permissions]`; by default the default configuration.
        rules: the user's rules.
        network: `[tools.network]`; its hosts need no question either.
        lists: the tools that may be called; by default all.
        project_dir: shown as the folder of calls without a folder.
        redactor: removes secrets from text shown to the user.
        timeout_s: how long one answer may take, in seconds; None waits as long as it takes.

    Attributes:
        rules: the user's rules, or None.
        grants: the grants of sessions.
    """

    rank = Rank.PERMISSIONS

    def __init__(
        self,
        callback: PermissionCallback | None = None,
        config: PermissionsConfig | None = None,
        *,
        rules: UserRules | None = None,
        network: NetworkConfig | None = None,
        lists: ToolLists | None = None,
        project_dir: Path | None = None,
        redactor: Redactor | None = None,
        timeout_s: float | None = None,
    ) -> None:
        config, rules = config or PermissionsConfig(), rules or UserRules()
        self.rules = rules.rules
        self.grants: SessionGrants | SessionStore = SessionGrants()
        self._policy = Policy(config, network or NetworkConfig())
        self._may_remember = config.allow_for_session_enabled
        self._salt = os.urandom(16)
        self._open: dict[str, tuple[str, set[str]]] = {}
        self._passes_readers = config.readers == "allow"
        self._lists = lists or ToolLists()
        self._project_dir = project_dir or Path.cwd()
        self._redactor = redactor or Redactor({})
        self._open_saved = rules.open_saved
        if self._open_saved is not None and callback is not None:
            callback = self._saving(callback)
        self.questions = Questions(
            callback, self._redactor, unattended=config.unattended, timeout_s=timeout_s
        )

    def is_listed(self, name: str) -> bool:
        """Return whether the lists of names allow a tool."""
        return self._lists.allow(name)

    async def decide(
        self, call: ToolCall, definition: ToolDefinition, access: Access, run: RunIdentity
    ) -> Verdict:
        """Judge one call, without asking and without changing anything.

        Args:
            call: what the model asked for.
            definition: the tool, with the user's overrides.
            access: what the call would touch.
            run: who makes it.
        """
        if (refused := self._refuse(definition, access, run)) is not None:
            return refused
        hosts: list[str] | None = None
        is_network = "network" in definition.tags
        if is_network or (access.command is not None and self.rules and self.rules.have_hosts):
            from agent_core.permissions.addresses import hosts_in  # noqa: PLC0415 - few calls

            views = access.command.views if access.command else ()
            hosts = await asyncio.to_thread(hosts_in, call.arguments, views)  # may be long
        by_rules = None
        if self.rules is not None:
            by_rules = self._judge_by_rules(self.rules, definition, access, run, hosts)
        if by_rules is not None and by_rules.decision != "ask":
            return by_rules
        hosts = hosts if is_network else None
        if access.command is not None and access.reason == "program_home":
            return Verdict(decision="deny", by="the program's own files", refusal=_own(access))
        passes = "the permission lists" if self._lists.mode == "allow" else None
        is_plain = access.edits and not access.dangerous and not is_network
        if is_plain and run.permission_mode == "accept-edits":
            passes = "the mode accept-edits"
        if by_rules is None and passes is not None:
            return Verdict(decision="allow", by=passes, hosts=hosts)
        if by_rules is None:
            judged = self._policy.decide(definition, access, hosts)
            if judged is PolicyDecision.REFUSE:
                refusal = (
                    f"the network policy does not allow {', '.join(hosts or ())[:_MAX_SHOWN]}; it"
                    " can be added to allowed_hosts in [permissions.network_policy]"
                )
                by = "[permissions.network_policy]"
                return Verdict(decision="deny", by=by, hosts=hosts, refusal=refusal)
            if judged is PolicyDecision.ALLOW:
                is_inside = access.command is not None and access.confined is not None
                by = "[sandbox] ask_inside = false" if is_inside else "no question is needed"
                return Verdict(decision="allow", by=by, hosts=hosts)
        return await self._judge_by_answers(
            call, definition, access, run, hosts=hosts, by_rules=by_rules
        )

    def asks_for_every_call(
        self, definition: ToolDefinition, permission_mode: PermissionMode, *, asks_inside: bool
    ) -> bool:
        """Return whether every call of a tool is a question, whatever its arguments.

        False where this is not certain: a rule, an allowed host, a setting or a stored answer may
        allow some call.

        Args:
            definition: the tool, with the user's overrides.
            permission_mode: the mode of the run.
            asks_inside: commands that the sandbox confines are asked for, too.
        """
        name, tags = definition.name, definition.tags
        if self._lists.mode == "allow" or not self.is_listed(name) or permission_mode == "plan":
            return False
        if "internal" in tags or not isinstance(self.grants, SessionGrants):
            return False
        if self.rules is not None and self.rules.may_allow(name):
            return False
        if name == _COMMAND and (self._passes_readers or not asks_inside):
            return False
        if name in _EDITS and permission_mode == "accept-edits":
            return False
        is_network = "network" in tags
        if is_network and self._policy.allows_some_host:
            return False
        writes = definition.permission is ToolPermission.WRITE or "dangerous" in tags
        return writes or is_network or self._policy.asks_readers

    async def _judge_by_answers(
        self,
        call: ToolCall,
        definition: ToolDefinition,
        access: Access,
        run: RunIdentity,
        *,
        hosts: Sequence[str] | None,
        by_rules: Verdict | None,
    ) -> Verdict:
        """Allow what a remembered answer covers, or commands that only read; ask for the rest."""
        is_plain = by_rules is None and hosts is None and access.reason is None
        if is_plain and self._passes_readers and access.command is not None and access.reads:
            return Verdict(decision="allow", by="[permissions] readers")
        grant = wide = None
        if self._may_remember:
            grant = build_grant(call, definition, access, hosts)
            wide = build_wide_grant(access, self._project_dir) if is_plain else None
        for one in (grant, wide and wide.grant):
            known = one and await self.grants.find_grant(run.session_id, one.key)
            if known is not None:
                return Verdict(decision="allow", by=f"the answer {known.grant_id}", grant=one)
        always = None
        if by_rules is None and (saved := self._saved) is not None:
            always = saved.propose(definition, access, run, hosts)
            if wide is not None:
                rule = saved.propose_wide(wide, definition, access, run)
                wide = replace(wide, rule=rule)
        asked_by = by_rules.by if by_rules else None
        by = asked_by or _why(definition, access)
        return Verdict(
            decision="ask",
            by=by,
            grant=grant,
            wide=wide,
            always=always,
            asked_by=asked_by,
            hosts=hosts,
        )

    @property
    def saves_rules(self) -> bool:
        """Return whether an answer "always" can add a rule."""
        return self._open_saved is not None

    @cached_property
    def _saved(self) -> "SavedRules | None":
        """The file of saved rules; opened for the first question."""
        if self._open_saved is None:
            return None
        saved = self._open_saved()
        self.rules = saved.rules
        return saved

    def _saving(self, callback: PermissionCallback) -> PermissionCallback:
        """Return the callback, with a rule saved where it answers "always"."""

        async def ask(request: "PermissionRequest") -> "PermissionDecision":
            answer = await call_back(callback, request)
            if answer.metadata.get(ALWAYS) is True:
                await self.save_rule(request, answer.decision)
            return answer

        return ask

    async def save_rule(self, request: "PermissionRequest", decision: Decision) -> bool:
        """Save the rule that a question offers for this decision; return whether there is one.

        A failure to write it is logged: the answer counts all the same.
        """
        text = rule_of(request, decision)
        if text is None or self._saved is None:
            return False
        await asyncio.to_thread(self._saved.save_or_warn, text)
        return True

    def _refuse(
        self, definition: ToolDefinition, access: Access, run: RunIdentity
    ) -> Verdict | None:
        """Refuse a tool that is not listed, and a change in plan mode; None for other calls."""
        name = definition.name
        if not self._lists.allow(name):
            refusal = f"the permission lists do not allow {name}"
            return Verdict(decision="deny", by="the permission lists", refusal=refusal)
        if run.permission_mode == "plan" and may_change(definition, access):
            refusal = (
                f"plan mode: {name} was not run, because it could change something. Use only"
                " tools that read, and answer with a plan, or write it into the folder of plans."
                " Only the user can leave plan mode"
            )
            return Verdict(decision="deny", by=_PLAN, refusal=refusal)
        return None

    def _judge_by_rules(
        self,
        rules: "RuleSet",
        definition: ToolDefinition,
        access: Access,
        run: RunIdentity,
        hosts: Sequence[str] | None,
    ) -> Verdict | None:
        """Return the decision of the user's rules about a call; None if they do not decide it."""
        named = rules.named(definition, access, run, hosts)
        if rule := rules.find("deny", named):
            refusal = f"{definition.name} is denied by {rule}"
            return Verdict(decision="deny", by=str(rule), hosts=hosts, refusal=refusal)
        if "internal" in definition.tags:
            return None
        if rule := rules.find("ask", named):
            return Verdict(decision="ask", by=str(rule), hosts=hosts)
        if rule := rules.find_possible(named):
            unseen = access.command.unseen if access.command else None
            return Verdict(decision="ask", by=f"{rule}, as {unseen}", hosts=hosts)
        allowing = rules.find_allowing(named)
        if not allowing:
            return None
        if "network" in definition.tags and self._policy.refuses(hosts or ()):
            allowing = [rule for rule in allowing if rule.table.host is not None]
        by = ", ".join(map(str, allowing))
        return Verdict(decision="allow", by=by, hosts=hosts) if allowing else None

    async def admit_tool_call(
        self, context: ExtensionContext, judged: JudgedCall, proceed: Admit
    ) -> float | None:
        """Return once the call is allowed: see `require`."""
        waited = await self.require(
            judged.call,
            judged.definition,
            judged.access,
            context.run,
            judged.journal,
            find_later=judged.find_later,
        )
        later = await proceed()
        return waited if later is None else (waited or 0.0) + later

    async def require(
        self,
        call: ToolCall,
        definition: ToolDefinition,
        access: Access,
        run: RunIdentity,
        journal: PermissionJournal,
        *,
        find_later: Callable[[], Awaitable[Sequence[JudgedCall]]] = find_none,
    ) -> float | None:
        """Return if the call may run: the seconds that people took to answer, if they were asked.

        If no callback asks, the questions about the calls of `find_later` are asked with this one,
        so that they can be answered in any order.

        Raises:
            PermissionDeniedError: a rule, a setting or the user said no, or no question can be
                asked; then its code is `access.refusal`.
            ParkedError: the run is to wait for the user's answer.
        """
        verdict = await self.decide(call, definition, access, run)
        if verdict.decision == "allow":
            return None
        if verdict.decision == "deny":
            reason = "plan_mode" if verdict.by == _PLAN else access.reason
            details = {"denied_by": verdict.by} | ({"reason": reason} if reason else {})
            raise PermissionDeniedError(
                ErrorCode.PERMISSION_DENIED, verdict.refusal, details=details
            )
        grant, wide = verdict.grant, verdict.wide
        request = self._request(call, definition, access, run, verdict)
        asked = perf_counter()
        keys = {each.key for each in (grant, wide and wide.grant) if each is not None}
        self._open[request.request_id] = run.session_id, keys
        try:
            answer = await self.questions.ask(
                request,
                journal,
                call=call,
                definition=definition,
                access=access,
                run=run,
                find_covering=lambda: self._find_covering(verdict, run),
                ask_later=lambda: self._ask_later(find_later, run),
            )
        finally:
            del self._open[request.request_id]
        waited_s = perf_counter() - asked
        if answer.decision is Decision.DENY:
            raise denial_of(answer, definition.name, access.refusal)
        if answer.decision in WIDE_DECISIONS:
            if wide is None or wide.decision is not answer.decision:
                raise denied(f"{answer.decision} is not an answer to the question about this call")
            grant = wide.grant
        if answer.decision is not Decision.ALLOW_ONCE and grant is not None:
            await self._remember(grant, definition, run)
            covered = [
                request_id
                for request_id, (session_id, keys) in self._open.items()
                if session_id == run.session_id and grant.key in keys
            ]
            await self.questions.settle_covered(request, answer.decision, known=covered)
        return waited_s

    async def _ask_later(
        self, find_later: Callable[[], Awaitable[Sequence[JudgedCall]]], run: RunIdentity
    ) -> list[str]:
        """Ask about later calls of a reply, and return the ids of the questions."""
        asked: list[str] = []
        for each in await find_later():
            verdict = await self.decide(each.call, each.definition, each.access, run)
            if verdict.decision == "ask":
                request_id = await self.questions.ask_ahead(
                    self._request(each.call, each.definition, each.access, run, verdict),
                    each.journal,
                    call=each.call,
                    definition=each.definition,
                    access=each.access,
                    run=run,
                )
                asked += [] if request_id is None else [request_id]
        return asked

    async def calls_dropped(self, context: ExtensionContext, calls: Sequence[ToolCall]) -> None:
        """Withdraw the questions about calls that are not made."""
        await self.questions.withdraw(calls, context.run)

    def _request(
        self,
        call: ToolCall,
        definition: ToolDefinition,
        access: Access,
        run: RunIdentity,
        verdict: Verdict,
    ) -> "PermissionRequest":
        grant = verdict.grant
        return build_request(
            call,
            definition,
            access,
            run,
            hosts=verdict.hosts,
            covers=grant.covers if grant else None,
            scope_id=blake2b(grant.key.encode(), key=self._salt).hexdigest() if grant else None,
            wide=verdict.wide,
            rule=verdict.always,
            asked_by=verdict.asked_by,
            project_dir=self._project_dir,
            redactor=self._redactor,
        )

    async def _find_covering(self, verdict: Verdict, run: RunIdentity) -> Decision | None:
        """Return the answer to another question that covers this one, if it was given meanwhile."""
        grants = {Decision.ALLOW_FOR_SESSION: verdict.grant}
        if verdict.wide is not None:
            grants[verdict.wide.decision] = verdict.wide.grant
        for decision, grant in grants.items():
            if grant and await self.grants.find_grant(run.session_id, grant.key) is not None:
                return decision
        return None

    async def _remember(self, grant: Grant, definition: ToolDefinition, run: RunIdentity) -> None:
        """Add a grant; the answer counts for its call even if that cannot be stored."""
        from agent_core.types import PermissionGrant  # noqa: PLC0415 - few runs need it

        remembered = PermissionGrant(
            grant_id=new_id("grant"),
            session_id=run.session_id,
            tool_name=definition.name,
            covers=shown_line(grant.covers, self._redactor),
            key=grant.key,
            created_at=utc_now(),
        )
        try:
            await self.grants.add_grant(remembered)
        except StorageError as error:
            logger.warning("an answer for the session is not remembered: %s", error.message)

    def begin_session(self, session_id: str) -> None:
        """Drop what this process remembers of an earlier session with this id.

        Another process has deleted that session; answers in a store are deleted with it.
        """
        if isinstance(self.grants, SessionGrants):
            self.grants.drop(session_id)

    async def forget(self, grant_or_session_id: str) -> int:
        """Drop an answer, or all of a session, and return how many there were."""
        return await self.grants.forget_grants(grant_or_session_id)


def _own(access: Access) -> str:
    """Return why a command that names the program's own files is refused."""
    named = ", ".join(access.places)[:_MAX_SHOWN]
    return (
        f"{named} belongs to the program itself, or names its home: a command that names it is"
        " refused, unless a rule of the user's allows it with its path; its files can be read with"
        " code.read_file, which asks"
    )


def _why(definition: ToolDefinition, access: Access) -> str:
    """Return why a call asks where no rule decides."""
    if access.reason is not None:
        return access.reason
    if access.command is not None and access.places:
        return "a command that reads outside the project"
    if access.command is not None and access.asked_by is not None:
        return f"a command; {access.asked_by}"
    if definition.permission is ToolPermission.WRITE:
        if access.command is not None:
            return "a command"
        return f"writing asks; {access.asked_by}" if access.asked_by else "writing asks"
    is_tagged = [tag for tag in ("dangerous", "network") if tag in definition.tags]
    return f"the tag {is_tagged[0]}" if is_tagged else "reading asks"


class SessionGrants:
    """Answers "for the session" that a process remembers; see the grants of `SessionStore`."""

    def __init__(self) -> None:
        self._grants: dict[str, dict[str, PermissionGrant]] = {}

    async def find_grant(self, session_id: str, key: str) -> "PermissionGrant | None":
        """Return the session's grant for calls with this key, if any."""
        return self._grants.get(session_id, {}).get(key)

    async def add_grant(self, grant: "PermissionGrant") -> None:
        """Remember a grant; an existing one for the same session and key is not changed."""
        self._grants.setdefault(grant.session_id, {}).setdefault(grant.key, grant)

    async def grants(self, session_id: str | None = None) -> "list[PermissionGrant]":
        """Return the grants of a session, or of all."""
        chosen = self._grants.values() if session_id is None else [self._grants.get(session_id, {})]
        return [grant for of_session in chosen for grant in of_session.values()]

    def drop(self, session_id: str) -> None:
        """Remove all grants of a session."""
        self._grants.pop(session_id, None)

    async def forget_grants(self, grant_or_session_id: str) -> int:
        """Remove one grant, or all of a session; return their number."""
        if (of_session := self._grants.pop(grant_or_session_id, None)) is not None:
            return len(of_session)
        for of_session in self._grants.values():
            for grant in of_session.values():
                if grant.grant_id == grant_or_session_id:
                    del of_session[grant.key]
                    return 1
        return 0
