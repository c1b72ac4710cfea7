"""What a call says when the address, a proxy or the connection answers in place of the service."""

import asyncio
import gzip
import ssl
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.errors import ConfigError, ErrorCode
from agent_core.providers.base import ProviderRegistry
from agent_core.types import (
    ErrorPayload,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    Role,
    TextBlock,
)
from raw_servers import Serve, answering, serving
from sweeps import paired
from tables import together
from web_proxy import WebProxy

PROTOCOLS = ["openai", "anthropic", "ollama", "gemini", "bedrock"]
TEXT = b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'
EVENTS = "text/event-stream"
LONGEST = 160
"""Characters of the first line of an error at a terminal."""
KEY = "sk-0123456789abcdefghijklmnop"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")


async def failed(protocol: str = "openai", **fields: Any) -> ErrorPayload:
    """Return the failure of a call, whose message has its parts on two lines."""
    error = await refused(protocol, **fields)
    first, _, second = error.message.partition("\n")
    assert "(model m); " in first
    assert len(f"error: {first} ({error.code})") <= LONGEST or "redirects" in first
    assert "://" in second
    return error


async def refused(
    protocol: str = "openai", *, prompt: str = "hello", **fields: Any
) -> ErrorPayload:
    """Return the failure of a call."""
    fields.setdefault("retry", RetryConfig(max_attempts=1))
    fields.setdefault("timeout_ms", 5000)
    adapter = ProviderRegistry().create(ModelConfig(provider=protocol, name="m", **fields))
    asked = ModelMessage(role=Role.USER, content=[TextBlock(text=prompt)])
    try:
        events = [each async for each in adapter.stream(ModelRequest(model="m", messages=[asked]))]
    finally:
        await adapter.close()
    last = events[-1]
    assert isinstance(last, ModelFailed), last
    assert last.error.details["provider"] == protocol
    return last.error


async def answered(data: bytes, protocol: str = "openai", **fields: Any) -> ErrorPayload:
    """Return the failure of a call that is answered with these bytes."""
    async with serving(answering(data)) as url:
        error = await failed(protocol, base_url=f"{url}/base", **fields)
        assert f"{url}/base/" in error.message
        return error


def response(
    body: bytes, kind: str = "text/event-stream", status: str = "200 OK", **headers: str
) -> bytes:
    """Return a response with a body of a known size."""
    lines = {"Content-Type": kind, "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


# Answers that are no stream

STRANGE: Mapping[str, tuple[bytes, str]] = {
    "text": (b"hello from a router", "hello from a router"),
    "a page": (b"<!doctype html><html><title>Sign in</title></html>", "titled 'Sign in'"),
    "half a page": (b"<html>\n<head>\n", "a web page"),
    "bytes": (bytes(range(256)), "0123456789"),
    "a line of text": (b"It works!\n", "It works!"),
}


@together(
    ("protocol", "kind"),
    paired(PROTOCOLS, ["text/event-stream", "text/plain", "text/html", "application/octet-stream"]),
)
@together(("body", "shown"), STRANGE.values(), ids=STRANGE)
async def test_an_answer_that_is_no_stream_is_shown_and_not_repeated(
    protocol: str, kind: str, body: bytes, shown: str
) -> None:
    error = await answered(response(body, kind), protocol)

    assert error.code is ErrorCode.PROVIDER_ERROR
    assert not error.retryable
    assert "status" not in error.details
    assert "check [model] base_url" in error.message
    assert shown in error.message


async def test_a_strange_answer_is_short_and_holds_no_secret() -> None:
    body = f"token={KEY} and password=hunter2hunter2 ".encode() + b"x" * 5000
    error = await answered(response(body))

    assert KEY not in error.message
    assert "hunter2hunter2" not in error.message
    assert len(error.message) < 500


@together("protocol", PROTOCOLS)
@together("kind", ["text/event-stream", "text/html", "application/json", "text/plain"])
async def test_an_empty_answer_may_be_repeated(protocol: str, kind: str) -> None:
    error = await answered(response(b"", kind), protocol)

    assert error.retryable
    assert error.code is ErrorCode.PROVIDER_ERROR
    assert "empty body" in error.message


@together("kind", ["application/json", "text/event-stream", "text/html", "text/plain"])
@together(
    ("body", "status"),
    [
        (b'{"error": {"message": "no such model", "code": 404}}', 404),
        (b'{"error": {"message": "busy", "type": "overloaded_error"}}', 529),
        (b'{"error": "boom"}', 500),
    ],
)
async def test_an_error_in_a_successful_answer_is_one_of_the_service(
    kind: str, body: bytes, status: int
) -> None:
    error = await answered(response(body, kind), "openai")

    assert error.details["status"] == status
    assert error.retryable == (status >= 500)
    assert "answered with status" not in error.message


@together("protocol", ["openai", "anthropic", "gemini"])
@together("kind", ["application/json", "text/event-stream"])
async def test_json_that_is_no_stream_is_shown(protocol: str, kind: str) -> None:
    error = await answered(response(b'{"hello": "world"}', kind), protocol)

    assert not error.retryable
    assert "world" in error.message


async def test_an_error_longer_than_a_line_is_read_to_its_end() -> None:
    body = b'{"error": {"code": 503, "message": "%b"}}' % (b"busy " * 2000)
    error = await answered(response(body))

    assert error.details["status"] == 503
    assert error.retryable


@together("status", ["204 No Content", "201 Created", "304 Not Modified", "308 Moved"])
async def test_another_status_without_a_stream_is_named(status: str) -> None:
    error = await answered(response(b"", status=status))

    assert not error.retryable
    assert status.split()[0] in error.message


# Pages in place of the API

PAGE = b"<html><head><title>Blocked</title></head></html>"


@together(
    ("status", "code"),
    [
        ("400 Bad Request", ErrorCode.PROVIDER_ERROR),
        ("403 Forbidden", ErrorCode.PROVIDER_AUTH_FAILED),
        ("511 Network Authentication Required", ErrorCode.PROVIDER_ERROR),
        ("401 Unauthorized", ErrorCode.PROVIDER_AUTH_FAILED),
        ("407 Proxy Authentication Required", ErrorCode.PROVIDER_AUTH_FAILED),
    ],
)
async def test_a_page_that_forbids_is_not_about_the_key(status: str, code: ErrorCode) -> None:
    error = await answered(response(PAGE, "text/html", status))

    assert error.code is code
    assert not error.retryable
    assert "Blocked" in error.message
    assert ("api_key_env" in error.message) == status.startswith("401")


async def test_a_511_says_to_sign_in_whatever_its_form() -> None:
    body = b'{"error": {"message": "not yet"}}'
    status = "511 Network Authentication Required"
    error = await answered(response(body, "application/json", status))

    assert "sign in to the network" in error.message.splitlines()[0]


CUT: dict[str, Callable[[str], bytes]] = {
    "a chunk": lambda words: response(f'data: {{"a": "{words}\n\n'.encode() + TEXT, EVENTS),
    "a chunk that is a list": lambda words: response(f'data: [["{words}"]]\n\n'.encode(), EVENTS),
    "words": lambda words: response(words.encode(), "text/html"),
    "another JSON": lambda words: response(f'{{"a": "{words}"}}'.encode(), "application/json"),
    "a refusal": lambda words: response(
        f'{{"error": {{"message": "{words}"}}}}'.encode(), "application/json", "400 Bad Request"
    ),
    "a kind": lambda words: response(
        f'{{"error": {{"message": "no", "type": "{words}"}}}}'.encode(),
        "application/json",
        "400 Bad Request",
    ),
    "no HTTP": lambda words: f"{words}\r\n\r\n".encode(),
}


@together(
    ("where", "secret"),
    [(where, secret) for where in CUT for secret in (KEY, "my+own+key+of+no+known+shape")],
)
async def test_no_part_of_a_secret_stays_where_an_answer_is_cut(
    where: str, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", secret)
    name = "" if secret == KEY else "A_KEY"
    for at in (60, 80, 200, 500):  # where something is cut, with the words before it
        for back in (10, 20):
            words = f"{'word ' * (at // 5)}"[: at - back] + f" {secret} {'more ' * 200}"
            async with serving(answering(CUT[where](words))) as url:
                error = await refused(base_url=url, **({"api_key_env": name} if name else {}))
            assert "word" in error.message
            assert secret[:6] not in error.message, (at, back, error.message)


async def test_a_refusal_in_json_stays_about_the_key() -> None:
    body = b'{"error": {"message": "not for you"}}'
    error = await answered(response(body, "application/json", "403 Forbidden"))

    assert error.code is ErrorCode.PROVIDER_AUTH_FAILED


# Redirects


@together("status", [301, 302, 303, 307, 308])
@together(
    ("location", "target", "base"),
    [
        (
            "https://me:hidden@new.test/v2/chat/completions?key=hidden",
            "https://new.test/v2/chat/completions",
            "https://new.test/v2",
        ),
        ("//new.test:8443/chat/completions", "http://new.test:8443/chat/completions", ""),
        ("https://portal.test/login?next=hidden#hidden", "https://portal.test/login", "final one"),
        ("javascript:hidden", "no address", "final one"),
    ],
)
async def test_a_redirect_names_where_it_leads(
    status: int, location: str, target: str, base: str
) -> None:
    error = await answered(response(b"", status=f"{status} Away", Location=location))

    first, _, second = error.message.partition("\n")
    assert target in second
    assert base in first
    assert "[model] base_url" in first
    assert "hidden" not in error.message
    assert not error.retryable


async def test_a_redirect_within_the_host_names_the_address_to_set() -> None:
    data = response(b"", status="307 Away", Location="/other/chat/completions")
    async with serving(answering(data)) as url:
        error = await failed(base_url=f"{url}/v1")

    assert f"set [model] base_url to {url}/other" in error.message.splitlines()[0]


# The size of a request


async def test_a_413_for_a_small_prompt_is_about_bytes() -> None:
    page = b"<html><title>413 Request Entity Too Large</title></html>"
    small = response(page, "text/html", "413 Too Large")
    error = await answered(small)

    assert error.code is ErrorCode.PROMPT_TOO_LONG
    assert 0 < error.details["request_bytes"] < 1000
    assert "window" not in error.message
    large = await answered(small, prompt="word " * 20_000, context_window=32_768)
    assert large.code is ErrorCode.PROMPT_TOO_LONG
    assert "window" in large.message
    named = b'{"error": {"message": "maximum context length is 512 tokens"}}'
    said = await answered(response(named, "application/json", "413 Too Large"))
    assert said.code is ErrorCode.PROMPT_TOO_LONG
    assert said.details["context_window"] == 512


# Damage

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
DAMAGED = {
    "gzip": (response(b"hello", Content_Encoding="gzip"), "compressed", False),
    "the end of gzip": (
        response(gzip.compress(TEXT * 9)[:40], Content_Encoding="gzip"),
        "compressed",
        True,
    ),
    "a chunk": (CHUNKED + b"zz\r\n", "chunk", False),
    "a later chunk": (CHUNKED + b"%x\r\n%b\r\nzz\r\n" % (len(TEXT), TEXT), "chunk", False),
    "long headers": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, "headers", False),
    "two sizes": (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "", False),
    "the end of a chunk": (b"HTTP/1.1 200 OK\r\n\r\n" + TEXT + b'data: {"cho', "chunk", True),
    "no stop": (b"HTTP/1.1 200 OK\r\n\r\n" + TEXT, "stop reason", True),
    "no end": (response(TEXT)[:-9], "closed", True),
    "no answer": (b"", "closed", True),
}


@together(("data", "what", "may_pass"), DAMAGED.values(), ids=DAMAGED)
async def test_what_is_damaged_is_named_with_the_address(
    data: bytes, what: str, may_pass: bool
) -> None:
    error = await answered(data)

    assert what in error.message
    assert "not HTTP" not in error.message
    assert error.retryable is may_pass


@together(
    ("data", "shown"),
    [
        (b"SSH-2.0-x\r\n", "SSH-2.0-x"),
        (b"\x15\x03\x01\x00\x02\x02\x28", "x15"),
        (b"HTTP/2.0 200 OK\r\n\r\n", "HTTP/2.0"),
        (b"\0" * 99, "x00"),
    ],
)
async def test_what_is_not_http_is_shown(data: bytes, shown: str) -> None:
    error = await answered(data)

    assert "not HTTP" in error.message
    assert shown in error.message
    assert ("https://" in error.message) == data.startswith(b"\x15\x03")


async def test_a_damaged_frame_of_bedrock_names_the_address() -> None:
    from model_server_wire import frame  # noqa: PLC0415 - for one test

    whole = frame("messageStart", {"role": "assistant"})
    for data, may_pass in ((whole + whole[:-1] + b"\0", False), (whole + whole[:-3], True)):
        error = await answered(response(data, "application/vnd.amazon.eventstream"), "bedrock")
        assert error.retryable is may_pass


# Proxies


@together(
    ("status", "code", "may_pass"),
    [
        (302, ErrorCode.PROVIDER_ERROR, False),
        (401, ErrorCode.PROVIDER_ERROR, False),
        (403, ErrorCode.PROVIDER_ERROR, False),
        (404, ErrorCode.PROVIDER_ERROR, False),
        (407, ErrorCode.PROVIDER_AUTH_FAILED, False),
        (502, ErrorCode.PROVIDER_ERROR, True),
        (503, ErrorCode.PROVIDER_ERROR, True),
        (504, ErrorCode.PROVIDER_TIMEOUT, True),
    ],
)
async def test_a_refusal_of_a_tunnel_is_one_of_the_proxy(
    status: int, code: ErrorCode, may_pass: bool
) -> None:
    async with WebProxy(1, refuses=status) as proxy:
        error = await failed(
            base_url="https://model.test/v1", proxy=f"http://me:hidden@{proxy.host}"
        )
        shown = proxy.url

    assert error.code is code
    assert error.retryable is may_pass
    assert error.details["proxy"] == shown
    assert error.details["proxy_status"] == status
    assert error.details["sent"] is False
    assert f"the proxy {shown}" in error.message
    assert "api_key_env" not in error.message
    assert "hidden" not in error.model_dump_json()


@together("scheme", ["http", "https"])
async def test_a_proxy_that_asks_for_another_sign_in_is_told_so(scheme: str) -> None:
    data = response(b"", status="407 Who", Proxy_Authenticate="Negotiate")
    async with serving(answering(data)) as proxy:
        error = await failed(base_url=f"{scheme}://model.test/v1", proxy=proxy)

    assert error.code is ErrorCode.PROVIDER_AUTH_FAILED
    assert error.details["proxy_status"] == 407
    assert "Negotiate" in error.message


async def test_a_proxy_that_leads_to_a_sign_in_page_names_it() -> None:
    data = response(b"", status="302 Found", Location="http://portal.test/login?next=hidden")
    async with serving(answering(data)) as proxy:
        error = await failed(base_url="https://model.test/v1", proxy=proxy)

    assert "http://portal.test/login" in error.message
    assert "hidden" not in error.message


async def closes_the_tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
    await writer.drain()
    await reader.read(10)  # the beginning of TLS


@together("serve", [closes_the_tunnel, answering(b"HTTP/1.1 200 Connected\r\n\r\n")])
async def test_a_tunnel_that_ends_before_tls_is_one_of_the_proxy(serve: Serve) -> None:
    async with serving(serve) as proxy:
        error = await failed(base_url="https://model.test/v1", proxy=proxy)

    assert error.retryable
    assert error.details["sent"] is False
    assert f"through the proxy {proxy}: " in error.message
    assert "proxy" in error.message.splitlines()[0]


async def test_a_service_behind_a_proxy_is_named_with_it() -> None:
    async with serving(answering(response(b"what?"))) as proxy:
        error = await failed(base_url="http://model.test/v1", proxy=proxy)

    assert f"http://model.test/v1/chat/completions through the proxy {proxy}: " in error.message


# TLS


def openssl(*arguments: str, folder: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, stderr=subprocess.DEVNULL, check=True)  # noqa: S603, S607


MINE = ("subjectAltName=IP:127.0.0.1", "-days", "30")
CERTIFICATES = {
    "mine": MINE,
    "other": ("subjectAltName=DNS:other.test", "-days", "30"),
    "old": (MINE[0], "-startdate", "200101000000Z", "-enddate", "210101000000Z"),
    "new": (MINE[0], "-startdate", "900101000000Z", "-enddate", "910101000000Z"),
}
AUTHORITY = """
[ca]
default_ca = own
[own]
database = index.txt
new_certs_dir = .
serial = serial
policy = any
default_md = sha256
unique_subject = no
[any]
commonName = supplied
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an authority, its certificates by name, and a self-signed one."""
    folder = tmp_path_factory.mktemp("authority")
    for name, text in (("ca.cnf", AUTHORITY), ("index.txt", ""), ("serial", "01")):
        (folder / name).write_text(text)
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    new += ("-subj", "/CN=made for a test")
    openssl(*new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", folder=folder)
    own = ("-addext", MINE[0], "-keyout", "self.key", "-out", "self.pem")
    openssl(*new, "-x509", *own, folder=folder)
    sign = ("ca", "-batch", "-notext", "-config", "ca.cnf", "-cert", "ca.pem", "-keyfile", "ca.key")
    for name, (names, *dates) in CERTIFICATES.items():
        (folder / "names").write_text(names)
        openssl(*new, "-keyout", f"{name}.key", "-out", f"{name}.csr", folder=folder)
        made = ("-extfile", "names", "-in", f"{name}.csr", "-out", f"{name}.pem")
        openssl(*sign, *made, *dates, folder=folder)
    return folder


def served(authority: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / f"{name}.pem", authority / f"{name}.key")
    return context


@pytest.mark.long
@together(
    ("name", "ca_file", "cure"),
    [
        ("mine", None, "ca_file"),
        ("self", None, "ca_file"),
        ("self", "ca", "ca_file"),
        ("other", "ca", "base_url"),
        ("old", "ca", "clock"),
        ("new", "ca", "clock"),
    ],
)
async def test_each_fault_of_a_certificate_has_its_own_cure(
    authority: Path, name: str, ca_file: str | None, cure: str
) -> None:
    trusted = None if ca_file is None else str(authority / f"{ca_file}.pem")
    async with serving(answering(response(TEXT)), tls=served(authority, name)) as url:
        error = await failed(base_url=f"{url}/v1", ca_file=trusted)

    first = error.message.splitlines()[0]
    cures = {each for each in ("ca_file", "base_url", "clock") if each in first}
    assert cures == {cure}
    assert not error.retryable
    assert error.details["sent"] is False
    assert f"{url}/v1/chat/completions: " in error.message


async def test_a_certificate_of_the_proxy_is_told_from_that_of_the_service(authority: Path) -> None:
    async with serving(answering(response(TEXT)), tls=served(authority, "other")) as url:
        error = await failed(
            base_url="https://model.test/v1", proxy=url, ca_file=str(authority / "ca.pem")
        )

    assert "its proxy has a certificate for another host" in error.message
    assert f"the proxy {url}: " in error.message
    assert "base_url" not in error.message


async def hangs_up(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read(1)


async def sends_an_alert(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(10_000)
    writer.write(b"\x15\x03\x03\x00\x02\x02\x28")  # handshake failure
    await writer.drain()


async def speaks_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(10_000)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()


@together(
    ("serve", "cause", "cure", "may_pass"),
    [
        (hangs_up, "closed", "port", True),
        (sends_an_alert, "handshake failure", "TLS", False),
        (speaks_http, "wrong version number", "begin [model] base_url with http://", False),
    ],
)
async def test_a_handshake_that_fails_has_a_cause(
    serve: Serve, cause: str, cure: str, may_pass: bool
) -> None:
    async with serving(serve) as url:
        error = await failed(base_url=f"{url.replace('http', 'https')}/v1")

    first, _, second = error.message.partition("\n")
    assert cure in first
    assert cause in second or "reset" in second
    assert error.retryable is may_pass


# Addresses

ADDRESSES: Mapping[str, str] = {
    "host/v1": "http://",
    "localhost:8000/v1": "http://",
    "ftp://host/v1": "http://",
    "http:///v1": "no host",
    "http://me:hidden@host/v1": "api_key_env",
    "http://host/v1?key=hidden": "query",
    "http://host/v1#hidden": "fragment",
    "http://host:99999/v1": "port",
    "http://host:hidden/v1": "port",
    "http://host:0/v1": "port",
    "http://ho st/v1": "space",
    "http://host\n/v1": "line end",
    "http://.host/v1": "host",
    "http://ho\\st/v1": "host",
}


@together(("url", "fault"), ADDRESSES.items())
@together("protocol", PROTOCOLS)
def test_the_fault_of_an_address_is_named_and_not_repeated(
    protocol: str, url: str, fault: str
) -> None:
    with pytest.raises(ConfigError, match=r"^\[model\] base_url must be") as caught:
        ProviderRegistry().create(ModelConfig(provider=protocol, name="m", base_url=url))

    assert fault in caught.value.message.partition(": it ")[2]
    assert "hidden" not in caught.value.message


@asynccontextmanager
async def silent() -> AsyncGenerator[str]:
    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(serve) as url:
        yield url


async def test_a_proxy_that_is_silent_is_named() -> None:
    async with silent() as proxy:
        error = await failed(base_url="https://model.test/v1", proxy=proxy, timeout_ms=200)

    assert error.code is ErrorCode.PROVIDER_TIMEOUT
    assert f"through the proxy {proxy}: " in error.message
    assert "[model] timeout_ms" in error.message
    assert "0.2 s" in error.message


def test_an_at_sign_may_be_in_a_path() -> None:
    model = ModelConfig(provider="openai", name="m", base_url="http://host/@cf/v1")
    assert ProviderRegistry().create(model)
