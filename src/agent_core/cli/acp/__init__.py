"""Serves editors: the runtime as an agent of the Agent Client Protocol."""
