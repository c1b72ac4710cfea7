"""Which proxy stands before an address."""

import pytest

from agent_core.config.models import ModelConfig
from agent_core.config.proxies import proxy_for
from agent_core.errors import ConfigError
from tables import together

SERVICE = "https://api.service.test/v1"
PROXY = {"HTTPS_PROXY": "http://proxy:1"}


@together(
    ("environ", "url", "proxy"),
    [
        ({}, SERVICE, None),
        (PROXY, SERVICE, "http://proxy:1"),
        (PROXY, "http://api.service.test/v1", None),
        ({"http_proxy": "proxy:1"}, "http://api.service.test", "http://proxy:1"),
        ({"HTTPS_PROXY": "http://a", "https_proxy": "http://b"}, SERVICE, "http://b"),
        ({"HTTPS_PROXY": "http://a", "https_proxy": ""}, SERVICE, None),
        ({"ALL_PROXY": "http://all"}, SERVICE, "http://all"),
        ({"ALL_PROXY": "http://all", **PROXY}, SERVICE, "http://proxy:1"),
        ({"HTTP_PROXY": "http://client", "REQUEST_METHOD": "GET"}, "http://api.test", None),
        (PROXY, "https://localhost/v1", None),
        (PROXY, "https://model.localhost/v1", None),
        (PROXY, "https://127.9.9.9/v1", None),
        (PROXY, "https://[::1]:8/v1", None),
        (PROXY, "https://LOCALHOST./v1", None),
        (PROXY, "https://127.1/v1", None),
        (PROXY, "https://0x7f000001/v1", None),
        (PROXY, "https://2130706433/v1", None),
        (PROXY, "https://[::ffff:127.0.0.1]/v1", None),
        (PROXY, "https://localhost.example.org/v1", "http://proxy:1"),
        (PROXY, "https://127.0.0.1.example.org/v1", "http://proxy:1"),
        (PROXY, "https://192.168.0.7/v1", "http://proxy:1"),
        ({"ALL_PROXY": "socks5://socks"}, "https://localhost", None),
    ],
)
def test_the_environment_names_the_proxy(
    environ: dict[str, str], url: str, proxy: str | None
) -> None:
    assert proxy_for(url, None, environ) == proxy


@together(
    ("no_proxy", "is_exempt"),
    [
        ("*", True),
        ("service.test", True),
        (".service.test", True),
        ("*.service.test", True),
        ("API.SERVICE.TEST", True),
        ("other.test, api.service.test", True),
        ("other.test api.service.test", True),
        ("api.service.test:8443", True),
        ("api.service.test:443", False),
        ("vice.test", False),
        ("api.service.test.evil.test", False),
        ("", False),
        (",,", False),
    ],
)
def test_hosts_can_be_exempt(no_proxy: str, is_exempt: bool) -> None:
    environ = {**PROXY, "NO_PROXY": no_proxy}

    found = proxy_for("https://api.service.test:8443/v1", None, environ)

    assert found == (None if is_exempt else "http://proxy:1")


def test_networks_can_be_exempt() -> None:
    environ = {**PROXY, "NO_PROXY": "10.0.0.0/8,fd00::/8"}

    assert proxy_for("https://10.1.2.3/v1", None, environ) is None
    assert proxy_for("https://[fd00::7]/v1", None, environ) is None
    assert proxy_for("https://11.1.2.3/v1", None, environ) == "http://proxy:1"


@together(
    ("no_proxy", "url", "is_exempt"),
    [
        ("[fd00::7]:8443", "https://[fd00::7]:8443/v1", True),
        ("[fd00::7]:443", "https://[fd00::7]/v1", True),
        ("[FD00:0::7]:8443", "https://[fd00::7]:8443/v1", True),
        ("[fd00::7]:8443", "https://[fd00::7]:9/v1", False),
        ("[fd00::7]", "https://[fd00::7]:9/v1", True),
        ("fd00::7", "https://[fd00::7]:9/v1", True),
        ("[fd00::]/8", "https://[fd00::7]:9/v1", True),
        ("fd00::/8,[fd01::1]:1", "https://[fe00::7]/v1", False),
        ("10.1.2.3:8443", "https://10.1.2.3:8443/v1", True),
        ("10.1.2.3:8443", "https://10.1.2.3/v1", False),
        ("10.0.0.0/8:8443", "https://10.1.2.3:8443/v1", True),
        ("10.0.0.0/8", "https://[::ffff:10.1.2.3]/v1", True),
        ("2.3", "https://10.1.2.3/v1", False),
        ("api.service.test:443", SERVICE, True),
        ("api.service.test:80", SERVICE, False),
        ("service.test.", SERVICE, True),
        ("*:443", SERVICE, True),
        ("*:80", SERVICE, False),
    ],
)
def test_addresses_and_ports_can_be_exempt(no_proxy: str, url: str, is_exempt: bool) -> None:
    environ = {**PROXY, "NO_PROXY": no_proxy}

    assert proxy_for(url, None, environ) == (None if is_exempt else "http://proxy:1")


def test_what_is_configured_counts_before_the_environment() -> None:
    assert proxy_for("http://127.0.0.1:1/v1", "http://mine:2", PROXY) == "http://mine:2"
    assert proxy_for(SERVICE, "", PROXY) is None


@together(
    "value",
    [
        "socks5://me:hidden@proxy:1",
        "http://",
        "http://me:hidden@proxy:x",
        "http://p/path",
        "ftp://p",
    ],
)
def test_an_address_that_is_no_proxy_is_refused_without_showing_it(value: str) -> None:
    with pytest.raises(ConfigError, match="HTTPS_PROXY of the environment must be") as caught:
        proxy_for(SERVICE, None, {"HTTPS_PROXY": value})
    assert "hidden" not in caught.value.message
    with pytest.raises(ValueError, match="must be http://host:port"):
        ModelConfig(provider="openai", name="m", proxy=value)
