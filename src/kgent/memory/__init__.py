"""The door to a memory that lives elsewhere; kgent keeps none of its own."""
