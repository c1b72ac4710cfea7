"""Shorten long histories: when, where to cut, what to carry over, and one summary.

Nothing here runs a model: the compactor calls `Summarise`, which the runtime implements with an
ordinary run of the compact agent.
"""
