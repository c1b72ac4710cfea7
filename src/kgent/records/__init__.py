"""The records of a run, written as it happens."""
