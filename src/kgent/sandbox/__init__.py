"""The run folder: its layout, its boundaries, its manifests."""
