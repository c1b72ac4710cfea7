"""One run: its ids, its state, its context and the code that conducts it."""
