"""The API: sessions, runs, questions and files as JSON."""

from agent_core.serve.api import approvals, files, lists, moves, runs, sessions
from agent_core.serve.operations import routes

OPERATIONS = [
    *sessions.OPERATIONS,
    *runs.OPERATIONS,
    *moves.OPERATIONS,
    *approvals.OPERATIONS,
    *lists.OPERATIONS,
    *files.OPERATIONS,
]
"""Every operation below `/api`."""

ROUTES = routes(OPERATIONS)
