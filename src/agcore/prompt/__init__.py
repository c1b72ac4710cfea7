"""Prompts: templates with variables, and messages put together in order."""

from agcore.prompt.composer import PromptComposer
from agcore.prompt.errors import PromptError
from agcore.prompt.template import PromptTemplate, PromptTemplateRegistry, TemplateContext

__all__ = [
    "PromptComposer",
    "PromptError",
    "PromptTemplate",
    "PromptTemplateRegistry",
    "TemplateContext",
]
