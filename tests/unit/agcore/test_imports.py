"""The toolkit costs what is used of it, and the engine does not know it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.checked


def printed(program: str) -> list[str]:
    done = subprocess.run(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_importing_the_toolkit_loads_nothing_of_it() -> None:
    program = """
import sys, agcore
print(sorted(n for n in sys.modules if n.partition(".")[0] in {"agcore", "agent_core", "pydantic"}))
print(agcore.llm.__name__)
"""
    assert printed(program) == ["['agcore']", "agcore.llm"]


def test_no_part_of_the_toolkit_loads_what_only_some_programs_need() -> None:
    program = """
import sys
import agcore.agent, agcore.llm, agcore.memory, agcore.prompt, agcore.tools
heavy = {"httptools", "mcp", "jsonschema", "rich", "snowballstemmer", "charset_normalizer"}
print(sorted(heavy & set(sys.modules)))
"""
    assert printed(program) == ["[]"]


def test_a_program_of_an_earlier_version_finds_its_errors() -> None:
    program = """
from agcore.errors import AgentError, LimitExceededError, LlmError, MemoryError, PromptError
import agcore.agent, agcore.memory
assert AgentError is agcore.agent.AgentError and MemoryError is agcore.memory.MemoryError
print(LimitExceededError.__module__, hasattr(agcore.errors, "NoError"))
"""
    assert printed(program) == ["agcore.agent.error False"]
