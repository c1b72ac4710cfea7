"""The tools of the model, each call checked and recorded."""
