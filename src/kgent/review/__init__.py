"""Reading a run folder back: its story, its page, and whether it is still what it was."""
