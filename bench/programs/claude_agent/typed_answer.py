"""A typed answer from a text."""

import asyncio
import os
import sys
from datetime import date

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query
from pydantic import BaseModel


class Meeting(BaseModel):
    title: str
    day: date
    people: list[str]


async def main() -> None:
    options = ClaudeAgentOptions(
        model=os.environ["MODEL"],
        system_prompt="Find the meeting.",
        tools=[],
        setting_sources=[],
        output_format={"type": "json_schema", "schema": Meeting.model_json_schema()},
    )
    async for message in query(prompt=sys.stdin.read(), options=options):
        if isinstance(message, ResultMessage):
            print(Meeting.model_validate(message.structured_output).model_dump_json())


asyncio.run(main())
