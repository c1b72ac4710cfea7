"""The contract of a memory outside of kgent, and its clients."""
