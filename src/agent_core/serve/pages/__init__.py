"""The pages of the console: HTML that can be read without scripts, live with them."""

from starlette.routing import Route

from agent_core.serve.pages import approvals, home, machines, runs, sessions
from agent_core.serve.pages.assets import send_asset

_SESSION = "/sessions/{session_id}"
_RUN = "/runs/{run_id}"
_QUESTION = "/approvals/{request_id}"

ROUTES = [
    Route("/", home.show_home, methods=["GET"]),
    Route("/news", home.stream_news, methods=["GET"]),
    Route("/costs", home.show_costs, methods=["GET"]),
    Route("/runs", runs.start, methods=["POST"]),
    Route(_SESSION, sessions.show_session, methods=["GET"]),
    Route(f"{_SESSION}/stream", sessions.stream, methods=["GET"]),
    Route(f"{_SESSION}/export", sessions.export, methods=["GET"]),
    Route(f"{_SESSION}/runs", sessions.send_message, methods=["POST"]),
    Route(f"{_SESSION}/undo", sessions.undo, methods=["POST"]),
    Route(f"{_SESSION}/redo", sessions.redo, methods=["POST"]),
    Route(f"{_SESSION}/switch", sessions.switch, methods=["POST"]),
    Route(f"{_SESSION}/fork", sessions.fork, methods=["POST"]),
    Route(_RUN, runs.show_run, methods=["GET"]),
    Route(f"{_RUN}/stream", runs.stream, methods=["GET"]),
    Route(f"{_RUN}/changes", runs.show_changes, methods=["GET"]),
    Route(f"{_RUN}/cancel", runs.cancel, methods=["POST"]),
    Route(_QUESTION, approvals.show_question, methods=["GET"]),
    Route(_QUESTION, approvals.answer, methods=["POST"]),
    Route("/workers", machines.show_workers, methods=["GET"]),
    Route("/settings", machines.show_settings, methods=["GET"]),
    Route("/assets/{name}", send_asset, methods=["GET"]),
]
