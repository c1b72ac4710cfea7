"""A typed answer from a text."""

import os
import sys
from datetime import date

from agents import Agent, Runner
from pydantic import BaseModel


class Meeting(BaseModel):
    title: str
    day: date
    people: list[str]


agent = Agent(
    "finder", model=os.environ["MODEL"], instructions="Find the meeting.", output_type=Meeting
)
result = Runner.run_sync(agent, sys.stdin.read())
print(result.final_output_as(Meeting).model_dump_json())
