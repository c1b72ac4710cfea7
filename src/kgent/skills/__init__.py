"""Folders with instructions: found by their heads, loaded when asked for."""
