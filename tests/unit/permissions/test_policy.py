"""The standing rules: who is asked for what, and which hosts need no question."""

import pytest

from agent_core.config.models import NetworkConfig, NetworkPolicyConfig, PermissionsConfig
from agent_core.permissions.policy import Policy, PolicyDecision
from agent_core.types import Access, ToolDefinition, ToolPermission
from tables import together

READ = ToolDefinition(name="code.read_file", description="", permission=ToolPermission.READONLY)
WRITE = ToolDefinition(name="code.write_file", description="")
INTERNAL = READ.model_copy(update={"tags": {"internal"}})


def policy(
    default: str = "confirm",
    *,
    readonly: str = "allow",
    hosts: list[str] | None = None,
    domains: list[str] | None = None,
) -> Policy:
    config = PermissionsConfig.model_validate(
        {
            "readonly_default": readonly,
            "network_policy": NetworkPolicyConfig.model_validate(
                {
                    "default": default,
                    "allowed_hosts": hosts or [],
                }
            ),
        }
    )
    return Policy(config, NetworkConfig(allowed_domains=domains or []))


def test_h1_a_plain_read_needs_no_question() -> None:
    assert policy().decide(READ, Access()) is PolicyDecision.ALLOW


def test_h2_a_sensitive_read_is_asked_for() -> None:
    assert policy().decide(READ, Access(asks=True, reason="sensitive")) is PolicyDecision.ASK


def test_reads_are_asked_for_if_the_user_wants_that_but_internal_tools_never() -> None:
    strict = policy(readonly="ask")
    assert strict.decide(READ, Access()) is PolicyDecision.ASK
    assert strict.decide(INTERNAL, Access()) is PolicyDecision.ALLOW


@pytest.mark.parametrize(
    ("default", "expected"), [("confirm", PolicyDecision.ASK), ("deny", PolicyDecision.REFUSE)]
)
def test_a_host_that_is_not_listed_is_asked_for_or_refused(
    default: str, expected: PolicyDecision
) -> None:
    rules = policy(default, hosts=["good.example"])
    assert rules.decide(READ, Access(), ["evil.example"]) is expected
    assert rules.decide(READ, Access(), ["evil.example", "good.example"]) is expected


@pytest.mark.parametrize("default", ["confirm", "deny"])
def test_a_network_call_that_names_no_host_is_asked_for(default: str) -> None:
    assert policy(default, hosts=["good.example"]).decide(READ, Access(), []) is PolicyDecision.ASK


def test_a_listed_host_answers_the_question_of_a_reader_only() -> None:
    rules = policy(hosts=["good.example"])
    hosts = ["good.example"]
    assert rules.decide(READ, Access(asks=True), hosts) is PolicyDecision.ALLOW
    assert rules.decide(WRITE, Access(asks=True), hosts) is PolicyDecision.ASK
    sensitive = Access(asks=True, reason="sensitive")
    assert rules.decide(READ, sensitive, hosts) is PolicyDecision.ASK
    assert rules.decide(READ, Access(asks=True, dangerous=True), hosts) is PolicyDecision.ASK


@together(
    ("host", "allowed"),
    [
        ("api.example.org", True),
        ("API.example.org.", True),
        ("api.example.org:443", True),
        ("sub.api.example.org", False),
        ("example.net", True),
        ("deep.www.example.net", True),
        ("badexample.net", False),
        ("example.net.evil.com", False),
        ("[::1]:80", True),
        ("local.test:8080", True),
        ("local.test:8081", False),
        ("local.test", False),
        ("[fd00::7]:99", True),
        ("fd00::7", False),
        ("::1", True),
        ("", False),
        (".", False),
        ("?localhost\\.example.net", False),
        ("?2130706433\\.example.net", False),
        ("?intranet .example.net", False),
        ("?*.example.net", False),
        ("?b\u00fccher.example.net", False),
    ],
)
def test_hosts_are_exact_and_domains_cover_what_is_below(host: str, allowed: bool) -> None:
    listed = ["api.example.org", "::1", "Local.test:8080", "[fd00::7]:99"]
    rules = policy(hosts=listed, domains=["*.example.net", ""])
    assert rules.allows_host(host) is allowed


def test_of_several_hosts_every_one_has_to_be_listed() -> None:
    config = policy("deny", hosts=["a.example"], domains=["b.example"])
    assert config.decide(READ, Access(), ["a.example", "x.b.example"]) is PolicyDecision.ALLOW
    assert config.decide(READ, Access(), ["evil.example", "x.b.example"]) is PolicyDecision.REFUSE
