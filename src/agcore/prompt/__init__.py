"""Prompts: templates with variables, and messages put together in order."""

from agcore.errors import PromptError
from agcore.prompt.composer import PromptComposer
from agcore.prompt.templates import (
    PromptTemplate,
    PromptTemplateRegistry,
    TemplateContext,
)

__all__ = [
    "PromptComposer",
    "PromptError",
    "PromptTemplate",
    "PromptTemplateRegistry",
    "TemplateContext",
]
