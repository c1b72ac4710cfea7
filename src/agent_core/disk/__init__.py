"""Folders that are opened without following links, and notes of writes in progress."""
