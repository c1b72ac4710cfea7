"""Long histories made short: when, where to cut, what is carried over, one summary.

Nothing here runs a model: `Compactor` asks through `Summarise`, which the runtime implements with
an ordinary run of the compact agent.
"""
