from contextlib import suppress
from time import process_time

import pytest

from agent_core.compact.compactor import summary_of
from agent_core.errors import SchemaError
from tables import together

SAID = "what was done, in as many words as needed"


@together(
    "text",
    [
        f'{{"summary": "## Goal\\n{SAID}"}}',
        f'```json\n{{"summary": "## Goal\\n{SAID}", "more": [1]}}\n```',
        f"## Goal\n{SAID}",
        f"  ## Goal\n{SAID}\n",
        f'{{"summary": "## Goal\n{SAID}"}}',
        f'{{"summary": "## Goal\\n{SAID}',
        f'{{"summary": "## Goal\\n{SAID}"',
        f'Here is the summary: {{"summary": "## Goal\\n{SAID}"}}',
        f'Here it is.\n\n```json\n{{"n": [1], "summary": "## Goal\\n{SAID}"}}\n```\nThat is all.',
        f'I have {{read}} it:\n```\n{{"answer": {{"summary": "## Goal\\n{SAID}"}}}}\n```',
        f'A sentence, as long as it likes to be. {SAID} {SAID}\n{{"summary": "## Goal\n{SAID}"}}',
        f'Here is the summary: {{"summary": "## Goal\\n{SAID}',
    ],
)
def test_a_summary_is_found_in_what_models_really_answer(text: str) -> None:
    assert summary_of(text) == f"## Goal\n{SAID}"


@together(
    ("written", "meant"),
    [
        (r"C:\\new\\table", r"C:\new\table"),
        (r"C:\\new\n- C:\\\"x\"", 'C:\\new\n- C:\\"x"'),
        (r"a\tb\/c\u00e9 \ud83d\ude00", "a\tb/cé 😀"),
        (r"\d+ stays", r"\d+ stays"),
        (r"half \ud83d of it", "half \ufffd of it"),
    ],
)
@together("end", ["", '"', '"}', '" }\n', "\\", "\\u00"])
def test_escapes_are_read_in_json_that_is_broken(written: str, meant: str, end: str) -> None:
    assert summary_of(f'{{"summary": "{SAID}: {written}{end}') == f"{SAID}: {meant}"


@together("end", ['"', '",', '"}'])
def test_a_backslash_may_be_the_last_sign_of_a_broken_summary(end: str) -> None:
    assert summary_of(f'{{"summary": "{SAID}: C:\\\\{end}') == f"{SAID}: C:\\"


@together(
    "text",
    [
        "用户希望修复登录错误必须保留注释不要改接口已经修改了三个文件下一步是运行测试并更新文档然后提交代码",
        "| step | state |\n|---|---|\n| read the log | done |\n| mend it | next |\n",
        "Ziel: Das Protokoll lesen. Erledigt: src/a.py und src/b.py geändert.",
    ],
)
def test_a_summary_may_be_in_any_language_and_form(text: str) -> None:
    assert summary_of(text) == text.strip()


@together("filler", [" ", "{", "`", "```\n", '"', "[", "{ ", "\\", "\\u00"])
def test_no_answer_takes_long_to_read(filler: str) -> None:
    started = process_time()
    for text in (filler * 1_000_000, f"```\n{filler * 1_000_000}", f'{{"summary": "{filler * 999}'):
        with suppress(SchemaError):
            summary_of(text)
    assert process_time() - started < 3


def test_json_in_a_summary_is_no_summary_of_its_own() -> None:
    text = f'## Goal\n{SAID}: the file has {{"summary": "{SAID}"}}, {SAID}, and {SAID} {SAID}'
    assert summary_of(text) == text


def test_a_summary_in_a_script_without_spaces_may_be_short() -> None:
    for text in (
        "用户要修复登录错误\uff0c已改三个文件\uff0c还要运行测试",
        "ログインを直す途中で、次はテスト",
        "แก้ไขการเข้าสู่ระบบแล้ว ทดสอบต่อ",
        "로그인 오류를 고치고 있으며 다음은 테스트입니다",
    ):
        assert 14 <= len(text) < 40
        assert summary_of(f'{{"summary": "{text}"}}') == text
    for text in ("用户要修复登录", "로그인 오류를 고치고 있음", "fix it, then test it all"):
        with pytest.raises(SchemaError):
            summary_of(text)


@together(
    "text",
    [
        *(
            "",
            "  ",
            '{"summary": ""}',
            '{"summary": 3}',
            "{}",
            '{"a": "b"}',
            "x" * 500,
            "word" * 50,
        ),
        *("Done. Nothing else to say.", "1234 5678 9012 " * 20, "- - - = " * 50, "aa bb " * 50),
        "<html><body>502 Bad Gateway, the server is not there</body></html>",
        'I could not do it, sorry: {"error": "the conversation is too long to be summarised here"}',
        '["a list of some words", "that is no summary of anything"]',
    ],
)
def test_an_answer_without_a_summary_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        summary_of(text)
