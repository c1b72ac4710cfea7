"""The request for the model: built each turn from the path and the texts of the run."""
