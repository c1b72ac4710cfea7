# ruff: noqa: RUF001 - texts in many scripts
import pytest

from agent_core.errors import ErrorCode, ToolError
from agent_core.tools.text import SAMPLE_BYTES, DecodedText, encoding_of, guess_encoding
from tables import together

TEXTS = {
    "French": "Le café crème coûte très cher à l'été ; où êtes-vous, François ? Ça va.",
    "French in capitals": "ÉCOLE FRANÇAISE À PARIS",
    "a French word": "café",
    "a French name in code": "# Auteur : Noël Lefèvre\nprint('déjà vu')",
    "German": "Die Größe der Straße überrascht; schöne Grüße aus München.",
    "a German word": "Übergröße",
    "Spanish": "El niño comió ñoquis en España. ¿Qué más? ¡Olé! Mañana será otro día.",
    "a Spanish question": "¿Qué?",
    "Portuguese": "Ação, coração, não, ótimo, português, avô, lições.",
    "Italian": "Perché è così? Già, più caffè.",
    "Danish": "Blåbærgrød på øen",
    "signs": "20°C ± 5, § 3, © 2020",
    "measures": "Temp: 21°C ±2, ½ cup, 10 µm, 5µs",
}
EASTERN = {
    "Polish": ("Zażółć gęślą jaźń. Część książek leży w Łodzi.", "cp1250 iso8859-2"),
    "a Polish word": ("łódź", "cp1250 iso8859-2"),
    "Czech": ("Příliš žluťoučký kůň úpěl ďábelské ódy.", "cp1250 iso8859-2"),
    "Hungarian": ("Árvíztűrő tükörfúrógép, őszi szőlő.", "cp1250 iso8859-2"),
    "Russian": ("Съешь же ещё этих мягких французских булок.", "cp1251 koi8-r"),
    "a few Russian words": ("Съешь ещё этих булок", "cp1251"),
    "a Russian word": ("Привет", "cp1251 koi8-r"),
    "small Russian words": ("привет мир", "cp1251 koi8-r"),
    "Russian in capitals": ("ПРИВЕТ МИР, ЭТО ТЕКСТ", "cp1251 koi8-r"),
    "Ukrainian": ("Всі люди народжуються вільними і рівними у своїй гідності.", "cp1251 koi8-u"),
    "simplified Chinese": ("人人生而自由，在尊严和权利上一律平等。", "gb18030"),
    "a Chinese greeting": ("你好，世界", "gb18030 big5"),
    "Chinese in code": ("# 作者：张三\nprint('测试')", "gb18030"),
    "traditional Chinese": ("人人生而自由，在尊嚴和權利上一律平等。", "big5"),
    "Japanese": ("すべての人間は、生まれながらにして自由であり、平等である。", "shift_jis euc_jp"),
    "a Japanese greeting": ("こんにちは世界", "shift_jis euc_jp"),
    "Korean": ("모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.", "euc_kr"),
    "Greek": ("Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι.", "cp1253"),
    "quotes": ("It\u2019s a \u201csmart\u201d quote \u2013 and so on\u2026 50 \u20ac", "cp1252"),
}
CASES = [
    *((name, text, each) for name, text in TEXTS.items() for each in ("latin-1", "cp1252")),
    *((name, text, each) for name, (text, names) in EASTERN.items() for each in names.split()),
]


@pytest.mark.long
@together("times", [1, 40])
@together(("text", "encoding"), [c[1:] for c in CASES], ids=[f"{c[0]} in {c[2]}" for c in CASES])
def test_short_and_long_texts_are_read_as_they_were_written(
    text: str, encoding: str, times: int
) -> None:
    whole = f"{text}\n" * times
    read = DecodedText.decode(whole.encode(encoding), shown="a.txt")
    assert read.text == whole
    assert read.encode(read.text) == whole.encode(encoding)


def test_the_few_telling_lines_of_a_long_file_decide() -> None:
    content = b"x = 1\n" * 5000 + "# Auteur : François\n".encode("latin-1") + b"y = 2\n" * 500
    assert DecodedText.decode(content, shown="a.py").encoding.name == "cp1252"


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "encoding"), [("作者张三，", "gb18030"), ("すべての人間、", "euc_jp")]
)
def test_a_sample_may_end_within_a_character(text: str, encoding: str) -> None:
    raw = (text * 20_000).encode(encoding)
    for end in (SAMPLE_BYTES, SAMPLE_BYTES - 1):
        found = encoding_of(raw[:end], complete=False)
        assert found is not None
        assert found.name == encoding


def test_utf8_with_a_broken_place_stays_utf8_and_is_not_edited() -> None:
    content = "déjà vu, çà et là, où\n".encode() * 3 + b"\xe9\n"
    found = encoding_of(content, complete=True)
    assert found is not None
    assert found.name == "utf-8"
    with pytest.raises(ToolError, match="not clean utf-8") as refused:
        DecodedText.decode(content, shown="a.txt")
    assert refused.value.code is ErrorCode.PATCH_APPLY_FAILED


@pytest.mark.parametrize("content", [b"\x80\x81\x82\xff\xfe" * 20, bytes(range(128, 256))])
def test_what_reads_as_no_language_is_not_guessed(content: bytes) -> None:
    assert guess_encoding(content) is None
