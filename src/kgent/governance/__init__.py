"""The checks that decide how a run ends."""
