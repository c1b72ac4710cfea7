"""Finished run folders: show, verify, sign and compare them."""
