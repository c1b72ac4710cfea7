"""Proxies and certificates between a model's adapter and its service: all of them real."""

import asyncio
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_core.config.load import build_config
from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.errors import ConfigError, ErrorCode
from agent_core.providers.base import ProviderRegistry
from agent_core.providers.chat_completions import OpenAIProvider
from agent_core.types import (
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    Role,
    TextBlock,
)
from model_server import ModelServer
from tables import together
from web_proxy import WebProxy

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


async def asked(**config: Any) -> ModelEvent:
    """The last event of a call."""
    limits = {"retry": RetryConfig(max_attempts=1), "timeout_ms": 5000}
    return await asked_of(ModelConfig(provider="openai", name="m", **limits, **config))


async def asked_of(model: ModelConfig) -> ModelEvent:
    """The last event of a call of this model."""
    hello = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
    adapter = ProviderRegistry().create(model)
    try:
        return [event async for event in adapter.stream(ModelRequest(model="m", messages=[hello]))][
            -1
        ]
    finally:
        await adapter.close()


def port(server: ModelServer) -> int:
    return int(server.url.rpartition(":")[2])


def openssl(*arguments: str, folder: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, stderr=subprocess.DEVNULL, check=True)  # noqa: S603, S607


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `ca.pem`, and `server.pem` and `server.key` that it has signed."""
    folder = tmp_path_factory.mktemp("authority")
    names = "subjectAltName=DNS:model.test,IP:127.0.0.1"
    (folder / "names").write_text(names)
    new: Sequence[str] = ("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=made for a test")
    openssl(*new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", folder=folder)
    openssl(*new, "-keyout", "server.key", "-out", "server.csr", folder=folder)
    sign = ("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key")
    openssl(*sign, "-CAcreateserial", "-extfile", "names", "-out", "server.pem", folder=folder)
    return folder


def served(authority: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "server.pem", authority / "server.key")
    return context


# Proxies


@together("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
async def test_a_proxy_of_the_environment_is_used(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer(["hi"]) as server, WebProxy(port(server)) as proxy:
        monkeypatch.setenv(variable, proxy.host)
        last = await asked(base_url="http://model.test/v1")

    assert isinstance(last, ModelCompleted), last
    assert proxy.asked == ["POST http://model.test/v1/chat/completions"]


@pytest.mark.long
@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
async def test_an_encrypted_service_is_reached_through_a_tunnel(
    variable: str, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        ModelServer(["hi"], tls=served(authority)) as server,
        WebProxy(port(server)) as proxy,
    ):
        monkeypatch.setenv(variable, proxy.url)
        last = await asked(base_url="https://model.test/v1", ca_file=str(authority / "ca.pem"))

    assert isinstance(last, ModelCompleted), last
    assert proxy.asked == ["CONNECT model.test:443"]
    assert server.requests[0].headers["host"] == "model.test"


async def test_this_machine_and_exempt_hosts_are_called_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ModelServer(["hi", "hi"]) as server, WebProxy(port(server)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        assert isinstance(await asked(base_url=f"{server.url}/v1"), ModelCompleted)
        monkeypatch.setenv("NO_PROXY", "model.invalid")
        last = await asked(base_url="http://model.invalid/v1")

    assert isinstance(last, ModelFailed)
    assert proxy.asked == []


async def test_a_configured_proxy_counts_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with ModelServer(["hi"] * 2) as server, WebProxy(port(server)) as proxy:
        through = await asked(base_url="http://model.test/v1", proxy=proxy.url)
        past = await asked(base_url=f"{server.url}/v1", proxy="")

    assert isinstance(through, ModelCompleted)
    assert isinstance(past, ModelCompleted)
    assert len(proxy.asked) == 1


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_is_told_the_name_and_the_password_and_the_service_is_not(
    scheme: str, authority: Path
) -> None:
    tls = served(authority) if scheme == "https" else None
    async with (
        ModelServer(["hi"], tls=tls) as server,
        WebProxy(port(server), credentials="me:p@ss word") as proxy,
    ):
        known = await asked(
            base_url=f"{scheme}://model.test/v1",
            proxy=f"http://me:p%40ss%20word@{proxy.host}",
            ca_file=str(authority / "ca.pem"),
        )
        wrong = await asked(
            base_url=f"{scheme}://model.test/v1", proxy=f"http://me:not-this-word@{proxy.host}"
        )

    assert isinstance(known, ModelCompleted), known
    assert "authorization" not in server.requests[0].headers
    assert isinstance(wrong, ModelFailed)
    assert wrong.error.code is ErrorCode.PROVIDER_AUTH_FAILED
    assert wrong.error.details["proxy_status"] == 407
    assert "not-this-word" not in wrong.error.model_dump_json()


async def test_a_proxy_that_is_not_there_is_named_without_its_password() -> None:
    last = await asked(base_url="https://model.test/v1", proxy="http://me:hidden@127.0.0.1:1")

    assert isinstance(last, ModelFailed)
    assert "its proxy cannot (model m); check HTTPS_PROXY" in last.error.message
    assert "hidden" not in last.error.model_dump_json()
    assert last.error.retryable


@pytest.mark.parametrize(("status", "is_retryable"), [(403, False), (503, True)])
async def test_a_proxy_that_refuses_the_way_is_named(status: int, is_retryable: bool) -> None:
    async with WebProxy(1, refuses=status) as proxy:
        url = proxy.url
        last = await asked(base_url="https://model.test/v1", proxy=url)

    assert isinstance(last, ModelFailed)
    assert f"the proxy {url} did not connect" in last.error.message
    assert last.error.retryable is is_retryable


async def test_a_proxy_that_is_none_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://me:hidden@proxy:1080")

    with pytest.raises(ConfigError, match="ALL_PROXY of the environment") as caught:
        await asked(base_url="https://model.test/v1")

    assert "hidden" not in caught.value.message


# Certificates


async def test_an_authority_of_ones_own_is_trusted_where_it_is_named(
    authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer(["hi"] * 2, tls=served(authority)) as server:
        stranger = await asked(base_url=f"{server.url}/v1")
        named = await asked(base_url=f"{server.url}/v1", ca_file=str(authority / "ca.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
        by_environment = await asked(base_url=f"{server.url}/v1")

    assert isinstance(stranger, ModelFailed)
    assert "[model] ca_file" in stranger.error.message
    assert isinstance(named, ModelCompleted)
    assert isinstance(by_environment, ModelCompleted)


async def test_a_server_without_tls_is_not_mistaken_for_one_with_a_strange_certificate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        address = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        last = await asked(base_url=f"{address}/v1")
        monkeypatch.setattr(OpenAIProvider, "default_url", f"{address}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-nobody")
        unset = await asked()

    assert isinstance(unset, ModelFailed)  # the address is right: something else answers there
    assert "cannot be reached over TLS (model m); check the network" in unset.error.message
    assert isinstance(last, ModelFailed)
    assert "cannot be reached over TLS" in last.error.message
    assert f"\n{address}/v1" in last.error.message
    assert "begin [model] base_url with http://" in last.error.message
    assert "ca_file" not in last.error.message
    assert "not permitted" not in last.error.message


async def test_a_folder_of_authorities_is_trusted(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "ca.pem").write_bytes((authority / "ca.pem").read_bytes())
    openssl("rehash", str(folder), folder=authority)
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))

    async with ModelServer(["hi"], tls=served(authority)) as server:
        assert isinstance(await asked(base_url=f"{server.url}/v1"), ModelCompleted)


async def test_certificates_that_cannot_be_read_are_named(
    authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("missing.pem", "names"):
        with pytest.raises(ConfigError, match="ca_file"):
            await asked(base_url="https://127.0.0.1:1/v1", ca_file=str(authority / path))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "missing.pem"))
    with pytest.raises(ConfigError, match="SSL_CERT_FILE"):
        await asked(base_url="https://127.0.0.1:1/v1")


async def test_a_certificate_of_another_host_is_refused(authority: Path) -> None:
    async with (
        ModelServer(["hi"], tls=served(authority)) as server,
        WebProxy(port(server)) as proxy,
    ):
        last = await asked(
            base_url="https://other.test/v1", proxy=proxy.url, ca_file=str(authority / "ca.pem")
        )

    assert isinstance(last, ModelFailed)
    assert "other.test" in last.error.message
    assert server.requests == []


CLOSED = "http://127.0.0.1:1"
RETRIES = {"max_attempts": 1}
UNREACHED: dict[str, tuple[Any, dict[str, str], str]] = {
    "a setting": (
        {"provider": "openai", "name": "m", "base_url": CLOSED, "retry": RETRIES},
        {},
        "check [model] base_url",
    ),
    "a model string": (f"openai:m@{CLOSED}", {}, "check the address in the model's name"),
    "the service's own": ("openai:m", {}, "check the network; [model] proxy can name a proxy"),
    "a variable": ("ollama:m", {"OLLAMA_HOST": CLOSED}, "start Ollama, or check $OLLAMA_HOST"),
    "no variable": ("ollama:m", {}, "start Ollama, or name another server in [model] base_url"),
}


@pytest.mark.parametrize("named_by", UNREACHED)
async def test_the_cure_names_what_the_address_is_from(
    named_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, environ, cure = UNREACHED[named_by]
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-nobody")
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    monkeypatch.setattr(OpenAIProvider, "default_url", CLOSED)
    monkeypatch.setattr("agent_core.config.servers._OLLAMA_PORT", 1)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    model = build_config({"model": given}).model
    last = await asked_of(model.model_copy(update={"retry": RetryConfig(max_attempts=1)}))
    assert isinstance(last, ModelFailed)
    assert f"; {cure}" in last.error.message
    assert ("base_url" in last.error.message) == ("base_url" in cure)
