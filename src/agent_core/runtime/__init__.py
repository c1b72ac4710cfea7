"""Composition root: builds a runtime from its parts and schedules its runs."""
