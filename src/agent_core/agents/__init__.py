"""Agents besides the first one: their definitions, and the runs that a run starts.

A child, a worker and a fork are ordinary runs with another context. `spawner` starts children,
`orchestrator` also starts workers; `child_runs` limits and stops running children.
"""
