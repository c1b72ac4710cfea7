"""The exact state of a workspace, recorded in content-addressed objects and restored from them."""
