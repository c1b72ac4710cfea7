"""Tasks: an orchestrator's graph of steps, and the append-only log it is made from."""
