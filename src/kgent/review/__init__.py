"""A run folder read back: its story, and whether it is what the run left."""
