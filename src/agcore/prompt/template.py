"""Templates, what fills them in, and a place to keep them by name."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

from agcore.prompt.errors import PromptError
from agcore.prompt.nodes import Nodes
from agcore.prompt.parser import parse, variables
from agcore.prompt.render import Renderer, Scope


class TemplateContext:
    """The values for a template's variables: text, numbers, lists and tables of them."""

    def __init__(
        self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), **more: Any
    ) -> None:
        self._values: dict[str, Any] = {**dict(values), **more}

    def set(self, name: str, value: Any) -> Self:
        """Give a variable its value."""
        self._values[name] = value
        return self

    def get(self, name: str) -> Any:
        """The value of a variable; None if it has none."""
        return self._values.get(name)

    @property
    def values(self) -> Mapping[str, Any]:
        """Every variable."""
        return self._values


Values = TemplateContext | Mapping[str, Any]


class PromptTemplate:
    """A template that has been read and checked.

    Raises:
        PromptError: the source is not a template; names the line.
    """

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source
        self._nodes = parse(name, source)

    def __repr__(self) -> str:
        return f"PromptTemplate({self.name!r})"

    def render(
        self, context: Values | None = None, partials: "PromptTemplateRegistry | None" = None
    ) -> str:
        """Fill the template in; `{{> name}}` includes templates of `partials`.

        Raises:
            PromptError: a variable is missing; `details.variable` names it. In `{{#if x}}` a
                missing variable counts as false.
        """

        def find(name: str) -> Nodes | None:
            found = partials.get(name) if partials is not None else None
            return found._nodes if found is not None else None  # noqa: SLF001 - one of our own

        values = context.values if isinstance(context, TemplateContext) else (context or {})
        return "".join(Renderer(self.name, find).render(self._nodes, Scope(values)))

    def variables(self) -> list[str]:
        """The variables it mentions, each once, in their order."""
        return list(dict.fromkeys(variables(self._nodes)))


class PromptTemplateRegistry:
    """Templates by name; they may include one another."""

    def __init__(self, templates: Iterable[PromptTemplate] = ()) -> None:
        self._templates: dict[str, PromptTemplate] = {}
        for template in templates:
            self.register(template)

    def register(self, template: PromptTemplate) -> None:
        """Add a template.

        Raises:
            PromptError: the name is taken.
        """
        if template.name in self._templates:
            message = f"there is already a template named {template.name!r}; give it another name"
            raise PromptError(message, template=template.name)
        self._templates[template.name] = template

    def get(self, name: str) -> PromptTemplate | None:
        """The template of that name."""
        return self._templates.get(name)

    def names(self) -> list[str]:
        """Every name, sorted."""
        return sorted(self._templates)

    def render(self, name: str, context: Values | None = None) -> str:
        """Fill in the template of that name.

        Raises:
            PromptError: there is none, or a variable is missing.
        """
        template = self._templates.get(name)
        if template is None:
            known = ", ".join(self.names()) or "none"
            message = f"there is no template named {name!r}; there are: {known}"
            raise PromptError(message, template=name)
        return template.render(context, self)
