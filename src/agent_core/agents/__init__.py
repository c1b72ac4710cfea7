"""Agents beside the first one: their definitions, and the runs that one run starts.

A child, a worker and a fork are ordinary runs in another context. `crew` is what a leading run
may start, `children` keeps account of what is running, `child` is one of them.
"""
