"""What the model may do inside a run folder, guarded and recorded."""
