"""Keeps secrets out of everything that is stored, logged or shown."""
