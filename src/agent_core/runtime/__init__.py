"""The composition root: what a runtime is made of, and who runs when."""
