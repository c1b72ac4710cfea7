"""A typed answer from a text."""

import os
import sys
from datetime import date

from pydantic import BaseModel
from pydantic_ai import Agent


class Meeting(BaseModel):
    title: str
    day: date
    people: list[str]


agent = Agent(os.environ["MODEL"], instructions="Find the meeting.", output_type=Meeting)
result = agent.run_sync(sys.stdin.read())
print(result.output.model_dump_json())
