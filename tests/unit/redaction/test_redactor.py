"""Secrets are removed wherever they stand; ordinary text passes as it is."""

import json
import time
from typing import Any
from urllib.parse import quote

import pytest

from agent_core.redaction.redactor import DEEPEST, Redactor, walk
from agent_core.secret_shapes import ADDRESS_LEADS, KEY_LEAD, KEYWORDS, TOKEN_LEADS
from tables import together

KEY = "configured-value-1"
REDACTOR = Redactor({"OPENAI_API_KEY": KEY})
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\ndef==\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4"


def test_a_configured_value_is_replaced_everywhere_by_its_kind() -> None:
    assert REDACTOR.secrets_only(f"a{KEY}b {KEY}") == (
        "a[redacted:OPENAI_API_KEY]b [redacted:OPENAI_API_KEY]"
    )


def test_a_value_is_found_in_json_and_in_a_url() -> None:
    value = 'pa"ss\\wo rd\né'
    redactor = Redactor({"KEY": value})
    for text in (
        json.dumps({"x": value}),
        json.dumps({"x": value}, ensure_ascii=False),
        f"https://x/?k={quote(value, safe='')}",
        value,
    ):
        clean = redactor.secrets_only(text)
        assert "[redacted:KEY]" in clean
        assert "wo" not in clean


def test_the_longest_of_several_values_is_taken() -> None:
    redactor = Redactor({"SHORT": "abcd", "LONG": "abcdef"})
    assert redactor.secrets_only("abcdef abcd") == "[redacted:LONG] [redacted:SHORT]"


@together("value", ["", "   ", "abc", " ab "])
def test_values_too_short_to_be_secret_are_ignored(value: str) -> None:
    assert Redactor({"KEY": value}).text("abc   ab c") == "abc   ab c"


def test_a_password_is_a_secret_although_it_is_such_a_word() -> None:
    assert Redactor({"DB_PASSWORD": "changeme"}).text("it is changeme") == (
        "it is [redacted:DB_PASSWORD]"
    )


@together("value", ["test", "EMPTY", "none", "ollama", " Dummy "])
def test_a_word_in_place_of_a_key_is_no_secret(value: str) -> None:
    text = "pytest runs no test: none is EMPTY, and ollama takes any Dummy"
    assert Redactor({"OPENAI_API_KEY": value}).text(text) == text


def test_a_kind_cannot_break_the_marker() -> None:
    assert Redactor({"a] b\n": "secret-value"}).secrets_only("secret-value") == "[redacted:a_b_]"


@together(
    ("text", "secret"),
    [
        ("use sk-proj-abcDEF123_456-x now", "sk-proj-abcDEF123_456-x"),
        ("sk-abcdefghijklmnop", "sk-abcdefghijklmnop"),
        ("(sk-ant-api03-xyz123)", "sk-ant-api03-xyz123"),
        ("sk_live_4eC39HqLyjWDarjtT1", "4eC39HqLyjWDarjtT1"),
        ("ghp_0123456789abcdefABCDEF0123456789abcd", "ghp_0123456789"),
        ("github_pat_11ABCDEFG0abcdefghij_x", "github_pat_11ABC"),
        ("gho_0123456789abcdefABCD", "gho_0123456789"),
        ("glpat-abcdefghij0123456789", "glpat-abcdefghij"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
        ("xoxb-123456789012-abcdefghij", "xoxb-123456789012"),
        ("AIzaSyA-1234567890abcdefghijklmnopqrstu", "AIzaSyA"),
        ("hf_abcdefghijABCDEFGHIJ", "hf_abcdefghij"),
        (f"jwt {JWT}.", JWT),
        (f"key:\n{PEM}\nend", "MIIabc"),
        ("-----BEGIN PRIVATE KEY-----\\nMIIabc\\n-----END PRIVATE KEY-----", "MIIabc"),
        (
            (
                "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG (x)\n\nlQOY\n"
                "-----END PGP PRIVATE KEY BLOCK-----"
            ),
            "lQOY",
        ),
        ("-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQ\n" * 3 + "…", "MIIEv"),
        ("password=hunter2", "hunter2"),
        ("DB_PASSWORD=hunter2\n", "hunter2"),
        ("password: hunter2", "hunter2"),
        ("passwd = 'hunter two'", "hunter two"),
        ('{"password": "hunter2"}', "hunter2"),
        ('{"client_secret":"a\\"b-hunter2"}', "hunter2"),
        ('{\\"password\\": \\"hunter2\\"}', "hunter2"),
        ("?token=abc123&x=1", "abc123"),
        ("access_token: abc123", "abc123"),
        ('config["api_key"] = "abcdef"', "abcdef"),
        ("aws_secret_access_key = abc/def+123", "abc/def"),
        ("API-Key: abcdef", "abcdef"),
        ("x-api-key:abcdef", "abcdef"),
        ("Authorization: Bearer abc.def", "abc.def"),
        ("authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ('-H "Authorization: token abc123"', "abc123"),
        ('"Authorization": "Bearer abcdef"', "abcdef"),
        ("Bearer abcdefghijklmnop1", "abcdefghijklmnop1"),
        ("token=" + "x" * 5000, "xxx"),
        ('secret="' + "x y" * 5000 + '"', "x y"),
        ("密码 password=hunter2 密码", "hunter2"),
        ("PASSWORD=hunter2 İİİ", "hunter2"),
        ("postgres://app:hunter2@db/x", "hunter2"),
        ("DSN=postgresql+asyncpg://app:p%40ss@db:5432/x?sslmode=require", "p%40ss"),
        ("redis://:hunter2@cache:6379/0", "hunter2"),
        ("socks5://u:123456@proxy:1080", "123456"),
        ("https://bob:secret@example.com/a/@scope", "secret"),
        ("origin  https://oauth2:abc-def@git.example.com/o/r (fetch)", "abc-def"),
        ("https://0123456789abcdef0123@github.com/o/r", "0123456789abcdef0123"),
        ("https://0123456789abcdef:x-oauth-basic@github.com/o/r", "0123456789abcdef"),
        ("postgres://u:p@ss@host/db", "p@ss"),
        ("postgres://u:pa/ss@host/db", "pa/ss"),
        ("mongodb+srv://u:p!w$@h1:27017,h2:27017/db", "p!w$"),
        ("jdbc:mysql://root:toor@127.0.0.1/db", "toor"),
        ("<https://u:päss@h/> [x](ftp://v:päss@h)", "päss"),
        (r'{"url": "https:\/\/u:pw123@h\/x"}', "pw123"),
        ("ssh://u:" + "long" * 500 + "@h", "long"),
    ],
)
def test_what_looks_like_a_secret_is_replaced(text: str, secret: str) -> None:
    clean = REDACTOR.text(text)
    assert secret in text
    assert secret not in clean
    assert "[redacted:" in clean
    assert REDACTOR.secrets_only(text) is text
    assert REDACTOR.text(clean) == clean


@together(
    "text",
    [
        "ask-me-anything about task-force-one and disk-1234567890",
        "the sk-circle class",
        "max_tokens: 4096, input_tokens=12, tokenizer: bpe-large",
        "if token == expected: pass",
        "token = secrets.token_hex(8)",
        "token = tokens[0]",
        "def login(password: str, token: None) -> bool:",
        "password = args.password",
        "export TOKEN=$GITHUB_TOKEN",
        "api_key: ${OPENAI_KEY}",
        "password=<your password>",
        "std::token::next",
        "a bearer token; Bearer authentication",
        "`-----BEGIN PRIVATE KEY-----` begins a key. It is long.",
        "-----BEGIN CERTIFICATE-----\nMIIabc\n-----END CERTIFICATE-----",
        "eyJust a word.",
        "token:",
        "the password",
        'password: ""',
        "PWD=/home/somebody",
        "http://localhost:3000/@vite/client",
        "http://[::1]:3000/@x",
        "git@github.com:o/r.git and ssh://git@host:2222/~x@y",
        "docker://alpine:3.20@sha256:abc",
        "postgresql://user:password@host:port/database",
        "https://${NAME}:${PASS}@host, https://u:$PASS@host, ftp://u:***@host",
        "write to https://example.com or: joe@example.com",
        "https://joe@example.com",
    ],
)
def test_ordinary_text_is_returned_as_the_same_object(text: str) -> None:
    assert REDACTOR.text(text) is text or REDACTOR.text(text) == text


def test_what_surrounds_a_secret_is_kept() -> None:
    assert REDACTOR.text('curl -H "Authorization: Bearer abc" x') == (
        'curl -H "Authorization: Bearer [redacted:authorization]" x'
    )
    assert REDACTOR.text("a password=b1c2&d=e") == "a password=[redacted:password]&d=e"
    assert REDACTOR.text("ftp://joe:pw@host/x") == "ftp://joe:[redacted:password]@host/x"
    assert REDACTOR.text(f"a\n{PEM}\nb") == "a\n[redacted:private_key]\nb"


def test_a_payload_without_secrets_is_the_same_object() -> None:
    payload: dict[str, Any] = {"a": ["b", {"c": 1.5}], "n": None, "t": ("x",)}
    assert REDACTOR.payload(payload) is payload


def test_strings_keys_and_named_fields_of_a_payload_are_redacted() -> None:
    payload = {
        KEY: [f"x {KEY}", {"db_password": "swordfish", "password": 5, "tokens": "none"}],
        "headers": {"Authorization": "Bearer x", "X-Api-Key": "y", "token": ""},
    }
    assert REDACTOR.payload(payload) == {
        "[redacted:OPENAI_API_KEY]": [
            "x [redacted:OPENAI_API_KEY]",
            {"db_password": "[redacted:password]", "password": 5, "tokens": "none"},
        ],
        "headers": {
            "Authorization": "[redacted:authorization]",
            "X-Api-Key": "[redacted:api_key]",
            "token": "",
        },
    }
    assert payload["headers"] == {"Authorization": "Bearer x", "X-Api-Key": "y", "token": ""}


@together(
    "payload",
    [
        {"log": "oauth_tokensecret=hunter2hunter2"},
        {"oauth_tokensecret": "hunter2hunter2"},
        {"secretokens: hunter2hunter2": 1},
        {"tokens": "tokensecret: hunter2hunter2"},
    ],
)
def test_counts_of_tokens_hide_no_secret_from_the_first_look(payload: dict[str, Any]) -> None:
    """The look at a whole payload finds whatever the look at each of its strings finds."""
    assert REDACTOR.payload(payload) == walk(payload, REDACTOR.text, named=True)


def test_a_number_is_a_secret_only_as_a_whole() -> None:
    redactor = Redactor({"PIN": "904117", "SHORT": "1234"})
    payload = {"a": 904117, "b": [-904117, 9041170, 1234, 904117.5, True], "c": 2**64 + 1}
    expected = {
        "a": "[redacted:PIN]",
        "b": ["-[redacted:PIN]", 9041170, 1234, 904117.5, True],
        "c": 2**64 + 1,
    }
    assert redactor.payload(payload) == expected
    assert redactor.payload_secrets_only(payload) == expected


def test_the_weaker_payload_keeps_shapes_but_no_configured_value() -> None:
    assert REDACTOR.payload_secrets_only({"password": "swordfish", "k": KEY}) == {
        "password": "swordfish",
        "k": "[redacted:OPENAI_API_KEY]",
    }


def test_a_payload_nested_beyond_reason_ends_in_a_marker() -> None:
    deep: Any = KEY
    for _ in range(DEEPEST + 500):
        deep = [deep]
    for redacted in (REDACTOR.payload(deep), REDACTOR.payload_secrets_only(deep)):
        assert KEY not in str(redacted)
        assert "[redacted:nesting]" in str(redacted)


def test_bytes_that_are_no_secret_are_kept_bit_for_bit() -> None:
    every_byte = bytes(range(256)) * 3
    assert REDACTOR.raw(every_byte) == every_byte
    redactor = Redactor({"KEY": "geheim-ä-ö"})
    data = b"\xff\x00 " + "geheim-ä-ö".encode() + b" password=hunter2 \x80"
    assert redactor.raw(data) == b"\xff\x00 [redacted:KEY] password=[redacted:password] \x80"


def test_no_lead_contains_another() -> None:
    leads = [*TOKEN_LEADS, KEY_LEAD, *ADDRESS_LEADS, *KEYWORDS]
    assert not [(a, b) for a in leads for b in leads if a != b and a.lower() in b.lower()]


@together(
    "cut",
    [
        f"x{KEY[:12]}\n… [9 bytes left out] …\nrest",
        f"head\n… [9 bytes left out] …\n{KEY[-12:]} rest",
        f"there is no program 'xx{KEY[:12]}… (+90 characters)'",
        f"…{KEY[-12:]} was wrong",
        f"a line {KEY[:12]} [... omitted end of long line]",
        f"{KEY[:12]}… and {KEY[:9]}…",
    ],
)
def test_what_a_cut_has_left_of_a_value_is_replaced(cut: str) -> None:
    for clean in (
        REDACTOR.secrets_only(cut),
        REDACTOR.text(cut),
        json.dumps(REDACTOR.payload({"said": [cut]}), ensure_ascii=False),
    ):
        assert "[redacted:OPENAI_API_KEY]" in clean
        assert KEY[:9] not in clean
        assert KEY[-9:] not in clean


@together("text", [f"{KEY[:9]} and… more", "a… b", f"… {KEY[:5]}-file", "conf"])
def test_words_that_a_value_begins_with_pass_where_nothing_was_cut(text: str) -> None:
    assert REDACTOR.text(text) is text


def test_each_long_line_of_a_value_with_lines_is_one() -> None:
    key = "-----BEGIN X-----\n" + "QUJDREVG" * 4 + "\nSEVMTE8=\n-----END X-----"
    redactor = Redactor({"KEY": key})
    assert redactor.secrets_only("3:" + "QUJDREVG" * 4) == "3:[redacted:KEY]"
    assert redactor.secrets_only(key) == "[redacted:KEY]"
    assert redactor.secrets_only("-----BEGIN X-----") == "-----BEGIN X-----"


@pytest.mark.long
@together("piece", ["conf", "conf…", "…ue-1", "…", "configured-value-…"])
def test_cuts_cost_what_a_text_is_long(piece: str) -> None:
    started = time.process_time()
    REDACTOR.secrets_only(piece * 50_000)
    assert time.process_time() - started < 5
