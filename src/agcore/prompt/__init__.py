"""Prompts: templates with variables, and messages put together in order."""

from agcore.prompt.composer import PromptComposer
from agcore.prompt.error import PromptDepthError, PromptError
from agcore.prompt.templates import PromptTemplate, PromptTemplateRegistry, TemplateContext

__all__ = [
    "PromptComposer",
    "PromptDepthError",
    "PromptError",
    "PromptTemplate",
    "PromptTemplateRegistry",
    "TemplateContext",
]
