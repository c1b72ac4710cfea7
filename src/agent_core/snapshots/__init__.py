"""The exact state of a workspace, recorded in content-addressed blobs and brought back."""
