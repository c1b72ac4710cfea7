"""A typed answer from a text."""

import os
import sys
from datetime import date

from pydantic import BaseModel

from agcore import Agent


class Meeting(BaseModel):
    title: str
    day: date
    people: list[str]


finder = Agent("finder", "Find the meeting.", model=os.environ["MODEL"], output_type=Meeting)
result = finder.run_sync(sys.stdin.read())
print(result.output.model_dump_json())
