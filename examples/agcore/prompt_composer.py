"""Prompts: templates with variables, conditions and lists, and messages put together in order.

Runs offline, without a model: python examples/agcore/prompt_composer.py
"""

from agcore.prompt import (
    PromptComposer,
    PromptError,
    PromptTemplate,
    PromptTemplateRegistry,
    TemplateContext,
)

REPORT = PromptTemplate(
    "report",
    """\
The weather in {{ city }}:
{{#each days}}
- {{ name }}: {{ sky }}{{#if rain}}, take an umbrella{{/if}}
{{/each}}
{{> footer}}
""",
)
FOOTER = PromptTemplate("footer", "Write {{{{raw}}}}{{ name }}{{{{/raw}}}} where the name goes.")


def main() -> None:
    templates = PromptTemplateRegistry([REPORT, FOOTER])
    print("Templates:", ", ".join(templates.names()))
    print("The report needs:", ", ".join(REPORT.variables()))

    context = TemplateContext(
        city="Genf",
        days=[
            {"name": "Monday", "sky": "clear", "rain": False},
            {"name": "Tuesday", "sky": "grey", "rain": True},
        ],
    )
    messages = (
        PromptComposer(templates)
        .system("You are a weather assistant. Be brief.")
        .user_template("report", context)
        .with_name("ada")
        .assistant("Tuesday needs an umbrella.")
        .user("And Wednesday?")
        .validate_messages()
        .compose()
    )
    for message in messages:
        author = f"{message.role}/{message.name}" if message.name else message.role
        print(f"\n[{author}]\n{message.text}")

    print("\nWhat goes wrong is named:")
    try:
        templates.render("report", {"city": "Genf"})
    except PromptError as error:
        print(f"- {error.message}")
    try:
        PromptComposer().user("one").user("two").validate_messages()
    except PromptError as error:
        print(f"- {error.message}")


if __name__ == "__main__":
    main()
