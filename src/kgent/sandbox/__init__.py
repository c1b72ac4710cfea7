"""The run folder: its layout, its paths and its manifests."""
