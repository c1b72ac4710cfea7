"""Profiles: load, check and render them."""
