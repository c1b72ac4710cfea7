"""What may happen, what must exist at the end, and what follows from both."""
