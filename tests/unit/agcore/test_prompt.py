"""Templates and the composer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agcore.llm import ChatMessage, ChatRole, ToolCall
from agcore.prompt import (
    PromptComposer,
    PromptDepthError,
    PromptError,
    PromptTemplate,
    PromptTemplateRegistry,
    TemplateContext,
)
from agent_core.types import ContentBlock, ImageBlock, TextBlock, ToolCallBlock
from agent_parts import cpu_seconds
from tables import together


def rendered(source: str, **values: Any) -> str:
    return PromptTemplate("t", source).render(values)


@together(
    ("source", "expected"),
    [
        ("{{city}}: {{ weather }}", "北京: 晴"),
        ("{{ user.name }} {{user.tags.1}}", "Ada b"),
        ("{{#if user}}yes{{/if}}{{#if none}}no{{/if}}", "yes"),
        ("{{#if absent}}a{{else}}b{{/if}}", "b"),
        ("{{#each user.tags}}[{{@index}}{{this}}]{{/each}}", "[0a][1b]"),
        ("{{#each people}}{{name}} in {{city}}{{#if @last}}.{{else}}, {{/if}}{{/each}}",
         "Bo in 北京, Cy in 北京."),
        ("{{#each none}}x{{else}}nobody{{/each}}", "nobody"),
        ("{{#each user}}{{@key}};{{/each}}", "name;tags;"),
        ("{{{{raw}}}}{{ city }} {{#if}}{{{{/raw}}}}", "{{ city }} {{#if}}"),
        ("a{{! nobody sees {this} }}b{{!-- nor {{this}} --}}c", "abc"),
        ("{{flag}} {{number}} {{empty}}| {{people.0}}", 'true 1.5 | {"name":"Bo"}'),
        ('{"city": "{{city}}", "n": {"m": {{number}}}}', '{"city": "北京", "n": {"m": 1.5}}'),
    ],
)  # fmt: skip
def test_phase1_templates_fill_in_values_conditions_and_lists(source: str, expected: str) -> None:
    values: dict[str, Any] = {
        "city": "北京",
        "weather": "晴",
        "user": {"name": "Ada", "tags": ["a", "b"]},
        "people": [{"name": "Bo"}, {"name": "Cy"}],
        "none": [],
        "flag": True,
        "number": 1.5,
        "empty": None,
    }
    assert rendered(source, **values) == expected


def test_a_block_tag_alone_on_its_line_leaves_no_line_behind() -> None:
    source = "Rules:\n{{#each rules}}\n- {{this}}\n{{/each}}\n{{#if x}}\nx\n{{/if}}\nEnd\n"
    assert rendered(source, rules=["a", "b"], x=False) == "Rules:\n- a\n- b\nEnd\n"


@together(
    ("source", "variable"),
    [
        ("{{city}}", "city"),
        ("{{user.name}}", "user.name"),
        ("{{#each people}}x{{/each}}", "people"),
        ("{{#if yes}}{{inner}}{{/if}}", "inner"),
    ],
)
def test_phase1_a_missing_variable_is_named(source: str, variable: str) -> None:
    with pytest.raises(PromptError, match=variable) as caught:
        rendered(source, yes=1, user={})
    assert caught.value.details["variable"] == variable


@together(
    ("source", "line", "reason"),
    [
        ("a\n{{#if x}}b", 2, "never closed"),
        ("{{/if}}", 1, "closes nothing"),
        ("{{#if x}}{{/each}}", 1, "closes nothing"),
        ("{{else}}", 1, "belongs to no block"),
        ("{{#if x}}a{{else}}b{{else}}c{{/if}}", 1, "belongs to no block"),
        ("\n\n{{#with x}}{{/with}}", 3, "no block"),
        ("{{ a b }}", 1, "not the name of a variable"),
        ("{{ __import__('os') }}", 1, "not the name of a variable"),
        ("{{{a}}}", 1, "not the name of a variable"),
        ("one\ntwo {{ three", 2, "never closed"),
        ("{{> }}", 1, "not the name of a template"),
    ],
)
def test_phase1_a_source_that_is_no_template_names_the_line(
    source: str, line: int, reason: str
) -> None:
    with pytest.raises(PromptError, match=reason) as caught:
        PromptTemplate("t", source)
    assert caught.value.details["line"] == line


def test_phase1_templates_include_one_another() -> None:
    registry = PromptTemplateRegistry(
        [
            PromptTemplate("greeting", "Hello {{name}}."),
            PromptTemplate("all", "{{#each names}}{{> greeting}} {{/each}}"),
        ]
    )
    context = TemplateContext({"names": [{"name": "Ada"}, {"name": "Bo"}]})
    assert registry.render("all", context) == "Hello Ada. Hello Bo. "


def test_a_template_that_includes_itself_or_nothing_is_refused() -> None:
    registry = PromptTemplateRegistry(
        [PromptTemplate("a", "{{> b}}"), PromptTemplate("b", "{{> a}}")]
    )
    with pytest.raises(PromptError, match="includes itself"):
        registry.render("a")
    with pytest.raises(PromptError, match="no template 'c'"):
        PromptTemplate("d", "{{> c}}").render({}, registry)
    with pytest.raises(PromptError, match="there are: a, b"):
        registry.render("e")
    with pytest.raises(PromptError, match="already"):
        registry.register(PromptTemplate("a", ""))


def test_values_are_never_read_as_template_or_as_code() -> None:
    class Secretive:
        password = "hunter2"  # noqa: S105 - bait

        def __str__(self) -> str:
            return "an object"

    assert rendered("{{x}}", x="{{y}}", y="no") == "{{y}}"
    with pytest.raises(PromptError):
        rendered("{{x.password}}", x=Secretive())
    with pytest.raises(PromptError):
        rendered("{{x.__class__}}", x="text")


def test_a_template_lists_its_variables() -> None:
    template = PromptTemplate("t", "{{a}}{{#if b}}{{c.d}}{{/if}}{{#each e}}{{this}}{{/each}}{{a}}")
    assert template.variables() == ["a", "b", "c.d", "e", "this"]


def test_a_context_takes_pairs_keywords_and_additions() -> None:
    context = TemplateContext([("a", 1)], b=2).set("c", 3)
    assert PromptTemplate("t", "{{a}}{{b}}{{c}}").render(context) == "123"
    assert (context.get("a"), context.get("z")) == (1, None)


def test_phase1_a_prompt_is_composed_in_order() -> None:
    registry = PromptTemplateRegistry([PromptTemplate("ask", "How is {{city}}?")])
    messages = (
        PromptComposer(registry)
        .system("Be brief.")
        .developer_template(PromptTemplate("d", "Use {{lang}}."), {"lang": "English"})
        .user_template("ask", {"city": "Genf"})
        .with_name("ada")
        .assistant("Sunny.")
        .validate_messages()
        .compose()
    )
    assert [(m.role, m.text, m.name) for m in messages] == [
        ("system", "Be brief.", None),
        ("developer", "Use English.", None),
        ("user", "How is Genf?", "ada"),
        ("assistant", "Sunny.", None),
    ]


def test_phase1_a_message_may_have_several_parts() -> None:
    parts: list[ContentBlock] = [
        TextBlock(text="What is this?"),
        ImageBlock(mime_type="image/png", data="aGk="),
    ]
    (message,) = PromptComposer().user_content(parts).compose()
    assert (message.role, message.content) == (ChatRole.USER, parts)


def test_phase1_tool_answers_follow_their_calls() -> None:
    call = ToolCallBlock(tool_call_id="call_1", name="echo")
    composer = PromptComposer().user("Go").assistant_content([call]).tool("call_1", "done")
    assert len(composer.assistant("Good.").validate_messages().compose()) == 4


def start() -> PromptComposer:
    return PromptComposer().system("s").user("u")


def asked() -> PromptComposer:
    call = ToolCall(tool_call_id="call_1", name="echo")
    return PromptComposer.from_messages(
        [ChatMessage.user_text("Go"), ChatMessage.assistant_text("", [call])]
    )


@together(
    ("composer", "reason"),
    [
        (start().user("again"), "user has just spoken"),
        (start().assistant("a").assistant("b"), "assistant has just spoken"),
        (start().system("late"), "before the conversation"),
        (PromptComposer().assistant("first"), "user speaks first"),
        (start().assistant("a").tool("call_9", "x"), "answers no tool call"),
        (asked().tool("call_2", "x"), "answers no tool call"),
        (asked().user("well?"), "no answers yet"),
        (asked(), "without an answer: call_1"),
    ],
)
def test_phase1_a_wrong_order_is_named(composer: PromptComposer, reason: str) -> None:
    with pytest.raises(PromptError, match=reason):
        composer.validate_messages()


def test_a_name_needs_a_message_and_a_template_name_needs_templates() -> None:
    with pytest.raises(PromptError, match="no message yet"):
        PromptComposer().with_name("ada")
    with pytest.raises(PromptError, match="no templates"):
        PromptComposer().user_template("ask", {})


@pytest.mark.long
@pytest.mark.parametrize(
    "part",
    ["{{#if a}}\n{{a}}\n{{/if}}\n", "{{!-- x --}}", "{{> b}}",
     *(pytest.param(e, marks=pytest.mark.sweep) for e in (
         "{{a}} ", "{{a}}\n", "{{#if a}}{{/if}}", "{{! x }}", "   {{! x }}", "{{!-- x }}", "x\n",
         "{{{{raw}}}}{{a}}{{{{/raw}}}}"))],
)  # fmt: skip
def test_reading_and_filling_in_take_time_in_proportion(part: str) -> None:
    """16 times as much takes 16 times as long: 256 times, if it were looked through again."""

    def fill_in(count: int) -> Callable[[], object]:
        registry = PromptTemplateRegistry([PromptTemplate("b", "b")])
        return lambda: PromptTemplate("t", part * count).render({"a": "1"}, registry)

    fill_in(10)()
    assert cpu_seconds(fill_in(8_000)) < 80 * cpu_seconds(fill_in(500)) + 0.02


@together("part", ["{{", "{{!--", "{{{{raw}}}}", "{{#if a}}", "{{/if}}", "{{a"])
def test_what_is_no_template_is_refused_at_once(part: str) -> None:
    with pytest.raises(PromptError):
        PromptTemplate("t", part * 100_000)


def nested(depth: int) -> str:
    return "{{#each a}}" * depth + "x" + "{{/each}}" * depth


def test_blocks_are_nested_to_a_limit_that_has_an_error_of_its_own() -> None:
    deepest = nested(99).replace("#each a", "#if a").replace("/each", "/if")
    assert rendered(deepest, a=1) == "x"
    with pytest.raises(PromptDepthError, match=r"'t' is wrong in line 1.*100 levels") as caught:
        rendered(nested(101), a=[1])
    assert caught.value.details == {"template": "t", "line": 1}
    assert PromptTemplate("t", nested(100)).variables() == ["a"]


def test_templates_include_one_another_to_the_same_limit() -> None:
    def chain(length: int) -> PromptTemplateRegistry:
        links = [PromptTemplate(f"t{n}", f"{{{{> t{n + 1}}}}}") for n in range(length)]
        return PromptTemplateRegistry([*links, PromptTemplate(f"t{length}", "end")])

    assert chain(100).render("t0") == "end"
    with pytest.raises(PromptDepthError, match="'t101' is included deeper than 100 levels"):
        chain(101).render("t0")
    with pytest.raises(PromptDepthError):
        chain(5_000).render("t0")


def test_a_place_in_a_list_that_no_list_has_is_a_missing_variable() -> None:
    with pytest.raises(PromptError, match="missing"):
        rendered("{{a." + "9" * 5000 + "}}", a=[1])


def test_templates_are_read_from_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "mail").mkdir()
    (tmp_path / "letter.md").write_text("\ufeffDear {{name}},\n{{> mail/end}}", encoding="utf-8")
    (tmp_path / "mail" / "end.md").write_text("Yours, {{me}}", encoding="utf-8")
    (tmp_path / "note.txt").write_text("{{broken", encoding="utf-8")
    registry = PromptTemplateRegistry.from_folder(tmp_path)
    assert registry.names() == ["letter", "mail/end"]
    assert registry.render("letter", {"name": "Ada", "me": "Bo"}) == "Dear Ada,\nYours, Bo"
    letter = PromptTemplate.from_file(str(tmp_path / "letter.md"), "dear")
    assert (letter.name, letter.variables()) == ("dear", ["name"])
    with pytest.raises(PromptError, match="'note' is wrong in line 1"):
        PromptTemplateRegistry.from_folder(tmp_path, "*.txt")


def test_a_file_that_is_no_template_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"no folder .*nothing"):
        PromptTemplateRegistry.from_folder(tmp_path / "nothing")
    with pytest.raises(PromptError, match=r"a\.md cannot be read: No such file"):
        PromptTemplate.from_file(tmp_path / "a.md")
    (tmp_path / "latin.md").write_bytes(b"caf\xe9")
    with pytest.raises(PromptError, match=r"latin\.md is not UTF-8 \(byte 3\)"):
        PromptTemplateRegistry.from_folder(tmp_path)
    (tmp_path / "latin.md").unlink()
    (tmp_path / "one.md").write_text("", encoding="utf-8")
    (tmp_path / "one.txt").write_text("", encoding="utf-8")
    with pytest.raises(PromptError, match="already a template named 'one'"):
        PromptTemplateRegistry.from_folder(tmp_path, "*")
