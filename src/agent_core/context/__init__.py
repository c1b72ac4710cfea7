"""What the model sees: the path and the run's own texts, made into one request a turn."""
