"""Prices of model calls, and spending limits of runs, sessions and children."""
