"""Repositories of Git, read from their files: Git is never run on a foreign repository."""
