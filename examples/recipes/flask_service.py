"""An assistant in a Flask application: each request waits for its answer in its own thread.

flask --app examples/recipes/flask_service run
"""

import os

from flask import Flask, request
from pydantic import BaseModel, ValidationError

from agent_core import AgentCoreError, AgentRuntime, ErrorCode, tool

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
STATUS = {ErrorCode.VALIDATION_ERROR: 400, ErrorCode.SESSION_ACTIVE: 409}

app = Flask(__name__)
runtime = AgentRuntime(model=MODEL)


class Question(BaseModel):
    message: str
    session: str


@tool(permission="readonly")
def stock(item: str) -> int:
    """Return the number of items left."""
    return {"lamp": 12}.get(item, 0)


@app.post("/ask")
def ask() -> dict[str, str]:
    asked = Question.model_validate_json(request.get_data())
    result = runtime.run_sync(asked.message, asked.session, tools=[stock])
    return {"answer": result.text, "session": result.session_id}


@app.errorhandler(ValidationError)
def refuse_body(error: ValidationError) -> tuple[dict[str, str], int]:
    return {"error": str(error)}, 400


@app.errorhandler(AgentCoreError)
def refuse(error: AgentCoreError) -> tuple[dict[str, str], int]:
    return {"error": error.message}, STATUS.get(error.code, 500)
