"""Agents beside the first one: their definitions, and the runs that one run starts.

A child, a worker and a fork are ordinary runs in another context. `spawner` starts children,
`orchestrator` workers too; `child_runs` bounds and stops what is running.
"""
